/*
 * Queues that the leader has deleted. The leader removes their places in steps, without a record. A copy that follows
 * does the same, for a few messages after each batch that it applies.
 *
 * A copy may be ahead of the leader. So the leader writes no record for a message that only its sweep keeps
 * (message_is_going). Batches without an index come from a single store, which may have written such records: after
 * these nothing is swept.
 *
 * The queue stays in the table, as deleted, until the base has passed the record of its deletion: records above the base may still
 * name it. See replica.h.
 */
#include "replica/replica.h"

enum { SWEEP_MESSAGES = 1024 }; /* after one batch */

void replica_sweep_begin(struct replica *r) { r->sweep.again = true; }

/* Does one pass over the table. A queue that is deleted meanwhile needs another pass. False: nothing is left to do. */
static bool sweep_places(struct replica *r) {
    if (r->sweep.again && r->sweep.next == r->sweep.end) {
        r->sweep.again = false;
        r->sweep.next = 0;
        r->sweep.end = r->replay.t->message_slots;
    }
    for (int i = 0; i < SWEEP_MESSAGES && r->sweep.next < r->sweep.end; i++) {
        replay_sweep(&r->replay, r->sweep.next++);
    }
    return r->sweep.again || r->sweep.next < r->sweep.end;
}

/* No place is left on a queue that was deleted below the base; no other work is left either, because each live message
   was moved after that. */
static void forget_queues(struct replica *r) {
    struct state *s = &r->store->state;
    struct table *t = &s->table;
    for (size_t i = 0; i < s->deletions.count; i++) {
        struct queue *q = table_any_queue(t, s->deletions.items[i].queue_id);
        if (s->deletions.items[i].lsn < r->base_lsn && q != NULL) {
            table_remove_queue(t, q);
        }
    }
    rows_forget_old_deletions(s, r->base_lsn);
    r->sweep.forgotten_lsn = r->base_lsn;
}

void replica_sweep_some(struct replica *r) {
    bool copied = r->replay.t->copy != NULL; /* a checkpoint needs the deletions */
    if (!sweep_places(r) && !copied && r->sweep.forgotten_lsn < r->base_lsn && r->store->state.deletions.count > 0) {
        forget_queues(r);
    }
}
