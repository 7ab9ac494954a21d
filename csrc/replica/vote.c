/*
 * The two slots of VOTE. A write goes to the first slot, is forced, goes to the second, and is forced. So a crash tears one
 * slot at most, and the other one is whole: before the first force the second has the state before, after it the first has
 * the state after. docs/decisions/vote-and-identity.md says why two, and what that costs.
 */
#include "replica/vote.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/error.h"
#include "store/store.h"

_Static_assert(VOTE_SLOT_BYTES % IO_BLOCK_BYTES == 0, "a slot is written past the page cache");

static const char *const REBUILD =
    "this copy cannot take part: take a fresh one from the other members with logstore cluster rebuild";
/* It is unknown how this member voted, and which copy counts. */
static const char *const ANOTHER_ID =
    "this member cannot take part: remove it with logstore cluster remove, and join with another name and id";

static int fail_disk(int error, const char *path, const char *what) {
    bool full = error == ENOSPC || error == EDQUOT;
    return fail_errno(full ? LS_FULL : LS_IO, error, "%s/VOTE %s", path, what);
}

/* ---- the bytes ---- */

static int put_slot(struct vote_file *f, const struct vote *v, unsigned slot) {
    format_put_vote(f->slot, v);
    return io_write(f->host.v, f->file, f->slot, VOTE_SLOT_BYTES, (uint64_t)slot * VOTE_SLOT_BYTES, &f->host.written);
}

static int force_slot(struct vote_file *f, const struct vote *v, unsigned slot) {
    int rc = put_slot(f, v, slot);
    return rc == 0 ? f->host.v->sync_data(f->host.v, f->file) : rc;
}

static int force_first_then_second(struct vote_file *f, const struct vote *v) {
    int rc = force_slot(f, v, 0);
    return rc == 0 ? force_slot(f, v, 1) : rc;
}

static struct vote_file *file_new(vfs *v, const char *path) {
    struct vote_file *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return NULL;
    }
    f->host.v = v;
    f->host.dir = f->file = -1;
    f->path = strdup(path);
    f->slot = aligned_alloc(IO_BLOCK_BYTES, VOTE_SLOT_BYTES);
    if (f->path == NULL || f->slot == NULL) {
        vote_close(f);
        return NULL;
    }
    return f;
}

void vote_close(struct vote_file *f) {
    if (f == NULL) {
        return;
    }
    if (f->file >= 0) {
        (void)f->host.v->close(f->host.v, f->file);
    }
    if (f->host.dir >= 0) {
        (void)f->host.v->close(f->host.v, f->host.dir);
    }
    free(f->slot);
    free(f->path);
    free(f);
}

/* ---- opening one ---- */

struct found {
    struct vote vote;
    enum format_result result;
    int error; /* errno of a failed read of this slot only */
};

/* A slot that cannot be read counts as a torn one: the other slot has everything, and the next write renews this
   one. */
static int read_slot(struct vote_file *f, unsigned slot, struct found *into) {
    int64_t got = io_read_direct(f->host.v, f->file, f->slot, VOTE_SLOT_BYTES, (uint64_t)slot * VOTE_SLOT_BYTES);
    *into = (struct found){.result = FORMAT_SHORT, .error = got == -EIO ? EIO : 0};
    if (got < 0) {
        return got == -EIO ? 0 : (int)got;
    }
    into->result = format_get_vote(f->slot, (size_t)got, &into->vote);
    return 0;
}

static bool is_same_member(const struct vote *a, const struct vote *b) {
    return memcmp(a->uuid, b->uuid, UUID_BYTES) == 0 && memcmp(a->cluster_uuid, b->cluster_uuid, UUID_BYTES) == 0 &&
           a->member_id == b->member_id;
}

/* Both slots are valid. No series of writes leaves two such slots. */
static bool contradict(const struct vote *newer, const struct vote *older) {
    bool back = newer->term < older->term || newer->rebuild < older->rebuild || newer->copy < older->copy;
    bool differ = newer->term != older->term || newer->voted_for != older->voted_for || newer->copy != older->copy ||
                  newer->rebuild != older->rebuild || newer->floor_term != older->floor_term ||
                  newer->floor_index != older->floor_index || newer->detached != older->detached;
    return !is_same_member(newer, older) || back || (newer->sequence == older->sequence && differ);
}

static int choose(const struct vote_file *f, const struct found found[VOTE_SLOTS], unsigned *newest) {
    bool valid[VOTE_SLOTS] = {found[0].result == FORMAT_OK, found[1].result == FORMAT_OK};
    *newest = !valid[0] || (valid[1] && found[1].vote.sequence > found[0].vote.sequence);
    if (valid[0] && valid[1] && contradict(&found[*newest].vote, &found[1 - *newest].vote)) {
        return fail(LS_CORRUPT, "the two slots of %s/VOTE contradict each other; %s", f->path, ANOTHER_ID);
    }
    if (valid[*newest]) {
        return LS_OK;
    }
    if (found[0].result == FORMAT_NEWER || found[1].result == FORMAT_NEWER) {
        return fail(LS_VERSION, "a later version of logstore wrote %s/VOTE; use that version", f->path);
    }
    int error = found[0].error != 0 ? found[0].error : found[1].error;
    return error != 0 ? fail_errno(LS_CORRUPT, error, "%s/VOTE cannot be read, so %s", f->path, ANOTHER_ID)
                      : fail(LS_CORRUPT, "%s/VOTE is damaged in both slots (%s; %s), so %s", f->path,
                             format_result_text(found[0].result), format_result_text(found[1].result), ANOTHER_ID);
}

/* One handle for everything: bytes read past the cache are those of the device, and no write leaves pages that only
   look clean. */
static int open_file(struct vote_file *f) {
    vfs *s = f->host.v;
    f->file = s->open(s, f->host.dir, "VOTE", VFS_WRITE | VFS_DIRECT);
    if (f->file == -EINVAL) {
        f->file = s->open(s, f->host.dir, "VOTE", VFS_WRITE); /* a file system in memory */
    }
    if (f->file == -ENOENT) {
        return fail(
            LS_NOT_A_STORE,
            "%s has no VOTE, and without it a member refuses to start: it could vote twice, or lack what it had "
            "acknowledged; check the path, or remove the member and let it join again",
            f->path);
    }
    if (f->file == -EISDIR || f->file == -ELOOP || f->file == -VFS_NOT_REGULAR) {
        return fail_errno(LS_NOT_A_STORE, -f->file, "%s/VOTE is not a VOTE; put the file itself there", f->path);
    }
    if (f->file < 0) {
        return fail_disk(-f->file, f->path, "cannot be opened");
    }
    int rc = s->lock(s, f->file, 1);
    if (rc == -EWOULDBLOCK) {
        return fail(LS_LOCKED, "the member in %s runs in another process; stop that first", f->path);
    }
    return rc == 0 ? LS_OK : fail_disk(-rc, f->path, "cannot be locked");
}

/*
 * First forces the file and its name, which an earlier process wrote: the slot that counts must be on the disk before
 * the other one is overwritten. Then writes both slots again, the other one first. After a failed sync a disk may have
 * less than its cache shows; bytes that were read past the cache, written again and forced are on the disk.
 */
static int open_in(struct vote_file *f) {
    vfs *s = f->host.v;
    struct found found[VOTE_SLOTS];
    unsigned newest = 0;
    int rc = directory_open(&f->host, f->path, false);
    rc = rc == LS_OK ? open_file(f) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    rc = s->sync_file(s, f->file);
    rc = rc == 0 ? s->sync_dir(s, f->host.dir) : rc;
    for (unsigned slot = 0; rc == 0 && slot < VOTE_SLOTS; slot++) {
        rc = read_slot(f, slot, &found[slot]);
    }
    if (rc != 0) {
        return fail_disk(-rc, f->path, "cannot be read");
    }
    rc = choose(f, found, &newest);
    if (rc != LS_OK) {
        return rc;
    }
    f->now = found[newest].vote;
    rc = force_slot(f, &f->now, 1 - newest);
    rc = rc == 0 ? force_slot(f, &f->now, newest) : rc;
    return rc == 0 ? LS_OK : fail_disk(-rc, f->path, "cannot be written again");
}

int vote_open(vfs *v, const char *path, struct vote_file **vote) {
    struct vote_file *f = file_new(v, path);
    *vote = NULL;
    if (f == NULL) {
        return fail_memory();
    }
    int rc = open_in(f);
    if (rc != LS_OK) {
        vote_close(f);
        return rc;
    }
    *vote = f;
    return LS_OK;
}

/* ---- making one ---- */

/* A new file, so that no page of an earlier failed write is under it. */
static int write_new(struct vote_file *f, const struct vote *v) {
    static const char *const name = "VOTE.new";
    vfs *s = f->host.v;
    int rc = s->unlink(s, f->host.dir, name);
    rc = rc == 0 || rc == -ENOENT ? s->open(s, f->host.dir, name, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) : rc;
    if (rc < 0) {
        return rc;
    }
    f->file = rc;
    for (unsigned slot = 0; slot < VOTE_SLOTS; slot++) {
        rc = put_slot(f, v, slot);
        if (rc != 0) {
            return rc;
        }
    }
    rc = s->sync_file(s, f->file);
    rc = rc == 0 ? s->rename(s, f->host.dir, name, "VOTE") : rc;
    return rc == 0 ? s->sync_dir(s, f->host.dir) : rc;
}

/* *old: the one to replace, locked; NULL: there is none. */
static int find_existing(struct vote_file *f, struct vote_file **old) {
    vfs *s = f->host.v;
    int found = s->open(s, f->host.dir, "VOTE", 0);
    if (found == -ENOENT) {
        return LS_OK;
    }
    if (found >= 0) {
        (void)s->close(s, found);
        int rc = vote_open(s, f->path, old);
        if (rc == LS_IO || rc == LS_FULL || rc == LS_NO_MEMORY || (rc == LS_OK && (*old)->now.detached != 0)) {
            return rc;
        }
    } else if (found != -EISDIR && found != -ELOOP && found != -VFS_NOT_REGULAR) {
        return fail_disk(-found, f->path, "cannot be opened");
    }
    return fail(LS_OPTION, "%s has a VOTE already, which no other may replace; choose another directory", f->path);
}

/* Peers that knew the previous VOTE judge the new one by its rebuild number and its term. */
static int continue_from(const struct vote_file *f, const struct vote *old, struct vote *v) {
    if (v->copy < old->copy) {
        return fail(LS_OPTION, "the VOTE of %s that is to be replaced has copy %" PRIu64 "; copy %" PRIu64 " is older",
                    f->path, old->copy, v->copy);
    }
    v->sequence = old->sequence + 1;
    v->rebuild = v->rebuild > old->rebuild ? v->rebuild : old->rebuild + 1;
    if (v->term <= old->term) {
        v->term = old->term;
        v->voted_for = old->voted_for;
    }
    return LS_OK;
}

static int create_in(struct vote_file *f, struct vote *v, struct vote_file **old) {
    int rc = directory_open(&f->host, f->path, false);
    rc = rc == LS_OK ? find_existing(f, old) : rc;
    rc = rc == LS_OK && *old != NULL ? continue_from(f, &(*old)->now, v) : rc;
    rc = rc == LS_OK ? directory_sync_parent(&f->host, f->path) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    rc = write_new(f, v);
    return rc == 0 ? LS_OK : fail_disk(-rc, f->path, "cannot be made");
}

int vote_create(vfs *v, const char *path, const struct vote *first) {
    struct vote made = *first, read;
    made.sequence = 1;
    struct vote_file *f = file_new(v, path), *old = NULL;
    if (f == NULL) {
        return fail_memory();
    }
    format_put_vote(f->slot, &made);
    int rc = format_get_vote(f->slot, VOTE_SLOT_BYTES, &read) == FORMAT_OK
                 ? create_in(f, &made, &old)
                 : fail(LS_OPTION,
                        "no VOTE can say member %" PRIu64 ", term %" PRIu64 ", copy %" PRIu64 ", floor %" PRIu64
                        " of term %" PRIu64 ": members and copies begin at 1, terms end at %" PRIu64
                        ", and the floor's is at most the term",
                        made.member_id, made.term, made.copy, made.floor_index, made.floor_term, TERM_LIMIT - 1);
    vote_close(f);
    vote_close(old);
    return rc;
}

/* ---- changes ---- */

static int usable(const struct vote_file *f) {
    if (f->error != 0) {
        return fail_errno(LS_POISONED, f->error,
                          "a write or sync of %s/VOTE failed; do not send its result to any member, and start this "
                          "member again",
                          f->path);
    }
    if (f->now.detached != 0) {
        return fail(LS_REFUSED, "%s/VOTE is detached: the store there is a single one, and no member", f->path);
    }
    return LS_OK;
}

static int write_next(struct vote_file *f, struct vote next) {
    next.sequence = f->now.sequence + 1;
    int rc = force_first_then_second(f, &next);
    if (rc != 0) {
        f->error = -rc;
        return fail_errno(
            LS_OUTCOME_UNKNOWN, -rc,
            "%s/VOTE cannot be written (term %" PRIu64 ", vote for %" PRIu64 ", copy %" PRIu64
            "); do not send it to any member, check the disk and start this member again, which reads what the "
            "disk has",
            f->path, next.term, next.voted_for, next.copy);
    }
    f->now = next;
    return LS_OK;
}

static struct tail floor_of(const struct vote *v) { return (struct tail){v->floor_term, v->floor_index}; }

/* VOTE has a term before the log has a batch of it. */
static int check_tail(const struct vote_file *f, struct tail t) {
    if (t.term > f->now.term || (t.term == 0) != (t.index == 0)) {
        return fail(LS_REFUSED,
                    "index %" PRIu64 " of term %" PRIu64 " cannot be the floor of %s: VOTE has term %" PRIu64
                    "; write the term first",
                    t.index, t.term, f->path, f->now.term);
    }
    return LS_OK;
}

static int set_floor(struct vote_file *f, struct tail t) {
    struct vote next = f->now;
    next.floor_term = t.term;
    next.floor_index = t.index;
    return write_next(f, next);
}

int vote_write(struct vote_file *f, uint64_t term, uint64_t voted_for) {
    struct vote next = f->now;
    int rc = usable(f);
    if (rc != LS_OK) {
        return rc;
    }
    if (term >= TERM_LIMIT) {
        return fail(LS_OPTION, "term %" PRIu64 " is out of range; terms end at %" PRIu64, term, TERM_LIMIT - 1);
    }
    if (term < next.term || (term == next.term && next.voted_for != 0 && next.voted_for != voted_for)) {
        return fail(LS_REFUSED,
                    "a vote for %" PRIu64 " in term %" PRIu64 " does not follow in %s: in term %" PRIu64
                    " the vote is for %" PRIu64 "; 0 is none",
                    voted_for, term, f->path, next.term, next.voted_for);
    }
    if (term == next.term && voted_for == next.voted_for) {
        return LS_OK;
    }
    next.term = term;
    next.voted_for = voted_for;
    return write_next(f, next);
}

int vote_raise_floor(struct vote_file *f, struct tail forced) {
    struct tail is = floor_of(&f->now);
    int rc = usable(f);
    rc = rc == LS_OK ? check_tail(f, forced) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if (tail_is_before(forced, is)) {
        return fail(LS_REFUSED,
                    "index %" PRIu64 " of term %" PRIu64 " lies below the floor of %s, index %" PRIu64
                    " of term %" PRIu64 "; lower it before the log is cut",
                    forced.index, forced.term, f->path, is.index, is.term);
    }
    return tail_is_before(is, forced) ? set_floor(f, forced) : LS_OK;
}

int vote_lower_floor(struct vote_file *f, struct tail left) {
    int rc = usable(f);
    rc = rc == LS_OK ? check_tail(f, left) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    return tail_is_before(left, floor_of(&f->now)) ? set_floor(f, left) : LS_OK;
}

int vote_switch(struct vote_file *f, uint64_t copy, struct tail end) {
    struct vote next = f->now;
    int rc = usable(f);
    rc = rc == LS_OK ? check_tail(f, end) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if (copy <= next.copy) {
        return fail(LS_REFUSED, "copy %" PRIu64 " does not follow in %s: copy %" PRIu64 " counts; take the next number",
                    copy, f->path, next.copy);
    }
    next.copy = copy;
    next.floor_term = end.term;
    next.floor_index = end.index;
    return write_next(f, next);
}

int vote_next_rebuild(struct vote_file *f, uint64_t term, uint64_t counted) {
    struct vote next = f->now;
    int rc = usable(f);
    if (rc != LS_OK) {
        return rc;
    }
    if (term >= TERM_LIMIT || counted >= UINT64_MAX - 1) {
        return fail(LS_OPTION, "term %" PRIu64 " or rebuild number %" PRIu64 " is out of range", term, counted);
    }
    if (term > next.term) {
        next.term = term;
        next.voted_for = next.member_id;
    }
    next.rebuild = (counted > next.rebuild ? counted : next.rebuild) + 1;
    next.copy++;
    next.floor_term = next.floor_index = 0;
    return write_next(f, next);
}

int vote_detach(struct vote_file *f) {
    struct vote next = f->now;
    int rc = usable(f);
    if (rc != LS_OK) {
        return f->error == 0 ? LS_OK : rc;
    }
    next.detached = 1;
    return write_next(f, next);
}

bool vote_floor_is_due(const struct vote *v, struct tail forced, uint64_t now_us, uint64_t written_us) {
    return tail_is_before(floor_of(v), forced) && now_us - written_us >= VOTE_FLOOR_EVERY_US;
}

/* ---- at a start ---- */

void vote_copy_name(char into[COPY_NAME_BYTES], uint64_t copy) {
    (void)snprintf(into, COPY_NAME_BYTES, "copy-%" PRIu64, copy);
}

int vote_find_copy(struct vote_file *f, bool *present) {
    char name[COPY_NAME_BYTES];
    vote_copy_name(name, f->now.copy);
    int dir = f->host.v->open_subdir(f->host.v, f->host.dir, name, 0);
    *present = dir >= 0;
    if (dir >= 0) {
        (void)f->host.v->close(f->host.v, dir);
        return LS_OK;
    }
    if (dir != -ENOENT) {
        return fail_errno(LS_IO, -dir, "%s/%s cannot be opened", f->path, name);
    }
    if (f->now.floor_index == 0) {
        return LS_OK; /* an update will bring it */
    }
    return fail(LS_NOT_A_STORE,
                "%s/%s is missing: VOTE says that it has index %" PRIu64 " of term %" PRIu64 "; put it back, or %s",
                f->path, name, f->now.floor_index, f->now.floor_term, REBUILD);
}

int vote_check_log(const struct vote_file *f, struct tail end, const uint8_t uuid[UUID_BYTES]) {
    const struct vote *v = &f->now;
    if (v->detached != 0) {
        return fail(LS_REFUSED,
                    "%s/VOTE is detached: the store in copy-%" PRIu64
                    " is a single one; open it as such, or make it the "
                    "first copy of a new group with logstore cluster init --store",
                    f->path, v->copy);
    }
    if (memcmp(v->uuid, uuid, UUID_BYTES) != 0) {
        return fail(LS_NOT_A_STORE,
                    "%s/VOTE is of another store than copy-%" PRIu64
                    "; put back the directory that belongs to it, or %s",
                    f->path, v->copy, REBUILD);
    }
    if (tail_is_before(end, floor_of(v))) {
        return fail(LS_CORRUPT,
                    "the log in %s/copy-%" PRIu64 " ends at index %" PRIu64 " of term %" PRIu64
                    ", and this member had forced index %" PRIu64 " of term %" PRIu64 "; %s",
                    f->path, v->copy, end.index, end.term, v->floor_index, v->floor_term, REBUILD);
    }
    return LS_OK;
}
