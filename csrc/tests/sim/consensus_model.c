#include "tests/sim/consensus_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "consensus/members.h"

static struct {
    struct batch *batches;
    size_t batch_count;
    size_t batch_capacity;
    struct configuration *configurations;
    size_t configuration_count;
    size_t configuration_capacity;
} model;

void model_reset(void) {
    model.batch_count = 0;
    model.configuration_count = 0;
}

/* ---- batches and configurations ---- */

int batch_new(void) {
    model.batches = grow(model.batches, &model.batch_capacity, model.batch_count, sizeof *model.batches);
    model.batches[model.batch_count] = (struct batch){.configuration = -1, .relocated = NO_BATCH};
    return (int)model.batch_count++;
}

struct batch *batch_of(int id) {
    return &model.batches[id];
}

uint64_t batch_end(int id) { return model.batches[id].lsn + model.batches[id].bytes; }

uint64_t segment_of(uint64_t lsn) { return lsn - lsn % SEGMENT_BYTES; }

int configuration_new(const uint8_t *bytes, uint32_t count) {
    struct members m;
    model.configurations = grow(model.configurations, &model.configuration_capacity, model.configuration_count,
                                sizeof *model.configurations);
    struct configuration *c = &model.configurations[model.configuration_count];
    if (count > sizeof c->bytes || !members_decode(&m, bytes, count)) {
        (void)fprintf(stderr, "the simulator: a configuration of %u bytes\n", count);
        exit(2);
    }
    memset(c, 0, sizeof *c);
    memcpy(c->bytes, bytes, count);
    c->count = count;
    c->voters = members_voters(&m);
    c->members = m.count;
    for (uint32_t i = 0; i < m.count; i++)
        c->ids[i] = m.all[i].id;
    return (int)model.configuration_count++;
}

const struct configuration *configuration_of(int number) { return &model.configurations[number]; }

bool configuration_names(int number, uint64_t member) {
    const struct configuration *c = &model.configurations[number];
    for (uint32_t i = 0; i < c->members; i++)
        if (c->ids[i] == member)
            return true;
    return false;
}

struct engine_entry entry_of(int id) {
    const struct batch *b = &model.batches[id];
    struct engine_entry entry = {.term = b->term, .kind = b->kind};
    if (b->configuration >= 0) {
        entry.configuration = model.configurations[b->configuration].bytes;
        entry.configuration_bytes = model.configurations[b->configuration].count;
    }
    return entry;
}

/* ---- logs ---- */

int sequence_at(const struct sequence *s, uint64_t index) {
    return index < s->first || index >= s->first + s->count ? NO_BATCH : s->ids[index - s->first];
}

uint64_t sequence_last(const struct sequence *s) { return s->first + s->count - 1; }

void sequence_put(struct sequence *s, int id) {
    s->ids = grow(s->ids, &s->capacity, s->count, sizeof *s->ids);
    s->ids[s->count++] = id;
}

void sequence_cut(struct sequence *s, uint64_t index) {
    if (index < s->first + s->count)
        s->count = index < s->first ? 0 : index - s->first;
}

void sequence_drop(struct sequence *s, uint64_t index) {
    if (index < s->first)
        return;
    size_t dropped = index - s->first + 1 < s->count ? index - s->first + 1 : s->count;
    memmove(s->ids, s->ids + dropped, (s->count - dropped) * sizeof *s->ids);
    s->count -= dropped;
    s->first = index + 1;
}

void sequence_copy(struct sequence *to, const struct sequence *from) {
    to->count = 0;
    to->first = from->first;
    for (size_t i = 0; i < from->count; i++)
        sequence_put(to, from->ids[i]);
}

void sequence_free(struct sequence *s) {
    free(s->ids);
    *s = (struct sequence){.first = 1};
}

/* ---- tables ---- */

static uint64_t print_of(uint64_t id, uint64_t position) { return random_mix(random_mix(id) + position); }

static size_t find(const struct table *t, uint64_t id) {
    size_t low = 0;
    for (size_t high = t->count; low < high;) {
        size_t middle = (low + high) / 2;
        if (t->items[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool table_has(const struct table *t, uint64_t id) {
    size_t at = find(t, id);
    return at < t->count && t->items[at].id == id;
}

static void take_out(struct table *t, uint64_t id) {
    size_t at = find(t, id);
    if (at == t->count || t->items[at].id != id)
        return;
    t->sum -= print_of(id, t->items[at].position);
    memmove(t->items + at, t->items + at + 1, (t->count - at - 1) * sizeof *t->items);
    t->count--;
}

static void put_in(struct table *t, struct item item) {
    size_t at = find(t, item.id);
    t->items = grow(t->items, &t->capacity, t->count, sizeof *t->items);
    memmove(t->items + at + 1, t->items + at, (t->count - at) * sizeof *t->items);
    t->items[at] = item;
    t->count++;
    t->sum += print_of(item.id, item.position);
}

/* A log that begins above the batch of a message lacks that batch. Only the judge of offers asks for it. */
static int born_of(const struct table *t, uint64_t id) {
    size_t at = find(t, id);
    return at < t->count && t->items[at].id == id ? t->items[at].born : NO_BATCH;
}

void table_apply(struct table *t, int id) {
    const struct batch *b = &model.batches[id];
    for (uint32_t i = 0; i < b->died_count; i++)
        take_out(t, b->died[i]);
    for (uint32_t i = 0; i < b->moved_count; i++) {
        int born = born_of(t, b->moved[i]);
        take_out(t, b->moved[i]);
        put_in(t, (struct item){b->moved[i], b->lsn, born});
    }
    for (uint32_t i = 0; i < b->born; i++)
        put_in(t, (struct item){b->lsn + i + 1, b->lsn, id});
    int members = b->kind == ENGINE_MEMBERS ? id : b->relocated;
    if (members != NO_BATCH &&
        (t->members == NO_BATCH || model.batches[members].index >= batch_of(t->members)->index)) {
        t->members = members;
        t->members_position = b->lsn;
    }
    t->applied = b->index;
}

uint64_t table_fingerprint(const struct table *t) {
    uint64_t members = t->members == NO_BATCH ? 0 : print_of(batch_of(t->members)->index, t->members_position);
    return t->sum + members + t->count;
}

uint64_t table_base(const struct table *t, uint64_t end) {
    uint64_t base = end;
    for (size_t i = 0; i < t->count; i++)
        base = t->items[i].position < base ? t->items[i].position : base;
    return t->members != NO_BATCH && t->members_position < base ? t->members_position : base;
}

void table_clear(struct table *t) {
    t->count = 0;
    t->sum = 0;
    t->applied = 0;
    t->members = NO_BATCH;
    t->members_position = 0;
}

void table_copy(struct table *to, const struct table *from) {
    struct item *items = to->items;
    size_t capacity = to->capacity;
    while (capacity < from->count + 1)
        items = grow(items, &capacity, capacity, sizeof *items);
    if (from->count > 0)
        memcpy(items, from->items, from->count * sizeof *items);
    *to = *from;
    to->items = items;
    to->capacity = capacity;
}

void table_free(struct table *t) {
    free(t->items);
    t->items = NULL;
    t->capacity = 0;
    table_clear(t);
}
