/*
 * A simulated member's disk: the files of its log, and VOTE. A file is a header, which may be missing, and batches, of which
 * one may be torn. recover() reads the files as an open does (docs/design, "the epoch chain"); nothing rots here, so whatever it
 * takes for corruption is a violation.
 */
#ifndef LOGSTORE_CONSENSUS_DISK_H
#define LOGSTORE_CONSENSUS_DISK_H

#include "tests/sim/consensus_model.h"

struct record {
    int id;
    bool torn;
    bool phantom; /* its force failed: it is in the page cache only, and no later force writes it */
};

struct segment {
    uint64_t first;
    uint64_t term;
    uint64_t prev_end;
    bool has_header;
    struct record *records; /* by LSN */
    size_t count;
    size_t capacity;
};

struct disk {
    struct segment *segments; /* by first */
    size_t count;
    size_t capacity;
    uint64_t mark_from; /* MARK: [mark_from, mark_to) was or is written with one force */
    uint64_t mark_to;
};

struct vote {
    uint64_t term;
    uint64_t voted_for;
    uint64_t copy;        /* number of the copy that counts */
    uint64_t floor_index; /* the log reaches this batch; 0: no floor */
    uint64_t floor_term;
    uint64_t rebuild; /* how often the directory was removed */
    bool detached;    /* the copy is no longer part of the group */
};

struct recovered {
    struct sequence log;
    struct sequence before; /* batches without an index, from before replication began */
    uint64_t base;
    uint64_t end;
    uint64_t highest_term; /* of any header */
    uint64_t last_segment; /* the first LSN of the newest file that counts */
};

struct segment *disk_find(const struct disk *d, uint64_t first);
bool disk_has(const struct disk *d, int id); /* whole */
void disk_header(struct disk *d, uint64_t first, uint64_t term, uint64_t prev_end);
/* False: other bytes stand at that LSN. A torn batch never takes the place of a whole one. */
bool disk_put(struct disk *d, int id, bool torn);
void disk_remove(struct disk *d, uint64_t first);
/* Rewrites the newest file that counts as it was read, past the page cache. */
void disk_rewrite_tail(struct disk *d, const struct recovered *r);
/* The power fails: records that are in the page cache only are lost. */
void disk_lose_cache(struct disk *d);
/* Removes the records above the log's end that MARK covers, and then MARK. */
void disk_end_mark(struct disk *d, uint64_t end);
/* Files that a header cut off: all from `from` on and below `below`. */
void disk_remove_between(struct disk *d, uint64_t from, uint64_t below);
void disk_copy(struct disk *to, const struct disk *from);
void disk_free(struct disk *d);

/* NULL, or why the log would be refused; the text is valid until the next call. */
const char *recover(const struct disk *d, struct recovered *r);
void recovered_free(struct recovered *r);

#endif
