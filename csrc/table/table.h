/*
 * What lives, in memory: messages, their places on queues, open transactions.
 *
 * What always holds, under the log's lock:
 *   - a message is here if and only if it has a place, pending work, or is staged;
 *   - a message has at most one place on a queue;
 *   - a queue is an append-only run of places, in chunks that go when they are empty; a place keeps its position in
 *     the run for ever, so what is unlocked again is in its old place;
 *   - nothing here allocates in the middle of a change: the *_prepare functions do, before the record is appended.
 *
 * It knows nothing of files. 71 to 78 bytes for a message with one place: 48 here, 16 in the run, the rest index.
 */
#ifndef LOGSTORE_TABLE_H
#define LOGSTORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

/* ---- index.c: 64-bit key -> 32-bit number of a thing that knows its key; grows a little with every insertion ---- */

typedef uint64_t index_key_fn(const void *context, uint32_t number);

struct index {
    uint32_t *slots; /* number + 1; 0: free */
    uint32_t *old;   /* being emptied into slots; UINT32_MAX: gone */
    uint64_t mask;
    uint64_t old_mask;
    uint64_t old_next; /* below it everything has moved */
    uint64_t count;
    index_key_fn *key_of;
    const void *context;
    uint8_t group_bits; /* keys that differ only in these low bits stand side by side, */
    uint8_t near_bits;  /* and in the same slot if only in these; both 0: keys are scattered one by one */
};

#define INDEX_NONE UINT32_MAX

void index_init(struct index *x, index_key_fn *key_of, const void *context);
void index_init_by_lsn(struct index *x, index_key_fn *key_of, const void *context); /* neighbours in the log are near */
void index_free(struct index *x);
bool index_prepare(struct index *x, uint64_t more);        /* memory for that many insertions; false: none left */
bool index_has_room(const struct index *x, uint64_t more); /* for so many it need not grow */
void index_insert(struct index *x, uint64_t key, uint32_t number);
void index_prefetch(const struct index *x, uint64_t key);   /* this key will soon be asked for: memory is slow */
uint32_t index_likely(const struct index *x, uint64_t key); /* perhaps the key's, without asking its owner; or NONE */
uint32_t index_find(const struct index *x, uint64_t key);
void index_remove(struct index *x, uint64_t key);

/* ---- places ---- */

enum { CHUNK_PLACES = 126, CHUNK_ROW_BYTES = 25 /* of a state, and its share of a part's head */ };
enum { COPIED_PER_STATE = 4 /* of a long state at least so many times its bytes are copied before it is written */ };

enum entry_state {
    ENTRY_DEAD = 1,
    ENTRY_LOCKED = 2,    /* by a transaction's dequeue */
    ENTRY_RECOVERED = 4, /* was there at open */
};

/* One place in the run: when it became visible, and whose it is. */
struct entry {
    uint64_t order_lsn;
    uint32_t message; /* its number in the table */
    uint32_t order_index : 24;
    uint32_t state : 8;
};

struct queue;

struct place_chunk {
    struct queue *queue;
    struct place_chunk *prev;
    struct place_chunk *next;
    uint64_t first_position;
    uint32_t used; /* entries ever filled */
    uint32_t live;
    struct entry entries[CHUNK_PLACES];
};

/* Where a message stands on a queue. During replay the run does not exist yet, and the order key stands here. */
struct place {
    union {
        struct place_chunk *chunk;
        uint64_t order_lsn;
    } at;
    uint32_t slot; /* in the chunk; during replay the order index */
    uint32_t queue_id;
};

struct cursor {
    struct queue *queue; /* NULL: the queue is gone */
    struct place_chunk *chunk;
    uint32_t slot;
    int kind;
    struct cursor *next;
};

struct queue {
    uint32_t id;
    bool deleted;    /* its places are being swept */
    uint32_t wanted; /* scratch of whoever holds the lock; 0 between */
    uint64_t depth;
    uint64_t locked;
    struct place_chunk *first;
    struct place_chunk *last;
    struct place_chunk *spare; /* prepared, not yet in the run */
    struct cursor *cursors;
    uint64_t next_position;
};

/* ---- messages ---- */

struct work;

struct chunk_place {
    uint64_t lsn;
    uint64_t offset;
    uint32_t record_bytes;
    uint32_t content_bytes;
};

/* What few messages have. */
struct message_extra {
    uint64_t last_lsn;  /* of the chain: the next record's back-link */
    uint64_t start_lsn; /* of the start record, or its newest copy */
    uint64_t content_bytes;
    struct chunk_place *chunks;
    uint32_t chunk_count;
    uint32_t chunk_capacity;
    uint32_t pending;          /* operations of open transactions */
    uint32_t version;          /* grows with every change of what a relocation would write */
    struct work *work;         /* the pending operations, the newest first */
    struct chunk_place *parts; /* the relocated state's records, unless one follows the start record at once */
    uint32_t part_count;
    uint32_t growth;      /* what its rows will take more than now */
    uint32_t work_state;  /* of a state that only its pending work needs: it, and rows for the places in a list */
    uint32_t work_rows;   /* of pending work that no state tells yet */
    uint32_t state_bytes; /* of the state's record, if it follows the start record at once */
};

enum message_flag {
    MESSAGE_STAGED = 1,    /* no enqueue has taken effect yet */
    MESSAGE_PUBLISHED = 2, /* goes with a rollback of its enqueue */
    MESSAGE_FREE = 4,      /* a slot without a message */
    MESSAGE_RECOVERED = 8,
    MESSAGE_LOOSE = 16,     /* as it stands in the log it may be shorter than when it is moved */
    MESSAGE_APPENDING = 64, /* some records of an append are there, and the others are not: its content is not whole */
    MESSAGE_COPIED = 32,    /* as table.copied: the checkpoint that is being taken has it, or need not have it */
};

struct message {
    uint64_t id;
    uint32_t record_bytes;  /* of the start record */
    uint32_t content_bytes; /* in the start record */
    union {
        struct place one; /* place_count <= 1 and place_capacity == 0 */
        struct {
            struct place *many;
            uint32_t capacity;
            uint32_t unused;
        } list;
    } places;
    struct message_extra *extra;
    uint32_t place_count;
    uint16_t flags;
    uint16_t many; /* places are in the list */
};

/* ---- transactions ---- */

enum work_kind { WORK_ENQUEUE = 1, WORK_DEQUEUE = 2 };

struct tx;

struct work {
    struct work *next; /* in the transaction, in order */
    struct work *next_of_message;
    struct tx *tx;
    uint64_t lsn;
    uint32_t message;
    uint32_t queue_id;
    uint32_t order_index; /* of an enqueue among those of the transaction */
    uint8_t kind;
    bool locks; /* a dequeue that locked a place; else it undoes an enqueue of the same transaction */
};

/* One item of a transaction's work for a client that owns another stream; only that client knows what the key means. */
struct client_work {
    struct client_work *next; /* in the transaction, in order */
    uint64_t key;
    uint32_t stream;
};

struct tx {
    uint64_t id;
    uint64_t start_lsn; /* of the start record, or of the newest relocation */
    uint64_t last_lsn;
    uint64_t started_us;
    uint64_t prepared_us;
    struct xid xid;
    bool distributed;
    bool handed_out; /* a ls_tx names it */
    bool settled;    /* undone by an open whose record of that may be missing yet; see inspect.c */
    bool started;    /* replay saw its start */
    uint8_t state;
    uint32_t number; /* in the table */
    uint32_t work_count;
    uint32_t enqueue_count; /* ever made in it: the next one's order_index */
    struct work *first;
    struct work *last;
    struct client_work *client_first;
    struct client_work *client_last;
};

/* ---- the table ---- */

enum {
    STATE_BYTES = 112,     /* of a state with one row */
    ROW_BYTES = 33,        /* of a place or of pending work, and its share of a part's head */
    ROW_FOR_ID_BYTES = 29, /* where there was an id in a list */
};

#ifdef LOGSTORE_POISON
enum { SLAB_MESSAGES = 4 }; /* since slabs move all the time */
#else
enum { SLAB_MESSAGES = 4096 };
#endif
enum { SLABS_AT_ONCE = 32 /* once there are so many */, TX_MAX = 65536, QUEUES_MAX = 1 << 20 };

struct slab {
    struct message messages[SLAB_MESSAGES];
};

#ifdef LOGSTORE_POISON
enum { GIVEN_OUT = 4 };

/* What look-ups gave out since the lock was last let go: the last of each kind. See table/poison.c. */
struct given_out {
    uint32_t slabs[GIVEN_OUT];
    uint32_t queues[GIVEN_OUT]; /* their slots */
    uint32_t txs[GIVEN_OUT];
    uint32_t slab_count, queue_count, tx_count;
};
#endif

struct table {
#ifdef LOGSTORE_POISON
    struct given_out given_out;
#endif
    struct slab **slabs;
    uint32_t slab_count;
    uint32_t slab_capacity;
    uint32_t message_slots; /* ever used: those from here on are without content */
    uint32_t free_message;  /* head of the slots that were used and are free, linked by their ids; INDEX_NONE if none */
    uint64_t free_slots;    /* used or not */
    uint64_t message_count;
    uint64_t place_count;
    struct index messages;

    struct queue **queues;
    uint32_t queue_count; /* slots in the array; some may be NULL */
    uint32_t queue_capacity;
    uint32_t live_queues;
    struct queue *found; /* the last one asked for: most often the next one, too; NULL: none, or it is gone */
    struct index queue_index;

    struct tx **txs;
    uint32_t tx_slots;
    uint32_t tx_count;
    uint32_t prepared_count;
    uint64_t work_count;  /* pending operations of all */
    uint64_t loose_count; /* messages that may grow when they are moved: by a state and a place's row, and */
    uint64_t growth;      /* by so many bytes of its rows */
    struct index tx_index;

    /* While a checkpoint is being taken: it gets each message as it was before its first change since. */
    void (*copy)(void *context, struct message *m); /* NULL: none is */
    void *copy_context;
    uint16_t copied; /* MESSAGE_COPIED or 0, in turns: so that nothing has to be reset between two checkpoints */
};

/* Before anything of the message changes that recovery would give back; its places still stand in their runs. */
static inline void table_touch(const struct table *t, struct message *m) {
    if (t->copy != NULL && (m->flags & MESSAGE_COPIED) != t->copied) {
        t->copy(t->copy_context, m);
    }
}

void table_init(struct table *t);
void table_free(struct table *t);

#ifdef LOGSTORE_POISON
void table_move(struct table *t); /* what was given out goes to other memory */
void table_give_out(const struct table *t, uint32_t slab, uint32_t queue, uint32_t tx); /* INDEX_NONE: none of it */
#endif

static inline struct message *table_message(const struct table *t, uint32_t number) {
#ifdef LOGSTORE_POISON
    table_give_out(t, number / SLAB_MESSAGES, INDEX_NONE, INDEX_NONE);
#endif
    return &t->slabs[number / SLAB_MESSAGES]->messages[number % SLAB_MESSAGES];
}

uint32_t table_find(const struct table *t, uint64_t id); /* or INDEX_NONE */
/*
 * Many messages will be asked for at once, each of which would be waited for alone: where its slot, itself and its first
 * place are is fetched for all of them before the first is looked at. Changes nothing; any ids will do.
 */
void table_prefetch(const struct table *t, const uint64_t *ids, size_t n);
/* Memory for `more` messages; then table_add cannot fail. */
bool table_prepare(struct table *t, uint32_t more);
uint32_t table_add(struct table *t, uint64_t id, uint16_t flags);
void table_remove(struct table *t, uint32_t number);    /* frees what the message has */
struct message_extra *message_extra(struct message *m); /* makes one if need be; NULL: no memory */

static inline uint64_t message_last_lsn(const struct message *m) {
    return m->extra != NULL ? m->extra->last_lsn : m->id;
}

static inline uint64_t message_start_lsn(const struct message *m) {
    return m->extra != NULL ? m->extra->start_lsn : m->id;
}

uint64_t message_start_weight(const struct message *m); /* bytes that live where the start record is */
uint64_t message_content_bytes(const struct message *m);

static inline uint32_t message_pending(const struct message *m) { return m->extra != NULL ? m->extra->pending : 0; }

/* It has neither place nor pending work, and is not staged. */
static inline bool message_is_dead(const struct message *m) {
    return m->place_count == 0 && message_pending(m) == 0 && (m->flags & MESSAGE_STAGED) == 0;
}

/* A record was appended to the chain. The extra is there, or the record is the first. */
static inline void message_appended(struct message *m, uint64_t lsn) {
    if (m->extra != NULL) {
        m->extra->last_lsn = lsn;
    }
}

void message_changed(struct message *m); /* in what a relocation would write */
/* A chunk, or places by a record of their own: by so much will it grow. Without an extra it grows by a state only. */
void message_grows(struct table *t, struct message *m, uint64_t bytes);
bool message_prepare_chunks(struct message_extra *x, uint32_t count); /* memory for so many in all */
/* Content from `offset` on, where a chunk begins, is taken out again. False: no chunk begins there. */
bool message_cut_content(struct table *t, struct message *m, uint64_t offset);
uint64_t chunk_grows(uint64_t record_bytes);                   /* by so much, for one more chunk */
void message_grows_work(struct table *t, struct message *m);   /* by one more pending operation */
void message_shrinks_work(struct table *t, struct message *m); /* one pends no more */
/* At most, with n more places or as many pending operations. */
uint64_t message_grows_at_most(const struct message *m, uint64_t n);
void message_grows_places(struct table *t, struct message *m, uint32_t more); /* on top of those it has */
void message_moved(struct table *t, struct message *m);                       /* it has grown */

/* Places of a message, whatever the form. */
static inline struct place *message_places(struct message *m) {
    return m->many != 0 ? m->places.list.many : &m->places.one;
}

struct place *message_place(struct message *m, uint32_t queue_id); /* or NULL */
bool message_prepare_places(struct message *m, uint32_t more);
void message_add_place(struct table *t, struct message *m, struct place place);
void message_drop_place(struct table *t, struct message *m, uint32_t queue_id); /* from the list only */

/* table/queues.c */
struct queue *table_queue(const struct table *t, uint32_t id); /* not a deleted one; or NULL */
struct queue *table_queue_again(struct table *t, uint32_t id); /* the same, quicker for the one asked for before */
struct queue *table_any_queue(const struct table *t, uint32_t id);
bool table_add_queue(struct table *t, uint32_t id);        /* false: no memory */
void table_remove_queue(struct table *t, struct queue *q); /* with its run; the messages know already */
bool queue_prepare(struct queue *q, uint64_t more);        /* memory for that many places */
struct place queue_append(struct queue *q, uint32_t message, uint64_t order_lsn, uint32_t order_index);

static inline struct entry *place_entry(const struct place *p) { return &p->at.chunk->entries[p->slot]; }

void queue_lock(struct place *p);
void queue_unlock(struct place *p); /* cursors that offer go back to it */
void queue_kill(struct place *p);   /* the place is gone; its chunk too if it was the last */
struct entry *cursor_entry(struct cursor *c, uint64_t *position); /* where it stands, or NULL at the end */
void cursor_step(struct cursor *c);
void cursor_start(struct cursor *c, struct queue *q, int kind);
void cursor_stop(struct cursor *c);

/* transaction table, in table/transactions.c */
struct tx *table_tx(const struct table *t, uint64_t id);
struct tx *table_tx_at(const struct table *t, uint32_t number, uint64_t id); /* the same, for who knows its slot */
struct tx *table_find_xid(const struct table *t, const struct xid *x);       /* an open one with it */
bool table_prepare_tx(struct table *t, struct tx **fresh);                   /* memory for one more */
void table_add_tx(struct table *t, struct tx *tx, uint64_t id);
void table_remove_tx(struct table *t, struct tx *tx); /* its work must be gone */
uint32_t tx_start_bytes(const struct tx *tx);         /* of the record at start_lsn, once it was moved */
void tx_prepared(struct table *t, struct tx *tx, uint64_t time_us);
void tx_add_work(struct table *t, struct tx *tx, struct work *w);
void tx_add_client_work(struct tx *tx, struct client_work *w);              /* takes it over */
void tx_end_client_work(struct tx *tx);                                     /* all of it has had its outcome */
void tx_drop_work(struct table *t, struct work *w);                         /* out of both lists; frees it */
struct work *message_last_work(const struct message *m, uint32_t queue_id); /* newest pending there, or NULL */
bool xid_equal(const struct xid *a, const struct xid *b);

#endif
