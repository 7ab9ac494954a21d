/*
 * Checks a frame, and the log at a start, for impossible values. libraft would assert on them, so they do not reach it.
 */
#include "consensus/engine_parts.h"

static bool entries_are_possible(const struct engine_frame *f) {
    uint64_t term = f->index_term;
    if (f->count > ENGINE_ENTRIES_MAX || (f->count > 0 && f->entries == NULL))
        return false;
    for (uint32_t i = 0; i < f->count; i++) {
        const struct engine_entry *entry = &f->entries[i];
        struct members m;
        if (entry->term < term || entry->term > f->term || entry->kind < ENGINE_BATCH || entry->kind > ENGINE_MEMBERS)
            return false;
        if (entry->kind == ENGINE_MEMBERS && !members_decode(&m, entry->configuration, entry->configuration_bytes))
            return false;
        term = entry->term;
    }
    return true;
}

/* The acknowledgement lies below an earlier one: the member has lost batches that it had forced. */
static bool takes_back(const engine *e, const struct engine_frame *f) {
    return leads(e) && f->term == current_term(e) && f->other > 0 &&
           least(f->other, f->index + 1) <= acknowledged(e, f->peer);
}

bool is_possible(const engine *e, const struct engine_frame *f) {
    if (f->group != e->options.group || f->peer == 0 || f->peer == e->options.member || f->term == 0 ||
        f->term > ENGINE_TERM_MAX || f->index > INDEX_MAX || f->other > INDEX_MAX)
        return false;
    bool same_term = f->term == current_term(e);
    bool has_index = f->index > 0 && f->index_term > 0 && f->index_term <= f->term;
    bool other_leader = same_term && (leads(e) || (known_leader(e) != 0 && known_leader(e) != f->peer));
    switch (f->type) {
    case ENGINE_APPEND:
        return has_index && !other_leader && entries_are_possible(f);
    case ENGINE_APPENDED:
        return (f->other == 0 || f->index < f->other) && !takes_back(e, f);
    case ENGINE_ASK_VOTE:
        return has_index && f->index_term < f->term;
    case ENGINE_VOTED:
        return (f->flags & ~(uint32_t)(ENGINE_PRE_VOTE | ENGINE_GRANTED)) == 0;
    case ENGINE_UPDATE:
        return has_index && !other_leader && f->index >= 2 && f->other > 0 && f->other <= f->index;
    case ENGINE_TIMEOUT_NOW:
        return has_index;
    default:
        return false;
    }
}

bool log_is_possible(const struct engine_log *log, struct members *newest) {
    uint64_t last = log->first_kept + log->count - 1;
    uint64_t term = 0;
    newest->count = 0;
    if (log->first_kept == 0)
        return log->count == 0 && log->known_durable == 0 && log->members_bytes == 0;
    if (log->vote_term > ENGINE_TERM_MAX || log->header_term > ENGINE_TERM_MAX || last > INDEX_MAX ||
        (log->count > 0 && log->entries == NULL))
        return false;
    uint64_t highest = log->vote_term > log->header_term ? log->vote_term : log->header_term;
    if (log->known_durable >= 2) {
        if (!members_decode(newest, log->members, log->members_bytes) || log->members_index == 0 ||
            log->members_index > log->known_durable || log->known_durable_term == 0 ||
            log->known_durable_term > highest || log->first_kept < 2 || log->first_kept > log->known_durable + 1 ||
            last < log->known_durable)
            return false;
        term = log->first_kept == log->known_durable + 1 ? log->known_durable_term : 0;
    } else if (log->first_kept != 1 || log->count == 0 || log->entries[0].kind != ENGINE_MEMBERS) {
        return false;
    }
    for (uint32_t i = 0; i < log->count; i++) {
        const struct engine_entry *entry = &log->entries[i];
        uint64_t index = log->first_kept + i;
        struct members m;
        if (entry->term == 0 || entry->term < term || entry->term > highest || entry->kind < ENGINE_BATCH ||
            entry->kind > ENGINE_MEMBERS ||
            (index == log->known_durable && log->known_durable >= 2 && entry->term != log->known_durable_term))
            return false;
        if (entry->kind == ENGINE_MEMBERS) {
            if (!members_decode(&m, entry->configuration, entry->configuration_bytes))
                return false;
            if (index > log->members_index || log->known_durable < 2)
                *newest = m;
        }
        term = entry->term;
    }
    return true;
}

bool options_are_possible(const struct engine_options *o) {
    return o->member != 0 && o->heartbeat_ms > 0 && o->election_ms >= 2 * o->heartbeat_ms && o->in_flight_max > 0 &&
           o->in_flight_max <= ENGINE_ENTRIES_MAX;
}

size_t terms_of(const struct engine_log *log) {
    size_t terms = 1;
    for (uint32_t i = 1; i < log->count; i++)
        terms += log->entries[i].term != log->entries[i - 1].term;
    return terms;
}
