/*
 * VOTE: what a member must not forget. Its term and vote, which copy of the store counts, and how far that copy must reach
 * (docs/format.md, section 8). It lies in the host's directory, which holds the copies as well:
 *
 *   HOST/VOTE   HOST/copy-1/   HOST/copy-2/ ...
 *
 * What always holds:
 *   - what a call wrote is in both slots, and each was forced, before the call returns: then it may be told to others;
 *   - at each moment one slot on the disk is whole, and has the state before the call that runs or the one after it;
 *   - the term never decreases, and within a term the vote is given once;
 *   - after an error of the disk nothing more is written (LS_POISONED), and nothing of what failed may be told. What is on
 *     the disk is known after vote_close and vote_open.
 *
 * Without VOTE a member refuses to start; it is never made anew beside a copy that has been a member's. One thread at a
 * time uses a vote file. Its process has it locked.
 */
#ifndef LOGSTORE_VOTE_H
#define LOGSTORE_VOTE_H

#include "format/format.h"
#include "os/io.h"
#include "replica/identity.h"

enum {
    VOTE_SLOTS = 2,
    VOTE_FLOOR_EVERY_US = 500 * 1000, /* the floor is written at most this often while the tail moves */
    COPY_NAME_BYTES = 32,             /* of copy-N, with its end */
};

struct vote_file {
    struct directory host;
    char *path;      /* the host's directory, for texts */
    int file;        /* locked; past the page cache, if the file system can */
    uint8_t *slot;   /* one slot's bytes, aligned for such a transfer */
    int error;       /* errno of a failed write or sync; 0: none */
    struct vote now; /* what both slots have; for reading only */
};

/* Makes VOTE; the sequence is set. One that is detached is replaced: by the next rebuild number and at least its term, and the
   copy's number is not lower. A crash leaves what there was or a whole new one. The directory must exist, and one process at a
   time makes a VOTE in it. LS_OPTION: there is one already, or `first` cannot be one; LS_FULL. */
int vote_create(vfs *v, const char *path, const struct vote *first);
/* Writes both slots anew before it returns, so what it found is on the disk. LS_NOT_A_STORE: there is none; LS_LOCKED;
   LS_VERSION; LS_CORRUPT: no slot is valid, or they contradict each other. */
int vote_open(vfs *v, const char *path, struct vote_file **vote);
void vote_close(struct vote_file *f); /* NULL: nothing */

/*
 * Each of these writes both slots, unless nothing would change. LS_REFUSED: that does not follow from what VOTE has, and
 * nothing was written. LS_OUTCOME_UNKNOWN: a write or sync failed; it may be on the disk or not. LS_POISONED: one had.
 */

/* LS_REFUSED: the term decreases, or another vote was given in it. */
int vote_write(struct vote_file *f, uint64_t term, uint64_t voted_for);
/* The tail that is forced in the copy. LS_REFUSED: it lies below the floor. */
int vote_raise_floor(struct vote_file *f, struct tail forced);
/* Before the copy is cut: nothing above `left` is needed any more. A floor that is not above stays. */
int vote_lower_floor(struct vote_file *f, struct tail left);
/* An update is complete: from now on that copy counts, and it ends at `end`. */
int vote_switch(struct vote_file *f, uint64_t copy, struct tail end);
/* Before a removed copy's directory goes: the next rebuild number, and the next copy's, which has no floor. So what a crash
   leaves of the directory never counts. `counted`: the number that others know, if VOTE may be an older one; the next is above
   both. `term`: the least that VOTE has then. If it had a lower one, the vote there is not known, and counts as given to the
   member itself. LS_OPTION: one of them is out of range. */
int vote_next_rebuild(struct vote_file *f, uint64_t term, uint64_t counted);
/* Replication ends here. Nothing else is written after that. */
int vote_detach(struct vote_file *f);

/* Whether the floor is to be written, by any clock that never goes back; `written_us`: when it was last. */
bool vote_floor_is_due(const struct vote *v, struct tail forced, uint64_t now_us, uint64_t written_us);

/* ---- at a start ---- */

void vote_copy_name(char into[COPY_NAME_BYTES], uint64_t copy);
/* Whether the copy that counts has a directory. LS_NOT_A_STORE: it has none, and the floor says that it had content. */
int vote_find_copy(struct vote_file *f, bool *present);
/* Whether a log of this store that ends there may take part. LS_CORRUPT: it ends below the floor; LS_NOT_A_STORE: VOTE is
   of another store; LS_REFUSED: VOTE is detached. */
int vote_check_log(const struct vote_file *f, struct tail end, const uint8_t uuid[UUID_BYTES]);

#endif
