/* Shared by the files that relocate messages: a chain's state, and switching over to its copy. See messages.c. */
#ifndef LOGSTORE_RELOCATE_PARTS_H
#define LOGSTORE_RELOCATE_PARTS_H

#include "relocate/messages.h"
#include "table/remembered.h"

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
    struct place_state *place_states; /* of the rows; NULL: no place or operation has a state */
    struct place_state *pending_states;
    struct own *located; /* where the records of the state have what the rows have of their own: places, then pending */
    uint32_t version;
    bool staged;
};

/* The notes and headers of a message's places, in memory. */
struct own_source {
    const uint8_t *record; /* the record that has all of them; NULL: they were read, in the order of the state's rows */
    uint64_t record_lsn;
    struct own_read *read;
    size_t read_count;
    size_t described; /* of those that were read */
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
/* Takes the state, with the present LSNs of the chunks; states of places with their bytes from `own`. False: no memory. */
bool chain_take_state(const struct message_mover *v, struct message *m, uint64_t start_lsn, struct own_source *own,
                      struct chain_state *s);
bool chain_has_states(const struct table *t, struct message *m);      /* of places and work that count */
uint64_t chain_state_bytes(const struct table *t, struct message *m); /* of a single record with the whole state */
/* Encodes the next part of the state, whose counts are in `m`, behind parts with the counts in `done`. */
uint32_t chain_put_part(const struct slot *at, struct chain_state *s, const struct message_relocated *m,
                        const struct message_relocated *done);
enum record_type chain_state_type(const struct chain_state *s);
/* The places and operations have their notes and headers in the state's records from now on. */
void chain_switch_own(const struct table *t, struct message *m, const struct chain_state *s);
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

/* ---- relocate/own.c ---- */

/* Whether all notes and headers of the message's places and operations are in this record. */
bool own_is_in(struct message *m, uint64_t record_lsn);
/* (waits) Reads the notes and headers of the message's places and operations. LS_END: it changed meanwhile. */
int own_gather(struct message_mover *v, uint64_t id, uint64_t start_lsn, struct own_source *own);
void own_free(struct own_source *own);
/* The state as a row has it. */
struct place_state own_describe(struct own_source *own, const struct remembered *s);

/* ---- relocate/long.c ---- */

/* (waits) Moves all records of the chain that are in the victim: its start, chunks, and the records of its state. */
int move_long(struct message_mover *v, uint64_t id);
/* (waits) Reads one record, verified and durable; the caller frees it. Its segment is in the log. */
int move_read_record(struct message_mover *v, uint64_t lsn, uint32_t bytes, uint8_t **into, struct record *r);

#endif
