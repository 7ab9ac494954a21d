/*
 * The program of the simulator: seeds in several processes. A process ends with the first violation of its seed, or with an
 * assertion of libraft, and another goes on with the next seed; so no run begins from what a failed one left.
 *
 *   consensus --seeds FIRST COUNT [--ms N] [--scenario NAME] [--mutant NAME] [--jobs N] [--json] [--seconds N]
 *             [--first-violation] [--without GUARD] [--elections]
 *   consensus --seed K            one run, with every step in words
 */
#include <errno.h>
#include <getopt.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/consensus_shared.h"

enum { JOBS_MAX = 64, EXIT_VIOLATION = 3, EXIT_UNPROTECTED = 4, SHOWN_MAX = 20 };

const char *const count_names[COUNTS] = {
    "crashes", "elections", "cuts",          "updates",         "frames",      "durable",
    "changes", "transfers", "recycled",      "removed_above",   "wiped",       "torn",
    "offered", "came_back", "stopped_disks", "catalog_changes", "checkpoints", "from_checkpoint",
    "hellos",  "restored",  "stale",         "refused",         "unprotected", "tables",
    "marks",   "erased",    "failed_forces", "paced",           "detached"};

static const char *const scenario_names[] = {"default",   "churn", "members",  "two",
                                             "slow-vote", "aimed", "identity", "slow-voter"};

/* Only a program with the faults of tools/mutants.toml has it. */
bool ls_mutant_choose(const char *name) __attribute__((weak));

struct job {
    _Atomic uint64_t seed;
    char why[400];
};

static struct shared {
    _Atomic uint64_t next;
    _Atomic uint64_t done;
    atomic_bool stopped; /* no seed begins */
    _Atomic uint64_t counts[COUNTS];
    struct job jobs[JOBS_MAX];
} * shared;

static struct {
    uint64_t first;
    uint64_t count;
    uint64_t ms;
    uint64_t jobs;
    uint64_t seconds; /* no seed begins later; 0: all run */
    time_t begun;
    bool json;
    bool first_violation;
    bool elections;
} o = {.count = 100, .ms = 30000};

static size_t my_job;

/* ---- a process that runs seeds ---- */

static void add_counts(void) {
    for (size_t i = 0; i < COUNTS; i++)
        atomic_fetch_add(&shared->counts[i], sim.counts[i]);
    memset(sim.counts, 0, sizeof sim.counts);
    atomic_fetch_add(&shared->done, 1);
}

void run_failed(const char *why) {
    if (sim.unprotected) { /* no rule protects from this */
        sim.counts[COUNT_UNPROTECTED]++;
        add_counts();
        _exit(EXIT_UNPROTECTED);
    }
    (void)snprintf(shared->jobs[my_job].why, sizeof shared->jobs[my_job].why, "at %.3f s: %s",
                   (double)sim.now_ms / 1000, why);
    add_counts();
    (void)fflush(stdout);
    _exit(EXIT_VIOLATION);
}

static bool goes_on(void) {
    return !atomic_load(&shared->stopped) && (o.seconds == 0 || (uint64_t)(time(NULL) - o.begun) < o.seconds);
}

static void run_seeds(void) {
    while (goes_on()) {
        uint64_t seed = atomic_fetch_add(&shared->next, 1);
        if (seed >= o.first + o.count)
            break;
        atomic_store(&shared->jobs[my_job].seed, seed);
        if (o.elections)
            elections_run(seed, o.ms);
        else
            run_seed(seed, o.ms);
        add_counts();
    }
    (void)fflush(stdout);
    _exit(0);
}

static pid_t begin_job(size_t job) {
    (void)fflush(stdout);
    shared->jobs[job].why[0] = '\0';
    pid_t child = fork();
    if (child != 0)
        return child;
    my_job = job;
    run_seeds();
    return 0;
}

/* ---- all of them ---- */

struct found {
    uint64_t violations;
    uint64_t assertions;
};

static void tell(struct found *found, const struct job *job, int status) {
    uint64_t seed = atomic_load(&job->seed);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_UNPROTECTED)
        return;
    bool is_violation = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_VIOLATION;
    found->violations += is_violation;
    found->assertions += !is_violation;
    if (!is_violation)
        atomic_fetch_add(&shared->done, 1);
    if (o.first_violation)
        atomic_store(&shared->stopped, true);
    if (found->violations + found->assertions > SHOWN_MAX)
        return;
    if (is_violation)
        (void)printf("seed %llu %s\n", (unsigned long long)seed, job->why);
    else
        (void)printf("seed %llu: the process ended with %s %d: an assertion\n", (unsigned long long)seed,
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static int run_all(struct found *found) {
    pid_t children[JOBS_MAX] = {0};
    size_t running = 0;
    atomic_store(&shared->next, o.first);
    for (size_t i = 0; i < o.jobs; i++)
        running += (children[i] = begin_job(i)) > 0;
    while (running > 0) {
        int status = 0;
        pid_t child = wait(&status);
        if (child < 0 && errno == EINTR)
            continue;
        if (child < 0)
            return -1;
        size_t job = 0;
        while (job < o.jobs && children[job] != child)
            job++;
        if (job == o.jobs)
            continue;
        running--;
        children[job] = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        tell(found, &shared->jobs[job], status);
        if (goes_on() && atomic_load(&shared->next) < o.first + o.count)
            running += (children[job] = begin_job(job)) > 0;
    }
    return o.seconds > 0 || atomic_load(&shared->stopped) || atomic_load(&shared->done) == o.count ? 0 : -1;
}

static uint64_t counted(enum count c) { return atomic_load(&shared->counts[c]); }

static void print_json(const struct found *found) {
    (void)printf("{\"tool\": \"simulate\", \"seeds\": %llu", (unsigned long long)atomic_load(&shared->done));
    for (size_t i = 0; i < COUNTS; i++)
        (void)printf(", \"%s\": %llu", i == COUNT_CRASHES ? "member_crashes" : count_names[i],
                     (unsigned long long)counted((enum count)i));
    (void)printf(", \"assertions\": %llu, \"violations\": %llu}\n", (unsigned long long)found->assertions,
                 (unsigned long long)found->violations);
}

static void print_line(const struct found *found) {
    static const enum count shown[] = {COUNT_CRASHES, COUNT_ELECTIONS, COUNT_CUTS, COUNT_UPDATES, COUNT_FRAMES};
    (void)printf("simulated: %sseeds: %llu", run_mode, (unsigned long long)atomic_load(&shared->done));
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        (void)printf(", %s: %llu", count_names[shown[i]], (unsigned long long)counted(shown[i]));
    (void)printf(", assertions: %llu, durable: %llu, violations: %llu\n", (unsigned long long)found->assertions,
                 (unsigned long long)counted(COUNT_DURABLE), (unsigned long long)found->violations);
}

/* ---- arguments ---- */

static bool number(const char *text, uint64_t *value) {
    char *end = NULL;
    errno = 0;
    *value = text == NULL ? 0 : strtoull(text, &end, 10);
    return text != NULL && errno == 0 && *text >= '0' && *text <= '9' && *end == '\0';
}

static int name_of(const char *text, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(text, names[i]) == 0)
            return (int)i;
    (void)fprintf(stderr, "consensus: %s is none of:", text);
    for (size_t i = 0; i < count; i++)
        (void)fprintf(stderr, " %s", names[i]);
    (void)fprintf(stderr, "\n");
    return -1;
}

/* Elections are timed over the model of the log only, and only there the mark can be left out. */
static bool model_has(const char *asked) {
    if (elections_run == NULL)
        (void)fprintf(stderr, "consensus_real: %s needs the model of the log\n", asked);
    return elections_run != NULL;
}

/* R3's mark, or a guard of the engine by the name of the fault that removes it. */
static int leave_out(const char *name) {
    if (strcmp(name, "MARK") == 0) {
        if (!model_has("--without MARK"))
            return -1;
        sim.without_mark = true;
    } else if (ls_mutant_choose == NULL || !ls_mutant_choose(name)) {
        (void)fprintf(
            stderr,
            "consensus: %s is not MARK, and no fault that this program was built with: make simulate WITHOUT=%s\n",
            name, name);
        return -1;
    }
    return 0;
}

static int misuse(void) {
    (void)fprintf(
        stderr,
        "usage: consensus (--seeds FIRST COUNT | --seed K) [--ms N] [--jobs N] [--json] [--seconds N]\n"
        "                 [--scenario NAME] [--mutant NAME] [--without GUARD] [--first-violation] [--elections]\n");
    return 2;
}

static int parse(int argc, char **argv) {
    static const struct option options[] = {{"seeds", 1, NULL, 's'},
                                            {"seed", 1, NULL, 'k'},
                                            {"ms", 1, NULL, 'm'},
                                            {"jobs", 1, NULL, 'j'},
                                            {"json", 0, NULL, 'J'},
                                            {"seconds", 1, NULL, 't'},
                                            {"first-violation", 0, NULL, '1'},
                                            {"elections", 0, NULL, 'e'},
                                            {"without", 1, NULL, 'w'},
                                            {"scenario", 1, NULL, 'c'},
                                            {"mutant", 1, NULL, 'x'},
                                            {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "+", options, NULL)) != -1) {
        uint64_t *into = c == 's' || c == 'k' ? &o.first
                         : c == 'm'           ? &o.ms
                         : c == 'j'           ? &o.jobs
                         : c == 't'           ? &o.seconds
                                              : NULL;
        if (c == '?' || (into != NULL && !number(optarg, into)))
            return misuse();
        if (c == 's' && (optind >= argc || !number(argv[optind++], &o.count)))
            return misuse();
        if (c == 'k') {
            o.count = 1;
            sim.trace = true;
        }
        o.json = o.json || c == 'J';
        o.first_violation = o.first_violation || c == '1';
        if (c == 'e' && !model_has("--elections"))
            return 2;
        o.elections = o.elections || c == 'e';
        int name = 0;
        if (c == 'c' && (name = name_of(optarg, scenario_names, run_scenario_count)) >= 0)
            sim.scenario = (enum scenario)name;
        if (c == 'w')
            name = leave_out(optarg);
        if (c == 'x' && (name = name_of(optarg, run_mutants, run_mutant_count)) >= 0)
            sim.mutant = name;
        if (name < 0)
            return 2;
    }
    return optind < argc || o.count == 0 ? misuse() : 0;
}

int main(int argc, char **argv) {
    int wrong = parse(argc, argv);
    if (wrong != 0)
        return wrong;
    o.begun = time(NULL);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    o.jobs = o.jobs != 0 ? o.jobs : cores > 0 ? (uint64_t)cores : 1;
    o.jobs = o.jobs > JOBS_MAX ? JOBS_MAX : o.jobs > o.count ? o.count : o.jobs;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("consensus");
        return 2;
    }
    if (o.elections)
        elections_share();
    struct found found = {0};
    int rc = run_all(&found);
    if (rc != 0)
        (void)printf("only %llu of %llu seeds have run\n", (unsigned long long)atomic_load(&shared->done),
                     (unsigned long long)o.count);
    if (o.elections)
        elections_print();
    if (o.json)
        print_json(&found);
    else
        print_line(&found);
    return rc != 0 || found.violations + found.assertions != 0;
}
