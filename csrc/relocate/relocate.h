/* Moving the live records of a segment to the head of the log; relocate.c says how, log/space/relocation.c when. */
#ifndef LOGSTORE_RELOCATE_H
#define LOGSTORE_RELOCATE_H

#include "log/log.h"

/* One pass over a segment, as a client sees it. */
struct mover {
    struct log *g;
    struct pin victim; /* the segment, sealed and durable */
    uint64_t end_lsn;  /* of its records */
    uint64_t head_lsn; /* where the newest segment began: records above it are new */
    uint64_t time_us;  /* time of the batch that is being read */
    uint8_t *window;   /* has the records that a client gets, until its call returns */
    size_t window_bytes;
};

/* (waits) Copies all live records of this sealed, durable segment to the head. The lock is held at the call and the
   return. */
int relocate_segment(struct log *g, const struct pin *victim);

/* Call it after log_reserve. Appends the record unchanged, with its id, these flags and FLAG_COPY, and updates the
   live counts. Returns the new LSN. */
uint64_t relocate_copy(struct mover *v, const struct record *r, uint16_t flags);

#endif
