/*
 * Messages as rows: one pass over the log keeps the history of every open message, and puts one row for each message
 * that ends. Section 7 of docs/format.md defines the records, logstore.arrow.MESSAGES the columns.
 *
 * Invariants
 *   - the pass has a life for each message from its start record, or from the first complete relocation of a chain that
 *     began before the pass, until the message ends; other records of a chain without a life are ignored;
 *   - the pass has a transaction as long as a life has work of it;
 *   - memory grows with the open messages, not with the log; a body stays where it is until its row is put;
 *   - rows depend on the records alone: a pass that ends anywhere, and is resumed there from the states that it left,
 *     gives the same rows. So all memory of a pass is in a state.
 *
 * Contradictions change nothing and are not reported: `verify` reports them, and a pass may begin anywhere in the log.
 */
#ifndef LOGSTORE_MESSAGE_ROWS_H
#define LOGSTORE_MESSAGE_ROWS_H

#include "analysis/columns.h"
#include "analysis/lookback.h"
#include "read/reader.h"
#include "table/table.h"

enum {
    LIFE_PLACES_MAX = 1 << 22,   /* of one message, ever */
    LIFE_WORK_MAX = 1 << 22,     /* undecided operations on one message */
    BATCH_ITEMS_MAX = 1 << 20,   /* places in one batch of rows */
    BATCH_BODIES_MAX = 64 << 20, /* bytes; a longer body has a batch of its own */
    LIVES_IN_SLAB = 4096,
    READ_AT_ONCE = 64 << 20,
};

#define LIFE_NONE UINT32_MAX

enum place_end {
    PLACE_OPEN = 0,
    PLACE_DEQUEUED = 1,
    PLACE_QUEUE_DELETED = 2,
};

/* The record that ends a place, work or a message. */
struct ending {
    uint64_t lsn;
    uint64_t time_us;
    uint64_t tx_id; /* 0: none */
    uint16_t delivery_count;
    uint8_t reason;
    uint8_t how; /* enum place_end */
};

/*
 * The state of a place beside its order, or the state that pending work will give it. It is replaced, never changed. Of a header
 * of its own the pass keeps the length.
 */
struct life_placed {
    uint64_t not_before_us;
    uint64_t expires_us;
    uint32_t delivery_count;
    uint32_t header_bytes;
    bool has_header;
    uint8_t note_bytes;
    uint8_t note[];
};

struct life_place {
    uint64_t enqueue_lsn;
    uint64_t enqueue_time_us; /* 0: not known, here and below */
    uint64_t enqueue_tx;
    struct ending end;
    struct life_placed *state; /* NULL: none; of a place that ended: the one that it had then */
    uint32_t queue_id;
    uint32_t order_index;
    uint32_t ended_as; /* one more than the number of the life's places that ended earlier */
};

struct life_work {
    uint64_t tx_id;
    uint64_t lsn;
    struct life_placed *state; /* of an enqueue, or a note; NULL: none, or no note */
    uint32_t queue_id;
    uint32_t order_index;
    uint16_t delivery_count;
    uint8_t reason;
    uint8_t kind; /* enum pending_kind */
    bool queue_gone;
};

/* For a message that was on more than one queue, has pending work, or a place with a state. */
struct life_more {
    struct life_place *places; /* all places it ever had, in order */
    struct life_work *work;    /* in the order of the log */
    uint32_t place_count, place_capacity;
    uint32_t work_count, work_capacity;
    uint32_t open_places;
    uint32_t ended_places;
};

enum life_flag {
    LIFE_FREE = 1,
    LIFE_WHOLE = 2,     /* its start record was seen */
    LIFE_PUBLISHED = 4, /* a rollback of its enqueue ends it */
    LIFE_ENQUEUED = 8,  /* an enqueue has taken effect */
    LIFE_HEADER = 16,   /* header_bytes is known */
    LIFE_PLACE = 32,    /* the life's only place; only without `more` */
    LIFE_LINKED = 64,   /* in a list: of its queue, or of the lives with `more` */
};

struct life {
    uint64_t id;
    uint64_t start_time_us;
    uint64_t content_bytes;
    uint64_t record_bytes;
    uint64_t copied_bytes;
    uint64_t enqueue_lsn;
    uint64_t enqueue_time_us;
    uint64_t enqueue_tx;
    struct life_more *more;
    uint32_t queue_id;
    uint32_t order_index;
    uint32_t header_bytes;
    uint32_t record_count;
    uint32_t copy_count;
    uint32_t next, prev; /* in the list; LIFE_NONE ends it. Of a free one: the next free one */
    uint32_t flags;
};

enum content_at {
    CONTENT_UNKNOWN = 0,
    CONTENT_LOGGED, /* the first content is that of the start record, or of its copy, at `at` */
    CONTENT_SEEDED, /* it is what an earlier pass read, from offset `at` of the pass's file on */
};

struct life_chunk {
    uint64_t lsn;
    uint64_t offset; /* of its bytes in the content */
};

/* Where the first bytes of a message's content are; only in a pass that gives bodies. All zero: unknown. */
struct life_content {
    uint64_t at;
    struct life_chunk *chunks; /* those after the first content that begin below the limit, in order */
    uint32_t chunk_count, chunk_capacity;
    uint32_t first_bytes; /* at most; the start record may have fewer */
    uint32_t where;       /* enum content_at */
};

struct life_slab {
    struct life lives[LIVES_IN_SLAB];
    struct life_content *contents; /* of each life; NULL: the pass gives no bodies */
};

/* A queue with open places or undecided work. */
struct life_queue {
    uint32_t id;     /* 0: free */
    uint32_t first;  /* of the lives whose only place is on this queue; in a free entry: the next free entry */
    uint64_t others; /* open places and work of lives with `more` */
};

struct life_tx {
    uint64_t id;   /* 0: free */
    uint64_t *ids; /* of messages with work of it, some of them twice */
    size_t count, capacity;
    uint32_t next_free;
    bool prepared;
};

struct life_copy {
    uint64_t lsn;
    uint32_t bytes;
};

/* A relocation that is being read. Its rows are kept only if the pass has no life of the chain. */
struct life_moving {
    uint64_t id;          /* 0: none */
    uint64_t start_lsn;   /* of the START copy; 0: none was seen */
    uint64_t named_bytes; /* of the parts, and of the copies that they name */
    uint32_t start_bytes;
    uint32_t header_bytes;
    uint32_t next_part;
    bool published;
    struct life_copy *copies; /* of chunks, in the order of the log */
    uint32_t copy_count, copy_capacity;
    struct life_place *places;
    struct life_work *work;
    uint32_t place_count, place_capacity;
    uint32_t work_count, work_capacity;
    struct life_content content; /* only its chunks */
};

/* Sort key of a message's places: the order in which they took effect. */
struct place_key {
    uint64_t lsn;
    uint32_t order_index;
    uint32_t index;
};

struct ended_id {
    uint64_t id;
    uint32_t number;
};

struct name_of {
    uint32_t queue_id;
    uint32_t index;
};

struct ls_message_rows {
    uint64_t start_lsn;
    uint64_t stop_lsn;
    uint64_t from_lsn; /* LSN of the first batch that was read */
    uint64_t batch_rows;
    struct column_pool *pool;
    uint64_t read_at_once; /* bytes of the log that one call may read */
    uint64_t body_bytes;   /* to which a body is cut; 0: no bodies */
    int body_file;         /* with the bodies of CONTENT_SEEDED; not the pass's own */
    struct lookback *look; /* to read bodies; NULL: none, or nothing was read yet */
    vfs *system;           /* with `look`: the reader's */
    struct name_of *names; /* sorted by queue id */
    size_t name_count;
    struct name_of named; /* the last one used */

    /* ---- open messages ---- */
    struct life_slab **slabs;
    uint32_t slab_count, slab_capacity;
    uint32_t slots; /* ever used */
    uint32_t free_life;
    uint64_t count;
    uint64_t staged; /* never enqueued */
    struct index lives;
    uint32_t with_more; /* list of the lives with `more` */
    struct life_queue *queues;
    uint32_t queue_count, queue_capacity, free_queue;
    struct index queue_index;
    uint32_t near_queue; /* the last one used */
    struct life_tx *txs;
    uint32_t tx_count, tx_capacity, free_tx;
    struct index tx_index;
    struct life_moving moving;

    /* ---- position ---- */
    uint64_t epoch;     /* of the last batch; 0: none was read */
    uint64_t epoch_lsn; /* of its first batch; 0: not seen */
    struct scan_batch batch;
    uint32_t offset; /* of the next record in the batch */
    bool in_batch;
    bool began;
    bool ended;
    ls_columns *filling; /* rows not yet returned */
    uint64_t budget;     /* bytes of the log that this call may still read */
    int failure;         /* result of every later call, too */
    ls_error error;

    /* ---- messages that one record ended, without a row yet ---- */
    struct ending end;
    uint16_t end_type; /* of the record */
    uint32_t *closing;
    size_t closing_count, closing_capacity, closing_next;

    /* ---- open messages, returned by id ---- */
    struct ended_id *sorted;
    size_t sorted_count, sorted_next;

    struct place_key *keys; /* of one life's places, sorted */
    uint32_t key_capacity;
    uint8_t *blob;
    size_t blob_capacity;
};

typedef struct ls_message_rows pass;

static inline struct life *life_at(const pass *p, uint32_t number) {
    return &p->slabs[number / LIVES_IN_SLAB]->lives[number % LIVES_IN_SLAB];
}

static inline bool life_is_staged(const struct life *l) { return (l->flags & LIFE_ENQUEUED) == 0; }

/* ---- message_lives.c: open messages; a function that can fail gives LS_NO_MEMORY or LS_BUSY ---- */

void lives_init(pass *p);
void lives_free(pass *p);
struct life *lives_find(const pass *p, uint64_t id, uint32_t *number);
/* A staged message, all zero but its id and flags. */
int lives_add(pass *p, uint64_t id, uint32_t flags, uint32_t *number);
void lives_remove(pass *p, uint32_t number);

static inline uint32_t life_open_places(const struct life *l) {
    return l->more != NULL ? l->more->open_places : (l->flags & LIFE_PLACE) != 0 ? 1 : 0;
}

static inline uint32_t life_work_count(const struct life *l) { return l->more != NULL ? l->more->work_count : 0; }

/* The place takes effect, unless the message is on that queue already. Takes its state over, whatever the result. */
int life_add_place(pass *p, uint32_t number, const struct life_place *place);
/* Ends the open place on that queue. False: there is none, or the life has no `more`. */
bool life_end_place(pass *p, struct life *l, uint32_t queue_id, const struct ending *end);
/* The open place on that queue, so that its state can be replaced; NULL: there is none. The next call may move it. */
int life_need_place(pass *p, uint32_t number, uint32_t queue_id, struct life_place **place);
/* The state of that place; NULL: it has none, or is not there. */
const struct life_placed *life_state_on(const struct life *l, uint32_t queue_id);
/* Takes the work's state over, whatever the result. */
int life_add_work(pass *p, uint32_t number, const struct life_work *work);
/* The transaction's work on the message takes effect at its commit, or is dropped (NULL: rollback). */
int life_decide_work(pass *p, uint32_t number, uint64_t tx_id, const struct ending *commit);
/* Drops `more` if the message has one open place, which has no state, no other place, and no work. */
void life_simplify(pass *p, uint32_t number);
void life_enqueued(pass *p, struct life *l);
/* The transaction, if any life has work of it; or NULL. */
struct life_tx *lives_tx(const pass *p, uint64_t tx_id);
void lives_remove_tx(pass *p, uint64_t tx_id);
/* Ends every place on the queue. Messages that this leaves without places and work go into `closing`. */
int lives_delete_queue(pass *p, uint32_t queue_id, const struct ending *end);
int lives_close(pass *p, uint32_t number); /* into `closing` */

/* ---- message_bodies.c; nothing is done in a pass without bodies ---- */

static inline struct life_content *life_content(const pass *p, uint32_t number) {
    return &p->slabs[number / LIVES_IN_SLAB]->contents[number % LIVES_IN_SLAB];
}

/* The content of a life begins in the record at this LSN. */
void body_begins(pass *p, uint32_t number, uint64_t lsn, uint64_t content_bytes);
/* Of an unknown content: it is in the record at start_lsn and in the chunks of `moving`, if these are in the log. */
void body_moved(pass *p, uint32_t number, uint64_t start_lsn, uint64_t content_bytes);
static inline bool body_is_unknown(const pass *p, uint32_t number) {
    return p->body_bytes > 0 && life_content(p, number)->where == CONTENT_UNKNOWN;
}
/* The chunks of `moving`, for the pass that resumes behind this one. */
size_t bodies_rest_bytes(const pass *p);
void bodies_rest_put(const pass *p, uint8_t *at);
/* False: they are impossible. *rc: LS_NO_MEMORY, or LS_OK. */
bool bodies_rest_take(pass *p, const uint8_t *at, size_t bytes, int *rc);
/* A chunk of this content; of no bytes: takes back the content from its offset on. LS_NO_MEMORY. */
int body_goes_on(pass *p, struct life_content *content, uint64_t lsn, uint64_t offset, uint64_t bytes);
void body_forget(struct life_content *content);
/* Before the first batch is read. */
int bodies_begin(pass *p, ls_reader *reader);
/* The bytes that the body of a row may have. */
uint64_t body_bytes_most(const pass *p, uint32_t number);
/* Puts the body, or null if the content, or a part of it, is not there any more. */
int body_put(pass *p, struct column *c, uint32_t number);

/* ---- message_moves.c ---- */

int moves_start_copy(pass *p, const struct record *r);
int moves_chunk_copy(pass *p, const struct record *r);
int moves_state(pass *p, const struct record *r);
void moves_forget(pass *p);
/* False: no memory. Take the state over, whatever the result. */
bool moves_take_place(struct life_moving *v, const struct life_place *place);
bool moves_take_work(struct life_moving *v, const struct life_work *work);
/* ---- message_places.c: records with states of places ---- */

/* A state as the pass keeps it: NULL if there is nothing to keep. False: no memory. */
bool life_placed_new(const struct place_state *state, struct life_placed **kept);
/* The state that it was made of; its header only says that there is one, and must not be read. */
struct place_state life_placed_view(const struct life_placed *kept);
int life_placed_replace(struct life_placed **kept, const struct place_state *state);
int life_placed_replace_note(struct life_placed **kept, const struct place_state *with_note);
int places_note(pass *p, const struct record *r);
int places_move(pass *p, const struct record *r);
int places_states(pass *p, const struct record *r);

/* States at the end of a message's state or of the rest: each with the number of its place or work. */
size_t life_placed_bytes(const struct life_placed *kept);
uint8_t *life_placed_put(uint8_t *at, uint32_t number, const struct life_placed *kept);
struct life_placed_reader {
    const uint8_t *at;
    size_t bytes;
};
/* The state of this place or work, NULL: none. False: it is impossible. *rc: LS_NO_MEMORY, or LS_OK. */
bool life_placed_get(struct life_placed_reader *from, uint32_t number, struct life_placed **kept, int *rc);

/* message_rows.c: the message of a record of its chain, which it counts; NULL: the pass does not know it. */
struct life *pass_counted(const pass *p, const struct record *r, uint32_t *number);
uint64_t pass_time(const pass *p); /* of the batch */
/* message_rows.c: keeps a failure, which every later call repeats. */
int pass_keep_failure(pass *p, int rc);
int pass_malformed(const pass *p, const struct record *r);

/* ---- message_rows_put.c ---- */

ls_columns *message_columns_new(const pass *p, bool open, uint64_t rows);
/* LS_END: the batch is full, and nothing was put. */
int message_columns_put(pass *p, ls_columns *c, uint32_t number, bool open);

/* ---- message_state.c ---- */

/* The life's state in p->blob. */
int life_state_put(pass *p, const struct life *l, size_t *bytes);
int life_state_get(pass *p, uint64_t id, const uint8_t *bytes, size_t n);

#endif
