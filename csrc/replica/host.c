/* A member's directory: VOTE and the copy that counts, each step in the order that a crash allows. See host.h. */
#include "replica/host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "os/error.h"

/* ---- the directories of copies ---- */

static char *copy_path(const char *host, uint64_t copy) {
    size_t bytes = strlen(host) + 1 + COPY_NAME_BYTES;
    char name[COPY_NAME_BYTES], *path = malloc(bytes);
    if (path != NULL) {
        vote_copy_name(name, copy);
        (void)snprintf(path, bytes, "%s/%s", host, name);
    }
    return path;
}

char *host_copy_path(const struct host *h, uint64_t copy) { return copy_path(h->vote->path, copy); }

/* True only for names that vote_copy_name makes. */
static bool parse_copy_name(const char *name, uint64_t *copy) {
    char exact[COPY_NAME_BYTES];
    if (strncmp(name, "copy-", 5) != 0) {
        return false;
    }
    *copy = strtoull(name + 5, NULL, 10);
    vote_copy_name(exact, *copy);
    return *copy != 0 && strcmp(exact, name) == 0;
}

struct other_copies {
    uint64_t present; /* the number that is left out */
    uint64_t *all;
    size_t count;
    size_t capacity;
};

static int note_copy(void *context, const char *name) {
    struct other_copies *o = context;
    uint64_t copy;
    if (!parse_copy_name(name, &copy) || copy == o->present) {
        return 0;
    }
    if (!array_grow(&o->all, &o->capacity, o->count, 1)) {
        return -ENOMEM;
    }
    o->all[o->count++] = copy;
    return 0;
}

static int first_name(void *into, const char *name) {
    memcpy(into, name, strlen(name) + 1);
    return 1;
}

/* Removes a directory: 0 or -errno. Anything that is not a directory stays. */
static int remove_dir_of_files(vfs *v, int above, const char *name) {
    char file[VFS_NAME_MAX + 1];
    int dir = v->open_subdir(v, above, name, 0);
    if (dir < 0) {
        return dir == -ENOENT || dir == -ENOTDIR ? 0 : dir;
    }
    int rc = v->list(v, dir, first_name, file);
    while (rc == 1) {
        rc = v->unlink(v, dir, file);
        rc = rc == 0 || rc == -ENOENT ? v->list(v, dir, first_name, file) : rc;
    }
    (void)v->close(v, dir);
    return rc == 0 ? v->remove_dir(v, above, name) : rc;
}

/* Removes META first, durably: after a crash the rest is no store. */
static int remove_copy_dir(vfs *v, int host, uint64_t copy) {
    char name[COPY_NAME_BYTES];
    vote_copy_name(name, copy);
    int dir = v->open_subdir(v, host, name, 0);
    if (dir < 0) {
        return dir == -ENOENT || dir == -ENOTDIR ? 0 : dir;
    }
    int rc = v->unlink(v, dir, "META");
    rc = rc == 0 || rc == -ENOENT ? v->sync_dir(v, dir) : rc;
    rc = rc == 0 ? remove_dir_of_files(v, dir, "holds") : rc;
    (void)v->close(v, dir);
    rc = rc == 0 ? remove_dir_of_files(v, host, name) : rc;
    return rc == 0 ? v->sync_dir(v, host) : rc;
}

static int remove_copy(const struct host *h, uint64_t copy) {
    const struct directory *d = &h->vote->host;
    int rc = remove_copy_dir(d->v, d->dir, copy);
    return rc == 0 ? LS_OK
                   : fail_errno(LS_IO, -rc, "%s/copy-%" PRIu64 " does not count any more and cannot be removed",
                                h->vote->path, copy);
}

/* Removes the copies of earlier numbers, or all other copies. Returns 0 or the first -errno; the other copies are
   removed in any case. */
static int remove_other_copies(const struct host *h, bool also_later) {
    const struct directory *d = &h->vote->host;
    struct other_copies o = {.present = h->vote->now.copy};
    int rc = d->v->list(d->v, d->dir, note_copy, &o);
    for (size_t i = 0; i < o.count; i++) {
        if (o.all[i] < o.present || also_later) {
            int failed = remove_copy_dir(d->v, d->dir, o.all[i]);
            rc = rc == 0 ? failed : rc;
        }
    }
    free(o.all);
    return rc;
}

/* ---- making a host ---- */

/* Locks the store and reads its log; writes nothing. */
static int read_store(ls_store *store, vfs *v, const char *path, struct vote *made) {
    static const uint8_t none[UUID_BYTES];
    ls_options o = store->options;
    o.create = 0;
    int rc = store_open_directory(store, v, path, &o);
    rc = rc == LS_OK ? scan_open(&store->scan, v, store->directory.dir, &store->meta, true, NULL) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if (memcmp(made->uuid, none, UUID_BYTES) == 0) {
        memcpy(made->uuid, store->meta.uuid, UUID_BYTES);
    }
    if (memcmp(made->uuid, store->meta.uuid, UUID_BYTES) != 0) {
        return fail(LS_NOT_A_STORE, "the store in %s has another UUID than the one that the member is for", path);
    }
    if (store->scan.index != 0) {
        return fail(LS_REPLICATED,
                    "%s is a member's copy already (term %" PRIu64 ", index %" PRIu64
                    "), and a VOTE is never made anew for one; put its own VOTE back, or take a fresh copy",
                    path, store->scan.term, store->scan.index);
    }
    return LS_OK;
}

static int check_directory(const struct directory *d, const char *path, uint64_t copy) {
    struct other_copies o = {.present = copy};
    int rc = d->v->list(d->v, d->dir, note_copy, &o);
    if (rc != 0) {
        rc = rc == -ENOMEM ? fail_memory() : fail_errno(LS_IO, -rc, "%s cannot be listed", path);
    } else if (o.count > 0) {
        rc = fail(LS_OPTION, "%s has a directory copy-%" PRIu64 ", which a member with copy-%" PRIu64 " would remove",
                  path, o.all[0], copy);
    }
    free(o.all);
    return rc;
}

/* The store stays locked until VOTE is there. */
static int create_with(const struct directory *d, const char *path, ls_store *store, struct vote *made) {
    char name[COPY_NAME_BYTES], *store_dir = copy_path(path, made->copy);
    if (store_dir == NULL) {
        return fail_memory();
    }
    vote_copy_name(name, made->copy);
    int dir = d->v->open_subdir(d->v, d->dir, name, 0), rc = LS_OK;
    if (dir >= 0) {
        (void)d->v->close(d->v, dir);
        rc = read_store(store, d->v, store_dir, made);
    } else if (dir != -ENOENT) {
        rc = fail_errno(LS_IO, -dir, "%s cannot be opened", store_dir);
    }
    free(store_dir);
    return rc == LS_OK ? vote_create(d->v, path, made) : rc;
}

int host_create(vfs *v, const char *path, const struct vote *first) {
    struct directory d = {.v = v, .dir = -1};
    struct vote made = *first;
    ls_options options;
    ls_store *store;
    made.floor_term = made.floor_index = made.detached = 0;
    ls_options_default(&options);
    int rc = store_new(&options, NULL, 0, &store);
    rc = rc == LS_OK ? directory_open(&d, path, false) : rc;
    rc = rc == LS_OK ? check_directory(&d, path, made.copy) : rc;
    rc = rc == LS_OK ? create_with(&d, path, store, &made) : rc;
    ls_error kept = *ls_last_error();
    if (d.dir >= 0) {
        (void)v->close(v, d.dir);
    }
    ls_free(store);
    return rc == LS_OK ? LS_OK : fail_again(&kept);
}

/* ---- opening one ---- */

static struct tail tail_of(const struct replica_end *end) {
    return end->index != 0 ? (struct tail){end->term, end->index} : (struct tail){0, 0};
}

struct tail host_tail(const struct host *h) {
    return h->follows != NULL ? tail_of(&h->follows->end) : (struct tail){0, 0};
}

/* The log of a member ends with an index until it is detached; and VOTE is detached before the log. */
static int check_log(const struct host *h, const struct replica *r) {
    const struct vote *v = &h->vote->now;
    if (r->end.index == 0 && r->replay.newest.last_index != 0 && v->floor_index != 0) {
        return fail(
            LS_NOT_A_STORE,
            "%s/copy-%" PRIu64 " is a single store, whose replication ended at index %" PRIu64
            ", and VOTE says that this member takes part; it may be a backup: put the member's own directory back, or "
            "take a fresh copy with logstore cluster rebuild",
            h->vote->path, v->copy, r->replay.newest.last_index);
    }
    return vote_check_log(h->vote, tail_of(&r->end), r->store->meta.uuid);
}

/* VOTE has no floor in a term above its own. */
static int raise_floor(struct host *h, struct tail forced) {
    return forced.index == 0 || forced.term > h->vote->now.term ? LS_OK : vote_raise_floor(h->vote, forced);
}

static int open_copy(const struct host *h, struct kept *kept, struct replica **r) {
    char *path = host_copy_path(h, h->vote->now.copy);
    if (path == NULL) {
        kept_free(kept);
        return fail_memory();
    }
    int rc = replica_open_again(h->vote->host.v, path, &h->options, kept, r);
    free(path);
    return rc;
}

int host_follow(struct host *h) {
    struct replica *r = NULL;
    struct kept *window = h->kept; /* the engine relies on the batches that this copy has */
    bool present;
    replica_free(h->follows);
    h->follows = NULL;
    h->kept = NULL;
    int rc = vote_find_copy(h->vote, &present);
    if (rc != LS_OK || !present) {
        kept_free(window);
        return rc;
    }
    rc = open_copy(h, window, &r);
    rc = rc == LS_OK ? check_log(h, r) : rc;
    rc = rc == LS_OK ? raise_floor(h, tail_of(&r->end)) : rc;
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        replica_free(r);
        return fail_again(&kept);
    }
    uint64_t highest = replica_highest_term(r);
    h->header_term = highest > h->header_term ? highest : h->header_term;
    r->vote = &h->vote->now;
    h->follows = r;
    return LS_OK;
}

static int open_in(struct host *h, vfs *v, const char *path) {
    int rc = vote_open(v, path, &h->vote);
    if (rc != LS_OK) {
        return rc;
    }
    const struct vote *now = &h->vote->now;
    if (now->detached != 0) {
        return fail(
            LS_NOT_A_STORE,
            "%s/VOTE is detached: copy-%" PRIu64
            " takes part no more and is a single store. If it does not open as one, its detach was interrupted: "
            "detach it again",
            path, now->copy);
    }
    h->start_term = now->term;
    rc = host_follow(h);
    if (rc == LS_OK) {
        (void)remove_other_copies(h, false); /* they take room, and nothing else */
    }
    return rc;
}

static void free_host(struct host *h) {
    replica_free(h->follows);
    kept_free(h->kept);
    vote_close(h->vote);
    free(h);
}

int host_open(vfs *v, const char *path, const ls_options *options, struct host **host) {
    struct host *h = *host = NULL;
    h = calloc(1, sizeof *h);
    if (h == NULL) {
        return fail_memory();
    }
    h->options = *options;
    int rc = open_in(h, v, path);
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        free_host(h);
        return fail_again(&kept);
    }
    *host = h;
    return LS_OK;
}

void host_close(struct host *h) {
    if (h == NULL) {
        return;
    }
    (void)raise_floor(h, host_tail(h)); /* the next open does it, too */
    free_host(h);
}

/* ---- the term and the vote ---- */

uint64_t host_term(const struct host *h) {
    return h->header_term > h->vote->now.term ? h->header_term : h->vote->now.term;
}

uint64_t host_voted_for(const struct host *h) {
    const struct vote *now = &h->vote->now;
    return h->header_term > now->term ? now->member_id : now->voted_for;
}

int host_vote(struct host *h, uint64_t term, uint64_t voted_for) {
    const struct vote before = h->vote->now;
    bool spent = term == h->header_term && term > before.term;
    if (term < h->header_term || (spent && voted_for != 0 && voted_for != before.member_id)) {
        return fail(LS_REFUSED,
                    "a vote for %" PRIu64 " in term %" PRIu64
                    " does not follow in %s: its log has a header of term %" PRIu64
                    ", and VOTE does not say for whom this member voted there",
                    voted_for, term, h->vote->path, h->header_term);
    }
    int rc = vote_write(h->vote, term, spent ? before.member_id : voted_for);
    bool fresh = term > before.term || before.voted_for == 0;
    if (rc == LS_OK && fresh) {
        h->stands_in = !spent && voted_for == before.member_id ? term : 0;
    }
    return rc;
}

/* ---- cutting, and leading ---- */

static int fail_not_following(const struct host *h) {
    return fail(LS_CLOSED, "%s has no copy that follows: it leads, or waits for an update", h->vote->path);
}

int host_cut(struct host *h, uint64_t index) {
    struct replica_end end;
    if (h->follows == NULL) {
        return fail_not_following(h);
    }
    int rc = replica_find_cut(h->follows, index, &end);
    rc = rc == LS_OK ? vote_lower_floor(h->vote, tail_of(&end)) : rc;
    return rc == LS_OK ? replica_cut(h->follows, index) : rc;
}

int host_lead(struct host *h, uint64_t term, const struct replication *calls, const void *config, uint32_t config_bytes,
              ls_store **store) {
    *store = NULL;
    if (h->follows == NULL) {
        return fail_not_following(h);
    }
    if (term == 0 || term != h->stands_in || term != h->vote->now.term) {
        return fail(LS_REFUSED,
                    "%s does not lead in term %" PRIu64 ": VOTE has term %" PRIu64 " and a vote for %" PRIu64
                    "; vote for the member itself (%" PRIu64 ") in a new term first, each time",
                    h->vote->path, term, h->vote->now.term, h->vote->now.voted_for, h->vote->now.member_id);
    }
    int rc = replica_lead(h->follows, term, calls, config, config_bytes, store);
    if (rc != LS_OPTION) {
        h->stands_in = 0;
        h->header_term = term;
    }
    h->follows = rc == LS_OK ? NULL : h->follows;
    return rc;
}

/* ---- the floor ---- */

int host_note_tail(struct host *h, struct tail forced) {
    vfs *v = h->vote->host.v;
    uint64_t now_us = v->monotonic_us(v);
    if (h->floor_written_us != 0 && !vote_floor_is_due(&h->vote->now, forced, now_us, h->floor_written_us)) {
        return LS_OK;
    }
    int rc = raise_floor(h, forced);
    h->floor_written_us = rc == LS_OK ? now_us : h->floor_written_us;
    return rc;
}

/* ---- another copy, or none ---- */

int host_switch(struct host *h, uint64_t copy, struct replica *next) {
    const struct directory *d = &h->vote->host;
    const struct vote *now = &h->vote->now;
    uint64_t before = now->copy;
    if (memcmp(now->uuid, next->store->meta.uuid, UUID_BYTES) != 0) {
        return fail(LS_NOT_A_STORE, "copy-%" PRIu64 " of %s is of another store than its VOTE", copy, h->vote->path);
    }
    int error = d->v->sync_dir(d->v, d->dir); /* its name */
    int rc = error == 0 ? vote_switch(h->vote, copy, tail_of(&next->end))
                        : fail_errno(LS_IO, -error, "%s cannot be forced", h->vote->path);
    if (rc != LS_OK) {
        return rc;
    }
    replica_free(h->follows);
    h->follows = next;
    h->options.catalog_lsn = next->catalog_lsn;
    next->vote = now;
    uint64_t highest = replica_highest_term(next);
    h->header_term = highest > h->header_term ? highest : h->header_term;
    (void)remove_copy_dir(d->v, d->dir, before);
    return LS_OK;
}

int host_remove_copy(struct host *h) {
    uint64_t copy = h->vote->now.copy;
    int rc = LS_OK;
    if (h->follows == NULL) {
        return fail_not_following(h);
    }
    int error = remove_other_copies(h, true); /* files left by an update in the next copy's directory would count */
    if (error != 0) {
        return fail_errno(LS_IO, -error, "what an update left in %s cannot be removed", h->vote->path);
    }
    if (h->header_term > h->vote->now.term) { /* the header that says so goes */
        rc = host_vote(h, h->header_term, 0);
    }
    rc = rc == LS_OK ? vote_next_rebuild(h->vote, 0, 0) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    replica_free(h->follows);
    h->follows = NULL;
    return remove_copy(h, copy);
}

int host_discard(vfs *v, const char *path, uint64_t term, uint64_t counted, uint64_t *copy) {
    struct host h = {.follows = NULL};
    int rc = vote_open(v, path, &h.vote);
    *copy = 0;
    if (rc != LS_OK) {
        return rc;
    }
    uint64_t before = h.vote->now.copy;
    int error = h.vote->now.detached == 0 ? remove_other_copies(&h, true) : 0; /* as in host_remove_copy */
    rc = error == 0 ? vote_next_rebuild(h.vote, term, counted)
                    : fail_errno(LS_IO, -error, "what an update left in %s cannot be removed", path);
    if (rc == LS_OK) {
        *copy = h.vote->now.copy;
        /* On a bad disk the directory may stay; it no longer counts. */
        (void)remove_copy_dir(v, h.vote->host.dir, before);
    }
    ls_error kept = *ls_last_error();
    vote_close(h.vote);
    return rc == LS_OK ? LS_OK : fail_again(&kept);
}

/* ---- an end to replication ---- */

/* The catalog lacks changes in segments that nothing keeps for it once the log is a single store. */
static int check_catalog_has_all(const struct host *h, const struct replica *r) {
    if (r->catalog_lsn >= r->end.lsn) {
        return LS_OK;
    }
    return fail(LS_WOULD_WAIT,
                "%s/VOTE is detached; the log ends at LSN %" PRIu64 ", and the catalog has its changes up to %" PRIu64
                ": give the catalog the later changes, and detach again",
                h->vote->path, r->end.lsn, r->catalog_lsn);
}

/*
 * VOTE is detached before the log. Otherwise a detached log could take part again, with batches that no majority had
 * and that count now. The catalog gets the changes in these batches between the two steps, for the same reason.
 */
static int detach(struct host *h, struct replica *r, uint64_t highest_term) {
    const struct vote *now = &h->vote->now;
    uint64_t highest = highest_term > now->term ? highest_term : now->term, epoch;
    int rc = replica_check_detach(r, highest, &epoch);
    if (rc == LS_OK && now->detached == 0) {
        rc = vote_check_log(h->vote, tail_of(&r->end), r->store->meta.uuid);
        rc = rc == LS_OK && highest > now->term ? vote_write(h->vote, highest, 0) : rc; /* for a call that finishes */
        rc = rc == LS_OK ? vote_detach(h->vote) : rc;
    }
    rc = rc == LS_OK ? check_catalog_has_all(h, r) : rc;
    return rc == LS_OK ? replica_detach(r, highest) : rc;
}

static int detach_host(struct host *h, uint64_t highest_term, struct replica **r) {
    bool present;
    int rc = vote_find_copy(h->vote, &present);
    if (rc == LS_OK && !present) {
        return fail(LS_OPTION, "%s has no copy that could be detached", h->vote->path);
    }
    rc = rc == LS_OK ? open_copy(h, NULL, r) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if ((*r)->end.index != 0) {
        rc = detach(h, *r, highest_term);
        *r = rc == LS_OK ? NULL : *r;
        return rc;
    }
    /* The log was detached before, and perhaps relocated since, so that no batch with an index is left; or it comes
       from a backup. */
    if (h->vote->now.detached != 0 || (*r)->replay.newest.last_index != 0) {
        return vote_detach(h->vote);
    }
    return fail(LS_OPTION, "%s/copy-%" PRIu64 " is not replicated: open it as it is", h->vote->path, h->vote->now.copy);
}

int host_detach(vfs *v, const char *path, const ls_options *options, uint64_t highest_term, uint64_t *copy) {
    struct host h = {.options = *options};
    struct replica *r = NULL;
    *copy = 0;
    int rc = vote_open(v, path, &h.vote);
    if (rc == LS_OK) {
        *copy = h.vote->now.copy;
        rc = detach_host(&h, highest_term, &r);
    }
    ls_error kept = *ls_last_error();
    replica_free(r);
    vote_close(h.vote);
    return rc == LS_OK ? LS_OK : fail_again(&kept);
}

static int check_no_vote_beside(vfs *v, const char *store_dir) {
    int above = directory_open_parent(v, store_dir);
    int found = above < 0 ? above : v->open(v, above, "VOTE", 0);
    if (found >= 0) {
        (void)v->close(v, found);
    }
    if (above >= 0) {
        (void)v->close(v, above);
    }
    if (found == -ENOENT) {
        return LS_OK;
    }
    return found >= 0
               ? fail(LS_OPTION, "%s belongs to a member: detach the directory above it, which has VOTE", store_dir)
               : fail_errno(LS_IO, -found, "whether %s belongs to a member cannot be found out", store_dir);
}

int host_detach_backup(vfs *v, const char *store_dir, const ls_options *options) {
    struct replica *r = NULL;
    int rc = check_no_vote_beside(v, store_dir);
    rc = rc == LS_OK ? replica_open_backup(v, store_dir, options, &r) : rc;
    rc = rc == LS_OK ? replica_detach(r, 0) : rc;
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        replica_free(r);
        return fail_again(&kept);
    }
    return LS_OK;
}
