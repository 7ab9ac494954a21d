/*
 * Seeds for the fuzz targets, made from real stores. `make_seeds DIRECTORY` writes DIRECTORY/record, /segment and /store.
 * The program always gives the same seeds; csrc/tests/fuzz/seeds has its output.
 */
#include <sys/stat.h>

#include "tests/proof/bytes_store.h"
#include "tests/fuzz/repair.h"
#include "tests/kit/stated_log.h"

enum { TOLD_MAX = 24 << 10, ONE_SEGMENT_MAX = 12 << 10 };

static const char *into;
static const uint8_t seed_uuid[UUID_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static void save(const char *target, const char *name, const uint8_t *bytes, size_t n) {
    char path[512];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", into, target);
    (void)mkdir(path, 0755);
    (void)snprintf(path, sizeof path, "%s/%s/%s", into, target, name);
    file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
        abort();
}

/* ---- the input forms of the targets ---- */

/* The short form of a segment. sealed: with checksums for the fuzzers' UUID, so that it needs no repair. */
static size_t tell(const struct image *f, struct repair *sealed, uint8_t *at) {
    static uint8_t segment[SEGMENT];
    size_t bytes = f->end > SEGMENT_HEADER_BYTES ? f->end - SEGMENT_HEADER_BYTES : 0;

    memcpy(at, f->bytes + 48, 16);
    memcpy(at + TOLD_BYTES, f->bytes + SEGMENT_HEADER_BYTES, bytes);
    if (sealed != NULL) {
        memset(segment, 0, sizeof segment);
        tell_segment(sealed, seed_uuid, SEGMENT, f->first_lsn, at, TOLD_BYTES + bytes, 1, segment);
        memcpy(at + TOLD_BYTES, segment + SEGMENT_HEADER_BYTES, bytes);
    }
    return TOLD_BYTES + bytes;
}

static int by_lsn(const void *a, const void *b) {
    uint64_t x = ((const struct image *)a)->first_lsn, y = ((const struct image *)b)->first_lsn;

    return (x > y) - (x < y);
}

/* Sorts the subject's files, after which its batches must not be used. */
static void save_store(struct subject *s, const char *name, bool sealed) {
    static uint8_t told[2 + FILES_MAX * (3 + SEGMENT)];
    static struct repair p;
    size_t n = 2;

    memset(&p, 0, sizeof p);
    told[0] = sealed ? 0 : 1;
    told[1] = s->r.next_queue > 6 || s->r.catalog & 1u << 5 ? 0 : 5 << 1;
    qsort(s->files, s->file_count, sizeof *s->files, by_lsn); /* the start of a chain comes before its later records */
    for (size_t i = 0; i < s->file_count; i++) {
        const struct image *f = &s->files[i];
        size_t bytes;

        if (!f->in_log)
            continue;
        bytes = tell(f, sealed ? &p : NULL, told + n + 3);
        told[n] = (uint8_t)(f->first_lsn / SEGMENT - 1);
        put16(told + n + 1, (uint16_t)bytes);
        n += 3 + bytes;
    }
    if (n < TOLD_MAX)
        save("store", name, told, n);
}

/* The only segment of the target's store has the first position; the target repairs its LSNs. */
static void save_segments(const struct subject *s, const char *name) {
    static uint8_t told[1 + TOLD_BYTES + SEGMENT];

    for (size_t i = 0; i < s->file_count; i++) {
        char full[64];
        size_t n;

        if (!s->files[i].in_log || s->files[i].end > ONE_SEGMENT_MAX)
            continue;
        told[0] = 1;
        n = tell(&s->files[i], NULL, told + 1);
        memset(told + 1 + 8, 0, 8);
        (void)snprintf(full, sizeof full, "%s-%llu", name, (unsigned long long)(s->files[i].first_lsn / SEGMENT));
        save("segment", full, told, 1 + n);
    }
}

/* The first record of each type, `saved` types left out. */
static void save_records(const struct subject *s, uint64_t saved) {
    static uint8_t told[1 + SEGMENT];

    for (size_t i = 0; i < s->batch_count; i++) {
        const struct place_of_batch *b = &s->batches[i];
        const uint8_t *file = s->files[b->file].bytes;
        struct record one;

        for (uint32_t at = b->at; at < b->at + b->bytes; at += one.length) {
            char name[16];

            format_read_verified(file + at, &one);
            if ((saved & type_bit(one.type)) != 0 || one.length > 600)
                continue;
            saved |= type_bit(one.type);
            told[0] = 0;
            memcpy(told + 1, file + at, one.length);
            (void)snprintf(name, sizeof name, "%04x", one.type);
            save("record", name, told, 1 + (size_t)one.length);
        }
    }
}

static void save_meta(const struct subject *s) {
    static uint8_t told[1 + META_BYTES];

    for (size_t i = 0; i < s->file_count; i++) {
        if (strcmp(s->files[i].name, "META") != 0)
            continue;
        told[0] = 2 | 1 << 2; /* as a file, and which: see fuzz_record.c */
        memcpy(told + 1, s->files[i].bytes, META_BYTES);
        save("record", "meta", told, sizeof told);
    }
}

/* ---- small stores ---- */

static struct subject *begin_store(uint64_t seed) {
    struct subject *s = calloc(1, sizeof *s);

    if (s == NULL)
        abort();
    s->kind = STORE_CLOSED;
    s->r.gentle = true;
    run_start(&s->r, vfs_sim_new(), seed);
    return s;
}

static void end_store(struct subject *s, const char *name, bool closed) {
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    vfs_sim *sim = s->r.sim;

    if (closed && ls_close(s->r.store) != LS_OK)
        abort();
    s->sim = closed ? vfs_sim_clone(sim) : vfs_sim_crash(sim, &lost);
    run_end(&s->r);
    vfs_sim_free(sim);
    take_images(s);
    take_batches(s);
    save_segments(s, name);
    save_store(s, name, false);
    subject_free(s);
}

static void small_stores(void) {
    struct subject *s = begin_store(1);

    publish(&s->r, PUBLISH, 1u << 1 | 1u << 2, -1, true, 20);
    end_store(s, "one-message", true);
    s = begin_store(2);
    publish(&s->r, PUBLISH, 1u << 1, -1, true, 9000);
    publish(&s->r, STAGE, 0, -1, true, 30);
    end_store(s, "chunks-and-staged", false);
    s = begin_store(3);
    some_of_all(&s->r);
    end_store(s, "some-of-all", true);
    s = begin_store(4);
    some_of_all(&s->r);
    tx_of_kind(&s->r, 0, true);
    publish(&s->r, PUBLISH, 1u << 1, 0, false, 40);
    change_place(&s->r, DEQUEUE, first_on(&s->r, 3), 3, 0, false);
    prepare_tx(&s->r, 0);
    reopen(&s->r);
    some_of_all(&s->r);
    end_store(s, "in-doubt", false);
    s = begin_store(5);
    publish(&s->r, PUBLISH, 1u << 1, -1, true, 10);
    add_queue(&s->r);
    publish(&s->r, PUBLISH, 1u << 5, -1, true, 10);
    reopen(&s->r);
    delete_queue(&s->r, 5, true);
    end_store(s, "queue-deleted", true);
}

/* Its records and relocated records, without the filled segment. Returns the types of its records. */
static uint64_t everything(void) {
    struct subject *s = subject_new(STORE_CLOSED, 1);
    uint64_t types;

    save_records(s, 0);
    types = s->types;
    save_meta(s);
    save_segments(s, "everything");
    subject_free(s);
    s = subject_new(STORE_OTHER, 1);
    save_store(s, "moved", false);
    save_store(s, "moved-sealed", true);
    subject_free(s);
    return types;
}

/* Random logs whose places have states, and the records that only they have. */
static void stated_stores(uint64_t saved) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct subject *s = calloc(1, sizeof *s);
        char name[16];

        if (s == NULL)
            abort();
        sl_start(seed);
        for (int i = 0; i < 12 && sl_has_room(); i++) {
            sl_batch(false);
            sl_next_batch();
        }
        s->sim = sim;
        s->r.next_queue = QUEUES + 1;
        take_images(s);
        take_batches(s);
        save_records(s, saved);
        saved |= s->types;
        (void)snprintf(name, sizeof name, "stated-%llu", (unsigned long long)seed);
        save_segments(s, name);
        save_store(s, name, false);
        subject_free(s);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        printf("usage: make_seeds DIRECTORY\n");
        return 2;
    }
    into = argv[1];
    small_stores();
    stated_stores(everything());
    return 0;
}
