/*
 * A second client of the log, for tests: a map from a few keys to numbers. The last committed value of each key lives; an
 * open transaction that sets a key locks it. It does all that a client can do, and nothing in csrc/ outside tests names it.
 */
#ifndef LOGSTORE_TOY_CLIENT_H
#define LOGSTORE_TOY_CLIENT_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "log/parts.h"
#include "os/error.h"
#include "replay/replay.h"
#include "store/store.h"

enum { TOY_STREAM = 0x7e, TOY_SET = 0x7e01, TOY_KEYS = 12, TOY_WEIGHT = 64, TOY_BODY_BYTES = 64, TOY_ROW_BYTES = 40 };
enum { TOY_COMMITTED = 2 /* on a copy: its transaction, if it has one, is committed */ };

/* One record that lives. */
struct toy_value {
    uint64_t id; /* its first LSN; 0: there is none */
    uint64_t lsn;
    uint64_t value;
    uint64_t tx;
};

struct toy_key {
    struct toy_value now;     /* committed */
    struct toy_value pending; /* until its transaction's outcome */
    uint64_t locked_by;
};

struct toy {
    struct log *g;
    struct toy_key keys[TOY_KEYS];
    uint64_t expansion; /* its answer to client_calls.expansion */
    uint64_t weight;    /* on top of TOY_WEIGHT for each key */
    int prepare_code;   /* what it answers to a prepare */
    unsigned prepared, segments_begun, asked_for_space;
};

static inline uint32_t toy_record_bytes(void) { return (uint32_t)format_body_record_bytes(TOY_BODY_BYTES); }

/* ---- bytes ---- */

static inline void toy_body(uint8_t into[TOY_BODY_BYTES], uint32_t key, uint64_t value, uint64_t tx) {
    uint64_t words[TOY_BODY_BYTES / 8] = {key, value, tx};

    for (size_t i = 3; i < TOY_BODY_BYTES / 8; i++)
        words[i] = (value ^ key) * (2 * i + 1);
    memcpy(into, words, TOY_BODY_BYTES);
}

static inline enum format_result toy_get_body(const struct record *r, uint32_t *key, struct toy_value *v) {
    uint64_t words[TOY_BODY_BYTES / 8];
    uint8_t again[TOY_BODY_BYTES];

    if (r->type != TOY_SET || r->length != toy_record_bytes())
        return FORMAT_MALFORMED;
    memcpy(words, r->bytes + RECORD_HEADER_BYTES, TOY_BODY_BYTES);
    *key = (uint32_t)words[0];
    *v = (struct toy_value){.id = r->id, .lsn = r->lsn, .value = words[1], .tx = words[2]};
    toy_body(again, *key, v->value, v->tx);
    return words[0] < TOY_KEYS && v->value != 0 && memcmp(again, r->bytes + RECORD_HEADER_BYTES, TOY_BODY_BYTES) == 0
               ? FORMAT_OK
               : FORMAT_MALFORMED;
}

/* ---- what the log and its neighbours ask ---- */

static inline void toy_attach(void *context, struct log *g) { ((struct toy *)context)->g = g; }

static inline const char *toy_type_name(uint16_t type) { return type == TOY_SET ? "TOY_SET" : NULL; }

static inline enum format_result toy_verify(const void *context, const struct record *r) {
    struct toy_value v;
    uint32_t key;

    (void)context;
    return toy_get_body(r, &key, &v);
}

static inline int toy_replay_copy(struct toy_key *k, struct replay *p, const struct record *r, uint32_t key,
                                  const struct toy_value *v) {
    bool committed = v->tx == 0 || (r->flags & TOY_COMMITTED) != 0;
    struct toy_value *at = committed ? &k->now : &k->pending;
    bool known = at->id == v->id;

    if (!known && v->id >= p->base_lsn)
        return replay_inconsistent(p, r, "a copy of a value that is not there");
    *at = *v;
    return known || committed ? LS_OK : replay_add_client_work(p, r, v->tx, key);
}

static inline int toy_replay(void *context, struct replay *p, const struct record *r) {
    struct toy *toy = context;
    struct toy_value v;
    uint32_t key;

    if (toy_get_body(r, &key, &v) != FORMAT_OK)
        return replay_malformed(p, r);
    struct toy_key *k = &toy->keys[key];
    if ((r->flags & FLAG_COPY) != 0)
        return toy_replay_copy(k, p, r, key, &v);
    if (v.tx == 0) {
        k->now = v;
        return LS_OK;
    }
    if (k->pending.id != 0 && k->pending.tx != v.tx)
        return replay_inconsistent(p, r, "a value is set that another transaction has locked");
    bool again = k->pending.id != 0;
    k->pending = v;
    return again ? LS_OK : replay_add_client_work(p, r, v.tx, key);
}

/* Iterates over the items of a transaction's work. */
static inline const struct client_work *toy_next_work(const struct client_work *w) {
    while (w != NULL && w->stream != TOY_STREAM)
        w = w->next;
    return w;
}

static inline int toy_replay_commit(void *context, struct replay *p, struct tx *tx, const struct record *r) {
    struct toy *toy = context;

    (void)p;
    (void)r;
    for (const struct client_work *w = tx->client_first; (w = toy_next_work(w)) != NULL; w = w->next) {
        struct toy_key *k = &toy->keys[w->key];
        k->now = k->pending;
        k->pending = (struct toy_value){0};
    }
    return LS_OK;
}

static inline void toy_replay_rollback(void *context, struct replay *p, struct tx *tx) {
    struct toy *toy = context;

    (void)p;
    for (const struct client_work *w = tx->client_first; (w = toy_next_work(w)) != NULL; w = w->next)
        toy->keys[w->key].pending = (struct toy_value){0};
}

static inline int toy_settle(void *context, struct replay *p) {
    const struct toy *toy = context;

    for (size_t i = 0; i < TOY_KEYS; i++) {
        const struct toy_value *both[] = {&toy->keys[i].now, &toy->keys[i].pending};
        for (size_t n = 0; n < 2; n++) {
            struct record r = {.lsn = both[n]->lsn, .id = both[n]->id};
            if (both[n]->id != 0 && !replay_count_live(p, both[n]->lsn, toy_record_bytes()))
                return replay_inconsistent(p, &r, "a value that lives has its record below the base");
        }
    }
    return LS_OK;
}

static inline void toy_lock_in_doubt(void *context, struct tx *tx) {
    struct toy *toy = context;

    for (const struct client_work *w = tx->client_first; (w = toy_next_work(w)) != NULL; w = w->next)
        toy->keys[w->key].locked_by = tx->id;
}

static inline void toy_clear(void *context) {
    struct toy *toy = context;
    memset(toy->keys, 0, sizeof toy->keys);
}

static inline int toy_prepare(void *context, struct tx *tx) {
    struct toy *toy = context;

    toy->prepared += toy_next_work(tx->client_first) != NULL;
    return toy->prepare_code == LS_OK ? LS_OK : fail(toy->prepare_code, "the toy refuses");
}

static inline void toy_end(struct toy *toy, const struct tx *tx, bool commit) {
    for (const struct client_work *w = tx->client_first; (w = toy_next_work(w)) != NULL; w = w->next) {
        struct toy_key *k = &toy->keys[w->key];
        const struct toy_value *dies = commit ? &k->now : &k->pending;
        assert(k->locked_by == tx->id && k->pending.tx == tx->id);
        if (dies->id != 0)
            log_release_record(toy->g, dies->lsn, toy_record_bytes());
        if (commit)
            k->now = k->pending;
        k->pending = (struct toy_value){0};
        k->locked_by = 0;
    }
}

static inline void toy_commit(void *context, struct tx *tx, uint64_t commit_lsn) {
    (void)commit_lsn;
    toy_end(context, tx, true);
}

/* A transaction that recovery undid has no work left, so nothing is released twice. */
static inline void toy_rollback(void *context, struct tx *tx) { toy_end(context, tx, false); }

static inline uint64_t toy_weight(const void *context) {
    const struct toy *toy = context;
    uint64_t bytes = toy->weight;

    for (size_t i = 0; i < TOY_KEYS; i++)
        bytes += toy->keys[i].now.id != 0 ? TOY_WEIGHT : 0;
    return bytes;
}

static inline uint64_t toy_expansion(const void *context) { return ((const struct toy *)context)->expansion; }

static inline struct toy_value *toy_living(struct toy *toy, uint32_t key, uint64_t lsn) {
    struct toy_key *k = &toy->keys[key];
    return k->now.id != 0 && k->now.lsn == lsn           ? &k->now
           : k->pending.id != 0 && k->pending.lsn == lsn ? &k->pending
                                                         : NULL;
}

static inline int toy_relocate(void *context, struct mover *v, const struct record *r) {
    struct toy *toy = context;
    struct toy_value read;
    uint32_t key;

    if (toy_get_body(r, &key, &read) != FORMAT_OK || toy_living(toy, key, r->lsn) == NULL)
        return LS_OK;
    int rc = log_reserve(v->g, r->length, RESERVE_MOVES);
    struct toy_value *lives = toy_living(toy, key, r->lsn);
    if (rc == LS_OK && lives != NULL)
        lives->lsn = relocate_copy(v, r, lives == &toy->keys[key].now ? FLAG_COPY | TOY_COMMITTED : FLAG_COPY);
    return rc;
}

static inline void toy_segment_begun(void *context) { ((struct toy *)context)->segments_begun++; }

static inline bool toy_give_up_space(void *context) {
    ((struct toy *)context)->asked_for_space++;
    return false;
}

static inline bool toy_put_row(struct rows *rows, uint64_t key, const struct toy_value *v, bool pending) {
    uint64_t words[TOY_ROW_BYTES / 8] = {key << 1 | (pending ? 1 : 0), v->id, v->lsn, v->value, v->tx};
    uint8_t *at = v->id != 0 ? rows_put_client(rows, TOY_STREAM, TOY_ROW_BYTES) : NULL;

    if (at != NULL)
        memcpy(at, words, TOY_ROW_BYTES);
    return v->id == 0 || at != NULL;
}

static inline bool toy_put_rows(void *context, struct rows *rows) {
    const struct toy *toy = context;
    bool fine = true;

    for (uint64_t key = 0; key < TOY_KEYS; key++)
        fine = fine && toy_put_row(rows, key, &toy->keys[key].now, false) &&
               toy_put_row(rows, key, &toy->keys[key].pending, true);
    return fine;
}

static inline int toy_load_row(void *context, struct replay *p, const uint8_t *bytes, uint32_t length) {
    struct toy *toy = context;
    uint64_t words[TOY_ROW_BYTES / 8];

    if (length != TOY_ROW_BYTES)
        return LS_CORRUPT;
    memcpy(words, bytes, TOY_ROW_BYTES);
    bool pending = (words[0] & 1) != 0;
    struct tx *tx = pending ? table_tx(p->t, words[4]) : NULL;
    if (words[0] >> 1 >= TOY_KEYS || words[1] == 0 || (pending && tx == NULL))
        return LS_CORRUPT;
    struct toy_key *k = &toy->keys[words[0] >> 1];
    *(pending ? &k->pending : &k->now) =
        (struct toy_value){.id = words[1], .lsn = words[2], .value = words[3], .tx = words[4]};
    return !pending || replay_load_client_work(tx, TOY_STREAM, words[0] >> 1) ? LS_OK : fail_memory();
}

/* The store that it is registered for frees its memory. */
static inline struct log_client toy_client(void) {
    static const uint8_t streams[] = {TOY_STREAM};
    static const struct client_calls calls = {
        .attach = toy_attach,
        .free = free,
        .type_name = toy_type_name,
        .verify = toy_verify,
        .replay = toy_replay,
        .replay_commit = toy_replay_commit,
        .replay_rollback = toy_replay_rollback,
        .settle = toy_settle,
        .lock_in_doubt = toy_lock_in_doubt,
        .clear = toy_clear,
        .prepare = toy_prepare,
        .commit = toy_commit,
        .rollback = toy_rollback,
        .weight = toy_weight,
        .expansion = toy_expansion,
        .expansion_most = 9,
        .relocate = toy_relocate,
        .segment_begun = toy_segment_begun,
        .give_up_space = toy_give_up_space,
        .put_rows = toy_put_rows,
        .load_row = toy_load_row,
    };
    struct toy *made = calloc(1, sizeof *made);

    if (made == NULL)
        abort();
    return (struct log_client){&calls, made, streams, sizeof streams};
}

/* ---- what a test does with it ---- */

static inline struct toy *toy_of(const ls_store *store) {
    const struct log_client *c = log_client_of(store->state.clients, TOY_SET);
    return c != NULL ? c->context : NULL;
}

/* With the lock: appends the record and notes it in memory. `w` is for a key that the transaction has not locked
   yet. */
static inline void toy_put(struct toy *toy, uint32_t key, uint64_t value, struct tx *tx, struct client_work *w) {
    struct log *g = toy->g;
    struct toy_key *k = &toy->keys[key];
    struct toy_value *at = tx != NULL ? &k->pending : &k->now, before = *at;
    struct slot s = log_slot(g, 0, 0, 0);
    uint8_t body[TOY_BODY_BYTES];

    s.id = s.lsn;
    *at = (struct toy_value){.id = s.lsn, .lsn = s.lsn, .value = value, .tx = tx != NULL ? tx->id : 0};
    toy_body(body, key, value, at->tx);
    log_append(g, &s, TOY_SET, format_put_body(&s, TOY_SET, body, TOY_BODY_BYTES));
    log_live_record(g, s.lsn, toy_record_bytes());
    if (before.id != 0)
        log_release_record(g, before.lsn, toy_record_bytes());
    if (w != NULL)
        tx_add_client_work(tx, w);
    k->locked_by = tx != NULL ? tx->id : 0;
}

/* Sets the key, now or at the commit. */
static inline int toy_set(ls_store *store, uint32_t key, uint64_t value, ls_tx *handle, int flags) {
    struct toy *toy = toy_of(store);
    struct client_work *w = NULL;
    struct tx *tx = NULL;
    int rc = work_enter(store, handle);

    if (rc != LS_OK)
        return rc;
    rc = log_reserve_to_grow(store->log, toy_record_bytes(), 0, RESERVE_GROWS);
    rc = rc == LS_OK ? tx_check_work(store, handle, &tx) : rc;
    uint64_t locked_by = toy->keys[key].locked_by;
    if (rc == LS_OK && locked_by != 0 && (tx == NULL || locked_by != tx->id))
        rc = fail(LS_MESSAGE_LOCKED, "key %u is locked by transaction %llu", key, (unsigned long long)locked_by);
    if (rc == LS_OK && tx != NULL && locked_by == 0 && (w = tx_make_client_work(TOY_STREAM, key)) == NULL)
        rc = fail_memory();
    if (rc == LS_OK)
        toy_put(toy, key, value, tx, w);
    return work_leave(store, handle, rc, flags);
}

/* The committed value, 0 if there is none, and the transaction that has locked the key, or 0. */
static inline int toy_get(ls_store *store, uint32_t key, uint64_t *value, uint64_t *locked_by) {
    int rc = store_look(store);

    if (rc != LS_OK)
        return rc;
    *value = toy_of(store)->keys[key].now.value;
    *locked_by = toy_of(store)->keys[key].locked_by;
    return store_leave(store, rc, LEAVE_QUIETLY);
}

#endif
