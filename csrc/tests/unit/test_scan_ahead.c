/*
 * A log that another thread reads ahead gives the same batches, errors and store as a log that the caller reads alone:
 * undamaged, damaged anywhere, with failed reads, and if the caller stops early.
 */
#include "format/xxh64.h"
#include "read/scan.h"
#include "tests/kit/one_store.h"

enum { CONTENTS = 5 << 20, LARGE_SEGMENT = 1 << 20 };

/* Singly waited for and in batches, so that there are batches of one record and full ones. */
static void make_log(uint64_t segment_size) {
    static const uint32_t sizes[] = {100, 3000, 40, 3900};
    ls_options options;
    uint64_t done = 0;

    ls_options_default(&options);
    options.segment_size = segment_size;
    options.background = 0;
    options.no_checkpoint = 1;
    fresh_with(&options);
    for (uint32_t i = 0; done < CONTENTS; i++) {
        uint32_t bytes = sizes[i % 4] + i % 7;

        (void)put_bytes(1 + i % 3, (uint8_t)i, bytes, i % 50 < 8 ? LS_WAIT : 0);
        done += bytes;
    }
    check(ls_force(r.store, 0) == LS_OK);
}

struct read_log {
    uint64_t batches;
    uint64_t records;
    uint64_t sum; /* over the positions and bytes of the batches */
    uint64_t torn_bytes;
    uint64_t bytes_read;
    ls_error error;
    int rc;
};

/* Reads the whole log, or at most this many batches of it. */
static struct read_log read_it(vfs *v, bool ahead, uint64_t at_most) {
    struct read_log l = {.rc = LS_OK};
    struct scan s = {.file = -1};
    struct scan_batch b;
    struct meta meta;
    int dir = v->open_dir(v, "/s");

    if (dir < 0)
        abort();
    l.rc = scan_read_meta(v, dir, "META", &meta);
    if (l.rc == LS_OK)
        l.rc = scan_open(&s, v, dir, &meta, true, NULL);
    if (l.rc == LS_OK && ahead)
        scan_ahead_start(&s);
    check(l.rc != LS_OK || (s.ahead != NULL) == ahead);
    while (l.rc == LS_OK && l.batches < at_most && (l.rc = scan_next(&s, &b)) == LS_OK) {
        uint32_t offset = BATCH_RECORD_BYTES;
        struct record record;

        l.batches++;
        l.sum = xxh64(b.bytes, b.batch.bytes, l.sum + b.lsn + b.first_lsn + b.seed + b.is_close);
        while (scan_record(&b, &offset, &record))
            l.records++;
    }
    if (l.rc != LS_OK && l.rc != LS_END)
        l.error = *ls_last_error();
    l.torn_bytes = s.torn_bytes;
    l.bytes_read = s.bytes_read;
    scan_ahead_stop(&s);
    scan_close(&s);
    check(v->close(v, dir) == 0);
    return l;
}

static bool same(const struct read_log *a, const struct read_log *b) {
    return a->rc == b->rc && a->batches == b->batches && a->records == b->records && a->sum == b->sum &&
           a->torn_bytes == b->torn_bytes && a->error.code == b->error.code && a->error.lsn == b->error.lsn &&
           a->error.offset == b->error.offset && strcmp(a->error.segment, b->error.segment) == 0 &&
           strcmp(a->error.text, b->error.text) == 0;
}

static void a_log_read_ahead_is_the_log(void) {
    for (uint64_t size = SEGMENT; size <= LARGE_SEGMENT; size = size == SEGMENT ? LARGE_SEGMENT : 2 * size) {
        make_log(size);
        struct read_log alone = read_it(r.v, false, UINT64_MAX), ahead = read_it(r.v, true, UINT64_MAX);

        check(alone.rc == LS_END && same(&alone, &ahead));
        check(alone.records > 2500 && alone.batches > 100);
        check(ahead.bytes_read > CONTENTS && ahead.bytes_read < 2 * CONTENTS);
        done();
    }
}

static void a_scan_that_stops_early_leaks_nothing(void) {
    make_log(SEGMENT);
    for (uint64_t n = 0; n < 100; n = 3 * n + 1) {
        struct read_log alone = read_it(r.v, false, n), ahead = read_it(r.v, true, n);

        check(alone.rc == LS_OK && same(&alone, &ahead));
    }
    done();
}

struct found {
    char name[64][24];
    size_t count;
};

static int keep_segment(void *context, const char *name) {
    struct found *f = context;

    if (strlen(name) == 20 && f->count < 64)
        strcpy(f->name[f->count++], name);
    return 0;
}

/* One byte, anywhere from the first segment's header to the end of the last file. */
static void damage_gives_the_same_error_with_and_without_reading_ahead(void) {
    static uint8_t image[LARGE_SEGMENT];
    struct found f = {.count = 0};
    int corrupt = 0, whole = 0, dir;
    uint64_t c = 7;

    make_log(LARGE_SEGMENT);
    dir = r.v->open_dir(r.v, "/s");
    require(dir >= 0 && r.v->list(r.v, dir, keep_segment, &f) == 0 && f.count > 4);
    check(r.v->close(r.v, dir) == 0);
    for (int i = 0; i < 20; i++) {
        const char *name = f.name[chance(&c) % f.count];
        size_t at = chance(&c) % LARGE_SEGMENT;
        vfs_sim *disk = vfs_sim_clone(sim);

        require(disk != NULL);
        (void)vfs_sim_record(disk, 0);
        require(vfs_sim_get(disk, VFS_SIM_STABLE, "/s", name, image, sizeof image) == LARGE_SEGMENT);
        image[at] ^= (uint8_t)(1 + chance(&c) % 255);
        require(vfs_sim_put(disk, "/s", name, image, sizeof image) == 0);
        struct read_log alone = read_it(vfs_sim_table(disk), false, UINT64_MAX);
        struct read_log ahead =
            alone.rc == LS_END || alone.batches > 0 ? read_it(vfs_sim_table(disk), true, UINT64_MAX) : alone;

        if (!same(&alone, &ahead))
            printf("%s at %zu: %d %s, but ahead %d %s\n", name, at, alone.rc, alone.error.text, ahead.rc,
                   ahead.error.text);
        check(same(&alone, &ahead));
        corrupt += alone.rc == LS_CORRUPT;
        whole += alone.rc == LS_END;
        vfs_sim_free(disk);
    }
    check(corrupt > 4 && whole > 1);
    done();
}

/* A read that fails once may fail only in the other thread; the caller then reads alone. One that fails for ever: both. */
static void a_read_that_fails_is_an_error_or_was_not_needed(void) {
    make_log(SEGMENT);
    struct read_log alone = read_it(r.v, false, UINT64_MAX);
    int failed = 0;
    for (uint64_t nth = 1; nth < 600; nth += 97) {
        for (int forever = 0; forever < 2; forever++) {
            vfs_sim_plan plan = {.kind = VFS_SIM_PREAD, .nth = nth, .error = EIO, .forever = forever != 0};

            vfs_sim_fail(sim, &plan);
            struct read_log ahead = read_it(r.v, true, UINT64_MAX);
            vfs_sim_fail(sim, NULL);
            check(ahead.rc == LS_IO || same(&alone, &ahead));
            failed += ahead.rc == LS_IO;
            if (forever && ahead.rc == LS_IO)
                check(ahead.error.sys_errno == EIO || strstr(ahead.error.text, "Input/output error") != NULL);
        }
    }
    check(failed > 0);
    done();
}

static ls_recovery recovered(int background) {
    ls_options options = r.options;
    ls_recovery report;
    ls_store *store;

    options.background = background;
    if (ls_open(r.v, "/s", &options, &store) != LS_OK)
        abort();
    ls_recovery_report(store, &report);
    ls_free(store);
    return report;
}

static void a_store_recovered_by_two_threads_is_the_same(void) {
    make_log(SEGMENT);
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    ls_recovery alone = recovered(0), ahead = recovered(1);

    check(alone.messages > 1000 && alone.messages == ahead.messages && alone.places == ahead.places);
    check(alone.records == ahead.records && alone.batches == ahead.batches && alone.end_lsn == ahead.end_lsn);
    check(alone.segments == ahead.segments && alone.clean == ahead.clean && alone.torn_bytes == ahead.torn_bytes);
    check(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_log_read_ahead_is_the_log,
        a_scan_that_stops_early_leaks_nothing,
        damage_gives_the_same_error_with_and_without_reading_ahead,
        a_read_that_fails_is_an_error_or_was_not_needed,
        a_store_recovered_by_two_threads_is_the_same,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
