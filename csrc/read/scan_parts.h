/* What scan.c and scan_file.c share: single files, single batches. See scan.h for the whole. */
#ifndef LOGSTORE_SCAN_PARTS_H
#define LOGSTORE_SCAN_PARTS_H

#include "read/scan.h"
#include "read/verdict.h"

enum { WINDOW_BYTES = 8 << 20 };

/* scan.c: an empty scan with its window; the newest segment; what CLOSED says; where a segment stands in the list. */
int scan_prepare(struct scan *s, vfs *v, int dir, const struct meta *meta);
int scan_find_last(struct scan *s);
int scan_look_at_closed(struct scan *s);
size_t scan_find_file(const struct scan *s, uint64_t first_lsn);
int scan_fail_no_segment(void);
/* Every file of the directory that is named like a segment, in order, with its header. */
int scan_list_files(struct scan *s);
int scan_open_segment(struct scan *s, size_t index);
/* Reads the header of the open file into its entry. */
int scan_read_header(struct scan *s, size_t index);
/* Bytes from `offset` on: as many as asked if the segment has them. *available says how many there are. */
int scan_look(struct scan *s, uint64_t offset, size_t bytes, const uint8_t **at, size_t *available);
/* Whether a batch record stands at lsn and validates by itself. */
enum format_result scan_batch_record(const uint8_t *at, size_t available, uint64_t lsn, uint64_t epoch, uint64_t seed,
                                     struct batch *b);
/* *why is FORMAT_OK if an accepted batch stands there, which ends at or below end_lsn. */
int scan_accept_batch(struct scan *s, size_t index, uint64_t lsn, uint64_t end_lsn, struct scan_batch *b,
                      enum format_result *why);
/* The watermark is at least what any batch record of the file says was durable; *found counts them. */
int scan_search_batches(struct scan *s, size_t index, uint64_t offset, uint64_t epoch, uint64_t *found);
/* To the segment that the next batch is in; false after the last batch of the log. */
bool scan_goes_on(struct scan *s);
/* The batch at next_lsn; *why says whether it was accepted, and if so the next one is behind it. */
int scan_accept_next(struct scan *s, struct scan_batch *b, enum format_result *why);
/* At most so many bytes more behind those in the window; false if there are none, or it is not possible. */
bool scan_read_on(struct scan *s, size_t bytes);
/* scan_ahead.c: the next batch, if another thread has it or will have it. */
bool scan_ahead_take(struct scan *s, struct scan_batch *b);
int scan_fail_newer(uint64_t first_lsn);
/* LS_CORRUPT or LS_VERSION, at this place, if the row says so. `why` is told as the detail of what is corrupt. */
int scan_refuse(const struct scan *s, const struct verdict_row *row, uint64_t first_lsn, uint64_t lsn,
                enum format_result why);

/* scan_ends.c. Without a valid header, a file that an open had begun to take over becomes the last segment. */
void scan_find_taken_over(struct scan *s);
void scan_link_chain(struct scan *s);
/* Judges the files above the last valid header, whose batch records raise the watermark. */
int scan_look_beyond(struct scan *s);
/* Finds end and watermark, and the base, which the last accepted batch names. */
int scan_find_ends(struct scan *s);
/* Judges the segments from the base on: the chain must reach the base, and each file must be whole. */
int scan_find_base(struct scan *s);

#endif
