/* Shared by the files that relocate messages: a chain's state, and switching over to its copy. See messages.c. */
#ifndef LOGSTORE_RELOCATE_PARTS_H
#define LOGSTORE_RELOCATE_PARTS_H

#include "relocate/messages.h"

/* ---- relocate/times.c ---- */

/* (waits) Learns when the message's places became visible, into v->times. `inline_us`: the time of places with the
   order LSN `id`; 0: unknown. */
void times_learn(struct message_mover *v, uint64_t id, uint64_t start_lsn, uint64_t inline_us);
uint64_t times_known(const struct move_times *t, uint64_t order_lsn); /* 0: not known */
void times_free(struct message_mover *v);

/* Around a read of the disk. A mover lets go of the lock only on the spare thread. */
void times_unlock_for_io(const struct message_mover *v);
void times_relock_after_io(const struct message_mover *v);

/* ---- relocate/state.c ---- */

/* The state of a chain that no single record can hold. */
struct chain_state {
    struct message_relocated counts;
    struct chunk_row *chunks;
    struct place_row *places;
    struct pending_row *pending;
    uint32_t version;
    bool staged;
};

/* How one record holds the whole state. */
struct inline_form {
    bool ordered;
    uint64_t order_lsn;
    uint32_t order_index;
    uint32_t queue_count;
};

void chain_free_state(struct chain_state *s);
uint32_t chain_count_places(struct message *m);
uint32_t chain_count_pending(const struct table *t, const struct message *m);
/* Takes the state, with the present LSNs of the chunks. False: no memory. */
bool chain_take_state(const struct message_mover *v, struct message *m, uint64_t start_lsn, struct chain_state *s);
/* Whether the state still describes the message. */
bool chain_is_still(const struct table *t, struct message *m, const struct chain_state *s);
/* Whether one record can hold the whole chain, and in which form. */
bool chain_has_inline_form(const struct table *t, struct message *m, struct inline_form *f);
/* False if two places have the same order index: a list cannot express that. */
bool chain_put_inline_queues(struct message *m, const struct inline_form *f, uint32_t *queue_ids);
void chain_switch_start(struct log *g, struct message *m, uint64_t lsn, uint32_t record_bytes);
void chain_switch_state(struct log *g, struct message *m, uint32_t bytes);
/* Takes ownership of the list. An empty list: the state directly follows the start record and is counted with it. */
void chain_switch_parts(struct log *g, struct message *m, struct chain_record *parts, uint32_t count);
/* The slot for a copy of the chain's start record. */
struct slot chain_slot(const struct message_mover *v, const struct message *m, uint16_t flags);
/* log_append, counted as moved. */
void chain_append(struct message_mover *v, const struct slot *s, enum record_type type, uint32_t bytes);
uint16_t chain_start_flags(const struct message *m);
/* Returns the message if its start record is still the one at this LSN, else NULL. */
struct message *chain_still_there(const struct message_mover *v, uint64_t id, uint64_t start_lsn);

/* ---- relocate/long.c ---- */

/* (waits) Moves all records of the chain that are in the victim: its start, chunks, and the records of its state. */
int move_long(struct message_mover *v, uint64_t id);
/* (waits) Reads one record, verified and durable; the caller frees it. Its segment is in the log. */
int move_read_record(struct message_mover *v, uint64_t lsn, uint32_t bytes, uint8_t **into, struct record *r);

#endif
