/*
 * The crash explorer. It runs and records generated workloads; then it cuts the power after every call, makes the disks
 * that the cut may leave, lets the real core recover each disk, and judges the result by the answers that the workload got.
 *
 * A workload is determined by its number, so --workload N --cut K repeats a finding. Several processes share the work; a
 * process that dies or hangs is a finding, too.
 */
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/proof/explorer_cuts.h"
#include "tests/proof/explorer_judge.h"
#include "tests/proof/explorer_workloads.h"
#include "tests/proof/explorer_shared.h"

static struct {
    uint64_t states;
    double seconds;
    uint64_t first;
    uint64_t workload; /* UINT64_MAX: all */
    uint64_t cut;      /* UINT64_MAX: all */
    uint64_t per_family;
    uint64_t second_of;   /* one disk of this many has a second crash */
    uint64_t recovery_of; /* one disk of this many has its recovery cut after every call */
    long jobs;
    bool first_violation;
    bool verbose;
} o = {.first = 0, .workload = UINT64_MAX, .cut = UINT64_MAX, .per_family = 6, .second_of = 5, .recovery_of = 400};

static struct shared *all;

struct explorer {
    struct run run;
    struct judge judge;
    struct at *at;
    uint64_t workload;
    struct bounds promised;
    size_t cut;
    uint64_t salt;
    vfs_sim *recovery; /* the disk whose recovery is being cut, or NULL */
    size_t recovery_cut;
};

static struct explorer x;

static double now(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- one disk ---- */

static void tell(enum check c, const vfs_sim_loss *loss, const char *why) {
    uint64_t before = atomic_fetch_add(&all->violations, 1);

    atomic_fetch_add(&all->by_check[c], 1);
    if (o.first_violation || before >= 20)
        atomic_store(&all->stop, 1);
    if (before >= 20)
        return;
    printf("VIOLATED %s: %s\n  workload %llu (%s), cut after call %zu", check_names[c], why,
           (unsigned long long)x.workload, workload_names[x.workload % WORKLOAD_KINDS], x.cut);
    if (x.recovery != NULL)
        printf(", then after call %zu of the recovery", x.recovery_cut);
    printf("; operations acknowledged %zu, started %zu\n  lost: mode %d/%d n %llu/%llu seed %llu\n"
           "  again: crash_explorer --workload %llu --cut %zu\n",
           x.promised.durable, x.promised.begun, loss->mode, loss->dir_mode, (unsigned long long)loss->n,
           (unsigned long long)loss->dir_n, (unsigned long long)loss->seed, (unsigned long long)x.workload, x.cut);
    (void)fflush(stdout);
}

static bool recovery_is_cut(vfs_sim *disk);

static bool disk_is_judged(void *context, const vfs_sim_loss *loss) {
    vfs_sim *source = x.recovery != NULL ? x.recovery : x.run.sim;
    vfs_sim *disk = vfs_sim_crash_at(source, x.recovery != NULL ? x.recovery_cut : x.cut, loss);
    uint64_t hash = stir(vfs_sim_hash(disk) ^ x.salt ^ x.promised.catalog), found;
    _Atomic uint64_t *slot = seen_slot(all, hash, &found);
    bool deep = stir(hash) % o.second_of == 0, first = found == 0;
    size_t is = SIZE_MAX;
    enum check c = NOTHING_BROKEN;

    (void)context;
    atomic_fetch_add_explicit(&all->states, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&x.at->disk, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&x.at->progress, 1, memory_order_relaxed);
    if (slot == NULL) {
        atomic_store(&all->stop, 1);
    } else if (found == 0 || found - 1 < x.promised.durable || found - 1 > x.promised.begun) {
        bool cut = x.recovery == NULL && stir(hash + 1) % o.recovery_of == 0;
        vfs_sim *kept = cut ? vfs_sim_clone(disk) : NULL;
        uint64_t used = x.judge.checkpoints_used;

        c = judge_disk(&x.judge, disk, x.promised, deep, stir(hash + 2), &is);
        seen_found(slot, first && c == NOTHING_BROKEN && is != SIZE_MAX ? is : UINT64_MAX);
        atomic_fetch_add_explicit(&all->unique, first, memory_order_relaxed);
        atomic_fetch_add_explicit(&all->second, first && deep, memory_order_relaxed);
        atomic_fetch_add_explicit(&all->pointed, first && x.judge.checkpoints_used != used, memory_order_relaxed);
        if (c != NOTHING_BROKEN)
            tell(c, loss, x.judge.why);
        else if (cut)
            (void)recovery_is_cut(kept);
        vfs_sim_free(kept);
    }
    vfs_sim_free(disk);
    if (o.states != 0 && atomic_load_explicit(&all->unique, memory_order_relaxed) >= o.states)
        atomic_store(&all->stop, 1);
    return !atomic_load_explicit(&all->stop, memory_order_relaxed);
}

/* Opens the disk again, records that, and cuts after every call of it. */
static bool recovery_is_cut(vfs_sim *disk) {
    ls_store *store = NULL;
    const vfs_sim_event *events;
    uint64_t before = atomic_load(&all->states);
    size_t n;
    bool on = true;

    if (vfs_sim_record(disk, 1) != 0 ||
        open_store(&x.run, vfs_sim_table(disk), x.promised.catalog, QUEUES + 1, &store) != LS_OK)
        return true; /* judged already */
    ls_free(store);
    n = vfs_sim_journal(disk, &events);
    x.recovery = disk;
    atomic_fetch_add(&all->recoveries, 1);
    for (size_t i = 1; on && i <= n; i++) {
        vfs_sim_choices choices;
        cuts some = {.each = disk_is_judged, .per_family = 1, .turn = i + x.cut};

        if ((events[i - 1].flags & VFS_SIM_CHANGES) == 0)
            continue;
        x.recovery_cut = i;
        atomic_store(&x.at->recovery_cut, i + 1);
        on = vfs_sim_unsynced(disk, i, &choices) == 0 && for_each_loss(&some, &choices);
    }
    x.recovery = NULL;
    atomic_store(&x.at->recovery_cut, 0);
    atomic_fetch_add(&all->recovery_states, atomic_load(&all->states) - before);
    return on;
}

/* ---- one workload ---- */

static bool cut_is_explored(size_t k) {
    vfs_sim_choices choices;
    cuts c = {.each = disk_is_judged, .per_family = o.per_family, .turn = k + x.workload};

    x.cut = k;
    atomic_store(&x.at->cut, k);
    if (vfs_sim_unsynced(x.run.sim, k, &choices) != 0)
        abort();
    return for_each_loss(&c, &choices);
}

static bool is_promised(const struct bounds *b) {
    return b->durable == x.promised.durable && b->begun == x.promised.begun && b->catalog == x.promised.catalog;
}

/* A cut differs from the previous one if the disk or the acknowledged operations changed in between. */
static void explore(uint64_t number) {
    const vfs_sim_event *events;
    struct bounds b;
    const char *broken;
    size_t n, from = 0;
    bool on = true, changed = false, somebody = false;

    x.workload = number;
    x.salt = stir(number + 1);
    x.cut = 0;
    x.judge = (struct judge){.run = &x.run};
    atomic_store(&x.at->workload, number);
    atomic_store(&x.at->disk, 0);
    if (!run_one_workload(&x.run, number, &b, &broken) || broken != NULL) {
        static const vfs_sim_loss none;
        enum check c = broken != NULL ? BESIDE : SURVIVES;

        if (!is_off(c))
            tell(c, &none, broken != NULL ? broken : "the workload itself went wrong");
        if (broken == NULL || !is_off(c)) {
            vfs_sim_free(x.run.sim);
            return;
        }
    }
    n = vfs_sim_journal(x.run.sim, &events);
    if (o.verbose)
        printf("workload %llu (%s): %zu operations, %zu calls\n", (unsigned long long)number,
               workload_names[number % WORKLOAD_KINDS], x.run.op_count, n);
    if (o.verbose && number % WORKLOAD_KINDS == READERS_BESIDE)
        printf("readers were given %llu batches and overtaken %llu times; recycling looked at holds %llu times, %llu "
               "segments were kept by one\n",
               (unsigned long long)beside.given, (unsigned long long)beside.overtaken, (unsigned long long)beside.looks,
               (unsigned long long)beside.kept);
    for (size_t k = 0; on && k <= n; k++) {
        if (k > 0 && events[k - 1].kind == VFS_SIM_MARK && events[k - 1].mark == MARK_BESIDE)
            somebody = events[k - 1].value != 0;
        changed = changed || k == 0 || (events[k - 1].flags & VFS_SIM_CHANGES) != 0;
        b = bounds_at(&x.run, k, b, from);
        from = k;
        if (o.cut != UINT64_MAX ? o.cut != k : k < n && events[k].kind == VFS_SIM_MARK)
            continue;
        if (o.cut == UINT64_MAX && (somebody || (!changed && is_promised(&b))))
            continue;
        x.promised = b;
        changed = false;
        on = cut_is_explored(k);
    }
    atomic_fetch_add(&all->workloads, on);
    atomic_fetch_add(&all->events, n);
    vfs_sim_free(x.run.sim);
}

static void work(long job) {
    x.at = &all->at[job];
    for (uint64_t number = o.first + (uint64_t)job; !atomic_load(&all->stop); number += (uint64_t)o.jobs)
        explore(number);
}

/* ---- the processes ---- */

static void name_the_dead(const struct at *at, const char *how) {
    atomic_fetch_add(&all->violations, 1);
    atomic_fetch_add(&all->by_check[SURVIVES], 1);
    printf("VIOLATED survives: %s\n  workload %llu (%s), cut after call %llu, disk %llu of the workload%s\n"
           "  again: crash_explorer --workload %llu --cut %llu\n",
           how, (unsigned long long)at->workload, workload_names[at->workload % WORKLOAD_KINDS],
           (unsigned long long)at->cut, (unsigned long long)at->disk,
           at->recovery_cut != 0 ? ", in a recovery's cut" : "", (unsigned long long)at->workload,
           (unsigned long long)at->cut);
    (void)fflush(stdout);
}

enum { HANGS_S = 30 };

static bool is_alive(pid_t *pid, long job) {
    int status = 0;

    if (*pid == 0 || waitpid(*pid, &status, WNOHANG) == 0)
        return *pid != 0;
    *pid = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        char how[64];

        (void)snprintf(how, sizeof how, WIFSIGNALED(status) ? "the process died of signal %d" : "it left with %d",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (!is_off(SURVIVES))
            name_the_dead(&all->at[job], how);
        atomic_store(&all->stop, 1);
    }
    return false;
}

static void watch(pid_t *pids, double end) {
    uint64_t progress[JOBS_MAX] = {0};
    double since[JOBS_MAX];
    long alive = o.jobs;

    for (long i = 0; i < o.jobs; i++)
        since[i] = now();
    while (alive > 0) {
        (void)usleep(20000);
        alive = 0;
        for (long i = 0; i < o.jobs; i++) {
            uint64_t there = atomic_load(&all->at[i].progress);

            if (!is_alive(&pids[i], i))
                continue;
            alive++;
            since[i] = there != progress[i] ? now() : since[i];
            progress[i] = there;
            if (now() - since[i] > HANGS_S) {
                name_the_dead(&all->at[i], "a recovery does not end");
                (void)kill(pids[i], SIGKILL);
                atomic_store(&all->stop, 1);
            }
        }
        if (now() > end)
            atomic_store(&all->stop, 1);
    }
}

static void run_all(void) {
    double end = o.seconds > 0 ? now() + o.seconds : 1e18;
    pid_t pids[JOBS_MAX] = {0};

    if (o.workload != UINT64_MAX) {
        x.at = &all->at[0];
        explore(o.workload);
        return;
    }
    (void)fflush(stdout);
    for (long i = 0; i < o.jobs; i++) {
        pids[i] = fork();
        if (pids[i] < 0) {
            perror("fork");
            exit(2);
        }
        if (pids[i] == 0) {
            work(i);
            (void)fflush(stdout);
            _exit(0);
        }
    }
    watch(pids, end);
}

/* ---- arguments and report ---- */

static void usage(void) {
    printf(
        "usage: crash_explorer [--states N] [--seconds S] [--jobs J] [--seed N] [--per-family N] [--tier fast|full]\n"
        "                      [--workload N [--cut K]] [--without CHECK,...] [--first-violation] [--verbose]\n"
        "  --states N         stop after N different disks (500000, if --seconds is not given either)\n"
        "  --seconds S        stop after S seconds\n"
        "  --per-family N     at most N disks of a family at one cut (6; the full tier: 24)\n"
        "  --without CHECKS   do not check for:");
    for (int i = 1; i <= SURVIVES; i++)
        printf(" %s", check_names[i]);
    printf("\nExit status: 0 nothing was violated, 1 something was, 2 misuse.\n");
}

static int misuse(const char *what, const char *value) {
    (void)fprintf(stderr, "crash_explorer: %s: %s (--help lists what there is)\n", what, value);
    return 2;
}

static bool number(const char *text, uint64_t *value) {
    char *end;

    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0';
}

static int parse(int argc, char **argv) {
    static const struct option options[] = {
        {"states", 1, NULL, 's'},     {"seconds", 1, NULL, 't'},
        {"jobs", 1, NULL, 'j'},       {"seed", 1, NULL, 'n'},
        {"workload", 1, NULL, 'w'},   {"cut", 1, NULL, 'c'},
        {"per-family", 1, NULL, 'f'}, {"tier", 1, NULL, 'T'},
        {"without", 1, NULL, 'x'},    {"first-violation", 0, NULL, '1'},
        {"verbose", 0, NULL, 'v'},    {"help", 0, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    uint64_t jobs = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN), seconds = 0;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint64_t *into = c == 's'   ? &o.states
                         : c == 't' ? &seconds
                         : c == 'j' ? &jobs
                         : c == 'n' ? &o.first
                         : c == 'w' ? &o.workload
                         : c == 'c' ? &o.cut
                         : c == 'f' ? &o.per_family
                                    : NULL;

        if (into != NULL && !number(optarg, into))
            return misuse("not a number", optarg);
        if (c == 'x' && !switch_off(optarg))
            return misuse("no such check", optarg);
        if (c == 'T' && strcmp(optarg, "fast") != 0 && strcmp(optarg, "full") != 0)
            return misuse("no such tier", optarg);
        if (c == 'T' && strcmp(optarg, "full") == 0)
            o.per_family = 24;
        o.first_violation = o.first_violation || c == '1';
        o.verbose = o.verbose || c == 'v';
        if (c == 'h') {
            usage();
            exit(0);
        }
        if (c == '?')
            return 2;
    }
    if (optind < argc)
        return misuse("unknown argument", argv[optind]);
    o.jobs = jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : (long)jobs;
    o.seconds = (double)seconds;
    if (o.states == 0 && seconds == 0)
        o.states = 500000;
    return 0;
}

static int report(double took) {
    const char *killer = "";

    for (int c = 1; c < CHECKS; c++)
        killer = all->by_check[c] != 0 ? check_names[c] : killer;
    printf("{\"tool\": \"crash_explorer\", \"crash_states\": %llu, \"unique\": %llu, \"violations\": %llu, "
           "\"with_second_crash\": %llu, \"by_checkpoint\": %llu, \"recoveries_cut\": %llu, \"in_recovery\": %llu, "
           "\"workloads\": %llu, "
           "\"calls\": %llu, \"seconds\": %.1f, \"killed_by\": \"%s\"}\n",
           (unsigned long long)all->states, (unsigned long long)all->unique, (unsigned long long)all->violations,
           (unsigned long long)all->second, (unsigned long long)all->pointed, (unsigned long long)all->recoveries,
           (unsigned long long)all->recovery_states, (unsigned long long)all->workloads,
           (unsigned long long)all->events, took, killer);
    return all->violations != 0;
}

int main(int argc, char **argv) {
    double start = now();
    int wrong = parse(argc, argv);

    if (wrong != 0)
        return wrong;
    (void)mallopt(M_MMAP_THRESHOLD,
                  1 << 28); /* keep freed memory for the next store instead of returning it to the system */
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 28);
    all = shared_new(o.states != 0 ? o.states : (uint64_t)8 << 20);
    if (all == NULL) {
        perror("no memory for the table of disks");
        return 2;
    }
    run_all();
    return report(now() - start);
}
