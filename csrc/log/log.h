/*
 * The log: an endless LSN space over segment files, write buffers, group commit, spares and recycling.
 *
 * What always holds, under `lock`:
 *   - records are appended in LSN order, and an operation changes memory under the same hold of the lock as its append:
 *     so the base can never pass an append in flight;
 *   - at most one thread writes and syncs (`leading`), one batch at a time, the next only after that sync returned;
 *     blocks that are written early lack the batch record, and mean nothing until it is there;
 *   - a buffer is one batch, in one segment;
 *   - durable_lsn <= end_lsn <= append_lsn, and append_lsn - durable_lsn <= max_undurable_bytes;
 *   - the records that a batch releases (deaths, outcomes) leave their segment's live count only when that batch is
 *     durable, so the base named in a batch is the base of the state below that batch's own durable_lsn;
 *   - a file is recycled only after a durable batch named a base above it;
 *   - a function marked (waits) may let go of the lock, and then any other operation may have run: a transaction has
 *     ended, a message's slot has another message, a segment is a spare. So no pointer, number or size that came from the
 *     table or from the log is kept over such a call: an operation calls all of them first, the last one being
 *     log_reserve, and looks things up after that. A segment that must stay is pinned (segment.readers, buffer.state);
 *     anything else is kept as an id or an LSN and looked up again.
 *
 * Two checks enforce the last rule. log_append asserts that its bytes were reserved since the lock was last let go. And
 * built with -DLOGSTORE_POISON every (waits) function does let go of the lock, and the objects that look-ups gave out move
 * to other memory (table/poison.c; each time at first, later one time in 32), so that a sanitizer reports a stale pointer.
 *
 * The first invariants are asserted by log_lock and log_unlock (lock.c): cheap ones always, sums in -DLOGSTORE_CHECK builds.
 *
 * It names no record type but its own (batch, filler, footer, close). Other records belong to its clients (client.h), which
 * say how many of them live in which segment.
 */
#ifndef LOGSTORE_LOG_H
#define LOGSTORE_LOG_H

#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "format/format.h"
#include "client/client.h"
#include "log/lock.h"
#include "log/space/reckon.h"
#include "logstore.h"
#include "os/error.h"
#include "os/io.h"
#include "os/vfs.h"

enum {
    /* Fractions of a segment are given as 1 / N. */
    PACE_HEAD_START = 8, /* 1/8 of a segment is appended before a move begins: many records may die by then */
    PACE_SHARE = 4,      /* then a move looks through 4 bytes of the oldest segment for each byte appended */
    WEIGHED_TIMES = 64,  /* live bytes are summed up after each 1/64 of a segment */
    RELEASED_TIMES = 16, /* or when 1/16 of a segment has died since */
    GAIN_MIN = 4,        /* 1/4 of a segment must be dead in full segments before moves are worth it */
    EARLY_SHARE = 8,     /* 1/8 of the largest batch is written while the rest is still being filled */
    FLUSHER_RESTS_NS = 1000 * 1000, /* after a small batch for which no thread waited */
    EARLY_BYTES_MIN = 64 << 10,
    OPEN_FILES_MAX = 256,
};

struct release {
    uint64_t records;
    uint64_t bytes;
};

struct segment {
    uint64_t first_lsn;
    uint64_t epoch;
    uint64_t seed;
    uint64_t prev_end_lsn;
    uint64_t end_lsn;      /* of the log's part in it; 0 while it is the current one */
    uint64_t live_records; /* that recovery would need; the base cannot pass them */
    uint64_t live_bytes;
    uint64_t largest_bytes;   /* the largest live record: it may not fit at a segment's end */
    struct release *pending;  /* by buffer: what leaves when that buffer's batch is durable */
    int file;                 /* -1: not open */
    unsigned readers;         /* of content; a file is not recycled under them */
    bool header_due;          /* the header goes out with the first batch */
    bool read_in_order;       /* the system was told so about its open file */
    uint64_t stuck_until_lsn; /* it could not be moved; tried again when append_lsn is there */
    struct segment *next_spare;
};

/* One batch, by which a checkpoint says what it stands on. */
struct named_batch {
    uint64_t end_lsn;  /* 0: none */
    uint64_t lsn;      /* 0: not written yet */
    uint64_t checksum; /* of its batch record */
    uint64_t epoch;
};

enum buffer_state { BUFFER_FREE, BUFFER_OPEN, BUFFER_SEALED, BUFFER_WRITING };

struct buffer {
    uint8_t *memory; /* block-aligned; the batch stands at start_lsn's offset within its block */
    struct segment *segment;
    uint64_t start_lsn; /* of the batch record */
    uint64_t end_lsn;
    uint64_t early_lsn; /* up to here its blocks, but the first, are with the file already; 0: none is */
    uint32_t count;
    uint32_t index;
    enum buffer_state state;
    struct segment **released; /* segments with something in pending[index] */
    size_t released_count;
};

struct waiter {
    uint64_t lsn;
    sem_t wake;
    int result; /* -1: woken to lead */
    struct waiter *next;
};

/* A thread that waits for room in a write buffer. */
struct room_waiter {
    uint64_t bytes;
    bool is_to_lead; /* it is called to write the oldest batch: nobody else does */
    sem_t wake;
    struct room_waiter *next;
};

/* The purpose of an append. Moves may use the last spares; growing is refused when the store is full. */
enum purpose { RESERVE_SHRINKS, RESERVE_GROWS, RESERVE_MOVES };

/* The ring of write buffers: oldest, then newer ones, the last of them perhaps open; see commit.c. */
struct commit {
    bool leading;           /* one thread writes a batch, or part of the open one */
    struct waiter *waiters; /* threads that follow, the first to come first */
    struct waiter **waiters_end;
    uint64_t room_called;           /* bytes for which threads were called, and have not come yet */
    uint8_t *tail_block;            /* the leader's: the written part of the last block of the last batch */
    uint8_t *header_block;          /* the leader's */
    struct named_batch last_batch;  /* the newest durable one of this epoch */
    struct named_batch named_batch; /* that a checkpoint asked for */
};

/* Counts for the current segment's footer. */
struct footer_counts {
    uint32_t type_counts[TYPES_COUNTED]; /* of streams 1 to 3 */
    uint32_t batches;
    uint64_t last_lsn;
};

/* Makes durable the records for which no thread waits. */
struct flusher {
    pthread_t thread;
    sem_t wake;
    bool sleeping;
    uint64_t wanted_lsn; /* everything below it is to be durable */
};

/* Makes spares, recycles and relocates; without background threads the thread that needs a spare does. */
struct spare_thread {
    pthread_t thread;
    pthread_cond_t wake; /* the thread waits here */
    pthread_cond_t done; /* a try was finished: a spare was made, or none can be had */
    bool wanted;
    bool trying;
    uint64_t tries;
    unsigned tries_awaited; /* by this many threads: relocation keeps no pace then */
};

/* Whether appends that make the log grow are refused: from the first refusal until there is room for more than a few. */
struct fullness {
    uint64_t since_us;        /* wall clock; 0: they are not */
    uint64_t refused_bytes;   /* the largest that was refused since */
    int error;                /* space.grow_error at the last refusal */
    _Atomic uint64_t changes; /* how often it began or ended since the open; events are signalled at each */
};

/* Segment files that are ready for use, and how many of them the log needs; log/space/. */
struct space {
    struct segment *spares; /* first_lsn is the name it has; ascending */
    size_t spare_count;
    uint64_t next_spare_lsn;
    struct segment
        *unnamed_segments; /* dead ones without a file name, until their last reader is done; by next_spare */
    size_t held_count;     /* dead segments that only a hold keeps, as of the last look at the holds */
    uint64_t looked_lsn;   /* dead segments below it were considered then: recycled, or held, or being read */
    bool reader_awaited;   /* the oldest segment is dead and being read: a last reader wakes the spare thread */
    bool replacing;        /* the next file takes the place of a dead one that is being read */

    struct reckoning needs;   /* how many files, as of the last reckoning */
    uint64_t weighed_lsn;     /* append_lsn then; since then live bytes have grown by no more than was appended */
    uint64_t live_low;        /* the least live bytes since the current segment began */
    uint64_t live_low_before; /* and in the one before it */
    uint64_t live_low_lsn;    /* where that was looked at */
    uint64_t released_bytes;  /* since then */

    bool cannot_grow;        /* the last try failed: disk full, or max_log_bytes */
    int grow_error;          /* errno of that try; 0: max_log_bytes */
    uint64_t asked_lsn;      /* the current segment when a thread last asked whether the log can grow */
    uint64_t growth_asked;   /* bytes that threads wait to append, and by which these grow when moved */
    uint64_t room_given;     /* how often room was found for anything but a move: others make progress */
    unsigned room_wanted;    /* threads that wait to make room */
    unsigned spares_awaited; /* threads that need one more than are reserved */
    struct fullness full;

    uint64_t last_switch_us;
    uint64_t switch_interval_us; /* how long the last segment lasted */
};

/* Moving the live records of the oldest segment; log/space/relocation.c decides when, relocate/ does it. */
struct relocation {
    bool moving;             /* one thread is relocating */
    bool mid_chain;          /* ... a chain of which some copies are in the log, and its state is not */
    uint64_t pace_from;      /* bytes that others had appended when the move began */
    uint64_t pace_until;     /* the move waits until they have appended this many */
    uint64_t compact_to_lsn; /* live records below it are moved whatever the policy; 0: none asked */
    unsigned compacting;     /* threads that have asked for that */
};

struct log {
    struct log_front front; /* first: see lock.h */
#ifdef LOGSTORE_POISON
    struct segment *given_out[4]; /* the last that log_segment found */
    unsigned given_out_next;
#endif

    /* fixed at open */
    struct log_clients clients;
    int (*relocate)(struct log *g, struct segment *s); /* (waits) moves its live records to the head; relocate/ */
    vfs *v;
    int dir;
    int holds_dir;
    int lock_file;
    int hint_file; /* the leader's */
    uint8_t uuid[UUID_BYTES];
    uint64_t segment_size;
    uint64_t max_undurable_bytes;
    uint64_t max_log_bytes;
    uint32_t record_bytes_max;
    uint32_t batch_bytes_max;
    uint32_t early_bytes; /* of a batch that is still being filled: worth a write of its own */
    uint64_t epoch;
    bool background;

    bool serving; /* between ls_serve and ls_close */
    bool closing; /* ls_close is writing its last records; no other thread appends any more */
    bool stopping;
    bool threads_running;
    pthread_t closer;
    _Atomic int poison;        /* errno of the failed write or sync */
    int events[LS_EVENTS_MAX]; /* signalled at each group commit */
    int event_count;

    struct segment **segments; /* by LSN; the last one is the current */
    size_t segment_count;
    size_t segment_capacity;
    size_t base_index;        /* the first that is needed */
    uint64_t named_base_lsn;  /* by a durable batch */
    uint64_t hinted_base_lsn; /* no reader goes by a lower one */
    int open_files;

    struct buffer *buffers;
    uint32_t buffer_count;
    uint32_t oldest; /* ring: buffers[oldest] is the oldest that is not free */
    uint32_t busy;
    struct buffer *open;

    struct commit commit;
    struct footer_counts footer;
    struct flusher flusher;
    struct spare_thread spare_thread;
    struct space space;
    struct relocation relocation;

    struct io_written written; /* to every file of the store, also without the lock */
    ls_stats stats;
};

/* Before the store is opened: the client gets the log that it appends to. LS_OPTION as clients_register. */
int log_register(struct log *g, const struct log_client *client);
/* Sets up memory only; log_free undoes it, whatever had been set. */
int log_init(struct log *g, vfs *v, const ls_options *options, const struct meta *meta);
void log_free(struct log *g);
int log_start_threads(struct log *g);
void log_stop_threads(struct log *g); /* lock not held */

/* Everything below wants the lock held; those marked (waits) may let it go and take it again. */

/*
 * An operation lets go of the lock and takes it again only by these, and a function that may call them is marked (waits).
 * log_may_wait stands at the beginning of those that do not always wait: it does nothing but for the checks named above.
 */
void log_let_go(struct log *g);
void log_take_back(struct log *g);
void log_wait(struct log *g, pthread_cond_t *signal);
#ifdef LOGSTORE_POISON
void log_may_wait(struct log *g);
#else
static inline void log_may_wait(struct log *g) { g->front.reserved_room = 0; }
#endif
void log_was_let_go(struct log *g); /* by another way, as vfs.wait_s */
/* (waits) Room for `bytes` of records in one batch. LS_WOULD_WAIT if that needs a wait and `trying` is set. */
int log_reserve(struct log *g, uint64_t bytes, enum purpose purpose);
/* (waits) The same for a record that makes the log grow, and by `expansion` bytes more when it is moved. */
int log_reserve_to_grow(struct log *g, uint64_t bytes, uint64_t expansion);
/*
 * Room for a run of records that make the log grow and take no more when they are moved: `bytes` for all, at most
 * `record_bytes` for one. Each of them log_reserve_to_grow would admit at once. Beyond it there may be room, but only
 * log_reserve_to_grow can tell. Looking waits for nothing, and reserving up to it neither waits nor fails.
 */
struct run_room {
    uint64_t bytes;
    uint64_t record_bytes;
};
struct run_room log_run_room(const struct log *g);
void log_reserve_run(struct log *g, uint64_t bytes);
/* The next record's place. */
struct slot log_slot(struct log *g, uint64_t id, uint64_t prev, uint16_t flags);
/* The record encoded there counts. */
void log_append(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes);
/* (waits) Everything below lsn durable. */
int log_force(struct log *g, uint64_t lsn);
/* (waits) One batch fewer waiting to be written, by this thread or another. */
int log_progress(struct log *g);
/* (waits) A batch although there may be nothing to write, so that the base is named. */
int log_force_batch(struct log *g);
/* Ends the newest batch at what was appended so far, and has it named in g->named_batch once it is durable. */
void log_name_batch(struct log *g);
/* Whether that can be done: not before there is a batch in this epoch. */
bool log_can_name_batch(const struct log *g);
/* Something of the kind happened that events tell. */
void log_signal(struct log *g);
/* Wakes the flusher for all that was appended. */
void log_flush_soon(struct log *g);
void log_advance_base(struct log *g);
uint64_t log_base_lsn(const struct log *g);
uint64_t log_live_bytes(const struct log *g);

struct segment *log_segment(struct log *g, uint64_t lsn); /* that holds it, or NULL */
void log_live(struct segment *s, uint64_t records, uint64_t bytes);
void log_release(struct log *g, struct segment *s, uint64_t records, uint64_t bytes);
/* One record, which is in the log. Released, it leaves the count with the batch that holds the newest record. */
void log_live_record(struct log *g, uint64_t lsn, uint64_t bytes);
void log_release_record(struct log *g, uint64_t lsn, uint64_t bytes);
/* Memory of a record not yet durable, or NULL if it is to be read from its file. */
const uint8_t *log_buffered(struct log *g, uint64_t lsn);
int log_segment_file(struct log *g, struct segment *s); /* an open handle or -errno */
void log_read_in_order(struct log *g,
                       struct segment *s); /* its file is open: more is read ahead of a reader in order */
void log_close_idle_files(struct log *g);  /* those beyond OPEN_FILES_MAX that are not in use */

/* segment.c: the array of segments and their memory. */
struct segment *segment_new(const struct log *g, uint64_t first_lsn, uint64_t epoch);
void segment_free(struct log *g, struct segment *s);
int log_add_segment(struct log *g, struct segment *s); /* at the end; may fail for memory only */
void log_remove_segment(struct log *g, size_t index);
/* One reader less: the last of one without a name frees it, and wakes the spare thread if recycling stopped at a reader. */
void log_unpin(struct log *g, struct segment *s);
int log_reserve_segment(struct log *g); /* memory for one more segment, so that adding it cannot fail */
#ifdef LOGSTORE_POISON
void log_move_segments(struct log *g); /* the array, and those given out that nothing pins, to other memory */
#endif

/* log/space/: spares, admission, recycling, and when to relocate. */
int spares_make(struct log *g, bool zero_fill); /* (waits) one more spare */
void spares_recycle(struct log *g);             /* (waits) what is dead becomes a spare, or goes */
uint64_t spares_kept_from(struct log *g); /* (waits) holds keep the files from this LSN on; UINT64_MAX: none does */
int spares_keep(struct log *g);           /* (waits) recycle, make what is missing, relocate if need be */
void spares_try(struct log *g);           /* (waits) one more try was made */
void spares_settle(struct log *g);        /* (waits) no try that was asked for is under way any more */
/* Without the lock, if this is the spare thread; without background threads the lock is kept. */
void log_unlock_for_io(struct log *g);
void log_relock_after_io(struct log *g);
int spares_need(struct log *g, enum purpose purpose); /* (waits) one may be taken, or room was made, or LS_FULL */
/* (waits) The log can grow by `bytes`, and by `expansion` once these are moved; or LS_FULL. */
int spares_grow(struct log *g, uint64_t bytes, uint64_t expansion);
struct extent spares_extent(const struct log *g); /* what lives in it */
void spares_reckon(struct log *g);                /* how many are kept from what grows */
size_t spares_target(const struct log *g);        /* how many are made ahead of need; as of the last reckoning */
/* With this much more, all live records could still be moved, and a drain would have room to work. */
bool spares_suffice(struct log *g, uint64_t bytes, uint64_t expansion);
/* Bytes by which the log may grow without a new reckoning, in records of at most needs.gap_bytes. */
uint64_t spares_room(const struct log *g);
bool over_admission_limit(const struct log *g); /* too much lives for a log that cannot grow */
int spares_fail_full(const struct log *g);
bool spares_are_full(struct log *g);         /* growth is refused, or would be */
void spares_look_for_room(struct log *g);    /* ends the state of being full, if there is room again */
bool spares_are_behind(const struct log *g); /* the log is larger than it need be, by more than a segment */
bool spares_allow(const struct log *g, enum purpose purpose); /* one may be taken */
struct segment *spares_take(struct log *g);
void spares_adopt(struct log *g, struct segment *s);
void *spares_thread(void *log);
/* (waits) Until others have appended enough for `bytes` of the oldest segment to be moved, or moving is urgent. */
void spares_pace(struct log *g, uint64_t bytes);
void spares_weigh(struct log *g);
void spares_appended(struct log *g); /* a batch became durable: a move that keeps pace may continue */
void spares_swept(struct log *g);    /* the last place of a deleted queue is gone */

/* hint.c: the hint, by which readers of a store in use know how far they may read. */
enum { HINT_OLD = 0 };       /* an old one may be left */
#define HINT_NONE UINT64_MAX /* none is left */
/* The base that readers now find, or one of those two; by one thread at a time, with the lock or without. */
uint64_t hint_publish(struct log *g, uint64_t durable_lsn, uint64_t base_lsn);
void hint_published(struct log *g, uint64_t base_lsn, uint64_t result); /* with the lock: notes what it gave */
bool closed_publish(struct log *g, uint64_t end_lsn);

/* hold_look.c: what readers ask to keep. */
struct holds {
    struct hold living[LS_HOLDS_MAX];
    size_t count;
    bool unread; /* some could not be looked at: all is kept until they can */
};
void holds_look(struct log *g, struct holds *holds); /* with the lock or without */
/* With the lock: the lowest LSN that a hold within its limit wants kept of what lies below; UINT64_MAX if none. */
uint64_t holds_lowest(const struct log *g, const struct holds *holds, uint64_t below_lsn);

/* Below it nothing is needed, and no reader expects anything. */
static inline uint64_t log_recyclable_lsn(const struct log *g) {
    return g->named_base_lsn < g->hinted_base_lsn ? g->named_base_lsn : g->hinted_base_lsn;
}

#endif
