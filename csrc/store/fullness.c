/* Whether the log may grow, and what it depends on: of a store in use, or of one that is only inspected. */
#include "inspect/inspect.h"
#include "store/store.h"

/* By the rule of over_admission_limit. */
static uint64_t needed_bytes(uint64_t counted, uint64_t spares_reserved, uint64_t segment_size) {
    return spares_reserved * segment_size + counted / 4 * 5;
}

/* Of the log that an open would recover. */
static void describe_inspected(const ls_store *store, ls_fullness *into) {
    const struct state *state = &store->state;
    size_t base = store->inspection->base_index;
    struct extent e = {.segment_size = state->segment_size, .live_low = UINT64_MAX};
    ls_inspection seen;
    for (size_t i = base; i < state->segment_count; i++) {
        e.live_bytes += state->segments[i].bytes;
    }
    e.segments = state->segment_count - base;
    e.expansion = clients_expansion(state->clients);
    inspection_describe(store->inspection, &seen);
    uint64_t counted = e.live_bytes + clients_weight(state->clients);
    *into = (ls_fullness){
        .segment_size = e.segment_size,
        .log_bytes = seen.log.log_bytes,
        .live_bytes = e.live_bytes,
        .counted_bytes = counted,
        .needed_bytes = needed_bytes(counted, extent_reckon(&e).spares_reserved, e.segment_size),
    };
}

static void describe_serving(struct log *g, ls_fullness *into) {
    uint64_t live = log_live_bytes(g), counted = live + clients_weight(&g->clients);
    *into = (ls_fullness){
        .since_us = g->space.full.since_us,
        .segment_size = g->segment_size,
        .log_bytes = (g->segment_count - g->space.held_count + g->space.spare_count) * g->segment_size,
        .held_bytes = g->space.held_count * g->segment_size,
        .max_log_bytes = g->max_log_bytes,
        .live_bytes = live,
        .counted_bytes = counted,
        .full = spares_are_full(g),
        .needed_bytes = needed_bytes(counted, g->space.needs.spares_reserved, g->segment_size),
        .sys_errno = g->space.full.since_us != 0 ? g->space.full.error
                     : g->space.cannot_grow      ? g->space.grow_error
                                                 : 0,
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
        describe_serving(&store->log, fullness);
    }
    return store_leave(store, LS_OK, LEAVE_QUIETLY);
}

uint64_t ls_fullness_changes(const ls_store *store) {
    return atomic_load_explicit(&store->log.space.full.changes, memory_order_relaxed);
}
