/*
 * The parts of a log, shared by the files of log/. No other folder but tests includes this file
 * (tools/include_lint.py). log.h has the invariants and the functions for other folders. Unless a comment says
 * otherwise, the lock is held.
 */
#ifndef LOGSTORE_LOG_PARTS_H
#define LOGSTORE_LOG_PARTS_H

#include <semaphore.h>

#include "log/log.h"

enum {
    /* Fractions of a segment are given as 1 / N. */
    PACE_HEAD_START = 8,    /* 1/8 of a segment is appended before a move begins: many records may die by then */
    PACE_SHARE = 4,         /* then a move looks through 4 bytes of the oldest segment for each byte appended */
    LIVE_SUMMED_TIMES = 64, /* live bytes are summed up after each 1/64 of a segment */
    RELEASED_TIMES = 16,    /* or when 1/16 of a segment has died since */
    GAIN_MIN = 4,           /* 1/4 of a segment must be dead in full segments before moves are worth it */
    EARLY_SHARE = 8,        /* 1/8 of the largest batch is written while the rest is still being filled */
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
    uint64_t end_lsn;      /* where the log's records in it end; 0 while it is the current one */
    uint64_t live_records; /* records that recovery would need; the base cannot pass them */
    uint64_t live_bytes;
    uint64_t largest_bytes;   /* the largest live record: it may not fit at a segment's end */
    struct release *pending;  /* by buffer: the releases that take effect when its batch is durable */
    int file;                 /* -1: not open */
    unsigned readers;         /* readers of content; the file is not recycled while there are any */
    bool header_due;          /* the header goes out with the first batch */
    bool read_in_order;       /* the system was asked to read ahead in its open file */
    uint64_t stuck_until_lsn; /* its records could not be moved; tried again when append_lsn reaches this LSN */
    struct segment *next_spare;
};

enum buffer_state { BUFFER_FREE, BUFFER_OPEN, BUFFER_SEALED, BUFFER_WRITING, BUFFER_FORCED };

struct buffer {
    uint8_t *memory; /* block-aligned; the batch stands at start_lsn's offset within its block */
    struct segment *segment;
    uint64_t start_lsn; /* of the batch record */
    uint64_t end_lsn;
    uint64_t early_lsn;   /* up to here its blocks, but the first, are with the file already; 0: none is */
    uint64_t base_lsn;    /* the base that its batch names, set when the write begins */
    uint64_t known_lsn;   /* the known_durable_lsn of its batch, set when the write begins */
    uint64_t batch_index; /* 0: not replicated */
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
    bool is_to_lead; /* it was called to write the oldest batch, which no other thread writes */
    sem_t wake;
    struct room_waiter *next;
};

/* The state of group commit: the thread that writes, and the threads that wait for it. See commit.c and durable.c. */
struct commit {
    bool leading;           /* one thread writes a batch, or part of the open one */
    bool advancing;         /* one thread publishes a hint, and will then advance durable_lsn */
    uint64_t majority_lsn;  /* a majority of the copies has forced everything below it; UINT64_MAX: there is one copy */
    struct waiter *waiters; /* threads that follow, in the order of arrival */
    struct waiter **waiters_end;
    uint64_t room_called;           /* bytes of threads that were called and do not have the lock yet */
    uint8_t *tail_block;            /* the leader's: the written part of the last block of the last batch */
    uint8_t *header_block;          /* the leader's */
    struct named_batch last_batch;  /* the newest durable one of this epoch */
    struct named_batch named_batch; /* the batch that a checkpoint asked for */
#ifdef LOGSTORE_TRAIL
    bool trails; /* see log_trail */
#endif
};

/*
 * A base that a durable batch named. In a replicated log the base counts only when a later durable batch says that the
 * first one is durable. Otherwise only this copy would know that, and after a cut it could begin above a segment that
 * it still needs.
 */
struct named_base {
    uint64_t end_lsn; /* of the batch */
    uint64_t base_lsn;
};

enum { NAMED_BASES = 32 };

/* The leader's part of a replicated log; in a log with one copy `calls` is all zero. */
struct leading {
    struct replication calls;
    /* Where the term's records begin. Until more is durable, only the log below is known to be durable. */
    uint64_t first_lsn;
    uint64_t index;                       /* of the newest buffer's batch */
    struct named_base named[NAMED_BASES]; /* oldest first; if there is no room, a new base replaces the oldest */
    uint32_t named_count;
};

/* Counts for the current segment's footer. */
struct footer_counts {
    uint32_t type_counts[TYPES_COUNTED]; /* of streams 1 to 3 */
    uint32_t batches;
    uint64_t last_lsn;
};

/* The thread that forces records for which no other thread waits. */
struct flusher {
    pthread_t thread;
    sem_t wake;
    bool sleeping;
    uint64_t wanted_lsn; /* everything below it is to be forced */
    bool awaiting;       /* consumers wait for messages */
    bool awaited;        /* and some did since it last could have rested */
    uint64_t alarm_us;   /* wall clock; UINT64_MAX: none */
};

/* The thread that makes spares, recycles and relocates; without background threads the thread that needs a spare
   does this. */
struct spare_thread {
    pthread_t thread;
    pthread_cond_t wake; /* the thread waits here */
    pthread_cond_t done; /* a try has ended: a spare was made, or none can be made */
    bool wanted;
    bool trying;
    uint64_t tries;
    unsigned tries_awaited; /* threads that wait for a try; while there are any, relocation does not wait for appends */
    uint64_t probed_try;    /* the try for which appends waited at the last call of log_probe_disk; 0: none */
};

/* Whether appends that make the log grow are refused: from the first refusal until there is room for half a segment. */
struct fullness {
    uint64_t since_us;        /* wall clock; 0: not refused */
    uint64_t refused_bytes;   /* the largest append refused since then */
    int error;                /* space.grow_error at the last refusal */
    uint64_t files;           /* of the log when this disk had no room for another; 0: another copy had none */
    _Atomic uint64_t changes; /* how many times it began or ended since the open; each signals the events */
    /* The same for the state of being nearly full, which does not wait for a refusal; odd while that lasts. */
    _Atomic uint64_t near_changes;
    uint64_t near_look_lsn; /* an append that grows the log to this LSN looks whether it is nearly full */
};

/* The room on the disks of the other copies of a replicated log, which its leader must not use up; log/space/others.c. */
struct others_room {
    struct other_room all[OTHERS_MAX];
    size_t count;
    size_t spares;         /* the room of the copy that has the least; SIZE_MAX: every copy can make more files */
    uint64_t least_member; /* which has it */
    int error;             /* errno of the reason why that copy can make no more files; 0: every copy can */
};

/* The next segment, asked for ahead of need by log_room_percent, whose callers must not wait in an append; log/space/ahead.c. */
struct next_segment {
    uint64_t asked_lsn; /* the current segment when it was asked for; UINT64_MAX: never */
    uint64_t until;     /* the answer is there when the spare thread has made this many tries */
    bool awaited;       /* a caller found little room for want of it: the answer signals the events */
};

/* Segment files that are ready for use, and how many of them the log needs; log/space/. */
struct space {
    struct segment *spares; /* in ascending order; first_lsn is the name of the file */
    size_t spare_count;
    uint64_t next_spare_lsn;
    uint64_t kept_lsn; /* see log_keep_from */
    /* Dead segments without a file name, kept until their last reader is done; linked by next_spare. */
    struct segment *unnamed_segments;
    size_t held_count;   /* dead segments that only a hold keeps, as of the last look at the holds */
    uint64_t looked_lsn; /* dead segments below it were checked at that look: recycled, held or being read */
    bool reader_awaited; /* the oldest segment is dead and being read; its last reader wakes the spare thread */
    bool replacing;      /* the next file takes the place of a dead one that is being read */

    struct file_needs needs;  /* how many files, as of needs_lsn */
    uint64_t needs_lsn;       /* append_lsn when that was computed: live bytes grow by no more than is appended */
    uint64_t live_low;        /* the least live bytes since the current segment began */
    uint64_t live_low_before; /* and in the one before it */
    uint64_t live_low_lsn;    /* where that was looked at */
    uint64_t released_bytes;  /* since then */

    bool beyond_limit;       /* the next file may be, for max_log_bytes */
    bool cannot_grow;        /* the last try failed: disk full, or max_log_bytes */
    int grow_error;          /* errno of that try; 0: max_log_bytes */
    uint64_t asked_lsn;      /* the current segment when a thread last asked whether the log can grow */
    uint64_t growth_asked;   /* bytes that threads wait to append, and will add when these are moved */
    uint64_t longest_asked;  /* the most that one of them has asked for since no thread waited */
    bool room_asked;         /* a caller asked to look for room since the last try */
    uint64_t room_given;     /* how many times a thread other than a mover got room */
    unsigned room_wanted;    /* threads that make room and wait for a spare */
    unsigned spares_awaited; /* threads that wait for a spare beyond the reserved ones */
    struct next_segment next;
    struct fullness full;
    struct others_room others;

    uint64_t last_switch_us;
    uint64_t switch_interval_us; /* how long the last segment lasted */
};

/* Moving the live records of the oldest segment; log/space/relocation.c decides when, relocate/ does it. */
struct relocation {
    bool moving;             /* one thread is relocating */
    bool mid_chain;          /* ... a chain: some copies are in the log, the state that completes it is not */
    uint64_t pace_from;      /* bytes that other threads had appended when the move began */
    uint64_t pace_until;     /* the move waits until they have appended this many */
    uint64_t compact_to_lsn; /* live records below it are moved whatever the policy; 0: none asked */
    unsigned compacting;     /* threads that have asked for that */
};

/* Bytes for a socket. The thread that makes lsn durable sends them, and does not signal the event; see events.c. */
struct answer {
    uint64_t lsn; /* 0: there is none */
    int event;
    int socket;   /* the answer's own descriptor; -1: it was sent */
    int64_t sent; /* bytes; ANSWER_WAITS: it was not sent yet */
    size_t bytes_count;
    uint8_t bytes[LS_ANSWER_BYTES_MAX];
};

enum { ANSWER_WAITS = -1 };

struct log {
    struct log_front front; /* first: see lock.h */
#ifdef LOGSTORE_POISON
    struct segment *given_out[4]; /* the segments that log_segment returned last */
    unsigned given_out_next;
#endif

    /* fixed at open */
    struct log_clients clients;
    int (*relocate)(struct log *g, const struct pin *victim); /* see log_new; NULL: nothing is moved */
    vfs *v;
    int dir;
    int holds_dir;
    int hint_file; /* used only by the thread that is `advancing` */
    uint8_t uuid[UUID_BYTES];
    uint64_t segment_size;
    uint64_t max_undurable_bytes;
    uint64_t max_log_bytes;
    uint32_t record_bytes_max;
    uint32_t batch_bytes_max;
    uint32_t early_bytes; /* this many bytes of an open batch are worth a write of their own */
    uint64_t epoch;
    bool background;

    bool serving; /* between ls_serve and ls_close */
    bool closing; /* ls_close is writing its last records; no other thread appends any more */
    bool stopping;
    bool threads_running;
    pthread_t closer;
    _Atomic int poison;        /* errno of the failed write or sync */
    int events[LS_EVENTS_MAX]; /* signalled when more is durable */
    int event_count;
    struct answer answer;

    struct segment **segments; /* by LSN; the last one is the current */
    size_t segment_count;
    size_t segment_capacity;
    size_t base_index;        /* index of the first needed segment */
    uint64_t named_base_lsn;  /* the base in the newest durable batch */
    uint64_t hinted_base_lsn; /* the base that readers find in the hint */
    int open_files;

    struct buffer *buffers;
    uint32_t buffer_count;
    uint32_t oldest; /* ring: buffers[oldest] is the oldest one that is not free */
    uint32_t busy;   /* number of buffers whose batch is not durable */
    uint32_t forced; /* how many of these, the oldest ones, are forced but not durable */
    struct buffer *open;

    struct commit commit;
    struct leading term;
    struct footer_counts footer;
    struct flusher flusher;
    struct spare_thread spare_thread;
    struct space space;
    struct relocation relocation;

    struct directory *directory; /* of the store; `v` and `dir` above are from here */
    struct io_written *written;  /* the bytes written to all files of the store; used without the lock, too */
    ls_stats stats;
};

_Static_assert(offsetof(struct log, front) == 0, "lock.h relies on it");

/* lock.c */
#ifdef LOGSTORE_POISON
void log_may_wait(struct log *g);
#else
static inline void log_may_wait(struct log *g) { g->front.reserved_room = 0; }
#endif

/* append.c: buffers */
/* Where the record at lsn stands in the buffer that has it. */
static inline uint8_t *log_buffer_at(const struct buffer *b, uint64_t lsn) {
    return b->memory + b->start_lsn % BLOCK_BYTES + (lsn - b->start_lsn);
}
/* The open buffer; its batch can still end with a footer. */
static inline bool log_buffer_has_room(const struct log *g, uint64_t bytes) {
    return g->open->end_lsn - g->open->start_lsn + bytes + FOOTER_BYTES_MAX <= g->batch_bytes_max;
}
void log_open_buffer(struct log *g); /* one is free */
void log_seal_open(struct log *g);
/* log_append of a record for which the segment keeps SEGMENT_END_RESERVE. */
void log_append_at_end(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes);
uint64_t log_segment_end(const struct log *g); /* of the current segment */

/* room.c */
/* (waits) Waits for a buffer, in the order of arrival; a thread that was called before is the first. On return the
   thread is called. */
int log_wait_for_room(struct log *g, uint64_t bytes, bool *called);
/* Calls the first waiting thread to write a batch, if all buffers are taken and one of them is left to write. */
void log_call_to_lead(struct log *g);
/* Other threads wait for a buffer, or were called to one, and go first. */
static inline bool log_room_is_awaited(const struct log *g) {
    return g->front.room_waiters != NULL || g->commit.room_called > 0;
}

static inline bool log_is_replicated(const struct log *g) { return g->term.calls.ship != NULL; }

/* durable.c: what is forced on this disk, and what is durable */
/* Number of batches that are not forced: left to write, or in write. */
static inline uint32_t log_unforced(const struct log *g) { return g->busy - g->forced; }
/* Returns whether the batch that ends at end_lsn is durable as soon as it is forced. If so, its writer first
   publishes the hint. */
static inline bool log_begin_advance(struct log *g, uint64_t end_lsn) {
    if (g->forced > 0 || g->commit.majority_lsn < end_lsn || g->commit.advancing) {
        return false;
    }
    g->commit.advancing = true;
    return true;
}
/* (waits) `advances`: the result of log_begin_advance; if true, `hinted` is the result of hint_publish. */
void log_batch_is_forced(struct log *g, struct buffer *b, bool advances, uint64_t hinted);
void log_batch_failed(struct log *g, int error, bool advances); /* (waits) the log is poisoned */
uint64_t log_known_durable(const struct log *g);                /* what a batch of a replicated log says now */
/* (waits) Wakes the waiters that are served, and the thread that writes the next batch: one that waits for it, or else one
   that waits for a buffer, or the flusher. */
void log_pass_on(struct log *g);
/* (waits) In a debug build only: durable_lsn trails, or catches up. Whether the lock was let go: the caller looks again. */
#ifdef LOGSTORE_TRAIL
bool log_trail(struct log *g, bool catches_up);
#else
static inline bool log_trail(struct log *g, bool catches_up) {
    (void)g;
    (void)catches_up;
    return false;
}
#endif

/* commit.c */
void log_lead_one(struct log *g); /* (waits) writes the oldest batch that is not forced; no other thread leads */
/* The open batch has enough bytes for an early write, and no thread waits for the batch. */
bool log_can_write_early(const struct log *g);
uint64_t log_early_at(const struct log *g); /* where the open batch will have enough; UINT64_MAX: not possible now */
void log_write_early(struct log *g);        /* (waits) */
int log_fail_closed(void);
int log_write_header(struct log *g, const struct segment *s, uint64_t time_us);
/* (waits) Until one batch more is forced or durable. */
int log_progress(struct log *g);
void log_advance_base(struct log *g); /* as far as it can */
/* (waits) The base advances as far as it can, and a durable batch names it. */
int log_name_base(struct log *g);

/* segment.c: the array of segments and their memory. */
struct segment *segment_new(const struct log *g, uint64_t first_lsn, uint64_t epoch);
void segment_free(struct log *g, struct segment *s);
int log_add_segment(struct log *g, struct segment *s); /* at the end; fails only if memory runs out */
void log_remove_segment(struct log *g, size_t index);
int log_reserve_segment(struct log *g); /* memory for one more segment, so that adding it cannot fail */
struct segment *log_segment(struct log *g, uint64_t lsn); /* the one that holds the LSN, or NULL */
static inline void log_live(struct segment *s, uint64_t records, uint64_t bytes) {
    s->live_records += records;
    s->live_bytes += bytes;
    s->largest_bytes = bytes > s->largest_bytes ? bytes : s->largest_bytes;
}
void log_release(struct log *g, struct segment *s, uint64_t records, uint64_t bytes);
#ifdef LOGSTORE_POISON
void log_move_segments(struct log *g); /* moves the array, and returned segments that are not pinned, to other memory */
#endif

/* reading.c */
struct pin segment_pin(struct segment *s); /* counts one more reader; the file may not be open */
/* Memory of a record that is in a buffer, or NULL if it must be read from its file. */
const uint8_t *log_buffered(struct log *g, uint64_t lsn);
int log_segment_file(struct log *g, struct segment *s); /* an open handle or -errno */
void log_close_idle_files(struct log *g);               /* unused files beyond OPEN_FILES_MAX */

/* space/: how many segment files there are. */
/* Segments that only a hold keeps do not count, the hold has its own limit; dead ones not recycled yet do. */
static inline size_t log_segments_kept(const struct log *g) { return g->segment_count - g->space.held_count; }
/* From the base on. */
static inline size_t log_segments_used(const struct log *g) { return g->segment_count - g->base_index; }
/* Of the log, spares included. */
static inline size_t log_files(const struct log *g) { return log_segments_kept(g) + g->space.spare_count; }

/* The spares that this disk has, and those of every other copy. */
static inline size_t log_spares(const struct log *g) {
    return g->space.spare_count < g->space.others.spares ? g->space.spare_count : g->space.others.spares;
}
static inline size_t log_files_within_all(const struct log *g) { return log_segments_kept(g) + log_spares(g); }
/* Whether another copy can make no more files. */
static inline bool others_bound(const struct log *g) { return g->space.others.spares != SIZE_MAX; }
static inline bool log_cannot_grow(const struct log *g) { return g->space.cannot_grow || others_bound(g); }

/* space/others.c */
void others_count(struct log *g); /* a segment began, or one is gone */
/* (waits) Waits until every copy that limits this log has applied the log up to the present durable LSN, and so
   recycled its segments. False: they had done so before. */
bool others_wait(struct log *g);

/* space/: spares and recycling. */
int spares_make(struct log *g, bool zero_fill); /* (waits) one more spare */
bool spares_within_limit(const struct log *g);  /* max_log_bytes allows one more file */
void spares_recycle(struct log *g);             /* (waits) dead segments become spares, or are removed */
uint64_t spares_kept_from(struct log *g); /* (waits) holds keep the files from this LSN on; UINT64_MAX: none does */
int spares_keep(struct log *g);           /* (waits) recycle, make what is missing, relocate if need be */
void spares_try(struct log *g);           /* (waits) one more try was made */
bool spares_allow(const struct log *g, enum purpose purpose); /* one may be taken */
int spares_need(struct log *g, enum purpose purpose); /* (waits) a spare may be taken, or room was made, or LS_FULL */
size_t spares_target(const struct log *g);            /* how many are made ahead of need, as space.needs says */
struct segment *spares_take(struct log *g);
void spares_adopt(struct log *g, struct segment *s);
void *spares_thread(void *log);
void log_wake_flusher(struct log *g); /* when the lock is let go; the flusher sleeps */
void log_post_flusher(struct log *g); /* without the lock, apart from a thread that begins to wait for a signal */

/* space/ahead.c: the next segment, before an append would wait for it. */
/* Bytes, at most `most`, that can be appended before an append waits for the spare thread. Asks it for the next segment in time. */
uint64_t ahead_room(struct log *g, uint64_t most);
bool ahead_is_asked(const struct log *g);    /* in the current segment */
bool ahead_is_due(const struct log *g);      /* it was asked for, and the try that answers has not ended */
bool ahead_is_answered(const struct log *g); /* that try has ended */
void ahead_tell(struct log *g);              /* a spare was made: signals the events if a caller waits for one */
void ahead_try_ended(struct log *g);

/* space/admission.c: may the log grow? */
struct extent admission_extent(const struct log *g); /* what lives in it */
void admission_compute_needs(struct log *g);         /* space.needs, as of now */
/* With this much more, all live records could still be moved, and a drain would have room to work. */
bool admission_has_room(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose);
/* Bytes by which the log may grow before its needs are computed again, in records of at most needs.gap_bytes that take
   `expansion` more once they are moved. */
uint64_t admission_room(const struct log *g, uint64_t expansion);
/* (waits) The log can grow by `bytes`, and by `expansion` once these are moved; or LS_FULL. */
int admission_admit(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose);
uint64_t admission_pool_left(struct log *g);    /* for the work of transactions; UINT64_MAX: the log may grow */
bool over_admission_limit(const struct log *g); /* too much lives for a log that cannot grow */
bool admission_refuses(struct log *g);          /* growth is refused, or would be */
int admission_fail_full(const struct log *g);
void admission_look_for_room(struct log *g); /* ends the state of being full, if there is room again */
/* Bytes by which live records may grow before growth is refused; UINT64_MAX: no bound is known. Computes the needs. */
uint64_t admission_growth_left(struct log *g);
bool admission_is_near(const struct log *g); /* nearly full */
void admission_look_whether_near(struct log *g);
/* An append that grows the log got its room. */
static inline void admission_note_growth(struct log *g) {
    if (g->front.append_lsn >= g->space.full.near_look_lsn) {
        admission_look_whether_near(g);
    }
}
void admission_note_live(struct log *g);

/* space/relocation.c */
bool relocation_is_behind(const struct log *g); /* the log is larger than it need be, by more than a segment */
void relocation_after_batch(struct log *g);     /* a batch became durable: a move that keeps pace may continue */

/* hint.c: the hint, by which readers of a store in use know how far they may read. */
enum { HINT_OLD = 0 };       /* an old hint may be left */
#define HINT_NONE UINT64_MAX /* no hint is left */
/* Returns the base that readers now find, or HINT_OLD or HINT_NONE. One thread at a time calls it, with or without
   the lock. */
uint64_t hint_publish(struct log *g, uint64_t durable_lsn, uint64_t base_lsn);
/* With the lock: records the result of hint_publish. */
static inline void hint_published(struct log *g, uint64_t base_lsn, uint64_t result) {
    g->stats.hint_failures += result != base_lsn ? 1 : 0;
    if (result != HINT_OLD) {
        g->hinted_base_lsn = result;
    }
}
bool closed_publish(struct log *g, uint64_t end_lsn);

/* hold_look.c: what readers ask to keep. */
struct holds {
    struct hold living[LS_HOLDS_MAX];
    size_t count;
    bool unread; /* some holds could not be read: all segments are kept until they can */
};
void holds_look(struct log *g, struct holds *holds); /* with the lock or without */
/* With the lock: the lowest LSN below below_lsn that a hold within its limit keeps; UINT64_MAX if there is none. */
uint64_t holds_lowest(const struct log *g, const struct holds *holds, uint64_t below_lsn);

/* Segments below it are needed neither by recovery nor by readers. */
static inline uint64_t log_recyclable_lsn(const struct log *g) {
    return g->named_base_lsn < g->hinted_base_lsn ? g->named_base_lsn : g->hinted_base_lsn;
}

#endif
