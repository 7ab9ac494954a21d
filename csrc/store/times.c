/* Times of places: releases with a delay, and places that have expired. See table/times.h. */
#include "store/store.h"

int ls_delay(ls_store *store, uint32_t queue_id, const ls_delivery *deliveries, size_t n, uint64_t not_before_us,
             int flags) {
    (void)store, (void)queue_id, (void)deliveries, (void)n, (void)not_before_us, (void)flags;
    return fail(LS_WRONG_STATE, "not built yet");
}

int ls_acquire_expired(ls_store *store, uint32_t queue_id, ls_delivery *into, size_t n, int flags, size_t *done) {
    (void)store, (void)queue_id, (void)into, (void)n, (void)flags;
    *done = 0;
    return LS_OK;
}
