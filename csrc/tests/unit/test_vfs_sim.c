/*
 * The simulator's promises beyond vfs.h: the effects of a power cut, planned failures, the journal.
 *
 * Each test is a function whose name is the promise. Pictures of a file have a digit for each 512-byte sector.
 */
#include "tests/kit/vfs_test.h"

/* ---- losses ---- */

/* Each byte of the file as a digit, one for each sector; '#' where a sector is not of one value; "-" if absent. */
static const char *picture(const vfs_sim *sim, int layer, const char *name) {
    static char text[64];
    unsigned char bytes[32 * SECTOR];
    int64_t size = vfs_sim_get(sim, layer, "/s", name, bytes, sizeof bytes);
    size_t n = 0;

    if (size < 0)
        return "-";
    for (int64_t at = 0; at < size; at += SECTOR, n++) {
        text[n] = (char)('0' + bytes[at]);
        for (int64_t i = at; i < at + SECTOR && i < size; i++) {
            if (bytes[i] != bytes[at])
                text[n] = '#';
        }
    }
    text[n] = '\0';
    return text;
}

static bool crash_gives(const world *w, vfs_sim_loss loss, const char *name, const char *expected) {
    vfs_sim *after = vfs_sim_crash(w->sim, &loss);
    bool same = after != NULL;

    for (int layer = 0; same && layer < 3; layer++)
        same = strcmp(picture(after, layer, name), expected) == 0;
    if (after != NULL && !same)
        printf("  (%s)\n", picture(after, VFS_SIM_DEVICE, name));
    vfs_sim_free(after);
    return same;
}

static bool fill(const world *w, int file, int value, size_t sectors, uint64_t at) {
    unsigned char bytes[32 * SECTOR];

    memset(bytes, value, sizeof bytes);
    return write_all(w->v, file, bytes, sectors * SECTOR, at * SECTOR);
}

static uint64_t units(const world *w) {
    vfs_sim_choices choices = {0, 0, 0};

    return vfs_sim_unsynced(w->sim, VFS_SIM_NOW, &choices) == 0 ? choices.units : UINT64_MAX;
}

static void synced_bytes_survive_and_the_rest_has_the_chosen_fates(void) {
    world w = world_new();
    const uint8_t mask[] = {VFS_SIM_KEPT, VFS_SIM_LOST, VFS_SIM_ZERO, VFS_SIM_KEPT};

    check(fill(&w, w.file, 2, 4, 0) && units(&w) == 4);
    check(strcmp(picture(w.sim, VFS_SIM_SEEN, "f"), "2222") == 0);
    check(strcmp(picture(w.sim, VFS_SIM_STABLE, "f"), "1111") == 0);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_LOST}, "f", "1111"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_KEPT}, "f", "2222"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_PREFIX, .n = 3}, "f", "2221"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ONE_LOST, .n = 1}, "f", "2122"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ONLY_ONE, .n = 2}, "f", "1121"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ONE_GARBAGE, .n = 0}, "f", "#222"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_LAST_GARBAGE, .n = 1}, "f", "2#11"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_MASK, .mask = mask, .mask_count = 4}, "f", "2102"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_MASK, .mask = mask, .mask_count = 1}, "f", "2111"));
    check(w.v->sync_data(w.v, w.file) == 0 && units(&w) == 0);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_LOST}, "f", "2222"));
    world_free(&w);
}

static void a_flipped_sector_differs_in_one_bit_of_what_was_written(void) {
    world w = world_new();
    unsigned char sector[SECTOR], after[SECTORS * SECTOR];

    memset(sector, 1, sizeof sector);
    memset(sector + 100, 9, 50);
    check(write_all(w.v, w.file, sector, sizeof sector, SECTOR));
    for (uint64_t seed = 0; seed < 20; seed++) {
        vfs_sim_loss loss = {.mode = VFS_SIM_ONE_FLIPPED, .seed = seed};
        vfs_sim *crashed = vfs_sim_crash(w.sim, &loss);
        int bits = 0;

        require(crashed != NULL);
        check(vfs_sim_get(crashed, VFS_SIM_DEVICE, "/s", "f", after, sizeof after) == sizeof after);
        for (size_t i = 0; i < SECTOR; i++) {
            bits += __builtin_popcount(after[SECTOR + i] ^ sector[i]);
            check(after[SECTOR + i] == sector[i] || (i >= 100 && i < 150));
        }
        check(bits == 1);
        vfs_sim_free(crashed);
    }
    world_free(&w);
}

static void a_sector_is_garbled_only_where_the_write_changes_it(void) {
    world w = world_new();
    unsigned char sector[SECTOR], after[SECTORS * SECTOR];

    memset(sector, 1, sizeof sector);
    memset(sector + 100, 9, 50);
    check(write_all(w.v, w.file, sector, sizeof sector, SECTOR));
    check(write_all(w.v, w.file, sector, 10, 3 * SECTOR + 5)); /* the same bytes again */
    for (uint64_t seed = 0; seed < 20; seed++) {
        const uint8_t mask[] = {VFS_SIM_GARBAGE, VFS_SIM_GARBAGE};
        vfs_sim_loss loss = {.mode = VFS_SIM_MASK, .seed = seed, .mask = mask, .mask_count = 2};
        vfs_sim *crashed = vfs_sim_crash(w.sim, &loss);
        int changed = 0;

        require(crashed != NULL);
        check(vfs_sim_get(crashed, VFS_SIM_DEVICE, "/s", "f", after, sizeof after) == sizeof after);
        for (int i = 0; i < SECTORS * SECTOR; i++) {
            if (i >= SECTOR + 100 && i < SECTOR + 150)
                changed += after[i] != 1;
            else
                check(after[i] == 1);
        }
        check(changed > 30);
        vfs_sim_free(crashed);
    }
    world_free(&w);
}

static void a_sector_rewritten_unchanged_is_a_unit_only_while_a_change_is_pending_there(void) {
    world w = world_new();
    unsigned char bytes[SECTORS * SECTOR];
    const uint8_t last[] = {VFS_SIM_KEPT, VFS_SIM_LOST, VFS_SIM_KEPT};

    memset(bytes, 1, sizeof bytes);
    memset(bytes + SECTOR, 2, SECTOR);
    check(write_all(w.v, w.file, bytes, sizeof bytes, 0) && units(&w) == 1); /* 1 2 1 1 over 1 1 1 1 */
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_LOST}, "f", "1111"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_KEPT}, "f", "1211"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ONE_GARBAGE}, "f", "1#11"));
    check(fill(&w, w.file, 1, 2, 1) && units(&w) == 3); /* back, while the change is pending */
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_MASK, .mask = last, .mask_count = 3}, "f", "1211"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_KEPT}, "f", "1111"));
    check(w.v->sync_data(w.v, w.file) == 0 && units(&w) == 0);
    check(fill(&w, w.file, 1, 4, 0) && units(&w) == 1); /* one stays of a write that changes nothing */
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ONE_GARBAGE}, "f", "1111"));
    world_free(&w);
}

static void a_change_of_size_is_a_unit_of_its_own(void) {
    world w = world_new();
    const uint8_t size_only[] = {VFS_SIM_KEPT, VFS_SIM_LOST, VFS_SIM_LOST};
    const uint8_t data_only[] = {VFS_SIM_LOST, VFS_SIM_KEPT, VFS_SIM_KEPT};
    vfs_sim_unit unit;
    vfs_sim *after;
    int dir, f;

    check(fill(&w, w.file, 2, 2, 4) && units(&w) == 3);
    check(vfs_sim_unit_at(w.sim, 0, &unit) == 0 && unit.bytes == 0 && unit.at == 6 * SECTOR);
    check(vfs_sim_unit_at(w.sim, 2, &unit) == 0 && unit.bytes == SECTOR && unit.at == 5 * SECTOR);
    check(vfs_sim_unit_at(w.sim, 3, &unit) == -ENOENT);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_MASK, .mask = size_only, .mask_count = 3}, "f", "111100"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_MASK, .mask = data_only, .mask_count = 3}, "f", "1111"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_PREFIX, .n = 2}, "f", "111120"));
    after = vfs_sim_crash(w.sim, &(vfs_sim_loss){.mode = VFS_SIM_MASK, .mask = data_only, .mask_count = 3});
    require(after != NULL && vfs_sim_get(after, VFS_SIM_SEEN, "/s", "f", NULL, 0) == 4 * SECTOR);
    dir = vfs_sim_table(after)->open_dir(vfs_sim_table(after), "/s");
    f = vfs_sim_table(after)->open(vfs_sim_table(after), dir, "f", VFS_WRITE);
    check(vfs_sim_table(after)->truncate(vfs_sim_table(after), f, 6 * SECTOR) == 0);
    check(strcmp(picture(after, VFS_SIM_SEEN, "f"), "111100") == 0); /* what lay beyond the end is gone */
    vfs_sim_free(after);
    check(w.v->allocate(w.v, w.file, 8 * SECTOR) == 0 && units(&w) == 4);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ONLY_ONE, .n = 3}, "f", "11110000"));
    check(w.v->sync_data(w.v, w.file) == 0);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_LOST}, "f", "11112200"));
    world_free(&w);
}

static void a_lost_shrinking_loses_later_changes_above_it(void) {
    world w = world_new();

    check(w.v->truncate(w.v, w.file, SECTOR) == 0 && fill(&w, w.file, 3, 4, 0) && units(&w) == 6);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ONE_LOST, .n = 0}, "f", "3111"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_PREFIX, .n = 1}, "f", "1"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_PREFIX, .n = 2}, "f", "1000"));
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_KEPT}, "f", "3333"));
    world_free(&w);
}

static void every_subset_of_sectors_is_another_disk(void) {
    world w = world_new();
    uint64_t hashes[64];
    size_t distinct = 0;

    check(fill(&w, w.file, 5, 3, 1) && units(&w) == 3);
    for (unsigned n = 0; n < 64; n++) {
        const uint8_t mask[] = {n & 3, n >> 2 & 3, n >> 4 & 3};
        vfs_sim_loss loss = {.mode = VFS_SIM_MASK, .mask = mask, .mask_count = 3};
        vfs_sim *crashed = vfs_sim_crash(w.sim, &loss);
        size_t i = 0;

        require(crashed != NULL);
        hashes[distinct] = vfs_sim_hash(crashed);
        while (hashes[i] != hashes[distinct])
            i++;
        distinct += i == distinct;
        vfs_sim_free(crashed);
    }
    check(distinct == 64);
    world_free(&w);
}

static void a_name_is_durable_only_after_its_directory_was_synced(void) {
    world w = world_new();
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_KEPT};
    const vfs_sim_loss kept = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_KEPT};
    int g = w.v->open(w.v, w.dir, "new", VFS_WRITE | VFS_CREATE);
    int sub;

    check(fill(&w, g, 4, 1, 0) && w.v->sync_file(w.v, g) == 0);
    check(crash_gives(&w, lost, "new", "-") && crash_gives(&w, kept, "new", "4"));
    check(w.v->sync_dir(w.v, w.dir) == 0 && crash_gives(&w, lost, "new", "4"));
    check(w.v->rename(w.v, w.dir, "new", "f") == 0);
    check(crash_gives(&w, lost, "f", "1111") && crash_gives(&w, lost, "new", "4"));
    check(crash_gives(&w, kept, "f", "4") && crash_gives(&w, kept, "new", "-"));
    check(w.v->unlink(w.v, w.dir, "f") == 0 && w.v->close(w.v, g) == 0);
    check(crash_gives(&w, lost, "f", "1111") && crash_gives(&w, kept, "f", "-"));
    check(crash_gives(&w, (vfs_sim_loss){.dir_mode = VFS_SIM_DIRS_PREFIX, .dir_n = 1}, "f", "4"));
    check(w.v->sync_dir(w.v, w.dir) == 0 && crash_gives(&w, lost, "f", "-"));
    check(fill(&w, w.file, 2, 1, 0)); /* a file that no name can lead to any more is no choice */
    check(units(&w) == 0);
    sub = w.v->open_subdir(w.v, w.dir, "holds", 1);
    g = w.v->open(w.v, sub, "hold", VFS_WRITE | VFS_CREATE);
    check(g >= 0 && w.v->sync_dir(w.v, sub) == 0);
    check(vfs_sim_hash(w.sim) != 0 && w.v->close(w.v, g) == 0 && w.v->close(w.v, sub) == 0);
    for (int with_parent = 0; with_parent < 2; with_parent++) {
        vfs_sim *crashed = vfs_sim_crash(w.sim, with_parent ? &kept : &lost);
        char byte;

        require(crashed != NULL);
        check(vfs_sim_get(crashed, VFS_SIM_SEEN, "/s/holds", "hold", &byte, 1) == (with_parent ? 0 : -ENOENT));
        vfs_sim_free(crashed);
    }
    world_free(&w);
}

/* With its contents, as they were made durable; or without it. */
static void a_removed_directory_is_back_after_a_power_cut_unless_its_parent_was_synced(void) {
    world w = world_new();
    vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    int sub = w.v->open_subdir(w.v, w.dir, "holds", 1);

    check(w.v->close(w.v, w.v->open(w.v, sub, "hold", VFS_WRITE | VFS_CREATE)) == 0);
    check(w.v->sync_dir(w.v, sub) == 0 && w.v->sync_dir(w.v, w.dir) == 0);
    check(w.v->unlink(w.v, sub, "hold") == 0 && w.v->close(w.v, sub) == 0);
    check(w.v->remove_dir(w.v, w.dir, "holds") == 0);
    for (int synced = 0; synced < 2; synced++) {
        size_t n = vfs_sim_journal(w.sim, &(const vfs_sim_event *){NULL});
        vfs_sim *now = vfs_sim_crash(w.sim, &lost), *then = vfs_sim_crash_at(w.sim, n, &lost);
        char byte;

        require(now != NULL && then != NULL && vfs_sim_hash(now) == vfs_sim_hash(then));
        check(vfs_sim_get(now, VFS_SIM_SEEN, "/s/holds", "hold", &byte, 1) == (synced ? -ENOENT : 0));
        vfs_sim_free(now);
        vfs_sim_free(then);
        check(w.v->sync_dir(w.v, w.dir) == 0);
    }
    world_free(&w);
}

static void names_survive_as_prefixes_or_in_the_weak_mode_as_closed_subsets(void) {
    world w = world_new();
    const uint8_t only_last[] = {0, 0, 0, 1};
    const uint8_t last_two[] = {0, 0, 1, 1};
    const uint8_t all_but_second[] = {1, 0, 1, 1};
    vfs_sim_choices choices;
    vfs_sim_loss loss = {.dir_mode = VFS_SIM_DIRS_PREFIX};
    static const char *const expected[][3] = {{"-", "-", "1111"}, {"", "-", "1111"}, {"", "", "1111"}, {"", "-", ""}};

    check(w.v->close(w.v, w.v->open(w.v, w.dir, "a", VFS_WRITE | VFS_CREATE)) == 0);
    check(w.v->close(w.v, w.v->open(w.v, w.dir, "b", VFS_WRITE | VFS_CREATE)) == 0);
    check(w.v->rename(w.v, w.dir, "b", "f") == 0);
    check(w.v->unlink(w.v, w.dir, "g") == 0);
    check(vfs_sim_unsynced(w.sim, VFS_SIM_NOW, &choices) == 0);
    check(choices.dir_ops == 4 && choices.dir_prefixes == 5);
    for (loss.dir_n = 0; loss.dir_n < 4; loss.dir_n++) {
        check(crash_gives(&w, loss, "a", expected[loss.dir_n][0]));
        check(crash_gives(&w, loss, "b", expected[loss.dir_n][1]));
        check(crash_gives(&w, loss, "f", expected[loss.dir_n][2]));
    }
    loss = (vfs_sim_loss){.dir_mode = VFS_SIM_DIRS_MASK, .dir_mask = only_last, .dir_mask_count = 4};
    check(crash_gives(&w, loss, "g", "-") && crash_gives(&w, loss, "a", "-") && crash_gives(&w, loss, "f", "1111"));
    loss.dir_mask = last_two; /* the rename needs b */
    check(crash_gives(&w, loss, "g", "-") && crash_gives(&w, loss, "f", "1111"));
    loss.dir_mask = all_but_second;
    check(crash_gives(&w, loss, "a", "") && crash_gives(&w, loss, "b", "-") && crash_gives(&w, loss, "f", "1111"));
    check(w.v->sync_dir(w.v, w.dir) == 0 && w.v->unlink(w.v, w.dir, "a") == 0);
    check(w.v->rename(w.v, w.dir, "f", "a") == 0);
    loss = (vfs_sim_loss){.dir_mode = VFS_SIM_DIRS_MASK, .dir_mask = only_last + 2, .dir_mask_count = 2};
    check(crash_gives(&w, loss, "a", "") && crash_gives(&w, loss, "f", "")); /* the rename needs a's unlinking */
    world_free(&w);
}

static void locks_and_handles_end_with_the_process_but_the_cache_stays(void) {
    world w = world_new();
    vfs_sim *killed;
    vfs *v;
    int dir, f;

    check(w.v->lock(w.v, w.file, 1) == 0 && fill(&w, w.file, 6, 4, 0));
    check(w.v->close(w.v, w.v->open(w.v, w.dir, "new", VFS_WRITE | VFS_CREATE)) == 0);
    killed = vfs_sim_clone(w.sim);
    require(killed != NULL);
    v = vfs_sim_table(killed);
    check(vfs_sim_handles(killed) == 0 && strcmp(picture(killed, VFS_SIM_SEEN, "f"), "6666") == 0);
    check(vfs_sim_hash(killed) == vfs_sim_hash(w.sim));
    dir = v->open_dir(v, "/s");
    f = v->open(v, dir, "f", 0);
    check(f >= 0 && v->lock(v, f, 1) == 0 && v->close(v, f) == 0 && v->close(v, dir) == 0);
    check(fill(&w, w.file, 7, 4, 0) && strcmp(picture(killed, VFS_SIM_SEEN, "f"), "6666") == 0);
    {
        world k = {.sim = killed};

        check(crash_gives(&k, (vfs_sim_loss){.mode = VFS_SIM_PREFIX, .n = 2}, "f", "6611"));
    }
    vfs_sim_free(killed);
    world_free(&w);
}

/* ---- failures ---- */

static void a_failed_sync_leaves_pages_that_are_clean_and_not_on_the_disk(void) {
    world w = world_new();
    const vfs_sim_plan plan = {.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO};
    const vfs_sim_loss kept = {.mode = VFS_SIM_ALL_KEPT};
    int other = w.v->open(w.v, w.dir, "f", VFS_WRITE);
    int direct = w.v->open(w.v, w.dir, "f", VFS_WRITE | VFS_DIRECT);

    vfs_sim_fail(w.sim, &plan);
    check(fill(&w, w.file, 2, 4, 0) && reads_fill(w.v, direct, 2, 4 * SECTOR, 0));
    check(w.v->sync_data(w.v, w.file) == -EIO && vfs_sim_fired(w.sim) == 1);
    check(reads_fill(w.v, w.file, 2, 4 * SECTOR, 0) && reads_fill(w.v, direct, 1, 4 * SECTOR, 0));
    check(w.v->sync_data(w.v, w.file) == 0 && w.v->sync_data(w.v, other) == -EIO && w.v->sync_data(w.v, other) == 0);
    check(crash_gives(&w, kept, "f", "1111") && units(&w) == 0);
    check(reads_fill(w.v, other, 2, 4 * SECTOR, 0));
    {
        static _Alignas(SECTOR) unsigned char threes[SECTOR];

        memset(threes, 3, sizeof threes);
        check(write_all(w.v, direct, threes, sizeof threes, 0));
    }
    check(strcmp(picture(w.sim, VFS_SIM_SEEN, "f"), "3222") == 0);
    check(strcmp(picture(w.sim, VFS_SIM_DEVICE, "f"), "3111") == 0);
    check(fill(&w, w.file, 4, 1, 3)); /* into the phantom page: all of it is dirty again */
    check(crash_gives(&w, kept, "f", "3224"));
    check(w.v->sync_data(w.v, w.file) == 0);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_LOST}, "f", "3224"));
    check(w.v->close(w.v, other) == 0 && w.v->close(w.v, direct) == 0);
    world_free(&w);
}

static void a_failed_sync_may_have_saved_a_part(void) {
    world w = world_new();
    vfs_sim_plan plan = {.kind = VFS_SIM_SYNC_FILE, .nth = 1, .error = EIO};
    bool some = false;

    for (plan.survive = 1; plan.survive < 30 && !some; plan.survive++) {
        const char *device;

        vfs_sim_fail(w.sim, &plan);
        check(fill(&w, w.file, 2, 4, 4) && w.v->sync_file(w.v, w.file) == -EIO);
        device = picture(w.sim, VFS_SIM_DEVICE, "f");
        some = strchr(device + 4, '2') != NULL && strchr(device + 4, '0') != NULL;
        check(strlen(device) == 8 && strncmp(device, "1111", 4) == 0);
    }
    check(some);
    check(crash_gives(&w, (vfs_sim_loss){.mode = VFS_SIM_ALL_LOST}, "f", "1111")); /* no flush covered it */
    world_free(&w);
}

static void the_nth_call_fails_once_or_for_ever_or_moves_less(void) {
    world w = world_new();
    char bytes[1000] = {0};

    vfs_sim_fail(w.sim, &(vfs_sim_plan){.nth = 2, .error = ENOSPC});
    check(w.v->size(w.v, w.file) > 0 && w.v->size(w.v, w.file) == -ENOSPC && w.v->size(w.v, w.file) > 0);
    check(vfs_sim_fired(w.sim) == 1 && vfs_sim_calls(w.sim, 0) == 3 && vfs_sim_calls(w.sim, VFS_SIM_SIZE) == 3);
    vfs_sim_fail(w.sim, &(vfs_sim_plan){.kind = VFS_SIM_PWRITE, .nth = 2, .forever = 1, .error = EIO});
    check(w.v->pwrite(w.v, w.file, bytes, 10, 0) == 10 && w.v->size(w.v, w.file) > 0);
    check(w.v->pwrite(w.v, w.file, bytes, 10, 0) == -EIO && w.v->pwrite(w.v, w.file, bytes, 10, 0) == -EIO);
    check(vfs_sim_fired(w.sim) == 2);
    vfs_sim_fail(w.sim, &(vfs_sim_plan){.nth = 1, .forever = 1, .shorten = VFS_SIM_HALF});
    check(w.v->pwrite(w.v, w.file, bytes, 1000, 0) == 500 && w.v->pread(w.v, w.file, bytes, 3, 0) == 1);
    check(w.v->pread(w.v, w.file, bytes, 1, 0) == 1 && vfs_sim_fired(w.sim) == 2);
    vfs_sim_fail(w.sim, &(vfs_sim_plan){.nth = 1, .forever = 1, .shorten = VFS_SIM_ONE_BYTE});
    check(w.v->pwrite(w.v, w.file, bytes, 1000, 0) == 1);
    vfs_sim_fail(w.sim, &(vfs_sim_plan){.nth = 1, .error = EINTR});
    check(w.v->close(w.v, w.file) == -EINTR && w.v->close(w.v, w.file) == -EBADF); /* closed in spite of the error */
    w.file = w.v->open(w.v, w.dir, "f", 0);
    vfs_sim_fail(w.sim, NULL);
    check(w.v->size(w.v, w.file) > 0 && vfs_sim_fired(w.sim) == 0 && vfs_sim_calls(w.sim, 0) == 1);
    world_free(&w);
}

static void a_full_disk_writes_what_fits_and_then_refuses(void) {
    world w = world_new();
    static const unsigned char bytes[4 * BLOCK];
    int g = w.v->open(w.v, w.dir, "g", VFS_WRITE);

    check(vfs_sim_used(w.sim) == BLOCK);
    vfs_sim_capacity(w.sim, 3 * BLOCK);
    check(w.v->allocate(w.v, g, 3 * BLOCK) == -ENOSPC && w.v->size(w.v, g) == 0);
    check(w.v->pwrite(w.v, g, bytes, sizeof bytes, 100) == 2 * BLOCK - 100);
    check(w.v->pwrite(w.v, g, bytes, 1, 2 * BLOCK) == -ENOSPC && w.v->pwrite(w.v, g, bytes, 1, 0) == 1);
    check(w.v->truncate(w.v, g, 0) == 0 && vfs_sim_used(w.sim) == BLOCK);
    check(w.v->allocate(w.v, g, 2 * BLOCK) == 0 && vfs_sim_used(w.sim) == 3 * BLOCK);
    check(w.v->unlink(w.v, w.dir, "g") == 0 && vfs_sim_used(w.sim) == 3 * BLOCK);
    check(w.v->close(w.v, g) == 0 && vfs_sim_used(w.sim) == BLOCK);
    world_free(&w);
}

/* ---- the journal ---- */

static void the_journal_tells_every_call_and_mark_in_order(void) {
    world w = world_new();
    const vfs_sim_event *e;
    size_t count;

    check(vfs_sim_record(w.sim, 1) == 0 && vfs_sim_mark(w.sim, 7, 99) == 0);
    check(w.v->pwrite(w.v, w.file, "abc", 3, 10) == 3 && w.v->rename(w.v, w.dir, "f", "h") == 0);
    check(w.v->unlink(w.v, w.dir, "f") == -ENOENT && w.v->sync_data(w.v, w.file) == 0);
    check(vfs_sim_record(w.sim, 0) == 0 && w.v->sync_dir(w.v, w.dir) == 0);
    count = vfs_sim_journal(w.sim, &e);
    require(count == 5);
    check(e[0].kind == VFS_SIM_MARK && e[0].mark == 7 && e[0].value == 99);
    check(e[1].kind == VFS_SIM_PWRITE && e[1].handle == w.file && e[1].offset == 10 && e[1].bytes == 3);
    check(e[1].result == 3 && memcmp(e[1].data, "abc", 3) == 0 && e[1].flags == VFS_SIM_CHANGES);
    check(e[2].kind == VFS_SIM_RENAME && strcmp(e[2].name, "f") == 0 && strcmp(e[2].to, "h") == 0);
    check(e[2].file == e[1].file && e[2].file != 0 && e[2].dir != 0);
    check(e[3].kind == VFS_SIM_UNLINK && e[3].result == -ENOENT && e[3].flags == 0);
    check(e[4].kind == VFS_SIM_SYNC_DATA && e[4].result == 0);
    world_free(&w);
}

/* ---- running them ---- */

static const struct {
    const char *promise;
    void (*test)(void);
} tests[] = {
#define TEST(name) \
    { #name, name }
    TEST(synced_bytes_survive_and_the_rest_has_the_chosen_fates),
    TEST(a_flipped_sector_differs_in_one_bit_of_what_was_written),
    TEST(a_sector_is_garbled_only_where_the_write_changes_it),
    TEST(a_sector_rewritten_unchanged_is_a_unit_only_while_a_change_is_pending_there),
    TEST(a_change_of_size_is_a_unit_of_its_own),
    TEST(a_lost_shrinking_loses_later_changes_above_it),
    TEST(every_subset_of_sectors_is_another_disk),
    TEST(a_name_is_durable_only_after_its_directory_was_synced),
    TEST(a_removed_directory_is_back_after_a_power_cut_unless_its_parent_was_synced),
    TEST(names_survive_as_prefixes_or_in_the_weak_mode_as_closed_subsets),
    TEST(locks_and_handles_end_with_the_process_but_the_cache_stays),
    TEST(a_failed_sync_leaves_pages_that_are_clean_and_not_on_the_disk),
    TEST(a_failed_sync_may_have_saved_a_part),
    TEST(the_nth_call_fails_once_or_for_ever_or_moves_less),
    TEST(a_full_disk_writes_what_fits_and_then_refuses),
    TEST(the_journal_tells_every_call_and_mark_in_order),
};

int main(void) {
    int passed = 0;
    int failed = 0;

    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        failures_here = 0;
        tests[i].test();
        if (failures_here != 0)
            printf("FAILED: %s\n", tests[i].promise);
        *(failures_here == 0 ? &passed : &failed) += 1;
    }
    return verdict(passed, failed);
}
