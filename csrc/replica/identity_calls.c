/* Identity by its public names. */
#include "logstore.h"
#include "replica/identity.h"

static struct identity_count count_of(const ls_identity *c) {
    return (struct identity_count){c->rebuild, c->acknowledged, {c->tail_term, c->tail_index}, c->voted};
}

static ls_identity public_of(const struct identity_count *c) {
    return (ls_identity){c->rebuild, c->acknowledged, c->tail.term, c->tail.index, c->voted};
}

const char *ls_identity_judge(const ls_identity *counted, const ls_identity_told *told, uint64_t durable_term,
                              uint64_t durable_index, uint64_t leads) {
    const struct identity_count count = count_of(counted);
    const struct identity_told t = {
        told->rebuild, {told->tail_term, told->tail_index}, told->start_term, told->new_run != 0};
    const struct identity_peer peer = {{durable_term, durable_index}, leads};
    enum identity_verdict verdict = identity_judge(&count, &t, &peer);
    return verdict == IDENTITY_ACCEPTED ? NULL : identity_text(verdict);
}

void ls_identity_acknowledged(ls_identity *counted, uint64_t rebuild, uint64_t term, uint64_t batch_term,
                              uint64_t batch_index) {
    struct identity_count count = count_of(counted);
    identity_acknowledged(&count, rebuild, term, (struct tail){batch_term, batch_index});
    *counted = public_of(&count);
}

void ls_identity_voted(ls_identity *counted, uint64_t term) {
    struct identity_count count = count_of(counted);
    identity_voted(&count, term);
    *counted = public_of(&count);
}

void ls_identity_lower(ls_identity *counted, uint64_t left_term, uint64_t left_index) {
    struct identity_count count = count_of(counted);
    identity_lower(&count, (struct tail){left_term, left_index});
    *counted = public_of(&count);
}
