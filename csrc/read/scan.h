/*
 * Scanning a log: which files are segments, where the log begins and ends, and every accepted batch in between.
 * The table in verdict.c decides between torn and corrupt, by docs/format.md section 1 and docs/recovery.md.
 *
 * It never writes. Recovery uses it under the store's lock; readers use it while a writer has the store open.
 */
#ifndef LOGSTORE_SCAN_H
#define LOGSTORE_SCAN_H

#include <stdbool.h>

#include "format/format.h"
#include "logstore.h"
#include "os/vfs.h"

enum scan_state {
    SCAN_SPARE,  /* no valid header, and no batch record that validates for the name */
    SCAN_TRACES, /* no valid header, but batch records */
    SCAN_VALID,
};

struct scan_ahead;

struct scan_file {
    uint64_t first_lsn;
    enum scan_state state;
    enum format_result why; /* result of decoding the header */
    bool in_log;            /* in the chain of prev_end_lsn, at or above the base */
    uint64_t end_lsn;       /* where the log's records in it end, if a later header says so; else 0 */
    uint64_t bytes;         /* of the file, which has its full size before its header is written */
    struct segment_header header;
};

struct scan {
    vfs *v;
    int dir;
    struct meta meta;
    struct stream_set known; /* known streams beyond 1 to 3; set before scan_open, which keeps it */
    bool all_durable;        /* every batch counts, whatever it says: a backup of a copy. Kept by scan_open, too */
    uint64_t closed_lsn;     /* end_lsn of a usable CLOSED; 0: none */
    bool want_direct;        /* read the last segment past the page cache */
    bool direct;             /* ... and that was possible */
    bool all_direct;         /* ... and every other, where that is possible */
    bool file_direct;        /* the open file is read past the page cache */
    bool permissive;         /* unreadable files are ignored */
    uint64_t limit_lsn;      /* with a writer: durable_lsn of its hint; 0: read to the end */

    struct scan_file *files; /* by first_lsn */
    size_t count;
    size_t capacity;
    size_t first; /* index of the file at the base */
    size_t last;  /* index of the last segment of the log; SIZE_MAX if there is none */

    uint64_t base_lsn;
    uint64_t end_lsn;
    uint64_t seen_lsn; /* end of the accepted batches, also of a last segment that was set aside */
    uint64_t watermark_lsn;
    struct mark mark; /* of MARK, if that is this log's; sequence 0: there is none */
    uint64_t epoch_max;
    uint64_t renamed_epoch; /* newest epoch in the headers of renamed files; 0: none */
    uint64_t renamed_lsn;   /* end of the segment that this header names */
    uint64_t torn_bytes;
    uint64_t missing_lsn; /* first LSN of the segment at which the chain breaks; 0: the chain is whole */
    uint64_t broken_lsn;  /* of the last invalid record behind a batch record; 0: none */
    bool clean;
    uint64_t index;       /* of the newest batch; 0: the log is not replicated, and the next two are 0 as well */
    uint64_t term;        /* of that batch */
    uint64_t durable_lsn; /* known_durable_lsn of that batch: what lies at or above may still be cut */

    /* the window onto one file */
    uint8_t *window;
    size_t window_capacity;
    uint64_t window_at;
    size_t window_bytes;
    int file;
    size_t file_index;

    /* iteration */
    size_t next_file;
    uint64_t next_lsn;
    uint64_t bytes_read;
    struct scan_ahead *ahead; /* thread that reads ahead for scan_next; NULL: none */
};

struct scan_batch {
    const uint8_t *bytes;
    struct batch batch;
    uint64_t lsn;
    uint64_t seed;
    uint64_t first_lsn;
    bool is_close; /* the batch of an orderly close */
};

/* Lists the files only. */
int scan_list(struct scan *s, vfs *v, int dir, const struct meta *meta);
/* Finds base, end and watermark. LS_CORRUPT, LS_VERSION, LS_NOT_A_STORE, LS_IO, LS_NO_MEMORY. */
int scan_open(struct scan *s, vfs *v, int dir, const struct meta *meta, bool want_direct, const struct hint *live);
/*
 * Like scan_open, of a log without a writer that ends at end_lsn, where an earlier scan found its end. False: it is not known
 * to end there now, so scan_open must search; close the scan first.
 */
bool scan_open_known(struct scan *s, vfs *v, int dir, const struct meta *meta, uint64_t base_lsn, uint64_t end_lsn);
/* How far the log that ended at end_lsn was taken over by the writers that came since: end_lsn, or less. */
uint64_t scan_kept_end(const struct scan *s, uint64_t end_lsn);
/*
 * For a log that scan_open refuses: takes all readable segments, although others or their headers are unreadable.
 * LS_CORRUPT only if no segment is readable. An open never uses it. Without a writer it takes base and end from the
 * last writer's hint (NULL: none).
 */
int scan_open_permissive(struct scan *s, vfs *v, int dir, const struct meta *meta, const struct hint *live,
                         const struct hint *last_writer);
/*
 * The ranges between base and watermark that no readable segment holds. Fills up to n and returns how many there are.
 */
size_t scan_missing(const struct scan *s, ls_lsn_range *into, size_t n);
/* The next batch cannot be read: the log's part of this segment ends here, and scan_next continues in the next one. */
void scan_skip_segment(struct scan *s);
/* The next batch, from the base on; its records are verified. LS_END after the last accepted batch. */
int scan_next(struct scan *s, struct scan_batch *b);
/*
 * Another thread reads and verifies the batches for scan_next. Until it is stopped, call only scan_next; scan_close
 * does not stop it. Results are the same as without it. Without a thread or memory for it, nothing happens.
 */
void scan_ahead_start(struct scan *s);
void scan_ahead_stop(struct scan *s);
/* The log ends at this LSN, the end of a batch, as far as this scan is concerned. At once after scan_open. */
void scan_stop_at(struct scan *s, uint64_t lsn);
/*
 * What an open of a log would find that ends where this one does, whatever a hint says: index, term, durable_lsn and base_lsn
 * are set to that. *said: a batch of the log that was read names this base, and another says that the first is durable.
 */
int scan_find_said_base(struct scan *s, bool *said);
/* Continues with the first batch that ends beyond this LSN. */
void scan_seek(struct scan *s, uint64_t lsn);
/* The first LSN of a new epoch: above all that the epoch before may have given out, max_undurable_bytes beyond `lsn`. */
uint64_t scan_first_beyond(const struct meta *meta, uint64_t lsn);
/* Back to the base. */
void scan_rewind(struct scan *s);
/* The accepted batch at `lsn`, if *found; the scan then continues behind it. */
int scan_from_batch(struct scan *s, uint64_t lsn, struct scan_batch *b, bool *found);
void scan_close(struct scan *s);
/* Everything below this LSN is known durable: damage there is corruption. */
void scan_raise_watermark(struct scan *s, uint64_t lsn);

/* Reads META or META.new. LS_NOT_A_STORE, LS_VERSION, LS_CORRUPT, LS_IO. */
int scan_read_meta(vfs *v, int dir, const char *name, struct meta *m);

/* Reads MARK into *mark; sequence 0: there is none, or it is damaged or another store's. LS_VERSION, LS_IO. */
int scan_read_mark(vfs *v, int dir, const struct meta *meta, struct mark *mark);

/* A batch at its place as recovery would accept it, but for the end of its segment's part of the log. */
enum format_result scan_check_batch(const uint8_t *at, size_t bytes, uint64_t lsn, uint64_t epoch, uint64_t seed,
                                    const struct stream_set *known, struct batch *b);
/* Steps through a verified batch: the record at *offset (from the batch's start), or false at its end. */
bool scan_record(const struct scan_batch *b, uint32_t *offset, struct record *r);

#endif
