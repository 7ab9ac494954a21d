/* Reports whether the log may grow, and the figures that decide it, for a store in use or an inspected one. */
#include "inspect/inspect.h"
#include "store/store.h"

/* Describes the log that an open would recover. */
static void describe_inspected(const ls_store *store, ls_fullness *into) {
    const struct state *state = &store->state;
    size_t base = store->inspection->base_index;
    struct extent e = {.segment_size = state->segment_size, .live_low = UINT64_MAX};
    ls_inspection seen;
    for (size_t i = base; i < state->segment_count; i++) {
        e.live_bytes += state->segments[i].bytes;
    }
    e.segments = state->segment_count - base;
    e.expansion = clients_expansion(state->clients, e.segments * e.segment_size);
    inspection_describe(store->inspection, &seen);
    uint64_t counted = e.live_bytes + clients_weight(state->clients);
    *into = (ls_fullness){
        .segment_size = e.segment_size,
        .log_bytes = seen.log.log_bytes,
        .live_bytes = e.live_bytes,
        .counted_bytes = counted,
        .pool_bytes = extent_pool(e.segment_size),
        .pool_left = UINT64_MAX,
        .growth_left = UINT64_MAX,
        .needed_bytes = needed_bytes_for(counted, extent_needs(&e).spares_reserved, e.segment_size),
    };
}

int ls_fullness_get(ls_store *store, ls_fullness *fullness) {
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    if (store->inspection != NULL) {
        describe_inspected(store, fullness);
    } else {
        log_fullness(store->log, fullness);
    }
    return store_leave(store, LS_OK, LEAVE_QUIETLY);
}

uint64_t ls_fullness_changes(const ls_store *store) { return log_fullness_changes(store->log); }

uint64_t ls_near_full_changes(const ls_store *store) { return log_near_changes(store->log); }

void ls_look_for_room(ls_store *store) {
    if (!atomic_load(&store->foreign) && store->inspection == NULL) {
        log_lock(store->log);
        log_look_for_room(store->log);
        log_unlock(store->log);
    }
}
