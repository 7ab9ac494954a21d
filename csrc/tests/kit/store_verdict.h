/*
 * Checks a store, or a disk after a power cut, against the model: places in order, locks, transactions in doubt, every
 * content byte for byte, and no other live message.
 */
#ifndef LOGSTORE_STORE_VERDICT_H
#define LOGSTORE_STORE_VERDICT_H

#include "tests/kit/store_model.h"
#include "tests/kit/tallies.h"

/* ---- the state of an open store ---- */

enum { CONTENT_MAX = 1 << 19, POOL = 1 << 18 };

/* Every content is a slice of one array of random bytes; its seed gives the offset. */
static inline const uint8_t *content_of(uint32_t seed) {
    static uint8_t pool[POOL + CONTENT_MAX];
    static bool made;
    uint64_t c = 1;

    for (size_t i = 0; !made && i < sizeof pool; i++)
        pool[i] = (uint8_t)chance(&c);
    made = true;
    return pool + seed * UINT64_C(0x9E3779B97F4A7C15) % POOL;
}

static inline void fill(uint8_t *into, uint32_t seed, uint32_t bytes) { memcpy(into, content_of(seed), bytes); }

/* Ids only grow, so the array is sorted by id. */
static inline const struct told *told_of(const struct run *r, uint64_t id) {
    size_t low = 0, high = r->told_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (r->told[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->told_count && r->told[low].id == id ? &r->told[low] : NULL;
}

/* Byte for byte, header and content. */
static inline bool content_is_right(const struct run *r, ls_store *store, uint64_t id) {
    static uint8_t into[CONTENT_MAX];
    const struct told *t = told_of(r, id);
    size_t done = 0;

    if (t == NULL)
        return false;
    if (ls_load_header(store, id, into, sizeof into, &done) != LS_OK || done != t->header_bytes ||
        memcmp(into, content_of(t->seed), done) != 0)
        return false;
    return ls_load_content(store, id, 0, into, sizeof into, &done) == LS_OK && done == t->content_bytes &&
           memcmp(into, content_of(t->seed + 1), done) == 0;
}

/* A place that the store does not find has no such times. */
static inline ls_times times_at(ls_store *store, int q, const ls_place *p) {
    ls_times times;

    return ls_place_times(store, (uint32_t)q, p->id, p->position, &times) == LS_OK ? times
                                                                                   : (ls_times){UINT64_MAX, UINT64_MAX};
}

static inline bool times_are(ls_times a, ls_times b) {
    return a.not_before_us == b.not_before_us && a.expires_us == b.expires_us;
}

static inline bool queue_is(ls_store *store, const struct model_state *s, int q, bool locks_too) {
    ls_place places[PLACES_MAX + 1];
    ls_cursor *c;
    size_t n = 0;
    bool same = ls_cursor_open(store, (uint32_t)q, LS_CURSOR_ALL, &c) == LS_OK &&
                ls_cursor_next(c, places, PLACES_MAX + 1, &n) == LS_OK && n == (size_t)s->depth[q];

    for (size_t i = 0; same && i < n; i++)
        same = places[i].id == s->places[q][i].id &&
               (!locks_too || (places[i].locked != 0) == (s->places[q][i].locked_by != 0));
    ls_cursor_close(c);
    for (size_t i = 0; same && i < n; i++)
        same = times_are(times_at(store, q, &places[i]), s->places[q][i].times);
    return same;
}

/* The values that are committed, and the locks of open transactions. */
static inline bool toys_are(ls_store *store, const struct model_state *s) {
    bool same = true;

    for (uint32_t key = 0; same && toy_of(store) != NULL && key < TOY_KEYS; key++) {
        const struct model_tx *t = model_toy_lock((struct model_state *)(uintptr_t)s, key);
        uint64_t value, locked_by;

        same = toy_get(store, key, &value, &locked_by) == LS_OK && value == s->toys[key] &&
               locked_by == (t != NULL ? t->id : 0);
    }
    return same;
}

static inline bool tallies_are_right(const ls_store *store) {
    log_lock(store->log);
    bool right = tallies_are_those_of_a_walk(&store->state.table);
    log_unlock(store->log);
    return right;
}

static inline bool store_is(ls_store *store, const struct model_state *s, unsigned catalog) {
    uint64_t ids[TXS + 1];
    size_t n = 0;
    bool same = ls_in_doubt(store, ids, TXS + 1, &n) == LS_OK;
    size_t prepared = 0;

    for (int i = 0; i < s->tx_count; i++)
        prepared += s->txs[i].prepared;
    same = same && n == prepared;
    for (size_t i = 0; same && i < n; i++)
        same = model_tx((struct model_state *)(uintptr_t)s, ids[i]) != NULL;
    for (int q = 1; same && q <= QUEUES; q++)
        same = (catalog & 1u << q) == 0 || queue_is(store, s, q, true);
    return same && toys_are(store, s) && tallies_are_right(store);
}

/* Only pending work on deleted queues refers to it: then a relocation may already have ended the message. */
static inline bool may_be_gone(ls_store *store, const struct model_state *s, uint64_t id) {
    uint64_t places, locked;
    bool kept = false;

    for (int q = 1; q <= QUEUES; q++)
        kept = kept || model_find((struct model_state *)(uintptr_t)s, q, id) != NULL;
    for (int i = 0; i < s->tx_count; i++) {
        for (int k = 0; k < s->txs[i].work_count; k++)
            kept = kept || (s->txs[i].work[k].id == id &&
                            ls_queue_depth(store, (uint32_t)s->txs[i].work[k].queue, &places, &locked) == LS_OK);
    }
    return !kept;
}

/* Only the messages of the state are live, and every content is right. */
static inline bool contents_are(const struct run *r, ls_store *store, const struct model_state *s) {
    ls_stats stats;
    ls_message_info info;
    size_t live = 0;

    for (size_t i = 0; i < r->told_count; i++) {
        uint64_t id = r->told[i].id;

        if (!model_names(s, id) || (may_be_gone(store, s, id) && ls_message(store, id, &info) == LS_UNKNOWN_MESSAGE))
            continue;
        live++;
        if (!content_is_right(r, store, id))
            return false;
    }
    ls_stats_get(store, &stats);
    return stats.messages == live;
}

static inline ls_xid xid_of(uint32_t unique) {
    ls_xid xid = {.format_id = 7, .gtrid_bytes = 4, .bqual_bytes = 1};

    memcpy(xid.data, &unique, sizeof unique);
    return xid;
}

/* A transaction in doubt still has the xid that it was begun with. */
static inline bool xid_is_right(const struct run *r, ls_tx *handle, uint64_t tx) {
    ls_tx_info info;
    size_t i = 0;

    ls_tx_describe(handle, &info);
    while (i < r->xid_count && r->xids[i].tx != tx)
        i++;
    if (i < r->xid_count) {
        ls_xid told = xid_of(r->xids[i].unique);

        return info.distributed && info.xid.format_id == told.format_id && info.xid.gtrid_bytes == told.gtrid_bytes &&
               info.xid.bqual_bytes == told.bqual_bytes &&
               memcmp(info.xid.data, told.data, told.gtrid_bytes + told.bqual_bytes) == 0;
    }
    return false;
}

/* ---- opening ---- */

static inline int open_store_with(const struct run *r, vfs *v, const ls_options *options, unsigned catalog,
                                  int next_queue, ls_store **store) {
    uint32_t ids[QUEUES];
    size_t n = 0;
    struct log_client toy;
    int rc;

    if (r->toys)
        toy = toy_client();
    rc = store_open_with(v, r->path, options, &toy, r->toys ? 1 : 0, store);

    for (uint32_t q = 1; q <= QUEUES; q++) {
        if (catalog & 1u << q)
            ids[n++] = q;
    }
    if (rc == LS_OK) {
        rc = ls_serve(*store, ids, n, (uint32_t)next_queue);
        if (rc != LS_OK) {
            ls_error kept = *ls_last_error();
            ls_free(*store);
            *store = NULL;
            if (kept.code != rc)
                abort();
        }
    }
    return rc;
}

static inline int open_store(const struct run *r, vfs *v, unsigned catalog, int next_queue, ls_store **store) {
    return open_store_with(r, v, &r->options, catalog, next_queue, store);
}

/* ---- the verdict over one disk ---- */

struct bounds {
    size_t durable; /* acknowledged */
    size_t begun;   /* started */
    unsigned catalog;
};

/* The number of operations that end at or below the store's durable LSN. */
static inline size_t durable_at(const struct run *r, uint64_t lsn, size_t durable) {
    while (durable < r->op_count && r->ops[durable].end_lsn != 0 && r->ops[durable].end_lsn <= lsn)
        durable++;
    return durable;
}

/* The operations reported as durable, begun and committed within the first k events of the journal. */
static inline struct bounds bounds_at(const struct run *r, size_t k, struct bounds from, size_t from_k) {
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(r->sim, &events);

    for (size_t i = from_k; i < k && i < n; i++) {
        if (events[i].kind != VFS_SIM_MARK)
            continue;
        if (events[i].mark == MARK_STARTED)
            from.begun = (size_t)events[i].value;
        else if (events[i].mark == MARK_ACKNOWLEDGED)
            from.durable = from.durable > events[i].value ? from.durable : (size_t)events[i].value;
        else if (events[i].mark == MARK_DURABLE_LSN)
            from.durable = durable_at(r, events[i].value, from.durable);
        else if (events[i].mark == MARK_CATALOG)
            from.catalog = (unsigned)events[i].value;
    }
    return from;
}

/* The largest id that the first `count` operations gave out. */
static inline uint64_t id_max_of(const struct run *r, size_t count) {
    uint64_t max = 0;

    for (size_t i = 0; i < count; i++) {
        max = r->ops[i].id > max ? r->ops[i].id : max;
        max = r->ops[i].tx > max ? r->ops[i].tx : max;
    }
    return max;
}

static inline bool complain(const char *what) {
    printf("%s: %s\n", what, ls_last_error()->text);
    return false;
}

/* Finds the number of operations after which the model has the store's state; sets *found. */
static inline bool recognise(const struct run *r, ls_store *store, struct bounds b, struct model_state *s,
                             size_t *found) {
    size_t top = b.begun < r->op_count ? b.begun : r->op_count;

    for (size_t i = b.durable; i <= top; i++) {
        model_after(r, i, b.catalog, s);
        if (store_is(store, s, b.catalog)) {
            *found = i;
            return true;
        }
    }
    printf("neither of the states %zu to %zu\n", b.durable, top);
    return false;
}

/* Publishes one message and dequeues one, durably, and updates the model. *id: the new message. */
static inline bool takes_new_work(ls_store *store, unsigned catalog, struct model_state *s, uint64_t *id) {
    uint64_t lsn;
    uint32_t q = 1;

    while (!(catalog & 1u << q))
        q++;
    if (s->depth[q] > 0 && s->places[q][0].locked_by == 0) {
        if (ls_dequeue(store, s->places[q][0].id, q, NULL, 0, 0, 0, &lsn) != LS_OK)
            return complain("no dequeue after recovery");
        model_remove(s, (int)q, s->places[q][0].id);
    }
    if (ls_publish(store, &q, 1, NULL, 0, (const uint8_t *)"after", 5, NULL, LS_WAIT, id) != LS_OK)
        return complain("no publish after recovery");
    model_append(s, (int)q, *id, (ls_times){0, 0});
    return true;
}

/* Opens the disk, finds its state, does more work, cuts the power again, and finds the state after that. */
static inline bool disk_is_right(struct run *r, vfs_sim *disk, struct bounds b, uint64_t seed) {
    static struct model_state s;
    vfs_sim_loss loss = {
        .mode = seed % 2 ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_LOST, .seed = seed};
    ls_store *store = NULL;
    size_t found;
    uint64_t id = 0;
    bool right = open_store(r, vfs_sim_table(disk), b.catalog, QUEUES + 1, &store) == LS_OK;
    vfs_sim *again;

    if (!right)
        return complain("a crash reads as a refusal to open");
    right = recognise(r, store, b, &s, &found) &&
            (contents_are(r, store, &s) || complain("a content is wrong, or a message too many or too few")) &&
            takes_new_work(store, b.catalog, &s, &id) &&
            (id > id_max_of(r, b.begun < r->op_count ? b.begun : r->op_count) || complain("an id was given out twice"));
    again = vfs_sim_crash(disk, &loss);
    ls_free(store);
    store = NULL;
    if (right && open_store(r, vfs_sim_table(again), b.catalog, QUEUES + 1, &store) != LS_OK)
        right = complain("the second crash reads as a refusal to open");
    if (right && !store_is(store, &s, b.catalog))
        right = complain("the second crash lost something");
    ls_free(store);
    vfs_sim_free(again);
    return right;
}

#endif
