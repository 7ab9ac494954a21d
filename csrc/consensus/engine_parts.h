/*
 * The parts of the engine, for csrc/consensus alone. No part but engine.c knows libraft:
 *
 *   engine.c      libraft behind the plain calls below: one event of it, what it knows; start and close
 *   turn.c        one event of the program: time, VOTE, the disk; what its answer says
 *   check.c       what is possible in a frame and in the log at a start
 *   receive.c     guards of the frames received
 *   send.c        guards of the frames sent, and which of them wait
 *   membership.c  the leader's batches, and changes of members
 *   handover.c    transfers, and a leader whose disk hangs
 *   copies.c      snapshots and updates
 *   members.c     the bytes of a configuration
 *   reserve.c     memory for libraft
 *
 * An event of the program begins a turn and ends it. In between, the calls of libraft change the engine and collect its answer.
 */
#ifndef LOGSTORE_CONSENSUS_ENGINE_PARTS_H
#define LOGSTORE_CONSENSUS_ENGINE_PARTS_H

#include "consensus/engine.h"
#include "consensus/members.h"

#ifdef NDEBUG
#error "the assertions of libraft and of the engine stay on"
#endif

#define INDEX_MAX (UINT64_C(1) << 62)

enum copy_state { COPY_NONE, COPY_WANTED, COPY_SWITCHING };

/* What a leader notes about another member, in addition to libraft's own counts. */
struct peer {
    uint64_t id;
    uint64_t told;      /* it knows that everything up to here is durable, unless a frame was lost */
    uint64_t heard_ms;  /* 0: not in this term */
    uint64_t sent_turn; /* the last turn in which a frame told the member what is durable */
    bool held;          /* `frame` waits for the term's first batch */
    struct engine_frame frame;
};

struct engine {
    struct raft *raft; /* in the same block of memory */
    struct engine_options options;
    struct engine_answer answer;
    struct engine_stats stats;
    uint64_t now;
    uint64_t turn;        /* the number of the event */
    uint64_t heard_ms;    /* from the leader */
    uint64_t heard_term;  /* of that leader */
    uint64_t beat_ms;     /* the leader's last timeout event */
    uint64_t answered_ms; /* the last result for the leader */

    uint64_t vote_term; /* as told to the program */
    uint64_t voted_for;
    uint64_t vote_number;
    uint64_t vote_forced;

    uint64_t last;
    /* The program has the batches up to this index; it is below `last` only while a leader's first batch is awaited. */
    uint64_t given;
    uint64_t durable;
    uint64_t stored; /* the last entry forced here, at the end of the last turn; and since when a later entry waits */
    uint64_t unforced_since_ms;

    uint64_t lead_term; /* the term that libraft leads; 0: it does not lead */
    uint64_t lead_vote; /* VOTE must have this number before the program learns that it leads */
    uint64_t told_term; /* the program knows that it leads this term */
    uint64_t first_index;
    bool made_first; /* libraft has made the term's first entry itself */
    bool first_given;
    bool serves;
    bool submitting;

    bool hung;     /* the disk hangs: an entry has waited for two election timeouts */
    bool draining; /* before and during a transfer */
    uint64_t drain_to;
    uint64_t drain_next_ms;
    uint64_t drain_end_ms;

    enum copy_state copy;
    uint64_t wanted_index; /* of the UPDATE that was said */
    uint64_t copy_index;
    uint64_t copy_term;
    uint64_t copy_members_index;
    uint8_t *copy_members;
    uint32_t copy_members_bytes;
    uint64_t hold_index; /* the entries that follow it are kept for a peer that is being updated */
    uint64_t hold_until_ms;
    bool sends_update;

    struct engine_frame *out; /* the first `ready` are the answer's */
    uint64_t *out_vote;
    size_t out_count;
    size_t out_capacity;
    size_t ready;
    struct peer peers[ENGINE_MEMBERS_MAX];
};

static inline uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- engine.c: what libraft knows ---- */

bool leads(const engine *e);
bool follows(const engine *e);
bool is_candidate(const engine *e);
/* Of a candidate that has not raised its term yet. */
bool is_in_pre_vote(const engine *e);
uint64_t current_term(const engine *e);
uint64_t voted_for(const engine *e);
/* The last known leader, even of an earlier term, as libraft remembers it; 0: none. */
uint64_t last_leader(const engine *e);
/* The leader of the current term; 0: no leader is known. */
uint64_t known_leader(const engine *e);
/* libraft's count: entries up to this index are forced here. */
uint64_t stored_index(const engine *e);
/* A majority has the entries up to here; this disk may lack them. */
uint64_t committed_index(const engine *e);
/* Up to this index the member's log agrees with its leader's log. */
uint64_t matched_index(const engine *e);
uint64_t snapshot_index(const engine *e);
/* Entries from here on are kept. */
uint64_t first_kept_index(const engine *e);
/* The term of an entry; 0: the entry is neither kept nor the snapshot's last one. */
uint64_t term_at(const engine *e, uint64_t index);
void read_configuration(const engine *e, struct members *into);
bool is_member(const engine *e, uint64_t id);
bool is_voter(const engine *e, uint64_t id);
/* The index of the newest configuration that is not durable yet; 0: all are. */
uint64_t open_change_index(const engine *e);
uint64_t last_change_index(const engine *e);
/* The last index that the member has, as the leader counts it. */
uint64_t acknowledged(const engine *e, uint64_t id);
/* The time at which a follower or candidate times out. */
uint64_t timeout_ms(const engine *e);
bool is_transferring(const engine *e);
/* The other voter has been told to become a candidate. */
bool has_told_to_stand(const engine *e);

/* ---- engine.c: events of libraft ---- */

/* The result of giving libraft an event. NO_MEMORY: libraft was not called. */
enum taken { TAKEN, NO_MEMORY, NOT_TAKEN, CONTRADICTS };

void forget_leader(engine *e);
void restart_timer(engine *e);
/* A follower times out within a short and random time. */
void stand_soon(engine *e);
void time_out(engine *e);
/* The leader ceases. */
void step_down(engine *e);
enum taken note_forced(engine *e, uint64_t index);
/* One frame; of an APPEND with entries only the first may be a configuration. */
enum taken give(engine *e, const struct engine_frame *f);
/* A request for a vote. It passes whatever this member's own configuration says, which may be out of date. */
enum taken give_as_voter(engine *e, const struct engine_frame *f);
enum taken submit(engine *e, const struct engine_entry *entry);
/* Tells libraft that its newest configuration is durable, once it is durable on any member. */
void confirm_members(engine *e);
/* Forgets the first entry of a term that libraft made and whose batch never came. The entry would keep this member from
   becoming a candidate again. */
void drop_unmade(engine *e);
enum taken start_transfer(engine *e, uint64_t to);
void end_transfer(engine *e);
enum taken take_snapshot(engine *e, uint64_t index, uint64_t first_kept);
void set_update_timeout(engine *e, uint32_t ms); /* the time after which a peer is offered its update again */
enum taken note_switched(engine *e, const struct members *m);

/* ---- the other parts ---- */

/* Called after each event of libraft, before its frames: another term or vote; whether it leads; entries [first,
   last]. */
void note_vote(engine *e);
void note_lead(engine *e);
void note_entries(engine *e, uint64_t first, uint64_t last);

void begin_turn(engine *e, uint64_t now_ms);
void end_turn(engine *e);

bool is_possible(const engine *e, const struct engine_frame *f);
bool options_are_possible(const struct engine_options *options);
/* newest: the newest configuration in it. */
bool log_is_possible(const struct engine_log *log, struct members *newest);

/* The number of runs of one term. */
size_t terms_of(const struct engine_log *log);

/* The leader's notes on this member; NULL: the table is full. */
struct peer *peer_of(engine *e, uint64_t id);
bool out_has_room(engine *e);
/* Adds a frame to send; it waits until the present term and vote are forced in VOTE. */
void emit(engine *e, struct engine_frame f);
void send_append(engine *e, struct engine_frame f);
/* The term's first batch has come, so the frames that wait for it are sent. */
void send_held(engine *e);
void answer_leader(engine *e, uint64_t to, uint64_t forced);
/* Tells each follower at once which entries became durable, unless another frame of this turn has done so. */
void tell_durable(engine *e);

/* Whether the leader may change members, or hand over. */
bool may_change(const engine *e);

void try_transfer(engine *e);
void judge_disk(engine *e);
/* The time at which judge_disk must be called; UINT64_MAX: every entry is forced. */
uint64_t disk_due_ms(const engine *e);
void note_unforced(engine *e);

void end_copy(engine *e);

#endif
