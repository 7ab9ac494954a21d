/*
 * One event of the program: its effects, and the answer to it.
 */
#include "consensus/engine_parts.h"

#include <string.h>

#include "consensus/reserve.h"

void begin_turn(engine *e, uint64_t now_ms) {
    if (now_ms > e->now)
        e->now = now_ms;
    memset(&e->answer, 0, sizeof e->answer);
    if (e->ready > 0) {
        e->out_count -= e->ready;
        memmove(e->out, e->out + e->ready, e->out_count * sizeof *e->out);
        memmove(e->out_vote, e->out_vote + e->ready, e->out_count * sizeof *e->out_vote);
        e->ready = 0;
    }
    e->turn++;
}

void note_vote(engine *e) {
    if (current_term(e) == e->vote_term && voted_for(e) == e->voted_for)
        return;
    e->vote_term = current_term(e);
    e->voted_for = voted_for(e);
    e->vote_number++;
    e->answer.flags |= ENGINE_VOTE;
    e->answer.vote.term = e->vote_term;
    e->answer.vote.voted_for = e->voted_for;
    e->answer.vote.number = e->vote_number;
}

void note_lead(engine *e) {
    if (!leads(e)) {
        if (e->lead_term != 0 && e->made_first && !e->first_given)
            drop_unmade(e);
        e->lead_term = 0;
        e->draining = e->hung = false;
        return;
    }
    if (e->lead_term == current_term(e))
        return;
    e->lead_term = current_term(e);
    e->lead_vote = e->vote_number;
    e->first_index = e->last + 1;
    e->made_first = false;
    e->first_given = false;
    e->serves = false;
    e->draining = e->hung = false;
    e->beat_ms = e->now;
    e->unforced_since_ms = 0;
    memset(e->peers, 0, sizeof e->peers);
}

void note_entries(engine *e, uint64_t first, uint64_t last) {
    if (leads(e)) {
        if (!e->submitting)
            e->made_first = true;
        else
            e->given = last;
    } else {
        if (first <= e->last) {
            e->answer.flags |= ENGINE_CUT;
            e->answer.cut_index = first;
        }
        if ((e->answer.flags & ENGINE_TAKE) == 0)
            e->answer.take_index = first;
        e->answer.flags |= ENGINE_TAKE;
        e->answer.take_count = last + 1 - e->answer.take_index;
        e->given = last;
    }
    e->last = last;
}

static void note_durable(engine *e) {
    uint64_t known = least(committed_index(e), stored_index(e));
    if (e->copy == COPY_SWITCHING || known <= e->durable)
        return;
    e->durable = known;
    e->answer.flags |= ENGINE_DURABLE;
}

/* The time may have passed already: then engine_time is called at once, whatever other events wait. */
static uint64_t due(const engine *e) {
    uint64_t at = leads(e) ? e->beat_ms + e->options.heartbeat_ms : timeout_ms(e);
    if (e->draining)
        at = least(at, e->drain_next_ms);
    return least(at, disk_due_ms(e));
}

void end_turn(engine *e) {
    confirm_members(e);
    if (leads(e)) {
        try_transfer(e);
        tell_durable(e);
    }
    note_durable(e);
    note_unforced(e);
    struct engine_answer *a = &e->answer;
    if (e->told_term != 0 && e->told_term != e->lead_term) {
        a->flags |= ENGINE_FOLLOW;
        e->told_term = 0;
    }
    if (e->lead_term != 0 && e->told_term == 0 && e->vote_forced >= e->lead_vote) {
        a->flags |= ENGINE_LEAD;
        e->told_term = e->lead_term;
        a->first_index = e->first_index;
    }
    if (e->told_term != 0 && !e->serves && e->first_given && e->durable >= e->first_index) {
        a->flags |= ENGINE_SERVE;
        e->serves = true;
    }
    while (e->ready < e->out_count && e->out_vote[e->ready] <= e->vote_forced)
        e->ready++;
    a->frames = e->out;
    a->frame_count = (uint32_t)e->ready;
    a->term = current_term(e);
    a->leader = e->told_term != 0 ? e->options.member : known_leader(e);
    a->last_index = e->given;
    a->durable_index = e->durable;
    a->due_ms = due(e);
    reserve_give_back();
}

const struct engine_answer *engine_answer(const engine *e) { return &e->answer; }

const struct engine_stats *engine_stats(const engine *e) { return &e->stats; }

int engine_time(engine *e, uint64_t now_ms) {
    begin_turn(e, now_ms);
    bool is_due = leads(e) ? e->now - e->beat_ms >= e->options.heartbeat_ms : timeout_ms(e) <= e->now;
    judge_disk(e);
    if (is_due && (leads(e) || current_term(e) < ENGINE_TERM_MAX)) {
        e->beat_ms = e->now;
        time_out(e);
    }
    end_turn(e);
    e->answer.due_ms = e->answer.due_ms > e->now ? e->answer.due_ms : e->now + 1;
    return ENGINE_OK;
}

size_t engine_time_all(engine *const *engines, size_t count, uint64_t now_ms, engine **answered) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (now_ms < engines[i]->answer.due_ms)
            continue;
        (void)engine_time(engines[i], now_ms);
        answered[n++] = engines[i];
    }
    return n;
}

int engine_lost(engine *e, uint64_t now_ms, uint64_t member) {
    begin_turn(e, now_ms);
    if (member != 0 && last_leader(e) == member) {
        forget_leader(e);
        e->heard_ms = 0;
        stand_soon(e);
    }
    end_turn(e);
    return ENGINE_OK;
}

int engine_vote_forced(engine *e, uint64_t now_ms, uint64_t number) {
    begin_turn(e, now_ms);
    if (number > e->vote_forced)
        e->vote_forced = least(number, e->vote_number);
    end_turn(e);
    return ENGINE_OK;
}

int engine_forced(engine *e, uint64_t now_ms, uint64_t index, uint64_t term) {
    begin_turn(e, now_ms);
    int code = ENGINE_OK;
    bool counts = e->copy != COPY_SWITCHING && !is_candidate(e) && index > stored_index(e) && index <= e->given &&
                  term_at(e, index) == term;
    if (counts && note_forced(e, index) != TAKEN)
        code = ENGINE_NO_MEMORY;
    end_turn(e);
    return code;
}
