/* The batches of a run. See consensus_real_batches.h. */
#include "tests/sim/consensus_real_batches.h"

#include <stdlib.h>
#include <string.h>

#include "consensus/members.h"

enum { TERMS = 1 << 16, LSN_SHIFT = 40, HEADER_BYTES = 4096 };

typedef unsigned long long ull;

struct durable {
    int id;
    uint64_t term; /* in which it became known */
};

static struct {
    struct made *made;
    size_t count;
    size_t capacity;
    int *by_index; /* the newest made with this index */
    size_t index_count;
    size_t index_capacity;
    struct durable *durable; /* by index */
    size_t durable_count;
    size_t durable_capacity;
    uint64_t ends[TERMS]; /* of the LSNs that were given, by their upper bits */
} all;

void batches_reset(void) {
    for (size_t i = 0; i < all.count; i++) {
        free((void *)(uintptr_t)all.made[i].b.header);
        free((void *)(uintptr_t)all.made[i].b.bytes);
    }
    all.count = all.index_count = all.durable_count = 0;
    memset(all.ends, 0, sizeof all.ends);
}

const struct made *batch_of(int id) { return &all.made[id]; }

int batches_find(uint64_t term, uint64_t index) {
    int id = index < all.index_count ? all.by_index[index] : NO_BATCH;
    while (id != NO_BATCH && all.made[id].b.term != term)
        id = all.made[id].next;
    return id;
}

static uint8_t *copy_bytes(const uint8_t *from, size_t bytes) {
    uint8_t *copy = malloc(bytes);
    if (copy == NULL)
        run_failed("no memory for a batch");
    memcpy(copy, from, bytes);
    return copy;
}

int batches_add(uint64_t leader, const ls_replica_batch *b, uint32_t kind, int before) {
    uint64_t slot = b->lsn >> LSN_SHIFT;
    uint64_t index_before = before == NO_BATCH ? 0 : all.made[before].b.index;
    if (slot >= TERMS || slot != b->term || b->lsn < all.ends[slot])
        violation("LSN TWICE: batch %llu of term %llu gets %llx", (ull)b->index, (ull)b->term, (ull)b->lsn);
    if (b->index != index_before + 1)
        violation("R1: member %llu hands out batch %llu after %llu", (ull)leader, (ull)b->index, (ull)index_before);
    all.ends[slot] = b->end_lsn;
    all.made = grow(all.made, &all.capacity, all.count, sizeof *all.made);
    while (all.index_count <= b->index) {
        all.by_index = grow(all.by_index, &all.index_capacity, all.index_count, sizeof *all.by_index);
        all.by_index[all.index_count++] = NO_BATCH;
    }
    int id = (int)all.count++;
    struct made *m = &all.made[id];
    *m = (struct made){.b = *b, .kind = kind, .before = before, .next = all.by_index[b->index], .leader = leader};
    m->b.bytes = copy_bytes(b->bytes, b->end_lsn - b->lsn);
    m->b.header = b->header == NULL ? NULL : copy_bytes(b->header, HEADER_BYTES);
    if (kind == ENGINE_MEMBERS && ls_replica_members(&m->b, &m->config, &m->config_bytes) != LS_OK)
        violation("batch %llu of term %llu has no configuration", (ull)b->index, (ull)b->term);
    all.by_index[b->index] = id;
    return id;
}

bool batches_same_bytes(int id, const ls_replica_batch *b) {
    const ls_replica_batch *m = &all.made[id].b;
    return m->lsn == b->lsn && m->end_lsn == b->end_lsn && m->first_lsn == b->first_lsn &&
           memcmp(m->bytes, b->bytes, b->end_lsn - b->lsn) == 0 && (m->header == NULL) == (b->header == NULL) &&
           (m->header == NULL || memcmp(m->header, b->header, HEADER_BYTES) == 0);
}

struct engine_entry entry_of(int id) {
    const struct made *m = &all.made[id];
    struct engine_entry entry = {.term = m->b.term, .kind = m->kind};
    if (m->kind == ENGINE_MEMBERS) {
        entry.configuration = m->config;
        entry.configuration_bytes = (uint32_t)m->config_bytes;
    }
    return entry;
}

bool batch_names(int id, uint64_t member) {
    struct members m;
    const struct made *made = &all.made[id];
    return members_decode(&m, made->config, made->config_bytes) && members_find(&m, member) < m.count;
}

bool is_in_log(int last, int id) {
    while (last != NO_BATCH && all.made[last].b.index > all.made[id].b.index)
        last = all.made[last].before;
    return last == id;
}

/* ---- durable ---- */

int durable_at(uint64_t index) { return index < all.durable_count ? all.durable[index].id : NO_BATCH; }

uint64_t durable_last(void) { return all.durable_count == 0 ? 0 : all.durable_count - 1; }

void durable_up_to(uint64_t member, int id, uint64_t term) {
    uint64_t before = all.durable_count;
    for (; id != NO_BATCH; id = all.made[id].before) {
        uint64_t index = all.made[id].b.index;
        while (all.durable_count <= index) {
            all.durable = grow(all.durable, &all.durable_capacity, all.durable_count, sizeof *all.durable);
            all.durable[all.durable_count++] = (struct durable){.id = NO_BATCH};
        }
        struct durable *d = &all.durable[index];
        if (d->id == id)
            break; /* and so is all below */
        if (d->id != NO_BATCH)
            violation("STATE MACHINE SAFETY: durable batch %llu is of term %llu at member %llu, and was of term %llu",
                      (ull)index, (ull)all.made[id].b.term, (ull)member, (ull)all.made[d->id].b.term);
        *d = (struct durable){id, term};
    }
    if (all.durable_count > before)
        sim.counts[COUNT_DURABLE] += all.durable_count - before;
}

int durable_members(uint64_t index) {
    for (uint64_t i = index; i > 0; i--)
        if (durable_at(i) != NO_BATCH && all.made[durable_at(i)].kind == ENGINE_MEMBERS)
            return durable_at(i);
    return NO_BATCH;
}

bool is_named_anywhere(uint64_t member) {
    int newest = durable_members(durable_last());
    if (newest == NO_BATCH || batch_names(newest, member))
        return true;
    for (size_t i = 0; i < all.count; i++)
        if (all.made[i].kind == ENGINE_MEMBERS && all.made[i].b.index > all.made[newest].b.index &&
            batch_names((int)i, member))
            return true;
    return false;
}

void judge_completeness(uint64_t member, uint64_t term, int last) {
    for (uint64_t i = durable_last(); i > 0; i--) {
        if (all.durable[i].term >= term)
            continue;
        if (!is_in_log(last, all.durable[i].id))
            violation("LEADER COMPLETENESS: member %llu leads term %llu without durable batch %llu", (ull)member,
                      (ull)term, (ull)i);
        return; /* all before it is below it */
    }
}
