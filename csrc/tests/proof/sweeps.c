/*
 * Single failures: every file system call and every allocation of a workload fails, one in each run. After each failure
 * the store must be poisoned or unchanged, and the next open must give all acknowledged operations.
 */
#include <getopt.h>

#include "tests/proof/sweeps_calls.h"
#include "tests/proof/sweeps_memory.h"

static struct {
    uint64_t seed;
    uint64_t operations;
    uint64_t failure;
    uint64_t nth;
    uint64_t allocation;
    uint64_t seconds;
    bool moves;
    bool busy;
    bool timed;
    bool forever;
    bool full;
} o = {.seed = 1, .failure = UINT64_MAX};

static void usage(void) {
    printf("usage: sweeps [--tier fast|full] [--seconds S] [--seed N] [--without CHECK,...] [--first-violation]\n"
           "       sweeps --seed N --operations N [--moves] [--timed] --failure F --nth N\n"
           "       sweeps --seed N --operations N [--moves] [--busy] [--timed] --allocation N [--forever]\n"
           "Failures:\n");
    for (size_t i = 0; i < FAILURES; i++)
        printf("  %zu  %s\n", i, failures[i].name);
    printf("Exit status: 0 nothing was violated, 1 something was, 2 misuse.\n");
}

static int misuse(const char *what, const char *value) {
    (void)fprintf(stderr, "sweeps: %s: %s (--help lists what there is)\n", what, value);
    return 2;
}

static int parse(int argc, char **argv) {
    static const struct option options[] = {
        {"seed", 1, NULL, 's'},  {"operations", 1, NULL, 'o'}, {"failure", 1, NULL, 'f'},
        {"nth", 1, NULL, 'n'},   {"allocation", 1, NULL, 'a'}, {"seconds", 1, NULL, 't'},
        {"moves", 0, NULL, 'm'}, {"forever", 0, NULL, 'e'},    {"busy", 0, NULL, 'b'},
        {"timed", 0, NULL, 'd'}, {"without", 1, NULL, 'x'},    {"first-violation", 0, NULL, '1'},
        {"tier", 1, NULL, 'T'},  {"help", 0, NULL, 'h'},       {NULL, 0, NULL, 0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint64_t *into = c == 's'   ? &o.seed
                         : c == 'o' ? &o.operations
                         : c == 'f' ? &o.failure
                         : c == 'n' ? &o.nth
                         : c == 'a' ? &o.allocation
                         : c == 't' ? &o.seconds
                                    : NULL;
        char *end = NULL;

        if (into != NULL)
            *into = strtoull(optarg, &end, 10);
        if (into != NULL && (*optarg < '0' || *optarg > '9' || *end != '\0'))
            return misuse("not a number", optarg);
        if (c == 'T' && strcmp(optarg, "fast") != 0 && strcmp(optarg, "full") != 0)
            return misuse("no such tier", optarg);
        o.full = o.full || (c == 'T' && strcmp(optarg, "full") == 0);
        if (c == 'x' && !switch_off(optarg))
            return misuse("no such check", optarg);
        first_violation = first_violation || c == '1';
        o.busy = o.busy || c == 'b';
        o.timed = o.timed || c == 'd';
        o.moves = o.moves || c == 'm';
        o.forever = o.forever || c == 'e';
        if (c == 'h') {
            usage();
            exit(0);
        }
        if (c == '?')
            return 2;
    }
    if (o.failure != UINT64_MAX && o.failure >= FAILURES)
        return misuse("no such failure", "there are fewer failures");
    return optind < argc ? misuse("unknown argument", argv[optind]) : 0;
}

static int one_again(void) {
    struct workload w = {o.seed, (size_t)o.operations, o.moves, o.busy, o.timed};
    struct outcome out;

    if (o.allocation != 0)
        return memory_failure_broke(&w, o.allocation, o.forever) != NOTHING_BROKEN;
    return call_failure_broke(&w, (size_t)o.failure, o.nth, &out) != NOTHING_BROKEN;
}

enum { SHORT = 40, LONG = 300 };

/* The fast tier runs one seed; the full tier runs further seeds until the time is over. */
static void sweep_all(void) {
    for (uint64_t seed = o.seed; seed == o.seed || (o.full && !time_is_over()); seed++) {
        const struct workload few = {.seed = seed, .operations = SHORT};
        const struct workload many = {.seed = seed, .operations = LONG, .moves = true};
        const struct workload busy = {.seed = seed + 5, .operations = SHORT, .busy = true};
        const struct workload timed = {.seed = seed + 6, .operations = SHORT, .timed = true};

        for (size_t f = 0; f < FAILURES; f++)
            sweep_calls(&few, f, 1);
        sweep_sites(&many);
        for (uint64_t i = 1; i < 4; i++)
            sweep_sites(&(struct workload){seed + i, 100 * (size_t)i, i % 2 == 0, i == 3, false});
        sweep_sites(&timed);
        if (TAKEN_OVER) {
            sweep_memory(&few, false, 1);
            sweep_memory(&few, true, 3);
            sweep_memory(&busy, false, 1);
            sweep_memory(&timed, false, 1);
            sweep_memory(&many, false, 1);
            sweep_memory(&many, true, 1);
        }
        for (size_t f = 0; o.full && f < FAILURES; f++)
            sweep_calls(&many, f, 7);
        for (size_t f = 0; o.full && f < FAILURES; f++)
            sweep_calls(&timed, f, 1);
    }
}

int main(int argc, char **argv) {
    static char buffer[4096];
    double start = now();
    int wrong = parse(argc, argv);

    if (wrong != 0)
        return wrong;
    (void)setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    if (o.allocation != 0 || o.failure != UINT64_MAX)
        return one_again();
    ends = o.seconds != 0 ? start + (double)o.seconds : 1e18;
    o.full = o.full && o.seconds != 0;
    sweep_all();
    sites_all_struck(&call_sites, "calls");
    sites_all_struck(&allocation_sites, "allocations");
    printf("{\"tool\": \"sweeps\", \"sweeps\": %llu, \"largest\": %llu, \"violations\": %llu, \"aftermaths\": %llu, "
           "\"call_sites\": %zu, \"call_sites_struck\": %zu, \"allocation_sites\": %zu, \"allocation_sites_struck\": "
           "%zu, \"seconds\": %.1f, \"killed_by\": \"%s\"}\n",
           (unsigned long long)counts.sweeps, (unsigned long long)counts.largest, (unsigned long long)counts.violations,
           (unsigned long long)aftermaths, call_sites.count, sites_struck(&call_sites), allocation_sites.count,
           sites_struck(&allocation_sites), now() - start, check_names[counts.killed_by]);
    return counts.violations != 0;
}
