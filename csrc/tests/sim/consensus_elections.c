/*
 * How long a change of leader takes. Three voters of one group; each five seconds something happens to the one that serves. What is
 * measured is the time until another one serves in a later term.
 *
 *   kill       its machine ends; nobody is told. It comes back after 3.5 s
 *   reset      its process ends, and every peer's connection to it is reset
 *   freeze     it does nothing for three seconds
 *   transfer   it is asked to hand over
 *
 *   calm       a batch is wanted in a fifth of the milliseconds; frames take 1 to 2 ms, forces 1 to 3 ms, a few 20
 *   saturated  a batch is wanted in each; some frames take up to 200 ms, some forces up to 600; disks fill up for a while
 *
 * R3's bound of ten batches that are not durable counts in both, and so does its mark, unless it is left out.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/sim/consensus.h"

enum { EVERY_MS = 5000, DOWN_MS = 3500, FROZEN_MS = 3000, LONGEST_MS = 4500, LOADS = 2, WRITE_BUFFERS = 10 };

static const char *const fault_names[] = {"", "kill", "reset", "freeze", "transfer"};

/* The number of changes by their time in milliseconds. The last one counts those that took longer. */
struct times {
    _Atomic uint64_t took[LONGEST_MS + 1];
};

static struct times (*times)[LOADS]; /* by fault */

static struct {
    uint64_t at_ms; /* 0: none is open */
    uint64_t term;
} fault;

void elections_share(void) {
    times = mmap(NULL, ELECTIONS * sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (times == MAP_FAILED) {
        perror("consensus");
        exit(2);
    }
}

void elections_run(uint64_t seed, uint64_t ms) {
    for (int kind = ELECTION_KILL; kind < ELECTIONS; kind++)
        for (int load = 0; load < LOADS; load++) {
            sim.election = (enum election)kind;
            sim.calm = load == 0;
            run_seed(seed, ms);
        }
}

void elections_begin(void) {
    fault.at_ms = 0;
    sim.count = 3;
    sim.churn = sim.slow_vote = false;
    sim.write_buffers = WRITE_BUFFERS;
    sim.load = sim.calm ? 0.2 : 1;
    net_reset(0);
}

static struct member *serving(void) {
    struct member *found = NULL;
    for (uint64_t i = 1; i <= sim.count; i++) {
        struct member *m = &sim.members[i];
        if (m->up && m->frozen_until_ms <= sim.now_ms && m->serves &&
            (found == NULL || m->lead_term > found->lead_term))
            found = m;
    }
    return found;
}

static void strike(struct member *m) {
    fault.at_ms = sim.now_ms;
    fault.term = m->lead_term;
    switch (sim.election) {
    case ELECTION_KILL:
    case ELECTION_RESET:
        crash(m);
        event_push((struct event){.at_ms = sim.now_ms + DOWN_MS, .kind = EVENT_START, .member = m->id});
        break;
    case ELECTION_FREEZE:
        m->frozen_until_ms = sim.now_ms + FROZEN_MS;
        note(m, "freezes");
        break;
    default:
        if (engine_transfer(m->e, sim.now_ms, 0) != ENGINE_OK)
            fault.at_ms = 0;
        member_act(m, NULL);
        break;
    }
}

static void count(uint64_t took_ms) {
    struct times *t = &times[sim.election][!sim.calm];
    atomic_fetch_add(&t->took[took_ms < LONGEST_MS ? took_ms : LONGEST_MS], 1);
    fault.at_ms = 0;
}

/* A member's disk is full for a while. */
static void fill_a_disk(void) {
    struct member *m = &sim.members[1 + random_below(sim.count)];
    if (m->up && random_chance(0.0002))
        m->full_until_ms = sim.now_ms + 50 + random_below(250);
}

void elections_now(void) {
    struct member *leader = serving();
    if (!sim.calm)
        fill_a_disk();
    if (fault.at_ms != 0 && leader != NULL && leader->lead_term > fault.term)
        count(sim.now_ms - fault.at_ms);
    else if (fault.at_ms != 0 && sim.now_ms - fault.at_ms >= LONGEST_MS)
        count(LONGEST_MS);
    if (fault.at_ms == 0 && leader != NULL && sim.now_ms % EVERY_MS == 0)
        strike(leader);
}

static uint64_t percentile(const struct times *t, uint64_t of, uint64_t percent) {
    uint64_t seen = 0;
    uint64_t ms = 0;
    while (ms < LONGEST_MS && (seen += atomic_load(&t->took[ms])) * 100 < of * percent)
        ms++;
    return ms;
}

void elections_print(void) {
    for (int load = 0; load < LOADS; load++)
        for (int kind = ELECTION_KILL; kind < ELECTIONS; kind++) {
            const struct times *t = &times[kind][load];
            uint64_t all = 0;
            for (uint64_t ms = 0; ms <= LONGEST_MS; ms++)
                all += atomic_load(&t->took[ms]);
            (void)printf("elections: %-9s %-8s count %llu, p50 %.3f s, p99 %.3f s, none within %.1f s: %llu\n",
                         load == 0 ? "calm" : "saturated", fault_names[kind], (unsigned long long)all,
                         (double)percentile(t, all, 50) / 1000, (double)percentile(t, all, 99) / 1000,
                         (double)LONGEST_MS / 1000, (unsigned long long)atomic_load(&t->took[LONGEST_MS]));
        }
}
