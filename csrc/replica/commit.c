/*
 * The leader's batches, for the program that sends them: group commit puts a copy of each into a ring before it forces it, and the
 * program takes them out in order. The program reports a majority only for batches that it took out, and a buffer of
 * the log stays in use until that report. So at most as many batches wait here as there are buffers.
 *
 * The ring has a lock of its own: the log hands a batch out without its lock, and a program may wait for one while the log works.
 */
#include "replica/commit.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "os/io.h"

/* One for the batch that the program reads, and one for the batch that is being added. */
enum { RING = LS_BUFFERS_MAX + 2 };

struct handed {
    ls_replica_batch batch;
    uint8_t *header; /* a block; NULL: no batch has needed one yet */
    uint8_t *bytes;
    size_t capacity;
};

struct leader {
    vfs *v;
    pthread_mutex_t lock;
    int event;
    struct handed ring[RING];
    uint64_t put;   /* how many were handed out */
    uint64_t taken; /* how many the program has taken */
    uint64_t taken_end_lsn;
    int error;         /* memory ran out: later batches cannot be sent */
    struct kept *kept; /* the window of the host; NULL: no window */
    _Atomic uint64_t forced_index;
};

struct leader *leader_new(vfs *v) {
    struct leader *l = calloc(1, sizeof *l);
    if (l == NULL) {
        (void)fail_memory();
        return NULL;
    }
    l->v = v;
    l->event = v->event_new(v);
    if (l->event < 0) {
        (void)fail_errno(LS_IO, -l->event, "no eventfd can be made");
        free(l);
        return NULL;
    }
    (void)pthread_mutex_init(&l->lock, NULL);
    return l;
}

void leader_free(struct leader *l) {
    if (l == NULL) {
        return;
    }
    for (size_t i = 0; i < RING; i++) {
        free(l->ring[i].header);
        free(l->ring[i].bytes);
    }
    (void)l->v->event_close(l->v, l->event);
    (void)pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- called by the log ---- */

/* The memory of earlier batches is used again. */
static bool has_room(struct handed *h, size_t bytes, bool header) {
    if (h->capacity < bytes) {
        free(h->bytes);
        h->bytes = malloc(bytes);
        h->capacity = h->bytes != NULL ? bytes : 0;
    }
    if (header && h->header == NULL) {
        h->header = malloc(SEGMENT_HEADER_BYTES);
    }
    return h->bytes != NULL && (!header || h->header != NULL);
}

static void ship(void *context, const struct shipment *s) {
    struct leader *l = context;
    size_t bytes = (size_t)(s->end_lsn - s->lsn);
    (void)pthread_mutex_lock(&l->lock);
    struct handed *h = &l->ring[l->put % RING];
    assert(l->put - l->taken < RING - 1);
    if (l->error == 0 && has_room(h, bytes, s->header != NULL)) {
        memcpy(h->bytes, s->bytes, bytes);
        if (s->header != NULL) {
            memcpy(h->header, s->header, SEGMENT_HEADER_BYTES);
        }
        h->batch = (ls_replica_batch){
            .term = s->term,
            .index = s->index,
            .lsn = s->lsn,
            .end_lsn = s->end_lsn,
            .first_lsn = s->first_lsn,
            .known_durable_lsn = s->known_durable_lsn,
            .header = s->header != NULL ? h->header : NULL,
            .bytes = h->bytes,
        };
        l->put++;
    } else {
        l->error = ENOMEM;
    }
    (void)pthread_mutex_unlock(&l->lock);
    (void)l->v->event_signal(l->v, l->event);
}

static uint64_t forced(void *context, uint64_t index, uint64_t end_lsn) {
    struct leader *l = context;
    (void)end_lsn;
    atomic_store(&l->forced_index, index);
    (void)l->v->event_signal(l->v, l->event);
    return 0;
}

struct replication leader_calls(struct leader *l) {
    return (struct replication){.context = l, .ship = ship, .forced = forced};
}

/* ---- called by the program ---- */

static int fail_not_leading(void) { return fail(LS_CLOSED, "this store is no copy that leads"); }

static bool keep(const struct leader *l, const ls_replica_batch *batch) {
    struct scan_batch b = {.bytes = batch->bytes, .lsn = batch->lsn, .first_lsn = batch->first_lsn};
    struct record record;
    format_read_verified(b.bytes, &record);
    return l->kept == NULL || (format_get_batch(&record, &b.batch) == FORMAT_OK && kept_add(l->kept, &b));
}

int ls_replica_next(ls_store *store, ls_replica_batch *batch) {
    struct leader *l = store->leader;
    if (l == NULL) {
        return fail_not_leading();
    }
    (void)pthread_mutex_lock(&l->lock);
    bool any = l->taken < l->put;
    int error = any ? 0 : l->error;
    if (any) {
        *batch = l->ring[l->taken++ % RING].batch;
        l->taken_end_lsn = batch->end_lsn;
    }
    (void)pthread_mutex_unlock(&l->lock);
    if (any && !keep(l, batch)) {
        error = l->error = ENOMEM;
    }
    if (error != 0) {
        return fail(LS_NO_MEMORY, "there was no memory for a batch, so the other copies cannot have it; cease to lead");
    }
    return any ? LS_OK : LS_END;
}

uint64_t ls_replica_forced(const ls_store *store) {
    return store->leader != NULL ? atomic_load(&store->leader->forced_index) : 0;
}

int ls_replica_event_fd(const ls_store *store) { return store->leader != NULL ? store->leader->event : -1; }

int ls_replica_majority_has(ls_store *store, uint64_t lsn) {
    struct leader *l = store->leader;
    if (l == NULL) {
        return fail_not_leading();
    }
    (void)pthread_mutex_lock(&l->lock);
    uint64_t most = l->taken_end_lsn;
    (void)pthread_mutex_unlock(&l->lock);
    if (lsn > most) {
        return fail(LS_REFUSED, "a majority cannot have LSN %llu: batches up to %llu were taken from here",
                    (unsigned long long)lsn, (unsigned long long)most);
    }
    log_lock(store->log);
    log_majority_has(store->log, lsn);
    log_unlock(store->log);
    return LS_OK;
}

int ls_replica_others_have(ls_store *store, const ls_replica_room *all, size_t n) {
    struct other_room rooms[OTHERS_MAX];
    if (store->leader == NULL) {
        return fail_not_leading();
    }
    if (n > OTHERS_MAX) {
        return fail(LS_OPTION, "a group has at most %d other voters, not %zu", OTHERS_MAX, n);
    }
    for (size_t i = 0; i < n; i++) {
        rooms[i] = (struct other_room){
            .member = all[i].member,
            .spares = all[i].spares,
            .first_lsn = all[i].first_lsn,
            .applied_lsn = all[i].applied_lsn,
            .error = all[i].sys_errno,
        };
    }
    log_lock(store->log);
    log_others_have(store->log, rooms, n);
    log_unlock(store->log);
    return LS_OK;
}

int ls_replica_probe_disk(ls_store *store) {
    if (store->leader == NULL) {
        return fail_not_leading();
    }
    log_lock(store->log);
    log_probe_disk(store->log);
    log_unlock(store->log);
    return LS_OK;
}

int ls_replica_remember(ls_store *store, int every, int *remembers) {
    *remembers = 0;
    if (store->leader == NULL) {
        return fail_not_leading();
    }
    log_lock(store->log);
    store->remembers = store->remembers || every != 0;
    *remembers = store->remembers;
    log_unlock(store->log);
    return LS_OK;
}

int ls_replica_change_members(ls_store *store, const uint8_t *config, size_t config_bytes, uint64_t *index) {
    *index = 0;
    if (store->leader == NULL) {
        return fail_not_leading();
    }
    if (config_bytes == 0 || config_bytes > MEMBERS_CONFIG_MAX) {
        return fail(LS_OPTION, "a configuration has 1 to %d bytes", MEMBERS_CONFIG_MAX);
    }
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    rc = log_begin_batch(store->log, format_members_bytes((uint32_t)config_bytes));
    if (rc == LS_OK) {
        replication_put_members(store, config, (uint32_t)config_bytes);
        *index = log_batch_index(store->log);
        log_end_batch(store->log);
    }
    return store_leave(store, rc, 0);
}

/* With the lock held. First deletes the queues, because a step that may fail must come before the change is written.
   Queues that never had a message need no record of their end in the log. */
static int write_change(ls_store *store, const uint8_t *rows, uint32_t bytes, uint32_t row_count, uint32_t *queue_ids,
                        size_t n, uint64_t *lsn) {
    struct log *g = store->log;
    uint64_t record_bytes = format_catalog_change_bytes(bytes);
    int rc = n != 0 ? queues_end_with(store, queue_ids, &n, record_bytes)
                    : log_reserve_to_grow(g, record_bytes, 0, RESERVE_GROWS);
    if (rc != LS_OK) {
        return rc;
    }
    struct slot s = log_slot(g, 0, 0, 0);
    log_append(g, &s, CATALOG_CHANGE, format_put_catalog_change(&s, 0, row_count, rows, bytes));
    *lsn = s.lsn + record_bytes;
    for (size_t i = 0; i < n; i++) {
        queue_remove(store, queue_ids[i]);
    }
    return LS_OK;
}

static int check_change(const ls_store *store, const uint8_t *rows, size_t bytes, uint32_t row_count, size_t deleted) {
    if (store->leader == NULL) {
        return fail_not_leading();
    }
    if (!format_are_catalog_rows(rows, bytes, row_count)) {
        return fail(LS_OPTION, "these are not %u rows of a catalog's change", (unsigned)row_count);
    }
    uint64_t most = log_record_bytes_max(store->log);
    if (deleted > most / QUEUE_DELETE_RECORD_BYTES ||
        format_catalog_change_bytes(bytes) > most - deleted * QUEUE_DELETE_RECORD_BYTES) {
        return fail(LS_OPTION,
                    "a change of the catalog has %zu bytes and deletes %zu queues, and both stand in at most %llu "
                    "bytes of this log: make several",
                    bytes, deleted, (unsigned long long)most);
    }
    return LS_OK;
}

int ls_replica_change_catalog(ls_store *store, const uint8_t *rows, size_t bytes, uint32_t row_count,
                              const uint32_t *deleted_queue_ids, size_t deleted, uint64_t *lsn) {
    *lsn = 0;
    int rc = check_change(store, rows, bytes, row_count, deleted);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t *queue_ids = NULL; /* in the core's memory: those that have no record are taken out */
    if (deleted != 0) {
        queue_ids = malloc(deleted * sizeof *queue_ids);
        if (queue_ids == NULL) {
            return fail_memory();
        }
        memcpy(queue_ids, deleted_queue_ids, deleted * sizeof *queue_ids);
    }
    rc = store_may_wait(store);
    rc = rc == LS_OK ? store_enter(store) : rc;
    if (rc == LS_OK) {
        rc = write_change(store, rows, (uint32_t)bytes, row_count, queue_ids, deleted, lsn);
        rc = store_leave(store, rc, LS_WAIT);
    }
    free(queue_ids);
    return rc;
}

void ls_replica_moved_by(ls_store *store, uint64_t thread) {
    log_lock(store->log);
    store->moving_thread = thread;
    log_unlock(store->log);
}

int ls_replica_leads(ls_store *store) {
    log_lock(store->log);
    bool leads = log_leads(store->log);
    log_unlock(store->log);
    return leads ? 1 : 0;
}

int ls_replica_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    return store->leader == NULL ? fail_not_leading() : replica_serve(store, queue_ids, n, next_queue_id);
}

int ls_replica_cease(ls_store *store) {
    if (store->leader == NULL) {
        return fail_not_leading();
    }
    replica_cease(store);
    return LS_OK;
}

int leader_of(ls_store *store, struct kept *kept, struct replication *calls) {
    if (store->leader == NULL) { /* the calls stay with the store, which may use them until it is freed */
        store->leader = leader_new(store->directory.v);
        store->free_leader = leader_free;
    }
    if (store->leader == NULL) {
        return ls_last_error()->code;
    }
    store->leader->kept = kept;
    *calls = leader_calls(store->leader);
    return LS_OK;
}

/* ---- the public functions of a copy that follows ---- */

int ls_replica_take_many(ls_replica *replica, const ls_replica_batch *batches, size_t n, size_t *taken) {
    struct shipment all[GROUP_BATCHES_MAX];
    size_t count = n < GROUP_BATCHES_MAX ? n : GROUP_BATCHES_MAX;
    *taken = 0;
    if (n == 0) {
        return LS_OK;
    }
    for (size_t i = 0; i < count; i++) {
        all[i] = (struct shipment){
            .term = batches[i].term,
            .index = batches[i].index,
            .lsn = batches[i].lsn,
            .end_lsn = batches[i].end_lsn,
            .first_lsn = batches[i].first_lsn,
            .known_durable_lsn = batches[i].known_durable_lsn,
            .header = batches[i].header,
            .bytes = batches[i].bytes,
        };
    }
    return replica_take_many(replica, all, count, taken);
}

int ls_replica_take(ls_replica *replica, const ls_replica_batch *batch) {
    size_t taken;
    return ls_replica_take_many(replica, batch, 1, &taken);
}

int ls_replica_durable(ls_replica *replica, uint64_t lsn) { return replica_durable(replica, lsn); }

int ls_replica_checkpoint_begin(ls_replica *replica, int *begun) {
    bool has_begun;
    int rc = replica_checkpoint_begin(replica, &has_begun);
    *begun = has_begun ? 1 : 0;
    return rc;
}

int ls_replica_checkpoint_ended(ls_replica *replica, int *ended) {
    bool has_ended;
    int rc = replica_checkpoint_ended(replica, &has_ended);
    *ended = has_ended ? 1 : 0;
    return rc;
}

int ls_replica_checkpoint(ls_replica *replica, int *taken) {
    bool was_taken;
    int rc = replica_checkpoint(replica, &was_taken);
    *taken = was_taken ? 1 : 0;
    return rc;
}

int ls_replica_checkpoint_is_due(const ls_replica *replica) { return replica_checkpoint_is_due(replica) ? 1 : 0; }

void ls_replica_room_here(ls_replica *replica, ls_replica_room *room) {
    struct other_room here;
    replica_room(replica, &here);
    *room = (ls_replica_room){
        .spares = here.spares,
        .first_lsn = here.first_lsn,
        .applied_lsn = here.applied_lsn,
        .sys_errno = here.error,
    };
}

void ls_replica_describe(const ls_replica *replica, ls_replica_info *info) {
    *info = (ls_replica_info){
        .term = replica->end.term,
        .index = replica->end.index,
        .end_lsn = replica->end.lsn,
        .applied_term = replica->applied.term,
        .applied_index = replica->applied.index,
        .applied_lsn = replica->applied.lsn,
        .durable_lsn = replica->durable_lsn,
        .base_lsn = replica->base_lsn,
        .least_term = replica_least_term(replica),
        .messages = replica->store->state.table.message_count,
        .changes_from_lsn = replica->changes_from_lsn,
        .stats = replica->stats,
    };
    info->stats.device_bytes = atomic_load(&replica->store->directory.written.bytes);
}
