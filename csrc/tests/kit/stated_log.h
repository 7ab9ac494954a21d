/*
 * Random logs whose places have states: a small writer over forged_log.h, and a model of what each place remembers. The
 * model keeps the bytes of notes and headers, and knows nothing of where they lie.
 */
#ifndef LOGSTORE_STATED_LOG_H
#define LOGSTORE_STATED_LOG_H

#include "store/store.h"
#include "table/remembered.h"
#include "tests/kit/forged_log.h"

enum { SL_MESSAGES = 8, SL_QUEUES = 6, SL_TXS = 2, SL_WORK = 24, SL_NOTE_MAX = 40, SL_HEADER_MAX = 60 };

struct sl_state {
    uint64_t not_before_us, expires_us;
    uint32_t delivery_count;
    uint8_t note[SL_NOTE_MAX], note_bytes;
    bool has_header;
    uint8_t header[SL_HEADER_MAX];
    uint32_t header_bytes;
};

struct sl_place {
    bool is_there;
    uint64_t order_lsn;
    uint32_t order_index;
    struct sl_state state;
};

struct sl_message {
    uint64_t id, last_lsn;
    bool alive, staged, published;
    struct sl_place on[SL_QUEUES + 1];
};

struct sl_work {
    int message;
    uint64_t lsn;
    uint32_t queue, order_index, kind; /* enum pending_kind */
    struct sl_state state;
};

struct sl_tx {
    uint64_t id, last_lsn;
    bool distributed, prepared;
    uint32_t enqueues;
    int n;
    struct sl_work work[SL_WORK];
};

static struct forged sl;

static struct {
    uint64_t chance;
    struct sl_message all[SL_MESSAGES];
    struct sl_tx txs[SL_TXS];
    bool deleted[SL_QUEUES + 1];
    uint32_t kinds[16]; /* how often each operation came */
} model;

static inline uint32_t sl_below(uint32_t n) { return (uint32_t)(chance(&model.chance) % n); }

/* ---- states ---- */

static inline struct sl_state sl_random_state(bool counted, bool may_have_header) {
    struct sl_state s = {.note_bytes = 0};

    s.not_before_us = sl_below(2) ? 1 + sl_below(1000) : 0;
    s.expires_us = sl_below(3) ? 0 : 1 + sl_below(1000);
    s.delivery_count = counted ? sl_below(4) : 0;
    s.note_bytes = sl_below(2) ? (uint8_t)(1 + sl_below(SL_NOTE_MAX)) : 0;
    memset(s.note, 'a' + (int)sl_below(26), s.note_bytes);
    s.has_header = may_have_header && sl_below(2);
    s.header_bytes = s.has_header ? sl_below(SL_HEADER_MAX) : 0;
    memset(s.header, 'A' + (int)sl_below(26), s.header_bytes);
    return s;
}

static inline bool sl_is_nothing(const struct sl_state *s) {
    return s->not_before_us == 0 && s->expires_us == 0 && s->delivery_count == 0 && s->note_bytes == 0 &&
           !s->has_header;
}

static inline struct place_state sl_told(const struct sl_state *s) {
    return (struct place_state){.not_before_us = s->not_before_us,
                                .expires_us = s->expires_us,
                                .delivery_count = s->delivery_count,
                                .header_bytes = s->header_bytes,
                                .header = s->has_header ? s->header : NULL,
                                .note = s->note,
                                .note_bytes = s->note_bytes};
}

/* ---- what a transaction sees ---- */

static inline int sl_pending(int message, uint32_t queue) {
    int n = 0;

    for (int t = 0; t < SL_TXS; t++)
        for (int i = 0; model.txs[t].id != 0 && i < model.txs[t].n; i++)
            n += model.txs[t].work[i].message == message && (queue == 0 || model.txs[t].work[i].queue == queue);
    return n;
}

static inline struct sl_place sl_seen(const struct sl_tx *tx, int message, uint32_t queue) {
    struct sl_place seen = model.all[message].on[queue];

    for (int i = 0; tx != NULL && i < tx->n; i++) {
        const struct sl_work *w = &tx->work[i];

        if (w->message != message || w->queue != queue)
            continue;
        if (w->kind == PENDING_NOTE) {
            memcpy(seen.state.note, w->state.note, sizeof w->state.note);
            seen.state.note_bytes = w->state.note_bytes;
        } else {
            seen.is_there = w->kind == PENDING_ENQUEUE;
            seen.state = w->state;
        }
    }
    return seen;
}

/* Nobody else works on it: then the transaction, or an operation outside (NULL), may. */
static inline bool sl_is_free(const struct sl_tx *tx, int message, uint32_t queue) {
    int own = 0;

    for (int i = 0; tx != NULL && i < tx->n; i++)
        own += tx->work[i].message == message && tx->work[i].queue == queue;
    return !model.deleted[queue] && sl_pending(message, queue) == own;
}

static inline void sl_bury(int message) {
    struct sl_message *m = &model.all[message];
    bool any = m->staged || sl_pending(message, 0) > 0;

    for (uint32_t q = 1; q <= SL_QUEUES; q++)
        any = any || (m->on[q].is_there && !model.deleted[q]);
    m->alive = m->alive && any;
}

/* ---- records ---- */

static inline struct slot sl_slot(struct sl_message *m, uint16_t flags) {
    return forge_slot(&sl, m->id, m->last_lsn, flags);
}

static inline void sl_enqueue(struct sl_tx *tx, int message, uint32_t queue, uint64_t lsn, uint32_t order_index,
                              const struct sl_state *s) {
    struct sl_message *m = &model.all[message];

    if (tx != NULL) {
        tx->work[tx->n++] = (struct sl_work){message, lsn, queue, order_index, PENDING_ENQUEUE, *s};
        return;
    }
    m->on[queue] = (struct sl_place){true, lsn, order_index, *s};
    m->staged = false;
}

static inline void sl_dequeue(struct sl_tx *tx, int message, uint32_t queue, uint64_t lsn) {
    if (tx != NULL)
        tx->work[tx->n++] = (struct sl_work){.message = message, .lsn = lsn, .queue = queue, .kind = PENDING_DEQUEUE};
    else
        model.all[message].on[queue].is_there = false;
}

static inline uint64_t sl_tx_id(const struct sl_tx *tx) { return tx != NULL ? tx->id : 0; }

static inline uint32_t sl_number(struct sl_tx *tx, uint32_t n) {
    uint32_t first = tx != NULL ? tx->enqueues : 0;

    if (tx != NULL)
        tx->enqueues += n;
    return first;
}

/* A start with or without a state, on some queues; without any it is staged. */
static inline void sl_publish(struct sl_tx *tx) {
    uint32_t queues[SL_QUEUES], n = 0;
    int message = -1;

    for (int i = 0; i < SL_MESSAGES; i++)
        message = !model.all[i].alive && sl_pending(i, 0) == 0 ? i : message;
    if (message < 0)
        return;
    for (uint32_t q = 1; q <= SL_QUEUES; q++)
        if (!model.deleted[q] && sl_below(3) == 0)
            queues[n++] = q;
    struct sl_message *m = &model.all[message];
    struct sl_state s = sl_random_state(false, false);
    struct slot at = forge_slot(&sl, 0, 0, n > 0 ? FLAG_PUBLISHED : 0);
    struct message_start start = {.queue_count = n, .header = (const uint8_t *)"h", .header_bytes = 1};

    tx = n > 0 ? tx : NULL;
    start.tx_id = sl_tx_id(tx);
    start.order_index = sl_number(tx, n);
    start.content = (const uint8_t *)"con";
    start.content_bytes = 3;
    *m = (struct sl_message){.id = at.lsn, .last_lsn = at.lsn, .alive = true, .staged = true, .published = n > 0};
    if (n > 0 && !sl_is_nothing(&s)) {
        struct place_state told = sl_told(&s);
        (void)forge_add(&sl, format_put_start_placed(&at, &start, queues, &told));
    } else {
        s = (struct sl_state){.note_bytes = 0};
        (void)forge_add(&sl, format_put_start(&at, start.tx_id, start.order_index, queues, n, "h", 1, "con", 3));
    }
    for (uint32_t i = 0; i < n; i++)
        sl_enqueue(tx, message, queues[i], m->id, tx != NULL ? start.order_index + i : 0, &s);
}

static inline void sl_note(struct sl_tx *tx, int message, uint32_t queue) {
    struct sl_message *m = &model.all[message];
    struct sl_state s = sl_random_state(false, false);
    struct slot at = sl_slot(m, 0);
    struct message_place p = {sl_tx_id(tx), queue, s.note_bytes, s.note};

    m->last_lsn = forge_add(&sl, format_put_place(&at, &p));
    s.not_before_us = s.expires_us = 0;
    if (tx != NULL) {
        tx->work[tx->n++] = (struct sl_work){message, at.lsn, queue, 0, PENDING_NOTE, s};
        return;
    }
    m->on[queue].state.note_bytes = s.note_bytes;
    memcpy(m->on[queue].state.note, s.note, sizeof s.note);
}

/* from 0: no place ends. */
static inline void sl_move(struct sl_tx *tx, int message, uint32_t from, uint32_t queue) {
    struct sl_message *m = &model.all[message];
    struct sl_state s = sl_random_state(true, true), ends = {.note_bytes = 0};
    struct message_move move = {.tx_id = sl_tx_id(tx), .from_queue_id = from, .queue_id = queue};
    struct slot at = sl_slot(m, 0);

    if (from != 0)
        ends = sl_seen(tx, message, from).state;
    move.order_index = sl_number(tx, 1);
    move.keeps_note = from != 0 && s.note_bytes == 0 && sl_below(2);
    move.keeps_header = from != 0 && !s.has_header && sl_below(2);
    move.state = sl_told(&s);
    m->last_lsn = forge_add(&sl, format_put_move(&at, &move));
    if (move.keeps_note) {
        s.note_bytes = ends.note_bytes;
        memcpy(s.note, ends.note, sizeof s.note);
    }
    if (move.keeps_header) {
        s.has_header = ends.has_header;
        s.header_bytes = ends.header_bytes;
        memcpy(s.header, ends.header, sizeof s.header);
    }
    if (from != 0)
        sl_dequeue(tx, message, from, at.lsn);
    sl_enqueue(tx, message, queue, at.lsn, move.order_index, &s);
}

static inline void sl_states(void) {
    struct state_row rows[SL_MESSAGES];
    uint32_t n = 0;
    struct slot at;

    for (int i = 0; i < SL_MESSAGES; i++) {
        uint32_t q = 1 + sl_below(SL_QUEUES);
        struct sl_place *p = &model.all[i].on[q];

        if (!model.all[i].alive || !p->is_there || model.deleted[q] || sl_below(2))
            continue;
        struct sl_state s = sl_random_state(true, false);
        rows[n++] = (struct state_row){model.all[i].id, s.not_before_us, s.expires_us, q, s.delivery_count};
        p->state.not_before_us = s.not_before_us;
        p->state.expires_us = s.expires_us;
        p->state.delivery_count = s.delivery_count;
    }
    if (n == 0)
        return;
    at = forge_slot(&sl, 0, 0, 0);
    at.id = 0;
    (void)forge_add(&sl, format_put_place_states(&at, rows, n));
    model.kinds[8]++;
}

/* The message's whole state, as relocation writes it. */
static inline void sl_relocate(int message) {
    struct sl_message *m = &model.all[message];
    struct place_row rows[SL_QUEUES];
    struct place_state states[SL_QUEUES], work_states[SL_TXS * SL_WORK];
    struct pending_row work[SL_TXS * SL_WORK];
    struct message_relocated counts = {.content_bytes = 3};
    struct slot at = sl_slot(m, (uint16_t)(FLAG_COPY | (m->published ? FLAG_PUBLISHED : 0)));
    bool wide = false;

    counts.start_lsn = m->last_lsn = forge_add(&sl, format_put_start(&at, 0, 0, NULL, 0, "h", 1, "con", 3));
    for (uint32_t q = 1; q <= SL_QUEUES; q++) {
        const struct sl_place *p = &m->on[q];

        if (!p->is_there || model.deleted[q])
            continue;
        states[counts.place_count] = sl_told(&p->state);
        rows[counts.place_count++] = (struct place_row){.order_lsn = p->order_lsn,
                                                        .queue_id = q,
                                                        .order_index = p->order_index,
                                                        .delivery_count = p->state.delivery_count};
        wide = wide || !sl_is_nothing(&p->state);
    }
    for (int t = 0; t < SL_TXS; t++)
        for (int i = 0; model.txs[t].id != 0 && i < model.txs[t].n; i++) {
            const struct sl_work *w = &model.txs[t].work[i];

            if (w->message != message || model.deleted[w->queue])
                continue;
            work_states[counts.pending_count] = sl_told(&w->state);
            work[counts.pending_count++] =
                (struct pending_row){model.txs[t].id, w->lsn, w->queue, w->kind, w->order_index};
            wide = wide || w->kind == PENDING_NOTE || !sl_is_nothing(&w->state);
        }
    at = sl_slot(m, m->staged ? FLAG_STAGED : 0);
    if (wide)
        m->last_lsn = forge_add(&sl, format_put_relocated_placed(&at, &counts, NULL, rows, states, work, work_states));
    else
        m->last_lsn = forge_add(&sl, format_put_relocated(&at, &counts, NULL, rows, work));
    model.kinds[wide ? 9 : 10]++;
}

/* ---- transactions ---- */

static const struct xid sl_xid = {.format_id = 1, .gtrid_bytes = 4, .data = "sltx"};

static inline void sl_begin(int t) {
    struct slot at = forge_slot(&sl, 0, 0, 0);

    model.txs[t] = (struct sl_tx){.id = at.lsn, .last_lsn = at.lsn, .distributed = t == 1};
    (void)forge_add(&sl, t == 1 ? format_put_xid(&at, DTX_START, &sl_xid) : format_put_plain(&at, TX_START));
}

static inline void sl_step(struct sl_tx *tx, enum record_type type) {
    struct slot at = forge_slot(&sl, tx->id, tx->last_lsn, 0);

    tx->last_lsn =
        forge_add(&sl, type == TX_PREPARE ? format_put_xid(&at, type, &sl_xid) : format_put_plain(&at, type));
}

static inline void sl_prepare(struct sl_tx *tx) {
    sl_step(tx, TX_END);
    sl_step(tx, TX_PREPARE);
    tx->prepared = true;
}

static inline void sl_undo(struct sl_tx *tx) {
    struct sl_tx undone = *tx;

    tx->id = 0;
    for (int i = 0; i < undone.n; i++) {
        struct sl_message *m = &model.all[undone.work[i].message];
        bool placed = false;

        for (uint32_t q = 1; q <= SL_QUEUES; q++)
            placed = placed || m->on[q].is_there;
        m->staged = m->staged && !(m->published && !placed && sl_pending(undone.work[i].message, 0) == 0);
    }
    for (int i = 0; i < undone.n; i++)
        sl_bury(undone.work[i].message);
}

static inline void sl_commit(struct sl_tx *tx) {
    struct sl_tx done = *tx;

    if (tx->distributed && !tx->prepared)
        sl_step(tx, TX_END);
    sl_step(tx, TX_COMMIT);
    done.last_lsn = tx->last_lsn;
    tx->id = 0;
    for (int i = 0; i < done.n; i++) {
        const struct sl_work *w = &done.work[i];
        struct sl_place *p = &model.all[w->message].on[w->queue];

        if (w->kind == PENDING_ENQUEUE)
            model.all[w->message].staged = false;
        if (model.deleted[w->queue])
            continue;
        if (w->kind == PENDING_ENQUEUE) {
            *p = (struct sl_place){true, done.last_lsn, w->order_index, w->state};
        } else if (w->kind == PENDING_DEQUEUE) {
            p->is_there = false;
        } else {
            p->state.note_bytes = w->state.note_bytes;
            memcpy(p->state.note, w->state.note, sizeof p->state.note);
        }
    }
    for (int i = 0; i < done.n; i++)
        sl_bury(done.work[i].message);
}

/* ---- a step ---- */

static inline void sl_delete_queue(uint32_t queue) {
    struct slot at = forge_slot(&sl, 0, 0, 0);

    at.id = 0;
    (void)forge_add(&sl, format_put_queue_delete(&at, queue));
    model.deleted[queue] = true;
    for (int i = 0; i < SL_MESSAGES; i++) {
        model.all[i].on[queue].is_there = false;
        sl_bury(i);
    }
}

static inline void sl_work_on(struct sl_tx *tx, int message) {
    struct sl_message *m = &model.all[message];
    uint32_t queue = 1 + sl_below(SL_QUEUES), other = 1 + sl_below(SL_QUEUES), kind = sl_below(8);
    bool is_free = sl_is_free(tx, message, queue), there = is_free && sl_seen(tx, message, queue).is_there;
    bool other_free = sl_is_free(tx, message, other) && (other == queue || !sl_seen(tx, message, other).is_there);
    struct slot at;

    if (!m->alive || !is_free || (tx != NULL && (tx->prepared || tx->n + 2 > SL_WORK)))
        return;
    if (there && kind < 3) {
        sl_note(tx, message, queue);
        model.kinds[0]++;
    } else if (there && kind < 6 && other_free) {
        sl_move(tx, message, queue, other);
        model.kinds[1]++;
    } else if (there) {
        at = sl_slot(m, 0);
        m->last_lsn = forge_add(&sl, format_put_dequeue(&at, &(struct message_dequeue){sl_tx_id(tx), queue, 0, 0}));
        sl_dequeue(tx, message, queue, at.lsn);
        sl_bury(message);
        model.kinds[2]++;
    } else if (kind < 4) {
        sl_move(tx, message, 0, queue);
        model.kinds[3]++;
    } else {
        uint32_t index = sl_number(tx, 1);
        struct sl_state nothing = {.note_bytes = 0};

        at = sl_slot(m, 0);
        m->last_lsn = forge_add(&sl, format_put_enqueue(&at, sl_tx_id(tx), index, &queue, 1));
        sl_enqueue(tx, message, queue, at.lsn, index, &nothing);
        model.kinds[4]++;
    }
}

static inline void sl_any(bool deletes) {
    int t = (int)sl_below(SL_TXS), message = (int)sl_below(SL_MESSAGES);
    struct sl_tx *tx = model.txs[t].id != 0 ? &model.txs[t] : NULL;
    struct sl_tx *active = tx != NULL && !tx->prepared && sl_below(2) ? tx : NULL;
    uint32_t what = sl_below(40);

    if (what < 6) {
        sl_publish(active);
    } else if (what < 9) {
        sl_states();
    } else if (what < 12) {
        if (model.all[message].alive)
            sl_relocate(message);
    } else if (what < 14) {
        if (tx == NULL)
            sl_begin(t);
        else if (tx->distributed && !tx->prepared)
            sl_prepare(tx);
    } else if (what < 16 && tx != NULL) {
        sl_commit(tx);
        model.kinds[5]++;
    } else if (what == 16 && tx != NULL) {
        sl_step(tx, TX_ROLLBACK);
        sl_undo(tx);
        model.kinds[6]++;
    } else if (what == 17 && deletes) {
        uint32_t queue = 1 + sl_below(SL_QUEUES);

        if (!model.deleted[queue])
            sl_delete_queue(queue);
        model.kinds[7]++;
    } else {
        sl_work_on(active, message);
    }
}

/* ---- logs ---- */

/* A closed store; the log begins after its end. */
static inline void sl_start(uint64_t seed) {
    uint32_t kinds[16];

    fresh();
    memcpy(kinds, model.kinds, sizeof kinds);
    memset(&model, 0, sizeof model);
    memcpy(model.kinds, kinds, sizeof kinds);
    model.chance = seed;
    forge_begin(&sl);
}

static inline bool sl_has_room(void) { return sl.lsn + sl.bytes - sl.first_lsn + 8000 < SEGMENT; }

/* One batch of a few operations; on the disk afterwards. */
static inline void sl_batch(bool deletes) {
    int n = 1 + (int)sl_below(6);

    while (sl.count == 0 || n-- > 0)
        sl_any(deletes);
    forge_end(&sl);
}

static inline void sl_next_batch(void) {
    sl.lsn += sl.bytes;
    sl.bytes = BATCH_RECORD_BYTES;
    sl.count = 0;
}

/* The end of a recovery: transactions that are not prepared are rolled back, messages that were only staged are dropped. */
static inline void sl_recover(void) {
    for (int t = 0; t < SL_TXS; t++)
        if (model.txs[t].id != 0 && !model.txs[t].prepared)
            sl_undo(&model.txs[t]);
    for (int t = 0; t < SL_TXS; t++) {
        struct sl_tx *tx = &model.txs[t];
        int kept = 0;

        for (int i = 0; tx->id != 0 && i < tx->n; i++)
            if (!model.deleted[tx->work[i].queue])
                tx->work[kept++] = tx->work[i];
        tx->n = tx->id != 0 ? kept : tx->n;
    }
    for (int i = 0; i < SL_MESSAGES; i++) {
        model.all[i].staged = model.all[i].staged && sl_pending(i, 0) > 0;
        sl_bury(i);
    }
}

/* ---- comparing ---- */

static inline bool sl_same_bytes(const struct own_bytes *own, const uint8_t *wanted, uint32_t bytes) {
    const uint8_t *record = sl.image + (own->lsn - sl.first_lsn);
    bool inside = own->lsn >= sl.first_lsn && own->lsn + own->record_bytes <= sl.lsn + sl.bytes;

    return inside && get32(record + 12) == own->record_bytes && own->at + own->bytes <= own->record_bytes &&
           own->bytes == bytes && memcmp(record + own->at, wanted, bytes) == 0;
}

static inline bool sl_same_state(const struct remembered *s, const struct sl_state *m) {
    static const struct own no_own;
    const struct own *own = s->own != NULL ? s->own : &no_own;
    bool note = own->note.lsn == 0 ? m->note_bytes == 0 : sl_same_bytes(&own->note, m->note, m->note_bytes);
    bool header = own->header.lsn == 0 ? !m->has_header
                                       : m->has_header && sl_same_bytes(&own->header, m->header, m->header_bytes);

    return note && header && s->not_before_us == m->not_before_us && s->expires_us == m->expires_us &&
           s->delivery_count == m->delivery_count;
}

static inline bool sl_same_work(const struct message *m, int message) {
    static const struct remembered none;
    int n = 0;

    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        const struct sl_tx *tx = NULL;
        const struct sl_work *found = NULL;

        for (int t = 0; t < SL_TXS; t++)
            tx = model.txs[t].id == w->tx->id ? &model.txs[t] : tx;
        for (int i = 0; tx != NULL && i < tx->n; i++) {
            const struct sl_work *one = &tx->work[i];
            bool same = one->message == message && one->lsn == w->lsn && one->queue == w->queue_id &&
                        one->kind == (uint32_t)w->kind && one->order_index == w->order_index;
            found = same ? one : found;
        }
        if (found == NULL || !sl_same_state(w->state != NULL ? w->state : &none, &found->state))
            return false;
        n++;
    }
    return n == sl_pending(message, 0);
}

/* Whether the table has what the model has; the log has been settled. */
static inline bool sl_same(const struct table *t) {
    for (int i = 0; i < SL_MESSAGES; i++) {
        const struct sl_message *wanted = &model.all[i];
        uint32_t number = wanted->id != 0 ? table_find(t, wanted->id) : INDEX_NONE, places = 0;
        bool same = (number != INDEX_NONE) == wanted->alive;

        for (uint32_t q = 1; same && wanted->alive && q <= SL_QUEUES; q++) {
            const struct sl_place *p = &wanted->on[q];
            const struct place *place = message_place(table_message(t, number), q);
            const struct remembered s = place != NULL ? place_state(place) : (struct remembered){.own = NULL};

            same = (place != NULL) == p->is_there;
            places += p->is_there;
            same = same && (place == NULL ||
                            (place_entry(place)->order_lsn == p->order_lsn &&
                             place_entry(place)->order_index == p->order_index && sl_same_state(&s, &p->state)));
            if (!same)
                printf("message %llu on queue %u\n", (unsigned long long)wanted->id, (unsigned)q);
        }
        same = same && (!wanted->alive || sl_same_work(table_message(t, number), i));
        if (!same) {
            printf("message %llu (%s)\n", (unsigned long long)wanted->id, wanted->alive ? "alive" : "dead");
            return false;
        }
    }
    return true;
}

#endif
