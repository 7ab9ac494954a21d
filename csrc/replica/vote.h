/*
 * VOTE: the state that a member must not forget: its term and vote, which copy of the store counts, and how far that
 * copy must reach (docs/format.md, section 8). It lies in the host's directory, which holds the copies as well:
 *
 *   HOST/VOTE   HOST/copy-1/   HOST/copy-2/ ...
 *
 * What always holds:
 *   - when a call returns, both slots have the state that it wrote, and each was forced: only then may other members
 *     learn of it;
 *   - at each moment one slot on the disk is whole, and has the state before the call that runs or the one after it;
 *   - the term never decreases, and within a term the vote is given once;
 *   - after an error of the disk nothing more is written (LS_POISONED), and no other member may learn of the failed
 *     change. Its outcome is known after vote_close and vote_open.
 *
 * Without VOTE a member refuses to start; it is never made again for a copy that has been a member's. One thread at a
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
    int error;       /* errno of a failed write or sync; 0: none failed */
    struct vote now; /* the content of both slots; for reading only */
};

/* Makes VOTE, and sets the sequence. A detached VOTE is replaced: the new one has the next rebuild number, at least the
   same term, and no lower copy number. A crash leaves the previous file or a whole new one. The directory must exist,
   and one process at a time makes a VOTE in it. LS_OPTION: there is a VOTE already, or `first` is out of range;
   LS_FULL. */
int vote_create(vfs *v, const char *path, const struct vote *first);
/* Writes both slots again before it returns, so the content that it found is on the disk. LS_NOT_A_STORE: there is no
   VOTE; LS_LOCKED; LS_VERSION; LS_CORRUPT: no slot is valid, or the slots contradict each other. */
int vote_open(vfs *v, const char *path, struct vote_file **vote);
void vote_close(struct vote_file *f); /* NULL: nothing */

/*
 * Each of these functions writes both slots, unless nothing would change. LS_REFUSED: the change does not follow from
 * the present VOTE, and nothing was written. LS_OUTCOME_UNKNOWN: a write or sync failed, and the change may be on the
 * disk or not. LS_POISONED: an earlier write or sync failed.
 */

/* LS_REFUSED: the term decreases, or another vote was given in the same term. */
int vote_write(struct vote_file *f, uint64_t term, uint64_t voted_for);
/* The tail that is forced in the copy. LS_REFUSED: it lies below the floor. */
int vote_raise_floor(struct vote_file *f, struct tail forced);
/* Called before the copy is cut: no batch above `left` is needed any more. A floor at or below `left` stays. */
int vote_lower_floor(struct vote_file *f, struct tail left);
/* An update is complete: from now on its copy counts, and ends at `end`. */
int vote_switch(struct vote_file *f, uint64_t copy, struct tail end);
/* Called before the directory of a removed copy is deleted: writes the next rebuild number, and the number of the next
   copy, without a floor. So the rest of a directory after a crash never counts. `counted`: the rebuild number that
   others know, if VOTE may be an older one; the new number is above both. `term`: the lowest term that VOTE has
   afterwards. If VOTE had a lower term, its vote in the new one is unknown, and counts as given to the member itself.
   LS_OPTION: one of them is out of range. */
int vote_next_rebuild(struct vote_file *f, uint64_t term, uint64_t counted);
/* Replication ends here. No other state is written after that. */
int vote_detach(struct vote_file *f);

/* Whether the floor is due to be written, by any clock that never goes back; `written_us`: the time of the last
   write. */
bool vote_floor_is_due(const struct vote *v, struct tail forced, uint64_t now_us, uint64_t written_us);

/* ---- at a start ---- */

void vote_copy_name(char into[COPY_NAME_BYTES], uint64_t copy);
/* Whether the copy that counts has a directory. LS_NOT_A_STORE: it has none, although the floor says that it had
   content. */
int vote_find_copy(struct vote_file *f, bool *present);
/* Whether a log of this store that ends at this batch may take part. LS_CORRUPT: it ends below the floor;
   LS_NOT_A_STORE: VOTE is of another store; LS_REFUSED: VOTE is detached. */
int vote_check_log(const struct vote_file *f, struct tail end, const uint8_t uuid[UUID_BYTES]);

#endif
