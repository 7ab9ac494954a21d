/* The leader's side, for a program that moves the batches itself: what was handed out, and what is forced here. See commit.c. */
#ifndef LOGSTORE_REPLICA_COMMIT_H
#define LOGSTORE_REPLICA_COMMIT_H

#include "replica/replica.h"

struct leader;

struct leader *leader_new(vfs *v); /* NULL: no memory, or no eventfd: ls_last_error has it */
void leader_free(struct leader *l);
/* What log_replicate is given. */
struct replication leader_calls(struct leader *l);
/* The same for the leader of this store, which is made if need be and goes with the store; batches that the program takes are kept
   (NULL: they are not). LS_NO_MEMORY, LS_IO. */
int leader_of(ls_store *store, struct kept *kept, struct replication *calls);

#endif
