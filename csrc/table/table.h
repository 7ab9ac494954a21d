/*
 * The live state in memory: messages, their places on queues, open transactions.
 *
 * What always holds, under the log's lock:
 *   - a message is here if and only if it has a place, pending work, or is staged;
 *   - a message has at most one place on a queue;
 *   - a queue is an append-only run of places, in chunks that are freed when empty; a place never changes its
 *     position in the run, so an unlocked place is in its old order again;
 *   - no change allocates: the *_prepare functions do that before the record is appended.
 *
 * It knows nothing of files. A message with one place takes 71 to 78 bytes: 48 in struct message, 16 in the run, the rest
 * in the index; and 8 more in a chunk from which consumers have acquired a place.
 */
#ifndef LOGSTORE_TABLE_H
#define LOGSTORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "logstore.h"
#include "os/prefetch.h"
#include "table/takers.h"

/* ---- index.c: 64-bit key -> 32-bit number of an item that knows its key; grows in small steps with insertions ---- */

typedef uint64_t index_key_fn(const void *context, uint32_t number);

struct index {
    uint32_t *slots; /* number + 1; 0: free */
    uint32_t *old;   /* the smaller table, being moved into slots; UINT32_MAX: removed or moved */
    uint64_t mask;
    uint64_t old_mask;
    uint64_t old_next; /* all slots below it have moved */
    uint64_t count;
    index_key_fn *key_of;
    const void *context;
    uint8_t group_bits; /* keys that differ only in these low bits get adjacent home slots, */
    uint8_t near_bits;  /* and the same home slot if they differ only in these; both 0: every key is hashed alone */
};

#define INDEX_NONE UINT32_MAX

void index_init(struct index *x, index_key_fn *key_of, const void *context);
void index_init_by_lsn(struct index *x, index_key_fn *key_of, const void *context); /* close LSNs get close slots */
void index_free(struct index *x);
bool index_prepare(struct index *x, uint64_t more);        /* memory for `more` insertions; false: no memory */
bool index_has_room(const struct index *x, uint64_t more); /* `more` insertions need no new memory */
void index_insert(struct index *x, uint64_t key, uint32_t number);
void index_prefetch(const struct index *x, uint64_t key); /* loads the key's slots into the cache for a later look-up */
uint32_t index_likely(const struct index *x,
                      uint64_t key); /* probably the key's number: keys are not compared; or NONE */
uint32_t index_find(const struct index *x, uint64_t key);
void index_remove(struct index *x, uint64_t key, uint32_t number); /* the number that the key was inserted with */

/* ---- places ---- */

enum {
    CHUNK_PLACES = 126,   /* places in one chunk of a run */
    COPIED_PER_STATE = 4, /* a long state is written again only after copying at least this multiple of its bytes */
};

enum entry_state {
    ENTRY_DEAD = 1,
    ENTRY_LOCKED = 2,    /* by a transaction's dequeue */
    ENTRY_RECOVERED = 4, /* existed when the store was opened */
    ENTRY_ACQUIRED = 8,  /* by a consumer; see table/offer.c */
    ENTRY_PASSED = 16,   /* the queue's offer of new places is behind it; a free one has come back */
    ENTRY_HIDDEN = 32,   /* until a time; see table/times.h */
    ENTRY_EXPIRED = 64,
};

/* One place in the run: the record that made it visible, and its message. */
struct entry {
    uint64_t order_lsn;
    uint32_t message; /* its number in the table */
    uint32_t order_index : 24;
    uint32_t state : 8;
};

struct queue;
struct chunk_states;
struct remembered;

/* How often consumers have acquired a place, in all opens as far as the log knows, and when the last one did: tenths of a second of the monotonic clock, which
   reach 13 years of uptime and stay at the highest value from then on. */
struct hand_out {
    uint32_t count;
    uint32_t since_tenths;
};

struct queue_chunk {
    struct queue *queue;
    struct queue_chunk *prev;
    struct queue_chunk *next;
    uint64_t first_position;
    struct hand_out *handed_out; /* of each place; NULL: none was ever acquired */
    struct chunk_states *states; /* of its places; NULL: none has a state; see table/remembered.h */
    uint16_t used;               /* entries ever filled */
    uint16_t live;
    uint16_t returned; /* free places that came back */
    uint16_t ahead;    /* acquired, hidden and expired places that the queue's offer of new places has not passed */
    uint32_t back_at;  /* its place in queue.back, from 1 on; 0: it has no returned place */
    uint32_t times_at; /* the same in times.heap; 0: no place ever waited for a time */
    struct entry entries[CHUNK_PLACES];
};

/* A message's place on a queue. During replay there is no run yet, and this holds the order key instead: see
   table/remembered.h, which also has the state of a place. */
struct place {
    union {
        struct queue_chunk *chunk;
        uint64_t order_lsn;
        uint64_t *unplaced;
    } at;
    uint32_t slot; /* in the chunk; during replay the order index, and which parts of a state it has */
    uint32_t queue_id;
};

struct cursor {
    struct queue *queue; /* NULL: the queue was deleted */
    struct queue_chunk *chunk;
    uint32_t slot;
    int kind;
    struct cursor *next;
};

/* The holder of a place, in two bits, or why it is not offered although nobody holds it; entry_standing() computes it. */
enum standing {
    STANDING_READY = 0,    /* nothing: it waits for a consumer */
    STANDING_ACQUIRED = 1, /* a consumer */
    STANDING_LOCKED = 2,   /* a transaction */
    STANDING_BOTH = 3,     /* a consumer, which has settled it in a transaction without an outcome */
    STANDING_HIDDEN = 4,   /* it waits for a time */
    STANDING_EXPIRED = 5,
    STANDINGS,
};

/* Places of one standing, and the bytes of content of their messages. */
struct tally {
    uint64_t places;
    uint64_t bytes;
};

/* See table/heap.h. */
struct chunk_heap {
    struct queue_chunk **all;
    uint64_t *times; /* of the heap of times: by which it is sorted; else NULL */
    uint32_t count;
    uint32_t capacity;
};

/* Of the places of all queues; see table/times.h. */
struct times {
    struct chunk_heap heap; /* chunks of which a place ever waited for a time; the first time to come is on top */
    uint32_t chunks;        /* with room for times */
    uint64_t now_us;        /* wall clock at the last look; 0: none yet */
    struct due_queues *due;
};

struct queue {
    uint32_t id;
    bool deleted;                    /* its places are being removed in steps */
    uint32_t wanted;                 /* a counter that a call uses while it holds the lock; else 0 */
    struct tally tallies[STANDINGS]; /* each live place is in one of them */
    uint64_t returned;               /* free places that consumers or transactions gave back: those before `fresh` */
    struct cursor front;             /* in its chunk no returned place stands before it */
    struct cursor fresh;             /* no place from here on was ever offered; both are in no list of cursors */
    struct chunk_heap back;          /* the chunks that have returned places; with room for all chunks */
    struct chunk_heap expired;       /* those that have expired places which nobody holds */
    struct times *times;
    uint32_t expiring_chunks; /* with room for expiries */
    uint32_t chunk_count;     /* in the run */
    struct queue_chunk *first;
    struct queue_chunk *last;
    struct queue_chunk *prepared; /* prepared, not yet in the run */
    struct queue_chunk *sought;   /* the last search for a position ended there; NULL: at none */
    struct cursor *cursors;
    struct takers *takers; /* NULL: nobody ever waited for a message, or watched the queue */
    uint64_t next_position;
};

/* ---- messages ---- */

struct work;

struct chain_record {
    uint64_t lsn;
    uint64_t offset;
    uint32_t record_bytes;
    uint32_t content_bytes;
};

/* Fields that few messages need. */
struct message_extra {
    uint64_t last_lsn;  /* of the chain: the next record's back-link */
    uint64_t start_lsn; /* of the start record, or its newest copy */
    uint64_t content_bytes;
    struct chain_record *chunks;
    uint32_t chunk_count;
    uint32_t chunk_capacity;
    uint32_t pending;  /* operations of open transactions */
    uint32_t version;  /* incremented by every change to the state that a relocation would write */
    struct work *work; /* the pending operations, the newest first */
    struct chain_record
        *parts; /* the relocated state's records, unless a single one follows the start record directly */
    uint32_t part_count;
    uint32_t growth;      /* bytes that its rows will add when it is next moved */
    uint32_t work_state;  /* bytes of a state needed only for pending work, with rows for places now in a list */
    uint32_t work_rows;   /* bytes of rows for pending work that is in no state yet */
    uint32_t state_bytes; /* of the state's record, if it follows the start record directly; else 0 */
};

enum message_flag {
    MESSAGE_STAGED = 1,    /* no enqueue has taken effect yet */
    MESSAGE_PUBLISHED = 2, /* a rollback of its enqueue ends it */
    MESSAGE_FREE = 4,      /* the slot has no message */
    MESSAGE_RECOVERED = 8,
    MESSAGE_LOOSE = 16,     /* its records may grow when it is next moved */
    MESSAGE_APPENDING = 64, /* only some records of an append are in the log, so its content is incomplete */
    MESSAGE_WIDE = 128,     /* counted in table.wide_count */
    MESSAGE_STATED = 256,   /* one of its places or operations has had a state; else none is looked at */
    MESSAGE_COPIED = 32,    /* equal to table.copied: the current checkpoint has it or does not need it */
};

struct message {
    uint64_t id;
    uint32_t record_bytes;  /* of the start record */
    uint32_t content_bytes; /* in the start record */
    union {
        struct place one; /* place_count <= 1 and place_capacity == 0 */
        struct {
            struct place *all;
            uint32_t capacity;
            uint32_t unused;
        } list;
    } places;
    struct message_extra *extra;
    uint32_t place_count;
    uint16_t flags;
    uint16_t listed; /* 1: the places are in places.list */
};

enum { UNPLACED_WORDS_MAX = 5 };

/* Memory for the states of places in no run; see table/remembered.h. */
struct unplaced_pool {
    struct unplaced_block *newest;          /* of a list */
    uint32_t used;                          /* words in the newest; all of the others are or were */
    uint32_t capacity;                      /* words of the newest */
    uint64_t *free[UNPLACED_WORDS_MAX + 1]; /* given back, by their length: each has the address of the next one */
};

/* ---- transactions ---- */

enum work_kind { WORK_ENQUEUE = 1, WORK_DEQUEUE = 2, WORK_NOTE = 3 };

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
    bool
        locks; /* a dequeue or note that locked a place; else the place is one of the same transaction, or locked by it */
    struct remembered *state; /* of the place that an enqueue makes; of a note the note; NULL: none */
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
    bool handed_out;     /* an ls_tx refers to it */
    bool undone_at_open; /* an open has undone it, but the record of that may still be missing; see inspect.c */
    bool started;        /* replay saw its start record */
    uint8_t state;
    uint32_t number; /* in the table */
    uint32_t work_count;
    uint32_t enqueue_count; /* enqueues so far, undone ones included: the next one's order_index */
    struct work *first;
    struct work *last;
    struct client_work *client_first;
    struct client_work *client_last;
};

/* ---- the table ---- */

#ifdef LOGSTORE_POISON
enum { SLAB_MESSAGES = 4 }; /* small, because slabs move all the time */
#else
enum { SLAB_MESSAGES = 4096 };
#endif
enum { SLABS_AT_ONCE = 32 }; /* allocated together, after this many were allocated one by one */
enum { TX_MAX = 65536, QUEUES_MAX = 1 << 20 };
enum { TX_GROWS_BYTES = 32 }; /* counted for an open transaction when it is moved, beside its record */

struct slab {
    struct message messages[SLAB_MESSAGES];
};

#ifdef LOGSTORE_POISON
enum { GIVEN_OUT = 4 };

/* The last items of each kind that look-ups returned since the lock was last released. See table/poison.c. */
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
    uint32_t message_slots; /* slots below it were used before; the others are uninitialised */
    uint32_t free_message;  /* first of the free slots that were used before, linked by their ids; or INDEX_NONE */
    uint64_t free_slots;    /* all free slots, used before or not */
    uint64_t message_count;
    uint64_t place_count;
    struct index messages;

    struct queue **queues;
    uint32_t queue_count; /* slots in the array; some may be NULL */
    uint32_t queue_capacity;
    uint32_t live_queues;
    struct queue *found, *found_before; /* a cache of two queues that were looked up; NULL: none */
    struct due_queues due;
    struct times times;
    struct index queue_index;

    struct tx **txs;
    uint32_t tx_slots;
    uint32_t tx_count;
    uint32_t prepared_count;
    uint64_t work_count;           /* pending operations of all transactions */
    uint64_t loose_count;          /* messages that may grow by a state with one row when they are next moved */
    uint64_t growth;               /* bytes that further rows may add to them */
    uint64_t wide_count;           /* those of them whose first row will be wide, since a place has a state */
    bool has_stated;               /* one of its messages is or was MESSAGE_STATED */
    bool in_runs;                  /* the places are in their queues' runs: a replay has settled, or the store is new */
    struct unplaced_pool unplaced; /* empty once they are */
    struct index tx_index;

    /* While a checkpoint is being taken: called with each message before its first change. */
    void (*copy)(void *context, struct message *m); /* NULL: no checkpoint is being taken */
    void *copy_context;
    uint16_t copied; /* alternates between MESSAGE_COPIED and 0, so that no flag needs a reset between checkpoints */
};

/* One of the message's places or operations gets a state. */
static inline void table_note_state(struct table *t, struct message *m) {
    m->flags |= MESSAGE_STATED;
    t->has_stated = true;
}

/* Call it before a change to anything that recovery would restore, while the message's places are still in their runs. */
static inline void table_touch(const struct table *t, struct message *m) {
    if (t->copy != NULL && (m->flags & MESSAGE_COPIED) != t->copied) {
        t->copy(t->copy_context, m);
    }
}

void table_init(struct table *t);
void table_free(struct table *t);

#ifdef LOGSTORE_POISON
void table_move(struct table *t); /* moves the noted items to other memory */
void table_give_out(const struct table *t, uint32_t slab, uint32_t queue, uint32_t tx); /* notes; INDEX_NONE: none */
#endif

static inline struct message *table_message(const struct table *t, uint32_t number) {
#ifdef LOGSTORE_POISON
    table_give_out(t, number / SLAB_MESSAGES, INDEX_NONE, INDEX_NONE);
#endif
    return &t->slabs[number / SLAB_MESSAGES]->messages[number % SLAB_MESSAGES];
}

static inline void message_prefetch(const struct message *m) {
    prefetch(m);
    prefetch((const char *)(m + 1) - 1); /* it may cross into a second cache line */
}

uint32_t table_find(const struct table *t, uint64_t id); /* or INDEX_NONE */
/* The same for a message that probably still has this number. */
static inline uint32_t table_find_at(const struct table *t, uint32_t number, uint64_t id) {
    if (number < t->message_slots) {
        const struct message *m = table_message(t, number);
        if (m->id == id && (m->flags & MESSAGE_FREE) == 0) {
            return number;
        }
    }
    return table_find(t, id);
}

/*
 * Loads the index slots, the messages and their first places into the cache for many look-ups that follow, so that the
 * waits for memory overlap. Changes nothing; the ids need not exist.
 */
void table_prefetch(const struct table *t, const uint64_t *ids, size_t n);
/* The same for the messages of deliveries, in steps: each reads what the one before has loaded. */
void table_prefetch_messages(const struct table *t, const ls_delivery *of, size_t n);
void table_prefetch_places(const struct table *t, const ls_delivery *of, size_t n);
void table_prefetch_counts(const struct table *t, const ls_delivery *of, size_t n);
/* Allocates for `more` messages, so that table_add cannot fail. False: no memory. */
bool table_prepare(struct table *t, uint32_t more);
uint32_t table_add(struct table *t, uint64_t id, uint16_t flags);
void table_remove(struct table *t, uint32_t number);    /* frees the message's memory, too */
struct message_extra *message_extra(struct message *m); /* makes it if absent; NULL: no memory */

static inline uint64_t message_last_lsn(const struct message *m) {
    return m->extra != NULL ? m->extra->last_lsn : m->id;
}

static inline uint64_t message_content_bytes(const struct message *m) {
    return m->extra != NULL ? m->extra->content_bytes : m->content_bytes;
}

static inline uint64_t message_start_lsn(const struct message *m) {
    return m->extra != NULL ? m->extra->start_lsn : m->id;
}

uint64_t message_start_weight(const struct message *m); /* live bytes at the start record */

static inline uint32_t message_pending(const struct message *m) { return m->extra != NULL ? m->extra->pending : 0; }

/* It has neither place nor pending work, and is not staged. */
static inline bool message_is_dead(const struct message *m) {
    return m->place_count == 0 && message_pending(m) == 0 && (m->flags & MESSAGE_STAGED) == 0;
}

/* Notes the newest record of the chain. The message has its extra, unless the record is its first. */
static inline void message_appended(struct message *m, uint64_t lsn) {
    if (m->extra != NULL) {
        m->extra->last_lsn = lsn;
    }
}

/* Outside a replay: all its places are on deleted queues, and nothing else keeps it, so the sweep will end it. */
bool message_is_going(struct message *m);

void message_changed(struct message *m); /* call it after a change to the state that a relocation would write */

/*
 * Growth: by how many bytes a message's records will grow in the next relocation. The log keeps that room free. Rows
 * are those of the state record that the relocation will write.
 */
void message_grows(struct table *t, struct message *m, uint64_t bytes); /* without an extra only by a state */
void message_grows_work(struct table *t, struct message *m, const struct work *w);   /* one more, in its list already */
void message_shrinks_work(struct table *t, struct message *m, const struct work *w); /* one less, out of its list */
void message_grows_places(struct table *t, struct message *m, uint32_t more);        /* for `more` new places */
void message_grows_listed_row(struct table *t, struct message *m);
/* Call it before the message gets a place that its start record's list has: the place needs a row if a state is written. */
static inline void message_grows_listed_place(struct table *t, struct message *m) {
    if ((m->flags & MESSAGE_LOOSE) != 0 || (m->extra != NULL && m->extra->work_state > 0)) {
        message_grows_listed_row(t, m);
    }
}
void message_shrinks(struct table *t, struct message *m, uint64_t bytes); /* at most by its growth */
void message_widens(struct table *t, struct message *m);                  /* its first row gets wide */
void message_moved(struct table *t, struct message *m);                   /* it was relocated: no growth is left */
/* Bound for n more places or operations without a state. */
uint64_t message_grows_at_most(const struct table *t, struct message *m, uint64_t n);
/* The same for a new message, which has no state. */
static inline uint64_t message_made_grows_at_most(uint64_t n) { return STATE_BYTES + ROW_BYTES * n; }
uint64_t chunk_grows(uint64_t record_bytes); /* for one more content chunk */

bool message_prepare_chunks(struct message_extra *x, uint32_t count); /* memory for `count` chunks in all */
/* Removes the content from `offset` to the end. False: no chunk begins there. */
bool message_cut_content(struct table *t, struct message *m, uint64_t offset);

/* The array of a message's places, in either form. */
static inline struct place *message_places(struct message *m) {
    return m->listed != 0 ? m->places.list.all : &m->places.one;
}

struct place *message_place(struct message *m, uint32_t queue_id); /* or NULL */
bool message_prepare_places(struct message *m, uint32_t more);
void message_add_place(struct table *t, struct message *m, struct place place);
void message_drop_place(struct table *t, struct message *m, uint32_t queue_id); /* from the message, not from the run */
void work_free_one(struct work *w);                                             /* with its state */

/* table/queues.c */
struct queue *table_queue(const struct table *t, uint32_t id); /* NULL: there is none, or it is deleted */
struct queue *table_queue_again(struct table *t,
                                uint32_t id); /* the same; faster for the two queues of the last look-ups */

static inline struct queue *table_queue_cached(struct table *t, uint32_t id) {
    struct queue *q = t->found;
    return q != NULL && q->id == id && !q->deleted ? q : table_queue_again(t, id);
}

struct queue *table_any_queue(const struct table *t, uint32_t id); /* also one that is deleted and still has places */
bool table_add_queue(struct table *t, uint32_t id);                /* false: no memory */
void table_remove_queue(struct table *t, struct queue *q); /* with its run; no message has a place there any more */
bool queue_prepare(struct queue *q, uint64_t more);        /* memory for `more` places */
/* The functions below that change a place get its message: the content of a message that has a place never changes. */
struct place queue_append(struct queue *q, const struct message *m, uint32_t number, uint64_t order_lsn,
                          uint32_t order_index);

static inline struct entry *place_entry(const struct place *p) { return &p->at.chunk->entries[p->slot]; }

static inline enum standing entry_standing(const struct entry *e) {
    int held = (e->state & ENTRY_ACQUIRED) / ENTRY_ACQUIRED * STANDING_ACQUIRED +
               (e->state & ENTRY_LOCKED) / ENTRY_LOCKED * STANDING_LOCKED;
    if (held != 0 || (e->state & (ENTRY_HIDDEN | ENTRY_EXPIRED)) == 0) {
        return (enum standing)held;
    }
    return (e->state & ENTRY_EXPIRED) != 0 ? STANDING_EXPIRED : STANDING_HIDDEN;
}

/* Places change from one standing to another. */
static inline void queue_tally_all(struct queue *q, const struct tally *changed, enum standing from, enum standing to) {
    q->tallies[from].places -= changed->places;
    q->tallies[from].bytes -= changed->bytes;
    q->tallies[to].places += changed->places;
    q->tallies[to].bytes += changed->bytes;
}

/* A live place of the message changes from one standing to another; both are constants where the caller knows them. */
static inline void queue_tally(struct queue *q, const struct message *m, enum standing from, enum standing to) {
    uint64_t bytes = message_content_bytes(m);
    q->tallies[from].places--;
    q->tallies[from].bytes -= bytes;
    q->tallies[to].places++;
    q->tallies[to].bytes += bytes;
}

/* Places of all standings. */
static inline uint64_t queue_depth(const struct queue *q) {
    const struct tally *of = q->tallies;
    return of[STANDING_READY].places + of[STANDING_ACQUIRED].places + of[STANDING_LOCKED].places +
           of[STANDING_BOTH].places + of[STANDING_HIDDEN].places + of[STANDING_EXPIRED].places;
}

static inline uint64_t queue_locked(const struct queue *q) {
    return q->tallies[STANDING_LOCKED].places + q->tallies[STANDING_BOTH].places;
}

static inline uint64_t queue_bytes(const struct queue *q) {
    const struct tally *of = q->tallies;
    return of[STANDING_READY].bytes + of[STANDING_ACQUIRED].bytes + of[STANDING_LOCKED].bytes +
           of[STANDING_BOTH].bytes + of[STANDING_HIDDEN].bytes + of[STANDING_EXPIRED].bytes;
}

void queue_lock(struct place *p, const struct message *m);
void queue_unlock(struct place *p, const struct message *m); /* LS_CURSOR_OFFER cursors behind it move back to it */
void queue_kill(struct place *p, const struct message *m);   /* ends it; frees its chunk if that is empty now */
struct entry *cursor_entry(struct cursor *c, uint64_t *position); /* the entry at the cursor, or NULL at the end */
void cursor_step(struct cursor *c);
void cursor_start(struct cursor *c, struct queue *q, int kind);
void cursor_stop(struct cursor *c);
bool cursor_stands_after(const struct cursor *c, const struct place *p);
void cursor_seek(struct cursor *c, struct queue *q, uint64_t position); /* to it, or to the next place after it */

static inline uint64_t place_position(const struct place *p) { return p->at.chunk->first_position + p->slot; }

/* table/transactions.c */
struct tx *table_tx(const struct table *t, uint64_t id);
struct tx *table_tx_at(const struct table *t, uint32_t number, uint64_t id); /* the same, given its slot */
struct tx *table_find_xid(const struct table *t, const struct xid *x);       /* the open one with this xid, or NULL */
bool table_prepare_tx(struct table *t, struct tx **fresh);                   /* memory for one more */
void table_add_tx(struct table *t, struct tx *tx, uint64_t id);
void table_remove_tx(struct table *t, struct tx *tx); /* after its last work was dropped */
uint32_t tx_start_bytes(const struct tx *tx);         /* of its start record, after a relocation */
void tx_prepared(struct table *t, struct tx *tx, uint64_t time_us);
void tx_add_work(struct table *t, struct tx *tx, struct work *w);
void tx_drop_work(struct table *t, struct work *w);              /* removes it from both lists; frees it */
struct remembered *tx_end_work(struct table *t, struct work *w); /* the same, but the caller gets its state, or NULL */
struct work *message_last_work(const struct message *m, uint32_t queue_id); /* newest pending on this queue, or NULL */
void tx_add_client_work(struct tx *tx, struct client_work *w);              /* takes ownership of it */
void tx_end_client_work(struct tx *tx); /* all of it: the transaction has had its outcome */
bool xid_equal(const struct xid *a, const struct xid *b);

#endif
