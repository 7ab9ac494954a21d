/*
 * A client of whoever leads. It publishes, dequeues and uses transactions, some of which wait, and remembers what it was told: a
 * message whose publish is durable is there at the next leader unless its dequeue was tried, and is not if that is durable; a
 * transaction's operations take effect together; one whose prepare is durable is in doubt until its outcome is tried.
 *
 * A leader that another one with a later term has followed is worked with, but not believed.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus_real.h"

enum { CROWDED = 40, SIZE_MAX_BYTES = 12000, DOUBTS = 4 };

/* `known`: durable, as some leader said. */
struct published {
    uint64_t id;
    uint32_t queue, size, seed;
    uint64_t end_lsn; /* the index that must be durable for it */
    uint64_t gone_lsn;
    bool known, gone_tried, gone_known, checked;
    uint64_t in_doubt; /* the transaction that publishes (or dequeues) it; 0: none */
    bool dequeued_by;  /* it dequeues it */
    uint64_t partner;  /* dequeued in the transaction that published this one; 0: none */
};

struct doubt {
    uint64_t tx; /* 0: none */
    uint64_t end_lsn;
    bool known, outcome_tried;
};

static struct {
    uint64_t term;   /* of the newest leader that served */
    uint64_t serial; /* its process */
    struct published *all;
    size_t count, capacity;
    struct doubt doubts[DOUBTS];
    uint32_t unique;
} c;

void client_reset(void) {
    c.count = 0;
    c.term = c.serial = 0;
    memset(c.doubts, 0, sizeof c.doubts);
}

static bool is_believed(const struct member *m) { return m->p != NULL && m->p->serial == c.serial; }

static struct published *find(uint64_t id) {
    for (size_t i = 0; i < c.count; i++)
        if (c.all[i].id == id)
            return &c.all[i];
    return NULL;
}

static void fill(uint8_t *into, uint32_t size, uint32_t seed) {
    for (uint32_t i = 0; i < size; i++)
        into[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

/* ---- what was told ---- */

void client_hears(struct member *m) {
    if (!is_believed(m) || !m->serves)
        return;
    uint64_t durable_lsn = ls_durable_lsn(m->p->store);
    size_t left = 0;
    for (size_t i = 0; i < c.count; i++) {
        struct published *k = &c.all[i];
        if (k->in_doubt == 0) {
            k->known = k->known || (k->end_lsn != 0 && k->end_lsn <= durable_lsn);
            k->gone_known = k->gone_known || (k->gone_lsn != 0 && k->gone_lsn <= durable_lsn);
        }
        c.all[left++] = *k;
    }
    for (size_t i = 0; i < DOUBTS; i++)
        c.doubts[i].known = c.doubts[i].known || (c.doubts[i].end_lsn != 0 && c.doubts[i].end_lsn <= durable_lsn);
}

static void check_content(const struct member *m, struct published *k) {
    static uint8_t is[SIZE_MAX_BYTES], must_be[SIZE_MAX_BYTES];
    size_t done = 0;
    int rc = ls_load_content(m->p->store, k->id, 0, is, sizeof is, &done);
    fill(must_be, k->size, k->seed);
    if (rc != LS_OK)
        core_failed(m, "CLIENT: a message cannot be loaded", rc);
    if (done != k->size || memcmp(is, must_be, done) != 0)
        violation("CLIENT: message %llx has other bytes at leader %llu", (ull)k->id, AT_MEMBER(m));
    k->checked = true;
}

static bool is_there(const struct member *m, uint64_t id) {
    ls_message_info info;
    return ls_message(m->p->store, id, &info) == LS_OK && info.places > 0;
}

/* A message whose publish is durable, and the message for which a transaction was to dequeue it. */
static void judge_pairs(const struct member *m) {
    for (size_t i = 0; i < c.count; i++) {
        const struct published *k = &c.all[i];
        const struct published *gone = k->partner == 0 || k->gone_tried ? NULL : find(k->partner);
        if (gone != NULL && gone->known && is_there(m, k->id) == is_there(m, k->partner))
            violation("CLIENT: a transaction took effect in part: messages %llx and %llx", (ull)k->id, (ull)k->partner);
    }
}

/* False: it is forgotten. */
static bool meets_message(struct member *m, struct published *k, bool undecided) {
    ls_message_info info;
    bool there = is_there(m, k->id);
    if (undecided) {
        if (k->dequeued_by ? !there : ls_message(m->p->store, k->id, &info) != LS_OK)
            violation("CLIENT: message %llx of transaction %llx in doubt is gone", (ull)k->id, (ull)k->in_doubt);
        return true;
    }
    if (k->in_doubt == 0 && k->known && !k->gone_tried && !there)
        violation("CLIENT: message %llx was durable, and is not there at leader %llu of term %llu", (ull)k->id,
                  AT_MEMBER(m), (ull)m->lead_term);
    if (k->gone_known && there)
        violation("CLIENT: message %llx was dequeued for good, and is there again at leader %llu", (ull)k->id,
                  AT_MEMBER(m));
    if (there && (!k->checked || random_chance(0.1)))
        check_content(m, k);
    k->known = true; /* all that this leader has is durable */
    k->gone_tried = k->gone_known = false;
    k->gone_lsn = k->end_lsn = k->in_doubt = k->partner = 0;
    k->dequeued_by = false;
    return there;
}

static bool is_in_doubt(const ls_store *store, uint64_t tx) {
    uint64_t ids[16];
    size_t n = 0;
    if (ls_in_doubt((ls_store *)(uintptr_t)store, ids, 16, &n) != LS_OK)
        return false;
    for (size_t i = 0; i < n && i < 16; i++)
        if (ids[i] == tx)
            return true;
    return false;
}

void client_meets(struct member *m) {
    if (m->lead_term < c.term)
        return;
    c.term = m->lead_term;
    c.serial = m->p->serial;
    for (size_t i = 0; i < DOUBTS; i++) {
        struct doubt *d = &c.doubts[i];
        bool there = d->tx != 0 && is_in_doubt(m->p->store, d->tx);
        if (d->tx != 0 && d->known && !d->outcome_tried && !there)
            violation("CLIENT: transaction %llx was prepared for good, and is not in doubt at leader %llu", (ull)d->tx,
                      AT_MEMBER(m));
        d->outcome_tried = false;
        d->known = there;
        d->tx = there ? d->tx : 0;
    }
    size_t left = 0;
    bool *stays = calloc(c.count + 1, sizeof *stays);
    if (stays == NULL)
        run_failed("no memory for messages");
    judge_pairs(m);
    for (size_t i = 0; i < c.count; i++) {
        bool undecided = false;
        for (size_t k = 0; k < DOUBTS; k++)
            undecided = undecided || (c.all[i].in_doubt != 0 && c.doubts[k].tx == c.all[i].in_doubt);
        stays[i] = meets_message(m, &c.all[i], undecided);
    }
    for (size_t i = 0; i < c.count; i++)
        if (stays[i])
            c.all[left++] = c.all[i];
    c.count = left;
    free(stays);
}

/* ---- what it does ---- */

static uint32_t any_size(void) {
    static const uint32_t limits[] = {1, 200, 200, 800, 3000, 3900, SIZE_MAX_BYTES};
    return 1 + (uint32_t)random_below(limits[random_below(random_chance(0.1) ? 7 : 6)]);
}

/* A call that may wait, of the process p; the member may be another one after it. */
static int publish(struct process *p, ls_tx *tx, int flags, struct published *k) {
    uint8_t bytes[SIZE_MAX_BYTES]; /* another call may publish meanwhile */
    *k = (struct published){.queue = 1 + (uint32_t)random_below(QUEUES), .size = any_size(), .seed = ++c.unique};
    fill(bytes, k->size, k->seed);
    return ls_publish(p->store, &k->queue, 1, NULL, 0, bytes, k->size, tx, flags, &k->id);
}

static void remember(const struct process *p, struct published k, uint64_t term) {
    if (p->serial != c.serial && (term < c.term || p->ended))
        return; /* nothing of it can become durable that the newer leader has not shown */
    c.all = grow(c.all, &c.capacity, c.count, sizeof *c.all);
    c.all[c.count++] = k;
}

static bool has_end(const struct process *p, int rc) { return rc == LS_OK && !p->ended; }

static int any_flags(void) { return random_chance(0.4) ? LS_TRY : random_chance(0.1) ? LS_WAIT : 0; }

static void publish_one(struct process *p, uint64_t term) {
    struct published k;
    int rc = publish(p, NULL, any_flags(), &k);
    k.end_lsn = has_end(p, rc) ? ls_next_lsn(p->store) : 0;
    if (rc == LS_OK || (rc == LS_OUTCOME_UNKNOWN && k.id != 0))
        remember(p, k, term);
}

/* A message that no call has tried to dequeue and no transaction in doubt has. */
static uint64_t any_message(void) {
    for (int tries = 0; tries < 10 && c.count > 0; tries++) {
        const struct published *k = &c.all[random_chance(0.6) ? random_below(1 + c.count / 4) : random_below(c.count)];
        bool stays = k->id % 11 == 0 && random_chance(0.97); /* such are relocated */
        if (!k->gone_tried && k->in_doubt == 0 && !stays)
            return k->id;
    }
    return 0;
}

static void note_gone(const struct process *p, int rc, uint64_t id) {
    struct published *k = find(id);
    if (k != NULL && p->serial == c.serial && has_end(p, rc))
        k->gone_lsn = ls_next_lsn(p->store);
    if (k != NULL && p->serial == c.serial && rc != LS_OK && rc != LS_OUTCOME_UNKNOWN && rc != LS_POISONED)
        k->gone_tried = false;
}

static void dequeue_one(struct process *p, ls_tx *tx, int flags, uint64_t id) {
    struct published *k = find(id);
    uint64_t lsn;
    if (k == NULL)
        return;
    k->gone_tried = k->gone_tried || p->serial == c.serial;
    int rc = ls_dequeue(p->store, id, k->queue, tx, 1, 0, flags, &lsn);
    if (tx == NULL)
        note_gone(p, rc, id);
}

/* A publish and a dequeue that take effect together. */
static void commit_pair(struct process *p, uint64_t term) {
    struct published k;
    ls_tx *tx = NULL;
    uint64_t gone = any_message(), lsn;
    if (ls_begin(p->store, NULL, &tx) != LS_OK)
        return;
    int rc = publish(p, tx, 0, &k);
    struct published *other = find(gone);
    bool both = rc == LS_OK && other != NULL && !other->gone_tried && other->in_doubt == 0 && p->serial == c.serial &&
                ls_dequeue(p->store, gone, other->queue, tx, 1, 0, 0, &lsn) == LS_OK;
    if (rc == LS_OK) {
        other = find(gone);
        both = both && other != NULL;
        if (both)
            other->gone_tried = true;
        rc = ls_commit(tx, random_chance(0.2) ? LS_WAIT : 0);
        k.end_lsn = has_end(p, rc) ? ls_next_lsn(p->store) : 0;
        k.partner = both ? gone : 0;
        if (both)
            note_gone(p, rc, gone);
        if (rc == LS_OK || rc == LS_OUTCOME_UNKNOWN)
            remember(p, k, term);
    }
    ls_tx_free(tx);
}

static struct doubt *free_doubt(void) {
    for (size_t i = 0; i < DOUBTS; i++)
        if (c.doubts[i].tx == 0)
            return &c.doubts[i];
    return NULL;
}

static void prepare_one(struct process *p, uint64_t term) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 4, .bqual_bytes = 0};
    struct published k;
    ls_tx_info info;
    ls_tx *tx = NULL;
    size_t at = p->txs[0] == NULL ? 0 : 1;
    uint32_t unique = ++c.unique;
    memcpy(xid.data, &unique, sizeof unique);
    if (p->txs[at] != NULL || free_doubt() == NULL || p->serial != c.serial || ls_begin(p->store, &xid, &tx) != LS_OK)
        return;
    ls_tx_describe(tx, &info);
    int rc = publish(p, tx, 0, &k);
    rc = rc == LS_OK ? ls_tx_end(tx) : rc;
    bool known = rc == LS_OK;
    rc = known ? ls_prepare(tx, random_chance(0.3) ? LS_WAIT : 0) : rc;
    struct doubt *d = free_doubt();
    if (known && (rc == LS_OK || rc == LS_OUTCOME_UNKNOWN) && d != NULL && p->serial == c.serial) {
        *d = (struct doubt){.tx = info.id, .end_lsn = has_end(p, rc) ? ls_next_lsn(p->store) : 0};
        k.in_doubt = info.id;
        remember(p, k, term);
    }
    if (rc == LS_OK && p->txs[at] == NULL)
        p->txs[at] = tx;
    else
        ls_tx_free(tx);
}

static void end_doubt(struct process *p) {
    struct doubt *d = &c.doubts[random_below(DOUBTS)];
    ls_tx_info info;
    ls_tx *tx = NULL;
    if (d->tx == 0 || d->outcome_tried || p->serial != c.serial)
        return;
    for (size_t i = 0; i < TXS; i++) {
        if (p->txs[i] == NULL)
            continue;
        ls_tx_describe(p->txs[i], &info);
        if (info.id == d->tx) {
            tx = p->txs[i];
            p->txs[i] = NULL;
        }
    }
    uint64_t id = d->tx;
    if (tx == NULL && ls_in_doubt_take(p->store, id, &tx) != LS_OK) {
        if (!p->ended)
            violation("CLIENT: transaction %llx in doubt cannot be taken: %s", (ull)id, ls_last_error()->text);
        return;
    }
    d->outcome_tried = true;
    bool commits = random_chance(0.6);
    int rc = commits ? ls_commit(tx, 0) : ls_rollback(tx, 0);
    bool done = p->serial == c.serial && has_end(p, rc);
    for (size_t i = 0; i < c.count && done; i++) {
        struct published *k = &c.all[i];
        if (k->in_doubt != id)
            continue;
        k->in_doubt = 0;
        k->end_lsn = commits ? ls_next_lsn(p->store) : 0;
        k->gone_tried = !commits;
        k->gone_lsn = commits ? 0 : ls_next_lsn(p->store);
    }
    if (done)
        d->tx = 0;
    ls_tx_free(tx);
}

/* Forgets some of the messages whose dequeue is durable. */
static void forget(void) {
    size_t left = 0;
    for (size_t i = 0; i < c.count; i++)
        if (!c.all[i].gone_known || random_chance(0.9))
            c.all[left++] = c.all[i];
    c.count = left;
}

void client_works(struct member *m) {
    struct process *p = m->p;
    uint64_t term = m->lead_term;
    unsigned x = (unsigned)random_below(100);
    size_t live = 0;
    for (size_t i = 0; i < c.count; i++)
        live += !c.all[i].gone_tried;
    process_use(p);
    if (x < (live > CROWDED ? 20U : 50U))
        publish_one(p, term);
    else if (x < 85)
        dequeue_one(p, NULL, any_flags(), any_message());
    else if (x < 91)
        commit_pair(p, term);
    else if (x < 94)
        prepare_one(p, term);
    else
        end_doubt(p);
    if (random_chance(0.05))
        forget();
    process_let_go(p);
}
