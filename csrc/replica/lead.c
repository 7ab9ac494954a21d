/* A copy that follows begins to lead, and ends it. See replica.h. */
#include <errno.h>
#include <stdlib.h>

#include "replica/replica.h"

uint64_t replica_highest_term(const struct replica *r) {
    uint64_t highest = r->end.term > r->store->scan.epoch_max ? r->end.term : r->store->scan.epoch_max;
    for (size_t i = 0; i < r->segment_count; i++) {
        highest = r->segments[i].term > highest ? r->segments[i].term : highest;
    }
    return highest;
}

uint64_t replica_least_term(const struct replica *r) {
    const ls_store *store = r->store;
    uint64_t highest = replica_highest_term(r);
    uint64_t beyond = r->highest_first_lsn > r->end.lsn ? r->highest_first_lsn : r->end.lsn;
    /* ids that never reached the disk are not given again */
    uint64_t place = r->end.index == 0 ? scan_first_beyond(&store->meta, beyond) : beyond + 1;
    uint64_t by_place = (place + ((uint64_t)1 << TERM_SHIFT) - 1) >> TERM_SHIFT;
    return highest + 1 > by_place ? highest + 1 : by_place;
}

static int check_term(const struct replica *r, uint64_t term, const void *config, uint32_t config_bytes) {
    uint64_t least = replica_least_term(r);
    if (r->error != 0) {
        return replica_fail_poisoned(r);
    }
    if (term < least || term >= TERM_LIMIT) {
        return fail(LS_OPTION, "this copy may lead in a term from %llu to %llu, and not in %llu",
                    (unsigned long long)least, (unsigned long long)TERM_LIMIT - 1, (unsigned long long)term);
    }
    if ((r->end.index == 0) != (config != NULL) || config_bytes > MEMBERS_CONFIG_MAX ||
        (config != NULL && config_bytes == 0)) {
        return fail(LS_OPTION,
                    "give a configuration of 1 to %d bytes if the log becomes replicated, and none otherwise",
                    MEMBERS_CONFIG_MAX);
    }
    return LS_OK;
}

/* ---- everything is applied, and settled as by an open ---- */

static int take_segments(struct replica *r) {
    struct state *s = &r->store->state;
    struct live_segment *made = calloc(r->segment_count + 1, sizeof *made);
    if (made == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < r->segment_count; i++) {
        const struct replica_segment *from = &r->segments[i];
        made[i] = (struct live_segment){
            .first_lsn = from->first_lsn,
            .epoch = from->term,
            .prev_end_lsn = from->prev_end_lsn,
            .end_lsn = i + 1 < r->segment_count ? from[1].prev_end_lsn : r->end.lsn,
            .behind = from->first_lsn < r->base_lsn,
        };
    }
    free(s->segments);
    s->segments = made;
    s->segment_count = r->segment_count;
    s->base_lsn = r->store->scan.base_lsn = r->base_lsn;
    r->store->scan.end_lsn = r->end.lsn;
    return LS_OK;
}

static int settle(struct replica *r) {
    int rc = replica_apply(r, r->end.lsn);
    replica_checkpoint_give_up(r); /* places change their form */
    replica_take_spare(r);
    replay_free(&r->replay);
    r->replay.counted = NULL;
    rc = rc == LS_OK ? take_segments(r) : rc;
    return rc == LS_OK ? replay_settle(&r->replay) : rc;
}

/* ---- the term ---- */

/* A spare of this process needs only a new header; a file that was cut may be used once the term's header is forced. */
static int find_unused(const struct replica *r, struct unused_files *u) {
    *u = (struct unused_files){.all = calloc(r->spares.count + r->cut.count + 1, sizeof *u->all)};
    if (u->all == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < r->spares.count; i++) {
        u->all[u->count++] = (struct unused_file){.first_lsn = r->spares.all[i], .header_only = true};
    }
    for (size_t i = 0; i < r->cut.count; i++) {
        u->all[u->count++] = (struct unused_file){.first_lsn = r->cut.all[i], .last = true};
    }
    return LS_OK;
}

static int begin_term(struct replica *r, uint64_t term) {
    ls_store *store = r->store;
    struct log_epoch e = {
        .epoch = term,
        .first_lsn = round_up(term << TERM_SHIFT, store->meta.segment_size),
        .prev_end_lsn = r->end.lsn,
    };
    struct unused_files unused;
    int rc = find_unused(r, &unused);
    rc = rc == LS_OK ? log_begin_epoch(store->log, &e, &unused) : rc;
    rc = rc == LS_OK ? log_gather_spares(store->log, &e, &unused) : rc;
    free(unused.all);
    store->state.report.epoch = term;
    return rc;
}

static int first_batch(struct replica *r, const void *config, uint32_t config_bytes) {
    ls_store *store = r->store;
    uint64_t bytes = config != NULL ? format_members_bytes(config_bytes) : 0;
    log_begin_first_batch(store->log, bytes);
    if (config != NULL) {
        replication_put_members(store, config, config_bytes);
    }
    return log_force_first_batch(store->log);
}

/* ---- an end to replication ---- */

/*
 * With the lock held. Writes a batch without an index, in an epoch above every term that another copy may know. It
 * makes everything below it durable. Until it is durable, a start begins with the base that was known to be durable,
 * and finds that base only if no file above it was removed.
 */
static int end_replication(struct replica *r, uint64_t epoch, uint64_t durable_base_lsn) {
    struct log *g = r->store->log;
    int rc = log_recover(g, r->store->state.segments, r->store->state.segment_count, durable_base_lsn);
    rc = rc == LS_OK ? begin_term(r, epoch) : rc;
    if (rc == LS_OK) {
        log_begin_first_batch(g, 0);
        rc = log_force_first_batch(g);
    }
    rc = rc == LS_OK ? log_serve(g) : rc;
    return rc == LS_OK ? log_force(g, log_end_lsn(g)) : rc;
}

int replica_check_detach(const struct replica *r, uint64_t highest_term, uint64_t *epoch) {
    uint64_t highest = replica_least_term(r) - 1;
    highest = highest_term > highest ? highest_term : highest;
    *epoch = highest + DETACHED_TERMS;
    if (r->error != 0) {
        return replica_fail_poisoned(r);
    }
    if (r->end.index == 0) {
        return fail(LS_OPTION, "this store is not replicated: open it as it is");
    }
    if (highest >= TERM_LIMIT - DETACHED_TERMS) {
        return fail(LS_OPTION, "there is no term left beyond %llu", (unsigned long long)highest);
    }
    return LS_OK;
}

int replica_detach(struct replica *r, uint64_t highest_term) {
    uint64_t epoch;
    int rc = replica_check_detach(r, highest_term, &epoch);
    if (rc != LS_OK) {
        return rc;
    }
    uint64_t durable_base_lsn = r->store->scan.base_lsn; /* of the open, which settling replaces */
    rc = settle(r);
    if (rc == LS_OK) {
        log_lock(r->store->log);
        rc = end_replication(r, epoch, durable_base_lsn);
        log_unlock(r->store->log);
    }
    if (rc != LS_OK) {
        r->error = r->error != 0 ? r->error : EIO;
        return rc;
    }
    replica_free(r);
    return LS_OK;
}

/* ---- leading ---- */

/* The LSN below which segments may be recycled, because neither other members nor the catalog need them. */
static uint64_t needed_from(const struct replica *r, uint64_t term) {
    uint64_t kept = kept_lsn(r->kept);
    kept = r->kept != NULL && kept == UINT64_MAX ? round_up(term << TERM_SHIFT, r->store->meta.segment_size) : kept;
    return kept < r->catalog_lsn ? kept : r->catalog_lsn;
}

/* Lock held. */
static int lead(struct replica *r, uint64_t term, const struct replication *calls, const void *config,
                uint32_t config_bytes) {
    ls_store *store = r->store;
    struct log *g = store->log;
    struct replication told = *calls;
    told.index = replica_next_index(r) - 1;
    told.known_durable_lsn = r->durable_lsn;
    int rc = log_recover(g, store->state.segments, store->state.segment_count, store->state.base_lsn);
    if (rc != LS_OK) {
        return rc;
    }
    log_replicate(g, &told);
    log_keep_from(g, needed_from(r, term));
    rc = begin_term(r, term);
    rc = rc == LS_OK ? log_serve(g) : rc;
    return rc == LS_OK ? first_batch(r, config, config_bytes) : rc;
}

int replica_lead(struct replica *r, uint64_t term, const struct replication *calls, const void *config,
                 uint32_t config_bytes, ls_store **store) {
    *store = NULL;
    int rc = check_term(r, term, config, config_bytes);
    if (rc != LS_OK) {
        return rc;
    }
    rc = settle(r);
    if (rc == LS_OK) {
        log_lock(r->store->log);
        rc = lead(r, term, calls, config, config_bytes);
        log_unlock(r->store->log);
    }
    if (rc != LS_OK) {
        r->error = r->error != 0 ? r->error : EIO; /* the log has begun, and its end is never written */
        return rc;
    }
    *store = r->store;
    if (r->file >= 0) {
        (void)r->store->directory.v->close(r->store->directory.v, r->file);
    }
    r->file = -1;
    replica_mark_close(r);
    r->kept = NULL;
    r->store = NULL;
    replica_free(r);
    return LS_OK;
}

int replica_serve(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    if (ls_replica_leads(store) == 0) {
        return fail(LS_WOULD_WAIT, "the first batch of the term is not durable yet");
    }
    return store_serve_term(store, queue_ids, n, next_queue_id);
}

void replica_cease(ls_store *store) {
    log_lock(store->log);
    log_cease(store->log);
    log_unlock(store->log);
}
