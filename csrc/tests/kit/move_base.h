/* For tests: names the current base in a durable batch, and recycles the segments below it. */
#ifndef LOGSTORE_MOVE_BASE_H
#define LOGSTORE_MOVE_BASE_H

#include "log/parts.h"
#include "store/store.h"

static inline int move_base(ls_store *store) {
    int rc = store_enter(store);
    if (rc != LS_OK)
        return rc;
    rc = log_move_base(store->log);
    if (rc == LS_OK && store->log->base_index > 0)
        spares_try(store->log);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

#endif
