/* Taking, renewing and releasing a hold, on the reader's side. See log/hold.h. */
#include "log/hold.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "os/error.h"
#include "os/io.h"
#include "read/hold_list.h"
#include "read/reader.h"

enum { LOCK_TRIES = 250, TAKE_TRIES = 16, PAUSE_NS = 2 * 1000 * 1000 };

static const uint64_t DAY_US = (uint64_t)86400 * 1000 * 1000;

struct ls_hold {
    vfs *v;
    char *store_dir;
    int dir;   /* holds/ */
    int store; /* the store's directory */
    int file;
    struct meta meta;
    char entry[LS_HOLD_NAME_MAX + 6];
    struct hold hold;
};

/* ---- names and numbers ---- */

static bool is_in(char c, const char *set) { return c != '\0' && strchr(set, c) != NULL; }

static int check_name(const char *name) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t length = strnlen(name, LS_HOLD_NAME_MAX + 1), good = 0;
    while (good < length && is_in(name[good], allowed)) {
        good++;
    }
    if (length == 0 || length > LS_HOLD_NAME_MAX || good < length) {
        return fail(LS_OPTION, "a hold's name has 1 to %d of the characters A-Z a-z 0-9 . _ -", LS_HOLD_NAME_MAX);
    }
    return LS_OK;
}

static int check_numbers(uint64_t lsn, uint64_t limit_bytes, uint64_t lasts_us) {
    if (lsn > LSN_MAX) {
        return fail(LS_OPTION, "a hold's LSN is at most %llu", (unsigned long long)LSN_MAX);
    }
    if (limit_bytes == 0) {
        return fail(LS_OPTION, "a hold's limit_bytes is at least 1: no hold is without limit");
    }
    if (lasts_us == 0 || lasts_us > LS_HOLD_DAYS_MAX * DAY_US) {
        return fail(LS_OPTION, "a hold lasts more than 0 and at most %d days, and may be renewed", LS_HOLD_DAYS_MAX);
    }
    return LS_OK;
}

/* ---- the file ---- */

/* A writer or another taker may have the lock for a moment. */
static int lock_patiently(vfs *v, int file) {
    int rc = -EWOULDBLOCK;
    for (int i = 0; i < LOCK_TRIES && rc == -EWOULDBLOCK; i++) {
        rc = v->lock(v, file, 1);
        if (rc == -EWOULDBLOCK) {
            const struct timespec pause = {.tv_nsec = PAUSE_NS};
            (void)nanosleep(&pause, NULL);
        }
    }
    return rc;
}

static int write_hold(ls_hold *h, int file, const struct hold *hold) {
    uint8_t bytes[HOLD_BYTES];
    format_put_hold(bytes, hold);
    return io_write(h->v, file, bytes, sizeof bytes, 0, NULL);
}

static int fail_hold(const ls_hold *h, int error, const char *what) {
    return fail_errno(error == ENOSPC || error == EDQUOT ? LS_FULL : LS_IO, error, "the hold %s/holds/%s cannot be %s",
                      h->store_dir, h->entry, what);
}

struct census {
    vfs *v;
    int dir;
    int living;
    const char *own;
    bool own_lives;
};

/* Removes holds without an owner, also one of the wanted name. */
static int count_one(void *context, const char *entry) {
    struct census *census = context;
    if (!hold_is_name(entry)) {
        return 0;
    }
    struct hold other;
    enum format_result why;
    bool lives = hold_look(census->v, census->dir, entry, &other, &why) != 0;
    census->living += lives ? 1 : 0;
    census->own_lives = census->own_lives || (lives && strcmp(entry, census->own) == 0);
    return 0;
}

/*
 * Waits until the name is free and there are fewer than LS_HOLDS_MAX holds: a process that removes a dead hold locks it for
 * a moment.
 */
static int find_room(ls_hold *h) {
    for (int i = 0;; i++) {
        struct census census = {h->v, h->dir, 0, h->entry, false};
        int rc = h->v->list(h->v, h->dir, count_one, &census);
        if (rc != 0) {
            return fail_hold(h, -rc, "looked for");
        }
        if (!census.own_lives && census.living < LS_HOLDS_MAX) {
            return LS_OK;
        }
        if (i == TAKE_TRIES) {
            return census.own_lives ? fail(LS_BUSY,
                                           "the hold %s of %s belongs to a running process; take another name, or "
                                           "wait until it is released",
                                           h->entry, h->store_dir)
                                    : fail(LS_BUSY, "the store %s has %d holds, the most there may be; release one",
                                           h->store_dir, LS_HOLDS_MAX);
        }
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        (void)nanosleep(&pause, NULL);
    }
}

/*
 * Makes the file, complete and locked, before it gets its name. The caller has the takers' lock, so an existing file
 * `new` is from a dead process.
 */
static int make_file(ls_hold *h) {
    vfs *v = h->v;
    int rc = v->unlink(v, h->dir, "new");
    h->file = rc == 0 || rc == -ENOENT ? v->open(v, h->dir, "new", VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) : rc;
    rc = h->file < 0 ? h->file : v->lock(v, h->file, 1);
    rc = rc == 0 ? write_hold(h, h->file, &h->hold) : rc;
    rc = rc == 0 ? v->rename(v, h->dir, "new", h->entry) : rc;
    if (rc == 0) {
        return LS_OK;
    }
    if (h->file >= 0) {
        (void)v->close(v, h->file);
        h->file = -1;
        (void)v->unlink(v, h->dir, "new");
    }
    return fail_hold(h, -rc, "made");
}

static int place_hold(ls_hold *h) {
    vfs *v = h->v;
    int turn = v->open(v, h->dir, "LOCK", VFS_WRITE | VFS_CREATE);
    if (turn < 0) {
        return fail_hold(h, -turn, "made");
    }
    int rc = lock_patiently(v, turn);
    if (rc == 0) {
        rc = find_room(h);
        rc = rc == LS_OK ? make_file(h) : rc;
    } else {
        rc = rc == -EWOULDBLOCK ? fail(LS_BUSY, "others are taking holds of %s; try again", h->store_dir)
                                : fail_hold(h, -rc, "made");
    }
    (void)v->close(v, turn);
    return rc;
}

/* ---- confirming ---- */

/* Reads the base that readers find now, and the UUID. */
static int look_at_base(const ls_hold *h, struct ls_reader_info *info) {
    ls_reader *reader;
    int rc = ls_reader_open(h->v, h->store_dir, UINT64_MAX, &reader);
    if (rc == LS_OK) {
        ls_reader_describe(reader, info);
        ls_reader_close(reader);
    }
    return rc;
}

static int fail_passed(const ls_hold *h, uint64_t lsn, uint64_t base_lsn, const char *why) {
    return fail(LS_RECYCLED,
                "the hold %s of %s cannot keep LSN %llu: %s, and the log below LSN %llu may be gone; begin again from "
                "there",
                h->entry, h->store_dir, (unsigned long long)lsn, why, (unsigned long long)base_lsn);
}

/*
 * Another honoured hold keeps the LSN of this one. A writer that looked before this hold had its name saw the other
 * one, and a writer that looks later sees this one.
 */
static int kept_by_another(const ls_hold *h, bool *kept) {
    ls_hold_info *others = malloc(2 * LS_HOLDS_MAX * sizeof *others); /* too large for a thread's stack */
    size_t count = 0;
    *kept = false;
    int rc = others != NULL ? ls_holds(h->v, h->store_dir, others, 2 * LS_HOLDS_MAX, &count) : fail_memory();
    size_t own = strlen(h->entry) - 5;
    for (size_t i = 0; rc == LS_OK && i < count && i < 2 * LS_HOLDS_MAX; i++) {
        bool another = strlen(others[i].name) != own || memcmp(others[i].name, h->entry, own) != 0;
        *kept = *kept || (another && others[i].state == LS_HOLD_HONOURED && others[i].lsn <= h->hold.hold_lsn);
    }
    free(others);
    *kept = *kept && holds_find_gone(h->v, h->store, &h->meta) <= h->hold.hold_lsn;
    return rc;
}

/*
 * Makes sure that the hold keeps the log from its LSN on. That is certain if the base, read while the hold is in place, or
 * another honoured hold lies at or below this LSN. If not: with from_base, raises the LSN to the base and checks again;
 * without, fails.
 */
static int confirm(ls_hold *h, bool from_base) {
    ls_reader_info info;
    int rc = look_at_base(h, &info);
    for (int i = 0; rc == LS_OK && info.base_lsn > h->hold.hold_lsn; i++) {
        bool kept = false;
        rc = from_base ? LS_OK : kept_by_another(h, &kept);
        if (rc != LS_OK || kept) {
            return rc;
        }
        if (!from_base || i == TAKE_TRIES) {
            return fail_passed(h, h->hold.hold_lsn, info.base_lsn, "the base had passed it");
        }
        h->hold.hold_lsn = info.base_lsn;
        rc = write_hold(h, h->file, &h->hold);
        rc = rc == 0 ? look_at_base(h, &info) : fail_hold(h, -rc, "written");
    }
    return rc;
}

static int take(ls_hold *h, uint64_t lsn, uint64_t limit_bytes, uint64_t lasts_us) {
    vfs *v = h->v;
    ls_reader_info info;
    int rc = look_at_base(h, &info);
    if (rc != LS_OK) {
        return rc;
    }
    h->store = v->open_dir(v, h->store_dir);
    if (h->store < 0) {
        return fail_errno(LS_IO, -h->store, "the store directory %s cannot be opened", h->store_dir);
    }
    rc = scan_read_meta(v, h->store, "META", &h->meta);
    if (rc != LS_OK) {
        return rc;
    }
    h->dir = v->open_subdir(v, h->store, "holds", 1);
    if (h->dir < 0) {
        return fail_hold(h, -h->dir, "made");
    }
    uint64_t now_us = v->now_us(v);
    h->hold = (struct hold){
        .hold_lsn = lsn != 0 ? lsn : info.base_lsn,
        .limit_bytes = limit_bytes,
        .created_us = now_us,
        .expires_us = now_us + lasts_us,
    };
    memcpy(h->hold.uuid, info.uuid, UUID_BYTES);
    rc = place_hold(h);
    return rc == LS_OK ? confirm(h, lsn == 0) : rc;
}

int ls_hold_take(vfs *system, const char *store_dir, const char *name, uint64_t lsn, uint64_t limit_bytes,
                 uint64_t lasts_us, ls_hold **hold) {
    *hold = NULL;
    int rc = check_name(name);
    rc = rc == LS_OK ? check_numbers(lsn, limit_bytes, lasts_us) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    ls_hold *made = calloc(1, sizeof *made);
    char *path = strdup(store_dir);
    if (made == NULL || path == NULL) {
        free(made);
        free(path);
        return fail_memory();
    }
    made->v = system != NULL ? system : vfs_posix();
    made->store_dir = path;
    made->dir = made->store = made->file = -1;
    (void)snprintf(made->entry, sizeof made->entry, "%s.hold", name);
    rc = take(made, lsn, limit_bytes, lasts_us);
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        ls_hold_release(made);
        return fail_again(&kept);
    }
    *hold = made;
    return LS_OK;
}

/* False if an operator has removed the file. */
static bool has_its_name(const ls_hold *h) {
    int there = h->v->open(h->v, h->dir, h->entry, 0);
    if (there >= 0) {
        (void)h->v->close(h->v, there);
    }
    return there != -ENOENT;
}

int ls_hold_advance(ls_hold *h, uint64_t lsn, uint64_t lasts_us) {
    int rc = check_numbers(lsn, h->hold.limit_bytes, lasts_us);
    if (rc != LS_OK) {
        return rc;
    }
    if (lsn != 0 && lsn < h->hold.hold_lsn) {
        return fail(LS_OPTION, "the hold %s is at LSN %llu and cannot go back to %llu", h->entry,
                    (unsigned long long)h->hold.hold_lsn, (unsigned long long)lsn);
    }
    uint64_t before_us = h->hold.expires_us;
    struct hold wanted = h->hold;
    wanted.hold_lsn = lsn != 0 ? lsn : wanted.hold_lsn;
    wanted.expires_us = h->v->now_us(h->v) + lasts_us;
    rc = write_hold(h, h->file, &wanted);
    if (rc != 0) {
        return fail_hold(h, -rc, "written");
    }
    h->hold = wanted;
    bool removed = !has_its_name(h);
    if (removed || h->v->now_us(h->v) >= before_us) { /* until now the hold kept nothing */
        ls_reader_info info;
        rc = look_at_base(h, &info);
        if (rc == LS_OK && (removed || info.base_lsn > wanted.hold_lsn)) {
            rc = fail_passed(h, wanted.hold_lsn, info.base_lsn, removed ? "it was removed" : "its time had run out");
        }
        return rc;
    }
    uint64_t gone_lsn = holds_find_gone(h->v, h->store, &h->meta);
    return gone_lsn <= wanted.hold_lsn ? LS_OK : fail_passed(h, wanted.hold_lsn, gone_lsn, "it had reached its limit");
}

int hold_lower(ls_hold *h, uint64_t lsn) {
    struct hold before = h->hold, wanted = h->hold;
    wanted.hold_lsn = lsn;
    int rc = write_hold(h, h->file, &wanted);
    if (rc != 0) {
        return fail_hold(h, -rc, "written");
    }
    uint64_t gone_lsn = holds_find_gone(h->v, h->store, &h->meta);
    if (gone_lsn <= lsn) {
        h->hold = wanted;
        return LS_OK;
    }
    rc = write_hold(h, h->file, &before);
    return rc == 0 ? fail_passed(h, lsn, gone_lsn, "it was recycled") : fail_hold(h, -rc, "written");
}

void ls_hold_describe(const ls_hold *h, ls_hold_info *info) {
    *info = (ls_hold_info){
        .lsn = h->hold.hold_lsn,
        .limit_bytes = h->hold.limit_bytes,
        .created_us = h->hold.created_us,
        .expires_us = h->hold.expires_us,
        .state = LS_HOLD_HONOURED,
    };
    memcpy(info->name, h->entry, strlen(h->entry) - 5);
}

void ls_hold_release(ls_hold *h) {
    if (h == NULL) {
        return;
    }
    if (h->file >= 0) {
        /* If an operator removed the file, the name may be another owner's now. */
        if (h->v->sync_file(h->v, h->file) != -ESTALE) {
            (void)h->v->unlink(h->v, h->dir, h->entry);
        }
        (void)h->v->close(h->v, h->file);
    }
    if (h->dir >= 0) {
        (void)h->v->close(h->v, h->dir);
    }
    if (h->store >= 0) {
        (void)h->v->close(h->v, h->store);
    }
    free(h->store_dir);
    free(h);
}

int ls_hold_read(const ls_hold *h, uint64_t from_lsn, ls_reader **reader) {
    return reader_open_kept(h->v, h->store_dir, h->hold.hold_lsn, from_lsn, reader);
}
