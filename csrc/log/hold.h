/*
 * Holds: files by which a reader of a store in use keeps segments. Shared by the writer and the readers.
 *
 * These rules keep writer and readers safe in any order of their steps:
 *   - A hold is made and locked under another name, and renamed only when it is complete.
 *   - One process at a time takes a hold (it locks holds/LOCK). A process removes a name only after it has locked the
 *     file and has then checked that the name still leads to it. So it never removes a newer file of that name.
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

/* A directory entry is a hold if its name is NAME.hold, for any NAME. */
bool hold_is_name(const char *entry);
/*
 * Reads a hold. 1: its owner lives, and *why says whether *h is valid. 0: there is no such hold; one without an owner
 * is removed. Below 0, -errno: it cannot be read.
 */
int hold_look(vfs *v, int holds_dir, const char *entry, struct hold *h, enum format_result *why);
/* Reads the hold in an open file, again while it is torn. Returns the file's size, or -errno. */
int hold_read(vfs *v, int file, struct hold *h, enum format_result *why);
/* The facts by which a hold is judged. */
struct hold_facts {
    uint8_t uuid[UUID_BYTES];
    uint64_t now_us;
    uint64_t kept_bytes; /* that only this hold keeps */
    uint64_t gone_lsn;   /* all records below it are gone from the log */
};
/* LS_HOLD_HONOURED, or the reason why a living hold is not honoured. A hold that has lost a segment keeps no other. */
int hold_judge(const struct hold *h, const struct hold_facts *facts);

#endif
