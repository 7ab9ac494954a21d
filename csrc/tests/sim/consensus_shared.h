/*
 * What both modes of the simulator share: simulated time, links, random numbers, counts, and the program. The model
 * (consensus.h) has a log and a disk of its own; the other mode (consensus_real.h) has the core's, on simulated disks.
 */
#ifndef LOGSTORE_CONSENSUS_SHARED_H
#define LOGSTORE_CONSENSUS_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "consensus/engine.h"
#include "replica/identity.h"

enum { MEMBERS_MAX = 5, ELECTION_MS = 500, HEARTBEAT_MS = 100, TRANSFER_MS = 300, UPDATE_MS = 2000, GROUP = 77 };

enum { NO_BATCH = -1 };

struct member;

/* ---- what is counted, for the last line ---- */

enum count {
    COUNT_CRASHES,
    COUNT_ELECTIONS,
    COUNT_CUTS,
    COUNT_UPDATES,
    COUNT_FRAMES,
    COUNT_DURABLE,
    COUNT_CHANGES,
    COUNT_TRANSFERS,
    COUNT_RECYCLED,
    COUNT_REMOVED_ABOVE,
    COUNT_WIPED,
    COUNT_TORN,
    COUNT_OFFERED,
    COUNT_CAME_BACK,
    COUNT_STOPPED_DISKS,
    COUNT_CATALOG_CHANGES,
    COUNT_CHECKPOINTS,
    COUNT_FROM_CHECKPOINT,
    COUNT_HELLOS,
    COUNT_RESTORED,
    COUNT_STALE,
    COUNT_REFUSED,
    COUNT_UNPROTECTED,
    COUNT_TABLES, /* compared */
    COUNT_MARKS,
    COUNT_ERASED,
    COUNT_FAILED_FORCES,
    COUNT_PACED,
    COUNT_DETACHED,
    COUNTS,
};

extern const char *const count_names[COUNTS];

enum scenario {
    SCENARIO_DEFAULT,
    SCENARIO_CHURN,
    SCENARIO_MEMBERS,
    SCENARIO_TWO,
    SCENARIO_SLOW_VOTE,
    SCENARIO_AIMED,
    SCENARIO_IDENTITY,
    SCENARIO_SLOW_VOTER
};

enum election { ELECTION_NONE, ELECTION_KILL, ELECTION_RESET, ELECTION_FREEZE, ELECTION_TRANSFER, ELECTIONS };

/* ---- events ---- */

/* The first frame of a connection. */
struct hello {
    struct identity_told told;
    unsigned run; /* the sender's process */
};

struct letter {
    bool is_hello;
    struct hello hello;
    struct engine_frame frame;
    uint64_t from;
    int batches[ENGINE_ENTRIES_MAX];
};

enum event_kind {
    EVENT_LETTER,
    EVENT_FORCED,
    EVENT_VOTE_FORCED,
    EVENT_COPY,
    EVENT_CRASH,
    EVENT_START,
    EVENT_LINKS_BACK,
    EVENT_REFUSED,
    EVENT_LOST, /* a connection to `value` was reset */
};

struct event {
    uint64_t at_ms;
    uint64_t order;
    enum event_kind kind;
    uint64_t member;
    unsigned generation;
    uint64_t value;
    struct letter *letter;
    unsigned connection;
};

struct simulation {
    struct member *members; /* by id; what a member is depends on the mode */
    uint64_t count;         /* members in this run */
    uint64_t now_ms;
    uint64_t faults_end_ms;
    enum scenario scenario;
    int mutant; /* the index of its name; 0: none */
    bool churn;
    bool slow_vote;
    enum election election; /* the only fault of this run, which meets leaders; see consensus_elections.c */
    bool calm;              /* no frame or force takes unusually long */
    bool long_updates;      /* the log goes on while a copy is brought */
    bool without_mark;      /* a copy that lags forces one batch at a time */
    double load;            /* the chance that a batch is wanted in a millisecond */
    bool healing;
    bool unprotected; /* an older copy was accepted by a peer that had not counted */
    bool over;
    bool trace;
    double fault_rate;
    uint64_t write_buffers; /* batches forced by the leader and not durable */
    uint64_t counts[COUNTS];
};

extern struct simulation sim;

/* ---- consensus_net.c ---- */
void net_reset(uint64_t break_per_4000);
void net_heal(void);
void event_push(struct event e);
bool event_next(struct event *e); /* of this or an earlier millisecond */
void event_defer(struct event e, uint64_t at_ms);
bool letter_arrives(const struct event *e);
void net_send(uint64_t from, const struct engine_frame *frame);
void net_cut(uint64_t from, uint64_t to, bool cut);
bool net_is_cut(uint64_t from, uint64_t to);
void net_reset_connections(uint64_t member);

/* The mode's. Batches of a letter are numbers; NO_BATCH: the member has not got it. */
int letter_batch(uint64_t from, uint64_t index);
void hello_tell(uint64_t from, struct hello *h);
bool hello_hears(uint64_t to, uint64_t from, const struct hello *h);
void run_seed(uint64_t seed, uint64_t ms);
extern const char *const run_mode;      /* in the last line, with its colon */
extern const char *const run_mutants[]; /* planted faults; the first is NONE */
extern const size_t run_mutant_count;
extern const size_t run_scenario_count; /* the first ones */

/* ---- consensus_elections.c, which only the model has ---- */
void elections_share(void) __attribute__((weak)); /* before the processes begin */
void elections_run(uint64_t seed, uint64_t ms) __attribute__((weak));
void elections_print(void) __attribute__((weak));

/* ---- consensus_shared.c ---- */

/* The run's random numbers, all from its seed. */
void random_seed(uint64_t seed);
uint64_t random_mix(uint64_t z); /* a hash */
uint64_t random_below(uint64_t n);
bool random_chance(double p);
double random_unit(void);
/* Ends the program if memory runs out. */
void *grow(void *array, size_t *capacity, size_t count, size_t size);
_Noreturn void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- consensus.c ---- */
_Noreturn void run_failed(const char *why);

#endif
