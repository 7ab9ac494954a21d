/*
 * Messages and transactions as the log's first client: streams 1 and 2, and the checkpoints, which depend on the log's
 * files. Its parts of recovery, relocation and checkpoints are in replay/, relocate/ and checkpoint/.
 */
#include "replay/messages.h"
#include "store/store.h"

/* ---- recovery ---- */

static void lock_in_doubt(void *context, struct tx *tx) {
    const ls_store *store = context;
    messages_lock_in_doubt(&store->state.table, tx);
}

/* ---- space ---- */

static uint64_t weight(const void *context) {
    const ls_store *store = context;
    return BYTES_PER_PLACE * (store->state.table.place_count + store->state.table.tx_count);
}

/* Inline copies never grow when moved; states, pending work and transactions may, on their first move. */
static uint64_t expansion(const void *context) {
    const struct table *t = &((const ls_store *)context)->state.table;
    return STATE_BYTES * t->loose_count + WIDER_ROW_BYTES * t->wide_count + t->growth +
           TX_GROWS_BYTES * (uint64_t)t->tx_count;
}

static int relocate(void *context, struct mover *v, const struct record *r) {
    ls_store *store = context;
    return messages_relocate(&store->mover, &store->state.table, v, r);
}

static int relocate_end(void *context, struct mover *v, int rc) {
    (void)v;
    return messages_relocate_end(&((ls_store *)context)->mover, rc);
}

static void segment_begun(void *context) { checkpoint_consider(&((ls_store *)context)->checkpoints); }

static void durable_moved(void *context) { takers_serve_due(context); }

static void time_came(void *context) { takers_serve_due(context); }

static bool give_up_space(void *context) { return checkpoint_give_up(&((ls_store *)context)->checkpoints); }

#ifdef LOGSTORE_POISON
static void move(void *context) { table_move(&((ls_store *)context)->state.table); }
#endif

struct log_client messages_client(ls_store *store) {
    static const uint8_t streams[] = {1, 2};
    static const struct client_calls calls = {
        .type_name = format_type_name,
        .replay = messages_replay,
        .replay_commit = messages_replay_commit,
        .replay_rollback = messages_replay_rollback,
        .settle = messages_settle,
        .lock_in_doubt = lock_in_doubt,
        .prepare_commit = messages_prepare_commit,
        .commit = messages_commit,
        .rollback = messages_roll_back,
        .weight = weight,
        .expansion = expansion,
        /* a queue id of 4 bytes becomes a wide row, and all else grows less: no record gives a note to several places */
        .expansion_most = (ROW_BYTES + WIDER_ROW_BYTES + 3) / 4,
        .relocate = relocate,
        .relocate_end = relocate_end,
        .segment_begun = segment_begun,
        .durable_moved = durable_moved,
        .time_came = time_came,
        .give_up_space = give_up_space,
#ifdef LOGSTORE_POISON
        .move = move,
#endif
    };
    return (struct log_client){&calls, store, streams, sizeof streams};
}
