/*
 * The simulator of consensus: five members, each the real engine over a model of its log and disk, with links between them, in
 * simulated time. A run is determined by its seed: 30 s of faults, then 15 s without faults, in which the group must make progress.
 *
 *   consensus_model.c    batches, logs, tables          consensus_io.c      writes and forces of a member
 *   consensus_disk.c     files and their recovery       consensus_update.c  copies, the kept window, recycling
 *   consensus_shared.h   what another mode shares: random numbers (consensus_shared.c), and
 *   consensus_net.c      events and links               consensus_lead.c    what a leader writes
 *   consensus_member.c   an engine's events and answers consensus_faults.c  crashes, cuts, freezes, membership
 *   consensus_identity.c hellos, counts, older copies
 *   consensus_catalog.c catalog changes in SQL, checkpoints
 *   consensus_judge.c    what must always hold          consensus_run.c     one run; consensus.c the program
 *   consensus_removal.c  a removed member's copy: detached, deleted
 *   consensus_elections.c how long a change of leader takes
 *
 * A violation ends the process that runs the seed, and so does an assertion of libraft.
 */
#ifndef LOGSTORE_CONSENSUS_SIMULATOR_H
#define LOGSTORE_CONSENSUS_SIMULATOR_H

#include "tests/sim/consensus_disk.h"
#include "tests/sim/consensus_shared.h"

enum { OPS_MAX = 32, PACED_FROM = 1000, NEAR_BATCHES = 20 };

/* ---- planted faults of the model ---- */

enum mutant {
    MUTANT_NONE,
    MUTANT_SEND_EARLY,       /* frames leave before VOTE is forced */
    MUTANT_ACK_EARLY,        /* batches count as forced when they are taken */
    MUTANT_FORGET_VOTE,      /* VOTE has no voted_for */
    MUTANT_TERM_LOST,        /* the term at a start is that of the newest batch */
    MUTANT_CUT_BEFORE_HDR,   /* a follower forces a term's first batch before its header */
    MUTANT_APPLY_UNDUR,      /* what is forced is applied */
    MUTANT_APPLY_RESTART,    /* at a start everything on the disk counts as durable */
    MUTANT_OFFER,            /* messages that are not durable are offered */
    MUTANT_TWO,              /* a follower forces several batches at once */
    MUTANT_LSN_TWICE,        /* a term begins at its leader's end, without a segment of its own */
    MUTANT_STALE_CONF,       /* a start has an older configuration */
    MUTANT_OLDCOPY,          /* an older copy of the directory comes back */
    MUTANT_LYING,            /* the disk loses what it had forced */
    MUTANT_KEEP_TABLE,       /* a leader that ceases keeps its table */
    MUTANT_WIPE_VOTE,        /* VOTE goes with a removed replica */
    MUTANT_PIECEMEAL,        /* a copy is switched in file by file */
    MUTANT_CUT_ZERO,         /* a cut overwrites the end of what it keeps */
    MUTANT_RECYC_UNDUR,      /* a base counts as soon as a batch names it */
    MUTANT_SELF_REMOVE,      /* a leader removes itself */
    MUTANT_TELL_FORCED,      /* the leader confirms what it has forced */
    MUTANT_COUNT_KEPT,       /* a cut of the peer's own log leaves its counts */
    MUTANT_NO_HELLO,         /* whoever comes is accepted */
    MUTANT_CATALOG_LOST,     /* files and copies go by the base alone, not by applied_lsn */
    MUTANT_KEEP_ABOVE,       /* files above a batch stay */
    MUTANT_NO_REWRITE,       /* an open does not rewrite the end of the log */
    MUTANT_NO_PACING,        /* a leader does not wait for a voter that lags */
    MUTANT_NO_ROUNDS,        /* a leader does not wait for a voter that needs update after update */
    MUTANT_DELETE_FIRST,     /* a removed copy's files go before VOTE says so */
    MUTANT_DETACH_LOG_FIRST, /* a log is detached before VOTE is */
    MUTANT_MARK_LATE,        /* a mark is forced together with what it covers */
    MUTANT_MARK_ISLANDS,     /* a mark is removed while batches that it covers above the log's end stay */
    MUTANTS,
};

static inline bool planted(enum mutant m) { return sim.mutant == (int)m; }

/* ---- a member ---- */

/* Of another member, in memory. */
struct heard {
    unsigned run;
    uint64_t rebuild;
};

enum op_kind { OP_HEADER, OP_BATCH, OP_REMOVE, OP_MARK };

/* The writes of one force. A crash keeps any subset of them. */
struct op {
    enum op_kind kind;
    int batch;
    uint64_t first;
    uint64_t term;
    uint64_t prev_end;
};

struct vote_write {
    struct vote vote;
    uint64_t number; /* for the engine; 0: not its own */
    bool switches;   /* to the copy */
};

/* The catalog in SQL, each change a number. */
struct sql {
    uint64_t index; /* of the last batch that it has */
    uint64_t lsn;   /* that batch's end: applied_lsn */
    uint64_t sum;
};

struct checkpoint {
    bool exists;
    int batch;
    struct table table;
};

struct copy {
    bool wanted;
    bool complete;
    unsigned number; /* of the attempt */
    unsigned tries;
    uint64_t from;
    unsigned from_generation;
    uint64_t index;
    uint64_t index_term;
    struct sql sql;
    struct tail durable; /* the index that was durable here before the switch */
    struct sequence log;
    struct sequence before;
};

/* What a leader knows of another voter, to wait for it. */
struct pace {
    uint64_t answered_ms; /* when it last acknowledged */
    uint64_t near_ms;     /* when it was last within a few batches of the leader */
    uint64_t offered;     /* the end of the last update since then; 0: there was none */
    uint64_t round;       /* how many batches were made between the last two */
    bool is_back;         /* it was silent, and has lacked more than the leader waits for since then */
    bool waits;           /* until it is near: a round was no shorter than the one before */
};

struct member {
    uint64_t id;
    bool up;
    unsigned generation; /* of the process */
    engine *e;

    struct sequence log;
    struct sequence before; /* without an index */
    uint64_t forced;        /* index up to which the log is on the disk */
    uint64_t told;          /* index up to which the engine knows that */
    uint64_t durable;       /* as the engine said */
    uint64_t kept;          /* the engine keeps entries from here on */
    uint64_t snapshot;
    uint64_t window; /* entries kept behind the snapshot */
    bool snapshot_wanted;
    struct table state; /* what is durable, applied */
    struct table table; /* the leader's: all batches */
    uint64_t busy_until_ms;
    uint64_t frozen_until_ms;

    uint64_t lead_term; /* 0: it follows */
    uint64_t first_index;
    bool first_given;
    bool serves;
    uint64_t position; /* LSN of the next batch */
    uint32_t backlog;  /* messages that wait for a batch */

    struct disk disk;
    struct vote vote;
    uint64_t full_until_ms;     /* the disk takes nothing */
    uint64_t hangs_until_ms;    /* nothing is forced before */
    uint64_t unforced_since_ms; /* the leader's batch; 0: all is forced */
    struct disk old_disk;       /* for MUTANT_OLDCOPY */
    struct vote old_vote;
    bool has_old;

    int *pending; /* batches to write */
    size_t pending_count;
    size_t pending_capacity;
    struct op ops[OPS_MAX]; /* under way */
    size_t op_count;
    struct vote_write *votes;
    size_t vote_count;
    size_t vote_capacity;
    size_t votes_under_way;
    struct vote vote_told; /* with all writes that wait */
    uint64_t floor_waits;  /* VOTE writes until the cut below the floor may be overwritten */

    struct identity_count counts[MEMBERS_MAX + 1];
    struct heard heard[MEMBERS_MAX + 1];
    struct tail old_tail; /* while the VOTE of a cut or a switch is not forced */
    uint64_t start_term;  /* VOTE's term as this process found it */
    bool is_older;        /* an older copy is in its place */

    struct sql sql;
    struct checkpoint checkpoint;
    struct copy copy;
    uint64_t hold_until_ms; /* nothing is recycled */

    struct pace pace[MEMBERS_MAX + 1]; /* the leader's */
    uint64_t detached_end;             /* where the batch ends with which its log was detached; 0: it was not */
};

/* ---- consensus_member.c ---- */
void member_start(struct member *m);
void member_stop(struct member *m); /* its process ends; the disk keeps what it has */
void member_act(struct member *m, const struct letter *received);
void member_receive(struct member *m, const struct letter *letter);
void member_time(struct member *m);
void member_apply(struct member *m);
uint64_t log_end(const struct member *m, uint64_t index); /* LSN at which the batch ends */

/* ---- consensus_io.c ---- */
uint64_t force_ms(void);
void io_write(struct member *m, int id);
void io_cut(struct member *m, uint64_t index);
void io_begin(struct member *m);
void io_forced(struct member *m);
void io_retry(struct member *m); /* a full disk has room again */
void io_vote(struct member *m, struct vote_write w);
void io_vote_forced(struct member *m);
void io_floor(struct member *m);
void io_crash(struct member *m);
bool io_is_idle(const struct member *m);

/* ---- consensus_update.c ---- */
void update_begin(struct member *m, const struct engine_answer *a);
void update_arrives(struct member *m, uint64_t number);
void update_switch(struct member *m);   /* VOTE names the copy */
void update_switched(struct member *m); /* the engine hears of it */
void update_give_up(struct member *m);
uint64_t said_base(const struct member *m, uint64_t index, bool *said);
void keep_snapshot(struct member *m);
void recycle(struct member *m);

/* ---- consensus_lead.c ---- */
void lead_begin(struct member *m, const struct engine_answer *a);
void lead_end(struct member *m);
void lead_work(struct member *m);
bool lead_change(struct member *m);
void lead_transfer(struct member *m);
bool lead_waits(struct member *m); /* for a voter that lags */
void lead_hears(struct member *m, uint64_t from);
void lead_offers(struct member *m, const struct engine_frame *update);

/* ---- consensus_faults.c ---- */
void faults_begin(void);
void faults_now(void);
void faults_after_vote(struct member *m);
void faults_after_cut(struct member *m);
void faults_after_lead(struct member *m);
void faults_after_switch(struct member *m);
void crash(struct member *m);

/* ---- consensus_catalog.c ---- */
void catalog_apply(struct member *m);
void catalog_import(struct member *m, const struct sql *from);
uint64_t catalog_keeps(const struct member *m, uint64_t base);
void checkpoint_take(struct member *m);
bool checkpoint_counts(const struct member *m);
void checkpoint_drop(struct member *m);

/* ---- consensus_identity.c ---- */
void identity_reset(void);
struct tail identity_tail(const struct member *m);
void identity_keep_tail(struct member *m); /* before a cut or a switch */
void identity_after_cut(struct member *m);
void identity_after_update(struct member *m, struct tail durable);
void identity_count_frame(struct member *m, const struct letter *letter);
void identity_keep_copy(struct member *m);
void identity_restore(struct member *m);
void identity_compare(struct member *m, const struct recovered *r);
void identity_reinstate(struct member *m);

/* ---- consensus_judge.c ---- */
void judge_reset(void);
void judge_first(int id);
void judge_made(int id);
void judge_durable(const struct member *m, uint64_t index, int id);
void judge_durable_up_to(const struct member *m, uint64_t index);
void judge_state(const struct member *m);
void judge_catalog(const struct member *m);
void judge_cut(const struct member *m, uint64_t index);
void judge_leads(const struct member *m, uint64_t term);
void judge_frame(const struct member *m, const struct engine_frame *f, uint64_t term);
bool judge_start(const struct member *m, const struct recovered *r);
void judge_offer(const struct member *m, const struct item *item);
void judge_disk_of_leader(const struct member *m);
void judge_slow_voter(const struct member *leader);
void judge_deep(void);
void judge_end(void);
uint64_t judge_largest(void);          /* index known to be durable */
const struct table *judge_table(void); /* of all that is durable */

/* ---- consensus_removal.c ---- */
void removal_begin(struct member *m);
void removal_finish(struct member *m); /* of a copy whose detach has begun */

/* ---- consensus_elections.c ---- */
void elections_begin(void);
void elections_now(void);

/* ---- consensus_run.c ---- */
void note(const struct member *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
