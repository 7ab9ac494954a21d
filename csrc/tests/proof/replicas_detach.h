/*
 * The end of replication in the copies' explorer: what a run has left of one member is detached, and its disk loses power at the calls
 * of that. The judge of each disk:
 *   - a member takes part until VOTE is detached, and never after that; meanwhile nothing opens the log;
 *   - the same call finishes, and then an ordinary open has all that the copy had: also all that is durable;
 *   - no update begins from what is detached.
 */
#ifndef LOGSTORE_REPLICAS_DETACH_H
#define LOGSTORE_REPLICAS_DETACH_H

#include "tests/proof/replicas_judge.h"

static struct {
    int life;         /* that has the calls; -1: none */
    uint64_t copy;    /* its number */
    ls_store *before; /* all that the copy had */
} detached = {.life = -1};

static void copy_path(char into[64], uint64_t copy) { (void)snprintf(into, 64, "%s/copy-%" PRIu64, HOST, copy); }

/* After what the life has told. False: broken. */
static bool one_is_detached(int life) {
    const struct life *l = &d.lives[life];
    const vfs_sim_loss loss = {.mode = life % 2 ? VFS_SIM_ALL_KEPT : VFS_SIM_ALL_LOST,
                               .dir_mode = life % 2 ? VFS_SIM_DIRS_KEPT : VFS_SIM_DIRS_LOST};
    vfs_sim *disk = vfs_sim_crash_at(l->sim, l->end, &loss); /* all on it is forced */
    const vfs_sim_event *events;
    char path[64];
    int rc;

    detached.copy = copy_that_counts(disk);
    copy_path(path, detached.copy);
    detached.before =
        has_directory(vfs_sim_table(disk), path) ? read_store_in(vfs_sim_table(disk), path, LS_INSPECT_CHECK) : NULL;
    if (vfs_sim_record(disk, 1) != 0)
        abort();
    rc = host_detach(vfs_sim_table(disk), HOST, &r.options, 0, &detached.copy);
    if (rc == LS_OPTION) { /* it has no copy, or was not replicated yet */
        ls_free(detached.before);
        detached.before = NULL;
        vfs_sim_free(disk);
        return true;
    }
    detached.life = d.life_count;
    d.lives[d.life_count++] = (struct life){disk, vfs_sim_journal(disk, &events), l->copy};
    return rc == LS_OK || violated(ANSWER, "a member cannot be detached");
}

static void detached_free(void) {
    ls_free(detached.before);
    detached.before = NULL;
    detached.life = -1;
}

static int open_member(vfs_sim *disk) {
    struct host *h = NULL;
    int rc = host_open(vfs_sim_table(disk), HOST, &r.options, &h);

    host_close(h);
    return rc;
}

static bool is_no_sender(vfs_sim *disk, const char *path) {
    ls_update_source *source = NULL;
    int rc = ls_update_source_open(vfs_sim_table(disk), path, "judge", UINT64_C(1) << 40, UINT64_C(86400) * 1000000, 0,
                                   &source);

    ls_update_source_close(source);
    return rc != LS_OK || violated(UNDURABLE, "an update begins from a copy that is detached");
}

/* A log that may not grow was relocated for the header: records stand elsewhere. */
static bool was_relocated(const struct state *now, const struct state *before) {
    bool moved = false;

    for (size_t i = 0; i < now->segment_count; i++)
        moved = moved || (now->segments[i].first_lsn >= before->report.end_lsn && now->segments[i].records > 0);
    return moved;
}

static bool has_places(ls_store *now, ls_store *before, uint32_t queue_id) {
    static ls_place x[4096], y[4096];
    ls_cursor *a = NULL, *b = NULL;
    size_t n = 0, m = 0;
    bool same = ls_cursor_open(now, queue_id, LS_CURSOR_ALL, &a) == LS_OK &&
                ls_cursor_open(before, queue_id, LS_CURSOR_ALL, &b) == LS_OK &&
                ls_cursor_next(a, x, 4096, &n) == LS_OK && ls_cursor_next(b, y, 4096, &m) == LS_OK && n == m;

    for (size_t i = 0; same && i < n; i++)
        same = x[i].id == y[i].id && x[i].locked == y[i].locked;
    ls_cursor_close(a);
    ls_cursor_close(b);
    return same;
}

static bool has_answers(ls_store *now, ls_store *before) {
    enum { TOLD_FLAGS = MESSAGE_STAGED | MESSAGE_PUBLISHED | MESSAGE_RECOVERED };
    struct table *t = &before->state.table, *u = &now->state.table;
    bool same = t->message_count == u->message_count && t->tx_count == u->tx_count && t->queue_count == u->queue_count;

    for (uint32_t i = 0; same && i < t->message_slots; i++) {
        const struct message *a = table_message(t, i), *b;
        uint32_t number;

        if ((a->flags & MESSAGE_FREE) != 0)
            continue;
        number = table_find(u, a->id);
        b = number != INDEX_NONE ? table_message(u, number) : NULL;
        same = b != NULL && a->place_count == b->place_count && ((a->flags ^ b->flags) & TOLD_FLAGS) == 0 &&
               message_pending(a) == message_pending(b);
    }
    for (uint32_t i = 0; same && i < t->queue_count; i++)
        same = t->queues[i] == NULL || t->queues[i]->deleted || has_places(now, before, t->queues[i]->id);
    for (uint32_t i = 0; same && i < t->tx_slots; i++) {
        const struct tx *a = t->txs[i], *b = a != NULL ? table_tx(u, a->id) : NULL;

        same = a == NULL || (b != NULL && a->state == b->state && xid_equal(&a->xid, &b->xid));
    }
    return same;
}

/*
 * The batch that ends replication may name a base beyond the record of a deletion. Nothing above that base names the queue, so the
 * single store does not know that it was there. If something does, the queue is there and not deleted: a difference.
 */
static void add_forgotten_deletions(struct state *now, const struct state *before) {
    for (size_t i = 0; i < before->deletions.count; i++) {
        const struct deletion *gone = &before->deletions.items[i];

        if (gone->lsn >= now->report.base_lsn || table_any_queue(&now->table, gone->queue_id) != NULL)
            continue;
        if (!table_add_queue(&now->table, gone->queue_id))
            abort();
        table_any_queue(&now->table, gone->queue_id)->deleted = true;
    }
}

/* Segments, base and end are others since the last header; queues, messages and transactions are not. */
static bool has_all(vfs_sim *disk, const char *path) {
    ls_store *seen = read_store_in(vfs_sim_table(disk), path, LS_INSPECT_CHECK);
    ls_checkpoint_difference difference = {.differs = 1};

    if (seen != NULL)
        add_forgotten_deletions(&seen->state, &detached.before->state);
    if (seen != NULL && was_relocated(&seen->state, &detached.before->state)) {
        difference.differs = !has_answers(seen, detached.before);
    } else if (seen != NULL) {
        struct state now = seen->state, before = detached.before->state;

        now.segment_count = before.segment_count = 0;
        now.report.base_lsn = before.report.base_lsn;
        now.report.end_lsn = before.report.end_lsn;
        if (checkpoint_compare(&now, &before, &difference) != LS_OK)
            (void)complain("compare");
        if (difference.differs)
            printf("message %llu: %s\n", (unsigned long long)difference.id, difference.text);
    }
    ls_free(seen);
    return !difference.differs || violated(TABLE, "a single store does not have what its copy had");
}

/* As a single store, with every queue that its log does not have as deleted. */
static bool serves_all(vfs_sim *disk, const char *path) {
    struct table *t = &detached.before->state.table;
    ls_options options = r.options;
    ls_store *store = NULL;
    uint32_t ids[QUEUES], n = 0;
    bool right;

    options.create = 0;
    if (ls_open(vfs_sim_table(disk), path, &options, &store) != LS_OK)
        return violated(REFUSAL, "what is detached does not open as a single store");
    for (uint32_t q = 1; q <= QUEUES; q++) {
        const struct queue *queue = table_any_queue(&store->state.table, q);

        if (queue == NULL || !queue->deleted)
            ids[n++] = q;
    }
    right = ls_serve(store, ids, n, QUEUES + 1) == LS_OK || violated(ANSWER, "what is detached does not serve");
    for (uint32_t i = 0; right && i < t->message_slots; i++) {
        const struct message *m = table_message(t, i);
        const struct told *told = (m->flags & (MESSAGE_FREE | MESSAGE_APPENDING)) == 0 ? told_of(&r, m->id) : NULL;

        /* Not what a leader has cut, or was appended to later. */
        if (told != NULL && told->content_bytes == message_content_bytes(m) &&
            table_find(&store->state.table, m->id) != INDEX_NONE)
            right = content_is_right(&r, store, m->id) || violated(TABLE, "a message has another content");
    }
    ls_free(store);
    return right;
}

static bool detach_is_right(vfs_sim *disk) {
    vfs_sim *now = vfs_sim_clone(disk);
    uint64_t copy = 0;
    char path[64];
    int member = open_member(now), rc;

    vfs_sim_free(now);
    copy_path(path, detached.copy);
    rc = open_ordinarily(disk, path);
    if (member == LS_OK && rc != LS_REPLICATED)
        return violated(ORDINARY, "a member's copy opens as a single store");
    if (member != LS_OK && member != LS_NOT_A_STORE)
        return violated(REFUSAL, "a crash of a detach reads as a refusal to start");
    if (rc != LS_OK && rc != LS_REPLICATED)
        return violated(REFUSAL, "a crash of a detach reads as a refusal to open");
    if (host_detach(vfs_sim_table(disk), HOST, &r.options, 0, &copy) != LS_OK || copy != detached.copy)
        return violated(ANSWER, "a detach that was interrupted cannot be finished");
    if (!has_all(disk, path) || !is_no_sender(disk, path))
        return false;
    if (!serves_all(disk, path))
        return false;
    if (open_member(disk) != LS_NOT_A_STORE)
        return violated(VOTE, "a member takes part again after it was detached");
    return vfs_sim_handles(disk) == 0 || violated(SURVIVES, "a handle was left open");
}

#endif
