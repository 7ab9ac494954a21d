/*
 * Holds: files by which a reader of a store in use keeps segments. Shared by the writer and the readers.
 *
 * Rules that make it safe, whichever side comes between two steps of the other:
 *   - A hold gets its name only when it is whole and locked: it is made under another name, and renamed.
 *   - Takers come one at a time (the lock of holds/LOCK). A name is removed only by a process that has locked the
 *     file and has then seen that the name still leads to it: so it never removes a newer file of that name.
 *   - The owner rewrites its hold in place; a process that finds it torn reads it again.
 *   - The writer publishes its base in the hint, then looks at the holds, then recycles only segments below that base; a
 *     reader takes its hold, then reads the hint, and trusts only the segments at or above the base in it.
 */
#ifndef LOGSTORE_HOLD_H
#define LOGSTORE_HOLD_H

#include <stdbool.h>

#include "format/format.h"
#include "logstore.h"
#include "os/vfs.h"

/* Which entries of the directory are holds: NAME.hold, of any name. */
bool hold_is_name(const char *entry);
/*
 * 1: its owner lives, and *why says whether *h is what it wants. 0: there is none; one without an owner is cleared
 * away. Below 0, -errno: it cannot be looked at.
 */
int hold_look(vfs *v, int holds_dir, const char *entry, struct hold *h, enum format_result *why);
/* The hold in an open file, read again while it is torn: its size, or -errno. */
int hold_read(vfs *v, int file, struct hold *h, enum format_result *why);
/* The facts by which a hold is judged. */
struct hold_facts {
    uint8_t uuid[UUID_BYTES];
    uint64_t now_us;
    uint64_t kept_bytes; /* by it alone */
    uint64_t gone_lsn;   /* everything of the log below it is gone */
};
/* Whether a living hold is honoured: LS_HOLD_HONOURED, or why not. One that has lost a segment keeps none any more. */
int hold_judge(const struct hold *h, const struct hold_facts *facts);

#endif
