/*
 * Shared by both sweeps: the workloads, the sites in the core that they reach, the counts, and the time.
 */
#ifndef LOGSTORE_SWEEPS_H
#define LOGSTORE_SWEEPS_H

#include <time.h>

#include "tests/proof/explorer_judge.h"

struct workload {
    uint64_t seed;
    size_t operations;
    bool moves;
    bool busy;
    bool timed;
};

static void run_workload(struct run *r, const struct workload *w) {
    r->busy = w->busy;
    r->timed = w->timed;
    r->checkpoints = !w->busy; /* with operations in transactions fewer sites would be reached */
    if (w->moves)
        run_with_moves(r, w->operations);
    else
        run_some(r, w->operations);
}

static struct {
    uint64_t sweeps; /* failures that took effect */
    uint64_t largest;
    uint64_t violations;
    enum check killed_by;
} counts;

static bool first_violation;

static double ends = 1e18;

static double now(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool time_is_over(void) { return now() > ends; }

/* Counts it; with --first-violation the sweeps end here. */
static void note(enum check c) {
    if (c == NOTHING_BROKEN)
        return;
    counts.violations++;
    counts.killed_by = c;
    if (first_violation)
        ends = 0;
}

static enum check broken_here(enum check c, const char *what) {
    if (is_off(c))
        return NOTHING_BROKEN;
    printf("%s: %s (%s)\n", check_names[c], what, ls_last_error()->text);
    return c;
}

/* ---- sites ---- */

enum { SITES_MAX = 1024 };

/* A site in the core, by the return address of its call. */
struct site {
    const void *address;
    int kind;
    bool now;    /* the present workload reached it */
    bool unhurt; /* it was reached at least once before any failure */
    bool struck; /* it met a failure at least once */
    uint64_t first, last;
    uint64_t first_of_kind, last_of_kind;
};

struct sites {
    size_t count;
    struct site all[SITES_MAX];
};

static void sites_begin(struct sites *s) {
    for (size_t i = 0; i < s->count; i++)
        s->all[i].now = false;
}

static void site_comes(struct sites *s, const void *address, int kind, uint64_t nth, uint64_t nth_of_kind, bool unhurt,
                       bool struck) {
    size_t i = 0;

    while (i < s->count && s->all[i].address != address)
        i++;
    if (i == s->count) {
        if (s->count == SITES_MAX)
            abort();
        s->all[s->count++] = (struct site){.address = address, .kind = kind};
    }
    if (!s->all[i].now) {
        s->all[i].first = nth;
        s->all[i].first_of_kind = nth_of_kind;
    }
    s->all[i].now = true;
    s->all[i].last = nth;
    s->all[i].last_of_kind = nth_of_kind;
    s->all[i].unhurt = s->all[i].unhurt || unhurt;
    s->all[i].struck = s->all[i].struck || struck;
}

/*
 * Every site that is reached without a failure must have met one, or the sweeps prove less than they claim. Sites that
 * are reached only after a failure need not, because only one call fails in a run.
 */
static void sites_all_struck(const struct sites *s, const char *what) {
    size_t unhurt = 0, struck = 0;

    for (size_t i = 0; i < s->count && !time_is_over(); i++) {
        if (s->all[i].unhurt && !s->all[i].struck && !is_off(SITES)) {
            printf("VIOLATED sites: a site of %s, before %p, met no failure\n", what, s->all[i].address);
            note(SITES);
        }
        unhurt += s->all[i].unhurt;
        struck += s->all[i].unhurt && s->all[i].struck;
    }
    printf("%s: %zu of %zu sites failed; %zu more were reached only after a failure\n", what, struck, unhurt,
           s->count - unhurt);
}

static size_t sites_struck(const struct sites *s) {
    size_t n = 0;

    for (size_t i = 0; i < s->count; i++)
        n += s->all[i].struck;
    return n;
}

#endif
