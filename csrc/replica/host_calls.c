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
    int rc = host->follows != NULL ? leader_of(host->follows->store, &calls) : LS_OK;
    return rc == LS_OK ? host_lead(host, term, &calls, config, (uint32_t)config_bytes, store) : rc;
}

int ls_host_follow(ls_host *host) { return host_follow(host); }

int ls_host_note_tail(ls_host *host, const ls_store *leads) {
    struct tail forced = host_tail(host);
    if (leads != NULL) {
        forced = (struct tail){leads->state.report.epoch, ls_replica_forced(leads)};
    }
    return host_note_tail(host, forced);
}

int ls_host_remove_copy(ls_host *host) { return host_remove_copy(host); }

void ls_host_close(ls_host *host) { host_close(host); }

int ls_host_detach(vfs *system, const char *host_dir, const ls_options *options, uint64_t highest_term,
                   uint64_t *copy) {
    return host_detach(system != NULL ? system : vfs_posix(), host_dir, options, highest_term, copy);
}

int ls_backup_detach(vfs *system, const char *store_dir, const ls_options *options) {
    return host_detach_backup(system != NULL ? system : vfs_posix(), store_dir, options);
}
