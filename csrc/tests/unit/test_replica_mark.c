/*
 * A copy that lags writes several batches with one force, under a mark. Wherever that is interrupted, the log is a prefix of the
 * leader's, nothing that was told is lost, and what is left of the rest never reads as damage. See replica/mark.c.
 */
#include "tests/kit/copies.h"

enum { BEHIND = 10, CONTENT_BYTES = 500 };

static const vfs_sim_loss ALL_STAYS = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};

/* Copy 1 lacks this many batches of the leader's, all in one segment. */
static void leave_behind(int batches) {
    copies[1].reached = false;
    for (int i = 0; i < batches; i++)
        (void)put_bytes(1, 'x', CONTENT_BYTES, LS_WAIT);
    copies[1].reached = true;
}

static void it_leads(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK || complain("lead"));
    (void)put(1, "the first", NULL);
}

static void catch_up_whole(struct copy *c) {
    check(catch_up(c, copies[0].last) == LS_OK || complain("take"));
    check(c->follows->end.index == sent[copies[0].last].s.index);
}

/* ---- how many forces ---- */

static void a_copy_that_lags_writes_many_batches_with_one_force(void) {
    uint64_t forces;

    it_leads();
    leave_behind(2);
    forces = copies[1].follows->stats.forces;
    catch_up_whole(&copies[1]);
    check(copies[1].follows->stats.forces == forces + 2); /* each by itself */
    check(vfs_sim_get(copies[1].sim, VFS_SIM_SEEN, "/s", "MARK", NULL, 0) < 0);
    leave_behind(BEHIND);
    catch_up_whole(&copies[1]); /* makes MARK */
    leave_behind(BEHIND);
    forces = copies[1].follows->stats.forces;
    catch_up_whole(&copies[1]);
    check(copies[1].follows->stats.forces == forces + 2); /* the mark, and all of them */
    copies[1].reached = false;
    for (int i = 0; i < GROUP_BATCHES_MAX + 1; i++)
        (void)put(1, "short", NULL);
    copies[1].reached = true;
    forces = copies[1].follows->stats.forces;
    catch_up_whole(&copies[1]);
    check(copies[1].follows->stats.forces == forces + 3);
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

static void batches_of_several_segments_are_taken_by_segment(void) {
    it_leads();
    leave_behind(400);
    check(copies[0].leads != NULL && sent[copies[0].last].s.first_lsn > copies[1].follows->end.lsn);
    catch_up_whole(&copies[1]);
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

static void what_does_not_follow_ends_a_group_and_is_refused_by_itself(void) {
    static uint8_t flipped[SEGMENT];
    struct shipment all[BEHIND];
    size_t taken;
    int at;

    it_leads();
    leave_behind(BEHIND);
    at = copies[0].last;
    for (int i = BEHIND; i-- > 0; at = sent[at].before)
        all[i] = sent[at].s;
    memcpy(flipped, all[5].bytes, all[5].end_lsn - all[5].lsn);
    flipped[100] ^= 1;
    all[5].bytes = flipped;
    check(replica_take_many(copies[1].follows, all, BEHIND, &taken) == LS_OK && taken == 5);
    check(replica_take_many(copies[1].follows, all + 5, BEHIND - 5, &taken) == LS_REFUSED && taken == 0);
    check(replica_take_many(copies[1].follows, all + 6, BEHIND - 6, &taken) == LS_REFUSED && taken == 0);
    copies[1].last = last_of(copies[1].follows);
    catch_up_whole(&copies[1]);
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

/* ---- interrupted ---- */

/* Copy 1's disk after a crash: a member begins with it, and then has all that was told, and takes the rest. */
static bool goes_on_with(vfs_sim *left, int told) {
    struct replica *f = NULL;
    vfs *table = vfs_sim_table(left);
    bool fine = replica_open(table, "/s", &r.options, &f) == LS_OK || complain("open");

    if (fine) {
        int last = last_of(f);

        fine = is_in(copies[0].last, last) && is_in(last, told);
        for (int next = last; fine && next != copies[0].last;) {
            int at = copies[0].last;

            while (sent[at].before != next)
                at = sent[at].before;
            fine = replica_take(f, &sent[at].s) == LS_OK || complain("take");
            next = at;
        }
    }
    replica_free(f);
    ls_store *seen = fine ? read_store_in(table, "/s", LS_INSPECT_CHECK) : NULL;

    ls_free(seen);
    return seen != NULL;
}

static int told_before(const vfs_sim *sim_, size_t k) {
    const vfs_sim_event *events;
    int told = -1;

    (void)vfs_sim_journal(sim_, &events);
    for (size_t i = 0; i < k; i++)
        told = events[i].kind == VFS_SIM_MARK && events[i].mark == MARK_TOLD ? (int)events[i].value - 1 : told;
    return told;
}

/* Opens what the crash left, and crashes again anywhere in that. */
static void crash_in_the_open(const vfs_sim *after, int told, uint64_t seed) {
    vfs_sim *again = vfs_sim_clone(after);
    const vfs_sim_event *events;
    struct replica *f = NULL;

    (void)vfs_sim_record(again, 1);
    require(replica_open(vfs_sim_table(again), "/s", &r.options, &f) == LS_OK || complain("open"));
    replica_free(f);
    size_t n = vfs_sim_journal(again, &events);
    for (size_t k = 0; k <= n; k++) {
        vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = seed + k};
        vfs_sim *left = vfs_sim_crash_at(again, k, &loss);

        require(goes_on_with(left, told));
        vfs_sim_free(left);
    }
    vfs_sim_free(again);
}

static void crash_anywhere(bool marked_before) {
    const vfs_sim_event *events;
    struct copy *c = &copies[1];
    uint64_t cases = 0;

    it_leads();
    if (marked_before) {
        leave_behind(BEHIND);
        catch_up_whole(c);
    }
    leave_behind(BEHIND);
    (void)vfs_sim_record(c->sim, 1);
    tell(c);
    catch_up_whole(c);
    size_t n = vfs_sim_journal(c->sim, &events);
    for (size_t k = 1; k <= n; k++) {
        for (uint64_t seed = 0; seed < 40; seed++) {
            vfs_sim_loss loss = {.mode = seed == 0   ? VFS_SIM_ALL_LOST
                                         : seed < 16 ? VFS_SIM_ONE_LOST
                                         : seed < 24 ? VFS_SIM_LAST_GARBAGE
                                                     : VFS_SIM_RANDOM,
                                 .dir_mode = VFS_SIM_DIRS_RANDOM,
                                 .n = seed,
                                 .seed = k * 100 + seed};
            if (ONE_IN > 1 && (k + seed) % ONE_IN != 0)
                continue;
            vfs_sim *left = vfs_sim_crash_at(c->sim, k, &loss);

            if (seed % 8 == 1)
                crash_in_the_open(left, told_before(c->sim, k), loss.seed);
            require(goes_on_with(left, told_before(c->sim, k)));
            vfs_sim_free(left);
            cases++;
        }
    }
    check(cases > 100 || ONE_IN > 1);
    check(copies_agree());
    copies_end();
}

static void a_crash_anywhere_in_a_group_loses_nothing_that_was_told(void) { crash_anywhere(true); }

static void a_crash_anywhere_in_the_first_group_loses_nothing_that_was_told(void) { crash_anywhere(false); }

/* Takes all that the leader has, in groups. */
static void take_the_rest(struct replica *f) {
    while (last_of(f) != copies[0].last) {
        struct shipment all[BEHIND];
        int at = copies[0].last, have = last_of(f), n = 0;
        size_t taken;

        for (int i = at; i != have; i = sent[i].before)
            n++;
        for (int i = n; i-- > 0; at = sent[at].before)
            if (i < BEHIND)
                all[i] = sent[at].s;
        require(replica_take_many(f, all, (size_t)(n < BEHIND ? n : BEHIND), &taken) == LS_OK || complain("take"));
    }
}

/* A killed process leaves what it wrote and did not force, the name of MARK among that. */
static void after_a_kill_what_was_left_is_forced_before_the_next_group_relies_on_it(void) {
    const vfs_sim_event *events;
    struct copy *c = &copies[1];

    it_leads();
    leave_behind(BEHIND);
    (void)vfs_sim_record(c->sim, 1);
    tell(c);
    catch_up_whole(c);
    leave_behind(BEHIND);
    size_t n = vfs_sim_journal(c->sim, &events);
    for (size_t k = 1; k <= n; k += ONE_IN) {
        vfs_sim *left = vfs_sim_at(c->sim, k);
        struct replica *f = NULL;

        require(replica_open(vfs_sim_table(left), "/s", &r.options, &f) == LS_OK || complain("open"));
        (void)vfs_sim_record(left, 1);
        take_the_rest(f);
        replica_free(f);
        size_t more = vfs_sim_journal(left, &events);
        for (size_t j = 0; j <= more; j++) {
            vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_LOST, .seed = k * 1000 + j};
            vfs_sim *cut = vfs_sim_crash_at(left, j, &loss);

            require(goes_on_with(cut, told_before(c->sim, k)));
            vfs_sim_free(cut);
        }
        vfs_sim_free(left);
    }
    check(catch_up(c, copies[0].last) == LS_OK && copies_agree());
    copies_end();
}

static void a_group_whose_call_fails_is_taken_after_the_copy_was_opened_again(void) {
    struct copy *c = &copies[1];
    uint64_t fired = 1;

    it_leads();
    for (uint64_t nth = 1; fired > 0; nth++) {
        const vfs_sim_plan plan = {.nth = nth, .error = nth % 2 ? EIO : ENOSPC, .survive = nth};

        leave_behind(BEHIND);
        vfs_sim_fail(c->sim, &plan);
        int rc = catch_up(c, copies[0].last);
        fired = vfs_sim_fired(c->sim);
        vfs_sim_fail(c->sim, NULL);
        check(fired > 0 || rc == LS_OK);
        if (rc != LS_OK) {
            vfs_sim *cut = vfs_sim_crash(c->sim, &ALL_STAYS);

            check(catch_up(c, copies[0].last) == LS_POISONED || complain("it takes nothing more"));
            check(goes_on_with(cut, c->last));
            vfs_sim_free(cut);
            replica_free(c->follows);
            check(follow_again(1) == LS_OK || complain("follow"));
            c->last = last_of(c->follows);
        }
        catch_up_whole(c);
    }
    check(copies_agree());
    copies_end();
}

/* ---- what a mark means to recovery ---- */

static uint8_t image[SEGMENT];

static void flip(vfs_sim *disk, const struct shipment *s) {
    char name[SEGMENT_NAME_BYTES];

    format_segment_name(name, s->first_lsn);
    require(vfs_sim_get(disk, VFS_SIM_DEVICE, "/s", name, image, sizeof image) == SEGMENT);
    image[s->lsn - s->first_lsn + 200] ^= 1;
    require(vfs_sim_put(disk, "/s", name, image, sizeof image) == 0);
}

/* What damage in the second batch of the newest group does. */
static int open_with_damage(int first, uint64_t *end_index) {
    vfs_sim *left = vfs_sim_crash(copies[1].sim, &ALL_STAYS);
    struct replica *f = NULL;

    flip(left, &sent[first + 1].s);
    int rc = replica_open(vfs_sim_table(left), "/s", &r.options, &f);
    *end_index = rc == LS_OK ? f->end.index : 0;
    replica_free(f);
    vfs_sim_free(left);
    return rc;
}

static void damage_under_a_mark_is_a_torn_tail_and_corruption_once_the_mark_has_moved_on(void) {
    uint64_t end_index;
    int first;

    it_leads();
    leave_behind(BEHIND);
    first = copies[0].last - BEHIND + 1;
    catch_up_whole(&copies[1]);
    check(open_with_damage(first, &end_index) == LS_OK && end_index == sent[first].s.index);
    leave_behind(1);
    catch_up_whole(&copies[1]); /* by itself: it says that all before it is forced */
    check(open_with_damage(first, &end_index) == LS_CORRUPT);
    leave_behind(BEHIND);
    catch_up_whole(&copies[1]);
    check(open_with_damage(first, &end_index) == LS_CORRUPT);
    copies_end();
}

/* Batches stand behind a hole. The open erases them, so that the mark may go. */
static void what_stands_behind_a_hole_is_erased_before_the_mark_goes(void) {
    static uint8_t bytes[MARK_SLOTS * MARK_SLOT_BYTES];
    struct replica *f = NULL;
    struct mark m, newest = {.sequence = 0};
    char name[SEGMENT_NAME_BYTES];
    int first;

    it_leads();
    leave_behind(BEHIND);
    first = copies[0].last - BEHIND + 1;
    catch_up_whole(&copies[1]);
    vfs_sim *left = vfs_sim_crash(copies[1].sim, &ALL_STAYS);
    flip(left, &sent[first + 1].s);
    ls_store *seen = read_store_in(vfs_sim_table(left), "/s", LS_INSPECT_CHECK); /* a reader goes by the mark, too */
    check(seen != NULL);
    ls_free(seen);
    require(replica_open(vfs_sim_table(left), "/s", &r.options, &f) == LS_OK || complain("open"));
    replica_free(f);
    const struct shipment *erased = &sent[first + 1].s, *last = &sent[copies[0].last].s;
    format_segment_name(name, last->first_lsn);
    require(vfs_sim_get(left, VFS_SIM_STABLE, "/s", name, image, sizeof image) == SEGMENT);
    for (uint64_t at = erased->lsn; at < last->end_lsn; at++)
        require(image[at - last->first_lsn] == 0);
    require(vfs_sim_get(left, VFS_SIM_STABLE, "/s", "MARK", bytes, sizeof bytes) == sizeof bytes);
    for (size_t at = 0; at < sizeof bytes; at += MARK_SLOT_BYTES) {
        check(format_get_mark(bytes + at, MARK_SLOT_BYTES, &m) == FORMAT_OK && m.to_lsn == 0);
        newest = m.sequence > newest.sequence ? m : newest;
    }
    check(newest.sequence > 2);
    check(goes_on_with(left, first));
    vfs_sim_free(left);
    copies_end();
}

static void a_mark_that_is_damaged_or_of_another_store_counts_for_nothing(void) {
    static uint8_t bytes[MARK_SLOTS * MARK_SLOT_BYTES];
    uint64_t end_index;
    int first;

    it_leads();
    leave_behind(BEHIND);
    first = copies[0].last - BEHIND + 1;
    catch_up_whole(&copies[1]);
    require(vfs_sim_get(copies[1].sim, VFS_SIM_SEEN, "/s", "MARK", bytes, sizeof bytes) == sizeof bytes);
    for (size_t at = 0; at < sizeof bytes; at += MARK_SLOT_BYTES) {
        struct mark m;

        require(format_get_mark(bytes + at, MARK_SLOT_BYTES, &m) == FORMAT_OK);
        m.uuid[0] ^= 1;
        format_put_mark(bytes + at, &m);
    }
    require(vfs_sim_put(copies[1].sim, "/s", "MARK", bytes, sizeof bytes) == 0);
    check(open_with_damage(first, &end_index) == LS_CORRUPT);
    memset(bytes + 100, 7, 1);
    memset(bytes + 100 + MARK_SLOT_BYTES, 7, 1);
    require(vfs_sim_put(copies[1].sim, "/s", "MARK", bytes, 5000) == 0);
    check(open_with_damage(first, &end_index) == LS_CORRUPT);
    copies_end();
}

static void without_memory_a_group_is_taken_or_not_at_all(void) {
    struct copy *c = &copies[1];
    uint64_t struck = 1;

    it_leads();
    for (uint64_t nth = 1; struck > 0; nth++) {
        leave_behind(BEHIND);
        allocations = failed = 0;
        fail_at_nth = nth;
        counting = true;
        (void)catch_up(c, copies[0].last);
        counting = false;
        struck = failed;
        if (c->follows->error != 0) {
            replica_free(c->follows);
            check(follow_again(1) == LS_OK || complain("follow"));
            c->last = last_of(c->follows);
        }
        catch_up_whole(c);
    }
    check(copies_agree() && has_the_table_of_its_directory(1));
    copies_end();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_copy_that_lags_writes_many_batches_with_one_force,
        batches_of_several_segments_are_taken_by_segment,
        what_does_not_follow_ends_a_group_and_is_refused_by_itself,
        a_crash_anywhere_in_a_group_loses_nothing_that_was_told,
        a_crash_anywhere_in_the_first_group_loses_nothing_that_was_told,
        after_a_kill_what_was_left_is_forced_before_the_next_group_relies_on_it,
        a_group_whose_call_fails_is_taken_after_the_copy_was_opened_again,
        damage_under_a_mark_is_a_torn_tail_and_corruption_once_the_mark_has_moved_on,
        what_stands_behind_a_hole_is_erased_before_the_mark_goes,
        a_mark_that_is_damaged_or_of_another_store_counts_for_nothing,
        without_memory_a_group_is_taken_or_not_at_all,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
