/*
 * Walking a log: which files are segments, where the log begins and ends, and every accepted batch in between.
 * Torn versus corrupt is decided here and nowhere else, by docs/format.md section 1 and docs/recovery.md.
 *
 * It reads and never writes. Recovery uses it under the lock; readers use it beside a writer.
 */
#ifndef LOGSTORE_SCAN_H
#define LOGSTORE_SCAN_H

#include <stdbool.h>

#include "format/format.h"
#include "logstore.h"
#include "os/vfs.h"

enum scan_state {
    SCAN_SPARE,   /* no valid header, and no batch record that validates for the name */
    SCAN_DAMAGED, /* no valid header, but batch records */
    SCAN_VALID,
};

struct scan_ahead;

struct scan_file {
    uint64_t first_lsn;
    enum scan_state state;
    enum format_result why; /* the header is not valid */
    bool in_log;            /* on the chain of prev_end_lsn, at or above the base */
    uint64_t end_lsn;       /* of the log's part, where a later header says so; else 0 */
    uint64_t bytes;         /* of the file; a segment is of full size before its header is written */
    struct segment_header header;
};

struct scan {
    vfs *v;
    int dir;
    struct meta meta;
    struct stream_set known; /* beyond 1 to 3; set before it is opened, kept by every opening */
    uint64_t closed_lsn;     /* where CLOSED says that it was closed in order; 0: unknown */
    bool want_direct;        /* read the last segment past the page cache */
    bool direct;             /* ... and that was possible */
    bool all_direct;         /* ... and every other, where that is possible */
    bool file_direct;        /* the open file is read past the page cache */
    bool rest;               /* files that cannot be read are passed over */
    uint64_t limit_lsn;      /* beside a writer: read below it only; 0: to the end */

    struct scan_file *files; /* by first_lsn */
    size_t count;
    size_t capacity;
    size_t first; /* index of the file at the base */
    size_t last;  /* index of the last segment of the log; SIZE_MAX if there is none */

    uint64_t base_lsn;
    uint64_t end_lsn;
    uint64_t seen_lsn; /* where accepted batches end, also those of a last segment that was left out */
    uint64_t watermark_lsn;
    uint64_t epoch_max;
    uint64_t moved_epoch; /* the newest that headers name in files since renamed; 0: none */
    uint64_t moved_lsn;   /* end of the segment that it named */
    uint64_t torn_bytes;
    uint64_t missing_lsn; /* first LSN of the segment at which the chain breaks; 0: it does not */
    uint64_t broken_lsn;  /* of the last record that made a batch unacceptable; 0: none but batch records */
    bool clean;

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
    struct scan_ahead *ahead; /* another thread reads what scan_next gives; NULL: none does */
};

struct scan_batch {
    const uint8_t *bytes;
    struct batch batch;
    uint64_t lsn;
    uint64_t seed;
    uint64_t first_lsn;
    bool is_close; /* the batch of an orderly close */
};

/* Only which files there are. */
int scan_list(struct scan *s, vfs *v, int dir, const struct meta *meta);
/* Everything up to knowing base, end and watermark. LS_CORRUPT, LS_VERSION, LS_NOT_A_STORE, LS_IO, LS_NO_MEMORY. */
int scan_open(struct scan *s, vfs *v, int dir, const struct meta *meta, bool want_direct, const struct hint *live);
/*
 * Of a log that scan_open refuses: whatever segments can be read, though others or their headers cannot. LS_CORRUPT only if
 * there is none. It takes no part in opening a store. Without a writer, what the last one's hint says of base and end is
 * taken into account (NULL: there is none).
 */
int scan_open_rest(struct scan *s, vfs *v, int dir, const struct meta *meta, const struct hint *live,
                   const struct hint *last_writer);
/* The parts between base and watermark that no readable segment holds. Fills up to n of them; the result is their number. */
size_t scan_missing(const struct scan *s, ls_lsn_range *into, size_t n);
/* On to the next segment, since the next batch cannot be read: the log's part of this one ends here. */
void scan_give_up_segment(struct scan *s);
/* From the base on. LS_END after the last accepted batch. Records inside are verified already. */
int scan_next(struct scan *s, struct scan_batch *b);
/*
 * From here on another thread reads and verifies what scan_next will give: only scan_next may be called until that is
 * stopped, which scan_close does not do. It changes nothing but who waits; what cannot be had is done without.
 */
void scan_ahead_start(struct scan *s);
void scan_ahead_stop(struct scan *s);
/* From the first batch that ends beyond this LSN instead of from the base. */
void scan_seek(struct scan *s, uint64_t lsn);
/* First LSN of the epoch after one that may have handed out ids up to its limit beyond `lsn`. */
uint64_t scan_first_beyond(const struct meta *meta, uint64_t lsn);
/* Back to the base. */
void scan_rewind(struct scan *s);
/* The accepted batch that stands at `lsn`, and goes on behind it; *found says whether there is one. */
int scan_from_batch(struct scan *s, uint64_t lsn, struct scan_batch *b, bool *found);
void scan_close(struct scan *s);
/* Everything below this LSN is known durable: damage there is corruption. */
void scan_raise_watermark(struct scan *s, uint64_t lsn);

/* META, as LS_NOT_A_STORE, LS_VERSION or LS_CORRUPT where it is not one. `name`: META or META.new. */
int scan_read_meta(vfs *v, int dir, const char *name, struct meta *m);

/* Steps through a verified batch: the record at *offset (from the batch's start), or false at its end. */
bool scan_record(const struct scan_batch *b, uint32_t *offset, struct record *r);

#endif
