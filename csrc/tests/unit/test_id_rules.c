/*
 * The rules that make ids unique: the writer never runs further ahead than the gap before the next epoch, its segments
 * follow one another, and the names of the files that it will use are durable.
 */
#include "format/format.h"
#include "tests/kit/store_workload.h"

static struct run r;

/* Over a recorded disk; `options` are what the test changes. */
static vfs_sim *fresh(uint32_t max_write_buffers, uint32_t initial_segments) {
    vfs_sim *sim = vfs_sim_new();

    memset(&r, 0, sizeof r);
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = max_write_buffers;
    r.options.initial_segments = initial_segments;
    r.options.background = 0;
    run_start(&r, sim, 9);
    return sim;
}

static int publish_one(ls_store *store, uint64_t *id) {
    static const uint8_t content[3000];
    uint32_t queue = 1;

    return ls_publish(store, &queue, 1, NULL, 0, content, sizeof content, NULL, 0, id);
}

/* Ids beyond the limit could be given out a second time after a crash. */
static void the_writer_never_runs_further_ahead_than_it_may(void) {
    vfs_sim *sim = fresh(LS_BUFFERS_MAX, 2);
    uint64_t id, ahead_max = 0;

    for (int i = 0; i < 200; i++) {
        uint64_t ahead;

        require(publish_one(r.store, &id) == LS_OK);
        ahead = ls_next_lsn(r.store) - ls_durable_lsn(r.store);
        ahead_max = ahead > ahead_max ? ahead : ahead_max;
    }
    check(ahead_max <= 2 * SEGMENT);
    check(ahead_max > SEGMENT); /* it did run ahead */
    run_end(&r);
    vfs_sim_free(sim);
}

/* A spare that could not be made must not use up LSNs: such gaps would add up to more than the gap between epochs. */
static void segments_follow_one_another_though_some_could_not_be_made(void) {
    vfs_sim *sim = fresh(4, 2);
    uint64_t id, lsn, segment = ls_next_lsn(r.store) / SEGMENT, first = segment;
    ls_stats stats;

    for (int i = 0; i < 400; i++) {
        uint64_t now;
        int rc;

        vfs_sim_capacity(sim, i % 100 < 50 ? vfs_sim_used(sim) : 0);
        rc = publish_one(r.store, &id);
        require(rc == LS_OK || rc == LS_FULL);
        require(rc != LS_OK || ls_dequeue(r.store, id, 1, NULL, 1, 0, 0, &lsn) == LS_OK);
        now = ls_next_lsn(r.store) / SEGMENT;
        check(now <= segment + 1);
        segment = now;
    }
    ls_stats_get(r.store, &stats);
    check(stats.spare_failures > 3 && segment > first + 10);
    run_end(&r);
    vfs_sim_free(sim);
}

/* ---- a last segment that the next open leaves out ---- */

/* Writes batches of filler only, which stands for copies of an interrupted relocation. Returns their end. */
static uint64_t put_fillers(uint8_t *image, uint64_t first_lsn, uint64_t base_lsn, int batches) {
    struct segment_header h;
    uint64_t lsn = first_lsn + SEGMENT_HEADER_BYTES, durable_lsn = lsn;
    enum { FILLERS = 160 };

    check(format_get_segment_header(image, SEGMENT_HEADER_BYTES, image + 16, SEGMENT, first_lsn, &h) == FORMAT_OK);
    for (int i = 0; i < batches; i++) {
        struct slot at = {.at = image + (lsn - first_lsn), .lsn = lsn};
        struct batch b = {.epoch = h.epoch, .count = FILLERS, .durable_lsn = durable_lsn, .base_lsn = base_lsn};

        at.seed = format_segment_seed(h.uuid, first_lsn, h.epoch);
        b.bytes = BATCH_RECORD_BYTES + FILLERS * PLAIN_RECORD_BYTES;
        for (uint32_t done = format_put_batch(&at, &b); done < b.bytes; done += PLAIN_RECORD_BYTES) {
            struct slot filler = {.at = at.at + done, .seed = at.seed, .lsn = lsn + done};

            (void)format_put_plain(&filler, FILLER);
        }
        lsn += b.bytes;
        durable_lsn = lsn;
    }
    return lsn;
}

/* Although none of the segment is kept, ids may have been given out as far beyond its end as the writer may run ahead. */
static void new_ids_are_above_those_that_a_left_out_segment_can_have_given_out(void) {
    static uint8_t image[SEGMENT];
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST};
    vfs_sim *sim = vfs_sim_new(), *disk;
    uint64_t id, first_lsn, base_lsn, end_lsn;
    uint32_t queue = 1;
    char name[SEGMENT_NAME_BYTES];

    memset(&r, 0, sizeof r);
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_undurable_bytes = 5 * SEGMENT / 2; /* rounding up to a segment must not hide what is missing */
    r.options.background = 0;
    run_start(&r, sim, 9);
    check(ls_publish(r.store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
    run_end(&r);
    require(open_store(&r, vfs_sim_table(sim), r.catalog, QUEUES + 1, &r.store) == LS_OK);
    first_lsn = ls_next_lsn(r.store) / SEGMENT * SEGMENT;
    base_lsn = ls_base_lsn(r.store);
    disk = vfs_sim_crash(sim, &lost);
    run_end(&r);
    format_segment_name(name, first_lsn);
    require(vfs_sim_get(disk, VFS_SIM_STABLE, "/s", name, image, sizeof image) == SEGMENT);
    end_lsn = put_fillers(image, first_lsn, base_lsn, 6);
    check(vfs_sim_put(disk, "/s", name, image, sizeof image) == 0);
    require(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &r.store) == LS_OK);
    require(publish_one(r.store, &id) == LS_OK);
    check(id >= end_lsn + 5 * SEGMENT / 2);
    run_end(&r);
    vfs_sim_free(disk);
    vfs_sim_free(sim);
}

/* A durable base relies on the copies: the originals may be recycled, so the segment is not left out. */
static void a_segment_of_copies_that_a_durable_base_relies_on_is_not_left_out(void) {
    static uint8_t image[SEGMENT];
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST};
    vfs_sim *sim = fresh(4, 1), *disk;
    uint64_t id, moved_lsn = ls_base_lsn(r.store), base_lsn = moved_lsn + SEGMENT, first_lsn, end_lsn;
    char name[SEGMENT_NAME_BYTES];
    vfs *v;
    int dir;

    while (ls_next_lsn(r.store) < base_lsn + SEGMENT / 2)
        require(publish_one(r.store, &id) == LS_OK);
    require(ls_force(r.store, 0) == LS_OK && ls_base_lsn(r.store) == moved_lsn);
    disk = vfs_sim_crash(sim, &lost);
    ls_free(r.store);
    vfs_sim_free(sim);
    require(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &r.store) == LS_OK);
    first_lsn = ls_next_lsn(r.store) / SEGMENT * SEGMENT;
    sim = vfs_sim_crash(disk, &lost);
    ls_free(r.store);
    vfs_sim_free(disk);
    format_segment_name(name, first_lsn);
    require(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", name, image, sizeof image) == SEGMENT);
    end_lsn = put_fillers(image, first_lsn, base_lsn, 6);
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
    v = vfs_sim_table(sim);
    dir = v->open_dir(v, "/s");
    format_segment_name(name, moved_lsn);
    check(v->unlink(v, dir, name) == 0 && v->sync_dir(v, dir) == 0 && v->close(v, dir) == 0);
    require(open_store(&r, v, r.catalog, QUEUES + 1, &r.store) == LS_OK || complain(ls_last_error()->text));
    check(ls_base_lsn(r.store) == base_lsn && publish_one(r.store, &id) == LS_OK && id >= end_lsn);
    run_end(&r);
    vfs_sim_free(sim);
}

/* ---- a last segment that the next open takes over, because the disk has no room for another ---- */

static int remove_spare(void *context, const char *name) {
    static uint8_t block[SEGMENT_HEADER_BYTES];
    vfs_sim *sim = context;
    vfs *v = vfs_sim_table(sim);
    struct segment_header h;
    uint64_t first_lsn;
    int dir;

    if (!format_parse_segment_name(name, &first_lsn) ||
        vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, block, sizeof block) < 0 ||
        format_get_segment_header(block, sizeof block, block + 16, SEGMENT, first_lsn, &h) == FORMAT_OK)
        return 0;
    dir = v->open_dir(v, "/s");
    check(v->unlink(v, dir, name) == 0 && v->sync_dir(v, dir) == 0 && v->close(v, dir) == 0);
    return 0;
}

/* A power cut leaves the newest epoch without a record, and the disk is full; ids up to *highest were given out in it. */
static vfs_sim *cut_without_room(bool empty, uint64_t *highest) {
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST};
    vfs_sim *sim = fresh(4, 1), *disk;
    vfs *v;
    int dir;

    if (!empty) {
        uint32_t queue = 1;

        check(ls_publish(r.store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, highest) == LS_OK);
        run_end(&r);
        check(open_store(&r, vfs_sim_table(sim), r.catalog, QUEUES + 1, &r.store) == LS_OK);
    }
    for (int i = 0; i < 2; i++)
        check(publish_one(r.store, highest) == LS_OK);
    disk = vfs_sim_crash(sim, &lost);
    run_end(&r);
    vfs_sim_free(sim);
    v = vfs_sim_table(disk);
    dir = v->open_dir(v, "/s");
    check(v->list(v, dir, remove_spare, disk) == 0 && v->close(v, dir) == 0);
    vfs_sim_capacity(disk, vfs_sim_used(disk));
    return disk;
}

static void opens_wherever_the_takeover_is_cut(bool empty) {
    uint64_t highest = 0, id, taken = 0;
    const vfs_sim_event *events;
    vfs_sim *disk = cut_without_room(empty, &highest);
    size_t calls;

    require(vfs_sim_record(disk, 1) == 0);
    require(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &r.store) == LS_OK);
    calls = vfs_sim_journal(disk, &events);
    for (size_t k = 0; k < calls; k++)
        taken += events[k].kind == VFS_SIM_RENAME && events[k].result == 0;
    check(taken >= 1);
    ls_free(r.store);
    r.store = NULL;
    for (size_t k = 0; k <= calls; k++) {
        for (int mode = VFS_SIM_ALL_LOST; mode <= VFS_SIM_ALL_KEPT; mode++) {
            const vfs_sim_loss loss = {.mode = mode, .dir_mode = VFS_SIM_DIRS_KEPT};
            vfs_sim *cut = vfs_sim_crash_at(disk, k, &loss);
            int rc = open_store(&r, vfs_sim_table(cut), r.catalog, QUEUES + 1, &r.store);

            check(rc == LS_OK || complain(ls_last_error()->text));
            vfs_sim_capacity(cut, 0);
            check(rc != LS_OK || (publish_one(r.store, &id) == LS_OK && id > highest) || complain("an id again"));
            ls_free(r.store);
            r.store = NULL;
            vfs_sim_free(cut);
        }
    }
    vfs_sim_free(disk);
}

/* Readers rely on the hint: that of the last epoch may name records in a segment that this open leaves out and reuses. */
static void an_open_writes_the_hint_of_its_epoch_before_it_reuses_a_file(void) {
    uint64_t highest = 0, hints = 0, epoch = 0;
    const vfs_sim_event *events;
    vfs_sim *disk = cut_without_room(false, &highest);
    struct hint h;
    size_t count, i = 0;

    vfs_sim_capacity(disk, vfs_sim_used(disk) + SEGMENT / 2); /* for the hint */
    require(vfs_sim_record(disk, 1) == 0);
    require(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &r.store) == LS_OK);
    count = vfs_sim_journal(disk, &events);
    for (; i < count && events[i].kind != VFS_SIM_RENAME; i++) {
        if (events[i].kind == VFS_SIM_PWRITE && events[i].result == HINT_BYTES &&
            format_get_hint(events[i].data, HINT_BYTES, &h) == FORMAT_OK) {
            epoch = h.epoch;
            hints++;
        }
    }
    check(i < count && hints == 1 && epoch == 3);
    ls_free(r.store);
    r.store = NULL;
    vfs_sim_free(disk);
}

static void an_empty_store_opens_wherever_the_takeover_of_its_only_file_was_cut(void) {
    opens_wherever_the_takeover_is_cut(true);
}

static void no_id_is_reused_wherever_the_takeover_of_an_epoch_was_cut(void) {
    opens_wherever_the_takeover_is_cut(false);
}

/* ---- names ---- */

struct names {
    char list[1024];
    size_t count;
};

static int note_name(void *context, const char *name) {
    struct names *n = context;
    size_t used = strlen(n->list);

    if (strstr(name, ".seg") != NULL) {
        (void)snprintf(n->list + used, sizeof n->list - used, "%s ", name);
        n->count++;
    }
    return 0;
}

static struct names names_on(vfs_sim *sim) {
    struct names n = {.count = 0};
    vfs *v = vfs_sim_table(sim);
    int dir = v->open_dir(v, "/s");

    check(v->list(v, dir, note_name, &n) == 0 && v->close(v, dir) == 0);
    return n;
}

/* Otherwise a power cut removes the name, and with it acknowledged batches in the file. */
static void spares_that_an_open_takes_have_durable_names_when_it_serves(void) {
    const vfs_sim_loss names_lost = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_LOST};
    vfs_sim *sim = fresh(4, 6), *after;
    struct names before, now;

    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    require(open_store(&r, vfs_sim_table(sim), r.catalog, QUEUES + 1, &r.store) == LS_OK);
    before = names_on(sim);
    after = vfs_sim_crash(sim, &names_lost);
    now = names_on(after);
    check(before.count > 3 && strcmp(before.list, now.list) == 0);
    run_end(&r);
    vfs_sim_free(after);
    vfs_sim_free(sim);
}

int main(void) {
    static void (*const tests[])(void) = {
        the_writer_never_runs_further_ahead_than_it_may,
        segments_follow_one_another_though_some_could_not_be_made,
        new_ids_are_above_those_that_a_left_out_segment_can_have_given_out,
        a_segment_of_copies_that_a_durable_base_relies_on_is_not_left_out,
        an_empty_store_opens_wherever_the_takeover_of_its_only_file_was_cut,
        no_id_is_reused_wherever_the_takeover_of_an_epoch_was_cut,
        an_open_writes_the_hint_of_its_epoch_before_it_reuses_a_file,
        spares_that_an_open_takes_have_durable_names_when_it_serves,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
