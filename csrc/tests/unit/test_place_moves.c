/*
 * Notes, moves, times, and headers of places' own: random operations on one store, compared byte by byte with a plain model of
 * every place, through transactions, opens, kills, power cuts, checkpoints and relocation. Then refusals, a full store,
 * calls without memory, and calls that may not wait.
 */
#include "tests/kit/failing_memory.h"

#include "relocate/parts.h"
#include "tests/kit/move_base.h"
#include "tests/kit/one_store.h"
#include "tests/kit/tallies.h"

enum { QUEUES_HERE = 3, MESSAGES_HERE = 24, TXS_HERE = 2, UNFORCED_MAX = 12 };

/* ---- the model ---- */

struct bytes {
    uint32_t seed, bytes;
};

struct mplace {
    bool there, has_header, acquired, is_new; /* is_new: in a transaction, its order comes with the commit */
    struct bytes note, header;
    ls_times times;
    uint32_t count;       /* of times it was handed out */
    uint32_t count_least; /* what a crash leaves of it at least */
    uint64_t order;
    ls_delivery delivery; /* if it is acquired */
};

struct mmessage {
    uint64_t id; /* 0: none */
    bool staged;
    struct bytes header, content;
    struct mplace places[QUEUES_HERE + 1];
    struct mplace pending[QUEUES_HERE + 1]; /* as the transaction sees them, which owners[] has; 0: none */
    uint64_t owners[QUEUES_HERE + 1];
};

struct mtx {
    uint64_t id; /* 0: not begun */
    bool distributed, ended, prepared;
    int operations;
};

struct model {
    struct mmessage all[MESSAGES_HERE];
    struct mtx txs[TXS_HERE];
    uint64_t clock;
    unsigned queues; /* bits */
    uint32_t next_queue;
};

static struct model now, unforced[UNFORCED_MAX + 1];
static int unforced_count;
static ls_tx *handles[TXS_HERE];

static uint64_t pick(uint64_t n) { return chance(&r.chance) % n; }

static bool is_pending(const struct mmessage *m) {
    bool some = false;

    for (int q = 1; q <= QUEUES_HERE; q++)
        some = some || m->owners[q] != 0;
    return some;
}

static void bury(struct mmessage *m) {
    bool alive = m->staged || is_pending(m);

    for (int q = 1; q <= QUEUES_HERE; q++)
        alive = alive || m->places[q].there;
    if (!alive)
        *m = (struct mmessage){.id = 0};
}

static void outcome(struct model *o, uint64_t tx, bool commits) {
    uint64_t at = ++o->clock << 32;

    for (int i = 0; i < MESSAGES_HERE; i++) {
        struct mmessage *m = &o->all[i];

        for (int q = 1; q <= QUEUES_HERE; q++) {
            if (m->id == 0 || m->owners[q] != tx)
                continue;
            m->owners[q] = 0;
            if (commits && o->queues & 1u << q) {
                struct mplace was = m->places[q];

                m->places[q] = m->pending[q];
                if (m->places[q].is_new) {
                    m->places[q].order = at | m->places[q].order;
                } else { /* only its note is another */
                    m->places[q].acquired = was.acquired;
                    m->places[q].delivery = was.delivery;
                    m->places[q].count = was.count;
                    m->places[q].count_least = was.count_least;
                }
                m->places[q].is_new = false;
                m->staged = m->staged && !m->places[q].there;
            }
        }
        if (m->id != 0)
            bury(m);
    }
}

/* The state that an open finds. */
static void opened(struct model *o) {
    for (int t = 0; t < TXS_HERE; t++) {
        if (o->txs[t].id != 0 && !o->txs[t].prepared) {
            outcome(o, o->txs[t].id, false);
            o->txs[t] = (struct mtx){.id = 0};
        }
    }
    for (int i = 0; i < MESSAGES_HERE; i++) {
        struct mmessage *m = &o->all[i];

        m->staged = m->staged && is_pending(m);
        for (int q = 1; q <= QUEUES_HERE; q++)
            m->places[q].acquired = false;
        if (m->id != 0)
            bury(m);
    }
}

/* ---- the verdict ---- */

static bool loads(const struct mmessage *m, uint32_t queue, uint64_t position, int what, struct bytes b, bool has) {
    static uint8_t into[CONTENT_MAX];
    size_t done_bytes = 1;
    int has_it = 1;

    return ls_load_place(r.store, queue, m->id, position, what, into, sizeof into, &done_bytes, &has_it) == LS_OK &&
           (has_it != 0) == has && done_bytes == (has ? b.bytes : 0) &&
           memcmp(into, content_of(b.seed), done_bytes) == 0;
}

static bool has_times(const struct mmessage *m, uint32_t queue, uint64_t position, ls_times times) {
    ls_times found;

    return ls_place_times(r.store, queue, m->id, position, &found) == LS_OK &&
           found.not_before_us == times.not_before_us && found.expires_us == times.expires_us;
}

static bool message_loads(const struct mmessage *m) {
    static uint8_t into[CONTENT_MAX];
    size_t n;

    if (ls_load_header(r.store, m->id, into, sizeof into, &n) != LS_OK || n != m->header.bytes ||
        memcmp(into, content_of(m->header.seed), n) != 0)
        return false;
    return ls_load_content(r.store, m->id, 0, into, sizeof into, &n) == LS_OK && n == m->content.bytes &&
           memcmp(into, content_of(m->content.seed), n) == 0;
}

static const struct place *place_in_table(uint64_t id, uint32_t queue) {
    struct table *t = &r.store->state.table;
    uint32_t number = table_find(t, id);

    return number != INDEX_NONE ? message_place(table_message(t, number), queue) : NULL;
}

/* How often the place was handed out, as the table has it. */
static uint32_t count_of(uint64_t id, uint32_t queue) {
    const struct place *p = place_in_table(id, queue);
    const struct hand_out *h = p->at.chunk->handed_out;
    uint32_t kept = place_state(p).delivery_count;

    return h != NULL && h[p->slot].count > kept ? h[p->slot].count : kept;
}

/* A relocation would write at most the bytes that are counted: those of the records that live, and the growth. */
static bool growth_covers(const struct mmessage *of) {
    struct table *t = &r.store->state.table;
    struct message *m = table_message(t, table_find(t, of->id));
    struct inline_form f;
    uint64_t counted = message_start_weight(m), moved;

    if (m->extra == NULL)
        return (m->flags & (MESSAGE_LOOSE | MESSAGE_WIDE)) != 0 || !message_has_states(t, m);
    counted += (uint64_t)m->extra->growth + m->extra->work_state + m->extra->work_rows;
    counted += (m->flags & MESSAGE_LOOSE) != 0 ? STATE_BYTES : 0;
    counted += (m->flags & MESSAGE_WIDE) != 0 ? WIDER_ROW_BYTES : 0;
    for (uint32_t i = 0; i < m->extra->part_count; i++)
        counted += m->extra->parts[i].record_bytes;
    if (chain_has_inline_form(t, m, &f))
        moved = format_start_bytes(of->header.bytes, m->content_bytes, f.queue_count);
    else
        moved = format_start_bytes(of->header.bytes, m->content_bytes, 0) + chain_state_bytes(t, m);
    if (moved > counted)
        printf("message %llu: %llu bytes are counted, and %llu would be moved\n", (unsigned long long)of->id,
               (unsigned long long)counted, (unsigned long long)moved);
    return moved <= counted;
}

static const struct mmessage *model_of(const struct model *o, uint64_t id) {
    for (int i = 0; i < MESSAGES_HERE; i++) {
        if (o->all[i].id == id)
            return &o->all[i];
    }
    return NULL;
}

static bool queue_agrees(const struct model *o, uint32_t queue, const char **why) {
    ls_place places[MESSAGES_HERE + 1];
    ls_cursor *c;
    size_t n = 0, expected = 0;
    uint64_t last = 0;
    bool same = ls_cursor_open(r.store, queue, LS_CURSOR_ALL, &c) == LS_OK &&
                ls_cursor_next(c, places, MESSAGES_HERE + 1, &n) == LS_OK;

    for (int i = 0; i < MESSAGES_HERE; i++)
        expected += o->all[i].id != 0 && o->all[i].places[queue].there;
    *why = "the number of places";
    same = same && n == expected;
    for (size_t i = 0; same && i < n; i++) {
        const struct mmessage *m = model_of(o, places[i].id);
        const struct mplace *p = m != NULL ? &m->places[queue] : NULL;

        *why = "which places there are, and their order";
        if (p == NULL || !p->there || p->order <= last)
            same = false;
        *why = same ? "locks" : *why;
        same = same && (places[i].locked != 0) == (m->owners[queue] != 0);
        *why = same ? "whether it has a header" : *why;
        same = same && (places[i].has_header != 0) == p->has_header;
        *why = same ? "its header" : *why;
        same = same && loads(m, queue, places[i].position, LS_PLACE_HEADER, p->header, p->has_header);
        *why = same ? "its note" : *why;
        same = same && loads(m, queue, places[i].position, LS_PLACE_NOTE, p->note, p->note.bytes > 0);
        *why = same ? "its times" : *why;
        same = same && has_times(m, queue, places[i].position, p->times);
        last = p != NULL ? p->order : 0;
    }
    ls_cursor_close(c);
    return same;
}

/* Without counts. */
static bool agrees(const struct model *o, const char **why) {
    bool same = true;
    ls_stats stats;
    uint64_t there = 0;

    for (uint32_t q = 1; same && q <= QUEUES_HERE; q++)
        same = (o->queues & 1u << q) == 0 || queue_agrees(o, q, why);
    for (int i = 0; same && i < MESSAGES_HERE; i++) {
        there += o->all[i].id != 0;
        *why = "header or content of a message";
        same = o->all[i].id == 0 || message_loads(&o->all[i]);
    }
    ls_stats_get(r.store, &stats);
    *why = same ? "the number of messages" : *why;
    return same && stats.messages == there;
}

/* After a crash a count may have been lost, down to what its record had. */
static bool counts_agree(struct model *o, bool opened_anew, bool after_crash) {
    bool same = true;

    for (int i = 0; i < MESSAGES_HERE; i++) {
        for (uint32_t q = 1; o->all[i].id != 0 && q <= QUEUES_HERE; q++) {
            struct mplace *p = &o->all[i].places[q];

            if (p->there) {
                uint32_t found = count_of(o->all[i].id, q);

                same = same && found <= p->count && found >= (after_crash ? p->count_least : p->count);
                p->count = found;
                p->count_least = opened_anew ? found : p->count_least;
            }
        }
    }
    return same;
}

static void verify(void) {
    const char *why = "";

    check(agrees(&now, &why) || (printf("  differs: %s\n", why), false));
    check(counts_agree(&now, false, false));
    for (int i = 0; i < MESSAGES_HERE; i++)
        check(now.all[i].id == 0 || growth_covers(&now.all[i]));
    check(tallies_are_those_of_a_walk(&r.store->state.table));
}

/* ---- durability ---- */

static void forced(void) {
    unforced[0] = now;
    unforced_count = 1;
}

static void force(void) {
    check(ls_force(r.store, 0) == LS_OK);
    forced();
}

/* A crash leaves some prefix of what was not forced. */
static void changed(void) {
    if (unforced_count > UNFORCED_MAX)
        force();
    else
        unforced[unforced_count++] = now;
}

static void take_doubts(void) {
    for (int t = 0; t < TXS_HERE; t++) {
        ls_tx_free(handles[t]);
        handles[t] = NULL;
        if (now.txs[t].id != 0) {
            check(ls_in_doubt_take(r.store, now.txs[t].id, &handles[t]) == LS_OK);
            now.txs[t].ended = true;
        }
    }
}

static void open_anew(void) {
    r.options.no_checkpoint = (int)pick(2);
    again();
    opened(&now);
    check(counts_agree(&now, true, false));
    take_doubts();
    forced();
}

static void crash(bool power) {
    const vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    vfs_sim *found = power ? vfs_sim_crash(sim, &all) : vfs_sim_clone(sim);
    const char *why = "";
    uint32_t queues = now.queues;
    bool same = false;

    for (int t = 0; t < TXS_HERE; t++) {
        ls_tx_free(handles[t]);
        handles[t] = NULL;
    }
    ls_free(r.store);
    vfs_sim_free(sim);
    sim = r.sim = found;
    r.v = vfs_sim_table(sim);
    r.options.no_checkpoint = (int)pick(2);
    require(open_again() == LS_OK || complain("open"));
    for (int i = unforced_count - 1; !same && i >= 0; i--) {
        struct model o = unforced[i];

        opened(&o);
        for (int k = 0; k < MESSAGES_HERE; k++) {
            for (int q = 1; q <= QUEUES_HERE; q++) { /* the catalog deletes first */
                if ((queues & 1u << q) == 0) {
                    o.all[k].places[q].there = false;
                    o.all[k].owners[q] = 0;
                }
            }
            if (o.all[k].id != 0)
                bury(&o.all[k]);
        }
        o.queues = queues;
        same = agrees(&o, &why);
        if (same)
            now = o;
    }
    check(same || (printf("  differs: %s\n", why), false));
    check(counts_agree(&now, true, true));
    take_doubts();
    forced();
}

/* ---- operations ---- */

static struct bytes any_bytes(const uint32_t *limits, size_t n) {
    struct bytes b = {.seed = (uint32_t)pick(1 << 20)};

    b.bytes = (uint32_t)pick((uint64_t)limits[pick(n)] + 1);
    return b;
}

static struct bytes any_note(void) {
    static const uint32_t limits[] = {0, 3, 40, 255};
    return any_bytes(limits, 4);
}

static struct bytes any_header(void) {
    static const uint32_t limits[] = {0, 30, 200, 200, 1500, 3600};
    return any_bytes(limits, 6);
}

/* They hide nothing: long ago, and far ahead. */
static ls_times any_times(void) {
    uint64_t not_before = pick(3) == 0 ? 0 : 1 + pick(1000);

    return (ls_times){.not_before_us = not_before, .expires_us = pick(2) ? 0 : PLACE_TIME_MAX - pick(1000)};
}

static uint32_t any_queue_here(void) {
    uint32_t q;

    do
        q = 1 + (uint32_t)pick(QUEUES_HERE);
    while ((now.queues & 1u << q) == 0);
    return q;
}

static struct mmessage *any_message(bool free) {
    int from = (int)pick(MESSAGES_HERE);

    for (int i = 0; i < MESSAGES_HERE; i++) {
        struct mmessage *m = &now.all[(from + i) % MESSAGES_HERE];

        if ((m->id == 0) == free)
            return m;
    }
    return NULL;
}

/* The open transaction of an operation, or none. */
static int any_tx(void) {
    int t = (int)pick(2 * TXS_HERE);

    if (t >= TXS_HERE || now.txs[t].id == 0 || now.txs[t].ended || now.txs[t].operations > 20)
        return -1;
    return t;
}

static ls_tx *handle_of(int t) { return t >= 0 ? handles[t] : NULL; }

/* Whether the operation may touch the place, and the place as it sees it. */
static struct mplace *seen(struct mmessage *m, uint32_t q, int t) {
    if (m->owners[q] == 0)
        return &m->places[q];
    return t >= 0 && m->owners[q] == now.txs[t].id ? &m->pending[q] : NULL;
}

static struct mplace *change(struct mmessage *m, uint32_t q, int t) {
    if (t < 0)
        return &m->places[q];
    if (m->owners[q] == 0) {
        m->pending[q] = m->places[q];
        m->pending[q].is_new = false;
        m->owners[q] = now.txs[t].id;
    }
    now.txs[t].operations++;
    return &m->pending[q];
}

static void appear(struct mmessage *m, uint32_t q, int t, struct mplace as) {
    struct mplace *p = change(m, q, t);

    as.there = true;
    as.acquired = false;
    as.is_new = t >= 0;
    as.order = ++now.clock;
    as.order = t >= 0 ? as.order : as.order << 32;
    *p = as;
    m->staged = m->staged && t >= 0;
}

static void go(struct mmessage *m, uint32_t q, int t) { *change(m, q, t) = (struct mplace){.is_new = t >= 0}; }

static int wait_now(int t) { return t < 0 && pick(4) == 0 ? LS_WAIT : 0; }

static void did(int flags) {
    if ((flags & LS_WAIT) != 0)
        forced();
    else
        changed();
}

static void put_one(void) {
    static const uint32_t limits[] = {20, 200, 3000, 12000}; /* the last is more than a record holds */
    struct mmessage *m = any_message(true);
    int t = any_tx(), flags = wait_now(t);
    uint32_t ids[2];
    size_t n = 0;

    if (m == NULL)
        return;
    *m = (struct mmessage){.header = any_bytes(limits, 2), .content = any_bytes(limits, 4)};
    struct mplace made = {.count = 0};
    if (pick(5) == 0) { /* staged, and perhaps continued */
        uint32_t half = m->content.bytes / 2;

        check(ls_stage(r.store, content_of(m->header.seed), m->header.bytes, content_of(m->content.seed), half, 0,
                       &m->id) == LS_OK);
        check(half == m->content.bytes || ls_append_content(r.store, m->id, content_of(m->content.seed) + half,
                                                            m->content.bytes - half, flags) == LS_OK);
        m->staged = true;
        force();
        return;
    }
    ids[n++] = any_queue_here();
    ids[n] = any_queue_here();
    n += ids[1] != ids[0];
    made.times = pick(2) ? any_times() : made.times;
    check(ls_publish_timed(r.store, ids, n, content_of(m->header.seed), m->header.bytes, content_of(m->content.seed),
                           m->content.bytes, &made.times, handle_of(t), flags, &m->id) == LS_OK);
    for (size_t i = 0; i < n; i++)
        appear(m, ids[i], t, made);
    if (n == 2 && t < 0) /* of one record */
        m->places[ids[1]].order = m->places[ids[0]].order;
    did(flags);
}

/* On one more queue, as a plain enqueue or with a state. */
static void add_one(void) {
    struct mmessage *m = any_message(false);
    uint32_t q = any_queue_here();
    int t = any_tx(), flags = wait_now(t);
    struct mplace made = {.count = 0};
    uint64_t lsn;

    if (m == NULL || seen(m, q, t) == NULL || seen(m, q, t)->there)
        return;
    made.times = pick(2) ? any_times() : made.times;
    if (pick(2)) {
        check(ls_enqueue_timed(r.store, m->id, &q, 1, &made.times, handle_of(t), flags, &lsn) == LS_OK ||
              complain("enqueue"));
    } else {
        ls_place_move move = {
            .queue_id = q, .header_given = (int)pick(2), .note_given = (int)pick(2), .times = made.times};

        made.has_header = move.header_given != 0;
        made.header = made.has_header ? any_header() : made.header;
        made.note = move.note_given != 0 ? any_note() : made.note;
        move.header = content_of(made.header.seed);
        move.header_bytes = made.header.bytes;
        move.note = content_of(made.note.seed);
        move.note_bytes = made.note.bytes;
        check(ls_move(r.store, m->id, &move, NULL, handle_of(t), flags, &lsn) == LS_OK || complain("move from none"));
    }
    appear(m, q, t, made);
    did(flags);
}

static bool any_seen_place(int t, struct mmessage **m, uint32_t *q) {
    for (int tries = 0; tries < 30; tries++) {
        *m = any_message(false);
        *q = any_queue_here();
        if (*m != NULL && seen(*m, *q, t) != NULL && seen(*m, *q, t)->there)
            return true;
    }
    return false;
}

static void annotate_one(void) {
    int t = any_tx(), flags = wait_now(t);
    struct bytes note = any_note();
    struct mmessage *m;
    uint32_t q;
    uint64_t lsn;

    if (!any_seen_place(t, &m, &q))
        return;
    check(ls_annotate(r.store, m->id, q, content_of(note.seed), note.bytes, handle_of(t), flags, &lsn) == LS_OK ||
          complain("annotate"));
    change(m, q, t)->note = note;
    did(flags);
}

static void move_one(void) {
    int t = any_tx(), flags = wait_now(t);
    struct mmessage *m;
    uint32_t q, to = any_queue_here();
    uint64_t lsn;
    struct mplace made = {.count = 0}, from;

    if (!any_seen_place(t, &m, &q) || (to != q && (seen(m, to, t) == NULL || seen(m, to, t)->there)))
        return;
    from = *seen(m, q, t);
    ls_place_move move = {.from_queue_id = q,
                          .queue_id = to,
                          .reason = (int)pick(7),
                          .keeps_count = (int)pick(2),
                          .header_given = (int)pick(2),
                          .note_given = (int)pick(2),
                          .keeps_expiry = (int)pick(2),
                          .times = any_times()};
    bool held = from.acquired && (t < 0 || m->owners[q] == 0);
    made.has_header = move.header_given != 0 || from.has_header;
    made.header = move.header_given != 0 ? any_header() : from.header;
    made.note = move.note_given != 0 ? any_note() : from.note;
    made.times = move.times;
    made.times.expires_us = held && move.keeps_expiry != 0 ? from.times.expires_us : move.times.expires_us;
    made.count = made.count_least = held && move.keeps_count != 0 ? from.delivery.count : 0;
    move.header = content_of(made.header.seed);
    move.header_bytes = made.header.bytes;
    move.note = content_of(made.note.seed);
    move.note_bytes = made.note.bytes;
    check(ls_move(r.store, m->id, &move, held ? &from.delivery : NULL, handle_of(t), flags, &lsn) == LS_OK ||
          complain("move"));
    go(m, q, t);
    appear(m, to, t, made);
    did(flags);
}

static void take_one(void) {
    int t = any_tx(), flags = wait_now(t);
    struct mmessage *m;
    struct mplace *p;
    uint32_t q;
    uint64_t lsn;

    if (!any_seen_place(t, &m, &q))
        return;
    p = seen(m, q, t);
    if (p->acquired && p != &m->pending[q])
        check(ls_settle(r.store, q, &p->delivery, handle_of(t), 1, flags, &lsn) == LS_OK || complain("settle"));
    else
        check(ls_dequeue(r.store, m->id, q, handle_of(t), 1, 0, flags, &lsn) == LS_OK || complain("dequeue"));
    go(m, q, t);
    bury(m);
    did(flags);
}

static void acquire_or_release(void) {
    struct mmessage *m;
    struct mplace *p;
    uint32_t q;
    size_t n;

    if (!any_seen_place(-1, &m, &q))
        return;
    p = &m->places[q];
    if (p->acquired) {
        bool unseen = pick(3) == 0;

        check(ls_release(r.store, q, &p->delivery, 1, unseen ? LS_UNSEEN : 0) == LS_OK || complain("release"));
        p->acquired = false;
        p->count -= unseen;
        p->count_least = p->count < p->count_least ? p->count : p->count_least;
        for (int i = 0; i < unforced_count; i++) { /* a count is no change that a crash must keep */
            struct mmessage *was = &unforced[i].all[m - now.all];

            if (was->id == m->id && was->places[q].order == p->order && was->places[q].count < p->count)
                was->places[q].count = p->count;
        }
        return;
    }
    force();
    check(ls_acquire_ids(r.store, q, &m->id, 1, &p->delivery, 0, &n) == LS_OK && n == 1 &&
          p->delivery.has_header == p->has_header && p->delivery.count == ++p->count);
    p->acquired = true;
    forced();
}

static void step_one_tx(void) {
    int t = (int)pick(TXS_HERE);
    struct mtx *x = &now.txs[t];
    int flags = pick(2) ? LS_WAIT : 0;
    ls_xid xid = xid_of((uint32_t)chance(&r.chance));
    ls_tx_info info;

    if (x->id == 0) {
        *x = (struct mtx){.distributed = pick(2) != 0};
        check(ls_begin(r.store, x->distributed ? &xid : NULL, &handles[t]) == LS_OK);
        ls_tx_describe(handles[t], &info);
        x->id = info.id;
        changed();
    } else if (x->distributed && !x->ended) {
        check(ls_tx_end(handles[t]) == LS_OK);
        x->ended = true;
        changed();
    } else if (x->distributed && !x->prepared && pick(3) > 0) {
        check(ls_prepare(handles[t], flags) == LS_OK);
        x->prepared = true;
        did(flags);
    } else {
        bool commits = pick(4) > 0;
        uint64_t id = x->id;

        check((commits ? ls_commit(handles[t], flags) : ls_rollback(handles[t], flags)) == LS_OK);
        ls_tx_free(handles[t]);
        handles[t] = NULL;
        *x = (struct mtx){.id = 0};
        outcome(&now, id, commits);
        did(flags);
    }
}

/* The last queue goes, and comes back under its id only in another store: so it is the last of the run. */
static void delete_one_queue(void) {
    r.catalog &= ~(1u << QUEUES_HERE);
    check(ls_queue_delete(r.store, QUEUES_HERE, LS_WAIT) == LS_OK);
    now.queues &= ~(1u << QUEUES_HERE);
    for (int i = 0; i < MESSAGES_HERE; i++) {
        struct mmessage *m = &now.all[i];

        m->places[QUEUES_HERE].there = false;
        if (m->id != 0)
            bury(m);
    }
    forced();
}

static void upheaval(void) {
    uint64_t which = pick(12);

    if (which < 2) {
        open_anew();
    } else if (which < 5) {
        crash(which == 3);
    } else if (which == 5) {
        check(ls_checkpoint(r.store, NULL) == LS_OK);
        open_anew();
    } else {
        churn(12 + (int)pick(40));
        forced();
    }
}

static void random_operations_agree_with_a_model(void) {
    static void (*const operations[])(void) = {
        put_one,    put_one,  add_one,  annotate_one,       annotate_one,       move_one,
        move_one,   move_one, take_one, acquire_or_release, acquire_or_release, step_one_tx,
        step_one_tx};
    ls_stats stats;
    uint64_t moved = 0;

    for (uint64_t seed = 1; seed <= 40 && failures_here == 0; seed++) {
        fresh();
        r.chance = seed;
        now = (struct model){.queues = (2u << QUEUES_HERE) - 2};
        forced();
        for (int i = 0; i < 400 && failures_here == 0; i++) {
            operations[pick(sizeof operations / sizeof *operations)]();
            if (pick(30) == 0)
                upheaval();
            else if (seed % 4 == 0 && i == 300)
                delete_one_queue();
            if (pick(4) == 0 && failures_here == 0)
                verify();
        }
        if (failures_here > 0)
            printf("seed %llu\n", (unsigned long long)seed);
        for (int t = 0; t < TXS_HERE; t++) {
            ls_tx_free(handles[t]);
            handles[t] = NULL;
        }
        ls_stats_get(r.store, &stats);
        moved += stats.segments_relocated;
        done();
    }
    check(moved > 100);
}

/* ---- refusals ---- */

static const uint8_t *const some = (const uint8_t *)"some bytes of a header or a note";

static int move_with(uint64_t id, uint32_t from, uint32_t to, size_t header_bytes, ls_tx *tx, int flags) {
    static const uint8_t header[SEGMENT];
    const ls_place_move move = {.from_queue_id = from,
                                .queue_id = to,
                                .header_given = header_bytes > 0,
                                .header = header,
                                .header_bytes = header_bytes};
    uint64_t lsn;

    return ls_move(r.store, id, &move, NULL, tx, flags, &lsn);
}

static int annotate(uint64_t id, uint32_t queue, size_t note_bytes, ls_tx *tx, int flags) {
    static const uint8_t note[LS_NOTE_BYTES + 1] = "note";
    uint64_t lsn;

    return ls_annotate(r.store, id, queue, note, note_bytes, tx, flags, &lsn);
}

static size_t own_bytes(uint64_t id, uint32_t queue, int what) {
    static uint8_t into[SEGMENT];
    size_t n = 0;
    int has_it;

    check(ls_load_place(r.store, queue, id, place_position(place_in_table(id, queue)), what, into, sizeof into, &n,
                        &has_it) == LS_OK);
    return n;
}

static void what_cannot_be_is_refused_and_changes_nothing(void) {
    ls_place_move move = {.from_queue_id = 1, .queue_id = 2, .reason = 7};
    ls_delivery d;
    ls_tx *tx, *other;
    uint64_t id, both, lsn, before;
    uint32_t ids[] = {1, 2};
    size_t n;
    int has_it;

    fresh();
    id = put(1, "message", NULL);
    check(ls_publish(r.store, ids, 2, NULL, 0, some, 4, NULL, LS_WAIT, &both) == LS_OK);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && ls_begin(r.store, NULL, &other) == LS_OK);
    check(annotate(id, 1, 4, tx, 0) == LS_OK);
    before = ls_next_lsn(r.store);
    check(annotate(both, 1, LS_NOTE_BYTES + 1, NULL, 0) == LS_OPTION);
    check(annotate(both, 3, 1, NULL, 0) == LS_NOT_ENQUEUED && annotate(12345, 1, 1, NULL, 0) == LS_UNKNOWN_MESSAGE);
    check(annotate(both, 99, 1, NULL, 0) == LS_UNKNOWN_QUEUE);
    check(annotate(id, 1, 1, NULL, 0) == LS_MESSAGE_LOCKED && annotate(id, 1, 1, other, 0) == LS_MESSAGE_LOCKED);
    check(move_with(id, 1, 2, 0, NULL, 0) == LS_MESSAGE_LOCKED &&
          move_with(id, 1, 1, 0, other, 0) == LS_MESSAGE_LOCKED);
    check(move_with(both, 1, 2, 0, NULL, 0) == LS_ALREADY_ENQUEUED &&
          move_with(both, 1, 2, 0, tx, 0) == LS_ALREADY_ENQUEUED);
    check(move_with(both, 3, 2, 0, NULL, 0) == LS_NOT_ENQUEUED &&
          move_with(both, 0, 1, 0, NULL, 0) == LS_ALREADY_ENQUEUED);
    check(move_with(both, 1, 99, 0, NULL, 0) == LS_UNKNOWN_QUEUE &&
          move_with(both, 99, 3, 0, NULL, 0) == LS_UNKNOWN_QUEUE);
    check(move_with(12345, 1, 3, 0, NULL, 0) == LS_UNKNOWN_MESSAGE);
    check(ls_move(r.store, both, &move, NULL, NULL, 0, &lsn) == LS_OPTION); /* the reason */
    move = (ls_place_move){.from_queue_id = 1, .queue_id = 3};
    d = (ls_delivery){.id = both, .position = place_position(place_in_table(both, 1)), .count = 1};
    check(ls_move(r.store, both, &move, &d, NULL, 0, &lsn) == LS_NOT_ENQUEUED); /* nobody has acquired it */
    check(ls_load_place(r.store, 1, both, 12345, LS_PLACE_NOTE, NULL, 0, &n, &has_it) == LS_NOT_ENQUEUED);
    check(ls_load_place(r.store, 1, both, d.position, 2, NULL, 0, &n, &has_it) == LS_OPTION);
    check(ls_load_place(r.store, 1, 12345, 0, LS_PLACE_NOTE, NULL, 0, &n, &has_it) == LS_UNKNOWN_MESSAGE);
    check(ls_next_lsn(r.store) == before);
    ls_tx_free(tx);
    ls_tx_free(other);
    done();
}

static void the_longest_header_moves_and_survives_a_relocation(void) {
    size_t longest = 0, too_long = SEGMENT;
    uint64_t id;

    fresh();
    id = put(1, "message", NULL);
    while (too_long - longest > 1) {
        size_t middle = (longest + too_long) / 2;
        int rc = move_with(id, 1, 1, middle, NULL, 0);

        check(rc == LS_OK || rc == LS_OPTION);
        *(rc == LS_OK ? &longest : &too_long) = middle;
    }
    check(longest > 3000 && move_with(id, 1, 2, longest, NULL, LS_WAIT) == LS_OK);
    check(annotate(id, 2, LS_NOTE_BYTES, NULL, LS_WAIT) == LS_OK &&
          move_with(id, 2, 3, too_long, NULL, 0) == LS_OPTION);
    for (int i = 0; i < 3; i++) {
        ls_stats before, after;

        ls_stats_get(r.store, &before);
        churn(60);
        ls_stats_get(r.store, &after);
        check(after.segments_relocated > before.segments_relocated);
        check(own_bytes(id, 2, LS_PLACE_HEADER) == longest && own_bytes(id, 2, LS_PLACE_NOTE) == LS_NOTE_BYTES);
        again();
    }
    done();
}

/* Moved again and again it grows only as long as its note and header do. */
static void a_message_that_is_moved_often_does_not_grow(void) {
    struct table *t;
    uint64_t id, growth;

    fresh();
    id = put(1, "message", NULL);
    check(move_with(id, 1, 2, 100, NULL, 0) == LS_OK && annotate(id, 2, 20, NULL, 0) == LS_OK);
    t = &r.store->state.table;
    growth = t->growth;
    for (int i = 0; i < 100; i++) {
        check(move_with(id, 2, 1, 100, NULL, 0) == LS_OK && move_with(id, 1, 2, 0, NULL, 0) == LS_OK);
        check(annotate(id, 2, 20, NULL, 0) == LS_OK && t->growth == growth);
    }
    done();
}

/* ---- a full store ---- */

static void a_full_store_takes_moves_in_transactions_and_refuses_what_would_grow(void) {
    ls_options o;
    uint64_t first, id, lsn;
    uint32_t queue = 1;
    ls_tx *tx;
    int rc;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.max_write_buffers = 4;
    o.background = 0;
    o.max_log_bytes = (uint64_t)8 * SEGMENT;
    fresh_with(&o);
    first = put(1, "full", NULL);
    do
        rc = ls_publish(r.store, &queue, 1, NULL, 0, some, 4, NULL, 0, &id);
    while (rc == LS_OK);
    check(rc == LS_FULL);
    lsn = ls_next_lsn(r.store);
    check(move_with(first, 1, 2, 0, NULL, 0) == LS_FULL && annotate(first, 1, 5, NULL, 0) == LS_FULL);
    check(ls_next_lsn(r.store) >= lsn && place_in_table(first, 1) != NULL && place_in_table(first, 2) == NULL);
    check(own_bytes(first, 1, LS_PLACE_NOTE) == 0);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && move_with(first, 1, 2, 0, tx, 0) == LS_OK);
    check(ls_commit(tx, LS_WAIT) == LS_OK && place_in_table(first, 2) != NULL && place_in_table(first, 1) == NULL);
    ls_tx_free(tx);
    again();
    check(place_in_table(first, 2) != NULL && place_in_table(first, 1) == NULL);
    done();
}

/* ---- no memory ---- */

static int annotate_it(uint64_t id, ls_tx *tx) { return annotate(id, 1, 9, tx, 0); }
static int move_it(uint64_t id, ls_tx *tx) { return move_with(id, 1, 2, 30, tx, 0); }
static int move_it_back(uint64_t id, ls_tx *tx) { return move_with(id, 1, 1, 30, tx, 0); }

static void a_call_without_memory_changes_nothing(void) {
    static int (*const calls[])(uint64_t, ls_tx *) = {annotate_it, move_it, move_it_back};

    for (size_t c = 0; TAKEN_OVER && c < 2 * (sizeof calls / sizeof *calls); c++) {
        uint64_t refused_calls = 0, nth = 0;
        bool in_tx = c % 2 != 0;
        int rc;

        do { /* each time in a new store, which has no memory that an earlier call left */
            ls_tx *tx = NULL;
            uint64_t id, before;

            fresh();
            id = put(1, "message", NULL);
            check(!in_tx || ls_begin(r.store, NULL, &tx) == LS_OK);
            before = ls_next_lsn(r.store);
            allocations = failed = 0;
            fail_at_nth = ++nth;
            for_ever = false;
            counting = true;
            rc = calls[c / 2](id, tx);
            counting = false;
            check(rc == LS_OK || (rc == LS_NO_MEMORY && failed > 0));
            if (rc == LS_NO_MEMORY) {
                refused_calls++;
                check(ls_next_lsn(r.store) == before && place_in_table(id, 1) != NULL && place_in_table(id, 2) == NULL);
                check(own_bytes(id, 1, LS_PLACE_NOTE) == 0 && own_bytes(id, 1, LS_PLACE_HEADER) == 0);
                check(calls[c / 2](id, tx) == LS_OK);
            }
            if (in_tx) {
                allocations = failed = 0;
                fail_at_nth = 1;
                counting = true;
                rc = ls_commit(tx, 0);
                counting = false;
                check(rc == LS_OK || (rc == LS_NO_MEMORY && ls_commit(tx, 0) == LS_OK));
                rc = nth < 12 ? LS_NO_MEMORY : LS_OK;
            }
            check(own_bytes(id, c / 2 == 1 ? 2 : 1, c / 2 == 0 ? LS_PLACE_NOTE : LS_PLACE_HEADER) ==
                  (c / 2 == 0 ? 9 : 30));
            ls_tx_free(tx);
            done();
        } while (rc == LS_NO_MEMORY);
        check(refused_calls > 0);
    }
}

/* ---- calls that may not wait ---- */

static void a_call_that_would_wait_for_the_lock_says_so(void) {
    uint64_t id, before;
    int rcs[2];

    fresh();
    id = put(1, "message", NULL);
    check(annotate(id, 1, 3, NULL, LS_TRY) == LS_OK && move_with(id, 1, 1, 10, NULL, LS_TRY) == LS_OK);
    check(move_with(id, 1, 2, 0, NULL, LS_TRY | LS_WAIT) == LS_OPTION);
    before = ls_next_lsn(r.store);
    (void)pthread_mutex_lock(&r.store->log->front.lock);
    rcs[0] = annotate(id, 1, 4, NULL, LS_TRY);
    rcs[1] = move_with(id, 1, 2, 20, NULL, LS_TRY);
    (void)pthread_mutex_unlock(&r.store->log->front.lock);
    check(rcs[0] == LS_WOULD_WAIT && rcs[1] == LS_WOULD_WAIT && ls_next_lsn(r.store) == before);
    check(own_bytes(id, 1, LS_PLACE_NOTE) == 3 && own_bytes(id, 1, LS_PLACE_HEADER) == 10);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        random_operations_agree_with_a_model,
        what_cannot_be_is_refused_and_changes_nothing,
        the_longest_header_moves_and_survives_a_relocation,
        a_message_that_is_moved_often_does_not_grow,
        a_full_store_takes_moves_in_transactions_and_refuses_what_would_grow,
        a_call_without_memory_changes_nothing,
        a_call_that_would_wait_for_the_lock_says_so,
    };
    int failed_count = 0, count = (int)(sizeof tests / sizeof *tests);

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed_count += failures_here > 0;
    }
    return verdict(count - failed_count, failed_count);
}
