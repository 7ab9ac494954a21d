/* Moving chains of several records: copies one by one, then a state, perhaps in parts. See messages.c. */
#include "relocate/parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "read/damage.h"

enum { ATTEMPTS_MAX = 100 };

/* ---- moving a chain of several records ---- */

struct copied {
    uint32_t index; /* of the chunk */
    struct chain_record old;
    uint64_t lsn;
};

int move_read_record(struct message_mover *v, uint64_t lsn, uint32_t bytes, uint8_t **into, struct record *r) {
    struct log *g = v->g;
    struct pin p;
    *into = malloc(bytes);
    if (*into == NULL) {
        return fail_memory();
    }
    int64_t got = log_pin(g, lsn, &p);
    bool sound = false;
    if (got == 0) {
        times_unlock_for_io(v);
        got = log_read(g, &p, lsn, *into, bytes);
        sound = got == bytes && format_get_record(*into, bytes, p.seed, lsn, r) == FORMAT_OK;
        times_relock_after_io(v);
        log_unpin(g, &p);
    }
    if (sound) {
        return LS_OK;
    }
    free(*into);
    *into = NULL;
    return got < 0 ? fail_errno(LS_IO, (int)-got, "a segment cannot be read")
                   : fail_at(LS_CORRUPT, p.first_lsn, lsn, "a record that is to be moved is damaged");
}

static bool in_victim(const struct message_mover *v, uint64_t lsn) {
    return lsn >= v->victim_lsn && lsn < v->victim_end_lsn;
}

/* Copies the start record to the head. *lsn is 0 if the message died meanwhile. */
static int copy_start(struct message_mover *v, uint64_t id, uint64_t start_lsn, uint64_t *lsn, uint32_t *bytes) {
    struct message *m = chain_still_there(v, id, start_lsn);
    uint8_t *memory = NULL;
    struct record r;
    struct message_start from;
    *lsn = 0;
    int rc = m != NULL ? move_read_record(v, start_lsn, m->record_bytes, &memory, &r) : LS_OK;
    if (m == NULL || rc != LS_OK) {
        return rc;
    }
    if (format_get_either_start(&r, &from) != FORMAT_OK || r.id != id) {
        rc = fail_at(LS_CORRUPT, v->victim_lsn, start_lsn, "a record that is to be moved is damaged");
    } else {
        rc = log_reserve(v->g, format_start_bytes(from.header_bytes, from.content_bytes, 0), RESERVE_MOVES);
    }
    if (rc == LS_OK && (m = chain_still_there(v, id, start_lsn)) != NULL) {
        struct slot s = chain_slot(v, m, chain_start_flags(m));
        *bytes = format_put_start(&s, 0, 0, NULL, 0, from.header, from.header_bytes, from.content, from.content_bytes);
        chain_append(v, &s, MESSAGE_START, *bytes);
        *lsn = s.lsn;
    }
    free(memory);
    return rc;
}

static int copy_chunk(struct message_mover *v, uint64_t id, uint64_t prev, struct copied *c) {
    uint8_t *memory = NULL;
    struct record r;
    struct message_chunk from;
    int rc = move_read_record(v, c->old.lsn, c->old.record_bytes, &memory, &r);
    if (rc == LS_OK && (format_get_chunk(&r, &from) != FORMAT_OK || r.id != id || from.offset != c->old.offset)) {
        rc = fail_at(LS_CORRUPT, v->victim_lsn, c->old.lsn, "a record that is to be moved is damaged");
    }
    rc = rc == LS_OK ? log_reserve(v->g, c->old.record_bytes, RESERVE_MOVES) : rc;
    if (rc == LS_OK) {
        struct slot s = log_slot(v->g, id, prev, FLAG_COPY);
        chain_append(v, &s, MESSAGE_CHUNK, format_put_chunk(&s, from.offset, from.content, from.content_bytes));
        c->lsn = s.lsn;
    }
    free(memory);
    return rc;
}

/* The number of rows of this size that fit into the rest of a record. */
static uint32_t rows_that_fit(uint64_t *room, uint32_t rows, uint32_t row_bytes) {
    uint32_t n = *room / row_bytes < rows ? (uint32_t)(*room / row_bytes) : rows;
    *room -= (uint64_t)n * row_bytes;
    return n;
}

/* The same for rows of a place or an operation, which differ in their lengths if they have states. */
static uint32_t states_that_fit(uint64_t *room, uint32_t rows, const struct place_state *states) {
    if (states == NULL) {
        return rows_that_fit(room, rows, RELOCATED_PLACE_BYTES);
    }
    uint32_t n = 0;
    while (n < rows && format_placed_row_bytes(&states[n]) <= *room) {
        *room -= format_placed_row_bytes(&states[n++]);
    }
    return n;
}

/* The counts of the next part of the state, in a record that has room for so many bytes of rows. True: it is the last. */
static bool next_part(const struct chain_state *s, uint64_t room, const struct message_relocated *done,
                      struct message_relocated *m) {
    const struct place_state *places = s->place_states, *pending = s->pending_states;
    m->chunk_count = rows_that_fit(&room, s->counts.chunk_count - done->chunk_count, RELOCATED_CHUNK_BYTES);
    bool fits = done->chunk_count + m->chunk_count == s->counts.chunk_count;
    m->place_count = !fits ? 0
                           : states_that_fit(&room, s->counts.place_count - done->place_count,
                                             places != NULL ? places + done->place_count : NULL);
    fits = fits && done->place_count + m->place_count == s->counts.place_count;
    m->pending_count = !fits ? 0
                             : states_that_fit(&room, s->counts.pending_count - done->pending_count,
                                               pending != NULL ? pending + done->pending_count : NULL);
    return fits && done->pending_count + m->pending_count == s->counts.pending_count;
}

static uint64_t part_bytes(const struct chain_state *s, const struct message_relocated *m,
                           const struct message_relocated *done) {
    uint64_t rows = 0;
    if (s->place_states == NULL) {
        return format_relocated_bytes(m->chunk_count, m->place_count, m->pending_count);
    }
    for (uint32_t i = 0; i < m->place_count; i++) {
        rows += format_placed_row_bytes(&s->place_states[done->place_count + i]);
    }
    for (uint32_t i = 0; i < m->pending_count; i++) {
        rows += format_placed_row_bytes(&s->pending_states[done->pending_count + i]);
    }
    return format_relocated_placed_bytes(m->chunk_count, rows);
}

/*
 * Appends the state's records; the copies take effect with the last. LS_END: the chain changed meanwhile. On LS_OK *parts
 * lists them and the lock was held since the last append.
 */
static int append_state(struct message_mover *v, uint64_t id, uint64_t old_start_lsn, uint64_t prev,
                        struct chain_state *s, struct chain_record **parts, uint32_t *count) {
    struct log *g = v->g;
    struct message_relocated done = {.part = 0};
    bool last = false;
    uint32_t capacity = 0;
    *parts = NULL;
    *count = 0;
    while (!last) {
        struct message_relocated m = s->counts;
        m.part = *count;
        last = next_part(s, log_record_bytes_max(g) - STATE_HEAD_BYTES, &done, &m);
        if (!array_grow(parts, &capacity, *count, 1)) {
            return fail_memory();
        }
        uint64_t bytes = part_bytes(s, &m, &done);
        int rc = log_reserve(g, bytes, RESERVE_MOVES);
        if (rc != LS_OK) {
            return rc;
        }
        struct message *now = chain_still_there(v, id, old_start_lsn);
        if (now == NULL || !chain_is_still(v->t, now, s)) {
            return LS_END;
        }
        uint16_t flags = (last ? 0 : FLAG_PART) | (last && s->staged ? FLAG_STAGED : 0);
        struct slot at = log_slot(g, id, prev, flags);
        chain_append(v, &at, chain_state_type(s), chain_put_part(&at, s, &m, &done));
        (*parts)[(*count)++] = (struct chain_record){.lsn = at.lsn, .record_bytes = (uint32_t)bytes};
        prev = at.lsn;
        done.chunk_count += m.chunk_count;
        done.place_count += m.place_count;
        done.pending_count += m.pending_count;
    }
    return LS_OK;
}

/*
 * Copies the chunks that lie in the victim one by one. If the state is long, it also copies later chunks: one state
 * then serves all of them, and does not cost more bytes than the move frees.
 */
static int copy_chunks(struct message_mover *v, uint64_t id, uint64_t start_lsn, uint64_t *prev, struct copied **list,
                       uint32_t *count) {
    uint32_t capacity = 0;
    uint64_t copied = 0;
    for (uint32_t i = 0;; i++) {
        struct message *m = chain_still_there(v, id, start_lsn);
        if (m == NULL || i >= m->extra->chunk_count) {
            return LS_OK;
        }
        uint64_t lsn = m->extra->chunks[i].lsn;
        bool along = copied > 0 && lsn < v->head_lsn && lsn < log_forced_lsn(v->g) &&
                     copied < COPIED_PER_STATE * chain_state_bytes(v->t, m);
        if (!in_victim(v, lsn) && !along) {
            continue;
        }
        if (!array_grow(list, &capacity, *count, 1)) {
            return fail_memory();
        }
        struct copied *c = &(*list)[*count];
        *c = (struct copied){.index = i, .old = m->extra->chunks[i]};
        int rc = copy_chunk(v, id, *prev, c);
        if (rc != LS_OK) {
            return rc;
        }
        *prev = c->lsn;
        copied += c->old.record_bytes;
        (*count)++;
    }
}

/* The content may have been truncated meanwhile; then the copy is not used. */
static bool is_still_chunk(const struct message *m, const struct copied *c) {
    return c->index < m->extra->chunk_count && m->extra->chunks[c->index].lsn == c->old.lsn;
}

struct long_move {
    uint64_t old_start_lsn;
    uint64_t new_start_lsn; /* 0: the start record stays where it is */
    uint32_t new_start_bytes;
    struct copied *chunks;
    uint32_t chunk_count;
    uint64_t prev;
};

static void switch_over(struct message_mover *v, struct message *m, const struct long_move *l,
                        const struct chain_state *s, struct chain_record *parts, uint32_t part_count) {
    struct log *g = v->g;
    uint64_t last_lsn = parts[part_count - 1].lsn;
    table_touch(v->t, m);
    if (l->new_start_lsn != 0) {
        chain_switch_start(g, m, l->new_start_lsn, l->new_start_bytes);
    }
    for (uint32_t i = 0; i < l->chunk_count; i++) {
        const struct copied *c = &l->chunks[i];
        if (!is_still_chunk(m, c)) {
            continue;
        }
        log_release_record(g, c->old.lsn, c->old.record_bytes);
        log_live_record(g, c->lsn, c->old.record_bytes);
        m->extra->chunks[c->index].lsn = c->lsn;
    }
    bool follows = part_count == 1 && last_lsn == m->extra->start_lsn + m->record_bytes;
    chain_switch_state(g, m, follows ? parts[0].record_bytes : 0);
    chain_switch_parts(g, m, follows ? NULL : parts, follows ? 0 : part_count);
    if (follows) {
        free(parts);
    }
    chain_switch_own(v->t, m, s);
    m->extra->last_lsn = last_lsn;
    message_moved(v->t, m);
}

static int append_long_state(struct message_mover *v, uint64_t id, const struct long_move *l) {
    int rc = LS_END;
    struct own_source own = {.read = NULL};
    times_learn(v, id, l->old_start_lsn, 0);
    for (int attempt = 0; rc == LS_END && attempt < ATTEMPTS_MAX; attempt++) {
        rc = own_gather(v, id, l->old_start_lsn, &own);
        struct message *m = chain_still_there(v, id, l->old_start_lsn);
        struct chain_state s = {.staged = false};
        struct chain_record *parts = NULL;
        uint32_t count;
        if (m == NULL) {
            rc = LS_OK;
            break;
        }
        if (rc != LS_OK) {
            continue;
        }
        if (!chain_take_state(v, m, l->new_start_lsn != 0 ? l->new_start_lsn : l->old_start_lsn, &own, &s)) {
            rc = fail_memory();
            break;
        }
        for (uint32_t i = 0; i < l->chunk_count; i++) {
            if (is_still_chunk(m, &l->chunks[i])) {
                s.chunks[l->chunks[i].index].lsn = l->chunks[i].lsn;
            }
        }
        rc = append_state(v, id, l->old_start_lsn, l->prev, &s, &parts, &count);
        if (rc == LS_OK) {
            switch_over(v, chain_still_there(v, id, l->old_start_lsn), l, &s, parts, count);
        } else {
            free(parts);
        }
        chain_free_state(&s);
    }
    own_free(&own);
    return rc == LS_END ? LS_OK : rc; /* the message changes too often: the next pass tries again */
}

static bool has_part_in_victim(const struct message_mover *v, uint64_t id) {
    uint32_t number = table_find(v->t, id);
    const struct message_extra *x = number != INDEX_NONE ? table_message(v->t, number)->extra : NULL;
    for (uint32_t i = 0; x != NULL && i < x->part_count; i++) {
        if (in_victim(v, x->parts[i].lsn)) {
            return true;
        }
    }
    return false;
}

/* Moves all records of the chain that are in the victim: its start, chunks, and the records of its state. */
int move_long(struct message_mover *v, uint64_t id) {
    uint32_t number = table_find(v->t, id);
    if (number == INDEX_NONE) {
        return LS_OK;
    }
    struct message *m = table_message(v->t, number);
    if (message_extra(m) == NULL) {
        return fail_memory();
    }
    struct long_move l = {.old_start_lsn = message_start_lsn(m), .prev = message_last_lsn(m)};
    int rc = LS_OK;
    if (in_victim(v, l.old_start_lsn)) {
        rc = copy_start(v, id, l.old_start_lsn, &l.new_start_lsn, &l.new_start_bytes);
        if (l.new_start_lsn == 0) {
            return rc; /* it died, or the copy failed */
        }
        l.prev = l.new_start_lsn;
    }
    rc = rc == LS_OK ? copy_chunks(v, id, l.old_start_lsn, &l.prev, &l.chunks, &l.chunk_count) : rc;
    if (rc == LS_OK && (l.new_start_lsn != 0 || l.chunk_count > 0 || has_part_in_victim(v, id))) {
        rc = append_long_state(v, id, &l);
    }
    free(l.chunks);
    return rc;
}
