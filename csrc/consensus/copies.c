/*
 * Snapshots, and updates of this member by a copy: an update is wanted, is complete, is switched in.
 */
#include "consensus/engine_parts.h"

#include <stdlib.h>
#include <string.h>

enum { SENDING_MS_MAX = 24 * 3600 * 1000 }; /* the program says when it ends */

int engine_snapshot(engine *e, uint64_t now_ms, uint64_t snapshot, uint64_t first_kept, uint64_t *kept) {
    begin_turn(e, now_ms);
    uint64_t first = first_kept;
    if (e->sends_update || e->now < e->hold_until_ms)
        first = least(first, e->hold_index + 1);
    if (first < first_kept_index(e))
        first = first_kept_index(e);
    if (first < 2)
        first = 2;
    int code = ENGINE_REFUSED;
    if (e->copy != COPY_SWITCHING && snapshot >= 2 && snapshot > snapshot_index(e) && snapshot <= e->durable &&
        snapshot >= last_change_index(e) && last_change_index(e) > 0 && first <= snapshot + 1) {
        code = take_snapshot(e, snapshot, first) == TAKEN ? ENGINE_OK : ENGINE_NO_MEMORY;
    }
    *kept = first_kept_index(e);
    end_turn(e);
    return code;
}

void engine_sends_update(engine *e, uint64_t now_ms, bool sends) {
    begin_turn(e, now_ms);
    e->sends_update = sends;
    e->hold_until_ms = e->now + 2 * (uint64_t)e->options.update_ms;
    set_update_timeout(e, sends ? SENDING_MS_MAX : e->options.update_ms);
    end_turn(e);
}

void end_copy(engine *e) {
    free(e->copy_members);
    e->copy_members = NULL;
    e->copy = COPY_NONE;
}

int engine_update_failed(engine *e) {
    if (e->copy == COPY_SWITCHING)
        return ENGINE_REFUSED;
    end_copy(e);
    return ENGINE_OK;
}

static int install(engine *e, uint64_t index, uint64_t index_term, uint64_t members_index, const uint8_t *members,
                   uint32_t members_bytes) {
    struct members m;
    if (index < 2 || index > INDEX_MAX || index_term == 0 || index_term > current_term(e) || members_index == 0 ||
        members_index > index || !members_decode(&m, members, members_bytes))
        return ENGINE_INVALID;
    if (e->copy != COPY_WANTED || known_leader(e) == 0 || stored_index(e) != e->last)
        return ENGINE_REFUSED;
    if (snapshot_index(e) >= index || term_at(e, index) == index_term || index <= e->durable) {
        end_copy(e);
        return ENGINE_REFUSED;
    }
    /* The copy may have a configuration that the group no longer has; under it this member and other removed members
       could elect a leader. */
    if (index < e->wanted_index)
        return ENGINE_REFUSED;
    uint8_t *kept = malloc(members_bytes);
    if (kept == NULL)
        return ENGINE_NO_MEMORY;
    memcpy(kept, members, members_bytes);
    struct engine_frame update = {
        .type = ENGINE_UPDATE, .peer = known_leader(e), .term = current_term(e), .index = index};
    update.index_term = index_term;
    update.other = members_index;
    if (give(e, &update) != TAKEN) {
        free(kept);
        return ENGINE_NO_MEMORY;
    }
    e->copy = COPY_SWITCHING;
    e->copy_index = index;
    e->copy_term = index_term;
    e->copy_members_index = members_index;
    e->copy_members = kept;
    e->copy_members_bytes = members_bytes;
    e->last = index;
    e->given = index;
    e->answer.flags |= ENGINE_SWITCH;
    return ENGINE_OK;
}

int engine_updated(engine *e, uint64_t now_ms, uint64_t index, uint64_t index_term, uint64_t members_index,
                   const uint8_t *members, uint32_t members_bytes) {
    begin_turn(e, now_ms);
    int code = install(e, index, index_term, members_index, members, members_bytes);
    end_turn(e);
    return code;
}

int engine_switched(engine *e, uint64_t now_ms) {
    begin_turn(e, now_ms);
    int code = ENGINE_REFUSED;
    struct members m;
    if (e->copy == COPY_SWITCHING && members_decode(&m, e->copy_members, e->copy_members_bytes)) {
        code = note_switched(e, &m) == TAKEN ? ENGINE_OK : ENGINE_NO_MEMORY;
        if (code == ENGINE_OK)
            end_copy(e);
    }
    end_turn(e);
    return code;
}
