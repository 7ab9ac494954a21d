/*
 * Rules of the format that flips of single bits cannot test: what a checksum covers, that a batch belongs to its position,
 * that CLOSE is alone in its batch, and that damage is never copied into a valid record.
 */
#include "format/format.h"
#include "tests/kit/store_workload.h"

static struct run r;

static vfs_sim *fresh(void) {
    vfs_sim *sim = vfs_sim_new();

    memset(&r, 0, sizeof r);
    r.gentle = true;
    run_start(&r, sim, 5);
    return sim;
}

/* Changes the file itself, so that a store that has it open reads the change. */
static void turn_bits(vfs_sim *sim, uint64_t first_lsn, uint64_t at, uint8_t mask) {
    vfs *v = vfs_sim_table(sim);
    char name[SEGMENT_NAME_BYTES];
    uint8_t byte = 0;
    int dir = v->open_dir(v, "/s"), file;

    format_segment_name(name, first_lsn);
    file = v->open(v, dir, name, VFS_WRITE);
    check(v->pread(v, file, &byte, 1, at) == 1);
    byte ^= mask;
    check(write_all(v, file, &byte, 1, at));
    check(v->close(v, file) == 0 && v->close(v, dir) == 0);
}

/* ---- what a checksum covers ---- */

/* docs/format.md, section 9. A codec tested only against itself might read no other implementation's stores. */
static void checksums_are_those_of_the_worked_example(void) {
    const uint8_t uuid[UUID_BYTES] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                      0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
    uint64_t seed = format_segment_seed(uuid, 0x10000, 1), checksum;
    uint8_t bytes[BATCH_RECORD_BYTES];
    struct slot at = {.at = bytes, .seed = seed, .lsn = 0x11000};
    struct batch b = {.epoch = 1,
                      .count = 2,
                      .bytes = 256,
                      .durable_lsn = 0x11000,
                      .base_lsn = 0x10000,
                      .time_us = UINT64_C(1700000000004096)};

    check(seed == UINT64_C(0x11b967340ee8ec48));
    check(format_put_batch(&at, &b) == BATCH_RECORD_BYTES);
    memcpy(&checksum, bytes, sizeof checksum);
    check(checksum == UINT64_C(0x242fecd4b490426b));
}

/* ---- a batch belongs to its position ---- */

/* A misdirected write: an intact batch at the position of the next one of the same length. */
static void a_batch_at_the_position_of_another_is_refused(void) {
    static uint8_t image[SEGMENT];
    vfs_sim *sim = fresh(), *disk;
    ls_reader *reader = NULL;
    ls_batch b;
    ls_store *store = NULL;
    char name[SEGMENT_NAME_BYTES];
    uint64_t id, from = 0, to = 0, bytes = 0, first_lsn = 0;
    uint32_t queue = 1;

    for (int i = 0; i < 6; i++)
        check(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"same", 4, NULL, LS_WAIT, &id) == LS_OK);
    check(ls_close(r.store) == LS_OK);
    disk = vfs_sim_clone(sim);
    check(ls_reader_open(vfs_sim_table(disk), "/s", 0, &reader) == LS_OK);
    for (int i = 0; i < 3 && ls_reader_next(reader, &b) == LS_OK; i++) {
        from = to;
        to = b.lsn;
        check(i == 0 || b.size == bytes);
        bytes = b.size;
        first_lsn = b.first_lsn;
    }
    ls_reader_close(reader);
    format_segment_name(name, first_lsn);
    require(vfs_sim_get(disk, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT && from > first_lsn);
    memcpy(image + (to - first_lsn), image + (from - first_lsn), bytes);
    check(vfs_sim_put(disk, "/s", name, image, sizeof image) == 0);
    check(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &store) == LS_CORRUPT);
    check(ls_last_error()->lsn == to && strcmp(ls_last_error()->segment, name) == 0);
    ls_free(store);
    run_end(&r);
    vfs_sim_free(disk);
    vfs_sim_free(sim);
}

/* ---- CLOSE is alone in its batch ---- */

/* Otherwise a flip in the last batch would be a torn tail even after an orderly close, and lose acknowledged records. */
static void the_close_record_is_alone_in_the_last_batch(void) {
    vfs_sim *sim = fresh();
    ls_reader *reader = NULL;
    ls_batch b, before = {.lsn = 0}, last = {.lsn = 0};
    ls_store *store = NULL;
    uint64_t id;
    uint32_t queue = 1;

    check(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"last", 4, NULL, 0, &id) == LS_OK);
    check(ls_close(r.store) == LS_OK);
    check(ls_reader_open(vfs_sim_table(sim), "/s", 0, &reader) == LS_OK);
    while (ls_reader_next(reader, &b) == LS_OK) {
        before = last;
        last = b;
    }
    ls_reader_close(reader);
    require(before.lsn != 0 && id > before.lsn && id < last.lsn);
    check(last.size == BATCH_RECORD_BYTES + PLAIN_RECORD_BYTES);
    for (uint64_t at = before.lsn; at < last.lsn; at++) {
        vfs_sim *disk = vfs_sim_clone(sim);

        turn_bits(disk, before.first_lsn, at - before.first_lsn, 1);
        check(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &store) == LS_CORRUPT);
        ls_free(store);
        store = NULL;
        vfs_sim_free(disk);
    }
    run_end(&r);
    vfs_sim_free(sim);
}

/* ---- damage is not copied ---- */

/* A copy would have a valid checksum, and the damage could never be detected. */
static void damage_is_never_copied_into_a_valid_record(void) {
    static uint8_t content[3000], into[3000];
    vfs_sim *sim = fresh();
    ls_stats stats = {.relocation_failures = 0};
    uint64_t stays, id, lsn;
    uint32_t queue = 1, other = 2;
    size_t done;

    check(ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &stays) == LS_OK);
    for (int i = 0; i < 2; i++) /* so that no later batch writes its block again */
        check(ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &id) == LS_OK);
    turn_bits(sim, stays / SEGMENT * SEGMENT, stays % SEGMENT + 1000, 4);
    for (int i = 0; i < 400 && stats.relocation_failures == 0 && ls_base_lsn(r.store) <= stays; i++) {
        require(ls_publish(r.store, &other, 1, NULL, 0, content, sizeof content, NULL, 0, &id) == LS_OK);
        require(ls_dequeue(r.store, id, other, NULL, 1, 0, 0, &lsn) == LS_OK);
        ls_stats_get(r.store, &stats);
    }
    check(stats.relocation_failures > 0 && ls_base_lsn(r.store) <= stays);
    check(ls_load_content(r.store, stays, 0, into, sizeof into, &done) == LS_CORRUPT);
    check(ls_last_error()->lsn == stays);
    run_end(&r);
    vfs_sim_free(sim);
}

int main(void) {
    static void (*const tests[])(void) = {
        checksums_are_those_of_the_worked_example,
        a_batch_at_the_position_of_another_is_refused,
        the_close_record_is_alone_in_the_last_batch,
        damage_is_never_copied_into_a_valid_record,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
