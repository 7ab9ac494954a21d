/* Moving the live records of a segment to the head of the log; relocate.c says how, log/space/relocation.c when. */
#ifndef LOGSTORE_RELOCATE_H
#define LOGSTORE_RELOCATE_H

#include "log/log.h"

/* One pass over a segment, as a client sees it. */
struct mover {
    struct log *g;
    struct pin victim; /* the segment, sealed and durable */
    uint64_t end_lsn;  /* of its records */
    uint64_t head_lsn; /* where the newest segment began: records above it have just come */
    uint64_t time_us;  /* of the batch that is read */
    uint8_t *window;   /* the records that are given stay in it until the call returns */
    size_t window_bytes;
};

/* (waits) All live records of this sealed, durable segment are copied to the head. Lock held at both ends. */
int relocate_segment(struct log *g, const struct pin *victim);

/* After log_reserve: the record as it is, under its id, with these flags and FLAG_COPY; live counts follow. Its new LSN. */
uint64_t relocate_copy(struct mover *v, const struct record *r, uint16_t flags);

#endif
