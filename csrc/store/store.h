/*
 * The store: the log and the table under one lock, and the declarations that the core's files share.
 *
 * Every operation has these steps: usable? -> lock -> log_reserve (may wait) -> check -> allocate -> encode and change
 * -> unlock -> wait if asked. Between the check and the end of the change the lock is never let go, and after the first
 * byte is encoded nothing can fail.
 */
#ifndef LOGSTORE_STORE_H
#define LOGSTORE_STORE_H

#include "checkpoint/checkpoint.h"
#include "log/log.h"
#include "read/scan.h"
#include "relocate/messages.h"
#include "replay/state.h"
#include "table/times.h"

enum phase {
    PHASE_OPENED,
    PHASE_SERVING,
    PHASE_CLOSED,
};

enum {
    LEAVE_QUIETLY = 1 << 16, /* in addition to the public flags: no caller waits for the records that were appended */
};

enum { BYTES_PER_PLACE = 128 }; /* bytes that admission counts for a place or an open transaction */

/* The inboxes that are told of the store as a whole: notices.c. */
struct noticing {
    ls_inbox *first;
    bool deaths, in_doubt; /* one of them wants these */
};

/* A place that came back and whose count the log lacks. */
struct counted {
    uint64_t id;
    uint64_t position;
    uint32_t number; /* where the message is in the table, probably */
    uint32_t queue_id;
};

enum { COUNTED_MAX = 64 };

struct ls_store {
    struct log *log;
    struct directory directory;
    int lock_file;
    struct state state;
    struct message_mover mover; /* zero except while a segment is relocated */
    struct move_times times;    /* of batches that ls_enqueued_us has read */
    ls_options options;
    struct meta meta;
    enum phase phase;
    bool relaxed;
    bool creating;      /* META is still META.new */
    bool was_clean;     /* the log ended in CLOSE, and nothing was written since */
    bool was_orderly;   /* and its writer has written every count, and no other has served it since: see seen.c */
    bool remembers;     /* records with states of places may be written */
    uint32_t counted_n; /* of `counted`: written together */
    struct counted counted[COUNTED_MAX];
    uint64_t seen_lsn;    /* places that became visible below it may have been handed out, whatever their count */
    struct scan scan;     /* between open and serve: which files there are, and where the log ends */
    struct death *deaths; /* derived deaths whose MESSAGE_DELETE is not logged yet */
    size_t death_count;
    size_t death_capacity;
    struct checkpoints checkpoints;
    ls_store *next_open; /* list of the fork registry */
    struct noticing noticing;
    struct leader *leader;  /* of a copy that leads: replica/commit.h; else NULL */
    uint64_t moving_thread; /* by pthread_self: it moves the leader's batches, and so waits for none; 0: not known */
    void (*free_leader)(struct leader *l);
    struct inspection *inspection; /* fills the state of a handle without a log (inspected.c); else NULL */
    bool inspected;                /* the inspection has read all: calls that change nothing are answered */
    atomic_bool foreign;           /* this is a forked child */
    atomic_uint handles; /* this one, and every cursor and transaction on it: freeing the last frees the memory */
};

struct death {
    uint64_t id;
    uint64_t last_lsn;
};

/*
 * A handle has the transaction's id and no pointer to it, because two threads may end one transaction: the first removes it
 * while the second still has its handle. The memory of a handle is freed when its owner has freed it and no call uses it.
 */
struct ls_tx {
    ls_store *store;
    uint64_t id;
    uint32_t number;   /* its slot in the table; after the outcome another transaction may have it */
    atomic_uint users; /* its owner, and every call that uses it */
    ls_tx_info last;   /* under the lock */
};

struct ls_cursor {
    ls_store *store;
    struct cursor cursor;
};

/* ls_open for a log with clients besides messages. The clients are copied; on failure the registered ones are freed,
   as by ls_free. */
int store_open_with(vfs *system, const char *store_dir, const ls_options *options, const struct log_client *clients,
                    size_t count, ls_store **store);
/* Allocates a store that is not open yet. Unless *store is NULL the caller frees it, even after a failure. */
int store_new(const ls_options *options, const struct log_client *clients, size_t count, ls_store **store);
/* Everything of an open before the log is read: the directory, its lock, META, memory for the log. */
int store_open_directory(ls_store *store, vfs *v, const char *path, const ls_options *o);
/* inspected.c: ls_inspect_open for a log with more clients than messages. */
int inspect_open_with(vfs *system, const char *store_dir, int flags, const struct log_client *clients, size_t count,
                      ls_store **store);
/* messages_client.c: messages and transactions, the first client. */
struct log_client messages_client(ls_store *store);

/* replication_client.c: the records of a replicated log, the second client. */
struct newest_members {
    uint64_t id;    /* LSN of the record in which it was first written; 0: there is none */
    uint64_t lsn;   /* of its newest copy */
    uint64_t index; /* of the batch in which it was first written */
    uint32_t config_bytes;
    uint8_t config[MEMBERS_CONFIG_MAX];
};
/* The index of the batch at whose end the next checkpoint stands, of a copy that follows. */
void replication_note_index(ls_store *store, uint64_t index);
/* Appends the first one; its bytes were reserved. */
void replication_put_members(ls_store *store, const void *config, uint32_t config_bytes);
/* From now on changes of the catalog that are replayed wait for replication_next_change. */
void replication_collect(ls_store *store);
bool replication_next_change(ls_store *store,
                             ls_catalog_rows *change); /* valid until the next call; false: there is none */
bool replication_has_change(const ls_store *store);
struct log_client replication_client(void); /* context NULL: no memory. It goes with the log's clients. */
const struct newest_members *replication_members(const struct log_clients *clients);
/* Called for each handle on the store that is freed; the last one frees the memory. A garbage collector frees in any order. */
void store_drop(ls_store *store);
/* store.c: LS_OK if the calling process may use it; takes the lock. */
int store_enter(ls_store *store);
/* The same; with LS_TRY in the flags, this call or a later one of the log returns LS_WOULD_WAIT instead of waiting. */
int store_try(ls_store *store, int flags);
/* Asked before store_enter by a call that may wait for the log. LS_OPTION: it would wait for its own thread. */
int store_may_wait(const ls_store *store);
/* The same from ls_open on, and not for an inspected store. */
int store_enter_opened(ls_store *store);
/* The same for a call that only looks, which an inspected store answers too. */
int store_look(ls_store *store);
/* Releases the lock, and first makes the appended records durable if the flags say so. */
int store_leave(ls_store *store, int rc, int flags);
struct tx *tx_of(const ls_tx *handle); /* lock held: as it is now; NULL: it has ended */
/* As store_enter and store_leave, for a call on a transaction handle (or NULL), which is not freed in between. */
int work_enter(ls_store *store, ls_tx *handle);
int work_try(ls_store *store, ls_tx *handle, int flags);           /* with store_try in place of store_enter */
int work_leave(ls_store *store, ls_tx *handle, int rc, int flags); /* the flags count without a handle */
int tx_check_work(ls_store *store, ls_tx *handle, struct tx **tx); /* lock held; NULL handle: no transaction */
int tx_fail_ended(const ls_tx *handle);                            /* lock held: LS_TRANSACTION_ENDED */
int tx_fail_state(const struct tx *tx, const char *what);          /* LS_WRONG_STATE, and so `what` */
void tx_drop(ls_tx *handle); /* lock not held: one user less; the last one frees it */

/* Ends a message that has neither place nor pending work: removes it from the table and releases its records. The
   record that ends it is appended. */
void message_die(ls_store *store, uint32_t number);
/* The same for a death that replay derives from another record: its MESSAGE_DELETE is appended later, and not
   forced. */
void message_die_derived(ls_store *store, uint32_t number);
/* (waits) Appends the MESSAGE_DELETE records that are still missing. */
void store_log_deaths(ls_store *store);

/* messages.c, for places.c; lock held. */
int message_find(ls_store *store, uint64_t id, uint32_t *number, struct message **m);
int message_fail_unknown(uint64_t id);
int message_too_large(const char *what, uint64_t bytes, uint64_t limit);
int message_fail_appending(uint64_t id); /* its content is not whole */
/* (waits) A start record with as much content as fits, and chunks with the rest. */
int message_stage(ls_store *store, const uint8_t *header, size_t header_bytes, const uint8_t *content,
                  size_t content_bytes, uint16_t flags, uint64_t *id);
/* (waits) Takes back what was staged, keeping the failure that led to it. */
int message_fail_and_unstage(ls_store *store, uint64_t id);

/* content.c, for load.c: (waits) Loads header and content of one message; *fits is false if `room` may be too small. */
int content_load_whole(ls_store *store, uint64_t id, uint8_t *into, size_t room, uint64_t sizes[2], bool *fits);

/* places.c; lock held. */
int store_check_queues(ls_store *store, const uint32_t *queue_ids, size_t n); /* each exists, and is named once */
/* Of a start record with everything in it, on n queues. */
uint64_t message_start_bytes(uint64_t header_bytes, uint64_t content_bytes, uint64_t n, const struct remembered *state);
/* Appends the start record and makes the message; everything that it needs is there. With a state its places begin so. */
uint32_t message_put_start(ls_store *store, const struct message_start *m, const uint32_t *queue_ids,
                           const struct remembered *state, uint16_t flags);
/* The message's place on the queue, which was just appended to its run, begins with these times, as in the record's replay. */
void place_starts(struct table *t, struct message *m, uint32_t queue_id, const struct remembered *state);
/* (waits) ls_publish_timed between entering the store and leaving it. The state has times; NULL: none. */
int publish_locked(ls_store *store, const uint32_t *queue_ids, size_t n, const uint8_t *header, size_t header_bytes,
                   const uint8_t *content, size_t content_bytes, const struct remembered *state, ls_tx *handle,
                   uint64_t *id);
/* (waits) ls_enqueue, as publish_locked. */
int enqueue_locked(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *handle, uint64_t *lsn);
/* timed.c: the same for places with times. */
int enqueue_timed_locked(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n,
                         const struct remembered *state, ls_tx *handle, uint64_t *lsn);
int times_check(const ls_times *times); /* the lock may be held or not; LS_OPTION */
/* The state that places with these times begin with. NULL: they have none. */
const struct remembered *times_state(const ls_times *times, struct remembered *made);
int store_check_remembers(const ls_store *store); /* moves.c: LS_WRONG_STATE, unless states of places may be written */
int place_check_enqueue(struct message *m, uint32_t queue_id, const struct tx *tx);
/* Everything that an enqueue on these queues asks before it allocates; m has its extra then. */
int enqueue_check(ls_store *store, uint64_t id, const uint32_t *queue_ids, size_t n, ls_tx *handle, struct tx **tx,
                  uint32_t *number, struct message **m);
/* Allocates memory for places, runs or work of one message on these queues; *work NULL: without a transaction. */
int places_prepare(ls_store *store, struct message *m, const uint32_t *queue_ids, size_t n,
                   const struct remembered *state, const struct tx *tx, struct work **work);
/* The transaction takes the message off as many queues as it puts it on, n more counted. */
bool place_is_exchange(ls_store *store, uint64_t id, size_t n, const ls_tx *handle);
/* dequeue.c: *place is NULL if the transaction makes the place itself. */
int place_check_dequeue(struct message *m, uint32_t queue_id, const struct tx *tx, struct place **place);
int place_check_reason(int reason);
/* The delivery still holds the place; a stale one must not settle a place that a consumer has acquired since. */
int place_check_held(struct message *m, uint32_t queue_id, const ls_delivery *held);
/* A list of n operations of a transaction, or NULL. Each has a copy of the state, which has nothing of its own; NULL: none. */
struct work *work_make(size_t n, const struct remembered *state);
void work_free(struct work *list);
int work_check_limit(const struct tx *tx, size_t n); /* for n more operations; NULL: no transaction, no limit */
/* (waits) Reserves room for the record, and for the bytes by which the message will grow when moved. */
int message_reserve(ls_store *store, uint64_t id, size_t n, uint64_t bytes, enum purpose purpose);
/* The same for places or operations with states, of so many own bytes each; negative: without. The hint is where the message
   probably is in the table. */
int message_reserve_states(ls_store *store, uint64_t id, uint32_t hint, size_t n, int64_t own_bytes, uint64_t bytes,
                           enum purpose purpose);

/* acquire.c: whether the delivery still holds its message's place on the queue; if not, sets the error. */
bool delivery_holds(const ls_delivery *d, const struct place *p);
/* The delivery's place and its message. NULL: the place has ended, although the message may have a new one. */
struct place *delivery_place(const struct table *t, uint32_t queue_id, const ls_delivery *d, struct message **m);
int delivery_fail(uint64_t id, uint32_t queue_id);
/* The time at which places are acquired now; see struct hand_out. */
uint32_t acquire_time(const ls_store *store);
/* Acquires what the queue offers, at most n. LS_NO_MEMORY: none was acquired. */
int acquire_from(const ls_store *store, struct queue *q, ls_delivery *into, size_t n, size_t *done);
/* Those of n deliveries that still hold their places; the takers are served before the lock is let go (store_leave). */
void acquire_give_back(const ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, bool unseen);

/* acquire.c: LS_UNKNOWN_QUEUE; LS_NOT_ENQUEUED: one of the deliveries no longer holds its place, which is still there. */
int release_check(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n);

/* times.c, with the log's lock: places that are due are free, or expired, and takers are served. */
void store_pass_times(ls_store *store);
/* The same, if a place waits for a time. Call it before a queue is asked for places, or for counts. */
static inline void store_times(ls_store *store) {
    if (times_next(&store->state.table) != UINT64_MAX) {
        store_pass_times(store);
    }
}

/*
 * The table knows what time it is. Call it before a place gets this state: the clock may have been set since the last look, and
 * whether the place is hidden is decided by the time of now. What was due stays due.
 */
void store_note_time(ls_store *store);
static inline void store_time_for(ls_store *store, const struct remembered *state) {
    if (state->not_before_us != 0 || state->expires_us != 0) {
        store_note_time(store);
    }
}

/* counts.c, with the log's lock. Memory for another state of the place, and its row. False: no memory. */
bool states_prepare(struct message *m, const struct place *p, const struct remembered *state, struct state_row *row);
uint64_t states_most(const struct log *g);              /* rows that one batch holds; fixed, also without the lock */
uint64_t states_bytes(const struct log *g, uint64_t n); /* the same: of the records of so many rows */
/* Appends the rows, in records of one batch, for which the bytes and memory are there, and gives the places their states. */
void states_put(ls_store *store, const struct state_row *rows, uint32_t n);
/* The deliveries' places have come back: how often they were handed out is to be written. */
void counts_note(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n);
/* The count of a place if the log lacks it; else 0. */
uint32_t counts_lacking(const struct place *p);
/* Of one place, which is about to end by a record without its count. */
void counts_write_one(ls_store *store, uint32_t queue_id, const ls_delivery *delivery);
/* Writes the counts of places that came back, unless that needs a wait or more room than there is: the next release of
   the place, or the close, makes up for it. */
void counts_write_noted(ls_store *store);
/* (waits) For the close: the counts of all places. LS_FULL: not all were written. */
int counts_write_all(ls_store *store);
/* seen.c: which places of a log that was closed in order may have been handed out without a count. */
void seen_read(ls_store *store);
void seen_publish(ls_store *store); /* after the last record of a close; the next open can do without it */

/* takers.c, with the log's lock */
void takers_serve_due(ls_store *store);
void takers_end_queue(struct queue *q, int code);           /* its takers get the code */
struct takers *takers_of(ls_store *store, struct queue *q); /* NULL: no memory */
void takers_await(ls_store *store); /* tells the log whether anybody waits for what others make durable */
/* inboxes.c, with the log's lock: a queue is added, for those that watch every queue; a queue is deleted. */
int inboxes_add_queue(ls_store *store, struct queue *q);
void inboxes_end_queue(ls_store *store, const struct queue *q);
void takers_end_all(ls_store *store, int code);
/* notices.c, with the log's lock; the record that did it is appended. Call the first only if noticing.deaths is set, the
   second only if noticing.in_doubt is. */
void notices_of_death(ls_store *store, uint64_t id);
void notices_of_tx(ls_store *store, const ls_tx_info *info);
void notices_serve(ls_store *store); /* more is durable */
/* The delivery of the message's place that was acquired just now, for the `count`th time. */
static inline ls_delivery delivery_of(const struct message *m, const struct place *p, uint32_t count) {
    const struct entry *e = place_entry(p);
    return (ls_delivery){
        .position = place_position(p),
        .id = m->id,
        .content_bytes = message_content_bytes(m),
        .start_bytes = m->record_bytes,
        .number = e->message,
        .count = count,
        .recovered = (e->state & ENTRY_RECOVERED) != 0,
        .has_header = place_has_header(p),
    };
}

/* store/outcomes.c: in memory, by every client. */
int tx_prepare_clients(const ls_store *store, struct tx *tx); /* an LS code: a client may refuse */
bool tx_prepare_commit(const ls_store *store, struct tx *tx); /* allocates all memory that the commit needs */
void tx_apply_work(const ls_store *store, struct tx *tx, uint64_t commit_lsn);
void tx_undo_work(const ls_store *store, struct tx *tx);
/* The work on messages, for client.h; the context is the store. */
bool messages_prepare_commit(void *context, struct tx *tx);
void messages_commit(void *context, struct tx *tx, uint64_t commit_lsn);
void messages_roll_back(void *context, struct tx *tx);
/* The operation of another client, under a key of its own, pends until the outcome. */
struct client_work *tx_make_client_work(uint32_t stream, uint64_t key); /* NULL: no memory */
int tx_roll_back_open(ls_store *store, uint64_t id); /* (waits) unless it is prepared, or has ended */

/* directory.c */
bool directory_has_meta(vfs *v, const char *path);    /* META or META.new; true if that cannot be found out */
uint64_t directory_segment_size(const ls_options *o); /* of a new store */
/* in this order; `create`: a store may be made */
int directory_open(struct directory *d, const char *path, bool create);
int directory_take_lock(ls_store *store, const char *path, bool create);
int directory_find_meta(ls_store *store, const ls_options *o);
int directory_sync_parent(const struct directory *d, const char *path);
int directory_open_parent(vfs *v, const char *path); /* by the path's text; a handle or -errno */

/* recover.c */
int recover_replay(ls_store *store);
/* store/queues.c: (waits) appends the record that ends all places at once. LS_UNKNOWN_QUEUE. */
int queue_end(ls_store *store, uint32_t queue_id);
/* The same for `*n` queues, with `bytes` more for a record in the same batch, which the caller appends before anything
   else. Ids that no queue has are left out of `queue_ids`, and `*n` is the number of those that stay. */
int queues_end_with(ls_store *store, uint32_t *queue_ids, size_t *n, uint64_t bytes);
/* store/queues.c: (waits) then frees its memory, in small steps, so that no thread waits long for the lock. */
void queue_remove(ls_store *store, uint32_t queue_id);
/* store/queues.c: removes a few places of a deleted queue; false when none is left. */
bool queue_sweep(ls_store *store, struct queue *q);
/* store/queues.c: the next place that the cursor gives, and its message; NULL at the end. The cursor stays at it. */
const struct message *cursor_place(ls_cursor *cursor, ls_place *place);
/* serve.c */
int store_rewrite_tail(ls_store *store); /* step 8 of docs/recovery.md */
/* In a term whose first batch is durable: writes the records that the open still has to write, and serves. A queue that
   the catalog lacks is kept, because its row may still arrive. */
int store_serve_term(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id);

/* fork.c */
int fork_register(ls_store *store);
void fork_forget(ls_store *store);
/* No fork happens between these two calls. */
void fork_wait(void);
void fork_go_on(void);
void fork_leave_behind(ls_store *store); /* in the child, instead of freeing it */

#endif
