/*
 * The consensus engine of one replicated store: who leads, what is durable, and who is a member. It is libraft 0.22.1 with
 * guards around it, and knows neither store nor socket. Only engine.c includes raft.h.
 *
 *   time, frames, "forced to i",      ┌────────┐   frames to send, cut at i, entries to take, durable is i,
 *   a batch, a transfer, an update ──▶│ engine │──▶ VOTE to force, lead, follow, serve
 *                                     └────────┘
 *
 * An entry is a batch: its index, its term and its kind. The engine keeps terms only; the program finds LSN and bytes of
 * an index in its log, and adds them to a frame that carries entries.
 *
 * Each call below is one event. It returns an ENGINE code, and leaves its answer in engine_answer(e), which is valid until
 * the next call for this engine. The program does, in this order, what the flags of the answer say, with VOTE before TAKE: a copy
 * takes no batch of a term that VOTE does not have.
 *   FOLLOW    this member no longer leads: batches above `last_index` never became entries, and are cut
 *   CUT       all batches from `cut_index` on are abandoned
 *   TAKE      the entries [take_index, take_index + take_count) of the received frame are written, one after the other, each
 *             forced before the next; after each engine_forced
 *   VOTE      `vote` is forced in VOTE; then engine_vote_forced with its number. The engine itself holds back the frames
 *             that may not leave before that, so all frames of an answer may be sent at once
 *   LEAD      it leads `term`; it writes that term's header and the empty first batch, with index `first_index`, and gives it
 *             to engine_submit. No other batch goes before it. It is given before the header is forced: so a disk that hangs
 *             in the header is a disk with an unforced entry
 *   SERVE     the first batch is durable: the store may serve, and members may change
 *   DURABLE   a majority and this disk have everything up to `durable_index`
 *   UPDATE    the log of `update.from` goes on above what this member can take: a copy up to `update.index`, or beyond, is to be brought
 *             here. Then engine_updated, or engine_update_failed. The flag is not set again before one of these calls
 *   SWITCH    that copy is to be switched in (VOTE); then engine_switched
 *   SNAPSHOT  a member without content waits for an update, and this leader has no snapshot yet: engine_snapshot is wanted
 *   CONFLICT  a frame contradicts what is durable: this copy or the sender's is not of this group. Nothing was changed
 *
 * What the program owes:
 *   - between engine_may_submit (or engine_plan) and engine_submit the program gives this engine no other event. So the
 *     index that the log stamps is `last_index` + 1;
 *   - frames between two members come in order and once (R12), with the entries of ENGINE_APPEND filled in;
 *   - it keeps the batches from `first_kept` on, and sends their bytes when a frame names them;
 *   - it calls engine_time when `due_ms` has come. The clock is in milliseconds; a time below an earlier time counts as
 *     the earlier one.
 *
 * What always holds:
 *   - no frame of a term leaves before VOTE has that term; no frame says "forced" of an entry that is not forced;
 *   - `durable_index` never decreases, and never lies above the last entry on this disk;
 *   - a leader whose disk hangs does not stay. The disk hangs if an entry is unforced here and no entry was forced for
 *     two election timeouts. Then the leader takes no more batches and hands over to the voter that has the most
 *     entries, which need not wait for this disk. If there is no other voter, or after a further election timeout
 *     without success, it ceases (FOLLOW). If an entry is forced before that, it continues to lead and takes batches,
 *     unless the other voter was already asked to become a candidate. A disk that makes progress, however slowly, does
 *     not hang. The member becomes a candidate again only when all its entries are forced;
 *   - a term is led at most once, also by a sole voter;
 *   - no failed allocation and no frame reaches an assertion of libraft: a reserve of memory is taken before libraft is
 *     entered, and every field of a frame is checked. An event that cannot be carried out changes nothing
 *     (ENGINE_NO_MEMORY: it may be repeated; a frame counts as lost).
 *
 * The engine owns the memory that its answers point to. It copies its arguments before a call returns. One thread at a
 * time uses an engine; different engines may be used by different threads.
 */
#ifndef LOGSTORE_CONSENSUS_ENGINE_H
#define LOGSTORE_CONSENSUS_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cffi:begin */

/* Limits. */
#define ENGINE_MEMBERS_MAX       16   /* in one configuration */
#define ENGINE_ADDRESS_MAX       255  /* bytes of an address, without its end */
#define ENGINE_CONFIGURATION_MAX 4032 /* bytes of an encoded configuration: what a MEMBERS record of the log takes */
#define ENGINE_ENTRIES_MAX       64   /* entries of one frame */
#define ENGINE_TERM_MAX          8388607

/* Codes. */
#define ENGINE_OK        0
#define ENGINE_REFUSED   1 /* refused for now or for good: nothing changed */
#define ENGINE_NO_MEMORY 2 /* nothing changed */
#define ENGINE_INVALID   3 /* an argument, or the log at the start, contradicts itself */

/* Kinds of entries. */
#define ENGINE_BATCH   1
#define ENGINE_FIRST   2 /* the empty first batch of a term */
#define ENGINE_MEMBERS 3 /* a configuration, alone in its batch */

struct engine_entry {
    uint64_t term;
    uint32_t kind;
    uint32_t configuration_bytes; /* of ENGINE_MEMBERS, else 0 */
    const uint8_t *configuration;
};

/* Types of frames. Which fields count, and what they mean:
                   index                 index_term   other                    count, flags
   APPEND          of the entry before   its term     what is durable          entries that follow; NO_ANSWER
   APPENDED        the last that is      -            refused index, or 0      -
                   forced and agrees
   ASK_VOTE        the last forced       its term     -                        PRE_VOTE, BY_TRANSFER
   VOTED           -                     -            -                        PRE_VOTE, GRANTED
   UPDATE          of the copy wanted    its term     index of its members     -
   TIMEOUT_NOW     the last              its term     -                        - */
#define ENGINE_APPEND      1
#define ENGINE_APPENDED    2
#define ENGINE_ASK_VOTE    3
#define ENGINE_VOTED       4
#define ENGINE_UPDATE      5
#define ENGINE_TIMEOUT_NOW 6

#define ENGINE_PRE_VOTE    1
#define ENGINE_BY_TRANSFER 2
#define ENGINE_GRANTED     4
#define ENGINE_NO_ANSWER   8 /* of an APPEND without entries that only says what is durable */

struct engine_frame {
    uint64_t group; /* of the sender; frames of another group are refused */
    uint64_t peer;  /* the receiver of a frame to send, the sender of a received frame */
    uint64_t term;
    uint64_t index;
    uint64_t index_term;
    uint64_t other;
    uint32_t type;
    uint32_t flags;
    uint32_t count;
    const struct engine_entry *entries; /* of a received APPEND; NULL in frames to send */
};

struct engine_options {
    uint64_t group;
    uint64_t member; /* this one's id */
    uint32_t election_ms;
    uint32_t heartbeat_ms;
    uint32_t transfer_ms;   /* a transfer that has not succeeded after this time takes another target */
    uint32_t update_ms;     /* after this time an update is offered again */
    uint32_t in_flight_max; /* entries sent to a peer and not acknowledged; at most ENGINE_ENTRIES_MAX */
    uint32_t behind_max;    /* how many entries a voter may lack when members change */
    uint32_t seed;          /* of the randomised election timeout */
};

/* The log at a start. Exactly the entries [first_kept, first_kept + count) are kept; `known_durable` is known to be
   durable, and lies in this range or just below it. Where it is below 2, first_kept is 1. A member without content: all
   0. */
struct engine_log {
    uint64_t vote_term; /* what VOTE has */
    uint64_t voted_for;
    uint64_t header_term; /* the term of the highest header on the disk, whether in the log or not; 0: none */
    uint64_t known_durable;
    uint64_t known_durable_term;
    uint64_t members_index; /* of the newest configuration up to known_durable */
    uint32_t members_bytes;
    uint32_t count;
    const uint8_t *members;
    uint64_t first_kept;
    const struct engine_entry *entries;
};

#define ENGINE_FOLLOW   1
#define ENGINE_CUT      2
#define ENGINE_TAKE     4
#define ENGINE_VOTE     8
#define ENGINE_LEAD     16
#define ENGINE_SERVE    32
#define ENGINE_DURABLE  64
#define ENGINE_COPY     128 /* UPDATE above */
#define ENGINE_SWITCH   256
#define ENGINE_CONFLICT 512
#define ENGINE_SNAPSHOT 1024

struct engine_answer {
    uint32_t flags;
    uint32_t frame_count;
    const struct engine_frame *frames;
    struct {
        uint64_t term;
        uint64_t voted_for; /* 0: nobody */
        uint64_t number;    /* for engine_vote_forced */
    } vote;
    uint64_t cut_index;
    uint64_t take_index;
    uint64_t take_count;
    uint64_t first_index;
    struct {
        uint64_t from;
        uint64_t index;
        uint64_t index_term;
    } update;
    /* The state of the engine after the event, whatever the flags are. */
    uint64_t term;
    uint64_t leader; /* 0: no leader is known, or the leader is changing */
    uint64_t last_index;
    uint64_t durable_index;
    uint64_t due_ms;
};

#define ENGINE_ADD     1 /* a standby, with an address */
#define ENGINE_PROMOTE 2 /* a standby that has caught up becomes a voter */
#define ENGINE_REMOVE  3 /* a member, but not the leader */

struct engine_change {
    uint32_t what;
    uint64_t member;
    const char *address;
};

struct engine_stats {
    uint64_t received;
    uint64_t refused;   /* frames with impossible fields, or of another group */
    uint64_t dropped;   /* frames for which there was no memory */
    uint64_t conflicts; /* frames that contradict what is durable */
    uint64_t stale;     /* frames of an earlier leader, answered here */
    uint64_t clipped;   /* frames whose entries lie at or below the snapshot */
};

typedef struct engine engine;

/* The version of libraft that the engine is built with: major * 10000 + minor * 100 + release. */
int engine_raft_version(void);

/* ENGINE_INVALID: the log contradicts itself. A sole voter takes a new term, and leads when that term is forced. */
int engine_open(const struct engine_options *options, const struct engine_log *log, uint64_t now_ms, engine **made);
/* In any thread. */
void engine_close(engine *e);
const struct engine_answer *engine_answer(const engine *e);
const struct engine_stats *engine_stats(const engine *e);

int engine_time(engine *e, uint64_t now_ms);
/* ENGINE_REFUSED: the frame's fields are impossible, or it is of another group. */
int engine_receive(engine *e, uint64_t now_ms, const struct engine_frame *frame);
/* A connection to this member's process was refused or reset: if it is the leader, an election timeout has elapsed. */
int engine_lost(engine *e, uint64_t now_ms, uint64_t member);
/* VOTE with this number is forced, and so is each earlier one. */
int engine_vote_forced(engine *e, uint64_t now_ms, uint64_t number);
/* The entry and all entries before it are forced here. Ignored if the entry was cut meanwhile. */
int engine_forced(engine *e, uint64_t now_ms, uint64_t index, uint64_t term);

/* Whether the leader may submit a batch now: the first batch of its term (ENGINE_FIRST), or another one after it. */
bool engine_may_submit(const engine *e);
/* The batch with index last_index + 1, of the leader's term. ENGINE_REFUSED: it may not submit. */
int engine_submit(engine *e, uint64_t now_ms, const struct engine_entry *entry);
/* The configuration that this change makes, for an entry ENGINE_MEMBERS; `into` has ENGINE_CONFIGURATION_MAX bytes.
   ENGINE_REFUSED: not now. Members change one at a time, by a leader that serves and hands nothing over, while all
   reachable voters have almost all entries, and no member is added before the snapshot is at 2. ENGINE_INVALID: this
   change can never give a valid configuration; 16 members fit if their addresses have 241 bytes on average. */
int engine_plan(const engine *e, const struct engine_change *change, uint8_t *into, uint32_t *bytes);
/* Leads no new batch from now on, and hands over to this voter when it has all entries; 0: to any voter. */
int engine_transfer(engine *e, uint64_t now_ms, uint64_t member);

/* Entries below first_kept are no longer kept; `snapshot` is durable and applied. *kept: the first index that must
   stay, which is lower while a peer is being updated. ENGINE_REFUSED: not now. */
int engine_snapshot(engine *e, uint64_t now_ms, uint64_t snapshot, uint64_t first_kept, uint64_t *kept);

/* The copy is complete, ends at `index`, and this is the newest configuration in it. ENGINE_REFUSED: not now, because
   entries are being written or no leader is known; or the copy is no longer useful, or ends below the index that UPDATE
   named. The program may ask again, or discard the copy and call engine_update_failed; then the next UPDATE begins from
   the start. */
int engine_updated(engine *e, uint64_t now_ms, uint64_t index, uint64_t index_term, uint64_t members_index,
                   const uint8_t *members, uint32_t members_bytes);
int engine_update_failed(engine *e);
/* Whether this member sends a copy to a peer now. While it does, no other peer is offered an update, and the entries
   that follow the offered copy are kept. Otherwise a copy that takes longer than update_ms would end below the kept
   entries. */
void engine_sends_update(engine *e, uint64_t now_ms, bool sends);
/* The copy has been switched in. */
int engine_switched(engine *e, uint64_t now_ms);

/* Gives the time to each engine that is due; `answered` gets these engines in order. Returns their number. */
size_t engine_time_all(engine *const *engines, size_t count, uint64_t now_ms, engine **answered);

/* For the operator and for tests. */
struct engine_member {
    uint64_t member;
    uint64_t acknowledged; /* the leader's count; 0 at a follower */
    const char *address;   /* as in the configuration; valid until the next event */
    bool voter;
};
size_t engine_members(const engine *e, struct engine_member *into); /* room for ENGINE_MEMBERS_MAX */
/* The encoded form of a configuration whose members are all voters, for the first MEMBERS of a group. */
int engine_bootstrap(const uint64_t *members, const char *const *addresses, size_t count, uint8_t *into,
                     uint32_t *bytes);

/* cffi:end */

#endif
