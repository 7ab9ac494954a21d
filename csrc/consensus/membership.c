/*
 * The leader's batches, and the changes of members among them: one at a time, and one member in each.
 */
#include "consensus/engine_parts.h"

#include <string.h>

static bool is_handing_over(const engine *e) { return e->draining || is_transferring(e); }

bool engine_may_submit(const engine *e) {
    return e->told_term != 0 && e->told_term == e->lead_term && !is_handing_over(e) &&
           (e->given == e->last || (e->made_first && !e->first_given));
}

bool may_change(const engine *e) { return engine_may_submit(e) && e->serves && open_change_index(e) == 0; }

/* From one configuration to the next at most one member differs. Members keep their order, as libraft needs it. */
static bool is_one_change(const struct members *a, const struct members *b) {
    uint32_t differences = 0;
    uint32_t i = 0;
    for (uint32_t j = 0; j < b->count; i++, j++) {
        while (i < a->count && members_find(b, a->all[i].id) == b->count) {
            i++;
            differences++;
        }
        if (i == a->count || a->all[i].id != b->all[j].id) {
            differences += b->count - j;
            return differences == 1 && i == a->count;
        }
        if (strcmp(a->all[i].address, b->all[j].address) != 0 || a->all[i].role > b->all[j].role)
            return false; /* a voter is removed; it never becomes a standby */
        differences += a->all[i].role != b->all[j].role;
    }
    return differences + (a->count - i) == 1;
}

static bool is_allowed(const engine *e, const struct engine_entry *entry) {
    struct members now, next;
    if (!engine_may_submit(e) || entry->term != e->lead_term)
        return false;
    if (!e->first_given || entry->kind == ENGINE_FIRST)
        return !e->first_given && entry->kind == ENGINE_FIRST;
    if (entry->kind == ENGINE_BATCH)
        return true;
    if (entry->kind != ENGINE_MEMBERS || !may_change(e) ||
        !members_decode(&next, entry->configuration, entry->configuration_bytes))
        return false;
    read_configuration(e, &now);
    return is_one_change(&now, &next);
}

int engine_submit(engine *e, uint64_t now_ms, const struct engine_entry *entry) {
    begin_turn(e, now_ms);
    int code = is_allowed(e, entry) ? ENGINE_OK : ENGINE_REFUSED;
    if (code == ENGINE_OK && entry->kind == ENGINE_FIRST && e->made_first) {
        e->given = e->last;
        send_held(e);
    } else if (code == ENGINE_OK) {
        code = submit(e, entry) == TAKEN ? ENGINE_OK : ENGINE_NO_MEMORY;
    }
    if (code == ENGINE_OK)
        e->first_given = true;
    end_turn(e);
    return code;
}

static bool voters_are_near(const engine *e) {
    struct engine_member all[ENGINE_MEMBERS_MAX];
    size_t count = engine_members(e, all);
    for (size_t i = 0; i < count; i++) {
        if (!all[i].voter || all[i].member == e->options.member)
            continue;
        uint64_t has = all[i].acknowledged;
        bool reachable = false;
        for (size_t k = 0; k < ENGINE_MEMBERS_MAX; k++)
            reachable = reachable || (e->peers[k].id == all[i].member && e->peers[k].heard_ms != 0 &&
                                      e->now - e->peers[k].heard_ms < e->options.election_ms);
        if (reachable && (has + e->options.behind_max < e->last || has < last_change_index(e)))
            return false;
    }
    return true;
}

int engine_plan(const engine *e, const struct engine_change *change, uint8_t *into, uint32_t *bytes) {
    struct members m;
    if (!may_change(e) || !voters_are_near(e))
        return ENGINE_REFUSED;
    read_configuration(e, &m);
    uint32_t at = members_find(&m, change->member);
    switch (change->what) {
    case ENGINE_ADD:
        /* Otherwise libraft would send entry 1 to a member without content, or would never send any entry to it. */
        if (snapshot_index(e) < 2 || first_kept_index(e) < 2)
            return ENGINE_REFUSED;
        if (change->address == NULL || !members_add(&m, change->member, change->address, MEMBER_STANDBY))
            return ENGINE_INVALID;
        break;
    case ENGINE_PROMOTE: {
        uint64_t has = acknowledged(e, change->member);
        if (at == m.count || m.all[at].role == MEMBER_VOTER)
            return ENGINE_INVALID;
        if (has == 0 || has + e->options.behind_max < e->last || has < last_change_index(e))
            return ENGINE_REFUSED;
        m.all[at].role = MEMBER_VOTER;
        break;
    }
    case ENGINE_REMOVE:
        if (at == m.count || change->member == e->options.member)
            return ENGINE_INVALID;
        memmove(&m.all[at], &m.all[at + 1], (m.count - at - 1) * sizeof m.all[0]);
        m.count--;
        break;
    default:
        return ENGINE_INVALID;
    }
    *bytes = members_encode(&m, into);
    return ENGINE_OK;
}

int engine_bootstrap(const uint64_t *members, const char *const *addresses, size_t count, uint8_t *into,
                     uint32_t *bytes) {
    struct members m = {0};
    for (size_t i = 0; i < count; i++)
        if (!members_add(&m, members[i], addresses[i], MEMBER_VOTER))
            return ENGINE_INVALID;
    if (count == 0)
        return ENGINE_INVALID;
    *bytes = members_encode(&m, into);
    return ENGINE_OK;
}
