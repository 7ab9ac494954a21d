/*
 * A host: a member's directory, with VOTE and the copy of the store that counts. Nothing of the copy is used without VOTE.
 *
 *   HOST/VOTE   HOST/copy-N/   (N as VOTE says; another copy-M is left over from an update or a removal)
 *
 * What always holds:
 *   - VOTE is locked as long as the host is open, and is written, and forced, before anything that follows from it;
 *   - the copy takes no batch of a term that VOTE does not have, and leads only in a term in which this run of the member
 *     voted for itself, once: so a sole voter takes a new term each time;
 *   - the log reaches the floor at each start; the floor is lowered, and forced, before a cut;
 *   - only the copy that VOTE names counts; the directory of another one is removed, and may be gone in part;
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
    struct replica *follows;   /* the present copy; NULL: it leads, or is to come by an update */
    uint64_t start_term;       /* VOTE's, as the open found it: a peer judges the member by it */
    uint64_t header_term;      /* the highest of a header in the copy's log, which VOTE may not know; the vote in it is unknown */
    uint64_t stands_in;        /* the term in which this run voted for itself and has not led yet; 0: none */
    uint64_t leads_in;         /* the term of the last lead; 0: none in this run */
    uint64_t floor_written_us; /* by the monotonic clock; 0: not by this run */
};

/*
 * Makes HOST/VOTE; the sequence is set. The store in HOST/copy-N, N as `first` says, becomes the first copy, and no byte of it is
 * written: it must not be in use, nor be replicated. Without that directory the member waits for an update. A VOTE that is
 * detached is replaced: with the next rebuild number, and with at least its term; the copy's number must not be lower.
 * A crash leaves the VOTE from before, or the whole new one. LS_OPTION: there is a VOTE that is not detached, or `first`
 * cannot be one, or another copy-M has a higher number; LS_NOT_A_STORE: the copy has another UUID; LS_REPLICATED; LS_FULL.
 */
int host_create(vfs *v, const char *path, const struct vote *first);

/*
 * Opens VOTE and the copy, checks that the log may take part, raises the floor to the forced tail, and removes other copies.
 * LS codes of vote_open, vote_find_copy, replica_open and vote_check_log. LS_REFUSED: it is detached, or the log is, which then
 * comes from elsewhere.
 */
int host_open(vfs *v, const char *path, const ls_options *options, struct host **host);
/* Raises the floor once more, so that a directory from before is noticed at the next open. A store that leads ceases and is
   freed before. NULL: nothing. */
void host_close(struct host *h);

/* The larger one of VOTE's term and of the highest header's. */
uint64_t host_term(const struct host *h);
/* Writes term and vote. LS_REFUSED: they do not follow; or the term is known from a header only, and the vote in it is not. */
int host_vote(struct host *h, uint64_t term, uint64_t voted_for);

/* Lowers the floor, and then replica_cut. */
int host_cut(struct host *h, uint64_t index);
/* replica_lead. LS_REFUSED: in this run the member did not vote for itself in the term, or it has led in it. Then
   `follows` is NULL, and the store is the caller's, who frees it before host_follow or host_close. */
int host_lead(struct host *h, uint64_t term, const struct replication *calls, const void *config,
              uint32_t config_bytes, ls_store **store);
/* Opens the copy again after it led, or after `follows` failed and was freed, with the checks of host_open. */
int host_follow(struct host *h);

/* The driver calls it about as often as something is forced, and never before it answers: raises the floor if that is due.
   `forced`: of the copy, or of the leader that it is now. */
int host_note_tail(struct host *h, struct tail forced);
/* Of the copy that follows; all zero: none, or it is not replicated. */
struct tail host_tail(const struct host *h);

/*
 * An update is whole: `next` was opened in copy-`copy`, with all that it needs forced. VOTE is switched to it, with its end as the
 * floor; only then is the present copy freed and its directory removed (what is left of it after a failure goes at the next
 * open). On LS_OK the host follows with `next`; else it is the caller's, and after LS_OUTCOME_UNKNOWN only the next open
 * finds which one counts.
 */
int host_switch(struct host *h, uint64_t copy, struct replica *next);
/* Removes the present copy's directory, after VOTE has the next rebuild number. */
int host_remove_copy(struct host *h);
/* HOST/copy-N: the caller frees it. NULL: no memory. */
char *host_copy_path(const struct host *h, uint64_t copy);

/*
 * Ends replication in a host directory that is not open: marks VOTE as detached, and then the log, which becomes a single store
 * with all that it has. `highest_term`: the highest that the caller knows. After a failure or a crash the same call finishes,
 * and before that neither host_open nor ls_open takes the copy. LS_OPTION: the log is not replicated. *copy, unless NULL, gets
 * the number of its directory.
 */
int host_detach(vfs *v, const char *path, const ls_options *options, uint64_t highest_term, uint64_t *copy);

#endif
