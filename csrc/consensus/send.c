/*
 * The guards of frames to send. The frames of an answer stand at the beginning of a list; the frames after them wait
 * until VOTE is forced.
 */
#include "consensus/engine_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    OUT_FIRST = 16, /* frames */
    OUT_MAX = 512,  /* limit while VOTE is not forced; further frames are lost, as on a broken link */
};

struct peer *peer_of(engine *e, uint64_t id) {
    struct peer *unused = NULL;
    for (size_t i = 0; i < ENGINE_MEMBERS_MAX; i++) {
        struct peer *p = &e->peers[i];
        if (p->id == id)
            return p;
        if (unused == NULL && (p->id == 0 || !is_member(e, p->id)))
            unused = p;
    }
    if (unused != NULL) {
        memset(unused, 0, sizeof *unused);
        unused->id = id;
    }
    return unused;
}

bool out_has_room(engine *e) {
    if (e->out_count < e->out_capacity)
        return true;
    size_t capacity = e->out_capacity == 0 ? OUT_FIRST : 2 * e->out_capacity;
    if (capacity > OUT_MAX)
        return false;
    struct engine_frame *out = realloc(e->out, capacity * sizeof *out);
    if (out == NULL)
        return false;
    e->out = out;
    uint64_t *votes = realloc(e->out_vote, capacity * sizeof *votes);
    if (votes == NULL)
        return false;
    e->out_vote = votes;
    e->out_capacity = capacity;
    return true;
}

void emit(engine *e, struct engine_frame f) {
    if (!out_has_room(e)) {
        e->stats.dropped++;
        return;
    }
    f.group = e->options.group;
    f.entries = NULL;
    e->out_vote[e->out_count] = e->vote_number;
    e->out[e->out_count++] = f;
}

/* Entries that the program does not have yet are not sent; the peer still gets a frame from the leader. */
void send_append(engine *e, struct engine_frame f) {
    struct peer *p = peer_of(e, f.peer);
    /* A member without content never begins with entry 1, because the log before that entry would be missing. */
    if (f.index == 0) {
        f.index = e->durable;
        f.index_term = term_at(e, e->durable);
        f.count = 0;
        e->answer.flags |= ENGINE_SNAPSHOT;
    }
    if (p != NULL && f.count > 0 && f.index + f.count > e->given) {
        p->held = true;
        p->frame = f;
        f.count = e->given > f.index ? (uint32_t)(e->given - f.index) : 0;
    }
    if (p != NULL) {
        p->sent_turn = e->turn;
        p->told = least(f.other, f.index + f.count);
    }
    emit(e, f);
}

/* libraft has made the entry, and peers wait for its batch. */
void send_held(engine *e) {
    for (size_t i = 0; i < ENGINE_MEMBERS_MAX; i++) {
        struct peer *p = &e->peers[i];
        if (!p->held)
            continue;
        p->held = false;
        p->frame.other = committed_index(e);
        send_append(e, p->frame);
    }
}

void answer_leader(engine *e, uint64_t to, uint64_t forced) {
    e->answered_ms = e->now;
    emit(e, (struct engine_frame){.type = ENGINE_APPENDED, .peer = to, .term = current_term(e), .index = forced});
}

/* Tells each follower at once which entries became durable, unless another frame of this turn has done so. */
void tell_durable(engine *e) {
    struct engine_member all[ENGINE_MEMBERS_MAX];
    size_t count = engine_members(e, all);
    for (size_t i = 0; i < count; i++) {
        uint64_t id = all[i].member;
        struct peer *p = id == e->options.member ? NULL : peer_of(e, id);
        if (p == NULL || p->sent_turn == e->turn)
            continue;
        uint64_t has = all[i].acknowledged;
        uint64_t term = term_at(e, has);
        if (term == 0 || least(committed_index(e), has) <= p->told)
            continue;
        send_append(e, (struct engine_frame){.type = ENGINE_APPEND,
                                             .peer = id,
                                             .term = e->lead_term,
                                             .index = has,
                                             .index_term = term,
                                             .other = committed_index(e),
                                             .flags = ENGINE_NO_ANSWER});
    }
}
