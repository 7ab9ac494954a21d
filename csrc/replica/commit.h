/* The leader's side, for a program that moves the batches itself: which batches were handed out, and which are forced
   here. See commit.c. */
#ifndef LOGSTORE_REPLICA_COMMIT_H
#define LOGSTORE_REPLICA_COMMIT_H

#include "replica/replica.h"

struct leader;

struct leader *leader_new(vfs *v); /* NULL: no memory, or no eventfd; ls_last_error has the error */
void leader_free(struct leader *l);
/* What log_replicate is given. */
struct replication leader_calls(struct leader *l);
/* The ring for the leader of this store, which is made if necessary and is freed with the store; the batches that the
   program takes are kept in the window (NULL: they are not kept). LS_NO_MEMORY, LS_IO. */
int leader_of(ls_store *store, struct kept *kept, struct replication *calls);

#endif
