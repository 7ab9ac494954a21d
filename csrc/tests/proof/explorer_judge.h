/*
 * The oracle of the crash explorer: it opens one disk and returns the promise that was broken, if any.
 *
 * It knows only the answers that the workload got (store_model.h) and reads the store through its public functions; it
 * uses none of recovery's code. A recovered store must have the state after some prefix of the operations: at least the
 * acknowledged ones, at most the started ones. States are compared by hashes, because there are so many disks; the hashes
 * are of ids, which are never reused.
 *
 * Each check has a name and can be switched off, to show that each one alone finds some fault.
 */
#ifndef LOGSTORE_EXPLORER_JUDGE_H
#define LOGSTORE_EXPLORER_JUDGE_H

#include "log/parts.h"
#include "tests/kit/store_workload.h"
#include "store/store.h"

enum check {
    NOTHING_BROKEN,
    OPENS,        /* a store opens after every crash: never corruption or another refusal */
    ACKNOWLEDGED, /* no acknowledged enqueue is lost, no acknowledged dequeue is undone */
    WHOLE,        /* an operation without acknowledgement survives as a whole or not at all; nothing else is there */
    ORDER,        /* the places of a queue are in order */
    IN_DOUBT,     /* exactly the prepared transactions are in doubt and hold locks */
    CONTENT,      /* header and content, byte for byte */
    ALONE,        /* no other message is live */
    PREPARED,     /* a prepared transaction has exactly its operations */
    IDS,          /* no id is given out twice */
    EPOCH,        /* every open has an epoch above all earlier ones */
    AGAIN,        /* a second recovery changes nothing */
    GOES_ON,      /* the store accepts new work, which survives the next crash */
    HANDLES,      /* a closed store has no open handle */
    CHECKPOINT,   /* a crash leaves a usable checkpoint or none, and the state with it is the same as without it */
    BESIDE,       /* a reader of a store in use gets the written batches, and all of them if it has a hold */
    SURVIVES,     /* the process does not die or hang */
    DAMAGE,       /* a failed call is never reported as damage */
    POISONED,     /* a poisoned store takes no more work */
    MEMORY,       /* lack of memory does not poison the store */
    SITES,        /* each site of a call or an allocation met a failure */
    CHECKS,
};

static const char *const check_names[CHECKS] = {
    "",           "opens",    "acknowledged", "whole",  "order",    "in_doubt",       "content",
    "alone",      "prepared", "ids",          "epoch",  "again",    "takes_new_work", "handles",
    "checkpoint", "beside",   "survives",     "damage", "poisoned", "memory",         "sites",
};

/* Switches off the checks in a comma-separated list; false: there is no such check. */
static unsigned switched_off; /* 1 << check */

/* Switches off the checks in a comma-separated list; false: one name is unknown. */
static inline bool switch_off(char *list) {
    for (char *name = strtok(list, ","); name != NULL; name = strtok(NULL, ",")) {
        int c = 1;

        while (c < CHECKS && strcmp(check_names[c], name) != 0)
            c++;
        if (c == CHECKS)
            return false;
        switched_off |= 1u << c;
    }
    return true;
}

static inline bool is_off(enum check c) { return (switched_off & 1u << c) != 0; }

/* A state as its hashes, as far as callers can observe it. */
struct look {
    uint64_t order;
    uint64_t places; /* independent of their order */
    uint64_t locks;  /* and of the transactions in doubt */
    uint32_t alive;
    uint32_t in_doubt;
};

struct judge {
    struct run *run;
    bool known; /* the looks were computed for `catalog` */
    unsigned catalog;
    struct look looks[OPS_MAX + 1];
    uint64_t id_max[OPS_MAX + 1]; /* given out by the first operations, including earlier runs */
    uint32_t content_seen[OPS_MAX];
    uint32_t serial;
    uint64_t checkpoints_used; /* used by the opens that were judged */
    char why[512];
};

static inline uint64_t stir(uint64_t x) {
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* ---- hashes of states ---- */

static inline void look_place(struct look *l, int queue, uint64_t id, bool locked, ls_times times) {
    uint64_t h = stir(id * 16 + (uint64_t)queue);

    if (times.not_before_us != 0 || times.expires_us != 0)
        h = stir(h ^ stir(times.not_before_us) ^ times.expires_us);

    l->order = stir(l->order ^ h);
    l->places += h;
    l->locks += locked ? stir(h) : 0;
}

static inline void look_tx(struct look *l, uint64_t id) {
    l->locks += stir(id ^ UINT64_C(0x5bd1e995));
    l->in_doubt++;
}

static inline void look_toy(struct look *l, uint32_t key, uint64_t value, uint64_t locked_by) {
    l->places += value != 0 ? stir(value ^ stir(key)) : 0;
    l->locks += locked_by != 0 ? stir(locked_by * 16 + key) : 0;
}

static inline int by_value(const void *a, const void *b) {
    uint64_t x, y;

    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static inline uint32_t distinct(uint64_t *ids, size_t count) {
    uint32_t n = 0;

    qsort(ids, count, sizeof *ids, by_value);
    for (size_t i = 0; i < count; i++)
        n += i == 0 || ids[i] != ids[i - 1];
    return n;
}

/* A message that is referred to only by work on deleted queues has ended with the open. */
static inline void look_alive(struct look *l, const struct model_state *s, unsigned catalog) {
    static uint64_t ids[QUEUES * PLACES_MAX + TXS * WORK_MAX];
    size_t n = 0;

    for (int q = 1; q <= QUEUES; q++) {
        for (int i = 0; i < s->depth[q]; i++)
            ids[n++] = s->places[q][i].id;
    }
    for (int t = 0; t < s->tx_count; t++) {
        for (int k = 0; k < s->txs[t].work_count; k++) {
            if ((catalog & 1u << s->txs[t].work[k].queue) != 0)
                ids[n++] = s->txs[t].work[k].id;
        }
    }
    l->alive = distinct(ids, n);
}

static inline struct look look_of_state(const struct model_state *s, unsigned catalog) {
    struct look l = {.order = 1};

    for (int q = 1; q <= QUEUES; q++) {
        for (int i = 0; (catalog & 1u << q) != 0 && i < s->depth[q]; i++)
            look_place(&l, q, s->places[q][i].id, s->places[q][i].locked_by != 0, s->places[q][i].times);
    }
    for (int t = 0; t < s->tx_count; t++)
        look_tx(&l, s->txs[t].id);
    for (uint32_t key = 0; key < TOY_KEYS; key++) {
        const struct model_tx *t = model_toy_lock((struct model_state *)(uintptr_t)s, key);

        look_toy(&l, key, s->toys[key], t != NULL ? t->id : 0);
    }
    look_alive(&l, s, catalog);
    return l;
}

/* Computes the hashes of all states that a crash may leave, with one catalog. */
static inline void judge_prepare(struct judge *j, unsigned catalog) {
    static struct model_state s, after;

    if (j->known && j->catalog == catalog)
        return;
    memset(s.depth, 0, sizeof s.depth);
    memset(s.toys, 0, sizeof s.toys);
    s.tx_count = 0;
    j->id_max[0] = j->run->id_floor;
    for (size_t i = 0; i <= j->run->op_count; i++) {
        model_copy(&after, &s);
        model_recover(&after, catalog);
        j->looks[i] = look_of_state(&after, catalog);
        if (i < j->run->op_count) {
            const struct op *op = &j->run->ops[i];
            uint64_t max = op->id > op->tx ? op->id : op->tx;

            j->id_max[i + 1] = max > j->id_max[i] ? max : j->id_max[i];
            model_do(&s, op, catalog);
        }
    }
    j->known = true;
    j->catalog = catalog;
}

/* ---- hashes of a store ---- */

static inline enum check broken(struct judge *j, enum check c, const char *what) {
    if (is_off(c))
        return NOTHING_BROKEN;
    (void)snprintf(j->why, sizeof j->why, "%s (%s)", what, ls_last_error()->text);
    return c;
}

static inline bool content_is_checked(struct judge *j, ls_store *store, uint64_t id) {
    const struct told *t = told_of(j->run, id);

    if (t == NULL)
        return false;
    if (j->content_seen[t - j->run->told] == j->serial)
        return true;
    j->content_seen[t - j->run->told] = j->serial;
    return content_is_right(j->run, store, id);
}

/* *content: whether every content of a place is right. */
static inline bool look_at_store(struct judge *j, ls_store *store, unsigned catalog, struct look *l, bool *content) {
    static ls_place places[PLACES_MAX + 1];
    uint64_t ids[TXS + 1];
    ls_stats stats;
    size_t n = 0;

    *l = (struct look){.order = 1};
    j->serial++;
    for (int q = 1; q <= QUEUES; q++) {
        ls_cursor *c = NULL;

        if ((catalog & 1u << q) == 0)
            continue;
        if (ls_cursor_open(store, (uint32_t)q, LS_CURSOR_ALL, &c) != LS_OK ||
            ls_cursor_next(c, places, PLACES_MAX + 1, &n) != LS_OK || n > PLACES_MAX) {
            ls_cursor_close(c);
            return false;
        }
        ls_cursor_close(c);
        for (size_t i = 0; i < n; i++) {
            look_place(l, q, places[i].id, places[i].locked != 0, times_at(store, q, &places[i]));
            if (content != NULL)
                *content = *content && content_is_checked(j, store, places[i].id);
        }
    }
    if (ls_in_doubt(store, ids, TXS + 1, &n) != LS_OK || n > TXS)
        return false;
    for (size_t i = 0; i < n; i++)
        look_tx(l, ids[i]);
    for (uint32_t key = 0; toy_of(store) != NULL && key < TOY_KEYS; key++) {
        uint64_t value, locked_by;

        if (toy_get(store, key, &value, &locked_by) != LS_OK)
            return false;
        look_toy(l, key, value, locked_by);
    }
    ls_stats_get(store, &stats);
    l->alive = (uint32_t)stats.messages;
    return true;
}

enum { SAME_PLACES = 1, SAME_ORDER = 2, SAME_LOCKS = 4, SAME = 7 };

static inline unsigned compare(const struct look *a, const struct look *b) {
    return (a->places == b->places ? SAME_PLACES : 0u) | (a->order == b->order ? SAME_ORDER : 0u) |
           (a->locks == b->locks && a->in_doubt == b->in_doubt ? SAME_LOCKS : 0u);
}

static inline size_t find_state(const struct judge *j, const struct look *l, size_t from, size_t to, unsigned how) {
    for (size_t i = from; i <= to; i++) {
        if ((compare(&j->looks[i], l) & how) == how)
            return i;
    }
    return SIZE_MAX;
}

/* Finds the state, or the promise that is broken if it is none. */
static inline enum check recognise_look(struct judge *j, const struct look *l, struct bounds b, size_t *found) {
    size_t top = b.begun < j->run->op_count ? b.begun : j->run->op_count;
    enum check c = NOTHING_BROKEN;

    *found = find_state(j, l, b.durable, top, SAME);
    if (*found != SIZE_MAX)
        return NOTHING_BROKEN;
    *found = find_state(j, l, 0, b.durable, SAME);
    if (*found != SIZE_MAX) {
        c = broken(j, ACKNOWLEDGED, "the state lacks acknowledged operations");
    } else if ((*found = find_state(j, l, b.durable, top, SAME_PLACES | SAME_LOCKS)) != SIZE_MAX) {
        c = broken(j, ORDER, "the places are right, but not their order");
    } else if ((*found = find_state(j, l, b.durable, top, SAME_PLACES)) != SIZE_MAX) {
        c = broken(j, IN_DOUBT, "the places are right, but not the locks or the transactions in doubt");
    } else {
        c = broken(j, WHOLE, "no prefix of the operations gives this state");
    }
    return c;
}

/* ---- the verdict ---- */

/* Judges the first open. *found is the state, or SIZE_MAX if it is unknown because a check is off. */
static inline enum check judge_first(struct judge *j, ls_store *store, struct bounds b, size_t *found) {
    static struct model_state s;
    struct look l;
    bool content = true;
    enum check c;

    judge_prepare(j, b.catalog);
    if (!look_at_store(j, store, b.catalog, &l, &content)) {
        *found = SIZE_MAX;
        return broken(j, WHOLE, "an existing queue, or the transactions in doubt, cannot be listed");
    }
    c = recognise_look(j, &l, b, found);
    if (c != NOTHING_BROKEN || *found == SIZE_MAX)
        return c;
    if (l.alive != j->looks[*found].alive)
        c = broken(j, ALONE, "the number of live messages is wrong");
    if (c == NOTHING_BROKEN && l.in_doubt > 0) {
        model_after(j->run, *found, b.catalog, &s);
        for (int t = 0; t < s.tx_count; t++) {
            for (int k = 0; k < s.txs[t].work_count; k++) {
                if (!may_be_gone(store, &s, s.txs[t].work[k].id))
                    content = content && content_is_checked(j, store, s.txs[t].work[k].id);
            }
        }
    }
    return c == NOTHING_BROKEN && !content ? broken(j, CONTENT, "a header or a content is wrong") : c;
}

/* Gives every prepared transaction an outcome. It must have its xid, and the places must then be those that its operations
   give. */
static inline bool settles(const struct run *r, ls_store *store, struct model_state *s, unsigned catalog,
                           uint64_t seed) {
    for (; s->tx_count > 0; seed /= 2) {
        struct model_tx *t = &s->txs[0];
        ls_tx *handle;
        int rc = ls_in_doubt_take(store, t->id, &handle);

        if (rc != LS_OK)
            return false;
        rc = !xid_is_right(r, handle, t->id) ? LS_UNKNOWN_XID
             : seed % 2                      ? ls_commit(handle, LS_WAIT)
                                             : ls_rollback(handle, LS_WAIT);
        ls_tx_free(handle);
        if (rc != LS_OK)
            return false;
        model_end_tx(s, t, seed % 2 != 0, catalog);
    }
    return store_is(store, s, catalog);
}

static inline enum check work_on(struct judge *j, ls_store *store, struct bounds b, size_t found, struct model_state *s,
                                 uint64_t seed) {
    size_t top = b.begun < j->run->op_count ? b.begun : j->run->op_count;
    enum check c = NOTHING_BROKEN;

    model_after(j->run, found, b.catalog, s);
    if (s->tx_count > 0 && !settles(j->run, store, s, b.catalog, seed))
        c = broken(j, PREPARED, "a prepared transaction had other operations or another xid");
    if (c == NOTHING_BROKEN) {
        uint64_t id = 0;

        if (!takes_new_work(store, b.catalog, s, &id))
            c = broken(j, GOES_ON, "no new work after recovery");
        else if (id <= j->id_max[top])
            c = broken(j, IDS, "an id was given out twice");
    }
    return c;
}

static inline uint64_t epoch_of(const ls_store *store) {
    ls_recovery report;

    ls_recovery_report(store, &report);
    return report.epoch;
}

/* Cuts the power again: after new work, which must survive, or at once. */
static inline enum check judge_second(struct judge *j, vfs_sim *disk, ls_store *store, struct bounds b, size_t found,
                                      uint64_t seed) {
    static struct model_state s;
    vfs_sim_loss loss = {
        .mode = seed % 4 == 0 ? VFS_SIM_ALL_LOST : VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_LOST, .seed = seed};
    bool works = seed / 4 % 2 != 0;
    enum check c = works ? work_on(j, store, b, found, &s, seed / 8) : NOTHING_BROKEN;
    ls_store *second = NULL;
    vfs_sim *again;

    if (c != NOTHING_BROKEN)
        return c;
    again = vfs_sim_crash(disk, &loss);
    if (open_store(j->run, vfs_sim_table(again), b.catalog, QUEUES + 1, &second) != LS_OK) {
        c = broken(j, OPENS, "the second crash reads as a refusal to open");
    } else if (epoch_of(second) <= epoch_of(store) && !is_off(EPOCH)) {
        c = broken(j, EPOCH, "the second open is not of a later epoch than the first");
    } else if (works) {
        if (!store_is(second, &s, b.catalog))
            c = broken(j, GOES_ON, "the second crash lost new work");
    } else {
        struct look l;

        if (!look_at_store(j, second, b.catalog, &l, NULL) || compare(&l, &j->looks[found]) != SAME)
            c = broken(j, AGAIN, "the second recovery gave another state than the first");
    }
    ls_free(second);
    vfs_sim_free(again);
    return c;
}

/* A last segment with only relocated copies that nothing relies on is not part of the log; nor is a batch in it that a
   checkpoint names. */
static inline bool names_what_was_left_out(ls_store *store, const ls_recovery *report) {
    if (report->checkpoint_state == LS_CHECKPOINT_BEYOND)
        return store->scan.seen_lsn >= report->checkpoint_lsn;
    return report->checkpoint_state == LS_CHECKPOINT_NOT_IN_LOG &&
           log_segment(store->log, report->checkpoint_lsn - 1) == NULL;
}

/* A crash leaves a usable checkpoint or none, and it changes no answer: `twin` is the same disk, opened without it. */
static inline enum check judge_checkpoint(struct judge *j, ls_store *store, vfs_sim *twin, struct bounds b) {
    ls_options without = j->run->options;
    ls_store *other = NULL;
    ls_recovery report;
    struct look with, bare;
    ls_stats stats, stats_without;
    enum check c = NOTHING_BROKEN;

    ls_recovery_report(store, &report);
    j->checkpoints_used += report.checkpoint_used != 0;
    if (report.checkpoint_state != LS_CHECKPOINT_NONE && report.checkpoint_state != LS_CHECKPOINT_USED &&
        report.checkpoint_state != LS_CHECKPOINT_BELOW && !names_what_was_left_out(store, &report))
        return broken(j, CHECKPOINT, ls_checkpoint_state_text(report.checkpoint_state));
    if (!report.checkpoint_used || twin == NULL)
        return NOTHING_BROKEN;
    without.no_checkpoint = 1;
    if (open_store_with(j->run, vfs_sim_table(twin), &without, b.catalog, QUEUES + 1, &other) != LS_OK)
        return broken(j, CHECKPOINT, "without the checkpoint it does not open");
    if (!look_at_store(j, store, b.catalog, &with, NULL) || !look_at_store(j, other, b.catalog, &bare, NULL) ||
        compare(&with, &bare) != SAME || with.alive != bare.alive)
        c = broken(j, CHECKPOINT, "the state differs without the checkpoint");
    ls_stats_get(store, &stats);
    ls_stats_get(other, &stats_without);
    if (c == NOTHING_BROKEN && (stats.live_bytes != stats_without.live_bytes || stats.places != stats_without.places ||
                                stats.transactions != stats_without.transactions))
        c = broken(j, CHECKPOINT, "the live bytes differ without the checkpoint");
    ls_free(other);
    return c;
}

/* Opens the disk and judges it. deep: with a second crash. *found is its state, or SIZE_MAX if unknown. */
static inline enum check judge_disk(struct judge *j, vfs_sim *disk, struct bounds b, bool deep, uint64_t seed,
                                    size_t *found) {
    vfs_sim *twin = j->run->checkpoints && seed % 4 == 0 ? vfs_sim_clone(disk) : NULL;
    ls_store *store = NULL;
    enum check c;

    *found = SIZE_MAX;
    j->why[0] = '\0';
    if (open_store(j->run, vfs_sim_table(disk), b.catalog, QUEUES + 1, &store) != LS_OK) {
        vfs_sim_free(twin);
        return broken(j, OPENS, "a crash reads as a refusal to open");
    }
    c = judge_first(j, store, b, found);
    c = c == NOTHING_BROKEN ? judge_checkpoint(j, store, twin, b) : c;
    vfs_sim_free(twin);
    if (c == NOTHING_BROKEN && deep && *found != SIZE_MAX)
        c = judge_second(j, disk, store, b, *found, seed);
    ls_free(store);
    if (c == NOTHING_BROKEN && vfs_sim_handles(disk) != 0)
        c = broken(j, HANDLES, "a handle was left open");
    return c;
}

#endif
