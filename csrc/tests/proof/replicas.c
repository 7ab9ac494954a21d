/*
 * The crash explorer of copies: runs three or five members on simulated disks (replicas_driver.h), and then cuts the power of
 * each disk at every call of its journal, makes disks that the cut may leave, and judges each (replicas_judge.h). In the end one
 * member of a run is detached, in the same way (replicas_detach.h).
 *
 * A run is determined by its number, so --run N --life L --event K repeats a finding. Several processes share the work; a process
 * that dies or hangs is a finding, too.
 */
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/proof/explorer_cuts.h"
#include "tests/proof/explorer_shared.h"
#include "tests/proof/replicas_detach.h"

static struct {
    uint64_t states;
    uint64_t seconds;
    uint64_t first;
    uint64_t runs; /* 0: until the states or the seconds are reached */
    uint64_t run;  /* UINT64_MAX: all */
    uint64_t life; /* UINT64_MAX: all, and 1 + the event */
    uint64_t event;
    uint64_t rounds;
    uint64_t every;   /* of the calls outside of headers, one in so many is cut at; 0: 4, or all of a single run */
    uint64_t deep_of; /* the table of one disk of this many is compared */
    uint64_t jobs;
    bool verbose;
} o = {.run = UINT64_MAX, .life = UINT64_MAX, .event = UINT64_MAX, .rounds = 8, .deep_of = 4, .jobs = 2};

/* Sums over all processes. */
struct totals {
    _Atomic uint64_t cuts, leads, updates, update_deaths, judged_updates, in_switches, short_ops, in_headers, deep,
        runs, recycled, relocated, removed, checkpoints, detached;
};

static struct shared *all;
static struct totals *totals;
static bool off[CHECKS];

struct here {
    uint64_t run;
    size_t life, event;
    struct promise told;
    bool in_header, in_switch;
    const struct ending *ending;
    struct at *at;
};

static struct here x;

static double now(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t stir(uint64_t v) {
    v = (v ^ v >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    v = (v ^ v >> 27) * UINT64_C(0x94D049BB133111EB);
    return v ^ v >> 31;
}

static void tell_finding(const vfs_sim_loss *loss) {
    enum check c = d.broken;

    d.broken = NOTHING_BROKEN;
    if (off[c])
        return;
    atomic_fetch_add(&all->violations, 1);
    atomic_fetch_add(&all->by_check[c], 1);
    atomic_store(&all->stop, 1);
    printf("VIOLATED %s: %s\n  run %llu", check_names[c], d.why, (unsigned long long)x.run);
    if (loss != NULL)
        printf(", disk %zu (copy %d), cut after call %zu, must have batch %d; lost: mode %d/%d n %llu/%llu seed %llu\n"
               "  again: replicas --run %llu --life %zu --event %zu\n",
               x.life, d.lives[x.life].copy, x.event, x.told.last, loss->mode, loss->dir_mode,
               (unsigned long long)loss->n, (unsigned long long)loss->dir_n, (unsigned long long)loss->seed,
               (unsigned long long)x.run, x.life, x.event);
    else
        printf(", while it was driven\n  again: replicas --run %llu\n", (unsigned long long)x.run);
    (void)fflush(stdout);
}

/* ---- one disk ---- */

/* Notes that it was seen; *first: never before. False: the table is full. */
static bool note_seen(uint64_t hash, bool *first) {
    uint64_t found;
    _Atomic uint64_t *slot = seen_slot(all, hash, &found);

    if (slot == NULL) {
        atomic_store(&all->stop, 1);
        return false;
    }
    *first = found == 0;
    seen_found(slot, 0);
    return true;
}

/* Of a single event's disks, all in each way. */
static struct judged how_it_is_judged(uint64_t chance) {
    struct judged j = {.deep = chance % o.deep_of == 0};
    bool all_ways = o.event != UINT64_MAX;

    chance /= o.deep_of;
    j.updates = j.deep && (all_ways ? chance % 2 == 0 : chance % (x.in_switch ? 3 : 16) == 0);
    chance /= 64;
    j.wholly = all_ways || chance % o.deep_of == 0;
    chance /= o.deep_of;
    j.read = j.wholly || chance % 2 == 0;
    j.compared = all_ways || chance % 2 == 1;
    j.voteless = chance / 2 % 64 == 0;
    return j;
}

static bool disk_is_judged(void *context, const vfs_sim_loss *loss) {
    vfs_sim *disk = vfs_sim_crash_at(d.lives[x.life].sim, x.event, loss);
    uint64_t hash = stir(vfs_sim_hash(disk) ^ stir(x.run + 1));
    uint64_t promise = (uint64_t)(x.told.last + 1) + (x.told.term << 24) + (x.told.voted_for << 56);
    bool is_new = false, is_unjudged = false;

    (void)context;
    atomic_fetch_add_explicit(&all->states, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&totals->in_headers, x.in_header, memory_order_relaxed);
    atomic_fetch_add_explicit(&x.at->progress, 1, memory_order_relaxed);
    if (note_seen(hash, &is_new) && note_seen(stir(hash + 3 + stir(promise)), &is_unjudged) && is_unjudged) {
        struct judged j = how_it_is_judged(stir(hash + 1));

        atomic_fetch_add_explicit(&all->unique, is_new, memory_order_relaxed);
        atomic_fetch_add_explicit(&totals->deep, j.deep, memory_order_relaxed);
        atomic_fetch_add_explicit(&totals->judged_updates, j.updates, memory_order_relaxed);
        atomic_fetch_add_explicit(&totals->in_switches, x.in_switch, memory_order_relaxed);
        bool is_detach = (int)x.life == detached.life;

        atomic_fetch_add_explicit(&totals->detached, is_detach, memory_order_relaxed);
        if (is_detach ? !detach_is_right(disk) : !copy_is_right(disk, &x.told, x.ending, j))
            tell_finding(loss);
    }
    vfs_sim_free(disk);
    if (o.states != 0 && atomic_load_explicit(&all->unique, memory_order_relaxed) >= o.states)
        atomic_store(&all->stop, 1);
    return !atomic_load_explicit(&all->stop, memory_order_relaxed);
}

/* ---- one journal ---- */

/* Segment files of a journal, and the one whose header is written and not forced yet. */
struct headers {
    uint64_t files[512];
    size_t count;
    uint64_t written;
};

static void note_header(struct headers *h, const vfs_sim_event *e) {
    const char *name = e->kind == VFS_SIM_RENAME ? e->to : e->kind == VFS_SIM_OPEN ? e->name : NULL;
    uint64_t first_lsn;
    bool is_segment = false;

    if (e->result < 0)
        return;
    if (name != NULL && format_parse_segment_name(name, &first_lsn) && h->count < 512)
        h->files[h->count++] = e->file;
    for (size_t i = 0; i < h->count && !is_segment; i++)
        is_segment = h->files[i] == e->file;
    if (e->kind == VFS_SIM_PWRITE && is_segment && e->offset == 0 && (e->flags & VFS_SIM_UNBUFFERED) == 0)
        h->written = e->file;
    else if ((e->kind == VFS_SIM_SYNC_DATA || e->kind == VFS_SIM_SYNC_FILE) && e->file == h->written)
        h->written = 0;
}

/* The two extremes always, the other kinds of loss in turn; in headers every combination, if they are few. */
static bool event_is_judged(void) {
    const vfs_sim_loss losses[] = {
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = x.event * 1009 + x.run},
        {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM_SUBSET, .seed = x.event * 7919 + x.run},
        {.mode = VFS_SIM_PREFIX, .dir_mode = VFS_SIM_DIRS_KEPT, .n = x.event % 17},
        {.mode = VFS_SIM_LAST_GARBAGE, .dir_mode = VFS_SIM_DIRS_KEPT, .n = x.event % 13, .seed = x.event},
        {.mode = VFS_SIM_ONE_GARBAGE, .dir_mode = VFS_SIM_DIRS_KEPT, .n = x.event % 9, .seed = x.event},
        {.mode = VFS_SIM_ONE_FLIPPED, .dir_mode = VFS_SIM_DIRS_KEPT, .n = x.event % 7, .seed = x.event},
        {.mode = VFS_SIM_ONE_LOST, .dir_mode = VFS_SIM_DIRS_KEPT, .n = x.event % 11},
        {.mode = VFS_SIM_ONLY_ONE, .dir_mode = VFS_SIM_DIRS_LOST, .n = x.event % 7},
        {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_KEPT},
        {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_LOST},
    };
    size_t n = sizeof losses / sizeof *losses;
    bool on = true;

    if (x.in_header || o.event != UINT64_MAX) {
        vfs_sim_choices choices;
        const cuts some = {.each = disk_is_judged, .per_family = 1, .turn = x.event + x.run};

        on = vfs_sim_unsynced(d.lives[x.life].sim, x.event, &choices) == 0 && for_each_loss(&some, &choices);
    }
    on = on && disk_is_judged(NULL, &losses[0]) && disk_is_judged(NULL, &losses[1]);
    for (size_t i = 0; on && i < 2; i++)
        on = disk_is_judged(NULL, &losses[2 + (2 * x.event + i) % (n - 2)]);
    for (size_t i = 2; on && o.event != UINT64_MAX && i < n; i++)
        on = disk_is_judged(NULL, &losses[i]);
    return on;
}

static bool journal_is_judged(size_t life) {
    const struct life *l = &d.lives[life];
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(l->sim, &events);
    struct headers h = {.count = 0};
    bool on = true, changed = true;

    x.life = life;
    x.told = (struct promise){.last = -1};
    x.in_switch = false;
    for (size_t k = 0; on && k <= l->end && k <= n; k++) {
        const vfs_sim_event *e = k > 0 ? &events[k - 1] : NULL;

        if (e != NULL)
            note_header(&h, e);
        if (e != NULL) {
            add_promise(&x.told, e);
            x.in_switch = e->kind == VFS_SIM_MARK && e->mark == MARK_SWITCH ? e->value != 0 : x.in_switch;
        }
        changed = changed || (e != NULL && ((e->flags & VFS_SIM_CHANGES) != 0 || e->kind == VFS_SIM_MARK));
        if (o.event != UINT64_MAX ? o.event != k : !changed || (k < n && events[k].kind == VFS_SIM_MARK))
            continue;
        if (o.event == UINT64_MAX && h.written == 0 &&
            k % (x.in_switch ? 1 + o.every / 4 : o.every) != x.run % (x.in_switch ? 1 + o.every / 4 : o.every))
            continue;
        x.event = k;
        x.in_header = h.written != 0;
        atomic_store(&x.at->cut, k);
        changed = false;
        on = event_is_judged();
    }
    return on;
}

/* ---- one run ---- */

static void count_run(void) {
    atomic_fetch_add(&totals->cuts, cuts_made);
    cuts_made = 0;
    atomic_fetch_add(&totals->leads, d.leads);
    atomic_fetch_add(&totals->updates, d.updates);
    atomic_fetch_add(&totals->update_deaths, d.update_deaths);
    atomic_fetch_add(&totals->short_ops, d.short_ops);
    atomic_fetch_add(&totals->recycled, d.recycled);
    atomic_fetch_add(&totals->relocated, d.relocated);
    atomic_fetch_add(&totals->removed, d.files_removed);
    atomic_fetch_add(&totals->checkpoints, d.checkpoints);
    atomic_fetch_add(&totals->runs, 1);
}

/* At the end of a run every copy has all durable batches, and the copies are equal. */
static bool ending_is_right(struct ending *e) {
    e->disk = vfs_sim_clone(copies[0].sim); /* without a process that has it open */
    e->last = copies[0].last;
    copy_path_of(copies[0].host, e->path);
    e->seen = read_store_in(vfs_sim_table(e->disk), e->path, LS_INSPECT_CHECK);
    for (size_t i = 0; i < updates_to_count; i++) {
        if (!is_in(e->last, updates_to[i]))
            return violated(UNDURABLE, "an update brought what a later leader has cut");
    }
    return e->seen != NULL || violated(REFUSAL, "the log cannot be read in the end");
}

static void explore(uint64_t number) {
    struct ending e = {.disk = NULL};
    bool on;

    x.run = number;
    atomic_store(&x.at->workload, number);
    atomic_store(&x.at->cut, 0);
    drives(number, (int)o.rounds);
    on = d.broken == NOTHING_BROKEN && ending_is_right(&e);
    for (int i = 0; on && i < d.members; i++) {
        const vfs_sim_event *events;

        on = replica_durable(copies[i].follows, sent[e.last].s.end_lsn) == LS_OK || violated(ANSWER, "durable");
        d.lives[d.life_count++] = (struct life){copies[i].sim, vfs_sim_journal(copies[i].sim, &events), i};
        copies[i].sim = NULL;
        on = on && batches_are_right(copies[i].follows, e.last) && table_is_right(copies[i].follows, &e);
        count_what_was_done(&copies[i]);
        copies[i].follows = NULL;
        host_close(copies[i].host);
        copies[i].host = NULL;
    }
    on = on && one_is_detached((int)(stir(number) % (uint64_t)d.life_count));
    if (d.broken != NOTHING_BROKEN)
        tell_finding(NULL);
    if (o.verbose)
        printf("run %llu: %zu operations, %d batches, %d disks, %llu leads\n", (unsigned long long)number, r.op_count,
               sent_count, d.life_count, (unsigned long long)d.leads);
    x.ending = &e;
    for (size_t i = 0; on && i < (size_t)d.life_count; i++)
        on = (o.life != UINT64_MAX && o.life != i) || journal_is_judged(i);
    ls_free(e.seen);
    detached_free();
    vfs_sim_free(e.disk);
    count_run();
    driver_free();
}

static void process(uint64_t job) {
    x.at = &all->at[job];
    for (uint64_t i = job; (o.runs == 0 || i < o.runs) && !atomic_load(&all->stop); i += o.jobs)
        explore(o.first + i);
}

/* ---- the processes ---- */

enum { HANGS_S = 60 };

static void name_the_dead(const struct at *at, const char *how) {
    if (!off[SURVIVES]) {
        atomic_fetch_add(&all->violations, 1);
        atomic_fetch_add(&all->by_check[SURVIVES], 1);
        printf("VIOLATED survives: %s\n  run %llu, cut after call %llu\n  again: replicas --run %llu\n", how,
               (unsigned long long)at->workload, (unsigned long long)at->cut, (unsigned long long)at->workload);
        (void)fflush(stdout);
    }
    atomic_store(&all->stop, 1);
}

static bool is_alive(pid_t *pid, const struct at *at) {
    int status = 0;

    if (*pid == 0 || waitpid(*pid, &status, WNOHANG) == 0)
        return *pid != 0;
    *pid = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        name_the_dead(at, WIFSIGNALED(status) ? "the process died of a signal" : "the process ended with an error");
    return false;
}

static void watch(pid_t *pids, double end) {
    uint64_t progress[JOBS_MAX] = {0};
    double since[JOBS_MAX];
    bool alive = true;

    for (uint64_t i = 0; i < o.jobs; i++)
        since[i] = now();
    while (alive) {
        (void)usleep(20000);
        alive = false;
        for (uint64_t i = 0; i < o.jobs; i++) {
            struct at *at = &all->at[i];

            if (!is_alive(&pids[i], at))
                continue;
            alive = true;
            if (atomic_load(&at->progress) != progress[i]) {
                progress[i] = atomic_load(&at->progress);
                since[i] = now();
            } else if (now() - since[i] > HANGS_S) {
                name_the_dead(at, "a call does not end");
                (void)kill(pids[i], SIGKILL);
                since[i] = now();
            }
        }
        if (now() > end)
            atomic_store(&all->stop, 1);
    }
}

static void run_all(void) {
    pid_t pids[JOBS_MAX] = {0};

    if (o.run != UINT64_MAX) {
        o.first = o.run;
        o.runs = o.jobs = 1;
    }
    (void)fflush(stdout);
    for (uint64_t i = 0; i < o.jobs; i++) {
        pids[i] = fork();
        if (pids[i] < 0) {
            perror("fork");
            exit(2);
        }
        if (pids[i] == 0) {
            process(i);
            (void)fflush(stdout);
            _exit(0);
        }
    }
    watch(pids, o.seconds > 0 ? now() + (double)o.seconds : 1e18);
}

/* ---- arguments and report ---- */

static void usage(void) {
    printf("usage: replicas [--states N] [--seconds S] [--runs N] [--jobs J] [--seed N] [--rounds N] [--every N] "
           "[--deep-of N]\n"
           "                [--run N [--life L --event K]] [--without CHECK,...] [--first-violation] [--verbose]\n"
           "  --states N    stop after N different disks (20000, if nothing else says when)\n"
           "  --seconds S   stop after S seconds\n"
           "  --runs N      stop after N runs, the first being number --seed\n"
           "  --rounds N    leaders in a run (8)\n"
           "  --every N     cut at one call of N, and at all while a header is written (4; of a single run 1)\n"
           "  --deep-of N   bring one disk of N up to the end of the log and compare its table, and read one of N in "
           "each way (4)\n"
           "  --without     do not check for:");
    for (int i = 1; i < CHECKS; i++)
        printf(" %s", check_names[i]);
    printf("\nIt stops at the first violation. Exit status: 0 nothing was violated, 1 something was, 2 misuse.\n");
}

static int misuse(const char *what, const char *value) {
    (void)fprintf(stderr, "replicas: %s: %s (--help lists what there is)\n", what, value);
    return 2;
}

static bool number(const char *text, uint64_t *value) {
    char *end;

    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0';
}

static bool switch_off(char *names) {
    for (char *name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) {
        int c = 1;

        while (c < CHECKS && strcmp(check_names[c], name) != 0)
            c++;
        if (c == CHECKS)
            return false;
        off[c] = true;
    }
    return true;
}

static int parse(int argc, char **argv) {
    static const struct option options[] = {
        {"states", 1, NULL, 's'},
        {"seconds", 1, NULL, 't'},
        {"runs", 1, NULL, 'r'},
        {"jobs", 1, NULL, 'j'},
        {"seed", 1, NULL, 'n'},
        {"rounds", 1, NULL, 'R'},
        {"deep-of", 1, NULL, 'd'},
        {"run", 1, NULL, 'w'},
        {"every", 1, NULL, 'E'},
        {"life", 1, NULL, 'l'},
        {"event", 1, NULL, 'e'},
        {"without", 1, NULL, 'x'},
        {"first-violation", 0, NULL, '1'},
        {"verbose", 0, NULL, 'v'},
        {"help", 0, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint64_t *into = c == 's'   ? &o.states
                         : c == 't' ? &o.seconds
                         : c == 'r' ? &o.runs
                         : c == 'j' ? &o.jobs
                         : c == 'n' ? &o.first
                         : c == 'R' ? &o.rounds
                         : c == 'd' ? &o.deep_of
                         : c == 'E' ? &o.every
                         : c == 'w' ? &o.run
                         : c == 'l' ? &o.life
                         : c == 'e' ? &o.event
                                    : NULL;

        if (into != NULL && !number(optarg, into))
            return misuse("not a number", optarg);
        if (c == 'x' && !switch_off(optarg))
            return misuse("no such check", optarg);
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
    o.jobs = o.jobs < 1 ? 1 : o.jobs > JOBS_MAX ? JOBS_MAX : o.jobs;
    o.deep_of = o.deep_of < 1 || o.event != UINT64_MAX ? 1 : o.deep_of;
    o.every = o.every > 0 ? o.every : o.run != UINT64_MAX ? 1 : 4;
    if (o.states == 0 && o.seconds == 0 && o.runs == 0 && o.run == UINT64_MAX)
        o.states = 20000;
    return 0;
}

static int report(double took) {
    const char *killer = "";

    for (int c = 1; c < CHECKS; c++)
        killer = all->by_check[c] != 0 ? check_names[c] : killer;
    printf("replica states: %llu, unique: %llu, cuts: %llu, leads: %llu, updates: %llu, in headers: %llu, violations: "
           "%llu\n",
           (unsigned long long)all->states, (unsigned long long)all->unique, (unsigned long long)totals->cuts,
           (unsigned long long)totals->leads, (unsigned long long)totals->updates,
           (unsigned long long)totals->in_headers, (unsigned long long)all->violations);
    printf("{\"tool\": \"replicas\", \"crash_states\": %llu, \"unique\": %llu, \"violations\": %llu, \"cuts\": %llu, "
           "\"leads\": %llu, \"updates\": %llu, \"update_deaths\": %llu, \"judged_updates\": %llu, "
           "\"short_of_memory\": %llu, \"in_switches\": %llu, \"in_headers\": %llu, "
           "\"tables\": %llu, \"runs\": %llu, "
           "\"recycled\": %llu, \"relocated\": %llu, \"removed\": %llu, \"checkpoints\": %llu, \"detached\": %llu, "
           "\"seconds\": %.1f, "
           "\"killed_by\": \"%s\"}\n",
           (unsigned long long)all->states, (unsigned long long)all->unique, (unsigned long long)all->violations,
           (unsigned long long)totals->cuts, (unsigned long long)totals->leads, (unsigned long long)totals->updates,
           (unsigned long long)totals->update_deaths, (unsigned long long)totals->judged_updates,
           (unsigned long long)totals->short_ops, (unsigned long long)totals->in_switches,
           (unsigned long long)totals->in_headers, (unsigned long long)totals->deep, (unsigned long long)totals->runs,
           (unsigned long long)totals->recycled, (unsigned long long)totals->relocated,
           (unsigned long long)totals->removed, (unsigned long long)totals->checkpoints,
           (unsigned long long)totals->detached, took, killer);
    return all->violations != 0;
}

int main(int argc, char **argv) {
    double start = now();
    int wrong = parse(argc, argv);

    if (wrong != 0)
        return wrong;
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 28); /* keep freed memory for the next disk */
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 28);
    all = shared_new(o.states != 0 ? 4 * o.states : (uint64_t)8 << 20);
    totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == NULL || totals == MAP_FAILED) {
        perror("no memory for the table of disks");
        return 2;
    }
    run_all();
    return report(now() - start);
}
