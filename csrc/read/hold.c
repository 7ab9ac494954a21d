/* Taking holds, keeping them alive, letting them go, and listing them: the reader's side. See hold.h. */
#include "log/hold.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "os/error.h"
#include "os/io.h"
#include "read/reader.h"

enum { LOCK_TRIES = 250, TAKE_TRIES = 16, PAUSE_NS = 2 * 1000 * 1000 };

static const uint64_t DAY_US = (uint64_t)86400 * 1000 * 1000;

struct ls_hold {
    vfs *v;
    char *store_dir;
    int dir;   /* holds/ */
    int store; /* the directory above it */
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
        return fail(LS_OPTION, "a hold's limit_bytes is at least 1: no hold keeps a log for ever");
    }
    if (lasts_us == 0 || lasts_us > LS_HOLD_DAYS_MAX * DAY_US) {
        return fail(LS_OPTION, "a hold lasts for some time, at most %d days, and may be renewed", LS_HOLD_DAYS_MAX);
    }
    return LS_OK;
}

/* ---- the file ---- */

/* A writer or another taker may have it for a moment. */
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

/* Clears away those whose owners are gone, the wanted name among them. */
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

/* The name is free, and there is room for one more. Who looks at a dead one has it locked for a moment. */
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
                                           "the hold %s of %s is taken by a process that lives; take another name, or "
                                           "wait until that is done",
                                           h->entry, h->store_dir)
                                    : fail(LS_BUSY, "the store %s has %d holds, and no more are possible; release one",
                                           h->store_dir, LS_HOLDS_MAX);
        }
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        (void)nanosleep(&pause, NULL);
    }
}

/* Whole and locked before it has its name. With the takers' lock, so a file `new` is what a dead taker left. */
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

/* ---- what it can keep ---- */

/* The base that readers find now, and the store's UUID. */
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

struct oldest {
    uint64_t first_lsn;
};

static int note_oldest(void *context, const char *name) {
    struct oldest *oldest = context;
    uint64_t first_lsn;
    if (format_parse_segment_name(name, &first_lsn) && first_lsn < oldest->first_lsn) {
        oldest->first_lsn = first_lsn;
    }
    return 0;
}

/* Where the log ended before the oldest segment that is there: all of it below is gone. 0 where nothing tells. */
static uint64_t find_gone(vfs *v, int store, const struct meta *meta) {
    struct oldest oldest = {.first_lsn = UINT64_MAX};
    if (v->list(v, store, note_oldest, &oldest) != 0 || oldest.first_lsn == UINT64_MAX) {
        return 0;
    }
    char name[SEGMENT_NAME_BYTES];
    uint8_t bytes[SEGMENT_HEADER_BYTES];
    struct segment_header header;
    format_segment_name(name, oldest.first_lsn);
    int file = v->open(v, store, name, 0);
    int64_t got = file < 0 ? file : io_read(v, file, bytes, sizeof bytes, 0);
    if (file >= 0) {
        (void)v->close(v, file);
    }
    bool told = got >= 0 && format_get_segment_header(bytes, (size_t)got, meta->uuid, meta->segment_size,
                                                      oldest.first_lsn, &header) == FORMAT_OK;
    return told ? header.prev_end_lsn : 0;
}

/*
 * Whether another hold that counts now keeps what this one is to keep: a writer that looked before this one was in its
 * place saw the other, and one that looks later sees this one.
 */
static int kept_by_another(const ls_hold *h, bool *kept) {
    ls_hold_info others[2 * LS_HOLDS_MAX];
    size_t count;
    *kept = false;
    int rc = ls_holds(h->v, h->store_dir, others, 2 * LS_HOLDS_MAX, &count);
    size_t own = strlen(h->entry) - 5;
    for (size_t i = 0; rc == LS_OK && i < count && i < 2 * LS_HOLDS_MAX; i++) {
        bool another = strlen(others[i].name) != own || memcmp(others[i].name, h->entry, own) != 0;
        *kept = *kept || (another && others[i].state == LS_HOLD_HONOURED && others[i].lsn <= h->hold.hold_lsn);
    }
    *kept = *kept && find_gone(h->v, h->store, &h->meta) <= h->hold.hold_lsn;
    return rc;
}

/*
 * Only what lies at or above a base that is found with the hold in its place, or what another hold keeps, is sure to be
 * kept by it. A hold that was too low counted for nothing meanwhile: having been raised, it is confirmed anew.
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

/* Whether it still has its name: an operator may have removed it. */
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
        return fail(LS_OPTION, "the hold %s is at LSN %llu: it goes forward only, and not to %llu", h->entry,
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
    if (removed || h->v->now_us(h->v) >= before_us) { /* between the two it counted for nothing */
        ls_reader_info info;
        rc = look_at_base(h, &info);
        if (rc == LS_OK && (removed || info.base_lsn > wanted.hold_lsn)) {
            rc = fail_passed(h, wanted.hold_lsn, info.base_lsn, removed ? "it was removed" : "its time had run out");
        }
        return rc;
    }
    uint64_t gone_lsn = find_gone(h->v, h->store, &h->meta);
    return gone_lsn <= wanted.hold_lsn ? LS_OK : fail_passed(h, wanted.hold_lsn, gone_lsn, "it had reached its limit");
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
        /* Only what is still ours: what an operator removed may be another's by now. */
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
    return reader_open_kept(h->v, h->store_dir, h->hold.hold_lsn, from_lsn, false, reader);
}

/* ---- listing ---- */

struct list_of_holds {
    vfs *v;
    int store;
    int dir;
    struct meta meta;
    uint64_t base_lsn; /* 0: not known */
    uint64_t gone_lsn;
    ls_hold_info *into;
    size_t room;
    size_t count;
};

/* Bytes of the segments that lie wholly below the base and not wholly below a hold. */
struct tally {
    uint64_t segment_size;
    uint64_t base_lsn;
    uint64_t hold_lsn;
    uint64_t bytes;
};

static int add_segment(void *context, const char *name) {
    struct tally *tally = context;
    uint64_t first_lsn;
    if (format_parse_segment_name(name, &first_lsn) && first_lsn < tally->base_lsn &&
        first_lsn + tally->segment_size > tally->hold_lsn) {
        tally->bytes += tally->segment_size;
    }
    return 0;
}

/* A shared lock, for a moment: it is not ours to clear away. */
static int read_entry(const struct list_of_holds *list, int file, ls_hold_info *info) {
    vfs *v = list->v;
    int rc = v->lock(v, file, 0);
    bool abandoned = rc == 0;
    struct hold h;
    enum format_result why = FORMAT_SHORT;
    if (rc == 0 || rc == -EWOULDBLOCK) {
        rc = hold_read(v, file, &h, &why);
    }
    if (rc < 0) {
        return rc;
    }
    info->state = abandoned ? LS_HOLD_ABANDONED : LS_HOLD_DAMAGED;
    if (why == FORMAT_OK) {
        struct tally tally = {list->meta.segment_size, list->base_lsn, h.hold_lsn, 0};
        rc = v->list(v, list->store, add_segment, &tally);
        info->lsn = h.hold_lsn;
        info->limit_bytes = h.limit_bytes;
        info->created_us = h.created_us;
        info->expires_us = h.expires_us;
        struct hold_facts facts = {.now_us = v->now_us(v), .kept_bytes = tally.bytes, .gone_lsn = list->gone_lsn};
        memcpy(facts.uuid, list->meta.uuid, UUID_BYTES);
        info->state = abandoned ? info->state : hold_judge(&h, &facts);
        info->kept_bytes = info->state == LS_HOLD_HONOURED ? tally.bytes : 0;
    }
    return rc < 0 ? rc : 0;
}

static int list_one(void *context, const char *entry) {
    struct list_of_holds *list = context;
    if (!hold_is_name(entry)) {
        return 0;
    }
    int file = list->v->open(list->v, list->dir, entry, 0);
    if (file < 0) {
        return file == -ENOENT ? 0 : file; /* released meanwhile */
    }
    ls_hold_info info = {.state = 0};
    memcpy(info.name, entry, strlen(entry) - 5);
    int rc = read_entry(list, file, &info);
    (void)list->v->close(list->v, file);
    if (rc == 0) {
        if (list->count < list->room) {
            list->into[list->count] = info;
        }
        list->count++;
    }
    return rc;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const ls_hold_info *)a)->name, ((const ls_hold_info *)b)->name);
}

static void read_base(struct list_of_holds *list) {
    uint8_t bytes[HINT_BYTES];
    struct hint hint;
    int file = list->v->open(list->v, list->store, "HINT", 0);
    if (file < 0) {
        return;
    }
    int64_t got = io_read(list->v, file, bytes, sizeof bytes, 0);
    (void)list->v->close(list->v, file);
    if (got == HINT_BYTES && format_get_hint(bytes, sizeof bytes, &hint) == FORMAT_OK &&
        memcmp(hint.uuid, list->meta.uuid, UUID_BYTES) == 0) {
        list->base_lsn = hint.base_lsn;
    }
}

int ls_holds(vfs *system, const char *store_dir, ls_hold_info *into, size_t n, size_t *count) {
    struct list_of_holds list = {.v = system != NULL ? system : vfs_posix(), .dir = -1, .into = into, .room = n};
    vfs *v = list.v;
    *count = 0;
    list.store = v->open_dir(v, store_dir);
    if (list.store < 0) {
        int code = list.store == -ENOENT || list.store == -ENOTDIR ? LS_NOT_A_STORE : LS_IO;
        return fail_errno(code, -list.store, "the store directory %s cannot be opened", store_dir);
    }
    int rc = scan_read_meta(v, list.store, "META", &list.meta);
    if (rc == LS_OK) {
        read_base(&list);
        list.gone_lsn = find_gone(v, list.store, &list.meta);
        list.dir = v->open_subdir(v, list.store, "holds", 0);
        int result = list.dir >= 0 ? v->list(v, list.dir, list_one, &list) : list.dir == -ENOENT ? 0 : list.dir;
        rc = result == 0 ? LS_OK : fail_errno(LS_IO, -result, "the holds of %s cannot be read", store_dir);
    }
    if (list.dir >= 0) {
        (void)v->close(v, list.dir);
    }
    (void)v->close(v, list.store);
    if (rc == LS_OK) {
        *count = list.count;
        if (list.count > 1) {
            qsort(into, list.count < n ? list.count : n, sizeof *into, by_name);
        }
    }
    return rc;
}
