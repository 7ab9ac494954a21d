/* The states of places in memory. See remembered.h. */
#include "table/times.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "os/vfs.h"

static const struct own_bytes none = {.lsn = 0};

static bool same_bytes(const struct own_bytes *a, const struct own_bytes *b) {
    return a->lsn == b->lsn && a->at == b->at && a->bytes == b->bytes;
}

bool remembered_equal(const struct remembered *a, const struct remembered *b) {
    bool same = a->not_before_us == b->not_before_us && a->expires_us == b->expires_us &&
                a->delivery_count == b->delivery_count && (a->own == NULL) == (b->own == NULL);
    return same && (a->own == NULL ||
                    (same_bytes(&a->own->note, &b->own->note) && same_bytes(&a->own->header, &b->own->header)));
}

uint64_t remembered_own_bytes(const struct remembered *s) {
    return s->own == NULL ? 0 : round_up((uint64_t)s->own->note.bytes + s->own->header.bytes, 8);
}

bool remembered_copy(struct remembered *into, const struct remembered *from) {
    struct own *own = from->own != NULL ? malloc(sizeof *own) : NULL;
    if (from->own != NULL && own == NULL) {
        return false;
    }
    if (own != NULL) {
        *own = *from->own;
    }
    *into = *from;
    into->own = own;
    return true;
}

/* Sets one of the two; what has neither is freed. */
static bool set_own(struct remembered *s, const struct own_bytes *bytes, bool is_note) {
    if (s->own == NULL && bytes == NULL) {
        return true;
    }
    if (s->own == NULL) {
        s->own = malloc(sizeof *s->own);
        if (s->own == NULL) {
            return false;
        }
        *s->own = (struct own){.note.lsn = 0};
    }
    *(is_note ? &s->own->note : &s->own->header) = bytes != NULL ? *bytes : none;
    if (s->own->note.lsn == 0 && s->own->header.lsn == 0) {
        remembered_free(&(struct remembered){.own = s->own});
        s->own = NULL;
    }
    return true;
}

bool remembered_set_note(struct remembered *s, const struct own_bytes *note) { return set_own(s, note, true); }

bool remembered_set_header(struct remembered *s, const struct own_bytes *header) { return set_own(s, header, false); }

void remembered_free(struct remembered *s) {
    free(s->own);
    *s = (struct remembered){.own = NULL};
}

void remembered_free_made(struct remembered *s) {
    if (s != NULL) {
        free(s->own);
        free(s);
    }
}

/* ---- places in no run ---- */

/* States come by the million when a store is opened, so blocks grow until one is a large page. */
struct unplaced_block {
    struct unplaced_block *older;
    uint64_t words[];
};

enum {
    FIRST_BLOCK = 500, /* words */
    LARGEST_BLOCK = (LARGE_PAGE_BYTES - sizeof(struct unplaced_block)) / sizeof(uint64_t),
};

_Static_assert(sizeof(uint64_t *) <= sizeof(uint64_t), "a word holds an address");

static bool add_block(struct unplaced_pool *pool) {
    uint32_t count = pool->capacity == 0 ? FIRST_BLOCK : 2 * pool->capacity;
    bool is_large = count >= LARGEST_BLOCK;
    count = is_large ? LARGEST_BLOCK : count;
    struct unplaced_block *made = is_large ? aligned_alloc(LARGE_PAGE_BYTES, LARGE_PAGE_BYTES)
                                           : malloc(sizeof *made + count * sizeof made->words[0]);
    if (made == NULL) {
        return false;
    }
    if (is_large) {
        vfs_advise_large_pages(made, LARGE_PAGE_BYTES);
    }
    made->older = pool->newest;
    pool->newest = made;
    pool->used = 0;
    pool->capacity = count;
    return true;
}

static uint64_t *take_words(struct unplaced_pool *pool, uint32_t count) {
    uint64_t *words = pool->free[count];
    if (words != NULL) {
        memcpy(&pool->free[count], words, sizeof pool->free[count]);
        return words;
    }
    if (pool->capacity - pool->used < count && !add_block(pool)) {
        return NULL;
    }
    words = &pool->newest->words[pool->used];
    pool->used += count;
    return words;
}

static void give_words(struct unplaced_pool *pool, uint64_t *words, uint32_t count) {
    memcpy(words, &pool->free[count], sizeof pool->free[count]);
    pool->free[count] = words;
}

void unplaced_free_pool(struct table *t) {
    struct unplaced_block *block = t->unplaced.newest;
    while (block != NULL) {
        struct unplaced_block *older = block->older;
        free(block);
        block = older;
    }
    t->unplaced = (struct unplaced_pool){.newest = NULL};
}

static uint32_t words_of(unsigned parts) {
    static const uint8_t bits[] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    return 1u + bits[parts];
}

/* Gives the words back. The caller has the state with its note and header. */
static void drop_words(struct table *t, struct place *p) {
    uint64_t *words = p->at.unplaced;
    uint32_t count = words_of(unplaced_parts(p));
    p->slot = unplaced_order_index(p);
    p->at.order_lsn = words[0];
    give_words(&t->unplaced, words, count);
}

bool unplaced_remember(struct table *t, struct place *p, const struct remembered *state) {
    unsigned parts = remembered_parts(state), before = unplaced_parts(p);
    struct own *own = unplaced_state(p).own;
    uint64_t order_lsn = unplaced_order_lsn(p);
    uint64_t *words = parts == before ? p->at.unplaced : parts != 0 ? take_words(&t->unplaced, words_of(parts)) : NULL;
    if (parts != 0 && words == NULL) {
        return false;
    }
    if (own != state->own) {
        free(own);
    }
    if (parts != before && before != 0) {
        drop_words(t, p);
    }
    if (parts == 0) {
        return true;
    }
    p->at.unplaced = words;
    p->slot = unplaced_order_index(p) | (uint32_t)parts << SLOT_PARTS;
    *words++ = order_lsn;
    if ((parts & REMEMBERS_NOT_BEFORE) != 0) {
        *words++ = state->not_before_us;
    }
    if ((parts & REMEMBERS_EXPIRES) != 0) {
        *words++ = state->expires_us;
    }
    if ((parts & REMEMBERS_COUNT) != 0) {
        *words++ = state->delivery_count;
    }
    if ((parts & REMEMBERS_OWN) != 0) {
        memcpy(words, &state->own, sizeof state->own);
    }
    return true;
}

struct remembered unplaced_state(const struct place *p) {
    struct remembered state = {.own = NULL};
    unsigned parts = unplaced_parts(p);
    if (parts == 0) {
        return state;
    }
    const uint64_t *words = p->at.unplaced + 1;
    if ((parts & REMEMBERS_NOT_BEFORE) != 0) {
        state.not_before_us = *words++;
    }
    if ((parts & REMEMBERS_EXPIRES) != 0) {
        state.expires_us = *words++;
    }
    if ((parts & REMEMBERS_COUNT) != 0) {
        state.delivery_count = (uint32_t)*words++;
    }
    if ((parts & REMEMBERS_OWN) != 0) {
        memcpy(&state.own, words, sizeof state.own);
    }
    return state;
}

struct remembered unplaced_forget(struct table *t, struct place *p) {
    struct remembered state = unplaced_state(p);
    if (unplaced_remembers(p)) {
        drop_words(t, p);
    }
    return state;
}

/* ---- places in runs ---- */

/* calloc for what is needed and not there yet. */
static bool prepare_array(void **array, bool needed, size_t item_bytes) {
    if (needed && *array == NULL) {
        *array = calloc(CHUNK_PLACES, item_bytes);
    }
    return !needed || *array != NULL;
}

/* The same for times, whose groups are cache lines. First times of 0 are too early, so the groups are looked at once. */
static bool prepare_times(uint64_t **times, bool needed) {
    enum { BYTES = (TIMES_FIRST_AT + TIMES_GROUPS) * sizeof(uint64_t), LINE = TIMES_GROUP * sizeof(uint64_t) };
    if (needed && *times == NULL) {
        *times = aligned_alloc(LINE, BYTES);
        if (*times != NULL) {
            memset(*times, 0, BYTES);
        }
    }
    return !needed || *times != NULL;
}

/* The parts for which the chunk has memory. */
static unsigned parts_there(const struct queue_chunk *c) {
    const struct chunk_states *s = c->states;
    return s == NULL ? 0u
                     : (s->not_before_us != NULL ? REMEMBERS_NOT_BEFORE : 0u) |
                           (s->expires_us != NULL ? REMEMBERS_EXPIRES : 0u) |
                           (s->delivery_counts != NULL ? REMEMBERS_COUNT : 0u) | (s->owns != NULL ? REMEMBERS_OWN : 0u);
}

enum { TIMES = REMEMBERS_NOT_BEFORE | REMEMBERS_EXPIRES };

/* Room in the heaps for a chunk that has these parts and gets those. */
static bool prepare_heaps(struct queue *q, unsigned there, unsigned parts) {
    bool first = (there & TIMES) == 0 && (parts & TIMES) != 0;
    bool expires = (parts & ~there & REMEMBERS_EXPIRES) != 0;
    return (!first || times_prepare(q->times)) &&
           (!expires || array_grow(&q->expired.all, &q->expired.capacity, q->expiring_chunks, 1));
}

/* The chunk had one set of parts, and has the other. */
static void count_times(struct queue *q, unsigned before, unsigned after) {
    q->times->chunks += (uint32_t)((after & TIMES) != 0) - (uint32_t)((before & TIMES) != 0);
    q->expiring_chunks += (uint32_t)((after & REMEMBERS_EXPIRES) != 0) - (uint32_t)((before & REMEMBERS_EXPIRES) != 0);
}

enum { FIRST_OWNS = 4 };

static bool owns_have_room(const struct chunk_owns *o, uint32_t more) {
    return o != NULL && (o->capacity == CHUNK_PLACES || o->capacity - o->count >= more);
}

/* Room for what so many more places have of their own, at most all. */
static bool prepare_owns(struct chunk_states *s, uint32_t more) {
    struct chunk_owns *o = s->owns;
    if (owns_have_room(o, more)) {
        return true;
    }
    uint32_t count = o != NULL ? o->count : 0, capacity = o != NULL ? 2 * o->capacity : FIRST_OWNS;
    capacity = capacity < count + more ? count + more : capacity;
    capacity = capacity < CHUNK_PLACES ? capacity : CHUNK_PLACES;
    struct chunk_owns *made = realloc(o, sizeof *made + capacity * sizeof made->all[0]);
    if (made == NULL) {
        return false;
    }
    if (o == NULL) {
        *made = (struct chunk_owns){.count = 0};
    }
    made->capacity = capacity;
    s->owns = made;
    return true;
}

static uint32_t free_own(struct chunk_owns *o) {
    uint32_t word = o->used[0] == UINT64_MAX ? 1 : 0, bit = (uint32_t)__builtin_ctzll(~o->used[word]);
    assert(word * 64 + bit < o->capacity);
    o->used[word] |= UINT64_C(1) << bit;
    o->count++;
    return word * 64 + bit;
}

/* The place gets a copy; NULL: it has nothing of its own. */
static void set_chunk_own(struct chunk_owns *o, uint32_t slot, const struct own *own) {
    uint32_t at = o->at[slot];
    if (own == NULL && at != 0) {
        o->used[(at - 1) / 64] &= ~(UINT64_C(1) << (at - 1) % 64);
        o->count--;
        o->at[slot] = 0;
    } else if (own != NULL) {
        at = at != 0 ? at : free_own(o) + 1;
        o->at[slot] = (uint8_t)at;
        o->all[at - 1] = *own;
    }
}

static bool prepare_more(struct queue_chunk *c, unsigned parts, uint32_t owns) {
    unsigned there = parts_there(c);
    if (c->states == NULL) {
        c->states = calloc(1, sizeof *c->states);
    }
    struct chunk_states *s = c->states;
    if (s == NULL || !prepare_heaps(c->queue, there, parts)) {
        return false;
    }
    bool fine =
        prepare_array((void **)&s->content_bytes, (parts & TIMES) != 0, sizeof(uint16_t)) && /* before the times */
        prepare_times(&s->not_before_us, (parts & REMEMBERS_NOT_BEFORE) != 0) &&
        prepare_times(&s->expires_us, (parts & REMEMBERS_EXPIRES) != 0) &&
        prepare_array((void **)&s->delivery_counts, (parts & REMEMBERS_COUNT) != 0, sizeof(uint32_t)) &&
        ((parts & REMEMBERS_OWN) == 0 || prepare_owns(s, owns));
    if ((there & TIMES) == 0 && (parts & TIMES) != 0) {
        offer_mark_back(c);
    }
    count_times(c->queue, there, parts_there(c));
    return fine;
}

/* With what so many more places have of their own. */
static inline bool prepare(struct queue_chunk *c, unsigned parts, uint32_t owns) {
    const struct chunk_states *s = c->states;
    bool ready = s != NULL && (s->delivery_counts != NULL || (parts & REMEMBERS_COUNT) == 0) &&
                 ((parts & REMEMBERS_OWN) == 0 || owns_have_room(s->owns, owns)) &&
                 ((parts & TIMES) == 0 || (parts & ~parts_there(c)) == 0);
    return parts == 0 || ready || prepare_more(c, parts, owns);
}

bool chunk_prepare_state(struct queue_chunk *c, unsigned parts) { return prepare(c, parts, 1); }

bool chunk_prepare_states(struct queue_chunk *c, unsigned parts) { return prepare(c, parts, CHUNK_PLACES); }

bool queue_prepare_state(struct queue *q, unsigned parts) {
    bool fits = q->last != NULL && q->last->used < CHUNK_PLACES;
    return prepare(fits ? q->last : q->prepared, parts, 1);
}

bool queue_prepare_states(struct queue *q, unsigned parts) {
    bool fine = q->last == NULL || q->last->used == CHUNK_PLACES || chunk_prepare_states(q->last, parts);
    for (struct queue_chunk *c = q->prepared; fine && c != NULL; c = c->next) {
        fine = chunk_prepare_states(c, parts);
    }
    return fine;
}

/* False: its times are as before. */
static inline bool set_state(const struct place *p, const struct remembered *state) {
    struct chunk_states *s = p->at.chunk->states;
    bool other_times = false;
    assert(s->not_before_us != NULL || state->not_before_us == 0);
    assert(s->expires_us != NULL || state->expires_us == 0);
    assert(s->delivery_counts != NULL || state->delivery_count == 0);
    assert(s->owns != NULL || state->own == NULL);
    if (s->not_before_us != NULL) {
        other_times = s->not_before_us[p->slot] != state->not_before_us;
        s->not_before_us[p->slot] = state->not_before_us;
    }
    if (s->expires_us != NULL) {
        other_times |= s->expires_us[p->slot] != state->expires_us;
        s->expires_us[p->slot] = state->expires_us;
    }
    if (s->delivery_counts != NULL) {
        s->delivery_counts[p->slot] = state->delivery_count;
    }
    if (p->at.chunk->handed_out != NULL && p->at.chunk->handed_out[p->slot].count < state->delivery_count) {
        p->at.chunk->handed_out[p->slot].count = state->delivery_count;
    }
    if (s->owns != NULL) {
        set_chunk_own(s->owns, p->slot, state->own);
    }
    return other_times;
}

void place_remember(const struct place *p, const struct message *m, const struct remembered *state) {
    if (p->at.chunk->states == NULL) {
        assert(remembers_nothing(state));
    } else if (set_state(p, state)) {
        times_replaced(p, m);
    }
}

/* Its times and count stay where they are: nothing reads those of a place that has ended. */
void place_forget_there(const struct place *p) {
    struct chunk_states *s = p->at.chunk->states;
    s->opening[p->slot / 64] &= ~(UINT64_C(1) << p->slot % 64);
    s->ending[p->slot / 64] &= ~(UINT64_C(1) << p->slot % 64);
    if (s->owns != NULL) {
        set_chunk_own(s->owns, p->slot, NULL);
    }
}

void place_begins(const struct place *p, const struct message *m, const struct remembered *state) {
    if (set_state(p, state)) {
        times_begin(p, m);
    }
}

struct remembered place_state_there(const struct place *p) {
    const struct chunk_states *s = p->at.chunk->states;
    return (struct remembered){
        .not_before_us = s->not_before_us != NULL ? s->not_before_us[p->slot] : 0,
        .expires_us = s->expires_us != NULL ? s->expires_us[p->slot] : 0,
        .delivery_count = s->delivery_counts != NULL ? s->delivery_counts[p->slot] : 0,
        .own = chunk_own(s, p->slot),
    };
}

void place_take_note(struct table *t, struct message *m, const struct place *p, const struct remembered *from) {
    struct remembered before = place_state(p), after = before;
    struct own own_after = before.own != NULL ? *before.own : (struct own){.note.lsn = 0};
    own_after.note = from != NULL && from->own != NULL ? from->own->note : none;
    after.own = own_after.note.lsn != 0 || own_after.header.lsn != 0 ? &own_after : NULL;
    message_state_changes(t, m, &before, &after);
    place_remember(p, m, &after);
}

void chunk_free_states(struct queue_chunk *c) {
    struct chunk_states *s = c->states;
    if (s == NULL) {
        return;
    }
    times_leave(c);
    count_times(c->queue, parts_there(c), 0);
    free(s->not_before_us);
    free(s->expires_us);
    free(s->delivery_counts);
    free(s->owns);
    free(s->content_bytes);
    free(s);
    c->states = NULL;
}

/* ---- messages ---- */

bool message_places_have_states(const struct table *t, struct message *m) {
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct place *p = &message_places(m)[i];
        if (t->in_runs ? p->at.chunk->states == NULL : !unplaced_remembers(p)) {
            continue;
        }
        const struct remembered s = table_place_state(t, p);
        if (!remembers_nothing(&s)) {
            return true;
        }
    }
    return false;
}

bool message_work_has_states(const struct message *m) {
    const struct work *w = m->extra != NULL ? m->extra->work : NULL;
    while (w != NULL && !work_is_wide(w)) {
        w = w->next_of_message;
    }
    return w != NULL;
}

bool message_still_has_states(const struct table *t, struct message *m) {
    return message_places_have_states(t, m) || message_work_has_states(m);
}

static const struct own_bytes *own_or_none(const struct own_bytes *bytes) { return bytes->lsn != 0 ? bytes : NULL; }

struct seen_place message_see_place(const struct table *t, struct message *m, uint64_t tx_id, uint32_t queue_id) {
    struct seen_place seen = {.is_there = false};
    const struct work *w = tx_id != 0 && m->extra != NULL ? m->extra->work : NULL; /* the newest first */
    bool noted = false, made = false;
    const struct own *own = NULL;
    for (; w != NULL && !made; w = w->next_of_message) {
        if (w->tx->id != tx_id || w->queue_id != queue_id) {
            continue;
        }
        if (w->kind == WORK_DEQUEUE) {
            return (struct seen_place){.is_there = false};
        }
        made = w->kind == WORK_ENQUEUE;
        own = w->state != NULL ? w->state->own : NULL;
        if (!made && !noted) {
            seen.note = own != NULL ? own_or_none(&own->note) : NULL;
            noted = true;
        }
    }
    const struct place *place = made ? NULL : message_place(m, queue_id);
    if (!made) {
        own = place != NULL ? table_place_state(t, place).own : NULL;
    }
    seen.is_there = made || place != NULL;
    if (own != NULL) {
        seen.note = noted ? seen.note : own_or_none(&own->note);
        seen.header = own_or_none(&own->header);
    }
    return seen;
}

uint64_t message_states_grow_at_most(const struct table *t, struct message *m, uint64_t n, uint64_t own_bytes) {
    uint64_t rows = n + m->place_count + message_pending(m) + 1;
    return message_grows_at_most(t, m, n) + WIDER_ROW_BYTES * rows + n * round_up(own_bytes, 8);
}

/*
 * A relocation writes at most the bytes that are counted as live, plus the growth. So fewer bytes only take back growth: those
 * of a state that was moved before are live until the next move.
 */
void message_state_changes(struct table *t, struct message *m, const struct remembered *before,
                           const struct remembered *after) {
    table_touch(t, m);
    if (!remembers_nothing(after)) {
        table_note_state(t, m);
    }
    if (remembers_nothing(before) && !remembers_nothing(after) && !message_places_have_states(t, m)) {
        uint32_t ids = (m->flags & MESSAGE_LOOSE) == 0 ? m->place_count : 0, rows = m->place_count + message_pending(m);
        message_grows(t, m, (uint64_t)ROW_FOR_ID_BYTES * ids + (uint64_t)WIDER_ROW_BYTES * rows);
        message_widens(t, m);
    }
    uint64_t more = remembered_own_bytes(after), less = remembered_own_bytes(before);
    if (more > less) {
        message_grows(t, m, more - less);
    } else if (less > more) {
        message_shrinks(t, m, less - more);
    }
    message_changed(m);
}
