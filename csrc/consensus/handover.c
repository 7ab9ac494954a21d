/*
 * Transfers of leadership: on request, or because the leader's disk hangs.
 */
#include "consensus/engine_parts.h"

static uint64_t choose_target(const engine *e, uint64_t not_this) {
    struct engine_member all[ENGINE_MEMBERS_MAX];
    size_t count = engine_members(e, all);
    const struct engine_member *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct engine_member *m = &all[i];
        if (m->voter && m->member != e->options.member && m->member != not_this &&
            (best == NULL || m->acknowledged > best->acknowledged))
            best = m;
    }
    return best == NULL ? 0 : best->member;
}

void note_unforced(engine *e) {
    bool moves = stored_index(e) != e->stored;
    if (!leads(e) || stored_index(e) >= e->given)
        e->unforced_since_ms = 0;
    else if (e->unforced_since_ms == 0 || moves)
        e->unforced_since_ms = e->now;
    e->stored = stored_index(e);
    if (e->hung && moves) {
        e->hung = false;
        e->draining = has_told_to_stand(e); /* it ends as any transfer does */
    }
}

static uint64_t hang_ms(const engine *e) { return (e->hung ? 3 : 2) * (uint64_t)e->options.election_ms; }

uint64_t disk_due_ms(const engine *e) {
    return e->unforced_since_ms == 0 ? UINT64_MAX : e->unforced_since_ms + hang_ms(e);
}

static void begin_transfer(engine *e, uint64_t to, uint64_t limit_ms) {
    e->draining = true;
    e->drain_to = to;
    e->drain_next_ms = e->now + e->options.transfer_ms;
    e->drain_end_ms = e->now + limit_ms;
    end_transfer(e);
}

/* R6. The peers may have entries that this disk lacks, so the transfer does not wait for this disk. */
void judge_disk(engine *e) {
    if (!leads(e) || e->unforced_since_ms == 0 || e->now - e->unforced_since_ms < hang_ms(e))
        return;
    uint64_t to = e->hung ? 0 : choose_target(e, 0);
    e->hung = true;
    begin_transfer(e, to, e->options.election_ms);
    if (to == 0)
        step_down(e);
}

void try_transfer(engine *e) {
    if (!e->draining)
        return;
    if (e->now >= e->drain_next_ms) {
        uint64_t other = choose_target(e, e->drain_to);
        e->drain_to = other != 0 ? other : e->drain_to;
        e->drain_next_ms = e->now + e->options.transfer_ms;
        end_transfer(e);
    }
    if (e->now >= e->drain_end_ms && !e->hung) {
        e->draining = false;
        end_transfer(e);
        return;
    }
    if (is_transferring(e) || (stored_index(e) < e->last && !e->hung) || acknowledged(e, e->drain_to) != e->last)
        return;
    (void)start_transfer(e, e->drain_to); /* without memory the next turn tries again */
}

int engine_transfer(engine *e, uint64_t now_ms, uint64_t member) {
    begin_turn(e, now_ms);
    uint64_t to = member;
    if (may_change(e) && member == 0)
        to = choose_target(e, 0);
    int code = may_change(e) && to != 0 && to != e->options.member && is_voter(e, to) ? ENGINE_OK : ENGINE_REFUSED;
    if (code == ENGINE_OK)
        begin_transfer(e, to, 3 * (uint64_t)e->options.transfer_ms);
    end_turn(e);
    return code;
}
