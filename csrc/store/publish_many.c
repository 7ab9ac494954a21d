/*
 * Publishing many messages on one queue. Messages that fit into the open buffer without a wait form a run: the log
 * admits them together, and the table is prepared once. A run is admitted only if the log would admit each of its
 * messages. All others are published one by one, as by ls_publish. In both cases each message is atomic.
 */
#include <assert.h>

#include "store/store.h"

enum { RUN_MIN = 2 };

/* Headers or contents: `each` has their addresses, or they stand one after another from `next` on. */
struct parts {
    const uint8_t *const *each;
    const uint8_t *next;
    const uint64_t *sizes; /* NULL: all are empty */
};

struct publishing {
    uint32_t queue_id;
    size_t n;
    struct parts headers;
    struct parts contents;
    const struct remembered *state; /* of each place; NULL: none */
    uint64_t *ids;
    size_t done;
};

static uint64_t part_bytes(const struct parts *p, size_t i) { return p->sizes != NULL ? p->sizes[i] : 0; }

static const uint8_t *part_at(const struct parts *p, size_t i) { return p->each != NULL ? p->each[i] : p->next; }

static void message_done(struct publishing *m, uint64_t id) {
    struct parts *all[] = {&m->headers, &m->contents};
    for (size_t k = 0; k < 2; k++) {
        if (all[k]->next != NULL) {
            all[k]->next += part_bytes(all[k], m->done);
        }
    }
    m->ids[m->done++] = id;
}

/* Whether a start record can hold the whole message; *bytes is its size. */
static bool fits(const struct publishing *m, size_t i, uint64_t limit, uint64_t *bytes) {
    uint64_t header = part_bytes(&m->headers, i), content = part_bytes(&m->contents, i);
    if (header > limit || content > limit) {
        return false;
    }
    *bytes = message_start_bytes(header, content, 1, m->state);
    return *bytes <= limit;
}

/* Messages with a state grow when they are moved: there is room for as many as could be in the run. */
static struct run_room find_room(const ls_store *store, const struct publishing *m) {
    struct run_room room = log_run_room(store->log, 0);
    if (m->state != NULL && room.bytes > 0) {
        struct message none = {.id = 0};
        uint64_t fit = room.bytes / message_start_bytes(0, 0, 1, m->state), left = m->n - m->done;
        uint64_t each = message_states_grow_at_most(&store->state.table, &none, 1, 0);
        room = log_run_room(store->log, (fit < left ? fit : left) * each);
    }
    return room;
}

/* How many messages form a run, or 0 if too few do; *bytes is the size of their records. */
static size_t find_run(const struct publishing *m, struct run_room room, uint64_t *bytes) {
    size_t k = m->done;
    uint64_t record;
    *bytes = 0;
    while (k < m->n && fits(m, k, room.record_bytes, &record) && record <= room.bytes - *bytes) {
        *bytes += record;
        k++;
    }
    return k - m->done >= RUN_MIN ? k - m->done : 0;
}

static bool prepare_run(ls_store *store, struct queue *q, size_t run, const struct remembered *state) {
    bool fine = table_prepare(&store->state.table, (uint32_t)run) && queue_prepare(q, run);
    return fine && (state == NULL || (store->remembers && queue_prepare_states(q, remembered_parts(state))));
}

/*
 * Never lets go of the lock. If a run is refused (no memory, unknown queue), its messages are published one by one, and
 * get the error.
 */
static void publish_run(ls_store *store, struct publishing *m) {
    struct log *g = store->log;
    struct table *t = &store->state.table;
    uint64_t bytes;
    size_t run = find_run(m, find_room(store, m), &bytes);
    struct queue *q = table_queue_cached(t, m->queue_id);
    if (run == 0 || q == NULL || !prepare_run(store, q, run, m->state)) {
        return;
    }
    log_reserve_run(g, bytes);
    if (m->state != NULL) {
        store_note_time(store);
    }
    for (; run > 0; run--) {
        struct message_start start = {
            .header_bytes = (uint32_t)part_bytes(&m->headers, m->done),
            .content_bytes = (uint32_t)part_bytes(&m->contents, m->done),
            .queue_count = 1,
            .header = part_at(&m->headers, m->done),
            .content = part_at(&m->contents, m->done),
        };
        uint32_t number = message_put_start(store, &start, &m->queue_id, m->state, FLAG_PUBLISHED);
        struct message *made = table_message(t, number);
        message_add_place(t, made, queue_append(q, made, number, made->id, 0));
        made->flags &= (uint16_t)~MESSAGE_STAGED;
        if (m->state != NULL) {
            place_starts(t, made, m->queue_id, m->state);
        }
        message_done(m, made->id);
    }
}

static int publish_all(ls_store *store, struct publishing *m, const ls_times *times, ls_tx *tx, int flags,
                       uint64_t *ids, size_t *done) {
    struct remembered made;
    *done = 0;
    m->ids = ids;
    m->state = times_state(times, &made);
    int rc = m->state != NULL ? times_check(times) : LS_OK;
    rc = rc == LS_OK ? work_enter(store, tx) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    while (rc == LS_OK && m->done < m->n) {
        if (tx == NULL) {
            publish_run(store, m);
        }
        if (m->done < m->n) {
            size_t i = m->done;
            uint64_t id = 0;
            rc = publish_locked(store, &m->queue_id, 1, part_at(&m->headers, i), (size_t)part_bytes(&m->headers, i),
                                part_at(&m->contents, i), (size_t)part_bytes(&m->contents, i), m->state, tx, &id);
            if (rc == LS_OK) {
                message_done(m, id);
            } else {
                m->ids[i] = id;
            }
        }
    }
    *done = m->done;
    return work_leave(store, tx, rc, flags);
}

int ls_publish_many(ls_store *store, uint32_t queue_id, size_t n, const uint8_t *content, const uint64_t *sizes,
                    const uint8_t *headers, const uint64_t *header_sizes, const ls_times *times, ls_tx *tx, int flags,
                    uint64_t *ids, size_t *done) {
    struct publishing m = {
        .queue_id = queue_id,
        .n = n,
        .headers = {.next = headers, .sizes = header_sizes},
        .contents = {.next = content, .sizes = sizes},
    };
    return publish_all(store, &m, times, tx, flags, ids, done);
}

int ls_publish_gather(ls_store *store, uint32_t queue_id, size_t n, const uint8_t *const *contents,
                      const uint64_t *sizes, const uint8_t *const *headers, const uint64_t *header_sizes,
                      const ls_times *times, ls_tx *tx, int flags, uint64_t *ids, size_t *done) {
    struct publishing m = {
        .queue_id = queue_id,
        .n = n,
        .headers = {.each = headers, .sizes = header_sizes},
        .contents = {.each = contents, .sizes = sizes},
    };
    return publish_all(store, &m, times, tx, flags, ids, done);
}
