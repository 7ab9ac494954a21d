/* The tail of an open store or an inspection, as the public API has it. inspect/tail.c explains it. */
#include <stdlib.h>
#include <string.h>

#include "inspect/inspect.h"
#include "store/store.h"

static void yield_lock(void *context) {
    struct log *g = context;
    log_let_go(g);
    log_take_back(g);
}

static int take_log(ls_store *store, struct tail_look *k) {
    int rc = log_tail(store->log, k->tail, &k->segments);
    if (rc != LS_OK) {
        return rc;
    }
    k->segment_count = k->tail->segments;
    k->table = &store->state.table;
    k->v = store->directory.v;
    k->dir = store->directory.dir;
    k->uuid = store->meta.uuid;
    k->yield = yield_lock;
    k->context = store->log;
    return LS_OK;
}

int ls_tail_read(ls_store *store, ls_tail *tail, ls_tail_segment *segments, size_t n, size_t *count, ls_holder *holders,
                 size_t holders_max, size_t *done) {
    struct tail_look k = {.tail = tail};
    *done = *count = 0;
    int rc = tail_prepare(&k, holders_max);
    rc = rc == LS_OK ? store_look(store) : rc;
    if (rc == LS_OK) {
        store_times(store);
        rc = store->inspection != NULL ? inspection_take_tail(store->inspection, &k) : take_log(store, &k);
        *done = rc == LS_OK ? tail_explain(&k, holders) : 0;
        rc = store_leave(store, rc, LEAVE_QUIETLY);
    }
    if (rc == LS_OK) {
        tail_add_times(&k, holders, *done);
        *count = (size_t)(tail->segments + tail->spares);
        memcpy(segments, k.segments, (*count < n ? *count : n) * sizeof *segments);
    }
    tail_free(&k);
    return rc;
}
