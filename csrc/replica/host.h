/*
 * A host: a member's directory, with VOTE and the copy of the store that counts. Nothing of the copy is used without VOTE.
 *
 *   HOST/VOTE   HOST/copy-N/   (N as VOTE says; an earlier one was replaced, the next one is what an update has so far)
 *
 * What always holds:
 *   - VOTE is locked as long as the host is open, and is written, and forced, before anything that follows from it;
 *   - the copy takes no batch of a term that VOTE does not have, and leads only in a term in which this run of the member
 *     voted for itself, once: so a sole voter takes a new term each time;
 *   - the log reaches the floor at each start; the floor is lowered, and forced, before a cut;
 *   - only the copy that VOTE names counts; an earlier one is removed, and may be gone in part;
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
    struct replica *follows; /* the present copy; NULL: it leads, or is to come by an update */
    struct kept *kept;       /* of the copy, while it leads; else NULL */
    uint64_t start_term;     /* VOTE's, as the open found it: a peer judges the member by it */
    uint64_t header_term; /* the highest of a header in the copy's log; VOTE may not have it, if it is an older one */
    uint64_t stands_in;   /* the term in which this run voted for itself and has not led yet; 0: none */
    uint64_t floor_written_us; /* by the monotonic clock; 0: not by host_note_tail */
};

/*
 * Makes HOST/VOTE, without a floor; the sequence is set. The store in HOST/copy-N, N as `first` says, becomes the first copy, and
 * no byte of it is written; a UUID of zeros becomes the store's. Without that directory the member waits for an update.
 * A VOTE that is detached is replaced, as vote_create says. A crash leaves the VOTE from before or the whole new one.
 * LS_OPTION: there is a VOTE that is not detached, `first` cannot be one, or the directory has another copy; LS_NOT_A_STORE:
 * copy-N is none, or has another UUID; LS_LOCKED: it is in use; LS_REPLICATED: its VOTE was lost; LS_FULL.
 */
int host_create(vfs *v, const char *path, const struct vote *first);

/*
 * Opens VOTE and the copy, checks that the log may take part, raises the floor to the forced tail, and removes copies of
 * earlier numbers as far as it can. A later one stays: an update goes on with it.
 * LS codes of vote_open, vote_find_copy, replica_open and vote_check_log. LS_NOT_A_STORE, too: it is detached; or the log is,
 * and VOTE is not, so it comes from elsewhere.
 */
int host_open(vfs *v, const char *path, const ls_options *options, struct host **host);
/* Raises the floor of a copy that follows once more, so that an older directory is noticed at the next open. A store that leads
   ceases and is freed before. NULL: nothing. */
void host_close(struct host *h);

/* The larger one of VOTE's term and of the highest header's, and the vote in it. Where only a header has the term, the vote is not
   known: it counts as given to the member itself. */
uint64_t host_term(const struct host *h);
uint64_t host_voted_for(const struct host *h);
/* Writes term and vote. LS_REFUSED: they do not follow from what host_term and host_voted_for say; LS_OPTION. */
int host_vote(struct host *h, uint64_t term, uint64_t voted_for);

/* Lowers the floor, and then replica_cut. */
int host_cut(struct host *h, uint64_t index);
/* replica_lead. LS_REFUSED: in this run the member did not vote for itself in the term, or it has led in it. On LS_OK
   `follows` is NULL, and the caller frees the store before host_follow or host_close. */
int host_lead(struct host *h, uint64_t term, const struct replication *calls, const void *config, uint32_t config_bytes,
              ls_store **store);
/* Opens the copy again, with the checks of host_open, after it led or failed. What it kept while it led stays kept. */
int host_follow(struct host *h);

/* Of the copy that follows; all zero: there is none, or it is not replicated. */
struct tail host_tail(const struct host *h);
/* Raises the floor to what is forced, if that is due. The driver calls it now and then, and answers the batch first. */
int host_note_tail(struct host *h, struct tail forced);

/*
 * An update is whole: `next` was opened in copy-`copy`, and all in that directory is forced. VOTE is switched to it, with its end as
 * the floor; only then is the present copy freed and its directory removed (what a failure leaves of it goes at the next open).
 * On LS_OK the host follows with `next`; else `next` is the caller's, and after LS_OUTCOME_UNKNOWN only the next open knows
 * which of the two counts.
 */
int host_switch(struct host *h, uint64_t copy, struct replica *next);
/* Frees the copy that follows and removes its directory, after VOTE has the next rebuild number. What an update that was given up
   has left goes first, since VOTE counts that number then. LS_IO: a directory could not be removed; if `follows` is NULL, it is
   the copy's, which does not count any more and goes at the next open. */
int host_remove_copy(struct host *h);
/*
 * The same for a host that is not open, whatever is left of its copy: it is not read. The caller knows that the group has removed this
 * member, in `term`; `counted` is the rebuild number that a peer knows, or 0. *copy: the next one's number. A crash leaves the copy from
 * before or none that counts. LS codes of vote_open; LS_REFUSED: it is detached; LS_IO: what an update left cannot be removed,
 * and nothing has changed.
 */
int host_discard(vfs *v, const char *path, uint64_t term, uint64_t counted, uint64_t *copy);
char *host_copy_path(const struct host *h, uint64_t copy); /* HOST/copy-N, to be freed; NULL: no memory */

/*
 * Ends replication in a host that is not open: VOTE is marked as detached, then the log is, which becomes a single store with all
 * that the copy has. `highest_term`: the highest that the caller knows. After a failure or a crash the same call finishes; until
 * then neither host_open nor ls_open takes the copy. *copy is the number of its directory. LS_OPTION: it is not replicated.
 */
int host_detach(vfs *v, const char *path, const ls_options *options, uint64_t highest_term, uint64_t *copy);
/* The same for a backup of a copy, which has no VOTE. LS_OPTION: there is one beside the directory. */
int host_detach_backup(vfs *v, const char *store_dir, const ls_options *options);

#endif
