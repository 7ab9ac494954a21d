/* Shared by the files of the scan: single files, single batches, the ends of the log. scan.h is what others include. */
#ifndef LOGSTORE_SCAN_PARTS_H
#define LOGSTORE_SCAN_PARTS_H

#include "read/scan.h"
#include "read/verdict.h"

enum { WINDOW_BYTES = 8 << 20 };

/* scan.c: an empty scan with its window; the last segment; end_lsn of CLOSED; the index of a segment, or SIZE_MAX. */
int scan_prepare(struct scan *s, vfs *v, int dir, const struct meta *meta);
int scan_find_last(struct scan *s);
int scan_read_closed(struct scan *s);
size_t scan_find_file(const struct scan *s, uint64_t first_lsn);
int scan_fail_no_segment(void);
/* Lists every file that is named like a segment, by first LSN, with its header. */
int scan_list_files(struct scan *s);
int scan_open_segment(struct scan *s, size_t index);
/* Reads the header of the open file into its entry. */
int scan_read_header(struct scan *s, size_t index);
/* `bytes` of the segment from `offset` on, of which *available are there. */
int scan_look(struct scan *s, uint64_t offset, size_t bytes, const uint8_t **at, size_t *available);
/* FORMAT_OK: a valid batch record stands at lsn, whatever follows it. */
enum format_result scan_batch_record(const uint8_t *at, size_t available, uint64_t lsn, uint64_t epoch, uint64_t seed,
                                     struct batch *b);
/* *why is FORMAT_OK if a valid batch stands at lsn that ends at or below end_lsn. */
int scan_accept_batch(struct scan *s, size_t index, uint64_t lsn, uint64_t end_lsn, struct scan_batch *b,
                      enum format_result *why);
/* Raises the watermark to durable_lsn of every valid batch record from `offset` on; *found counts these. */
int scan_search_batches(struct scan *s, size_t index, uint64_t offset, uint64_t epoch, uint64_t *found);
/* Moves to the segment of the next batch; false after the last batch of the log. */
bool scan_has_next(struct scan *s);
/* The batch at next_lsn. If *why is FORMAT_OK, the scan moves behind it. */
int scan_accept_next(struct scan *s, struct scan_batch *b, enum format_result *why);
/* Appends at most `bytes` to the window; false if there are no more, or no room. */
bool scan_fill_window(struct scan *s, size_t bytes);
/* scan_ahead.c: the next batch, if the thread has it or will have it. */
bool scan_ahead_take(struct scan *s, struct scan_batch *b);
int scan_fail_newer(uint64_t first_lsn);
/* LS_CORRUPT or LS_VERSION, at this place, if the row says so. `why` goes into the text. */
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
