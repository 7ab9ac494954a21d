/* What log/append.c and commit.c share with each other and with nobody else. The lock is held. */
#ifndef LOGSTORE_LOG_PARTS_H
#define LOGSTORE_LOG_PARTS_H

#include "log/log.h"

/* log/append.c: buffers */
uint8_t *log_buffer_at(const struct buffer *b, uint64_t lsn); /* where it stands in the buffer that has it */
void log_open_buffer(struct log *g);                          /* one is free */
void log_seal_open(struct log *g);
uint64_t log_segment_end(const struct log *g); /* of the current one */

/* commit.c */
/* So much of the open batch is there that the device may begin with it, and nobody waits for the batch as it is. */
bool log_can_write_early(const struct log *g);
void log_write_early(struct log *g); /* (waits) */
bool log_takes_records(const struct log *g);
int log_fail_closed(void);
int log_fail_poisoned(const struct log *g, int code); /* LS_POISONED, or LS_OUTCOME_UNKNOWN for what is on its way */
int log_write_header(struct log *g, const struct segment *s, uint64_t time_us);

#endif
