/*
 * Generated workloads: any operation and size, durable or not, in transactions or not, and now and then a close and an
 * open. The store's answers go into the run's sequence and its model.
 */
#ifndef LOGSTORE_STORE_WORKLOAD_H
#define LOGSTORE_STORE_WORKLOAD_H

#include "tests/kit/move_base.h"
#include "tests/kit/timed_work.h"

/* ---- a run ---- */

static inline void mark(const struct run *r, int kind, uint64_t value) {
    if (r->sim != NULL && vfs_sim_mark(r->sim, kind, value) != 0)
        abort();
}

/* Notes progress of durability within an operation: the store's durable LSN at each of its writes. */
static struct run *watching;

static inline void note_durable(void) {
    if (watching->store != NULL)
        mark(watching, MARK_DURABLE_LSN, ls_durable_lsn(watching->store));
}

/*
 * The core never syncs its hint, so a cut may lose any hint ever written, and most crashed disks would differ only in
 * that. So in most runs the hint is made durable soon after it is written, which a real disk may do as well.
 */
static inline int64_t watched_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    vfs *real = vfs_sim_table(watching->sim);
    int64_t done;

    (void)v;
    note_durable();
    done = real->pwrite(real, file, from, bytes, at);
    if (watching->hint_settles && file == watching->hint_file)
        (void)real->sync_data(real, file);
    return done;
}

static inline void work_during_checkpoint(struct run *r);

/* A checkpoint creates its file after fixing its LSN and before it copies the first message: other work runs here. */
static inline int watched_open(vfs *v, int dir, const char *name, unsigned flags) {
    vfs *real = vfs_sim_table(watching->sim);
    int file;

    (void)v;
    if (watching->meanwhile > 0 && strcmp(name, "CHECKPOINT.new") == 0)
        work_during_checkpoint(watching);
    file = real->open(real, dir, name, flags);
    if (file >= 0 && (flags & VFS_WRITE) != 0 && strcmp(name, "HINT") == 0)
        watching->hint_file = file;
    return file;
}

static inline int watched_close(vfs *v, int handle) {
    vfs *real = vfs_sim_table(watching->sim);

    (void)v;
    if (handle == watching->hint_file)
        watching->hint_file = -1;
    return real->close(real, handle);
}

static inline int watched_sync_data(vfs *v, int file) {
    vfs *real = vfs_sim_table(watching->sim);

    (void)v;
    note_durable();
    return real->sync_data(real, file);
}

/* Makes the run use this simulator from now on. */
static inline void run_watch(struct run *r) {
    watching = r;
    r->watched = *vfs_sim_table(r->sim);
    r->watched.pwrite = watched_pwrite;
    r->watched.sync_data = watched_sync_data;
    r->watched.open = watched_open;
    r->watched.close = watched_close;
    r->hint_file = -1;
    r->v = &r->watched;
    if (r->watch_more != NULL)
        r->watch_more(r);
}

static inline void run_start(struct run *r, vfs_sim *sim, uint64_t seed) {
    r->sim = sim;
    r->v = r->v != NULL ? r->v : vfs_sim_table(sim);
    r->path = r->path != NULL ? r->path : "/s";
    if (r->options.max_write_buffers == 0) {
        ls_options_default(&r->options);
        r->options.segment_size = SEGMENT;
        r->options.max_write_buffers = 4;
        r->options.background = 0;
    }
    r->chance = seed;
    r->catalog = (2u << FIRST_QUEUES) - 2;
    r->next_queue = FIRST_QUEUES + 1;
    mark(r, MARK_CATALOG, r->catalog);
    r->lost = open_store(r, r->v, r->catalog, QUEUES + 1, &r->store) != LS_OK;
}

/* ---- one operation ---- */

/* Records an answer: appends the operation if it may have happened; after a wait, all operations so far are durable. */
static inline void answered(struct run *r, int rc, bool waited, struct op op) {
    if (rc == LS_OUTCOME_UNKNOWN || rc == LS_POISONED)
        r->lost = true;
    if (rc != LS_OK && rc != LS_OUTCOME_UNKNOWN) {
        if (r->gentle && rc != LS_POISONED) {
            printf("refused: %d %s\n", rc, ls_last_error()->text);
            abort();
        }
        return;
    }
    op.end_lsn = rc == LS_OK && r->store != NULL ? ls_next_lsn(r->store) : 0;
    r->ops[r->op_count++] = op;
    model_do(&r->now, &op, r->catalog);
    if (rc == LS_OK && waited) {
        r->durable = r->op_count;
        mark(r, MARK_ACKNOWLEDGED, r->durable);
    }
}

static inline uint64_t below(struct run *r, uint64_t n) { return chance(&r->chance) % n; }

static inline int any_queue(struct run *r) {
    int q;

    do
        q = 1 + (int)below(r, QUEUES);
    while (!(r->catalog & 1u << q));
    return q;
}

static inline uint32_t any_size(struct run *r) {
    static const uint32_t limits[] = {1, 200, 200, 200, 200, 3000, 3000, 3900, 4100, 20000};

    return (uint32_t)below(r, limits[below(r, 10)]);
}

static inline size_t list_queues(unsigned bits, uint32_t *ids) {
    size_t n = 0;

    for (uint32_t q = 1; q <= QUEUES; q++) {
        if (bits & 1u << q)
            ids[n++] = q;
    }
    return n;
}

static inline void publish(struct run *r, int kind, unsigned queues, int slot, bool wait, uint32_t size) {
    static uint8_t header[64], content[CONTENT_MAX];
    struct told t = {
        .seed = (uint32_t)chance(&r->chance) & 0xffffff, .header_bytes = (uint32_t)below(r, 40), .content_bytes = size};
    struct op op = {.kind = kind, .queues = kind == PUBLISH ? queues : 0};
    ls_tx *tx = slot >= 0 ? r->handles[slot] : NULL;
    uint32_t ids[QUEUES];
    size_t n = list_queues(queues, ids);
    int rc;

    op.tx = kind == PUBLISH && tx != NULL ? r->tx_ids[slot] : 0;
    fill(header, t.seed, t.header_bytes);
    fill(content, t.seed + 1, t.content_bytes);
    if (kind == PUBLISH && r->timed)
        op.times = times_drawn(r);
    if (kind == PUBLISH && r->timed)
        rc = ls_publish_timed(r->store, ids, n, header, t.header_bytes, content, size, &op.times, tx,
                              wait ? LS_WAIT : 0, &t.id);
    else if (kind == PUBLISH)
        rc = ls_publish(r->store, ids, n, header, t.header_bytes, content, size, tx, wait ? LS_WAIT : 0, &t.id);
    else
        rc = ls_stage(r->store, header, t.header_bytes, content, size, wait ? LS_WAIT : 0, &t.id);
    op.id = t.id;
    if (rc == LS_OK || rc == LS_OUTCOME_UNKNOWN) {
        r->told[r->told_count++] = t;
        if (kind == STAGE)
            r->staged[r->staged_count++] = t.id;
    }
    answered(r, rc, wait && tx == NULL, op);
}

/* Chooses a random unlocked place, optionally for an operation of an open transaction. False: there is none. */
static inline bool any_place(struct run *r, int *queue, uint64_t *id) {
    for (int tries = 0; tries < 20; tries++) {
        int q = any_queue(r);
        int depth = r->now.depth[q];
        const struct model_place *p;

        if (depth == 0)
            continue;
        p = &r->now.places[q][below(r, 2) ? 0 : below(r, (uint64_t)depth)];
        if (p->locked_by == 0) {
            *queue = q;
            *id = p->id;
            return true;
        }
    }
    return false;
}

static inline void change_place(struct run *r, int kind, uint64_t id, int queue, int slot, bool wait) {
    struct op op = {.kind = kind, .queues = 1u << queue, .id = id, .tx = slot >= 0 ? r->tx_ids[slot] : 0};
    ls_tx *tx = slot >= 0 ? r->handles[slot] : NULL;
    uint32_t q = (uint32_t)queue;
    uint64_t lsn;
    int rc;

    if (kind == ENQUEUE && r->timed)
        op.times = times_drawn(r);
    rc = kind == DEQUEUE ? ls_dequeue(r->store, id, q, tx, 1, 0, wait ? LS_WAIT : 0, &lsn)
                         : ls_enqueue_timed(r->store, id, &q, 1, &op.times, tx, wait ? LS_WAIT : 0, &lsn);
    answered(r, rc, wait && tx == NULL, op);
}

static inline void dequeue_some(struct run *r, int slot, bool wait) {
    struct model_tx *t = slot >= 0 ? model_tx(&r->now, r->tx_ids[slot]) : NULL;
    int queue;
    uint64_t id;

    if (t != NULL && t->work_count > 0 && below(r, 2)) { /* the transaction's own operations, the newest first */
        struct model_work w = t->work[t->work_count - 1];

        if (r->catalog & 1u << w.queue) {
            change_place(r, w.enqueue ? DEQUEUE : ENQUEUE, w.id, w.queue, slot, wait);
            return;
        }
    }
    if (any_place(r, &queue, &id))
        change_place(r, DEQUEUE, id, queue, slot, wait);
}

/* The message has no place on the queue, and no transaction has work for one. */
static inline bool may_be_put_on(struct run *r, int to, uint64_t id) {
    bool may = model_find(&r->now, to, id) == NULL;

    for (int i = 0; i < r->now.tx_count; i++) {
        for (int k = 0; k < r->now.txs[i].work_count; k++)
            may = may && (r->now.txs[i].work[k].id != id || r->now.txs[i].work[k].queue != to);
    }
    return may;
}

/* Enqueues an enqueued message on one more queue. */
static inline void enqueue_more(struct run *r, int slot, bool wait) {
    int from, to = any_queue(r);
    uint64_t id;

    if (any_place(r, &from, &id) && may_be_put_on(r, to, id))
        change_place(r, ENQUEUE, id, to, slot, wait);
}

static inline void use_staged(struct run *r, int slot, bool wait) {
    uint64_t id, lsn;

    if (r->staged_count == 0)
        return;
    id = r->staged[--r->staged_count];
    if (below(r, 3) == 0) {
        answered(r, ls_destroy(r->store, id, wait ? LS_WAIT : 0), wait, (struct op){.kind = DESTROY, .id = id});
    } else if (slot < 0) {
        uint32_t ids[QUEUES];
        struct op op = {.kind = ENQUEUE, .queues = 1u << any_queue(r) | 1u << any_queue(r), .id = id};

        answered(r, ls_enqueue(r->store, id, ids, list_queues(op.queues, ids), NULL, wait ? LS_WAIT : 0, &lsn), wait,
                 op);
    } else {
        change_place(r, ENQUEUE, id, any_queue(r), slot, wait);
    }
}

/* ---- times ---- */

/* Where the message of a place may be moved: its own queue, too. 0: it is taken off. */
static inline int where_to_move(struct run *r, int queue, uint64_t id) {
    int to = any_queue(r);

    return below(r, 3) == 0 ? 0 : to == queue || may_be_put_on(r, to, id) ? to : 0;
}

static inline void use_times(struct run *r, int slot, bool wait) {
    struct op op = {.kind = NOTHING};
    int queue = any_queue(r), rc = LS_OK;
    uint64_t id;

    if (below(r, 3) != 0)
        op = run_ends_place(r, queue, slot >= 0 ? r->handles[slot] : NULL, slot >= 0 ? r->tx_ids[slot] : 0, wait,
                            where_to_move, &rc);
    else if (any_place(r, &queue, &id))
        op = run_delays_place(r, queue, id, wait, &rc);
    if (op.kind != NOTHING)
        answered(r, rc, wait && op.tx == 0, op);
}

/* ---- the second client ---- */

static inline void set_toy(struct run *r, int slot, bool wait) {
    struct op op = {.kind = SET_TOY,
                    .key = (uint32_t)below(r, TOY_KEYS),
                    .value = chance(&r->chance) | 1,
                    .tx = slot >= 0 ? r->tx_ids[slot] : 0};
    ls_tx *tx = slot >= 0 ? r->handles[slot] : NULL;
    const struct model_tx *lock = model_toy_lock(&r->now, op.key);
    int rc = toy_set(r->store, op.key, op.value, tx, wait ? LS_WAIT : 0);

    if (lock != NULL && lock->id != op.tx && rc == LS_OK)
        abort(); /* another transaction has its lock */
    answered(r, rc, wait && tx == NULL, op);
}

/* ---- transactions ---- */

static inline void begin(struct run *r, int slot) {
    uint64_t unique = chance(&r->chance);
    ls_xid xid = xid_of((uint32_t)unique);
    ls_tx_info info = {0};
    int rc;

    r->distributed[slot] = below(r, 2) != 0;
    r->ended[slot] = false;
    rc = ls_begin(r->store, r->distributed[slot] ? &xid : NULL, &r->handles[slot]);
    if (rc == LS_OK) {
        ls_tx_describe(r->handles[slot], &info);
        r->tx_ids[slot] = info.id;
        if (r->distributed[slot] && r->xid_count < OPS_MAX)
            r->xids[r->xid_count++] = (struct told_xid){info.id, (uint32_t)unique};
    }
    answered(r, rc, false, (struct op){.kind = BEGIN, .tx = info.id});
}

static inline void forget_handle(struct run *r, int slot) {
    ls_tx_free(r->handles[slot]);
    r->handles[slot] = NULL;
}

static inline void step_tx(struct run *r, int slot, bool wait) {
    struct model_tx *t = model_tx(&r->now, r->tx_ids[slot]);
    struct op op = {.kind = below(r, 4) == 0 ? ROLLBACK : COMMIT, .tx = r->tx_ids[slot]};
    int rc;

    if (r->distributed[slot] && !r->ended[slot]) {
        op.kind = END;
        rc = ls_tx_end(r->handles[slot]);
        r->ended[slot] = rc == LS_OK;
        op.tx = 0;
        answered(r, rc, false, op);
        return;
    }
    if (r->distributed[slot] && !t->prepared && below(r, 2)) {
        op.kind = PREPARE;
        answered(r, ls_prepare(r->handles[slot], wait ? LS_WAIT : 0), wait, op);
        return;
    }
    rc = op.kind == COMMIT ? ls_commit(r->handles[slot], wait ? LS_WAIT : 0)
                           : ls_rollback(r->handles[slot], wait ? LS_WAIT : 0);
    answered(r, rc, wait, op);
    if (rc == LS_OK || rc == LS_OUTCOME_UNKNOWN)
        forget_handle(r, slot);
}

/* ---- queues, closing and opening ---- */

/* The catalog commits first. */
static inline void delete_queue(struct run *r, int queue, bool wait) {
    r->catalog &= ~(1u << queue);
    mark(r, MARK_CATALOG, r->catalog);
    answered(r, ls_queue_delete(r->store, (uint32_t)queue, wait ? LS_WAIT : 0), wait,
             (struct op){.kind = DELETE_QUEUE, .queues = 1u << queue});
}

static inline void add_queue(struct run *r) {
    if (r->next_queue <= QUEUES) {
        r->catalog |= 1u << r->next_queue;
        mark(r, MARK_CATALOG, r->catalog);
        if (ls_queue_add(r->store, (uint32_t)r->next_queue++) != LS_OK)
            r->lost = true;
    }
}

static inline void reopen(struct run *r) {
    int rc;

    for (int i = 0; i < TXS; i++)
        forget_handle(r, i);
    r->staged_count = 0;
    rc = ls_close(r->store);
    ls_free(r->store);
    r->store = NULL;
    answered(r, rc == LS_OK ? LS_OK : LS_OUTCOME_UNKNOWN, true, (struct op){.kind = REOPEN});
    r->lost = r->lost || open_store(r, r->v, r->catalog, QUEUES + 1, &r->store) != LS_OK;
    for (int i = 0; !r->lost && i < r->now.tx_count; i++) {
        r->tx_ids[i] = r->now.txs[i].id;
        r->distributed[i] = r->ended[i] = true;
        if (ls_in_doubt_take(r->store, r->tx_ids[i], &r->handles[i]) != LS_OK)
            r->lost = true;
    }
}

/* Its failure is allowed. It is not an operation of the sequence, because it changes no state. */
static inline void take_checkpoint(struct run *r) {
    int rc;

    r->meanwhile = r->sim != NULL && r->v == &r->watched && !r->short_of_room ? (int)below(r, 6) : 0;
    rc = ls_checkpoint(r->store, NULL);
    r->meanwhile = 0;
    if (rc == LS_POISONED || rc == LS_OUTCOME_UNKNOWN)
        r->lost = true;
}

/* Whether the transaction in the slot is open and not too long. */
static inline bool can_take_work(const struct run *r, int slot) {
    return slot >= 0 && r->handles[slot] != NULL && !r->ended[slot] &&
           model_tx((struct model_state *)(uintptr_t)&r->now, r->tx_ids[slot])->work_count <= 30;
}

static inline void one_operation(struct run *r) {
    int slot = (int)below(r, r->doubts ? TXS - 1 : TXS), in = below(r, 3) == 0 ? slot : -1;
    bool wait = !r->hasty && (r->lazy ? below(r, 25) == 0 : below(r, 4) != 0);
    bool draining = r->lazy && r->op_count / 60 % 2 == 1;
    unsigned queues = 1u << any_queue(r);
    int choice = (int)(r->busy && below(r, 2) ? 82 + below(r, 15) : below(r, 100));

    if (r->busy)
        in = slot;
    in = can_take_work(r, in) ? in : -1;
    if (below(r, 5) == 0)
        queues |= 1u << any_queue(r) | 1u << any_queue(r);
    mark(r, MARK_STARTED, r->op_count + 1);
    if (r->hasty && choice < 70)
        publish(r, PUBLISH, queues, -1, false, 3500);
    else if (choice < (draining ? 4 : 36))
        publish(r, PUBLISH, queues, in, wait, any_size(r));
    else if (choice < 68)
        dequeue_some(r, in, wait);
    else if (choice < 73)
        enqueue_more(r, in, wait);
    else if (choice < 77)
        publish(r, STAGE, 0, -1, wait, any_size(r));
    else if (choice < 82)
        use_staged(r, in, wait);
    else if (choice < 97 && r->handles[slot] == NULL)
        begin(r, slot);
    else if (choice < 97)
        step_tx(r, slot, wait);
    else if (choice == 97 && r->next_queue > FIRST_QUEUES + 1 && r->catalog & 1u << (r->next_queue - 1))
        delete_queue(r, r->next_queue - 1, wait);
    else if (choice == 98)
        add_queue(r);
    else if (choice == 99 && !r->stays && !r->nested)
        reopen(r);
    if (r->toys && !r->lost && r->store != NULL && r->op_count + 2 < OPS_MAX && below(r, 3) == 0) {
        slot = (int)below(r, r->doubts ? TXS - 1 : TXS);
        mark(r, MARK_STARTED, r->op_count + 1);
        set_toy(r, r->handles[slot] != NULL && !r->ended[slot] && below(r, 2) ? slot : -1, wait);
    }
    if (r->timed && !r->lost && r->store != NULL && r->op_count + 2 < OPS_MAX && below(r, 2) == 0) {
        run_jumps(r);
        mark(r, MARK_STARTED, r->op_count + 1);
        use_times(r, can_take_work(r, in) ? in : -1, wait);
    }
    if (r->checkpoints && !r->nested && !r->lost && below(r, 12) == 0)
        take_checkpoint(r);
}

static inline void work_during_checkpoint(struct run *r) {
    int n = r->meanwhile;

    r->meanwhile = 0;
    r->nested = true;
    while (n-- > 0 && !r->lost && r->op_count + 2 < OPS_MAX)
        one_operation(r);
    r->nested = false;
}

static inline void run_some(struct run *r, size_t operations) {
    for (size_t i = 0; i < operations && !r->lost && r->op_count + 2 < OPS_MAX; i++)
        one_operation(r);
}

/* Leaves a prepared transaction with one locked place and one message of its own in doubt, for relocation to move. */
static inline void leave_in_doubt(struct run *r) {
    int slot = TXS - 1, queue = 0;
    uint64_t id = 0;

    if (r->handles[slot] != NULL)
        return;
    do {
        mark(r, MARK_STARTED, r->op_count + 1);
        begin(r, slot);
        if (!r->distributed[slot]) {
            mark(r, MARK_STARTED, r->op_count + 1);
            answered(r, ls_rollback(r->handles[slot], 0), false, (struct op){.kind = ROLLBACK, .tx = r->tx_ids[slot]});
            forget_handle(r, slot);
        }
    } while (r->handles[slot] == NULL && !r->lost);
    mark(r, MARK_STARTED, r->op_count + 1);
    publish(r, PUBLISH, 2, slot, false, 100);
    mark(r, MARK_STARTED, r->op_count + 1);
    if (any_place(r, &queue, &id))
        change_place(r, DEQUEUE, id, queue, slot, false);
    for (int i = 0; r->toys && i < 2; i++) {
        mark(r, MARK_STARTED, r->op_count + 1);
        set_toy(r, slot, false);
    }
    mark(r, MARK_STARTED, r->op_count + 1);
    answered(r, ls_tx_end(r->handles[slot]), false, (struct op){.kind = END});
    r->ended[slot] = true;
    mark(r, MARK_STARTED, r->op_count + 1);
    answered(r, ls_prepare(r->handles[slot], LS_WAIT), true, (struct op){.kind = PREPARE, .tx = r->tx_ids[slot]});
}

/*
 * Leaves state that makes relocation write much, and that no operation removes: a message that stays staged, and two
 * messages of several records each that one commit put on one queue.
 */
static inline void leave_relocatable(struct run *r) {
    int slot = TXS - 2;

    mark(r, MARK_STARTED, r->op_count + 1);
    publish(r, STAGE, 0, -1, true, 5000);
    if (r->staged_count > 0)
        r->staged_count--;
    if (r->handles[slot] != NULL)
        return;
    mark(r, MARK_STARTED, r->op_count + 1);
    begin(r, slot);
    for (uint32_t i = 0; i < 2; i++) {
        mark(r, MARK_STARTED, r->op_count + 1);
        publish(r, PUBLISH, 4, slot, false, 6000 + i);
    }
    while (r->handles[slot] != NULL && !r->lost) {
        mark(r, MARK_STARTED, r->op_count + 1);
        step_tx(r, slot, true);
    }
}

/* A few operations of every kind, then so many short-lived messages that the rest is relocated again and again. */
static inline void run_with_moves(struct run *r, size_t operations) {
    run_some(r, 30);
    if (r->doubts) {
        leave_relocatable(r);
        leave_in_doubt(r);
    }
    for (size_t i = 0; i < operations && !r->lost && r->op_count + 2 < OPS_MAX; i++) {
        bool wait = below(r, 10) == 0;

        mark(r, MARK_STARTED, r->op_count + 1);
        publish(r, PUBLISH, 2, -1, wait, 3500);
        mark(r, MARK_STARTED, r->op_count + 1);
        if (r->now.depth[1] > 3 && r->now.places[1][r->now.depth[1] - 1].locked_by == 0 && r->op_count + 2 < OPS_MAX)
            change_place(r, DEQUEUE, r->now.places[1][r->now.depth[1] - 1].id, 1, -1, wait);
        if (below(r, 4) == 0)
            one_operation(r);
        else if (r->checkpoints && !r->lost && below(r, 16) == 0)
            take_checkpoint(r);
    }
}

/* Forgets the operations after the first `count`, which did not survive. The ids that the first `begun` gave out remain used. */
static inline void forget_after(struct run *r, size_t count, size_t begun) {
    size_t kept = 0;

    for (size_t i = 0; i < r->op_count && i < begun; i++) {
        uint64_t max = r->ops[i].id > r->ops[i].tx ? r->ops[i].id : r->ops[i].tx;

        r->id_floor = max > r->id_floor ? max : r->id_floor;
    }
    r->op_count = count;
    for (size_t i = 0; i < r->told_count; i++) {
        for (size_t k = 0; k < count; k++) {
            if (r->ops[k].id == r->told[i].id) {
                r->told[kept++] = r->told[i];
                break;
            }
        }
    }
    r->told_count = kept;
}

static inline void run_end(struct run *r) {
    for (int i = 0; i < TXS; i++)
        forget_handle(r, i);
    ls_free(r->store);
    r->store = NULL;
}

/*
 * Continues the run on a disk that a power cut left, with the bounds b: remains of an earlier run must not confuse a later
 * one. Prints a line and returns false if the oracle does not allow the disk.
 */
static inline bool reopens_after_cut(struct run *r, vfs_sim *disk, struct bounds *b) {
    static struct model_state s;
    size_t found = 0;

    vfs_sim_free(r->sim);
    r->sim = disk;
    if (r->v == &r->watched)
        run_watch(r);
    else
        r->v = vfs_sim_table(disk);
    r->catalog = b->catalog != 0 ? b->catalog : r->catalog;
    if (vfs_sim_record(disk, 1) != 0 || open_store(r, r->v, r->catalog, QUEUES + 1, &r->store) != LS_OK)
        return complain("the store cannot be opened after a power cut");
    if (!recognise(r, r->store, *b, &s, &found) || !contents_are(r, r->store, &s))
        return complain("an earlier run's state");
    forget_after(r, found, b->begun);
    r->ops[r->op_count++] = (struct op){.kind = REOPEN};
    r->durable = r->op_count;
    r->staged_count = 0;
    r->now = s;
    for (int t = 0; t < s.tx_count && t < TXS; t++) {
        r->tx_ids[t] = s.txs[t].id;
        r->distributed[t] = r->ended[t] = true;
        if (ls_in_doubt_take(r->store, s.txs[t].id, &r->handles[t]) != LS_OK)
            return complain("in doubt");
    }
    *b = (struct bounds){r->op_count, r->op_count, r->catalog};
    return true;
}

#endif
