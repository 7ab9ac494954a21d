/*
 * The guards of received frames: docs/decisions/consensus.md says what libraft would do without each.
 */
#include "consensus/engine_parts.h"

static enum taken receive_entries(engine *e, const struct engine_frame *f) {
    enum taken taken = give(e, f);
    if (taken == CONTRADICTS) {
        e->stats.conflicts++;
        e->answer.flags |= ENGINE_CONFLICT;
    }
    return taken;
}

/* Takes entries [from, to) of the frame, up to the next configuration, because libraft gives a configuration in the
   middle the index of the first entry. False: the rest of the frame counts as lost. */
static bool give_entries(engine *e, const struct engine_frame *f, uint32_t from, uint32_t to) {
    struct engine_frame part = *f;
    part.index += from;
    part.index_term = from == 0 ? f->index_term : f->entries[from - 1].term;
    part.entries += from;
    part.count = to - from;
    if (part.entries->kind == ENGINE_MEMBERS) {
        confirm_members(e);
        uint64_t open = open_change_index(e);
        if (open != 0 && open < part.index + 1) {
            e->stats.refused++;
            return false;
        }
    }
    return receive_entries(e, &part) == TAKEN;
}

/* Gives libraft the frame without its entries: only the entry before them, and the durable index. */
static void receive_without_entries(engine *e, const struct engine_frame *f) {
    struct engine_frame bare = *f;
    bare.entries = NULL;
    bare.count = 0;
    (void)receive_entries(e, &bare);
}

/* A frame may begin with a configuration while the previous configuration is not confirmed here, for example after a
   start. The leader may send no other kind of frame until this one is accepted. So the durable index of the frame
   counts before its entries. */
static void receive_append(engine *e, struct engine_frame f) {
    uint64_t term = current_term(e);
    if (f.term < term) {
        e->stats.stale++;
        answer_leader(e, f.peer, 0);
        return;
    }
    e->heard_ms = e->now;
    e->heard_term = f.term;
    if (e->copy == COPY_SWITCHING && f.term == term) {
        restart_timer(e);
        return;
    }
    if (f.index < snapshot_index(e)) {
        uint32_t below = (uint32_t)least(snapshot_index(e) - f.index, f.count);
        f.entries = f.count == below ? NULL : f.entries + below;
        f.count -= below;
        f.index = snapshot_index(e);
        f.index_term = term_at(e, snapshot_index(e));
        e->stats.clipped++;
    }
    if (f.count > 0 && f.term == term && known_leader(e) == f.peer &&
        e->now - e->answered_ms >= e->options.heartbeat_ms / 2)
        answer_leader(e, f.peer, least(matched_index(e), stored_index(e)));
    size_t before = e->out_count;
    uint64_t answered_ms = e->answered_ms, open = open_change_index(e);
    bool no_answer = (f.flags & ENGINE_NO_ANSWER) != 0;
    if (f.count == 0 || (f.entries[0].kind == ENGINE_MEMBERS && open != 0 && open <= f.index)) {
        receive_without_entries(e, &f);
        if (f.count > 0) {
            confirm_members(e);
            no_answer = open_change_index(e) == 0;
        }
        if (no_answer && e->out_count == before + 1 && e->out[before].type == ENGINE_APPENDED &&
            e->out[before].other == 0) {
            e->out_count--;
            e->answered_ms = answered_ms;
        }
    }
    for (uint32_t at = 0, to; at < f.count; at = to) {
        to = at + 1;
        while (to < f.count && f.entries[to].kind != ENGINE_MEMBERS)
            to++;
        if (!give_entries(e, &f, at, to))
            return;
    }
}

static void receive_ask_vote(engine *e, const struct engine_frame *f) {
    if (e->last == 0) { /* this member may have lost entries that the candidate lacks */
        uint64_t term = (f->flags & ENGINE_PRE_VOTE) != 0 ? f->term : current_term(e);
        emit(e, (struct engine_frame){
                    .type = ENGINE_VOTED, .peer = f->peer, .term = term, .flags = f->flags & ENGINE_PRE_VOTE});
        return;
    }
    if (last_leader(e) != 0 && e->now - e->heard_ms >= e->options.election_ms)
        forget_leader(e);
    if (follows(e))
        (void)give_as_voter(e, f);
    else
        (void)give(e, f);
}

static void receive_voted(engine *e, const struct engine_frame *f) {
    if (!is_candidate(e)) /* libraft would read the part of a union that belongs to a candidate */
        return;
    bool granted = (f->flags & ENGINE_GRANTED) != 0;
    if (granted && f->term > current_term(e) + (is_in_pre_vote(e) ? 1 : 0)) {
        e->stats.refused++;
        return;
    }
    (void)give(e, f);
}

static void receive_update(engine *e, const struct engine_frame *f) {
    uint64_t term = current_term(e);
    if (f->term < term) {
        e->stats.stale++;
        answer_leader(e, f->peer, 0);
        return;
    }
    if (f->term > term || !follows(e))
        return; /* a frame with entries or a heartbeat of this term must come first */
    e->heard_ms = e->now;
    e->heard_term = f->term;
    restart_timer(e);
    if (e->copy != COPY_NONE)
        return;
    if (snapshot_index(e) >= f->index || term_at(e, f->index) == f->index_term) {
        (void)give(e, f);
        return;
    }
    e->copy = COPY_WANTED;
    e->wanted_index = f->index;
    e->answer.flags |= ENGINE_COPY;
    e->answer.update.from = f->peer;
    e->answer.update.index = f->index;
    e->answer.update.index_term = f->index_term;
}

static void receive_appended(engine *e, const struct engine_frame *f) {
    struct peer *p = leads(e) && f->term == current_term(e) && is_member(e, f->peer) ? peer_of(e, f->peer) : NULL;
    if (p != NULL) {
        p->heard_ms = e->now;
        if (f->other != 0)
            p->told = 0;
    }
    (void)give(e, f);
}

static void receive_timeout_now(engine *e, const struct engine_frame *f) {
    if (current_term(e) < ENGINE_TERM_MAX)
        (void)give(e, f);
}

int engine_receive(engine *e, uint64_t now_ms, const struct engine_frame *frame) {
    begin_turn(e, now_ms);
    e->stats.received++;
    if (!is_possible(e, frame)) {
        e->stats.refused++;
        end_turn(e);
        return ENGINE_REFUSED;
    }
    switch (frame->type) {
    case ENGINE_APPEND:
        receive_append(e, *frame);
        break;
    case ENGINE_APPENDED:
        receive_appended(e, frame);
        break;
    case ENGINE_ASK_VOTE:
        receive_ask_vote(e, frame);
        break;
    case ENGINE_VOTED:
        receive_voted(e, frame);
        break;
    case ENGINE_UPDATE:
        receive_update(e, frame);
        break;
    default:
        receive_timeout_now(e, frame);
        break;
    }
    end_turn(e);
    return ENGINE_OK;
}
