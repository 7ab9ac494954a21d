/* Moving messages and transactions, for their client. See messages.c. */
#ifndef LOGSTORE_RELOCATE_MESSAGES_H
#define LOGSTORE_RELOCATE_MESSAGES_H

#include "relocate/relocate.h"
#include "table/table.h"

enum {
    TIME_INDEXES = 3, /* how many segments have the times of their batches in memory */
    TIME_PARTS = 16,  /* how many records of an earlier state are read for times, at most */
    TIMES_KNOWN = 16, /* order LSNs of one message */
};

struct lsn_time {
    uint64_t lsn;
    uint64_t time_us; /* 0: not known */
};

struct time_index {
    uint64_t first_lsn; /* of the segment */
    uint64_t end_lsn;   /* the index has the batches below it */
    struct lsn_time *at;
    size_t count;
    size_t capacity;
};

struct move_times {
    struct time_index indexes[TIME_INDEXES];
    unsigned index_count;
    unsigned known_count;
    struct lsn_time known[TIMES_KNOWN]; /* of the message that is being moved, by order LSN */
};

struct message_mover {
    struct table *t;
    struct log *g;
    bool asks_only;      /* moves nothing: messages_enqueue_time, on any thread, which may let go of the lock */
    uint64_t victim_lsn; /* first and end LSN of the segment that is moved */
    uint64_t victim_end_lsn;
    uint64_t head_lsn;
    uint64_t time_us; /* time of the batch that is being read */
    int time_failure; /* of the latest read for a time that failed, an ls_code; LS_OK: none did */
    uint64_t *later;  /* deferred chains, which have several records in the segment; moved once it was read */
    size_t later_count;
    size_t later_capacity;
    struct move_times times;
};

/* (waits) One record of the segment. `v` is zero before the first. */
int messages_relocate(struct message_mover *v, struct table *t, const struct mover *of, const struct record *r);
/* (waits) Ends the pass, which ended with `rc`: moves the deferred chains and sets `v` to zero. */
int messages_relocate_end(struct message_mover *v, int rc);

/*
 * (waits) When the place of the message with this order LSN became visible: µs since 1970; 0: it is not known. Reads what
 * relocation would read to learn it, and the batches of the segment once: `times` keeps them for later calls, whose
 * segments may be others. Two threads may call it; one keeps its times, those of the other are freed. A call that fails
 * (LS_IO, LS_CORRUPT, LS_NO_MEMORY) sets the time to 0, and the next one reads again.
 */
int messages_enqueue_time(struct table *t, struct log *g, struct move_times *times, uint64_t id, uint64_t order_lsn,
                          uint64_t *time_us);
void messages_forget_times(struct move_times *times); /* frees what it keeps */

#endif
