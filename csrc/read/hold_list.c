/* Listing holds, and what each of them keeps. Changes nothing. */
#include "read/hold_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log/hold.h"
#include "os/error.h"
#include "os/io.h"
#include "read/reader.h"

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

uint64_t holds_find_gone(vfs *v, int store, const struct meta *meta) {
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
    bool valid = got >= 0 && format_get_segment_header(bytes, (size_t)got, meta->uuid, meta->segment_size,
                                                       oldest.first_lsn, &header) == FORMAT_OK;
    return valid ? header.prev_end_lsn : 0;
}

struct list_of_holds {
    vfs *v;
    int store;
    int dir;
    struct meta meta;
    uint64_t base_lsn; /* 0: unknown */
    uint64_t gone_lsn;
    ls_hold_info *into;
    size_t room;
    size_t count;
};

/* Sums the segments that lie wholly below the base and not wholly below a hold. */
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

/* A shared lock, for a moment, shows whether the owner lives. A listing removes nothing. */
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
        list.gone_lsn = holds_find_gone(v, list.store, &list.meta);
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
