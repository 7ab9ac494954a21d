/* Checkpoints as the public API has them. checkpoint/ takes and loads them. */
#include <sched.h>

#include "inspect/inspect.h"
#include "store/store.h"

int ls_checkpoint(ls_store *store, ls_checkpoint_info *info) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    return store_leave(store, checkpoint_take(&store->checkpoints, info), LEAVE_QUIETLY);
}

/* In steps, so that no thread waits long for the lock. */
int ls_checkpoint_size(ls_store *store, ls_checkpoint_info *info) {
    enum { STEP_MESSAGES = 4096 };
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    if (!store->checkpoints.running) {
        const struct inspection *i = store->inspection;
        rows_forget_old_deletions(&store->state, i != NULL ? inspection_base_lsn(i) : log_named_base_lsn(store->log));
    }
    const struct table *t = &store->state.table;
    uint64_t rows =
        (uint64_t)DELETION_ROW_BYTES * store->state.deletions.count + (uint64_t)TRANSACTION_ROW_BYTES * t->tx_count;
    *info = (ls_checkpoint_info){.messages = t->message_count,
                                 .places = t->place_count,
                                 .operations = t->work_count,
                                 .transactions = t->tx_count};
    for (uint32_t number = 0; number < t->message_slots; number++) {
        struct message *m = table_message(t, number);
        rows += (m->flags & MESSAGE_FREE) == 0 ? rows_bytes_of(m) : 0;
        if (number % STEP_MESSAGES == STEP_MESSAGES - 1) {
            log_let_go(store->log);
            (void)sched_yield();
            log_take_back(store->log);
        }
    }
    uint64_t blocks = rows / (CHECKPOINT_BLOCK_BYTES - CHECKPOINT_BLOCK_HEADER_BYTES) + (rows > 0 ? 1 : 0);
    info->bytes = CHECKPOINT_HEADER_BYTES + CHECKPOINT_BLOCK_HEADER_BYTES * blocks + rows;
    return store_leave(store, rc, LEAVE_QUIETLY);
}

const char *ls_checkpoint_state_text(int state) {
    static const char *const texts[] = {
        "there is none",
        "used",
        "it is damaged",
        "it is of a newer format version",
        "it is another store's",
        "the log ends before it",
        "the base of the log has passed it",
        "the batch that it names is not in the log",
        "the log behind it contradicts it",
        "it cannot be read",
    };
    return state >= 0 && (size_t)state < sizeof texts / sizeof *texts ? texts[state] : "unknown";
}
