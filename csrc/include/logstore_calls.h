/*
 * The core's calls for a binding that is not linked with the core: a table of typed addresses. The binding gets the
 * table from ls_calls_table() of the core that it serves, and refuses one of another layout.
 */
#ifndef LOGSTORE_CALLS_H
#define LOGSTORE_CALLS_H

#include "logstore.h"

/* Each is a function of logstore.h, without its ls_. */
#define LS_CALLS(CALL)      \
    CALL(acquire)           \
    CALL(acquire_after)     \
    CALL(acquire_expired)   \
    CALL(acquire_ids)       \
    CALL(annotate)          \
    CALL(columns_free)      \
    CALL(cursor_close)      \
    CALL(cursor_load)       \
    CALL(cursor_next)       \
    CALL(dequeue)           \
    CALL(durable_lsn)       \
    CALL(durable_soon)      \
    CALL(enqueue_acquired)  \
    CALL(event_answer_all)  \
    CALL(free)              \
    CALL(hold_release)      \
    CALL(inbox_free)        \
    CALL(load_acquired)     \
    CALL(load_content)      \
    CALL(load_many)         \
    CALL(message)           \
    CALL(message_rows_free) \
    CALL(move)              \
    CALL(near_full_changes) \
    CALL(next_lsn)          \
    CALL(next_lsn_try)      \
    CALL(publish)           \
    CALL(publish_acquired)  \
    CALL(publish_gather)    \
    CALL(publish_many)      \
    CALL(publish_timed)     \
    CALL(reader_close)      \
    CALL(release)           \
    CALL(room_percent_try)  \
    CALL(rows_free)         \
    CALL(settle)            \
    CALL(settle_all)        \
    CALL(taker_end)         \
    CALL(taker_new)         \
    CALL(taker_wait)        \
    CALL(tx_free)

#define LS_CALLS_FIELD(name) __typeof__ (&ls_##name)(name);

struct ls_calls {
    size_t bytes; /* of this struct: differs if core and binding were not built together */
    LS_CALLS(LS_CALLS_FIELD)
};

#endif
