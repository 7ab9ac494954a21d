/*
 * Torn or corrupt, as a table: each find of the scan, with the facts about it, gives one verdict. verdict.c has the
 * rows.
 *
 * The comments next to the constants are the words of the table in docs/recovery.md, which defines them; a test
 * compares the two. Another test runs every combination of finds and facts: exactly one row answers each.
 */
#ifndef LOGSTORE_VERDICT_H
#define LOGSTORE_VERDICT_H

#include "format/format.h"

/* The scan's find at one place: exactly one of these. */
enum found {
    FOUND_BATCH,        /* a valid batch */
    FOUND_NO_BATCH,     /* no valid batch */
    FOUND_IMPOSSIBLE,   /* checksums right, contents impossible */
    FOUND_NEWER,        /* an unknown type without the skip bit, or a larger version */
    FOUND_EMPTY,        /* a last segment without a valid batch */
    FOUND_ONLY_COPIES,  /* a last segment that holds only copies */
    FOUND_HEADER,       /* a valid header */
    FOUND_LAST_EPOCH,   /* a valid header with the largest possible epoch */
    FOUND_MOVED_HEADER, /* a moved header */
    FOUND_BAD_HEADER,   /* an invalid header, without traces */
    FOUND_TRACES,       /* an invalid header, with traces */
    FOUND_NO_FILE,      /* no segment file */
    FOUND_KINDS,
};

/* Facts about the place. Any number of these can hold at once; docs/recovery.md has the full sentences. */
enum fact {
    BELOW_W = 1,        /* below W */
    BEFORE_END = 2,     /* before a known end */
    IN_LOG = 4,         /* at or above the base */
    FILE_CUT = 8,       /* in a cut file */
    CLOSED_BEYOND = 16, /* closed further on */
    RELIED_ON = 32,     /* relied on */
    NO_HEADER = 64,     /* no valid header anywhere */
    FACTS_ALL = 127,
};

enum verdict {
    VERDICT_ACCEPTED,  /* accepted */
    VERDICT_LOG_ENDS,  /* torn tail: the log ends */
    VERDICT_SET_ASIDE, /* set aside */
    VERDICT_SPARE,     /* a spare */
    VERDICT_IGNORED,   /* ignored: it was recycled or is about to be */
    VERDICT_CORRUPT,   /* `CorruptLog` */
    VERDICT_NEWER,     /* `VersionError` */
};

/* The text of a VERDICT_CORRUPT; verdict_reason has the words. */
enum reason {
    NO_REASON,
    BATCH_UNREADABLE,
    BATCH_IMPOSSIBLE,
    SEGMENT_CUT,
    ENDS_TOO_EARLY,
    SEGMENT_MISSING,
    HEADER_INVALID,
    EPOCHS_USED_UP,
};

struct verdict_row {
    enum found found;
    unsigned with;    /* facts that must hold */
    unsigned without; /* facts that must not hold; all others do not matter */
    enum verdict verdict;
    enum reason reason;
};

extern const struct verdict_row verdict_rows[];
extern const size_t verdict_row_count;

/* Returns the row for this case. Its verdict is the decision. */
const struct verdict_row *verdict_of(enum found found, unsigned facts);
/* The find at a batch's place, by the result of decoding it. */
enum found verdict_found(enum format_result result);
const char *verdict_reason(enum reason reason);

#endif
