/* The part of the log that no hold can keep any more. See hold_list.c. */
#ifndef LOGSTORE_HOLD_LIST_H
#define LOGSTORE_HOLD_LIST_H

#include "format/format.h"
#include "os/vfs.h"

/*
 * Where the log ended before the oldest existing segment: everything below is gone. 0: unknown. `store`: its directory.
 */
uint64_t holds_find_gone(vfs *v, int store, const struct meta *meta);

#endif
