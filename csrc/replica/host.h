/*
 * A host: a member's directory, with VOTE and the copy of the store that counts. The copy is used only together with
 * VOTE.
 *
 *   HOST/VOTE HOST/copy-N/ (VOTE names N; a lower number was replaced, the next number belongs to an update in
 *   progress)
 *
 * What always holds:
 *   - VOTE is locked as long as the host is open. It is written and forced before any step that relies on it;
 *   - the copy takes no batch of a term that VOTE does not have, and leads only in a term in which this run of the member
 *     voted for itself, once: so a sole voter takes a new term each time;
 *   - the log reaches the floor at each start; the floor is lowered, and forced, before a cut;
 *   - only the copy that VOTE names counts; an earlier one is being removed, and may be incomplete;
 *   - a host that is detached never takes part again.
 *
 * One thread at a time uses a host. After LS_OUTCOME_UNKNOWN or LS_POISONED of VOTE, close it and open it again.
 */
#ifndef LOGSTORE_HOST_H
#define LOGSTORE_HOST_H

#include "replica/replica.h"
#include "replica/vote.h"

struct host {
    struct vote_file *vote;
    ls_options options;
    struct replica *follows;   /* the present copy; NULL: it leads, or an update will bring one */
    struct kept *kept;         /* of the copy, while it leads; else NULL */
    uint64_t start_term;       /* VOTE's term when the host was opened: a peer judges the member by it */
    uint64_t header_term;      /* the highest term of a header in the copy's log; an older VOTE may lack it */
    uint64_t stands_in;        /* the term in which this run voted for itself and has not led yet; 0: none */
    uint64_t floor_written_us; /* by the monotonic clock; 0: not yet written by host_note_tail */
};

/*
 * Makes HOST/VOTE, without a floor, and sets the sequence. The store in HOST/copy-N, with N from `first`, becomes the
 * first copy, and no byte of it is written; if `first` has a UUID of zeros, the store's UUID is taken. Without that
 * directory the member waits for an update. A detached VOTE is replaced as in vote_create. A crash leaves the previous
 * VOTE or the whole new one. LS_OPTION: there is a VOTE that is not detached, `first` is out of range, or the directory
 * has another copy; LS_NOT_A_STORE: copy-N is no store, or has another UUID; LS_LOCKED: the store is in use;
 * LS_REPLICATED: its VOTE was lost; LS_FULL.
 */
int host_create(vfs *v, const char *path, const struct vote *first);

/*
 * Opens VOTE and the copy, checks that the log may take part, raises the floor to the forced tail, and removes copies
 * of earlier numbers as far as it can. A copy with a later number stays: an update continues with it. LS codes of
 * vote_open, vote_find_copy, replica_open and vote_check_log. Also LS_NOT_A_STORE: VOTE is detached; or the log is
 * detached and VOTE is not, so the log comes from elsewhere.
 */
int host_open(vfs *v, const char *path, const ls_options *options, struct host **host);
/* If the copy follows, raises the floor once more, so that the next open notices an older directory. A store that leads
   must cease and be freed before. NULL: does nothing. */
void host_close(struct host *h);

/* The larger of VOTE's term and the highest header's term, and the vote in it. Where only a header has the term, the
   vote is unknown: it counts as given to the member itself. */
uint64_t host_term(const struct host *h);
uint64_t host_voted_for(const struct host *h);
/* Writes term and vote. LS_REFUSED: they do not follow from the results of host_term and host_voted_for; LS_OPTION. */
int host_vote(struct host *h, uint64_t term, uint64_t voted_for);

/* Lowers the floor, and then calls replica_cut. */
int host_cut(struct host *h, uint64_t index);
/* Calls replica_lead. LS_REFUSED: in this run the member did not vote for itself in the term, or has led in it. On
   LS_OK `follows` is NULL, and the caller frees the store before host_follow or host_close. */
int host_lead(struct host *h, uint64_t term, const struct replication *calls, const void *config, uint32_t config_bytes,
              ls_store **store);
/* Opens the copy again, with the checks of host_open, after it led or failed. The batches that it kept while it led
   stay kept. */
int host_follow(struct host *h);

/* Of the copy that follows; all zero: there is no copy, or it is not replicated. */
struct tail host_tail(const struct host *h);
/* Raises the floor to the forced tail if that is due. The driver calls this now and then, after it has answered the
   batch. */
int host_note_tail(struct host *h, struct tail forced);

/*
 * An update is complete: `next` was opened in copy-`copy`, and everything in that directory is forced. Switches VOTE to
 * it, with its end as the floor. Only then frees the present copy and removes its directory (the next open removes what
 * a failure leaves of it). On LS_OK the host follows with `next`; otherwise the caller keeps `next`, and after
 * LS_OUTCOME_UNKNOWN only the next open knows which of the two counts.
 */
int host_switch(struct host *h, uint64_t copy, struct replica *next);
/* Frees the copy that follows, and removes its directory after VOTE has the next rebuild number. Files of an abandoned
   update are removed first, because VOTE then names that copy number. LS_IO: a directory could not be removed. If
   `follows` is NULL then, it is the directory of the copy, which no longer counts; the next open removes it. */
int host_remove_copy(struct host *h);
/*
 * The same for a host that is not open. The copy is not read, so its state does not matter. The caller knows that the
 * group has removed this member, in `term`; `counted` is the rebuild number that a peer knows, or 0. *copy: the number
 * of the next copy. A crash leaves the previous copy, or no copy that counts. LS codes of vote_open; LS_REFUSED: VOTE
 * is detached; LS_IO: files of an update cannot be removed, and nothing has changed.
 */
int host_discard(vfs *v, const char *path, uint64_t term, uint64_t counted, uint64_t *copy);
char *host_copy_path(const struct host *h, uint64_t copy); /* HOST/copy-N, to be freed; NULL: no memory */

/*
 * Ends replication in a host that is not open: marks VOTE as detached, then the log, which becomes a single store with
 * everything in the copy. `highest_term`: the highest term that the caller knows. After a failure or a crash the same
 * call finishes; until then neither host_open nor ls_open opens the copy. *copy is the number of its directory.
 * LS_OPTION: it is not replicated.
 */
int host_detach(vfs *v, const char *path, const ls_options *options, uint64_t highest_term, uint64_t *copy);
/* The same for a backup of a copy, which has no VOTE. LS_OPTION: a VOTE lies next to the directory. */
int host_detach_backup(vfs *v, const char *store_dir, const ls_options *options);

#endif
