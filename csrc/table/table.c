/* Messages in slabs, and their places. See table.h. */
#include "table/remembered.h"
#include "logstore.h"
#include "os/array.h"
#include "os/prefetch.h"
#include "os/vfs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t message_key(const void *context, uint32_t number) { return table_message(context, number)->id; }

static uint64_t queue_key(const void *context, uint32_t number) {
    const struct table *t = context;
    return t->queues[number]->id;
}

static uint64_t tx_key(const void *context, uint32_t number) {
    const struct table *t = context;
    return t->txs[number]->id;
}

void table_init(struct table *t) {
    *t = (struct table){.free_message = INDEX_NONE, .times.due = &t->due};
    index_init_by_lsn(&t->messages, message_key, t);
    index_init(&t->queue_index, queue_key, t);
    index_init_by_lsn(&t->tx_index, tx_key, t);
}

uint32_t table_find(const struct table *t, uint64_t id) { return index_find(&t->messages, id); }

static void prefetch_message(const struct table *t, uint32_t number) {
    if (number < t->message_slots) {
        message_prefetch(table_message(t, number));
    }
}

/* The only place of the message with this id, if it has this number; else NULL. */
static const struct place *likely_place(const struct table *t, uint32_t number, uint64_t id) {
    const struct message *m = number < t->message_slots ? table_message(t, number) : NULL;
    return m != NULL && m->id == id && m->place_count > 0 && m->listed == 0 ? &m->places.one : NULL;
}

static void prefetch_place(const struct table *t, uint32_t number, uint64_t id) {
    const struct place *p = likely_place(t, number, id);
    if (p != NULL) {
        prefetch(p->at.chunk);
        prefetch(place_entry(p));
    }
}

void table_prefetch(const struct table *t, const uint64_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        index_prefetch(&t->messages, ids[i]);
    }
    for (size_t i = 0; i < n; i++) {
        prefetch_message(t, index_likely(&t->messages, ids[i]));
    }
    for (size_t i = 0; i < n; i++) {
        prefetch_place(t, index_likely(&t->messages, ids[i]), ids[i]);
    }
}

void table_prefetch_messages(const struct table *t, const ls_delivery *of, size_t n) {
    for (size_t i = 0; i < n; i++) {
        index_prefetch(&t->messages, of[i].id); /* for the removal */
        prefetch_message(t, of[i].number);
    }
}

void table_prefetch_places(const struct table *t, const ls_delivery *of, size_t n) {
    for (size_t i = 0; i < n; i++) {
        prefetch_place(t, of[i].number, of[i].id);
    }
}

void table_prefetch_counts(const struct table *t, const ls_delivery *of, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const struct place *p = likely_place(t, of[i].number, of[i].id);
        if (p != NULL && p->at.chunk->handed_out != NULL) {
            prefetch(&p->at.chunk->handed_out[p->slot]);
            prefetch(p->at.chunk->states);
        }
    }
}

/* Frees the state of a place that is in no run. */
__attribute__((noinline)) static void free_state(struct table *t, struct place *p) {
    struct remembered s = unplaced_forget(t, p);
    remembered_free(&s);
}

static void free_extra(struct message *m) {
    if (m->extra != NULL) {
        free(m->extra->chunks);
        free(m->extra->parts);
        free(m->extra);
        m->extra = NULL;
    }
    if (m->listed != 0) {
        free(m->places.list.all);
        m->listed = 0;
    }
}

/* The first SLABS_AT_ONCE slabs are allocated one by one; later ones in blocks that fill large pages. */
#ifdef LOGSTORE_POISON
static uint32_t slabs_from(uint32_t number) {
    (void)number;
    return 1; /* each moves alone */
}
#else
_Static_assert(SLABS_AT_ONCE * sizeof(struct slab) % LARGE_PAGE_BYTES == 0, "slabs fill large pages");

static uint32_t slabs_from(uint32_t number) { return number < SLABS_AT_ONCE ? 1 : SLABS_AT_ONCE; }
#endif

void table_free(struct table *t) {
    for (uint32_t number = 0; number < t->message_slots; number++) {
        struct message *m = table_message(t, number);
        for (uint32_t i = 0; i < m->place_count; i++) {
            free_state(t, &message_places(m)[i]);
        }
        free_extra(m);
    }
    for (uint32_t i = 0; i < t->slab_count; i += slabs_from(i)) {
        free(t->slabs[i]);
    }
    free(t->slabs);
    unplaced_free_pool(t);
    for (uint32_t i = 0; i < t->queue_count; i++) {
        if (t->queues[i] != NULL) {
            table_remove_queue(t, t->queues[i]);
        }
    }
    free(t->queues);
    free(t->times.heap.all);
    free(t->times.heap.times);
    for (uint32_t i = 0; i < t->tx_slots; i++) {
        struct tx *tx = t->txs[i];
        while (tx != NULL && tx->first != NULL) {
            struct work *next = tx->first->next;
            work_free_one(tx->first);
            tx->first = next;
        }
        if (tx != NULL) {
            tx_end_client_work(tx);
        }
        free(tx);
    }
    free(t->txs);
    index_free(&t->messages);
    index_free(&t->queue_index);
    index_free(&t->tx_index);
}

/* Rare, and out of line so that table_prepare, which every publish calls, needs no stack frame. */
__attribute__((noinline)) static bool add_slabs(struct table *t) {
    uint32_t more = slabs_from(t->slab_count);
    if (!array_grow(&t->slabs, &t->slab_capacity, t->slab_count, more)) {
        return false;
    }
    if (t->slab_count >= INDEX_NONE / SLAB_MESSAGES - more) {
        return false;
    }
    struct slab *made = more == 1 ? malloc(sizeof *made) : aligned_alloc(LARGE_PAGE_BYTES, more * sizeof *made);
    if (made == NULL) {
        return false;
    }
    if (more > 1) {
        vfs_advise_large_pages(made, more * sizeof *made);
    }
    for (uint32_t i = 0; i < more; i++) {
        t->slabs[t->slab_count++] = made + i;
    }
    t->free_slots += (uint64_t)more * SLAB_MESSAGES;
    return true;
}

bool table_prepare(struct table *t, uint32_t more) {
    while (t->free_slots < more) {
        if (!add_slabs(t)) {
            return false;
        }
    }
    return index_prepare(&t->messages, more);
}

uint32_t table_add(struct table *t, uint64_t id, uint16_t flags) {
    uint32_t number = t->free_message != INDEX_NONE ? t->free_message : t->message_slots;
    assert(t->free_slots > 0 && number < t->slab_count * SLAB_MESSAGES);
    struct message *m = table_message(t, number);
    if (number == t->free_message) {
        t->free_message = (uint32_t)m->id;
    } else {
        t->message_slots++;
    }
    t->free_slots--;
    *m = (struct message){.id = id, .flags = flags | t->copied};
    if ((flags & MESSAGE_PUBLISHED) == 0) {
        message_grows(t, m, 0);
    }
    index_insert(&t->messages, id, number);
    t->message_count++;
    return number;
}

void table_remove(struct table *t, uint32_t number) {
    struct message *m = table_message(t, number);
    assert(m->place_count == 0 && message_pending(m) == 0);
    assert(t->copy == NULL || (m->flags & MESSAGE_COPIED) == t->copied); /* the checkpoint has its copy */
    index_remove(&t->messages, m->id, number);
    message_moved(t, m);
    free_extra(m);
    m->id = t->free_message;
    m->flags = MESSAGE_FREE;
    t->free_message = number;
    t->free_slots++;
    t->message_count--;
}

struct message_extra *message_extra(struct message *m) {
    if (m->extra == NULL) {
        m->extra = malloc(sizeof *m->extra);
        if (m->extra != NULL) {
            *m->extra =
                (struct message_extra){.last_lsn = m->id, .start_lsn = m->id, .content_bytes = m->content_bytes};
        }
    }
    return m->extra;
}

uint64_t message_start_weight(const struct message *m) {
    return (uint64_t)m->record_bytes + (m->extra != NULL ? m->extra->state_bytes : 0);
}

bool message_is_going(struct message *m) {
    bool going = (m->flags & MESSAGE_STAGED) == 0 && message_pending(m) == 0;
    for (uint32_t i = 0; going && i < m->place_count; i++) {
        going = message_places(m)[i].at.chunk->queue->deleted;
    }
    return going;
}

void message_changed(struct message *m) {
    if (m->extra != NULL) {
        m->extra->version++;
    }
}

void message_grows(struct table *t, struct message *m, uint64_t bytes) {
    table_touch(t, m);
    t->loose_count += (m->flags & MESSAGE_LOOSE) == 0 ? 1 : 0;
    m->flags |= MESSAGE_LOOSE;
    if (m->extra != NULL) {
        t->growth -= m->extra->work_state; /* the message gets one state, which is counted in loose_count now */
        m->extra->work_state = 0;
        bytes = bytes < UINT32_MAX - m->extra->growth ? bytes : UINT32_MAX - m->extra->growth;
        m->extra->growth += (uint32_t)bytes;
        t->growth += bytes;
    }
}

/* After a relocation less growth is left to undo. */
void message_shrinks(struct table *t, struct message *m, uint64_t bytes) {
    struct message_extra *x = m->extra;
    bytes = x == NULL ? 0 : bytes < x->growth ? bytes : x->growth;
    if (bytes > 0) {
        x->growth -= (uint32_t)bytes;
        t->growth -= bytes;
    }
}

void message_widens(struct table *t, struct message *m) {
    t->wide_count += (m->flags & MESSAGE_WIDE) == 0 ? 1 : 0;
    m->flags |= MESSAGE_WIDE;
}

/* The chunk's row, and a copy of a short chunk: relocation may copy it together with another chunk before its own
   segment is the oldest. */
uint64_t chunk_grows(uint64_t record_bytes) {
    const uint64_t along = COPIED_PER_STATE * CHUNK_ROW_BYTES;
    return CHUNK_ROW_BYTES + (record_bytes < along ? record_bytes : along);
}

bool message_prepare_chunks(struct message_extra *x, uint32_t count) {
    return array_grow(&x->chunks, &x->chunk_capacity, 0, count);
}

bool message_cut_content(struct table *t, struct message *m, uint64_t offset) {
    struct message_extra *x = m->extra;
    uint32_t kept = x->chunk_count;
    while (kept > 0 && x->chunks[kept - 1].offset >= offset) {
        kept--;
    }
    uint64_t end = kept > 0 ? x->chunks[kept - 1].offset + x->chunks[kept - 1].content_bytes : m->content_bytes;
    if (end != offset) {
        return false;
    }
    table_touch(t, m);
    uint64_t less = 0;
    for (uint32_t i = kept; i < x->chunk_count; i++) {
        less += chunk_grows(x->chunks[i].record_bytes);
    }
    message_shrinks(t, m, less);
    x->chunk_count = kept;
    x->content_bytes = offset;
    message_changed(m);
    return true;
}

/* Rows for the new places, and for the earlier ones if these are only ids in the start record's list. */
void message_grows_places(struct table *t, struct message *m, uint32_t more) {
    uint32_t before = (m->flags & MESSAGE_LOOSE) == 0 ? m->place_count : 0;
    uint64_t wider = message_has_states(t, m) ? WIDER_ROW_BYTES : 0;
    message_grows(t, m, (uint64_t)ROW_FOR_ID_BYTES * before + (ROW_BYTES + wider) * more);
}

void message_grows_listed_row(struct table *t, struct message *m) {
    uint32_t bytes = ROW_FOR_ID_BYTES + (message_has_states(t, m) ? WIDER_ROW_BYTES : 0);
    if ((m->flags & MESSAGE_LOOSE) != 0) {
        message_grows(t, m, bytes);
    } else {
        m->extra->work_state += bytes;
        t->growth += bytes;
    }
}

/* The work's row, without what its state makes of other rows. */
static uint32_t work_row_bytes(const struct work *w) {
    if (!work_is_wide(w)) {
        return ROW_BYTES;
    }
    return ROW_BYTES + WIDER_ROW_BYTES + (w->state != NULL ? (uint32_t)remembered_own_bytes(w->state) : 0);
}

/* The message's rows that get wide with this work, or this work's own row. */
static uint32_t rows_that_widen(const struct table *t, struct message *m, const struct work *w) {
    bool first = work_is_wide(w);
    for (const struct work *other = w->next_of_message; first && other != NULL; other = other->next_of_message) {
        first = !work_is_wide(other);
    }
    bool wide = message_places_have_states(t, m);
    return first && !wide                                             ? m->place_count + m->extra->pending - 1
           : !work_is_wide(w) && (wide || message_work_has_states(m)) ? 1
                                                                      : 0;
}

/* Few messages have had a state. Out of line, so that the others need no stack frame. */
__attribute__((noinline)) static uint64_t stated_work_bytes(const struct table *t, struct message *m,
                                                            const struct work *w) {
    return work_row_bytes(w) + (uint64_t)WIDER_ROW_BYTES * rows_that_widen(t, m, w);
}

/* A start record's list cannot hold pending work, so relocation will write a state. */
void message_grows_work(struct table *t, struct message *m, const struct work *w) {
    struct message_extra *x = m->extra;
    if (x->pending == 1 && (m->flags & MESSAGE_LOOSE) == 0) {
        x->work_state = STATE_BYTES + ROW_FOR_ID_BYTES * m->place_count;
        t->growth += x->work_state;
    }
    uint64_t bytes = (m->flags & MESSAGE_STATED) != 0 ? stated_work_bytes(t, m, w) : ROW_BYTES;
    bytes = bytes < UINT32_MAX - x->work_rows ? bytes : UINT32_MAX - x->work_rows;
    x->work_rows += (uint32_t)bytes;
    t->growth += bytes;
}

void message_shrinks_work(struct table *t, struct message *m, const struct work *w) {
    struct message_extra *x = m->extra;
    if (x->pending == 0) {
        t->growth -= (uint64_t)x->work_state + x->work_rows;
        x->work_state = x->work_rows = 0;
        return;
    }
    uint32_t row = work_row_bytes(w) - 1; /* a moved row is that long */
    uint32_t less = x->work_rows >= row ? row : 0;
    t->growth -= less;
    x->work_rows -= less;
}

uint64_t message_grows_at_most(const struct table *t, struct message *m, uint64_t n) {
    uint64_t wider = message_has_states(t, m) ? WIDER_ROW_BYTES : 0;
    return STATE_BYTES + (uint64_t)ROW_FOR_ID_BYTES * m->place_count + (ROW_BYTES + wider) * n;
}

void message_moved(struct table *t, struct message *m) {
    table_touch(t, m);
    if ((m->flags & (MESSAGE_LOOSE | MESSAGE_WIDE)) != 0) {
        t->loose_count -= (m->flags & MESSAGE_LOOSE) != 0 ? 1 : 0;
        t->wide_count -= (m->flags & MESSAGE_WIDE) != 0 ? 1 : 0;
        m->flags &= (uint16_t) ~(MESSAGE_LOOSE | MESSAGE_WIDE);
    }
    if (m->extra != NULL) {
        t->growth -= (uint64_t)m->extra->growth + m->extra->work_state + m->extra->work_rows;
        m->extra->growth = m->extra->work_state = m->extra->work_rows = 0;
    }
}

struct place *message_place(struct message *m, uint32_t queue_id) {
    struct place *places = message_places(m);
    for (uint32_t i = 0; i < m->place_count; i++) {
        if (places[i].queue_id == queue_id) {
            return &places[i];
        }
    }
    return NULL;
}

bool message_prepare_places(struct message *m, uint32_t more) {
    uint32_t need = m->place_count + more;
    if (need <= 1 || (m->listed != 0 && need <= m->places.list.capacity)) {
        return true;
    }
    uint32_t capacity = m->listed != 0 ? 2 * m->places.list.capacity : 2;
    capacity = capacity < need ? need : capacity;
    struct place *list = malloc(capacity * sizeof *list);
    if (list == NULL) {
        return false;
    }
    memcpy(list, message_places(m), m->place_count * sizeof *list);
    if (m->listed != 0) {
        free(m->places.list.all);
    }
    m->listed = 1;
    m->places.list.all = list;
    m->places.list.capacity = capacity;
    return true;
}

void message_add_place(struct table *t, struct message *m, struct place place) {
    assert(m->listed != 0 ? m->place_count < m->places.list.capacity : m->place_count == 0);
    table_touch(t, m);
    message_places(m)[m->place_count++] = place;
    message_changed(m);
    t->place_count++;
}

void message_drop_place(struct table *t, struct message *m, uint32_t queue_id) {
    struct place *p = message_place(m, queue_id);
    assert(p != NULL);
    table_touch(t, m);
    if (unplaced_remembers(p)) {
        free_state(t, p); /* what it grew by counts until the message is moved */
    }
    *p = message_places(m)[--m->place_count];
    message_changed(m);
    t->place_count--;
}
