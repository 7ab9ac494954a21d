/*
 * Processor time and memory of the consensus engine alone: no store, no socket, no Python. The members of a group are engines in this
 * process. A frame is copied from one to the other, and what is to be forced is told to be forced at once. The times include what
 * this program does for that.
 *
 *   entries  the leader is given 1, 10 or 100 batches of one entry in a turn of 1 ms; a force covers all that came in the turn, and
 *            the turn ends when every member knows that they are durable
 *   idle     1,000 groups of three in which nothing happens but heartbeats, for 60 simulated seconds. Each turn of 1 ms is one call
 *            of engine_time_all for the leaders and one for the followers; their beats are spread evenly
 */
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "consensus/engine.h"

enum {
    REPETITIONS = 5,
    MEMBERS_MOST = 5,
    ENTRIES = 200000,
    GROUPS = 1000,
    IDLE_MEMBERS = 3,
    IDLE_MS = 60000,
    ELECTION_MS = 500,
    HEARTBEAT_MS = 100,
    FRAMES_BUSY = 1024, /* that wait for one member */
    FRAMES_IDLE = 16,
};

struct group;

struct member {
    engine *e;
    struct group *group;
    struct engine_frame *received;
    size_t received_count;
    uint64_t last;
    uint64_t forced;
};

struct group {
    uint64_t id;
    size_t size;
    size_t room; /* frames for one member */
    uint64_t durable;
    struct member members[MEMBERS_MOST]; /* the first leads */
};

static uint64_t now_ms;
static uint8_t first_members[ENGINE_CONFIGURATION_MAX];
static uint32_t first_members_bytes;

static void must(bool holds, const char *what) {
    if (!holds) {
        (void)fprintf(stderr, "engine: %s\n", what);
        exit(1);
    }
}

static double cpu_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what a program does with an answer ---- */

static void act(struct member *m);

static void submit(struct member *m, uint32_t kind) {
    struct engine_entry entry = {.term = engine_answer(m->e)->term, .kind = kind};
    m->last++;
    must(engine_submit(m->e, now_ms, &entry) == ENGINE_OK, "the leader takes no batch");
    act(m);
}

static void post(struct member *from, const struct engine_frame *f) {
    struct group *g = from->group;
    struct member *to = &g->members[f->peer - 1];
    must(to->received_count < g->room, "too many frames wait");
    struct engine_frame *copy = &to->received[to->received_count++];
    *copy = *f;
    copy->peer = (uint64_t)(from - g->members) + 1;
}

static void act(struct member *m) {
    const struct engine_answer *a = engine_answer(m->e);
    const uint32_t expected = ENGINE_TAKE | ENGINE_VOTE | ENGINE_LEAD | ENGINE_SERVE | ENGINE_DURABLE;
    must((a->flags & ~expected) == 0, "an answer says what only a fault leads to");
    for (uint32_t i = 0; i < a->frame_count; i++) {
        post(m, &a->frames[i]);
    }
    if ((a->flags & ENGINE_TAKE) != 0) {
        m->last = a->take_index + a->take_count - 1;
    }
    bool leads = (a->flags & ENGINE_LEAD) != 0;
    if ((a->flags & ENGINE_VOTE) != 0) {
        must(engine_vote_forced(m->e, now_ms, a->vote.number) == ENGINE_OK, "VOTE is forced");
        act(m);
    }
    if (leads) {
        submit(m, ENGINE_FIRST);
    }
}

static void force(struct member *m) {
    if (m->last > m->forced) {
        m->forced = m->last;
        must(engine_forced(m->e, now_ms, m->last, engine_answer(m->e)->term) == ENGINE_OK, "entries are forced");
        act(m);
    }
}

/* Entry 1 is the configuration, which every member has; entry 2 is the first batch of the only term that is led. */
static void receive(struct member *m) {
    static struct engine_entry entries[ENGINE_ENTRIES_MAX];
    for (size_t i = 0; i < m->received_count; i++) {
        struct engine_frame *f = &m->received[i];
        for (uint32_t k = 0; k < f->count; k++) {
            uint32_t kind = f->index + 1 + k == 2 ? ENGINE_FIRST : ENGINE_BATCH;
            entries[k] = (struct engine_entry){.term = f->term, .kind = kind};
        }
        f->entries = entries;
        must(engine_receive(m->e, now_ms, f) == ENGINE_OK, "a frame is refused");
        act(m);
    }
    m->received_count = 0;
    force(m);
}

static void settle(struct group *g) {
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < g->size; i++) {
            moved = moved || g->members[i].received_count > 0 || g->members[i].last > g->members[i].forced;
            receive(&g->members[i]);
        }
    }
}

/* ---- groups ---- */

/* All that this program needs itself. */
static void make(struct group *g, uint64_t id, size_t size, size_t room) {
    *g = (struct group){.id = id, .size = size, .room = room};
    for (size_t i = 0; i < size; i++) {
        g->members[i].group = g;
        g->members[i].received = calloc(room, sizeof *g->members[i].received);
        must(g->members[i].received != NULL, "no memory");
    }
}

static void open_engines(struct group *g) {
    static const char *const addresses[] = {"one:1", "two:2", "three:3", "four:4", "five:5"};
    static const uint64_t ids[] = {1, 2, 3, 4, 5};
    must(engine_bootstrap(ids, addresses, g->size, first_members, &first_members_bytes) == ENGINE_OK, "bootstrap");
    struct engine_entry first = {1, ENGINE_MEMBERS, first_members_bytes, first_members};
    struct engine_log log = {.vote_term = 1, .header_term = 1, .first_kept = 1, .count = 1, .entries = &first};
    for (size_t i = 0; i < g->size; i++) {
        struct engine_options options = {.group = g->id,
                                         .member = i + 1,
                                         .election_ms = ELECTION_MS,
                                         .heartbeat_ms = HEARTBEAT_MS,
                                         .transfer_ms = 300,
                                         .update_ms = 10000,
                                         .in_flight_max = 10,
                                         .behind_max = 1000,
                                         .seed = (uint32_t)(g->id * MEMBERS_MOST + i)};
        struct member *m = &g->members[i];
        must(engine_open(&options, &log, now_ms, &m->e) == ENGINE_OK, "open");
        m->last = m->forced = 1;
        act(m);
    }
}

/* The first member's timeout has come, whichever was drawn. */
static void elect(struct group *g) {
    for (int i = 0; i < 2; i++) {
        must(engine_time(g->members[0].e, now_ms) == ENGINE_OK, "time");
        act(&g->members[0]);
        settle(g);
    }
    must(engine_may_submit(g->members[0].e), "the first member does not lead");
}

static void unmake(struct group *g) {
    for (size_t i = 0; i < g->size; i++) {
        engine_close(g->members[i].e);
        free(g->members[i].received);
    }
}

/* ---- entries ---- */

static double entries_us(size_t members, int in_a_turn) {
    struct group g;
    struct member *leader = &g.members[0];
    make(&g, 1, members, FRAMES_BUSY);
    open_engines(&g);
    now_ms += 2 * ELECTION_MS;
    elect(&g);
    double begun = cpu_s();
    for (int n = 0; n < ENTRIES; n += in_a_turn) {
        now_ms++;
        for (int i = 0; i < in_a_turn; i++) {
            submit(leader, ENGINE_BATCH);
        }
        force(leader);
        settle(&g);
        if (engine_answer(leader->e)->due_ms <= now_ms) {
            (void)engine_time(leader->e, now_ms);
            act(leader);
            settle(&g);
        }
    }
    double us = 1e6 * (cpu_s() - begun) / ENTRIES / (double)members;
    for (size_t i = 0; i < members; i++) {
        must(engine_answer(g.members[i].e)->durable_index == 2 + ENTRIES, "not all entries are durable everywhere");
    }
    unmake(&g);
    return us;
}

/* ---- idle engines ---- */

static struct group groups[GROUPS];
static engine *of_place[IDLE_MEMBERS][GROUPS];

/* Each engine whose time has come; the answers are in the order of the groups. */
static size_t give_time(size_t place) {
    static engine *answered[GROUPS];
    size_t count = engine_time_all(of_place[place], GROUPS, now_ms, answered);
    for (size_t i = 0, g = 0; i < count; i++, g++) {
        while (of_place[place][g] != answered[i]) {
            g++;
        }
        act(&groups[g].members[place]);
    }
    return count;
}

static void receive_all(size_t place) {
    for (size_t g = 0; g < GROUPS; g++) {
        if (groups[g].members[place].received_count > 0) {
            receive(&groups[g].members[place]);
        }
    }
}

static double allocated_bytes(void) {
    struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd);
}

struct idle {
    double leaders_percent, followers_percent, engine_kib;
};

static struct idle measure_idle(void) {
    struct idle r = {0};
    for (size_t g = 0; g < GROUPS; g++) {
        make(&groups[g], g + 1, IDLE_MEMBERS, FRAMES_IDLE);
    }
    double before = allocated_bytes();
    for (size_t g = 0; g < GROUPS; g++) {
        open_engines(&groups[g]);
        for (size_t i = 0; i < IDLE_MEMBERS; i++) {
            of_place[i][g] = groups[g].members[i].e;
        }
    }
    now_ms += 2 * ELECTION_MS;
    for (size_t ms = 0; ms < HEARTBEAT_MS; ms++, now_ms++) {
        for (size_t g = ms; g < GROUPS; g += HEARTBEAT_MS) {
            elect(&groups[g]);
        }
    }
    double leaders = 0, followers = 0;
    size_t beats = 0;
    for (int ms = 0; ms < IDLE_MS; ms++, now_ms++) {
        double at = cpu_s();
        beats += give_time(0);
        double beaten = cpu_s();
        receive_all(1);
        must(give_time(1) == 0, "a follower of a living leader times out");
        double followed = cpu_s();
        receive_all(2);
        must(give_time(2) == 0, "a follower of a living leader times out");
        double answered = cpu_s();
        receive_all(0);
        leaders += beaten - at + cpu_s() - answered;
        followers += followed - beaten;
    }
    must(beats == (size_t)GROUPS * (IDLE_MS / HEARTBEAT_MS), "a leader has missed a beat");
    r.leaders_percent = 100 * leaders / (1e-3 * IDLE_MS);
    r.followers_percent = 100 * followers / (1e-3 * IDLE_MS);
    r.engine_kib = (allocated_bytes() - before) / (GROUPS * IDLE_MEMBERS) / 1024;
    for (size_t g = 0; g < GROUPS; g++) {
        unmake(&groups[g]);
    }
    return r;
}

/* ---- figures ---- */

static int in_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *what, const char *unit, double values[REPETITIONS]) {
    qsort(values, REPETITIONS, sizeof *values, in_order);
    printf("%s: %.2f %s (%.2f to %.2f)\n", what, values[REPETITIONS / 2], unit, values[0], values[REPETITIONS - 1]);
    (void)fflush(stdout);
}

static void show_machine(void) {
    struct utsname system = {0};
    char line[256] = "";
    FILE *cpus = fopen("/proc/cpuinfo", "r");
    while (cpus != NULL && strncmp(line, "model name", 10) != 0 && fgets(line, sizeof line, cpus) != NULL) {
    }
    if (cpus != NULL) {
        (void)fclose(cpus);
    }
    double load = 0;
    const char *name = strchr(line, ':');
    (void)uname(&system);
    (void)getloadavg(&load, 1);
    printf("%ld processors (%.*s), %s %s %s, load %.1f\n", sysconf(_SC_NPROCESSORS_ONLN),
           name == NULL ? 0 : (int)strcspn(name + 2, "\n"), name == NULL ? "" : name + 2, system.sysname,
           system.release, system.machine, load);
}

int main(void) {
    static const size_t sizes[] = {3, 5};
    static const int turns[] = {1, 10, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t t = 0; t < sizeof turns / sizeof *turns; t++) {
            double us[REPETITIONS];
            char what[64];
            for (int i = 0; i < REPETITIONS; i++) {
                us[i] = entries_us(sizes[s], turns[t]);
            }
            (void)snprintf(what, sizeof what, "%zu members, entries a turn %d", sizes[s], turns[t]);
            show(what, "µs an entry and member", us);
        }
    }
    double leaders[REPETITIONS], followers[REPETITIONS], kib[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) {
        struct idle r = measure_idle();
        leaders[i] = r.leaders_percent;
        followers[i] = r.followers_percent;
        kib[i] = r.engine_kib;
    }
    show("1,000 idle followers", "% of a processor", followers);
    show("1,000 idle leaders of three members", "% of a processor", leaders);
    show("an idle engine", "KiB", kib);
    show_machine();
    return 0;
}
