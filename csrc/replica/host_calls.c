/* A host by its public names. */
#include <string.h>

#include "replica/commit.h"
#include "replica/host.h"

int ls_host_create(vfs *system, const char *host_dir, const ls_member *member) {
    struct vote first = {.member_id = member->member_id, .copy = member->copy};
    memcpy(first.uuid, member->uuid, UUID_BYTES);
    memcpy(first.cluster_uuid, member->cluster_uuid, UUID_BYTES);
    return host_create(system != NULL ? system : vfs_posix(), host_dir, &first);
}

int ls_host_open(vfs *system, const char *host_dir, const ls_options *options, ls_host **host) {
    return host_open(system != NULL ? system : vfs_posix(), host_dir, options, host);
}

void ls_host_describe(const ls_host *host, ls_host_info *info) {
    const struct vote *v = &host->vote->now;
    struct tail tail = host_tail(host);
    *info = (ls_host_info){
        .member = {.member_id = v->member_id, .copy = v->copy},
        .term = host_term(host),
        .voted_for = host_voted_for(host),
        .start_term = host->start_term,
        .rebuild = v->rebuild,
        .floor_term = v->floor_term,
        .floor_index = v->floor_index,
        .tail_term = tail.term,
        .tail_index = tail.index,
    };
    memcpy(info->member.uuid, v->uuid, UUID_BYTES);
    memcpy(info->member.cluster_uuid, v->cluster_uuid, UUID_BYTES);
}

int ls_host_vote(ls_host *host, uint64_t term, uint64_t voted_for) { return host_vote(host, term, voted_for); }

ls_replica *ls_host_replica(ls_host *host) { return host->follows; }

int ls_host_cut(ls_host *host, uint64_t index) { return host_cut(host, index); }

int ls_host_lead(ls_host *host, uint64_t term, const uint8_t *config, size_t config_bytes, ls_store **store) {
    struct replication calls = {.index = 0};
    *store = NULL;
    if (config_bytes > MEMBERS_CONFIG_MAX) {
        return fail(LS_OPTION, "a configuration has 1 to %d bytes", MEMBERS_CONFIG_MAX);
    }
    if (host->follows == NULL) {
        return host_lead(host, term, &calls, config, (uint32_t)config_bytes, store);
    }
    struct kept *kept = host->follows->kept;
    uint64_t catalog_lsn = host->follows->catalog_lsn;
    int rc = leader_of(host->follows->store, kept, &calls);
    rc = rc == LS_OK ? host_lead(host, term, &calls, config, (uint32_t)config_bytes, store) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    host->kept = kept;
    host->options.catalog_lsn = catalog_lsn;
    return rc;
}

int ls_host_follow(ls_host *host) { return host_follow(host); }

int ls_host_note_tail(ls_host *host, const ls_store *leads) {
    struct tail forced = host_tail(host);
    if (leads != NULL) {
        forced = (struct tail){leads->state.report.epoch, ls_replica_forced(leads)};
    }
    return host_note_tail(host, forced);
}

/* ---- the kept window ---- */

static struct kept *kept_of(const ls_host *host) { return host->follows != NULL ? host->follows->kept : host->kept; }

void ls_host_kept(const ls_host *host, uint64_t *first, uint64_t *last) { kept_range(kept_of(host), first, last); }

int ls_host_entry(const ls_host *host, uint64_t index, ls_replica_entry *entry) {
    return kept_entry(kept_of(host), index, entry);
}

int ls_host_read(ls_host *host, uint64_t index, ls_replica_batch *batch) {
    return kept_read(kept_of(host), index, batch);
}

/* Tells the leader's log the LSN from which segments must be kept. A copy that follows reads that LSN by itself. */
static void keep(ls_host *host, ls_store *leads) {
    uint64_t kept = kept_lsn(host->kept), catalog_lsn = host->options.catalog_lsn;
    if (leads != NULL) {
        log_lock(leads->log);
        log_keep_from(leads->log, catalog_lsn != 0 && catalog_lsn < kept ? catalog_lsn : kept);
        log_unlock(leads->log);
    }
}

void ls_host_drop_kept(ls_host *host, ls_store *leads, uint64_t index) {
    if (kept_of(host) != NULL) {
        kept_drop(kept_of(host), index);
    }
    keep(host, leads);
}

void ls_host_catalog_has(ls_host *host, ls_store *leads, uint64_t lsn) {
    struct replica *r = host->follows;
    uint64_t had = r != NULL ? r->catalog_lsn : host->options.catalog_lsn;
    host->options.catalog_lsn = lsn > had ? lsn : had;
    if (r != NULL) {
        r->catalog_lsn = host->options.catalog_lsn;
    }
    keep(host, leads);
}

int ls_host_apply(ls_host *host, uint64_t index, ls_applied *applied) {
    struct replica *r = host->follows;
    ls_replica_entry entry = {.term = 0};
    *applied = (ls_applied){.copy = host->vote->now.copy};
    if (r == NULL) {
        return fail(LS_CLOSED, "there is no copy that follows");
    }
    int rc = index != 0 ? kept_entry(r->kept, index, &entry) : LS_OK;
    rc = rc == LS_OK && index != 0 ? replica_durable(r, entry.end_lsn) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    applied->term = entry.term;
    ls_replica_room_here(r, &applied->room);
    applied->has_change = replication_has_change(r->store) ? 1 : 0;
    return LS_OK;
}

int ls_host_next_change(ls_host *host, ls_store *leads, ls_catalog_rows *change) {
    *change = (ls_catalog_rows){.lsn = 0};
    if (leads == NULL && host->follows == NULL) {
        return fail(LS_CLOSED, "there is no copy that follows");
    }
    if (leads != NULL && ls_replica_leads(leads) == 0) {
        return fail(LS_WOULD_WAIT, "the first batch of the term is not durable yet");
    }
    return replication_next_change(leads != NULL ? leads : host->follows->store, change) ? LS_OK : LS_END;
}

int ls_replica_members(const ls_replica_batch *batch, const uint8_t **config, size_t *config_bytes) {
    struct scan_batch b = {.bytes = batch->bytes, .lsn = batch->lsn};
    struct record r;
    struct members m;
    uint32_t at = BATCH_RECORD_BYTES;
    format_read_verified(b.bytes, &r);
    bool found = format_get_batch(&r, &b.batch) == FORMAT_OK && scan_record(&b, &at, &r) && r.type == MEMBERS &&
                 (r.flags & FLAG_COPY) == 0 && format_get_members(&r, &m) == FORMAT_OK;
    *config = found ? m.config : NULL;
    *config_bytes = found ? m.config_bytes : 0;
    return found ? LS_OK : fail(LS_OPTION, "batch %llu has no configuration", (unsigned long long)batch->index);
}

int ls_host_members(const ls_host *host, uint64_t *index, const uint8_t **config, size_t *config_bytes) {
    const struct newest_members *newest =
        host->follows != NULL ? replication_members(host->follows->store->state.clients) : NULL;
    bool found = newest != NULL && newest->id != 0;
    *index = found ? newest->index : 0;
    *config = found ? newest->config : NULL;
    *config_bytes = found ? newest->config_bytes : 0;
    return found ? LS_OK : fail(LS_OPTION, "there is no copy that follows, or it is not replicated yet");
}

int ls_host_remove_copy(ls_host *host) { return host_remove_copy(host); }

int ls_host_discard(vfs *system, const char *host_dir, uint64_t term, uint64_t counted, uint64_t *copy) {
    return host_discard(system != NULL ? system : vfs_posix(), host_dir, term, counted, copy);
}

void ls_host_close(ls_host *host) { host_close(host); }

int ls_host_detach(vfs *system, const char *host_dir, const ls_options *options, uint64_t highest_term,
                   uint64_t *copy) {
    return host_detach(system != NULL ? system : vfs_posix(), host_dir, options, highest_term, copy);
}

int ls_backup_detach(vfs *system, const char *store_dir, const ls_options *options) {
    return host_detach_backup(system != NULL ? system : vfs_posix(), store_dir, options);
}
