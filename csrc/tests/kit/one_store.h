/*
 * One store on one simulated disk, for short tests: made, used, closed and opened again.
 */
#ifndef LOGSTORE_ONE_STORE_H
#define LOGSTORE_ONE_STORE_H

#include "tests/kit/store_workload.h"

static struct run r;
static vfs_sim *sim;

static inline void fresh_with(const ls_options *options) {
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    if (options != NULL)
        r.options = *options;
    (void)vfs_sim_record(sim, 0);
    run_start(&r, sim, 1);
    check(!r.lost || complain("the store cannot be made"));
}

static inline void fresh(void) { fresh_with(NULL); }

static inline void done(void) {
    ls_free(r.store);
    r.store = NULL;
    check(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
}

static inline int open_again(void) { return open_store(&r, r.v, r.catalog, QUEUES + 1, &r.store); }

static inline void again(void) {
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    check(open_again() == LS_OK || complain("open"));
}

static inline uint64_t put(uint32_t queue, const char *words, ls_tx *tx) {
    uint64_t id = 0;

    check(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)words, strlen(words), tx, LS_WAIT, &id) == LS_OK ||
          complain("publish"));
    return id;
}

/* Publishes a message of `bytes` bytes, each of which is `fill`. */
static inline uint64_t put_bytes(uint32_t queue, uint8_t filling, uint32_t bytes, int flags) {
    static uint8_t content[1 << 17];
    uint64_t id = 0;

    memset(content, filling, bytes);
    check(ls_publish(r.store, &queue, 1, NULL, 0, content, bytes, NULL, flags, &id) == LS_OK || complain("publish"));
    return id;
}

static inline int take(uint64_t id, uint32_t queue, ls_tx *tx) {
    uint64_t lsn;
    return ls_dequeue(r.store, id, queue, tx, 1, 0, LS_WAIT, &lsn);
}

static inline int add(uint64_t id, uint32_t queue, ls_tx *tx) {
    uint64_t lsn;
    return ls_enqueue(r.store, id, &queue, 1, tx, LS_WAIT, &lsn);
}

static inline bool has(uint64_t id) {
    ls_message_info info;
    return ls_message(r.store, id, &info) == LS_OK;
}

/* Publishes and dequeues so many messages that the base passes, or relocation moves, all that was written before. */
static inline void churn(int times) {
    for (int i = 0; i < times; i++) {
        uint64_t id = put_bytes(1, 0, 3900, 0), lsn;

        check(ls_dequeue(r.store, id, 1, NULL, 1, 0, i % 4 == 3 ? LS_WAIT : 0, &lsn) == LS_OK);
    }
    check(move_base(r.store) == LS_OK && ls_force(r.store, 0) == LS_OK);
}

#endif
