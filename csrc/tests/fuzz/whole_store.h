/*
 * Shared by the targets that open a store: a hash of all its answers, and opening it with eight queues, of which the catalog
 * may have lost one.
 */
#ifndef LOGSTORE_FUZZ_WHOLE_STORE_H
#define LOGSTORE_FUZZ_WHOLE_STORE_H

#include <stdlib.h>

#include "format/format.h"
#include "store/store.h"
#include "tests/kit/move_base.h"
#include "tests/sim/vfs_sim.h"
#include "format/xxh64.h"

enum { QUEUES = 8, PLACES_READ_MAX = 4096, READ_BYTES = 1 << 16 };

static inline void require(int holds) {
    if (!holds) {
        abort();
    }
}

/* ---- a hash of all answers ---- */

static inline uint64_t mix(uint64_t all, uint64_t more) { return xxh64(&more, sizeof more, all); }

static inline uint64_t read_message(ls_store *store, uint64_t id, uint64_t all) {
    static uint8_t into[READ_BYTES];
    size_t done = 0;
    int rc = ls_load_header(store, id, into, sizeof into, &done);
    all = mix(xxh64(into, done, all), (uint64_t)rc);
    rc = ls_load_content(store, id, 0, into, sizeof into, &done);
    return mix(xxh64(into, done, all), (uint64_t)rc);
}

/* Note and header of the place, and what else it remembers. */
static inline uint64_t read_state(ls_store *store, uint32_t queue, const ls_place *place, uint64_t all) {
    static uint8_t into[READ_BYTES];
    log_lock(store->log);
    const struct table *t = &store->state.table;
    const struct place *p = message_place(table_message(t, table_find(t, place->id)), queue);
    const struct remembered s = place_state(p);
    log_unlock(store->log);
    all = mix(mix(mix(all, s.not_before_us), s.expires_us), s.delivery_count);
    for (int what = LS_PLACE_NOTE; what <= LS_PLACE_HEADER; what++) {
        size_t done = 0;
        int has = 0;
        int rc = ls_load_place(store, queue, place->id, place->position, what, into, sizeof into, &done, &has);
        all = mix(mix(xxh64(into, done, all), (uint64_t)has), (uint64_t)rc);
    }
    return all;
}

static inline uint64_t read_queue(ls_store *store, uint32_t queue, uint64_t all) {
    static ls_place places[PLACES_READ_MAX];
    ls_cursor *cursor;
    size_t n = 0;
    require(ls_cursor_open(store, queue, LS_CURSOR_ALL, &cursor) == LS_OK);
    require(ls_cursor_next(cursor, places, PLACES_READ_MAX, &n) == LS_OK);
    ls_cursor_close(cursor);
    for (size_t i = 0; i < n; i++) {
        all = mix(mix(all, places[i].id), places[i].content_bytes * 2 + (places[i].locked != 0));
        all = read_message(store, places[i].id, all);
        all = read_state(store, queue, &places[i], all);
    }
    return all;
}

static inline uint64_t read_store(ls_store *store, uint32_t deleted) {
    uint64_t ids[64], all = 0;
    size_t n = 0;
    for (uint32_t q = 1; q <= QUEUES; q++) {
        all = q == deleted ? all : read_queue(store, q, mix(all, q));
    }
    require(ls_in_doubt(store, ids, 64, &n) == LS_OK);
    uint64_t in_doubt = 0; /* a sum: ls_in_doubt promises no order, and a relocation changes it */
    for (size_t i = 0; i < n && i < 64; i++) {
        ls_tx *tx;
        ls_tx_info info;
        require(ls_in_doubt_take(store, ids[i], &tx) == LS_OK);
        ls_tx_describe(tx, &info);
        in_doubt += xxh64(info.xid.data, sizeof info.xid.data, mix(mix(0, info.id), info.operations));
        ls_tx_free(tx);
    }
    return mix(mix(all, in_doubt), n);
}

/* ---- open, read, change, close, open ---- */

static inline int open_and_serve(vfs_sim *sim, uint32_t deleted, ls_store **store) {
    uint32_t queues[QUEUES], n = 0;
    ls_options options;
    ls_options_default(&options);
    options.segment_size = SEGMENT_BYTES_MIN;
    options.max_write_buffers = 2;
    options.background = 0;
    for (uint32_t q = 1; q <= QUEUES; q++) {
        if (q != deleted) {
            queues[n++] = q;
        }
    }
    int rc = ls_open(vfs_sim_table(sim), "/s", &options, store);
    if (rc == LS_OK) {
        rc = ls_serve(*store, queues, n, QUEUES + 1);
    }
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        ls_free(*store);
        *store = NULL;
        require(kept.code == rc);
    }
    return rc;
}

#endif
