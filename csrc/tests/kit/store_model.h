/*
 * The model: the state that a store must have after a sequence of operations, and the run that records the sequence. It
 * uses only the answers that the workload got from the store.
 *
 * The oracle is the sequence of operations that returned LS_OK (or LS_OUTCOME_UNKNOWN), and how many of them the store
 * reported as durable. The log has one order, so recovery must give the state after some prefix of the sequence: at least
 * the durable operations, at most those that were begun. Any other state is a defect.
 */
#ifndef LOGSTORE_STORE_MODEL_H
#define LOGSTORE_STORE_MODEL_H

#include "logstore.h"
#include "tests/kit/toy_client.h"
#include "tests/kit/vfs_test.h"

enum { SEGMENT = 64 << 10, QUEUES = 8, FIRST_QUEUES = 4, OPS_MAX = 1200, PLACES_MAX = 600, TXS = 3, WORK_MAX = 40 };
enum { MARK_STARTED = 1, MARK_ACKNOWLEDGED, MARK_CATALOG, MARK_DURABLE_LSN, MARK_BESIDE };
enum op_kind {
    PUBLISH,
    STAGE,
    ENQUEUE,
    DEQUEUE,
    DESTROY,
    BEGIN,
    END,
    PREPARE,
    COMMIT,
    ROLLBACK,
    DELETE_QUEUE,
    REOPEN,
    SET_TOY,
    MOVE,
    DELAY,
    NOTHING /* none was made */
};

struct op {
    int kind;
    unsigned queues; /* bit q: queue q */
    uint64_t id;
    uint64_t tx;      /* 0: none */
    uint64_t end_lsn; /* the operation is durable when this LSN is; 0: unknown */
    uint32_t key;     /* of a SET_TOY, and its value */
    uint64_t value;
    ls_times times; /* of the places that it makes; of a DELAY only the first */
    int from;       /* of a MOVE */
};

/* The numbers from which every byte of a message is derived. */
struct told {
    uint64_t id;
    uint32_t seed;
    uint32_t header_bytes;
    uint32_t content_bytes;
};

/* The xid that a transaction was begun under. */
struct told_xid {
    uint64_t tx;
    uint32_t unique;
};

struct model_place {
    uint64_t id;
    uint64_t locked_by;
    ls_times times;
};

struct model_work {
    uint64_t id;
    int queue;
    bool enqueue;
    ls_times times;
};

struct model_tx {
    uint64_t id;
    bool prepared;
    int work_count;
    struct model_work work[WORK_MAX];
    uint64_t toys[TOY_KEYS]; /* the values it sets; 0: none */
};

struct model_state {
    int depth[QUEUES + 1];
    struct model_place places[QUEUES + 1][PLACES_MAX];
    int tx_count;
    struct model_tx txs[TXS + 1];
    uint64_t toys[TOY_KEYS]; /* the last committed values; 0: none */
};

struct run {
    vfs_sim *sim; /* NULL if the store uses another vfs */
    vfs *v;
    const char *path;
    ls_options options;
    ls_store *store;
    uint64_t chance;
    unsigned catalog;
    int next_queue;
    struct op ops[OPS_MAX];
    size_t op_count; /* operations of the sequence that were begun and not refused */
    size_t durable;  /* reported as durable */
    struct told told[OPS_MAX];
    size_t told_count;
    struct told_xid xids[OPS_MAX];
    size_t xid_count;
    ls_tx *handles[TXS];
    uint64_t tx_ids[TXS];
    bool distributed[TXS];
    bool ended[TXS];
    uint64_t staged[OPS_MAX];
    int staged_count;
    struct model_state now;
    vfs watched;                       /* the simulator's table, which notes the store's durable LSN at every write */
    void (*watch_more)(struct run *r); /* wraps the simulator's table once more for the store, or NULL */
    int hint_file;                     /* the writer's handle of HINT; -1: none */
    bool hint_settles;                 /* writes to HINT are durable at once */
    uint64_t id_floor;                 /* the largest id that an earlier open gave out */
    bool lost;                         /* the store is poisoned, or could not be opened again */
    bool gentle;                       /* no refusal is expected */
    bool lazy;                         /* rarely waits for durability; fills and drains the store in turn */
    bool busy;                         /* most operations are in transactions */
    bool hasty;                        /* never waits for durability; publishes often */
    bool checkpoints;                  /* takes a checkpoint now and then */
    bool short_of_room; /* the disk is full now and then: a call that needs room waits for the checkpoint to end */
    int meanwhile;      /* how many more operations to do during the present checkpoint */
    bool nested;        /* such an operation is in progress */
    bool doubts;        /* one prepared transaction is left in doubt */
    bool stays;         /* the store is not closed in the meantime */
    bool toys;          /* the log has a second client, the toy's */
    bool timed;         /* places get times, are moved, and the clock jumps */
};

/* ---- the model ---- */

/* Copies only the parts that are in use. */
static inline void model_copy(struct model_state *to, const struct model_state *from) {
    memcpy(to->depth, from->depth, sizeof to->depth);
    for (int q = 1; q <= QUEUES; q++)
        memcpy(to->places[q], from->places[q], (size_t)from->depth[q] * sizeof from->places[q][0]);
    to->tx_count = from->tx_count;
    memcpy(to->txs, from->txs, (size_t)from->tx_count * sizeof from->txs[0]);
    memcpy(to->toys, from->toys, sizeof to->toys);
}

static inline void model_append(struct model_state *s, int queue, uint64_t id, ls_times times) {
    if (s->depth[queue] == PLACES_MAX)
        abort();
    s->places[queue][s->depth[queue]++] = (struct model_place){id, 0, times};
}

static inline struct model_place *model_find(struct model_state *s, int queue, uint64_t id) {
    for (int i = 0; i < s->depth[queue]; i++) {
        if (s->places[queue][i].id == id)
            return &s->places[queue][i];
    }
    return NULL;
}

static inline void model_remove(struct model_state *s, int queue, uint64_t id) {
    struct model_place *p = model_find(s, queue, id);

    if (p != NULL) {
        s->depth[queue]--;
        memmove(p, p + 1, (size_t)(&s->places[queue][s->depth[queue]] - p) * sizeof *p);
    }
}

static inline struct model_tx *model_tx(struct model_state *s, uint64_t id) {
    for (int i = 0; i < s->tx_count; i++) {
        if (s->txs[i].id == id)
            return &s->txs[i];
    }
    return NULL;
}

static inline void model_end_tx(struct model_state *s, struct model_tx *t, bool commit, unsigned catalog) {
    for (int q = 1; q <= QUEUES; q++) {
        for (int i = 0; i < s->depth[q]; i++)
            s->places[q][i].locked_by = s->places[q][i].locked_by == t->id ? 0 : s->places[q][i].locked_by;
    }
    for (int i = 0; commit && i < t->work_count; i++) {
        if (!t->work[i].enqueue)
            model_remove(s, t->work[i].queue, t->work[i].id);
        else if (catalog & 1u << t->work[i].queue)
            model_append(s, t->work[i].queue, t->work[i].id, t->work[i].times);
    }
    for (int key = 0; commit && key < TOY_KEYS; key++)
        s->toys[key] = t->toys[key] != 0 ? t->toys[key] : s->toys[key];
    *t = s->txs[--s->tx_count];
}

/* The open transaction that holds the key's lock, or NULL. */
static inline struct model_tx *model_toy_lock(struct model_state *s, uint32_t key) {
    for (int i = 0; i < s->tx_count; i++) {
        if (s->txs[i].toys[key] != 0)
            return &s->txs[i];
    }
    return NULL;
}

static inline void model_work(struct model_state *s, uint64_t tx, uint64_t id, int queue, bool enqueue,
                              ls_times times) {
    struct model_tx *t = model_tx(s, tx);
    struct model_place *p = enqueue ? NULL : model_find(s, queue, id);

    if (t == NULL || t->work_count == WORK_MAX)
        abort();
    t->work[t->work_count++] = (struct model_work){id, queue, enqueue, times};
    if (p != NULL)
        p->locked_by = tx;
}

/* Applies a crash to a state: ends unprepared transactions, and queues that the catalog no longer has. */
static inline void model_recover(struct model_state *s, unsigned catalog) {
    for (int i = s->tx_count; i-- > 0;) {
        if (!s->txs[i].prepared)
            model_end_tx(s, &s->txs[i], false, catalog);
    }
    for (int q = 1; q <= QUEUES; q++) {
        if (!(catalog & 1u << q))
            s->depth[q] = 0;
    }
}

static inline void model_delay(struct model_state *s, int queue, uint64_t id, uint64_t not_before_us) {
    struct model_place *p = model_find(s, queue, id);

    if (p != NULL)
        p->times.not_before_us = not_before_us;
}

static inline void model_do(struct model_state *s, const struct op *op, unsigned catalog) {
    if (op->kind == MOVE && op->tx != 0)
        model_work(s, op->tx, op->id, op->from, false, (ls_times){0, 0});
    else if (op->kind == MOVE)
        model_remove(s, op->from, op->id);
    for (int q = 1; q <= QUEUES; q++) {
        if (!(op->queues & 1u << q))
            continue;
        if (op->kind == DELETE_QUEUE)
            s->depth[q] = 0;
        else if (op->tx != 0)
            model_work(s, op->tx, op->id, q, op->kind != DEQUEUE, op->times);
        else if (op->kind == DELAY)
            model_delay(s, q, op->id, op->times.not_before_us);
        else if (op->kind == DEQUEUE)
            model_remove(s, q, op->id);
        else if (catalog & 1u << q)
            model_append(s, q, op->id, op->times);
    }
    if (op->kind == SET_TOY)
        *(op->tx != 0 ? &model_tx(s, op->tx)->toys[op->key] : &s->toys[op->key]) = op->value;
    if (op->kind == BEGIN)
        s->txs[s->tx_count++] = (struct model_tx){.id = op->tx};
    if (op->kind == PREPARE)
        model_tx(s, op->tx)->prepared = true;
    if (op->kind == COMMIT || op->kind == ROLLBACK)
        model_end_tx(s, model_tx(s, op->tx), op->kind == COMMIT, catalog);
    if (op->kind == REOPEN)
        model_recover(s, catalog);
}

static inline void model_after(const struct run *r, size_t count, unsigned catalog, struct model_state *s) {
    memset(s->depth, 0, sizeof s->depth);
    memset(s->toys, 0, sizeof s->toys);
    s->tx_count = 0;
    for (size_t i = 0; i < count; i++)
        model_do(s, &r->ops[i], catalog);
    model_recover(s, catalog);
}

static inline bool model_names(const struct model_state *s, uint64_t id) {
    for (int q = 1; q <= QUEUES; q++) {
        if (model_find((struct model_state *)(uintptr_t)s, q, id) != NULL)
            return true;
    }
    for (int i = 0; i < s->tx_count; i++) {
        for (int k = 0; k < s->txs[i].work_count; k++) {
            if (s->txs[i].work[k].id == id)
                return true;
        }
    }
    return false;
}

#endif
