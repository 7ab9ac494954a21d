/*
 * Many threads call every operation of the C API; their calls are recorded and judged afterwards. history_record.h has the
 * record; history_check.h and history_view.h have the checks.
 *
 * It runs in rounds. Each round has a new store, over the simulated disk or real files, random options, and an ending: an
 * orderly close, a close during the work, a disk that begins to fail, power cuts during the work, or SIGKILL to the whole
 * process. The seed determines every choice except the threads' interleaving, so a failure may not repeat at once.
 */
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/vfs_sim.h"

#include "tests/proof/history_forge.h"

enum { CUTS_MAX = 3 };

enum round_kind { CLOSED, CLOSED_MIDST, POISONED, CUT, REAL_CLOSED_MIDST, REAL_KILLED, ROUND_KINDS };

static const struct ending endings[ROUND_KINDS] = {
    {"a close", false, false},
    {"a close in the middle", true, false},
    {"a failing disk", false, true},
    {"power cuts", false, false},
    {"a close in the middle, real files", true, false},
    {"SIGKILL, real files", false, false},
};

static uint64_t rounds, operations, views, poisonings, forgeries_noticed;
static uint64_t chance_state;
static uint32_t buffers_wanted;      /* 0: random */
static uint64_t segment_size_wanted; /* 0: random */

static uint32_t choose(uint32_t n) { return chance_below(&chance_state, n); }

static ls_options any_options(void) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = choose(4) == 0 ? 512 << 10 : 65536;
    o.max_write_buffers = choose(3) == 0 ? 2 : 2 + choose(6); /* with two buffers, operations often wait for one */
    o.background = choose(4) != 0;
    o.segment_size = segment_size_wanted != 0 ? segment_size_wanted : o.segment_size;
    o.max_write_buffers = buffers_wanted != 0 ? buffers_wanted : o.max_write_buffers;
    o.max_log_bytes = choose(4) == 0 ? 40 * o.segment_size : 0;
    return o;
}

static ls_store *open_with(vfs *v, const char *path, const ls_options *o, const uint32_t states[QUEUES_MAX_HERE]) {
    uint32_t ids[QUEUES_MAX_HERE];
    size_t n = 0;
    ls_store *store = NULL;

    for (uint32_t q = 1; q < QUEUES_MAX_HERE; q++) {
        if (states[q] == 1)
            ids[n++] = q;
    }
    if (ls_open(v, path, o, &store) == LS_OK && ls_serve(store, ids, n, QUEUES_MAX_HERE) != LS_OK) {
        ls_error kept = *ls_last_error();

        ls_free(store);
        printf("refused: %s\n", kept.text);
        return NULL;
    }
    return store;
}

static void pause_us(long us) {
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

/* Waits until the threads have made this many calls; false if they finish earlier. */
static bool wait_for_clock(uint64_t wanted) {
    while (h->clock < wanted) {
        uint64_t before = h->clock;

        pause_us(300);
        for (int i = 0; h->clock == before && i < 2000; i++)
            pause_us(1000);
        if (h->clock == before)
            return false;
    }
    return true;
}

static void take_catalog(struct view *view) {
    for (int q = 0; q < QUEUES_MAX_HERE; q++)
        view->queue_states[q] = h->queue_states[q];
}

static struct view final_view(bool closed) {
    struct view view = {.from = NEVER - 1, .to = NEVER, .closed = closed, .seed = chance_state};

    take_catalog(&view);
    return view;
}

static void look(vfs *v, const char *path, const ls_options *options, const struct view *view) {
    ls_options o = *options;
    ls_store *store;

    o.background = 0;
    o.max_log_bytes = 0;
    store = open_with(v, path, &o, view->queue_states);
    check_view(store, view);
    ls_free(store);
    views++;
}

static void look_at_disk(vfs_sim *disk, const ls_options *options, const struct view *view) {
    look(vfs_sim_table(disk), "/s", options, view);
    vfs_sim_free(disk);
}

/* ---- rounds on the simulated disk ---- */

static void fail_the_disk(vfs_sim *sim) {
    static const int kinds[] = {VFS_SIM_SYNC_DATA, VFS_SIM_SYNC_DATA, VFS_SIM_PWRITE, 0};
    vfs_sim_plan plan = {.kind = kinds[choose(4)],
                         .nth = 1 + choose(5),
                         .error = choose(3) != 0 ? EIO : ENOSPC,
                         .forever = choose(2) != 0,
                         .survive = choose(2) * choose(1000)};

    if (plan.kind == 0 && plan.forever == 0)
        plan.forever = 1; /* the plan is certain to take effect */
    vfs_sim_fail(sim, &plan);
}

static vfs_sim_loss any_loss(void) {
    static const int modes[] = {VFS_SIM_ALL_LOST, VFS_SIM_ALL_KEPT, VFS_SIM_RANDOM, VFS_SIM_RANDOM};

    return (vfs_sim_loss){.mode = modes[choose(4)], .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = choose(1u << 30)};
}

/* The threads continue: their later calls are not part of this disk's history. */
static uint32_t cut_power(const vfs_sim *sim, uint64_t span, struct view *cuts, vfs_sim **disks) {
    uint32_t n = 0, wanted = 1 + choose(CUTS_MAX);

    for (uint32_t i = 0; i < wanted && wait_for_clock(span * (i + 1) / (wanted + 1)); i++) {
        vfs_sim_loss loss = any_loss();

        cuts[n] = (struct view){.from = stamp(), .seed = chance_state};
        disks[n] = choose(4) == 0 ? vfs_sim_clone(sim) : vfs_sim_crash(sim, &loss);
        cuts[n].to = stamp();
        take_catalog(&cuts[n]);
        n += disks[n] != NULL;
    }
    return n;
}

static void simulated_round(enum round_kind kind, uint64_t seed, uint32_t calls_each) {
    vfs_sim *sim = vfs_sim_new(), *disks[CUTS_MAX];
    ls_options options = any_options();
    uint32_t states[QUEUES_MAX_HERE] = {0, 1, 1, 1, 1}, cut_count = 0;
    struct view cuts[CUTS_MAX], last;
    uint64_t span = (uint64_t)THREADS * calls_each * 2;
    ls_store *store;
    int rc;

    (void)vfs_sim_record(sim, 0);
    store = open_with(vfs_sim_table(sim), "/s", &options, states);
    if (store == NULL)
        abort();
    start_threads(store, seed, calls_each);
    if (kind == CUT)
        cut_count = cut_power(sim, span, cuts, disks);
    if (kind == POISONED && wait_for_clock(span * (1 + choose(8)) / 10))
        fail_the_disk(sim);
    if (kind == CLOSED_MIDST)
        (void)wait_for_clock(span * (1 + choose(8)) / 10);
    if (kind != CLOSED_MIDST)
        join_threads();
    rc = ls_close(store);
    if (kind == CLOSED_MIDST)
        join_threads();
    poisonings += kind == POISONED && ls_poisoned(store);
    if (rc != LS_OK && kind != POISONED)
        violated("refused", "the close: %s", ls_last_error()->text);
    free_handles();
    ls_free(store);
    vfs_sim_fail(sim, NULL);
    check_calls(endings[kind]);
    for (uint32_t i = 0; i < cut_count; i++)
        look_at_disk(disks[i], &options, &cuts[i]);
    last = final_view(rc == LS_OK && kind != POISONED);
    if (kind == POISONED) {
        vfs_sim_loss loss = any_loss();

        look_at_disk(vfs_sim_crash(sim, &loss), &options, &last);
    }
    look_at_disk(sim, &options,
                 &last); /* without a power cut, the store was only closed, or killed, and opened again */
}

/* ---- forgeries ---- */

/* Runs a small round, and forges its history before it is judged. False: the round has nothing to forge. */
static bool forged_round(const struct forgery *f, uint64_t seed) {
    vfs_sim *sim = vfs_sim_new();
    const uint32_t states[QUEUES_MAX_HERE] = {0, 1, 1, 1, 1};
    ls_options options = any_options();
    struct view view;
    ls_store *store;
    bool forged = true;

    (void)vfs_sim_record(sim, 0);
    history_reset(seed);
    store = open_with(vfs_sim_table(sim), "/s", &options, states);
    if (store == NULL)
        abort();
    start_threads(store, seed, 250);
    join_threads();
    (void)ls_close(store);
    free_handles();
    ls_free(store);
    gather();
    if (f->forge != NULL)
        forged = f->forge();
    view = final_view(!f->all_unclear);
    view.from = f->all_unclear ? 1 : view.from;
    check_calls(endings[CLOSED]);
    options.background = 0;
    store = open_with(vfs_sim_table(sim), "/s", &options, view.queue_states);
    if (store != NULL && f->change != NULL)
        forged = f->change(store);
    check_view(store, &view);
    ls_free(store);
    vfs_sim_free(sim);
    return forged;
}

/* Every check that is switched on must detect a history that violates it. */
static void check_the_checks(uint64_t seed) {
    for (int i = 0; i < FORGERIES; i++) {
        bool forged = false;

        if (!judges(forgeries[i].check))
            continue;
        judge.expected = forgeries[i].check;
        judge.noticed = false;
        for (uint64_t tries = 0; !judge.noticed && tries < 10; tries++) {
            chance_state = seed * 1009 + tries;
            forged = forged_round(&forgeries[i], chance_state) || forged;
        }
        judge.expected = NULL;
        forgeries_noticed += judge.noticed;
        if (!judge.noticed)
            violated("forgery", "%s notices nothing%s", forgeries[i].check,
                     forged ? "" : ": there was nothing to forge");
    }
}

/* ---- rounds on real files ---- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_directory(const char *path) {
    if (nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        abort();
}

static char real_path[120]; /* of this round's store */

static void remove_real_path(void) { remove_directory(real_path); }

static void work_until_killed(const char *path, const ls_options *options, uint64_t seed, uint32_t calls_each) {
    const uint32_t states[QUEUES_MAX_HERE] = {0, 1, 1, 1, 1};
    ls_store *store = open_with(NULL, path, options, states);

    if (store == NULL)
        _exit(3);
    start_threads(store, seed, calls_each);
    join_threads();
    (void)pause();
}

static void killed_round(const char *path, const ls_options *options, uint64_t seed, uint32_t calls_each) {
    uint64_t until = (uint64_t)THREADS * calls_each * 2 * (1 + choose(9)) / 10;
    pid_t child = fork();
    struct view last;
    int status;

    if (child < 0)
        abort();
    if (child == 0)
        work_until_killed(path, options, seed, calls_each);
    (void)wait_for_clock(until);
    (void)kill(child, SIGKILL);
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
        violated("refused", "the process ended before it was killed, with status %d", status);
    check_calls(endings[REAL_KILLED]);
    last = final_view(false);
    look(NULL, path, options, &last);
}

static void real_round(enum round_kind kind, uint64_t seed, uint32_t calls_each) {
    const uint32_t states[QUEUES_MAX_HERE] = {0, 1, 1, 1, 1};
    const char *base = getenv("TMPDIR");
    char *path = real_path;
    ls_options options = any_options();
    struct view last;
    ls_store *store;
    int rc;

    (void)snprintf(path, sizeof real_path, "%s/logstore-history-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(path) == NULL)
        abort();
    judge.clean_up = remove_real_path;
    if (kind == REAL_KILLED) {
        killed_round(path, &options, seed, calls_each);
    } else {
        store = open_with(NULL, path, &options, states);
        if (store == NULL)
            abort();
        start_threads(store, seed, calls_each);
        (void)wait_for_clock((uint64_t)THREADS * calls_each * 2 * (1 + choose(9)) / 10);
        rc = ls_close(store);
        join_threads();
        if (rc != LS_OK)
            violated("refused", "the close: %s", ls_last_error()->text);
        free_handles();
        ls_free(store);
        check_calls(endings[kind]);
        last = final_view(rc == LS_OK);
        look(NULL, path, &options, &last);
    }
    judge.clean_up = NULL;
    remove_directory(path);
}

/* ---- all rounds ---- */

static double seconds_now(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void one_round(uint64_t seed, bool full) {
    enum round_kind kind = (enum round_kind)(rounds % ROUND_KINDS);
    uint32_t calls_each;

    judge.seed = seed;
    judge.round = rounds;
    judge.ending = endings[kind].name;
    chance_state = seed * UINT64_C(1000003) + rounds;
    (void)next_chance(&chance_state);
    calls_each = 150 + choose(full ? 2500 : 900);
    history_reset(seed * 100000 + rounds);
    if (kind == REAL_CLOSED_MIDST || kind == REAL_KILLED)
        real_round(kind, chance_state, calls_each);
    else
        simulated_round(kind, chance_state, calls_each);
    for (int i = 0; i < THREADS; i++)
        operations += h->threads[i].call_count;
    rounds++;
}

static void too_long(int number) {
    static const char words[] = "a round has taken more than five minutes: some thread waits for ever\n";

    (void)number;
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    _exit(2);
}

static const char *value_of(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    }
    return otherwise;
}

int main(int argc, char **argv) {
    bool full = strcmp(value_of(argc, argv, "--tier", "fast"), "full") == 0;
    double until = seconds_now() + strtod(value_of(argc, argv, "--seconds", full ? "60" : "10"), NULL);
    uint64_t seed = strtoull(value_of(argc, argv, "--seed", "1"), NULL, 10);

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    buffers_wanted = (uint32_t)strtoul(value_of(argc, argv, "--buffers", "0"), NULL, 10);
    segment_size_wanted = strtoull(value_of(argc, argv, "--segment-size", "0"), NULL, 10);
    judge.without = value_of(argc, argv, "--without", "");
    for (int i = 1; i < argc; i++)
        judge.stop_at_first = judge.stop_at_first || strcmp(argv[i], "--first-violation") == 0;
    (void)signal(SIGALRM, too_long);
    history_new();
    judge.ending = "forgeries";
    judge.seed = seed;
    (void)alarm(300);
    if (!judge.stop_at_first)
        check_the_checks(seed);
    do {
        (void)alarm(300);
        one_round(seed, full);
    } while (rounds < ROUND_KINDS || seconds_now() < until);
    printf("{\"tool\":\"history\",\"operations\":%llu,\"rounds\":%llu,\"reopened\":%llu,\"poisonings\":%llu,"
           "\"forgeries_noticed\":%llu,\"violations\":%llu}\n",
           (unsigned long long)operations, (unsigned long long)rounds, (unsigned long long)views,
           (unsigned long long)poisonings, (unsigned long long)forgeries_noticed, (unsigned long long)judge.violations);
    return judge.violations == 0 ? 0 : 1;
}
