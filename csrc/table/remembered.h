/*
 * The state of a place beside its order (docs/format.md, section 6). Most places have none, and
 * take no memory for it. Notes and headers stay on the disk: only where they lie is remembered.
 *
 * A place that is in a run has its state in its chunk, in arrays that the chunk gets when the first of its places needs
 * them. A place that is in no run yet (during a replay) has it in memory of its own, and so has a pending enqueue.
 *
 * As everywhere in the table no change allocates: the functions that do say so.
 */
#ifndef LOGSTORE_TABLE_REMEMBERED_H
#define LOGSTORE_TABLE_REMEMBERED_H

#include "table/table.h"

/* Bytes inside a record of the log. */
struct own_bytes {
    uint64_t lsn;          /* of the record; 0: there are none */
    uint32_t record_bytes; /* the record's length */
    uint32_t at;           /* where they begin in it */
    uint32_t bytes;        /* may be 0 in a header, never in a note */
};

/* The note and the header that a place has of its own, on the disk. */
struct own {
    struct own_bytes note;
    struct own_bytes header; /* stands for the message's */
};

struct remembered {
    uint64_t not_before_us; /* wall clock, µs since 1970; 0: none, as in the next */
    uint64_t expires_us;
    uint32_t delivery_count;
    struct own *own; /* NULL: neither note nor header */
};

/* Places that stand in a row, so that their times are on one cache line: the first time of each group is beside the times. */
enum { TIMES_GROUP = 8, TIMES_GROUPS = 16, TIMES_FIRST_AT = TIMES_GROUP * TIMES_GROUPS };

/* The notes and headers of a chunk's places, in one array that grows with them: most places have neither. */
struct chunk_owns {
    uint64_t used[2]; /* bits of `all` */
    uint32_t count;   /* of these */
    uint32_t capacity;
    uint8_t at[CHUNK_PLACES]; /* of each place: its index in `all`, from 1 on; 0: it has nothing */
    struct own all[];
};

/* The states of a chunk's places: an array of CHUNK_PLACES items each, or NULL if no place of the chunk has that. */
struct chunk_states {
    uint64_t *not_before_us; /* and from TIMES_FIRST_AT on the first times of the groups: see table/times.h */
    uint64_t *expires_us;    /* the same */
    uint32_t *delivery_counts;
    struct chunk_owns *owns; /* NULL: no place has had anything of its own */
    uint16_t *content_bytes; /* of the messages of places with a time; 0: look at the message */
    uint64_t opening[2]; /* bits of places that wait for their not_before_us; this and the rest: see table/times.h */
    uint64_t ending[2];  /* the same: their expires_us */
    uint64_t back[2];    /* the same: places that came back, if the chunk has times */
    uint32_t expired_at; /* its place in queue.expired; 0: it has no expired place that nobody holds */
    uint16_t expired;    /* such places */
};

static inline bool chunk_has_times(const struct queue_chunk *c) {
    return c->states != NULL && (c->states->not_before_us != NULL || c->states->expires_us != NULL);
}

/* Parts of a state, for which a chunk needs memory. */
enum remembered_part { REMEMBERS_NOT_BEFORE = 1, REMEMBERS_EXPIRES = 2, REMEMBERS_COUNT = 4, REMEMBERS_OWN = 8 };

static inline unsigned remembered_parts(const struct remembered *s) {
    return (s->not_before_us != 0 ? REMEMBERS_NOT_BEFORE : 0u) | (s->expires_us != 0 ? REMEMBERS_EXPIRES : 0u) |
           (s->delivery_count != 0 ? REMEMBERS_COUNT : 0u) | (s->own != NULL ? REMEMBERS_OWN : 0u);
}

static inline bool remembers_nothing(const struct remembered *s) { return remembered_parts(s) == 0; }

bool remembered_equal(const struct remembered *a,
                      const struct remembered *b); /* notes and headers by their bytes' LSNs */
/* Bytes of notes and header in a relocated state's row, beyond those of a row without. */
uint64_t remembered_own_bytes(const struct remembered *s);
/* Allocates a copy of what `from` has of its own. False: no memory. */
bool remembered_copy(struct remembered *into, const struct remembered *from);
/* Gives the state this note or header (NULL: none) in place of the one it has. Allocates; false: no memory. */
bool remembered_set_note(struct remembered *s, const struct own_bytes *note);
bool remembered_set_header(struct remembered *s, const struct own_bytes *header);
void remembered_free(struct remembered *s);      /* frees what it has of its own, and makes it nothing */
void remembered_free_made(struct remembered *s); /* itself, too; NULL: nothing */

/* ---- places in no run ---- */

/*
 * Such a place has its order index in the low bits of its slot, and the parts of its state above them. If it has some,
 * at.unplaced has words of 8 bytes: the order LSN, and these parts in the order of their bits. So 10^6 places with one time take
 * 16 MB while a store is opened, and not 40.
 */
enum { SLOT_PARTS = 24 }; /* bits of an order index */

static inline unsigned unplaced_parts(const struct place *p) { return p->slot >> SLOT_PARTS; }

static inline bool unplaced_remembers(const struct place *p) { return unplaced_parts(p) != 0; }

static inline uint64_t unplaced_order_lsn(const struct place *p) {
    return unplaced_remembers(p) ? p->at.unplaced[0] : p->at.order_lsn;
}

static inline uint32_t unplaced_order_index(const struct place *p) { return p->slot & ORDER_INDEX_MAX; }

/* Allocates. The place gets the state and takes what it has of its own; false: no memory, and the caller keeps it. */
bool unplaced_remember(struct table *t, struct place *p, const struct remembered *state);
/* The state of the place, which keeps what it has of its own; all zero: none. */
struct remembered unplaced_state(const struct place *p);
/* The same, and the place has none any more: its order key is in the place again. */
struct remembered unplaced_forget(struct table *t, struct place *p);
void unplaced_free_pool(
    struct table *t); /* no place of the table has such a state any more, or none is looked at again */

/* ---- places in runs ---- */

/* Memory for these parts of one more state of a place of this chunk. What place_state gave of the chunk may lie elsewhere then.
   False: no memory. */
bool chunk_prepare_state(struct queue_chunk *c, unsigned parts);
/* The same for states of all its places. */
bool chunk_prepare_states(struct queue_chunk *c, unsigned parts);
/* chunk_prepare_state for the next place of the queue, for which queue_prepare has made room. */
bool queue_prepare_state(struct queue *q, unsigned parts);
/* chunk_prepare_states for the next places. */
bool queue_prepare_states(struct queue *q, unsigned parts);
/* The place of the message gets a copy of the state in place of the one that it has; memory for it is prepared. */
void place_remember(const struct place *p, const struct message *m, const struct remembered *state);
/* The same for a place that was just appended to its run, whose chunk has memory for some state. */
void place_begins(const struct place *p, const struct message *m, const struct remembered *state);
/* The place gets a copy of the note of `from` (NULL: none); memory for it is prepared. */
void place_take_note(struct table *t, struct message *m, const struct place *p, const struct remembered *from);
struct remembered place_state_there(const struct place *p); /* of a chunk with states */
void place_forget_there(const struct place *p);             /* the same */

static inline struct own *chunk_own(const struct chunk_states *s, uint32_t slot) {
    return s->owns != NULL && s->owns->at[slot] != 0 ? &s->owns->all[s->owns->at[slot] - 1] : NULL;
}

/* Its note and header belong to the place. They are valid until the chunk's states are prepared or the place gets another state. */
static inline struct remembered place_state(const struct place *p) {
    return p->at.chunk->states != NULL ? place_state_there(p) : (struct remembered){.own = NULL};
}

/* It ends. */
static inline void place_forget(const struct place *p) {
    if (p->at.chunk->states != NULL) {
        place_forget_there(p);
    }
}

/* How often it was handed out, as far as this open knows. */
static inline uint32_t offer_count(const struct place *p) {
    const struct hand_out *counts = p->at.chunk->handed_out;
    return counts != NULL ? counts[p->slot].count : place_state(p).delivery_count;
}

static inline bool place_has_header(const struct place *p) {
    const struct chunk_states *s = p->at.chunk->states;
    const struct own *own = s != NULL ? chunk_own(s, p->slot) : NULL;
    return own != NULL && own->header.lsn != 0;
}
void chunk_free_states(struct queue_chunk *c); /* with what its places have of their own */

/* Of a place of this table, in a run or in none. */
static inline struct remembered table_place_state(const struct table *t, const struct place *p) {
    return t->in_runs ? place_state(p) : unplaced_state(p);
}

/* ---- messages ---- */

/* Whether a relocation writes the operation in a wide row. A note that is taken away has no state, and no narrow row. */
static inline bool work_is_wide(const struct work *w) { return w->state != NULL || w->kind == WORK_NOTE; }

bool message_places_have_states(const struct table *t, struct message *m);
bool message_work_has_states(const struct message *m); /* or takes notes away */

bool message_still_has_states(const struct table *t, struct message *m); /* of one that has had some */

/* Whether one of its places or pending operations has a state: then a relocation writes a state with wide rows. */
static inline bool message_has_states(const struct table *t, struct message *m) {
    return (m->flags & MESSAGE_STATED) != 0 && message_still_has_states(t, m);
}

/* A place as a transaction sees it, with its own operations so far. */
struct seen_place {
    bool is_there;
    const struct own_bytes *note;   /* NULL: none */
    const struct own_bytes *header; /* the same */
};

struct seen_place message_see_place(const struct table *t, struct message *m, uint64_t tx_id, uint32_t queue_id);
/* Bound for n more places or operations, or places that there are, that get a state with so many own bytes. */
uint64_t message_states_grow_at_most(const struct table *t, struct message *m, uint64_t n, uint64_t own_bytes);
/*
 * Call it before a place of the message gets another state, with both (nothing: all zero): the growth of the message
 * changes. The message has its extra, unless it has one place, and one record, which has the bytes of `after`.
 */
void message_state_changes(struct table *t, struct message *m, const struct remembered *before,
                           const struct remembered *after);

#endif
