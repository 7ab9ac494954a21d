/*
 * Replay of messages and transactions, for their client. Until they are settled, places stand in the table without their
 * run (see table.h).
 */
#ifndef LOGSTORE_REPLAY_MESSAGES_H
#define LOGSTORE_REPLAY_MESSAGES_H

#include "replay/replay.h"
#include "table/remembered.h"

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
/* The message of the record's chain, to change it; NULL: it is not known. */
struct message *replay_find_message(const struct replay *p, const struct record *r, uint32_t *number);
/* A record of an unknown chain: an orphan if the chain began below the base, else it is inconsistent. */
int replay_missing_chain(const struct replay *p, const struct record *r);
/* Makes the message that begins with this record. */
int replay_add_message(const struct replay *p, const struct record *r, uint32_t content_bytes, uint32_t *number);
/* Each place, or each operation of a transaction, begins with a copy of the state; NULL: none. */
int replay_enqueues(const struct replay *p, const struct record *r, uint32_t number, const struct message_enqueue *e,
                    const struct remembered *state);
/* The operation pends on the message until its transaction's outcome. Takes its state over, whatever the result. */
int replay_add_work(const struct replay *p, const struct record *r, uint32_t number, uint64_t tx_id,
                    const struct work *like, struct remembered *state);

/* replay/states.c: MESSAGE_START_PLACED, MESSAGE_PLACE, MESSAGE_MOVE and PLACE_STATES. */
int replay_start_placed(const struct replay *p, const struct record *r);
int replay_place(const struct replay *p, const struct record *r);
int replay_move(const struct replay *p, const struct record *r);
int replay_place_states(const struct replay *p, const struct record *r);
/* The state that stands in the record; its note and header lie there. Allocates; false: no memory. */
bool replay_read_state(const struct record *r, const struct place_state *from, struct remembered *made);
/* The place gets the state, with what that has of its own, whatever the result. */
int replay_set_state(const struct replay *p, struct message *m, struct place *place, struct remembered *state);
/* The same with a copy of the note alone; NULL: it has none any more. */
int replay_set_note(const struct replay *p, struct message *m, struct place *place, const struct own_bytes *note);

/* replay/moved.c: MESSAGE_RELOCATED, MESSAGE_RELOCATED_PLACED, TX_RELOCATED, and copies. */
int replay_copied_start(struct replay *p, const struct record *r);
int replay_relocated(struct replay *p, const struct record *r);
int replay_tx_relocated(const struct replay *p, const struct record *r);

#endif
