/* Shared by append.c, reserve.c and commit.c only. The lock is held. */
#ifndef LOGSTORE_LOG_PARTS_H
#define LOGSTORE_LOG_PARTS_H

#include "log/log.h"

/* log/append.c: buffers */
uint8_t *log_buffer_at(const struct buffer *b, uint64_t lsn); /* where it stands in the buffer that has it */
void log_open_buffer(struct log *g);                          /* one is free */
void log_seal_open(struct log *g);
/* log_append of a record for which the segment keeps SEGMENT_END_RESERVE. */
void log_append_at_end(struct log *g, const struct slot *s, uint16_t type, uint32_t bytes);
uint64_t log_segment_end(const struct log *g); /* of the current one */

/* room.c */
bool log_buffer_has_room(const struct log *g, uint64_t bytes); /* the open one */
/* (waits) For a buffer, in the order of arrival; one that was called before is the first. It is called when it returns. */
int log_wait_for_room(struct log *g, uint64_t bytes, bool *called);
void log_call_to_lead(struct log *g); /* the first, if all buffers wait to be written and nobody else is called to */
/* Others wait for a buffer, or were called to one, and come first. */
static inline bool log_room_is_awaited(const struct log *g) {
    return g->front.room_waiters != NULL || g->commit.room_called > 0;
}

/* commit.c */
void log_lead_one(struct log *g); /* (waits) writes the oldest batch; no other thread leads */
/* The open batch has enough bytes that the device may begin with them, and no thread waits for the batch as it is. */
bool log_can_write_early(const struct log *g);
uint64_t log_early_at(const struct log *g); /* where the open batch will have; UINT64_MAX: not as things are */
void log_write_early(struct log *g);        /* (waits) */
bool log_takes_records(const struct log *g);
int log_fail_closed(void);
int log_fail_poisoned(const struct log *g, int code); /* LS_POISONED, or LS_OUTCOME_UNKNOWN for what is on its way */
int log_write_header(struct log *g, const struct segment *s, uint64_t time_us);

#endif
