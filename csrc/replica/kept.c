/* The kept window. See kept.h. */
#include "replica/kept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "os/error.h"
#include "os/io.h"
#include "read/damage.h"

struct place {
    uint64_t term;
    uint64_t lsn;
    uint64_t end_lsn;
    uint64_t first_lsn; /* of its segment */
    uint32_t kind;
};

struct kept {
    vfs *v;
    int dir; /* the store's own handle is closed with the store */
    struct meta meta;
    struct stream_set known;
    struct place *all; /* those before `from` are gone */
    size_t from;
    size_t count;
    size_t capacity;
    uint64_t first_index; /* of all[from] */
    uint64_t needed_lsn;  /* see kept_lsn */
    int file;             /* -1: none is open */
    uint64_t file_lsn;
    uint8_t *header;
    uint8_t *bytes;
    size_t bytes_capacity;
};

int kept_new(vfs *v, const char *store_dir, const struct scan *s, struct kept **kept) {
    struct kept *k = *kept = calloc(1, sizeof *k);
    if (k == NULL) {
        return fail_memory();
    }
    k->v = v;
    k->meta = s->meta;
    k->known = s->known;
    k->file = -1;
    k->needed_lsn = UINT64_MAX;
    k->dir = v->open_dir(v, store_dir);
    return k->dir >= 0 ? LS_OK : fail_errno(LS_IO, -k->dir, "%s cannot be opened", store_dir);
}

static void close_file(struct kept *k) {
    if (k->file >= 0) {
        (void)k->v->close(k->v, k->file);
    }
    k->file = -1;
}

void kept_free(struct kept *k) {
    if (k == NULL) {
        return;
    }
    close_file(k);
    if (k->dir >= 0) {
        (void)k->v->close(k->v, k->dir);
    }
    free(k->all);
    free(k->header);
    free(k->bytes);
    free(k);
}

static uint64_t last_index(const struct kept *k) { return k->first_index + (k->count - k->from) - 1; }

/* A term's first batch is empty, but for the first MEMBERS of a log that becomes replicated. */
static uint32_t kind_of(const struct kept *k, const struct scan_batch *b) {
    struct record r;
    uint32_t at = BATCH_RECORD_BYTES;
    bool any = scan_record(b, &at, &r);
    if (any && r.type == MEMBERS && (r.flags & FLAG_COPY) == 0) {
        return LS_ENTRY_MEMBERS;
    }
    uint64_t first_lsn = round_up(b->batch.epoch << TERM_SHIFT, k->meta.segment_size);
    return !any && b->lsn == first_lsn + SEGMENT_HEADER_BYTES ? LS_ENTRY_FIRST : LS_ENTRY_BATCH;
}

/* Moves the places down once more than half of the array is unused. */
static void close_gap(struct kept *k) {
    if (k->from > k->count / 2) {
        k->count -= k->from;
        memmove(k->all, k->all + k->from, k->count * sizeof *k->all);
        k->from = 0;
    }
}

bool kept_add(struct kept *k, const struct scan_batch *b) {
    bool any = k->count > k->from;
    if (any && b->batch.index >= k->first_index && b->batch.index <= last_index(k)) {
        return true; /* an open reads what lies above a checkpoint twice */
    }
    if (!any || b->batch.index != last_index(k) + 1) {
        k->from = k->count = 0;
        k->first_index = b->batch.index;
    }
    if (!array_grow(&k->all, &k->capacity, k->count, 1)) {
        return false;
    }
    if (k->from == k->count) {
        k->needed_lsn = b->first_lsn;
    }
    k->all[k->count++] = (struct place){
        .term = b->batch.epoch,
        .lsn = b->lsn,
        .end_lsn = b->lsn + b->batch.bytes,
        .first_lsn = b->first_lsn,
        .kind = kind_of(k, b),
    };
    return true;
}

void kept_cut(struct kept *k, uint64_t index) {
    while (k->count > k->from && last_index(k) > index) {
        k->count--;
    }
    close_file(k); /* the file may be reused under its name */
}

void kept_drop(struct kept *k, uint64_t index) {
    while (k->from < k->count && k->first_index < index) {
        k->needed_lsn = k->all[k->from++].first_lsn;
        k->first_index++;
    }
    k->needed_lsn = k->from < k->count ? k->all[k->from].first_lsn : k->needed_lsn;
    close_gap(k);
}

void kept_range(const struct kept *k, uint64_t *first, uint64_t *last) {
    bool none = k == NULL || k->from == k->count;
    *first = none ? 1 : k->first_index;
    *last = none ? 0 : last_index(k);
}

uint64_t kept_lsn(const struct kept *k) { return k != NULL ? k->needed_lsn : UINT64_MAX; }

static const struct place *find(const struct kept *k, uint64_t index) {
    bool there = k != NULL && k->count > k->from && index >= k->first_index && index <= last_index(k);
    return there ? &k->all[k->from + (size_t)(index - k->first_index)] : NULL;
}

static int fail_absent(const struct kept *k, uint64_t index) {
    uint64_t first, last;
    kept_range(k, &first, &last);
    return last < first ? fail(LS_REFUSED, "batch %llu is not kept, nor is any other", (unsigned long long)index)
                        : fail(LS_REFUSED, "batch %llu is not kept: batches %llu to %llu are",
                               (unsigned long long)index, (unsigned long long)first, (unsigned long long)last);
}

int kept_entry(const struct kept *k, uint64_t index, ls_replica_entry *entry) {
    const struct place *p = find(k, index);
    if (p == NULL) {
        return fail_absent(k, index);
    }
    *entry = (ls_replica_entry){
        .index = index,
        .term = p->term,
        .lsn = p->lsn,
        .end_lsn = p->end_lsn,
        .first_lsn = p->first_lsn,
        .kind = p->kind,
    };
    return LS_OK;
}

/* ---- bytes ---- */

static int open_file(struct kept *k, uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES];
    if (k->file >= 0 && k->file_lsn == first_lsn) {
        return k->file;
    }
    close_file(k);
    format_segment_name(name, first_lsn);
    k->file = k->v->open(k->v, k->dir, name, 0);
    k->file_lsn = first_lsn;
    return k->file;
}

static bool has_room(struct kept *k, size_t bytes, bool header) {
    if (k->bytes_capacity < bytes) {
        free(k->bytes);
        k->bytes = malloc(bytes);
        k->bytes_capacity = k->bytes != NULL ? bytes : 0;
    }
    if (header && k->header == NULL) {
        k->header = malloc(SEGMENT_HEADER_BYTES);
    }
    return k->bytes != NULL && (!header || k->header != NULL);
}

static int fail_read(const struct place *p, int error) {
    return fail_errno(LS_IO, error, "the batch at LSN %llu cannot be read", (unsigned long long)p->lsn);
}

/* Checks the batch as recovery would: batches that a disk has damaged are not given to others. */
static int verify(const struct kept *k, const struct place *p, uint64_t index, struct batch *b) {
    uint64_t seed = format_segment_seed(k->meta.uuid, p->first_lsn, p->term);
    enum format_result why =
        scan_check_batch(k->bytes, (size_t)(p->end_lsn - p->lsn), p->lsn, p->term, seed, &k->known, b);
    why = why == FORMAT_OK && b->index != index ? FORMAT_MALFORMED : why;
    return why == FORMAT_OK ? LS_OK
                            : fail_at(LS_CORRUPT, p->first_lsn, p->lsn,
                                      "a batch that other members need is damaged (%s)", format_result_text(why));
}

int kept_read(struct kept *k, uint64_t index, ls_replica_batch *batch) {
    const struct place *p = find(k, index);
    if (p == NULL) {
        return fail_absent(k, index);
    }
    size_t bytes = (size_t)(p->end_lsn - p->lsn);
    bool begins = p->lsn == p->first_lsn + SEGMENT_HEADER_BYTES;
    if (!has_room(k, bytes, begins)) {
        return fail_memory();
    }
    int file = open_file(k, p->first_lsn);
    if (file < 0) {
        return fail_read(p, -file);
    }
    int64_t got = io_read(k->v, file, k->bytes, bytes, p->lsn - p->first_lsn);
    if (got == (int64_t)bytes && begins) {
        got = io_read(k->v, file, k->header, SEGMENT_HEADER_BYTES, 0);
        got = got == SEGMENT_HEADER_BYTES ? (int64_t)bytes : got < 0 ? got : 0;
    }
    if (got != (int64_t)bytes) {
        return fail_read(p, got < 0 ? (int)-got : EIO);
    }
    struct batch b;
    int rc = verify(k, p, index, &b);
    if (rc != LS_OK) {
        return rc;
    }
    *batch = (ls_replica_batch){
        .term = p->term,
        .index = index,
        .lsn = p->lsn,
        .end_lsn = p->end_lsn,
        .first_lsn = p->first_lsn,
        .known_durable_lsn = b.known_durable_lsn,
        .header = begins ? k->header : NULL,
        .bytes = k->bytes,
    };
    return LS_OK;
}
