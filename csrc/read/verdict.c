/*
 * The torn-or-corrupt rule. See verdict.h, and docs/recovery.md for why the rule is right.
 *
 * No two rows match the same case, so their order has no meaning.
 */
#include "read/verdict.h"

#include <assert.h>

/* Found, with these facts, without these facts, verdict, reason. */
const struct verdict_row verdict_rows[] = {
    {FOUND_BATCH, 0, 0, VERDICT_ACCEPTED, NO_REASON},
    {FOUND_NO_BATCH, 0, BELOW_W | BEFORE_END, VERDICT_LOG_ENDS, NO_REASON},
    {FOUND_NO_BATCH, BEFORE_END, 0, VERDICT_CORRUPT, BATCH_UNREADABLE},
    {FOUND_NO_BATCH, BELOW_W | FILE_CUT, BEFORE_END, VERDICT_CORRUPT, SEGMENT_CUT},
    {FOUND_NO_BATCH, BELOW_W | CLOSED_BEYOND, BEFORE_END | FILE_CUT, VERDICT_CORRUPT, ENDS_TOO_EARLY},
    {FOUND_NO_BATCH, BELOW_W, BEFORE_END | FILE_CUT | CLOSED_BEYOND, VERDICT_CORRUPT, BATCH_UNREADABLE},
    {FOUND_IMPOSSIBLE, 0, 0, VERDICT_CORRUPT, BATCH_IMPOSSIBLE},
    {FOUND_NEWER, 0, 0, VERDICT_NEWER, NO_REASON},
    {FOUND_EMPTY, 0, 0, VERDICT_SET_ASIDE, NO_REASON},
    {FOUND_ONLY_COPIES, 0, RELIED_ON, VERDICT_SET_ASIDE, NO_REASON},
    {FOUND_ONLY_COPIES, RELIED_ON, 0, VERDICT_ACCEPTED, NO_REASON},
    {FOUND_HEADER, 0, FILE_CUT, VERDICT_ACCEPTED, NO_REASON},
    {FOUND_HEADER, FILE_CUT, IN_LOG, VERDICT_ACCEPTED, NO_REASON},
    {FOUND_HEADER, FILE_CUT | IN_LOG, 0, VERDICT_CORRUPT, SEGMENT_CUT},
    {FOUND_LAST_EPOCH, 0, 0, VERDICT_CORRUPT, EPOCHS_USED_UP},
    {FOUND_MOVED_HEADER, NO_HEADER, 0, VERDICT_ACCEPTED, NO_REASON},
    {FOUND_MOVED_HEADER, 0, NO_HEADER, VERDICT_SPARE, NO_REASON},
    {FOUND_BAD_HEADER, IN_LOG, 0, VERDICT_CORRUPT, HEADER_INVALID},
    {FOUND_BAD_HEADER, 0, IN_LOG, VERDICT_SPARE, NO_REASON},
    {FOUND_TRACES, IN_LOG, 0, VERDICT_CORRUPT, HEADER_INVALID},
    {FOUND_TRACES, BELOW_W, IN_LOG, VERDICT_CORRUPT, HEADER_INVALID},
    {FOUND_TRACES, NO_HEADER, IN_LOG | BELOW_W, VERDICT_CORRUPT, HEADER_INVALID},
    {FOUND_TRACES, 0, IN_LOG | BELOW_W | NO_HEADER, VERDICT_SPARE, NO_REASON},
    {FOUND_NO_FILE, IN_LOG, 0, VERDICT_CORRUPT, SEGMENT_MISSING},
    {FOUND_NO_FILE, 0, IN_LOG, VERDICT_IGNORED, NO_REASON},
};
const size_t verdict_row_count = sizeof verdict_rows / sizeof *verdict_rows;

const struct verdict_row *verdict_of(enum found found, unsigned facts) {
    const struct verdict_row *row = verdict_rows;
    while (row->found != found || (facts & row->with) != row->with || (facts & row->without) != 0) {
        row++;
        assert(row < verdict_rows + verdict_row_count); /* the rows are complete */
    }
    return row;
}

enum found verdict_found(enum format_result result) {
    switch (result) {
    case FORMAT_OK:
        return FOUND_BATCH;
    case FORMAT_NEWER:
        return FOUND_NEWER;
    case FORMAT_MALFORMED:
        return FOUND_IMPOSSIBLE;
    default:
        return FOUND_NO_BATCH;
    }
}

const char *verdict_reason(enum reason reason) {
    static const char *const texts[] = {
        [NO_REASON] = "",
        [BATCH_UNREADABLE] = "a batch cannot be read",
        [BATCH_IMPOSSIBLE] = "a batch holds what no writer writes",
        [SEGMENT_CUT] = "a segment was cut short",
        [ENDS_TOO_EARLY] = "the log ends before the place where it was closed",
        [SEGMENT_MISSING] = "a segment is missing",
        [HEADER_INVALID] = "a segment's header is not valid",
        [EPOCHS_USED_UP] = "a segment's header names the last epoch that there can be",
    };
    return texts[reason];
}
