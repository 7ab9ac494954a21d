/*
 * The simulator's second mode: the real engine over the real log. Each member has a host (VOTE and a copy of the store) on a
 * simulated disk of its own; the leader's store is worked with by a client. Time and links are those of the model's mode.
 *
 *   consensus_real.c          one run                     consensus_real_lead.c    a leader's batches, members, transfers
 *   consensus_real_member.c   a process: start and end    consensus_real_client.c  what the client does and was told
 *   consensus_real_answer.c   an engine's answers         consensus_real_update.c  copies by segments, the kept window
 *   consensus_real_disk.c     forces, and power cuts      consensus_real_faults.c  crashes, cuts, membership
 *   consensus_real_batches.c  what leaders handed out     consensus_real_tables.c  the tables of copies
 *   consensus_real_judge.c    starts, frames, and the end
 *
 * A call of the core writes and forces at once, and the engine hears of it after a simulated time. A power cut in between cuts the disk
 * at any call since what was told last: so forces take time for everybody but the member's own memory.
 *
 * A call of the client may wait until a majority has a batch. The wait runs the simulation (sem_wait, in consensus_real.c), and so other
 * events happen inside of the call, as they do in a program with threads. A process that ends meanwhile is freed when the call returns.
 */
#ifndef LOGSTORE_CONSENSUS_REAL_H
#define LOGSTORE_CONSENSUS_REAL_H

#include "replica/host.h"
#include "tests/sim/consensus_real_batches.h"
#include "tests/sim/consensus_shared.h"
#include "tests/sim/vfs_sim.h"

enum { QUEUES = 3, TXS = 2, UPDATE_SEGMENTS = 512 };

typedef unsigned long long ull;

/* Its memory and its disk. */
struct process {
    uint64_t serial; /* of all processes of a run */
    vfs_sim *disk;
    ls_host *host;
    ls_store *store; /* that leads; NULL: the copy follows, or there is none */
    ls_tx *txs[TXS]; /* of the client */
    unsigned users;  /* calls that have not returned, and updates that read from here */
    bool ended;
};

enum told { TOLD_FORCED, TOLD_VOTE, TOLD_SWITCHED };

/* A force that is done on the disk, and that the engine will hear of. */
struct telling {
    enum told what;
    uint64_t index; /* or the number of VOTE */
    uint64_t term;
    uint64_t voted_for;
    uint64_t at_ms;
    size_t journal; /* the calls up to here were needed for it */
};

/* An update of this member by segments. */
struct updating {
    bool wanted;
    bool described;
    uint64_t from;
    uint64_t index; /* that the engine asked for */
    struct process *sender;
    ls_update_source *source;
    ls_update *at;
    ls_update_manifest manifest;
    ls_update_segment segments[UPDATE_SEGMENTS];
    uint64_t next_ms;
    unsigned tries;
};

struct member {
    uint64_t id;
    bool up;
    bool has_copy;
    unsigned generation; /* of the process */
    struct process *p;   /* NULL: it is down */
    vfs_sim *disk;       /* while it is down */
    engine *e;

    int *pending; /* batches to take */
    size_t pending_count;
    size_t pending_capacity;
    struct telling *tellings;
    size_t telling_count;
    size_t telling_capacity;
    size_t relied; /* in the disk's journal: others may rely on what it has up to here */
    bool switching;

    uint64_t told_index; /* that it said to be forced */
    uint64_t told_term;
    uint64_t told_vote_term;
    uint64_t told_voted_for;

    uint64_t kept;
    uint64_t snapshot;
    uint64_t window;
    bool snapshot_wanted;
    uint64_t frozen_until_ms;
    uint64_t hangs_until_ms;

    uint64_t lead_term; /* 0: it follows */
    uint64_t first_index;
    uint64_t lead_at_ms;
    int last_made; /* the newest batch that its store has handed out and the engine has taken */
    bool serve_wanted;
    bool serves;
    struct updating update;
};

#define AT_MEMBER(m) ((ull)(m)->id)

/* ---- consensus_real.c ---- */
void step(void); /* a millisecond */
void note(const struct member *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern ls_options options;

/* ---- consensus_real_member.c ---- */
void member_first(struct member *m, vfs_sim *disk); /* its disk at the beginning */
void member_start(struct member *m);
void member_ends(struct member *m, vfs_sim *left); /* its process, which leaves this disk */
void process_use(struct process *p);
void process_let_go(struct process *p);            /* the last one frees it if it has ended */
int id_at(const struct member *m, uint64_t index); /* in the member's log; NO_BATCH: not kept */
int id_last(const struct member *m);
struct replica *copy_of(const struct member *m); /* NULL: it leads, or has no copy */

/* ---- consensus_real_answer.c ---- */
void member_act(struct member *m, const struct letter *received);
void member_receive(struct member *m, const struct letter *letter);

/* ---- consensus_real_disk.c ---- */
void disk_tell_later(struct member *m, struct telling t);
void disk_tell_due(struct member *m);
void disk_take(struct member *m); /* pending batches, if nothing is being forced */
void disk_floor(struct member *m);
bool disk_is_forcing(const struct member *m);
vfs_sim *disk_power_cut(struct member *m);

/* ---- consensus_real_lead.c ---- */
bool lead_end(struct member *m, uint64_t last); /* false: the process has ended */
void lead_work(struct member *m);
bool lead_change(struct member *m);
void lead_transfer(struct member *m);

/* ---- consensus_real_client.c ---- */
void client_reset(void);
void client_meets(struct member *m); /* a leader that serves */
void client_works(struct member *m);
void client_hears(struct member *m); /* something is durable */

/* ---- consensus_real_update.c ---- */
void update_wanted(struct member *m, const struct engine_answer *a);
void update_work(struct member *m);
void update_ends(struct member *m);
void updates_from_end(const struct process *p);
void keep_snapshot(struct member *m);

/* ---- consensus_real_faults.c ---- */
void faults_begin(void);
void faults_now(void);
void faults_soon(struct member *m, double p, uint64_t within_ms);
void faults_after_lead(struct member *m);
void crash(struct member *m);
void kill_and_restart(struct member *m);

/* ---- consensus_real_tables.c ---- */
void tables_reset(void);
void tables_compare(
    struct member *m); /* whose process ends: its table, with that of a copy which has everything durable */
void tables_first(vfs_sim *disk);
void tables_compare_at_end(struct member *m); /* it is down then */

/* ---- consensus_real_judge.c ---- */
void judge_reset(void);
void judge_start(const struct member *m);
uint64_t judge_leader_of(uint64_t term); /* 0: nobody leads it */
void judge_leads(const struct member *m, uint64_t term);
void judge_frame(const struct member *m, const struct engine_frame *f, uint64_t term);
void judge_cut(const struct member *m, uint64_t index);
void judge_durable(const struct member *m, uint64_t index);
void judge_end(void);
_Noreturn void core_failed(const struct member *m, const char *what, int rc);

#endif
