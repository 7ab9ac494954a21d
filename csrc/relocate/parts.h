/* What the files of relocation share: a chain's state, where it is switched over, and who moves. See relocate.c. */
#ifndef LOGSTORE_RELOCATE_PARTS_H
#define LOGSTORE_RELOCATE_PARTS_H

#include "relocate/relocate.h"

/* ---- relocate/times.c: what it learns about when places became visible ---- */

enum {
    TIME_INDEXES = 3, /* segments whose batches' times are kept */
    TIME_PARTS = 16,  /* records of an earlier state that are asked */
    TIMES_KNOWN = 16, /* order LSNs of one message */
};

struct batch_time {
    uint64_t lsn;
    uint64_t time_us; /* 0: not known */
};

struct time_index {
    uint64_t first_lsn; /* of the segment */
    uint64_t end_lsn;   /* batches below it are here */
    struct batch_time *at;
    size_t count;
    size_t capacity;
};

struct move_times {
    struct time_index indexes[TIME_INDEXES];
    unsigned index_count;
    unsigned known_count;
    struct batch_time known[TIMES_KNOWN]; /* of the message that is being moved, by order LSN */
};

struct mover {
    struct table *t;
    struct log *g;
    struct segment *victim;
    uint64_t head_lsn; /* where the newest segment began: what is above it has just come */
    uint8_t *window;
    size_t window_bytes;
    uint64_t time_us; /* of the batch that is read */
    uint64_t *later;  /* chains of more than one record here, moved once the segment was read */
    size_t later_count;
    size_t later_capacity;
    struct move_times times;
};

/* (waits) What can be known about the message's places, into v->times. `inline_us`: of those with the order LSN `id`; or 0. */
void times_learn(struct mover *v, uint64_t id, uint64_t start_lsn, uint64_t inline_us);
uint64_t times_known(const struct move_times *t, uint64_t order_lsn); /* 0: not known */
void times_free(struct mover *v);

/* ---- relocate/state.c ---- */

/* What a relocation tells of a chain that no single record can hold. */
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
/* Its queues are deleted, and the sweep will end it. */
bool chain_is_going(struct message *m);
/* With the chunks where they are now. False: no memory. */
bool chain_take_state(const struct mover *v, struct message *m, uint64_t start_lsn, struct chain_state *s);
/* Whether the message is as the state says. */
bool chain_is_still(const struct table *t, struct message *m, const struct chain_state *s);
/* Whether one record can hold it all, and how. */
bool chain_has_inline_form(const struct table *t, struct message *m, struct inline_form *f);
/* False if two places have one number: then there is no list of them. */
bool chain_put_inline_queues(struct message *m, const struct inline_form *f, uint32_t *queue_ids);
void chain_release_record(struct log *g, uint64_t lsn, uint64_t bytes);
void chain_live_record(struct log *g, uint64_t lsn, uint64_t bytes);
void chain_switch_start(struct log *g, struct message *m, uint64_t lsn, uint32_t record_bytes);
void chain_switch_state(struct log *g, struct message *m, uint32_t bytes);
/* Takes the list over; with none, the state follows the start record at once and lives with it. */
void chain_switch_parts(struct log *g, struct message *m, struct chunk_place *parts, uint32_t count);
/* For a copy of the chain's start. */
struct slot chain_slot(const struct mover *v, const struct message *m, uint16_t flags);
/* log_append, counted as moved. */
void chain_append(struct mover *v, const struct slot *s, enum record_type type, uint32_t bytes);
uint16_t chain_start_flags(const struct message *m);
/* The message, if its start record is still the one at this LSN. */
struct message *chain_still_there(const struct mover *v, uint64_t id, uint64_t start_lsn);

/* ---- relocate/long.c ---- */

/* (waits) Whatever of a chain of several records lies in the victim: its start, chunks, and the records of its state. */
int move_long(struct mover *v, uint64_t id);
/* (waits) Reads one record, verified and durable; the caller frees it. Its segment is in the log. */
int move_read_record(struct mover *v, uint64_t lsn, uint32_t bytes, uint8_t **into, struct record *r);

#endif
