/*
 * Replay of messages and transactions, for their client. Until they are settled, places stand in the table without their
 * run (see table.h).
 */
#ifndef LOGSTORE_REPLAY_MESSAGES_H
#define LOGSTORE_REPLAY_MESSAGES_H

#include "replay/replay.h"

/* The functions of client.h; the context is not used. */
int messages_replay(void *context, struct replay *p, const struct record *r);
int messages_replay_commit(void *context, struct replay *p, struct tx *tx, const struct record *r);
void messages_replay_rollback(void *context, struct replay *p, struct tx *tx);
int messages_settle(void *context, struct replay *p);
/* Sorts each transaction's work into the order in which it was done: relocation can change the order of the records. */
int messages_sort_work(const struct replay *p);
void messages_lock_in_doubt(const struct table *t, struct tx *tx);

/* Places that a QUEUE_DELETE ended; they are dropped from the message when its places are needed. */
void replay_drop_deleted(const struct replay *p, struct message *m);
/* The operation pends on the message until its transaction's outcome. */
int replay_add_work(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id,
                    const struct work *like);

/* replay/moved.c: MESSAGE_RELOCATED, TX_RELOCATED, and copies. */
int replay_copied_start(struct replay *p, const struct record *r);
int replay_relocated(struct replay *p, const struct record *r);
int replay_tx_relocated(const struct replay *p, const struct record *r);

#endif
