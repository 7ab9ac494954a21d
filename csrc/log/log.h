/*
 * The log: an endless LSN space over segment files, write buffers, group commit, spares and recycling.
 *
 * What always holds, under `lock`:
 *   - records are appended in LSN order, and an operation changes memory under the same hold of the lock as its append:
 *     so the base can never pass an append in flight;
 *   - at most one thread writes and syncs (`leading`), one batch at a time, the next only after that sync returned;
 *     blocks that are written early lack the batch record, and mean nothing until it is there;
 *   - a buffer is one batch, in one segment;
 *   - durable_lsn <= forced_lsn <= end_lsn <= append_lsn (durable.c says what is forced and what is durable), and
 *     append_lsn - durable_lsn <= max_undurable_bytes;
 *   - the records that a batch releases (deaths, outcomes) leave their segment's live count only when that batch is
 *     durable, so the base named in a batch is the base of the state below that batch's own durable_lsn;
 *   - a file is recycled only after a durable batch named a base above it;
 *   - a function marked (waits) may let go of the lock, and then any other operation may have run: a transaction has
 *     ended, a message's slot has another message, a segment is a spare. So no pointer, number or size that came from the
 *     table or from the log is kept over such a call: an operation calls all of them first, the last one being
 *     log_reserve, and looks things up after that. A segment that must stay is pinned (log_pin);
 *     anything else is kept as an id or an LSN and looked up again.
 *
 * Two checks enforce the last rule. log_append asserts that its bytes were reserved since the lock was last let go. And
 * built with -DLOGSTORE_POISON every (waits) function does let go of the lock, and the objects that look-ups gave out move
 * to other memory (table/poison.c; each time at first, later one time in 32), so that a sanitizer reports a stale pointer.
 *
 * The first invariants are asserted by log_lock and log_unlock (lock.h): cheap ones always, sums in -DLOGSTORE_CHECK builds.
 *
 * This header has all that the rest of the core may do with a log; its parts are in parts.h, for the files of log/ only, and
 * what stays inline for speed is in lock.h.
 *
 * It names no record type but its own (batch, filler, footer, close). Other records belong to its clients (client.h), which
 * say how many of them live in which segment.
 */
#ifndef LOGSTORE_LOG_H
#define LOGSTORE_LOG_H

#include "client/client.h"
#include "format/format.h"
#include "log/lock.h"
#include "log/space/file_needs.h"
#include "logstore.h"
#include "os/error.h"
#include "os/io.h"
#include "os/vfs.h"

struct segment;

/* ---- values ---- */

/*
 * The purpose of an append. Moves may use the last spares. When the store is full, growing is refused; a transaction's
 * work, and its exchange of a message's queue for another, are refused when they have used the room that is kept for
 * them (file_needs.h); what shrinks is never refused.
 */
enum purpose { RESERVE_SHRINKS, RESERVE_WORK, RESERVE_EXCHANGE, RESERVE_GROWS, RESERVE_MOVES };

/* One batch; a checkpoint names the batch at whose end it was taken. */
struct named_batch {
    uint64_t end_lsn;  /* 0: none */
    uint64_t lsn;      /* 0: not written yet */
    uint64_t checksum; /* of its batch record */
    uint64_t epoch;
};

/* A segment whose file stays open, and which stays where it is, until log_unpin. */
struct pin {
    struct segment *segment; /* NULL: none is pinned */
    uint64_t first_lsn;
    uint64_t seed;
    int file; /* -1: not opened yet */
};

/* A file of the directory that is no segment of the log. */
struct unused_file {
    uint64_t first_lsn; /* its name */
    bool header_only;   /* a write may have failed only at its header */
    bool last;          /* the last epoch's segment, which has no record of the log */
    bool gone;          /* taken, or removed */
};

struct unused_files {
    struct unused_file *all;
    size_t count;
    bool last_is_free; /* the new header, which excludes the `last` one from the log, is on disk */
};

/* The part of the last segment that an open rewrites, as offsets in its file. */
struct tail_part {
    uint64_t first_lsn;
    uint64_t from;
    uint64_t to;
    bool direct; /* read and written past the page cache */
};

struct log_epoch {
    uint64_t epoch;
    uint64_t first_lsn;      /* its first segment begins here */
    uint64_t prev_end_lsn;   /* where the log ended before it; 0: there was none */
    bool creating;           /* it is the log's first epoch */
    size_t initial_segments; /* of a new log */
};

/* A batch of a replicated log on its way to the other copies. What it points to stays until the call returns. */
struct shipment {
    uint64_t term;
    uint64_t index;
    uint64_t lsn; /* of the batch */
    uint64_t end_lsn;
    uint64_t first_lsn; /* of its segment */
    uint64_t known_durable_lsn;
    const uint8_t *header; /* of its segment, a block, if the batch is the segment's first; else NULL */
    const uint8_t *bytes;
};

enum { OTHERS_MAX = 16 };

/* The room that another copy of a replicated log last reported. */
struct other_room {
    uint64_t member;
    uint64_t spares;      /* files beside those of its log */
    uint64_t first_lsn;   /* of the segment that it wrote at that time */
    uint64_t applied_lsn; /* and what it had applied */
    int error;            /* errno of the reason why it can make no more files; 0: it can */
};

/* The functions of a replicated log's leader that the log calls. They must neither wait nor use the log. */
struct replication {
    uint64_t index;             /* of the last batch before this term */
    uint64_t known_durable_lsn; /* as of that batch */
    void *context;
    /* After the batch was written here and before it is forced; without the lock, one batch at a time and in order. */
    void (*ship)(void *context, const struct shipment *s);
    /* Called under the lock when the batch is forced here. Returns the LSN below which a majority has everything; 0:
       that has not changed. */
    uint64_t (*forced)(void *context, uint64_t index, uint64_t end_lsn);
};

/* What relocation has moved since the open. */
struct relocated {
    uint64_t segments;
    uint64_t bytes;
};

/* ---- made, begun and ended; docs/recovery.md has the order ---- */

/* A log without files or buffers. `relocate` (waits) moves the live records of a pinned segment to the head. NULL: no memory. */
struct log *log_new(int (*relocate)(struct log *g, const struct pin *victim));
void log_free(struct log *g); /* Also frees the clients, and a log that was set up in part; NULL: does nothing. */
/* Registers a client, before the store is opened, and gives it the log that it appends to. LS_OPTION as
   clients_register. */
int log_register(struct log *g, const struct log_client *client);
struct log_clients *log_clients(struct log *g);
/* Sets up memory only. The caller keeps the directory, and keeps it open until log_close_files. */
int log_init(struct log *g, struct directory *directory, const ls_options *options, const struct meta *meta);
/* Takes over the segments that recovery found. LS_NO_MEMORY. */
int log_recover(struct log *g, const struct live_segment *segments, size_t n, uint64_t base_lsn);
/* Before log_begin_epoch: the epoch is a term of a replicated log. Until its first batch is durable no hint is published and
   nothing is recycled. */
void log_replicate(struct log *g, const struct replication *r);
/* Adds the bytes written to *bytes. */
int log_rewrite_tail(struct log *g, const struct tail_part *t, uint64_t *bytes);
int log_open_holds(struct log *g);
/* For a copy that follows, whose log has not begun: publishes what is durable and the base. Returns the base that
   readers use now; segments below it may be recycled. */
uint64_t log_publish(struct log *g, uint64_t epoch, uint64_t durable_lsn, uint64_t base_lsn);
/* The lowest LSN that a hold keeps among the dead segments with these first LSNs; UINT64_MAX: no hold keeps any. */
uint64_t log_held_from(struct log *g, const uint64_t *first_lsns, size_t n);
/* Begins the epoch with a segment whose header is on disk: in an unused file, a dead segment's, or a new one. */
int log_begin_epoch(struct log *g, const struct log_epoch *e, struct unused_files *u);
/* Makes spares of unused files, or of new ones for a new log, and removes the other unused files. */
int log_gather_spares(struct log *g, const struct log_epoch *e, struct unused_files *u);
/* (waits) From now on records may be appended, also after a failure, until the close. In a term of a replicated log the
   first batch comes next; once it is durable, log_make_ready. */
int log_serve(struct log *g);
/* (waits) Makes free segments for later appends. In a log with one copy log_serve calls it. */
int log_make_ready(struct log *g);
void log_begin_first_batch(struct log *g, uint64_t bytes); /* with room for records of `bytes` */
int log_force_first_batch(struct log *g);                  /* (waits) on this disk; it may not be durable */
bool log_leads(const struct log *g);                       /* the first batch of the term is durable */
/* (waits) A term ends: nothing more is appended, forced or made durable, and operations in progress have an unknown
   outcome. Does nothing in a log with one copy. */
void log_cease(struct log *g);
int log_start_threads(struct log *g); /* lock not held */

/* (waits) From here on only the calling thread appends. */
void log_begin_close(struct log *g);
bool log_is_untouched(const struct log *g); /* nothing was written since log_begin_epoch */
/* (waits) Makes all records durable and writes the record of an orderly close. LS_FULL: all are durable, without
   that record. */
int log_write_close(struct log *g);
void log_drain(struct log *g);        /* (waits) until no other thread writes or reads */
void log_stop_threads(struct log *g); /* lock not held */
void log_close_files(struct log *g);

/* ---- the lock, beyond lock.h ---- */

/* The functions below need the lock unless they say otherwise; those marked (waits) may let it go and take it again. */

void log_wait(struct log *g, pthread_cond_t *signal); /* lets go of the lock until the signal */
/* Before any other wait for a signal: wakes those whom log_unlock would wake. */
void log_wake_before_wait(struct log *g);
/* As log_let_go and log_take_back, if this is the spare thread; without background threads the lock is kept. */
void log_unlock_for_io(struct log *g);
void log_relock_after_io(struct log *g);

/* ---- appending ---- */

uint64_t log_record_bytes_max(const struct log *g); /* fixed, also without the lock */
uint64_t log_batch_room(const struct log *g);       /* the same: bytes of records that one batch holds at most */
/* (waits) Reserves room for `bytes` of records in one batch. LS_WOULD_WAIT if that needs a wait and the operation
   may not wait. */
int log_reserve(struct log *g, uint64_t bytes, enum purpose purpose);
/* (waits) The same for a record that makes the log grow, for good (RESERVE_GROWS) or until its transaction ends, and that
   takes `expansion` bytes more when it is moved. LS_FULL, or for a transaction's work LS_TRANSACTION_LIMIT. */
int log_reserve_to_grow(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose);
/*
 * Room for a run of records that make the log grow, and take `expansion` bytes more, all together, when they are moved: `bytes`
 * for all, at most `record_bytes` for one. log_reserve_to_grow would admit each of them at once. There may be more room, but only
 * log_reserve_to_grow can tell. This function never waits, and reserving up to its result neither waits nor fails.
 */
struct run_room {
    uint64_t bytes;
    uint64_t record_bytes;
};
struct run_room log_run_room(const struct log *g, uint64_t expansion);
void log_reserve_run(struct log *g, uint64_t bytes);
/* Where the next record goes. */
struct slot log_slot(struct log *g, uint64_t id, uint64_t prev, uint16_t flags);
/* Adds the record that was encoded at the slot to the log. */
void log_append(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes);
/* The same for a record that recovery would need; live_bytes are added to the live bytes of its segment. */
void log_append_live(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes, uint64_t live_bytes);
/* The same as log_append for a record that relocation writes. */
void log_append_copy(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes);

/* Counts a record of the log as live. Its release takes effect when the batch that has the newest record is durable. */
void log_live_record(struct log *g, uint64_t lsn, uint64_t bytes);
void log_release_record(struct log *g, uint64_t lsn, uint64_t bytes);
/* Adds live bytes to those of the record at lsn; they die with it. */
void log_live_part(struct log *g, uint64_t lsn, uint64_t bytes);
void log_release_part(struct log *g, uint64_t lsn, uint64_t bytes);

/* ---- durability ---- */

bool log_serves(const struct log *g);        /* from log_serve until the close begins */
bool log_takes_records(const struct log *g); /* from this thread; during a close only from the thread that closes */
int log_poison(const struct log *g); /* also without the lock: errno of the failed write or sync; 0: none failed */
/* Of a poisoned log. LS_OUTCOME_UNKNOWN for records whose write failed, LS_POISONED for those that were never written. */
int log_fail_poisoned(const struct log *g, int code);
/* (waits) Makes everything below lsn durable. */
int log_force(struct log *g, uint64_t lsn);
/* (waits) A majority has forced everything below lsn: what is forced here as well is durable, now or once it is forced. */
void log_majority_has(struct log *g, uint64_t lsn);
/* Hands out an empty batch if appends have waited for one try of the spare thread since the call before, and all
   batches are forced: whether that batch is forced says whether the disk hangs. Does not wait. */
void log_probe_disk(struct log *g);
uint64_t
log_batch_index(const struct log *g); /* of the newest batch, also one that is not written yet; 0: not replicated */
/* (waits) A batch of its own for what is appended until log_end_batch, which is called under the same hold of the lock. */
int log_begin_batch(struct log *g, uint64_t bytes);
void log_end_batch(struct log *g);
/* (waits) A batch although there may be nothing to write. */
int log_force_batch(struct log *g);
/* Wakes the flusher for all that was appended. */
void log_flush_soon(struct log *g);
/* Consumers wait for records of others to be durable: the flusher does not rest, and clients are told (durable_moved). */
void log_consumers_wait(struct log *g, bool wait);
/* The wall clock at which the flusher calls the clients' time_came, in place of the one given before; UINT64_MAX: never. */
void log_set_alarm(struct log *g, uint64_t at_us);
void log_durable_soon(struct log *g, uint64_t lsn); /* the same, unless it was called since lsn was appended */
uint64_t log_next_lsn(struct log *g);               /* log_end_lsn, for a caller that is likely to wait for it */
/* The part of a largest batch that appends fill without waiting until an earlier batch is durable or the next segment is made,
   in percent; 50 at least, if only records that make the log grow would wait for that segment. Asks for the segment in
   time, and signals the events when a wait for it has ended. */
uint32_t log_room_percent(struct log *g);
/* An event that is signalled at each group commit. LS_OPTION, LS_IO. */
int log_event_new(struct log *g, int *fd);
void log_event_end(struct log *g, int fd);
void log_signal(struct log *g);        /* signals the events */
void log_signal_commit(struct log *g); /* the same at a group commit, which sends the answer if it waits for that */
/* See ls_event_answer and ls_event_answered. */
int log_answer(struct log *g, int fd, uint64_t lsn, int socket, const uint8_t *bytes, size_t count);
/* See ls_event_answer_all. */
int log_answer_all(struct log *g, int fd, int socket, const uint8_t *bytes, size_t count, uint64_t *lsn);
int64_t log_answered(struct log *g, int fd);
void log_answer_drop(struct log *g); /* forgets the answer */

/* ---- files ---- */

/* Makes a new segment file with this name and full size, durably; returns a handle or -errno. An existing file of that
   name is removed first. */
enum {
    FAST_SWITCH_US = 500 * 1000
}; /* if the last segment lasted longer than this, there is time to fill the next one with zeros */
int segment_file_make(struct directory *d, uint64_t first_lsn, uint64_t bytes, bool zero_fill);

/* ---- reading ---- */

/* Finds the record at lsn, which must be in the log. Returns its memory, valid until the lock is let go; or NULL,
   and pins its segment for log_read. If the file cannot be opened, p->file is -errno and nothing is pinned. p->seed
   is set in any case. */
const uint8_t *log_find_record(struct log *g, uint64_t lsn, struct pin *p);
uint64_t log_segment_lsn(struct log *g, uint64_t lsn); /* where the segment that holds lsn begins; 0: there is none */
/* Pins the segment of lsn, which must be in the log. -errno: its file cannot be opened, and nothing is pinned. */
int log_pin(struct log *g, uint64_t lsn, struct pin *p);
int log_open_pinned(struct log *g, struct pin *p); /* 0, or -errno; may be called more than once */
/* As io_read, without the lock. */
int64_t log_read(const struct log *g, const struct pin *p, uint64_t lsn, void *into, size_t bytes);
void log_read_in_order(struct log *g, const struct pin *p); /* tells the system to read ahead */
/* The last pin of a segment without a name frees it, and wakes the spare thread if recycling stopped at a reader. */
void log_unpin(struct log *g, struct pin *p);
/* Where the forced part of the pinned segment ends: its file has the records below it. */
uint64_t log_pinned_end_lsn(const struct log *g, const struct pin *p);

/* ---- the base, relocation, compaction ---- */

uint64_t log_base_lsn(const struct log *g);
uint64_t log_named_base_lsn(const struct log *g); /* the LSN at which a power cut would end the log, or a lower one */
uint64_t log_head_lsn(const struct log *g);       /* where the newest segment begins */
/* (waits) Makes all records durable, advances the base as far as it can, and names it in a durable batch. */
int log_move_base(struct log *g);
void base_after_sweep(struct log *g); /* the last place of a deleted queue is gone */
/* (waits) Until others have appended enough that `bytes` of the oldest segment may be moved, or the move is urgent. */
void relocation_keep_pace(struct log *g, uint64_t bytes);
/* Records that will still live in the pinned segment once all appended batches are durable. */
uint64_t log_staying_records(const struct log *g, const struct pin *p);
size_t log_window_bytes(const struct log *g); /* buffer to read a segment with: no record or batch is longer */
/* Enclose the records of a relocation that take effect together: no batch is named between them. */
void log_begin_chain(struct log *g);
void log_end_chain(struct log *g);
void spares_finish_tries(struct log *g);         /* (waits) until no requested try is in progress */
void log_keep_from(struct log *g, uint64_t lsn); /* segments from there on stay, whatever the base; UINT64_MAX: none */
int log_planned(struct log *g, struct planned_log *l); /* (waits) l->segments is allocated. LS_NO_MEMORY */
/* (waits) Relocates all live records below to_lsn, and gives spares back. If only a part was done, the caller
   reports why: LS_CLOSED, LS_FULL, or LS_CORRUPT (the segment at the base cannot be moved). */
int log_compact_to(struct log *g, uint64_t to_lsn);
struct relocated log_relocated(const struct log *g);

/* ---- for checkpoints ---- */

/* (waits) Ends the newest batch after the last record appended, and names it. If that is not possible at once, it
   waits and sets *named to false; the caller then tries again. */
int log_name_batch(struct log *g, bool *named);
struct named_batch
log_named_batch(const struct log *g);        /* the last one; its lsn and checksum are known once it is durable */
bool log_ends_in_batch(const struct log *g); /* a durable batch of this epoch ends where the log ends */
void log_wake_waiting(struct log *g); /* wakes the threads that wait for a spare, for relocation, or to name a batch */
uint64_t log_bytes_since(const struct log *g, uint64_t lsn); /* from lsn, or from the base if that is higher */

/* ---- figures ---- */

uint64_t log_epoch(const struct log *g);
uint64_t log_bytes(const struct log *g); /* size of all its files */
size_t log_segment_count(const struct log *g);
uint64_t log_live_bytes(const struct log *g);
bool log_can_grow(const struct log *g); /* by the result of the last try */
/* Sets the room that the other copies have from now on; at most OTHERS_MAX copies. */
void log_others_have(struct log *g, const struct other_room *all, size_t n);
void log_limit(struct log *g, uint64_t max_log_bytes);                     /* sets the limit from now on; 0: none */
void log_stats(struct log *g, ls_stats *stats);                            /* fills in all figures that the log has */
size_t log_segments(const struct log *g, ls_segment_info *into, size_t n); /* fills in up to n; returns their number */
/* Allocates *segments, which includes spares. LS_NO_MEMORY. */
int log_tail(const struct log *g, ls_tail *tail, ls_tail_segment **segments);
void log_fullness(struct log *g, ls_fullness *into);
uint64_t log_fullness_changes(const struct log *g); /* also without the lock */
uint64_t log_near_changes(const struct log *g); /* the same for the state of being nearly full; odd while it lasts */
void log_look_for_room(struct log *g);          /* asks the spare thread for a try */

#endif
