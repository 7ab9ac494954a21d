/*
 * VOTE on the simulated disk: power cuts at every call, failing calls, damage, and older files put back. After all of them
 * an open finds the state before the call that was under way or the one after it, and never forgets what a call returned.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "os/error.h"
#include "replica/vote.h"
#include "tests/kit/failing_memory.h"
#include "tests/kit/vfs_test.h"

static const char *const HOST = "/m";

static const struct vote FIRST = {
    .uuid = {1, 2, 3}, .cluster_uuid = {9, 8}, .member_id = 3, .term = 4, .voted_for = 0, .copy = 1};

static vfs_sim *sim;
static vfs *v;
static struct vote_file *f;

static bool complains(const char *what) {
    printf("  %s: %d: %s\n", what, ls_last_error()->code, ls_last_error()->text);
    return false;
}

static void enter(void) {
    sim = vfs_sim_new();
    v = vfs_sim_table(sim);
    f = NULL;
    check(v->make_dir(v, HOST) == 0);
    check(vote_create(v, HOST, &FIRST) == LS_OK || complains("create"));
    check(vote_open(v, HOST, &f) == LS_OK || complains("open"));
}

static void leave(void) {
    vote_close(f);
    f = NULL;
    check(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
}

static bool same(const struct vote *a, const struct vote *b) { return memcmp(a, b, sizeof *a) == 0; }

static struct tail at(uint64_t term, uint64_t index) { return (struct tail){term, index}; }

/* ---- a member's life, in steps ---- */

enum { STEPS = 15 };

static int reopen(void) {
    vote_close(f);
    return vote_open(v, HOST, &f);
}

static int step(int i) {
    switch (i) {
    case 0:
        return vote_write(f, 4, 3);
    case 1:
        return vote_write(f, 6, 0);
    case 2:
        return vote_raise_floor(f, at(6, 100));
    case 3:
        return vote_raise_floor(f, at(6, 240));
    case 4:
        return reopen();
    case 5:
        return vote_write(f, 7, 2);
    case 6:
        return vote_lower_floor(f, at(6, 130));
    case 7:
        return vote_raise_floor(f, at(7, 131));
    case 8:
        return vote_switch(f, 2, at(7, 90));
    case 9:
        return reopen();
    case 10:
        return vote_write(f, 9, 0);
    case 11:
        return vote_write(f, 9, 1);
    case 12:
        return vote_next_rebuild(f, 0, 0);
    case 13:
        return vote_switch(f, 4, at(9, 500));
    default:
        return vote_detach(f);
    }
}

static struct vote states[STEPS + 1]; /* [i]: before step i */

/* Runs all steps, with a mark before each one in the journal. */
static void live(void) {
    enter();
    (void)vfs_sim_record(sim, 1);
    for (int i = 0; i < STEPS; i++) {
        states[i] = f->now;
        check(vfs_sim_mark(sim, 1, (uint64_t)i) == 0);
        check(step(i) == LS_OK || complains("step"));
    }
    states[STEPS] = f->now;
    check(vfs_sim_mark(sim, 1, STEPS) == 0);
}

/* ---- losses ---- */

enum { RANDOMS = 12 };

/* The nth way in which a power cut may lose what is unsynced; false: there are no more. */
static bool loss_at(uint64_t n, const vfs_sim_choices *c, uint64_t seed, vfs_sim_loss *loss) {
    static const int by_unit[] = {VFS_SIM_PREFIX, VFS_SIM_ONE_LOST, VFS_SIM_ONLY_ONE, VFS_SIM_ONE_GARBAGE,
                                  VFS_SIM_LAST_GARBAGE};
    uint64_t kinds = sizeof by_unit / sizeof *by_unit;

    *loss = (vfs_sim_loss){.dir_mode = n % 2 == 0 ? VFS_SIM_DIRS_LOST : VFS_SIM_DIRS_KEPT, .seed = seed + n};
    if (n < 4) {
        loss->mode = n < 2 ? VFS_SIM_ALL_LOST : VFS_SIM_ALL_KEPT;
        return true;
    }
    n -= 4;
    if (n < RANDOMS) {
        loss->mode = VFS_SIM_RANDOM;
        loss->dir_mode = VFS_SIM_DIRS_RANDOM_SUBSET;
        return true;
    }
    n -= RANDOMS;
    loss->mode = n / 2 < kinds * c->units ? by_unit[n / 2 % kinds] : 0;
    loss->n = n / 2 / kinds;
    return n / 2 < kinds * c->units;
}

/* What an open of the disk finds; false: it fails. */
static bool found_on(vfs_sim *disk, struct vote *now) {
    struct vote_file *there;
    int rc = vote_open(vfs_sim_table(disk), HOST, &there);

    if (rc != LS_OK)
        return false;
    *now = there->now;
    vote_close(there);
    return true;
}

static vfs_sim *cut_now(const vfs_sim *disk) {
    vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    return vfs_sim_crash(disk, &all);
}

/* The disk opens with one of the two states; and what an open has returned is there after any later loss. */
static void judge(vfs_sim *disk, const struct vote *before, const struct vote *after, bool cut_again) {
    const vfs_sim_event *events;
    struct vote now, later;
    size_t n;

    (void)vfs_sim_record(disk, 1);
    require(found_on(disk, &now) || complains("open after a power cut"));
    require(same(&now, before) || same(&now, after));
    n = vfs_sim_journal(disk, &events);
    for (size_t k = cut_again ? 0 : n; k <= n; k++) {
        for (int mode = 0; mode < 5; mode++) {
            vfs_sim_loss loss = {.mode = mode == 0   ? VFS_SIM_ALL_LOST
                                         : mode == 1 ? VFS_SIM_ONE_GARBAGE
                                                     : VFS_SIM_RANDOM,
                                 .dir_mode = VFS_SIM_DIRS_LOST,
                                 .seed = k * 7 + (uint64_t)mode};
            vfs_sim *again = vfs_sim_crash_at(disk, k, &loss);

            check(found_on(again, &later) || complains("open after a second power cut"));
            check(same(&later, k == n ? &now : before) || same(&later, k == n ? &now : after));
            vfs_sim_free(again);
        }
    }
}

static void flip(vfs_sim *disk, size_t at_byte, unsigned bit) {
    static uint8_t bytes[VOTE_SLOTS * VOTE_SLOT_BYTES];

    check(vfs_sim_get(disk, VFS_SIM_DEVICE, HOST, "VOTE", bytes, sizeof bytes) == (int64_t)sizeof bytes);
    bytes[at_byte] ^= (uint8_t)(1U << bit);
    check(vfs_sim_put(disk, HOST, "VOTE", bytes, sizeof bytes) == 0);
}

/* ---- power cuts ---- */

static void a_power_cut_anywhere_leaves_the_state_before_or_after_and_forgets_nothing_returned(void) {
    const vfs_sim_event *events;
    size_t n, returned = 0;
    uint64_t disks = 0;

    live();
    n = vfs_sim_journal(sim, &events);
    for (size_t k = 1; k <= n; k++) {
        vfs_sim_choices choices;
        vfs_sim_loss loss;

        if (events[k - 1].kind == VFS_SIM_MARK)
            returned = (size_t)events[k - 1].value;
        check(vfs_sim_unsynced(sim, k, &choices) == 0);
        for (uint64_t i = 0; loss_at(i, &choices, k * 1000, &loss); i++) {
            vfs_sim *disk = vfs_sim_crash_at(sim, k, &loss);

            judge(disk, &states[returned], &states[returned < STEPS ? returned + 1 : STEPS],
                  ++disks % (3 * ONE_IN) == 0);
            vfs_sim_free(disk);
            if (failures_here > 0) {
                printf("  event %zu of %zu, in step %zu, loss %llu\n", k, n, returned, (unsigned long long)i);
                leave();
                return;
            }
        }
    }
    check(disks > 3000 || complains("few disks"));
    leave();
}

/* So that one slot may be damaged afterwards. */
static void what_a_call_returned_is_in_both_slots_on_the_disk(void) {
    const vfs_sim_event *events;
    size_t n;
    int marks = 0;

    live();
    n = vfs_sim_journal(sim, &events);
    for (size_t k = 1; k <= n; k++) {
        if (events[k - 1].kind != VFS_SIM_MARK)
            continue;
        marks++;
        for (int slot = 0; slot < VOTE_SLOTS; slot++) {
            vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
            vfs_sim *disk = vfs_sim_crash_at(sim, k, &all);
            struct vote now;

            flip(disk, (size_t)slot * VOTE_SLOT_BYTES + 64, 0);
            check(found_on(disk, &now) || complains("one slot is damaged"));
            check(same(&now, &states[events[k - 1].value]));
            vfs_sim_free(disk);
        }
    }
    check(marks == STEPS + 1);
    leave();
}

/* The page cache and the device's own survive a kill, so an open may find what no force has saved yet. */
static void what_an_open_after_a_kill_believes_survives_a_power_cut(void) {
    const vfs_sim_event *events;
    size_t n, returned = 0;

    live();
    n = vfs_sim_journal(sim, &events);
    for (size_t k = 1; k <= n; k++) {
        vfs_sim *disk = vfs_sim_at(sim, k);

        if (events[k - 1].kind == VFS_SIM_MARK)
            returned = (size_t)events[k - 1].value;
        judge(disk, &states[returned], &states[returned < STEPS ? returned + 1 : STEPS], true);
        vfs_sim_free(disk);
    }
    leave();
}

static void a_power_cut_while_vote_is_made_leaves_none_or_a_whole_one(void) {
    const vfs_sim_event *events;
    size_t n;
    int none = 0, whole = 0;

    sim = vfs_sim_new();
    v = vfs_sim_table(sim);
    check(v->make_dir(v, HOST) == 0);
    check(vfs_sim_put(sim, HOST, "VOTE.new", "left by a crash", 15) == 0);
    (void)vfs_sim_record(sim, 1);
    check(vote_create(v, HOST, &FIRST) == LS_OK);
    n = vfs_sim_journal(sim, &events);
    for (size_t k = 0; k <= n; k++) {
        vfs_sim_choices choices;
        vfs_sim_loss loss;

        vfs_sim *killed = vfs_sim_at(sim, k), *later;
        struct vote now;

        if (found_on(killed, &now)) { /* then it stays */
            later = cut_now(killed);
            check(found_on(later, &now) || complains("a VOTE that was opened"));
            vfs_sim_free(later);
        }
        vfs_sim_free(killed);
        check(vfs_sim_unsynced(sim, k, &choices) == 0);
        for (uint64_t i = 0; loss_at(i, &choices, k * 1000, &loss); i++) {
            vfs_sim *disk = vfs_sim_crash_at(sim, k, &loss);

            if (found_on(disk, &now)) {
                check(now.term == FIRST.term && now.sequence == 1 && now.member_id == FIRST.member_id);
                whole++;
            } else {
                check(ls_last_error()->code == LS_NOT_A_STORE || complains("no VOTE"));
                check(k < n);
                (void)vfs_sim_table(disk)->make_dir(vfs_sim_table(disk), HOST); /* its name may be lost, too */
                check(vote_create(vfs_sim_table(disk), HOST, &FIRST) == LS_OK || complains("made again"));
                none++;
            }
            vfs_sim_free(disk);
        }
    }
    check(none > 100 && whole > 4);
    check(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
}

/* ---- calls that fail ---- */

static const vfs_sim_plan FAILURES[] = {
    {.error = EIO},
    {.error = EIO, .survive = 3},
    {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 1}, /* the seeds differ in the sectors that reach the disk */
    {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 2},
    {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 4},
    {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 5},
    {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 6},
    {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 7},
    {.error = EIO, .forever = 1},
    {.error = ENOSPC},
    {.error = ENOSPC, .forever = 1},
    {.error = EINTR},
    {.error = EINTR, .forever = 1},
    {.error = ESTALE},
    {.shorten = VFS_SIM_HALF},
    {.shorten = VFS_SIM_HALF, .forever = 1},
    {.shorten = VFS_SIM_ONE_BYTE},
};
enum { FAILURE_KINDS = sizeof FAILURES / sizeof *FAILURES };

static bool is_failure_of_a_write(int rc) { return rc == LS_OUTCOME_UNKNOWN; }
static bool is_failure_of_an_open(int rc) { return rc == LS_IO || rc == LS_FULL || rc == LS_CORRUPT; }

/* The nth call of step i fails in this way. False: the step has fewer calls. */
static bool fail_in_step(int i, uint64_t nth, const vfs_sim_plan *how) {
    vfs_sim_plan plan = *how;
    bool fired;
    struct vote before, after = states[i + 1], now;

    enter();
    (void)vfs_sim_record(sim, 0);
    for (int j = 0; j < i; j++)
        check(step(j) == LS_OK);
    before = f->now;
    plan.nth = nth;
    vfs_sim_fail(sim, &plan);
    int rc = step(i);
    fired = vfs_sim_fired(sim) > 0;
    vfs_sim_fail(sim, NULL);
    if (fired && rc != LS_OK) {
        check(f == NULL ? is_failure_of_an_open(rc) : is_failure_of_a_write(rc) || complains("a failed write"));
    }
    if (fired && rc != LS_OK && f != NULL) {
        check(same(&f->now, &before));
        check(vote_write(f, 20, 0) == LS_POISONED && vote_raise_floor(f, at(6, 9999)) == LS_POISONED);
        check(vote_lower_floor(f, at(1, 1)) == LS_POISONED && vote_switch(f, 99, at(1, 1)) == LS_POISONED);
        check(vote_next_rebuild(f, 0, 0) == LS_POISONED && vote_detach(f) == LS_POISONED);
        check(vfs_sim_calls(sim, VFS_SIM_PWRITE) == 0 && vfs_sim_calls(sim, VFS_SIM_SYNC_DATA) == 0);
    }
    if (rc == LS_OK)
        before = after;
    vote_close(f);
    f = NULL;
    vfs_sim *cut = cut_now(sim);
    check(found_on(cut, &now) || complains("power cut after a failed call"));
    check(same(&now, &before) || same(&now, &after));
    vfs_sim_free(cut);
    judge(sim, &before, &after, true); /* pages of a failed write are still in the cache */
    leave();
    return fired;
}

static void a_failed_call_poisons_and_loses_nothing(void) {
    uint64_t cases = 0;
    int earlier = failures_here;

    live();
    leave();
    for (int i = 0; i < STEPS; i++) {
        for (int kind = 0; kind < FAILURE_KINDS; kind++) {
            for (uint64_t nth = 1; fail_in_step(i, nth, &FAILURES[kind]); nth++) {
                cases++;
                if (failures_here > earlier) {
                    printf("  step %d, failure %d, call %llu\n", i, kind, (unsigned long long)nth);
                    return;
                }
            }
        }
    }
    check(cases > 500);
}

static void a_failed_call_while_vote_is_made_leaves_none_or_a_whole_one(void) {
    for (int kind = 0; kind < FAILURE_KINDS; kind++) {
        bool fired = true;

        for (uint64_t nth = 1; fired; nth++) {
            vfs_sim_plan plan = FAILURES[kind];
            struct vote now;

            sim = vfs_sim_new();
            v = vfs_sim_table(sim);
            check(v->make_dir(v, HOST) == 0);
            plan.nth = nth;
            vfs_sim_fail(sim, &plan);
            int rc = vote_create(v, HOST, &FIRST);
            fired = vfs_sim_fired(sim) > 0;
            vfs_sim_fail(sim, NULL);
            check(rc == LS_OK || rc == LS_IO || rc == LS_FULL || complains("create"));
            if (!found_on(sim, &now)) {
                check(rc != LS_OK && ls_last_error()->code == LS_NOT_A_STORE);
                check(vote_create(v, HOST, &FIRST) == LS_OK);
                check(found_on(sim, &now));
            }
            check(now.term == FIRST.term && now.copy == 1);
            f = NULL;
            leave();
        }
    }
}

/* The simulated disk's own memory fails as well: as calls with -ENOMEM. */
static void a_lack_of_memory_leaves_vote_as_it_was(void) {
    for (int way = 0; way < 4 && TAKEN_OVER; way++) {
        bool opening = way % 2 == 1;

        for_ever = way >= 2;
        for (uint64_t nth = 1, fired = 1; fired != 0; nth++) {
            struct vote now;

            sim = vfs_sim_new();
            v = vfs_sim_table(sim);
            f = NULL;
            check(v->make_dir(v, HOST) == 0);
            check(!opening || vote_create(v, HOST, &FIRST) == LS_OK);
            allocations = failed = 0;
            fail_at_nth = nth;
            counting = true;
            int rc = opening ? vote_open(v, HOST, &f) : vote_create(v, HOST, &FIRST);
            counting = false;
            fail_at_nth = 0;
            fired = failed;
            check(rc == LS_OK || rc == LS_NO_MEMORY || rc == LS_IO || rc == LS_NOT_A_STORE || complains("no memory"));
            check(rc == LS_OK || f == NULL);
            vote_close(f);
            f = NULL;
            check(found_on(sim, &now) || (!opening && vote_create(v, HOST, &FIRST) == LS_OK && found_on(sim, &now)));
            check(now.term == FIRST.term && now.sequence == 1);
            leave();
        }
    }
}

/* ---- damage ---- */

static void a_flipped_bit_in_one_slot_changes_nothing(void) {
    struct vote now;

    enter();
    for (int i = 0; i < 9; i++)
        check(step(i) == LS_OK);
    for (size_t byte = 0; byte < (size_t)VOTE_SLOTS * VOTE_SLOT_BYTES; byte += ONE_IN) {
        vfs_sim *disk = vfs_sim_clone(sim);

        flip(disk, byte, (unsigned)(byte % 8));
        check(found_on(disk, &now) && same(&now, &f->now));
        flip(disk, (byte + VOTE_SLOT_BYTES) % ((size_t)VOTE_SLOTS * VOTE_SLOT_BYTES), 3);
        check(found_on(disk, &now) && same(&now, &f->now)); /* the open has renewed the first one */
        vfs_sim_free(disk);
    }
    leave();
}

static void vote_damaged_in_both_slots_is_refused_with_the_way_out(void) {
    struct vote now;

    enter();
    vote_close(f);
    f = NULL;
    flip(sim, 70, 1);
    flip(sim, VOTE_SLOT_BYTES + 4090, 1);
    check(!found_on(sim, &now) && ls_last_error()->code == LS_CORRUPT);
    check(strstr(ls_last_error()->text, "cluster remove") != NULL && strstr(ls_last_error()->text, HOST) != NULL);
    leave();
}

static void a_slot_that_cannot_be_read_is_renewed_from_the_other(void) {
    struct vote is, now;

    enter();
    check(step(0) == LS_OK);
    is = f->now;
    vote_close(f);
    f = NULL;
    for (uint64_t nth = 1; nth <= VOTE_SLOTS; nth++) {
        vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_PREAD, .nth = nth, .error = EIO});
        check(found_on(sim, &now) && same(&now, &is) && vfs_sim_fired(sim) == 1);
    }
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_PREAD, .nth = 1, .error = EIO, .forever = 1});
    check(!found_on(sim, &now) && ls_last_error()->code == LS_CORRUPT && ls_last_error()->sys_errno == EIO);
    vfs_sim_fail(sim, NULL);
    check(found_on(sim, &now) && same(&now, &is));
    leave();
}

static void a_file_system_that_cannot_bypass_its_cache_has_votes_as_well(void) {
    struct vote is, now;

    enter();
    vote_close(f);
    f = NULL;
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_OPEN, .nth = 1, .error = EINVAL});
    check(vote_open(v, HOST, &f) == LS_OK && vfs_sim_fired(sim) == 1);
    vfs_sim_fail(sim, NULL);
    check(vote_write(f, 8, 1) == LS_OK);
    is = f->now;
    vfs_sim *disk = cut_now(sim);
    check(found_on(disk, &now) && same(&now, &is));
    vfs_sim_free(disk);
    leave();
}

static void put_slots(const struct vote *first, const struct vote *second) {
    static uint8_t bytes[VOTE_SLOTS * VOTE_SLOT_BYTES];

    format_put_vote(bytes, first);
    format_put_vote(bytes + VOTE_SLOT_BYTES, second);
    check(vfs_sim_put(sim, HOST, "VOTE", bytes, sizeof bytes) == 0);
}

static int code_of_open(void) {
    struct vote now;
    return found_on(sim, &now) ? LS_OK : ls_last_error()->code;
}

static void slots_that_no_series_of_writes_leaves_are_refused(void) {
    struct vote a, b;

    enter();
    check(step(0) == LS_OK && step(1) == LS_OK && step(2) == LS_OK);
    a = f->now;
    vote_close(f);
    f = NULL;
    put_slots(&a, &a);
    check(code_of_open() == LS_OK);
#define WITH(change)                     \
    b = a;                               \
    b.change;                            \
    put_slots(&a, &b);                   \
    check(code_of_open() == LS_CORRUPT); \
    put_slots(&b, &a);                   \
    check(code_of_open() == LS_CORRUPT); \
    b.sequence = a.sequence + 1;         \
    put_slots(&b, &a);
    WITH(member_id = 4)
    check(code_of_open() == LS_CORRUPT);
    WITH(uuid[0] = 77)
    check(code_of_open() == LS_CORRUPT);
    WITH(cluster_uuid[15] = 77)
    check(code_of_open() == LS_CORRUPT);
    WITH(voted_for = 9)
    check(code_of_open() == LS_OK);
    WITH(copy = 2)
    check(code_of_open() == LS_OK);
    WITH(rebuild = 2)
    check(code_of_open() == LS_OK);
    WITH(floor_index = 2)
    check(code_of_open() == LS_OK);
    WITH(floor_term = 5)
    check(code_of_open() == LS_OK);
    WITH(detached = 1)
    check(code_of_open() == LS_OK);
    WITH(term = 7)
    check(code_of_open() == LS_OK);
#undef WITH
    b = a;
    b.sequence = a.sequence - 1;
    b.term = a.term + 1;
    put_slots(&a, &b);
    check(code_of_open() == LS_CORRUPT);
    leave();
}

static void vote_of_a_later_version_or_of_another_kind_or_cut_short_is_refused_by_name(void) {
    static uint8_t bytes[VOTE_SLOTS * VOTE_SLOT_BYTES];
    struct vote now;

    enter();
    now = f->now;
    vote_close(f);
    f = NULL;
    check(vfs_sim_get(sim, VFS_SIM_DEVICE, HOST, "VOTE", bytes, sizeof bytes) == (int64_t)sizeof bytes);
    for (size_t length = 0; length <= sizeof bytes; length += length == sizeof bytes ? 1 : 683) {
        length = length > sizeof bytes ? sizeof bytes : length;
        check(vfs_sim_put(sim, HOST, "VOTE", bytes, length) == 0);
        check(code_of_open() == (length >= VOTE_SLOT_BYTES ? LS_OK : LS_CORRUPT));
    }
    bytes[8] = bytes[VOTE_SLOT_BYTES + 8] = 2;
    check(vfs_sim_put(sim, HOST, "VOTE", bytes, sizeof bytes) == 0);
    check(code_of_open() == LS_VERSION);
    bytes[0] = bytes[VOTE_SLOT_BYTES] = 'X';
    check(vfs_sim_put(sim, HOST, "VOTE", bytes, sizeof bytes) == 0);
    check(code_of_open() == LS_CORRUPT);
    format_put_vote(bytes, &now);
    check(vfs_sim_put(sim, HOST, "VOTE", bytes, sizeof bytes) == 0);
    check(code_of_open() == LS_OK);
    leave();
}

static void without_vote_a_member_refuses(void) {
    struct vote now;

    sim = vfs_sim_new();
    v = vfs_sim_table(sim);
    check(!found_on(sim, &now) && ls_last_error()->code == LS_NOT_A_STORE);
    check(v->make_dir(v, HOST) == 0);
    check(!found_on(sim, &now) && ls_last_error()->code == LS_NOT_A_STORE);
    check(strstr(ls_last_error()->text, "no VOTE") != NULL && strstr(ls_last_error()->text, HOST) != NULL);
    f = NULL;
    leave();
}

static void a_vote_is_made_once_and_opened_once(void) {
    struct vote bad = FIRST;
    struct vote_file *second;

    enter();
    check(vote_create(v, HOST, &FIRST) == LS_OPTION);
    check(vote_open(v, HOST, &second) == LS_LOCKED && second == NULL);
    check(f->now.sequence == 1);
    leave();

    sim = vfs_sim_new();
    v = vfs_sim_table(sim);
    check(vote_create(v, HOST, &FIRST) == LS_NOT_A_STORE);
    check(v->make_dir(v, HOST) == 0);
    bad.copy = 0;
    check(vote_create(v, HOST, &bad) == LS_OPTION);
    bad = FIRST;
    bad.floor_term = FIRST.term + 1, bad.floor_index = 1;
    check(vote_create(v, HOST, &bad) == LS_OPTION);
    bad = FIRST;
    bad.term = TERM_LIMIT;
    check(vote_create(v, HOST, &bad) == LS_OPTION);
    check(code_of_open() == LS_NOT_A_STORE);
    leave();
}

static void a_pipe_a_directory_or_a_link_in_its_place_is_refused(void) {
    char path[64] = "/tmp/logstore-test-XXXXXX", name[96], command[96];
    struct vote_file *real;
    vfs *posix = vfs_posix();

    require(mkdtemp(path) != NULL);
    (void)snprintf(name, sizeof name, "%s/VOTE", path);
    for (int what = 0; what < 3; what++) {
        check((what == 0 ? mkfifo(name, 0600) : what == 1 ? mkdir(name, 0700) : symlink("/etc/hostname", name)) == 0);
        check(vote_open(posix, path, &real) == LS_NOT_A_STORE || complains("open"));
        check(vote_create(posix, path, &FIRST) == LS_OPTION || complains("create"));
        check(remove(name) == 0);
    }
    check(vote_create(posix, path, &FIRST) == LS_OK || complains("create"));
    check(vote_open(posix, path, &real) == LS_OK || complains("open"));
    check(vote_write(real, 5, 1) == LS_OK);
    vote_close(real);
    check(vote_open(posix, path, &real) == LS_OK && real->now.term == 5 && real->now.voted_for == 1);
    check(unlink(name) == 0);
    check(vote_write(real, 6, 1) == LS_OUTCOME_UNKNOWN || complains("no name leads to it"));
    vote_close(real);
    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    check(system(command) == 0);
}

/* ---- rules ---- */

static void the_term_never_decreases_and_a_term_has_one_vote(void) {
    struct vote is;

    enter();
    check(vote_write(f, 3, 0) == LS_REFUSED);
    check(vote_write(f, 5, 0) == LS_OK);
    check(vote_write(f, 5, 2) == LS_OK);
    is = f->now;
    check(vote_write(f, 5, 2) == LS_OK && same(&is, &f->now)); /* nothing is written */
    check(vote_write(f, 5, 3) == LS_REFUSED && vote_write(f, 5, 0) == LS_REFUSED && vote_write(f, 4, 2) == LS_REFUSED);
    check(strstr(ls_last_error()->text, "term 4") != NULL);
    check(vote_write(f, TERM_LIMIT, 1) == LS_OPTION);
    check(same(&is, &f->now));
    check(vote_write(f, 6, 3) == LS_OK && f->now.sequence == is.sequence + 1);
    check(vote_write(f, TERM_LIMIT - 1, 3) == LS_OK);
    leave();
}

static void the_floor_follows_the_tail_and_is_lowered_only_for_a_cut(void) {
    struct vote is;

    enter();
    check(vote_raise_floor(f, at(5, 1)) == LS_REFUSED); /* VOTE has term 4 */
    check(vote_raise_floor(f, at(4, 0)) == LS_REFUSED && vote_raise_floor(f, at(0, 4)) == LS_REFUSED);
    check(vote_raise_floor(f, at(4, 70)) == LS_OK);
    is = f->now;
    check(vote_raise_floor(f, at(4, 70)) == LS_OK && same(&is, &f->now));
    check(vote_raise_floor(f, at(4, 69)) == LS_REFUSED && vote_raise_floor(f, at(3, 90)) == LS_REFUSED);
    check(vote_lower_floor(f, at(4, 80)) == LS_OK && vote_lower_floor(f, at(4, 70)) == LS_OK && same(&is, &f->now));
    check(vote_lower_floor(f, at(3, 90)) == LS_OK && f->now.floor_term == 3 && f->now.floor_index == 90);
    check(vote_raise_floor(f, at(4, 60)) == LS_OK); /* of a later term */
    check(vote_lower_floor(f, at(0, 0)) == LS_OK && f->now.floor_term == 0 && f->now.floor_index == 0);
    leave();
}

static void a_switch_and_a_rebuild_take_the_next_copy_in_one_write(void) {
    struct vote is;

    enter();
    check(vote_raise_floor(f, at(4, 70)) == LS_OK);
    is = f->now;
    check(vote_switch(f, 1, at(4, 90)) == LS_REFUSED && vote_switch(f, 2, at(5, 90)) == LS_REFUSED);
    check(vote_switch(f, 2, at(3, 60)) == LS_OK && f->now.sequence == is.sequence + 1);
    check(f->now.copy == 2 && f->now.floor_term == 3 && f->now.floor_index == 60);
    check(vote_next_rebuild(f, 0, 0) == LS_OK && f->now.sequence == is.sequence + 2);
    check(f->now.copy == 3 && f->now.rebuild == 1 && f->now.floor_term == 0 && f->now.floor_index == 0);
    leave();
}

static void a_detached_vote_follows_nothing_and_is_not_written_again(void) {
    enter();
    check(vote_check_log(f, at(4, 70), FIRST.uuid) == LS_OK);
    check(vote_detach(f) == LS_OK && f->now.detached == 1);
    check(vote_detach(f) == LS_OK);
    check(vote_check_log(f, at(4, 70), FIRST.uuid) == LS_REFUSED);
    check(strstr(ls_last_error()->text, "detached") != NULL);
    check(vote_write(f, 9, 1) == LS_REFUSED && vote_raise_floor(f, at(4, 70)) == LS_REFUSED);
    check(vote_switch(f, 9, at(4, 1)) == LS_REFUSED && vote_next_rebuild(f, 0, 0) == LS_REFUSED);
    check(reopen() == LS_OK && f->now.detached == 1);
    leave();
}

static void the_floor_is_due_each_half_second_while_the_tail_moves(void) {
    static const struct {
        struct tail forced;
        uint64_t now_us, written_us;
        bool due;
    } table[] = {
        {{7, 100}, 900000, 0, false},       /* the tail stands */
        {{7, 101}, 500000, 0, true},        /* it has moved */
        {{7, 101}, 499999, 0, false},       /* too early */
        {{7, 101}, 1400000, 900000, true},  /* since the last write */
        {{7, 101}, 1399999, 900000, false}, /* too early */
        {{8, 3}, 1400000, 900000, true},    /* a later term, though a lower index */
        {{6, 200}, 1400000, 900000, false}, /* a cut lowers it, not time */
        {{0, 0}, 1400000, 900000, false},   /* nothing is forced */
        {{7, 101}, 900000, 900000, false},
    };
    struct vote is = FIRST;

    is.term = 8, is.floor_term = 7, is.floor_index = 100;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check(vote_floor_is_due(&is, table[i].forced, table[i].now_us, table[i].written_us) == table[i].due ||
              complains("row"));
}

/* ---- older files put back ---- */

static void a_log_below_the_floor_is_refused_and_both_ends_are_named(void) {
    static const uint8_t other[UUID_BYTES] = {5};

    enter();
    check(vote_write(f, 7, 0) == LS_OK && vote_raise_floor(f, at(7, 4112)) == LS_OK);
    check(vote_check_log(f, at(7, 4112), FIRST.uuid) == LS_OK && vote_check_log(f, at(7, 9999), FIRST.uuid) == LS_OK);
    check(vote_check_log(f, at(8, 2), FIRST.uuid) == LS_OK); /* a later leader's, after a cut */
    check(vote_check_log(f, at(7, 4111), FIRST.uuid) == LS_CORRUPT);
    check(strstr(ls_last_error()->text, "4111") != NULL && strstr(ls_last_error()->text, "4112") != NULL);
    check(strstr(ls_last_error()->text, "cluster rebuild") != NULL);
    check(vote_check_log(f, at(6, 9000), FIRST.uuid) == LS_CORRUPT &&
          vote_check_log(f, at(0, 0), FIRST.uuid) == LS_CORRUPT);
    check(vote_check_log(f, at(7, 4112), other) == LS_NOT_A_STORE);
    check(strstr(ls_last_error()->text, "another store") != NULL);
    leave();
}

static void a_copy_whose_directory_is_missing_is_refused_unless_it_is_to_come(void) {
    bool present = true;

    enter();
    check(vote_find_copy(f, &present) == LS_OK && !present); /* a member that joins */
    check(v->make_dir(v, "/m/copy-1") == 0);
    check(vote_find_copy(f, &present) == LS_OK && present);
    check(vote_switch(f, 2, at(4, 70)) == LS_OK);
    check(vote_find_copy(f, &present) == LS_NOT_A_STORE && !present);
    check(strstr(ls_last_error()->text, "copy-2 is missing") != NULL && strstr(ls_last_error()->text, "70") != NULL);
    check(v->make_dir(v, "/m/copy-2") == 0);
    check(vote_find_copy(f, &present) == LS_OK && present);
    check(vote_next_rebuild(f, 0, 0) == LS_OK);
    check(vote_find_copy(f, &present) == LS_OK && !present); /* what is left of copy-2 does not count */
    leave();
}

/* A cut in a log: VOTE first. The log is only its tail here. */
static void a_crash_between_the_lowered_floor_and_the_cut_refuses_no_healthy_log(void) {
    struct tail log = {6, 240}, left = {6, 130};

    enter();
    check(vote_write(f, 7, 0) == LS_OK && vote_raise_floor(f, log) == LS_OK);
    check(vote_lower_floor(f, left) == LS_OK);
    for (int cut = 0; cut < 2; cut++) {
        vfs_sim *disk = cut_now(sim);
        struct vote_file *there;

        require(vote_open(vfs_sim_table(disk), HOST, &there) == LS_OK);
        check(vote_check_log(there, cut == 0 ? log : left, FIRST.uuid) == LS_OK || complains("refused"));
        vote_close(there);
        vfs_sim_free(disk);
    }
    leave();
}

/* ---- identity between members ---- */

static void a_peer_refuses_whatever_is_older_than_what_it_counted(void) {
    static const struct {
        struct identity_count counted;
        struct identity_told told;
        struct identity_peer peer;
        enum identity_verdict verdict;
        const char *why;
    } table[] = {
        /* counted: rebuild, acknowledged in, tail, voted in; told: rebuild, tail, VOTE at start, new run; durable, leads */
        {{0, 0, {0, 0}, 0}, {0, {0, 0}, 0, true}, {{7, 100}, 7}, IDENTITY_ACCEPTED, "nothing was counted"},
        {{0, 7, {7, 100}, 0}, {0, {7, 100}, 7, true}, {{7, 100}, 7}, IDENTITY_ACCEPTED, "all of the count"},
        {{0, 7, {7, 100}, 0}, {0, {7, 130}, 7, true}, {{7, 100}, 7}, IDENTITY_ACCEPTED, "more"},
        {{0, 7, {7, 100}, 0}, {0, {7, 99}, 7, true}, {{7, 100}, 0}, IDENTITY_SHORT_TAIL, "less than is durable"},
        {{0, 7, {7, 100}, 0}, {0, {7, 90}, 7, true}, {{7, 90}, 0}, IDENTITY_ACCEPTED, "the rest never was durable"},
        {{0, 7, {7, 100}, 0}, {0, {7, 89}, 7, true}, {{7, 90}, 0}, IDENTITY_SHORT_TAIL, "below what is durable"},
        {{0, 7, {7, 100}, 0},
         {0, {7, 90}, 7, true},
         {{7, 90}, 7},
         IDENTITY_SHORT_TAIL,
         "it still leads, and counts it"},
        {{0, 7, {7, 100}, 0}, {0, {7, 90}, 7, true}, {{7, 90}, 8}, IDENTITY_ACCEPTED, "it leads a later term"},
        {{0, 7, {7, 100}, 0}, {0, {7, 100}, 7, true}, {{8, 120}, 8}, IDENTITY_ACCEPTED, "what it never acknowledged"},
        {{0, 7, {7, 100}, 0}, {0, {6, 100}, 7, true}, {{7, 100}, 7}, IDENTITY_SHORT_TAIL, "another batch of the index"},
        {{0, 7, {7, 100}, 0}, {0, {6, 140}, 7, true}, {{7, 100}, 0}, IDENTITY_SHORT_TAIL, "an abandoned suffix"},
        {{0, 7, {7, 100}, 0}, {0, {8, 50}, 8, true}, {{7, 100}, 0}, IDENTITY_ACCEPTED, "a later term came since"},
        {{0, 7, {7, 100}, 0}, {0, {8, 50}, 8, true}, {{6, 40}, 7}, IDENTITY_ACCEPTED, "the peer is deposed"},
        {{0, 9, {7, 100}, 0}, {0, {8, 50}, 9, true}, {{7, 100}, 0}, IDENTITY_SHORT_TAIL, "cut before it acknowledged"},
        {{0, 7, {7, 100}, 0}, {0, {0, 0}, 7, true}, {{0, 0}, 0}, IDENTITY_ACCEPTED, "nothing is durable"},
        {{2, 7, {7, 100}, 0}, {1, {7, 999}, 7, true}, {{7, 100}, 0}, IDENTITY_EARLIER_REBUILD, "before its rebuild"},
        {{2, 7, {7, 100}, 0}, {1, {7, 999}, 7, false}, {{7, 100}, 7}, IDENTITY_EARLIER_REBUILD, "also later in a run"},
        {{2, 7, {7, 100}, 0}, {3, {0, 0}, 7, true}, {{7, 100}, 7}, IDENTITY_ACCEPTED, "rebuilt since: it is empty"},
        {{2, 7, {7, 100}, 0}, {3, {0, 0}, 6, true}, {{7, 100}, 7}, IDENTITY_EARLIER_VOTE, "rebuilt, but VOTE is older"},
        {{0, 7, {7, 100}, 0}, {0, {7, 100}, 6, true}, {{7, 100}, 0}, IDENTITY_EARLIER_VOTE, "acknowledged in term 7"},
        {{0, 7, {7, 100}, 0}, {0, {7, 100}, 6, false}, {{7, 100}, 0}, IDENTITY_ACCEPTED, "the run that acknowledged"},
        {{0, 0, {0, 0}, 9}, {0, {7, 100}, 8, true}, {{7, 100}, 9}, IDENTITY_EARLIER_VOTE, "voted in term 9"},
        {{0, 0, {0, 0}, 9}, {0, {7, 100}, 9, true}, {{7, 100}, 9}, IDENTITY_ACCEPTED, "remembers its vote"},
        {{0, 0, {0, 0}, 9}, {0, {7, 100}, 8, false}, {{7, 100}, 9}, IDENTITY_ACCEPTED, "the run that voted"},
        {{0, 7, {7, 100}, 9},
         {0, {7, 100}, 8, true},
         {{7, 100}, 0},
         IDENTITY_EARLIER_VOTE,
         "voted after it acknowledged"},
        {{0, 9, {9, 100}, 7},
         {0, {9, 100}, 8, true},
         {{9, 100}, 0},
         IDENTITY_EARLIER_VOTE,
         "acknowledged after its vote"},
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        enum identity_verdict verdict = identity_judge(&table[i].counted, &table[i].told, &table[i].peer);

        if (verdict != table[i].verdict)
            printf("  %s: %s\n", table[i].why, identity_text(verdict));
        check(verdict == table[i].verdict);
        check(strlen(identity_text(verdict)) > 0);
    }
}

static void a_count_grows_by_acknowledgements_and_shrinks_with_the_peers_own_log(void) {
    struct identity_count c = {0};

#define IS(wanted_rebuild, in, of_term, of_index, vote)                                          \
    check(c.rebuild == (wanted_rebuild) && c.acknowledged == (in) && c.tail.term == (of_term) && \
          c.tail.index == (of_index) && c.voted == (vote))
    identity_voted(&c, 6);
    identity_voted(&c, 5);
    IS(0, 0, 0, 0, 6);
    identity_acknowledged(&c, 0, 7, at(6, 90));
    IS(0, 7, 6, 90, 6);
    identity_acknowledged(&c, 0, 7, at(7, 100));
    identity_acknowledged(&c, 0, 7, at(6, 80)); /* a late one */
    IS(0, 7, 7, 100, 6);
    identity_lower(&c, at(7, 120));
    IS(0, 7, 7, 100, 6);
    identity_lower(&c, at(6, 70)); /* cut, or updated */
    IS(0, 7, 6, 70, 6);
    identity_acknowledged(&c, 0, 9, at(6, 60)); /* a new term begins anew */
    IS(0, 9, 6, 60, 6);
    identity_acknowledged(&c, 1, 9, at(6, 50)); /* and so does a rebuilt copy */
    IS(1, 9, 6, 50, 6);
    identity_lower(&c, at(0, 0));
    IS(1, 9, 0, 0, 6);
#undef IS
}

/* R10 as a whole: which of directory and VOTE was put back, and who finds it. */
static void an_older_directory_or_vote_is_found_by_the_floor_or_by_a_peer_that_counted(void) {
    struct identity_count peer = {0};
    struct identity_peer leader = {.durable = {8, 200}, .leads = 8};
    struct vote_file *there;
    vfs_sim *older;

    enter();
    check(vote_write(f, 7, 2) == LS_OK && vote_raise_floor(f, at(7, 100)) == LS_OK);
    older = cut_now(sim);
    check(vote_write(f, 8, 2) == LS_OK && vote_raise_floor(f, at(8, 200)) == LS_OK);
    identity_voted(&peer, 8);
    identity_acknowledged(&peer, 0, 8, at(8, 200));

    /* the directory alone: the floor */
    check(vote_check_log(f, at(7, 100), FIRST.uuid) == LS_CORRUPT);
    /* VOTE alone: its floor is lower than the log, so only a peer finds it, by the term at the start */
    require(vote_open(vfs_sim_table(older), HOST, &there) == LS_OK);
    check(vote_check_log(there, at(8, 200), FIRST.uuid) == LS_OK);
    struct identity_told told = {.tail = {8, 200}, .start_term = there->now.term, .new_run = true};
    check(identity_judge(&peer, &told, &leader) == IDENTITY_EARLIER_VOTE);
    /* both: the tail, and for a peer that counted nothing it is not to be seen */
    check(vote_check_log(there, at(7, 100), FIRST.uuid) == LS_OK);
    told.tail = at(7, 100);
    check(identity_judge(&peer, &told, &leader) == IDENTITY_SHORT_TAIL);
    peer = (struct identity_count){0};
    check(identity_judge(&peer, &told, &leader) == IDENTITY_ACCEPTED);
    vote_close(there);
    vfs_sim_free(older);
    /* VOTE from before a switch: its copy's directory is gone */
    older = cut_now(sim);
    check(vote_switch(f, 2, at(8, 300)) == LS_OK);
    require(vote_open(vfs_sim_table(older), HOST, &there) == LS_OK);
    bool present = true;
    check(vote_find_copy(there, &present) == LS_NOT_A_STORE && !present);
    vote_close(there);
    vfs_sim_free(older);
    leave();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_power_cut_anywhere_leaves_the_state_before_or_after_and_forgets_nothing_returned,
        what_a_call_returned_is_in_both_slots_on_the_disk,
        what_an_open_after_a_kill_believes_survives_a_power_cut,
        a_power_cut_while_vote_is_made_leaves_none_or_a_whole_one,
        a_failed_call_poisons_and_loses_nothing,
        a_failed_call_while_vote_is_made_leaves_none_or_a_whole_one,
        a_lack_of_memory_leaves_vote_as_it_was,
        a_flipped_bit_in_one_slot_changes_nothing,
        vote_damaged_in_both_slots_is_refused_with_the_way_out,
        a_slot_that_cannot_be_read_is_renewed_from_the_other,
        a_file_system_that_cannot_bypass_its_cache_has_votes_as_well,
        slots_that_no_series_of_writes_leaves_are_refused,
        vote_of_a_later_version_or_of_another_kind_or_cut_short_is_refused_by_name,
        without_vote_a_member_refuses,
        a_vote_is_made_once_and_opened_once,
        a_pipe_a_directory_or_a_link_in_its_place_is_refused,
        the_term_never_decreases_and_a_term_has_one_vote,
        the_floor_follows_the_tail_and_is_lowered_only_for_a_cut,
        a_switch_and_a_rebuild_take_the_next_copy_in_one_write,
        a_detached_vote_follows_nothing_and_is_not_written_again,
        the_floor_is_due_each_half_second_while_the_tail_moves,
        a_log_below_the_floor_is_refused_and_both_ends_are_named,
        a_copy_whose_directory_is_missing_is_refused_unless_it_is_to_come,
        a_crash_between_the_lowered_floor_and_the_cut_refuses_no_healthy_log,
        a_peer_refuses_whatever_is_older_than_what_it_counted,
        a_count_grows_by_acknowledgements_and_shrinks_with_the_peers_own_log,
        an_older_directory_or_vote_is_found_by_the_floor_or_by_a_peer_that_counted,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
