/* The part of the log that no hold can keep any more. See hold_list.c. */
#ifndef LOGSTORE_HOLD_LIST_H
#define LOGSTORE_HOLD_LIST_H

#include "format/format.h"
#include "logstore.h"
#include "os/vfs.h"

/*
 * Where the log ended before the oldest existing segment: everything below is gone. 0: unknown. `store`: its directory.
 */
uint64_t holds_find_gone(vfs *v, int store, const struct meta *meta);
/*
 * The hold keeps from this lower LSN on, which may lie below the base. LS_RECYCLED: the log there is gone, and the hold keeps
 * from where it did. A file that the writer has just decided to reuse may still go: a reader of it finds that out.
 */
int hold_lower(ls_hold *h, uint64_t lsn);

#endif
