/* When a checkpoint is taken, and in which order. See checkpoint.h. */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "mutants/mutants.h"
#include "store/store.h"

void checkpoints_init(ls_store *store) {
    (void)pthread_cond_init(&store->checkpoints.wake, NULL);
    (void)pthread_cond_init(&store->checkpoints.done, NULL);
}

void checkpoints_free(ls_store *store) {
    free(store->checkpoints.deletions);
    (void)pthread_cond_destroy(&store->checkpoints.wake);
    (void)pthread_cond_destroy(&store->checkpoints.done);
}

bool checkpoint_prepare_deletion(ls_store *store) {
    struct checkpoints *c = &store->checkpoints;
    if (c->deletion_count == c->deletion_capacity) {
        size_t capacity = c->deletion_capacity == 0 ? 16 : 2 * c->deletion_capacity;
        struct deletion *deletions = realloc(c->deletions, capacity * sizeof *deletions);
        if (deletions == NULL) {
            return false;
        }
        c->deletions = deletions;
        c->deletion_capacity = capacity;
    }
    return true;
}

void checkpoint_note_deletion(ls_store *store, uint32_t queue_id, uint64_t lsn) {
    struct checkpoints *c = &store->checkpoints;
    c->deletions[c->deletion_count++] = (struct deletion){.lsn = lsn, .queue_id = queue_id};
}

/* ---- the policy ---- */

/* Bytes that an open would have to replay. */
static uint64_t log_since(const ls_store *store) {
    const struct log *g = &store->log;
    uint64_t bytes = 0;
    for (size_t i = g->segment_count; i-- > g->base_index;) {
        const struct segment *s = g->segments[i];
        uint64_t end_lsn = s->end_lsn != 0 ? s->end_lsn : g->end_lsn;
        uint64_t from = store->checkpoints.lsn > s->first_lsn ? store->checkpoints.lsn : s->first_lsn;
        bytes += end_lsn > from ? end_lsn - from : 0;
        if (from > s->first_lsn) {
            break;
        }
    }
    return bytes;
}

/* About what one would take: most messages are a plain row. */
static uint64_t about_its_size(const ls_store *store) {
    const struct table *t = &store->table;
    uint64_t bytes = (uint64_t)PLAIN_ROW_BYTES * t->message_count + (uint64_t)TRANSACTION_ROW_BYTES * t->tx_count +
                     (uint64_t)CHAIN_OPERATION_BYTES * t->work_count;
    return bytes > store->checkpoints.bytes ? bytes : store->checkpoints.bytes;
}

static bool is_due(const ls_store *store) {
    const struct log *g = &store->log;
    if (store->options.no_checkpoint != 0 || !g->serving || g->poison != 0 || g->cannot_grow ||
        g->append_lsn < store->checkpoints.retry_lsn) {
        return false;
    }
    uint64_t much = CHECKPOINT_SEGMENTS * g->segment_size;
    much = much > CHECKPOINT_LOG_MIN ? much : CHECKPOINT_LOG_MIN;
    uint64_t size = CHECKPOINT_TIMES_ITS_SIZE * about_its_size(store);
    return log_since(store) > (size > much ? size : much);
}

void checkpoint_consider(ls_store *store) {
    struct checkpoints *c = &store->checkpoints;
    if (c->thread_running && !c->running) {
        (void)pthread_cond_signal(&c->wake);
    }
}

/* ---- taking one ---- */

struct taking {
    ls_store *store;
    struct checkpoint_header header;
    struct rows rows;
    struct checkpoint_file file;
    int error; /* errno of a failed call */
};

/* The lock is held. After a close has begun only the closing thread goes on. */
static bool must_end(const ls_store *store) {
    const struct log *g = &store->log;
    bool allowed = g->serving || (g->closing && pthread_equal(g->closer, pthread_self()));
    return !allowed || store->checkpoints.give_up;
}

static int ended_early(const ls_store *store) {
    return store->checkpoints.give_up
               ? fail(LS_FULL, "the checkpoint was given up, since the log needs the disk's last blocks")
               : fail(LS_CLOSED, "the store is being closed");
}

/* Alone, between two moves of chains, and at the end of a batch. */
static int find_the_moment(ls_store *store) {
    struct log *g = &store->log;
    struct checkpoints *c = &store->checkpoints;
    for (;;) {
        while (c->running) {
            log_wait(g, &c->done);
        }
        if (must_end(store)) {
            return ended_early(store);
        }
        if (g->mid_chain) { /* replay would have to know the copies that were made before */
            log_wait(g, &g->maker_done);
            continue;
        }
        if (log_can_name_batch(g)) {
            log_name_batch(g);
            return LS_OK;
        }
        int rc = log_reserve(g, 0, RESERVE_SHRINKS); /* the first batch of this epoch */
        if (rc != LS_OK) {
            return rc;
        }
    }
}

static int begin(struct taking *k) {
    ls_store *store = k->store;
    struct log *g = &store->log;
    int rc = find_the_moment(store);
    if (rc != LS_OK) {
        return rc;
    }
    k->header = (struct checkpoint_header){
        .lsn = g->named_batch.end_lsn,
        .epoch = g->epoch,
        .base_lsn = log_base_lsn(g),
        .created_us = g->v->now_us(g->v),
    };
    memcpy(k->header.uuid, g->uuid, UUID_BYTES);
    int error = g->v->random(g->v, &k->header.salt, sizeof k->header.salt);
    if (error != 0) {
        return fail_errno(LS_IO, -error, "no random bytes for a checkpoint");
    }
    rc = rows_begin(&k->rows, store, &k->header);
    store->checkpoints.running = rc == LS_OK;
    return rc;
}

/* Without the lock. The last block of the file is kept back until it is known to be that. */
static void write_blocks(struct taking *k, struct row_block *list, bool all) {
    while (list != NULL) {
        struct row_block *next = list->next;
        if (k->error == 0) {
            k->error = -checkpoint_file_write(&k->file, list, all && next == NULL);
        }
        free(list);
        list = next;
    }
}

/* Lock held at both ends. Whatever fails, every message is passed, so that the next checkpoint begins anew. */
static void copy_all(struct taking *k) {
    struct log *g = &k->store->log;
    bool more = true;
    log_let_go(g);
    k->error = -checkpoint_file_begin(&k->file, g->v, g->dir, &k->header, &g->written);
    while (more) {
        log_take_back(g);
        if (k->error != 0 || must_end(k->store)) {
            k->rows.failed = true;
        }
        more = rows_copy_some(&k->rows);
        struct row_block *list = more ? rows_take_full(&k->rows) : NULL;
        if (more) {
            log_let_go(g);
            if (list == NULL) {
                (void)sched_yield();
            }
            write_blocks(k, list, false);
        }
    }
    rows_end(&k->rows);
}

/* Lock held at both ends. Everything is copied; the rest is to make it durable, the log first. */
static int finish(struct taking *k) {
    struct log *g = &k->store->log;
    bool no_memory = k->rows.failed && k->error == 0 && !must_end(k->store);
    int rc = no_memory ? fail_memory() : must_end(k->store) ? ended_early(k->store) : LS_OK;
    rc = rc == LS_OK && k->error == 0 ? log_force(g, k->header.lsn) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    if (MUTANT(CHECKPOINT_LSN_TOO_LATE)) {
        (void)log_force(g, g->end_lsn);
        g->named_batch = g->last_batch;
        k->header.lsn = g->last_batch.end_lsn;
    }
    k->header.batch_lsn = g->named_batch.lsn;
    k->header.batch_checksum = g->named_batch.checksum;
    struct row_block *list = rows_take_full(&k->rows);
    log_let_go(g);
    k->header.file_bytes = CHECKPOINT_HEADER_BYTES;
    for (const struct row_block *b = list; b != NULL; b = b->next) {
        k->header.file_bytes = CHECKPOINT_HEADER_BYTES + b->index * CHECKPOINT_BLOCK_BYTES + b->used;
    }
    write_blocks(k, list, true);
    if (k->error == 0) {
        k->error = -checkpoint_file_finish(&k->file);
    }
    log_take_back(g);
    if (k->error != 0) {
        return fail_errno(k->error == ENOSPC || k->error == EDQUOT ? LS_FULL : LS_IO, k->error,
                          "the checkpoint cannot be written");
    }
    return LS_OK;
}

static void note_result(struct taking *k, int rc) {
    struct checkpoints *c = &k->store->checkpoints;
    struct log *g = &k->store->log;
    if (rc == LS_OK) {
        c->lsn = k->header.lsn;
        c->bytes = k->header.file_bytes;
        g->stats.checkpoints++;
        return;
    }
    c->retry_lsn = g->append_lsn + CHECKPOINT_SEGMENTS * g->segment_size;
    g->stats.checkpoint_failures++;
}

int checkpoint_take(ls_store *store, ls_checkpoint_info *info) {
    struct log *g = &store->log;
    uint64_t start_us = g->v->monotonic_us(g->v);
    struct taking k = {.store = store};
    int rc = begin(&k);
    if (rc != LS_OK) {
        note_result(&k, rc);
        return rc;
    }
    copy_all(&k);
    rc = finish(&k);
    rows_free(&k.rows);
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        checkpoint_file_abandon(&k.file);
        (void)fail_again(&kept);
    }
    note_result(&k, rc);
    store->checkpoints.running = store->checkpoints.give_up = false;
    (void)pthread_cond_broadcast(&store->checkpoints.done);
    if (rc == LS_OK && info != NULL) {
        *info = (ls_checkpoint_info){
            .lsn = k.header.lsn,
            .bytes = k.header.file_bytes,
            .messages = k.header.messages,
            .places = k.header.places,
            .operations = k.header.operations,
            .transactions = k.header.transactions,
            .took_us = g->v->monotonic_us(g->v) - start_us,
        };
    }
    return rc;
}

bool checkpoint_give_up(ls_store *store) {
    struct checkpoints *c = &store->checkpoints;
    struct log *g = &store->log;
    bool any = c->running;
    while (c->running) {
        c->give_up = true;
        (void)pthread_cond_broadcast(&g->maker_done);
        log_wait(g, &c->done);
    }
    any = g->v->unlink(g->v, g->dir, "CHECKPOINT") == 0 || any;
    c->lsn = c->bytes = 0;
    c->retry_lsn = g->append_lsn + CHECKPOINT_SEGMENTS * g->segment_size; /* else it would take the blocks at once */
    return any;
}

/* ---- the thread ---- */

static void *checkpoint_thread(void *context) {
    ls_store *store = context;
    struct log *g = &store->log;
    struct checkpoints *c = &store->checkpoints;
    (void)pthread_mutex_lock(&g->lock);
    while (!c->stopping) {
        if (is_due(store)) {
            (void)checkpoint_take(store, NULL);
        } else {
            log_wait(g, &c->wake);
        }
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}

int checkpoint_start_thread(ls_store *store) {
    struct checkpoints *c = &store->checkpoints;
    if (!store->log.background || store->options.no_checkpoint != 0) {
        return LS_OK;
    }
    int rc = pthread_create(&c->thread, NULL, checkpoint_thread, store);
    if (rc != 0) {
        return fail_errno(LS_IO, rc, "the thread that takes checkpoints cannot be started");
    }
    (void)pthread_mutex_lock(&store->log.lock);
    c->thread_running = true;
    (void)pthread_mutex_unlock(&store->log.lock);
    return LS_OK;
}

void checkpoint_stop_thread(ls_store *store) {
    struct checkpoints *c = &store->checkpoints;
    struct log *g = &store->log;
    (void)pthread_mutex_lock(&g->lock);
    bool running = c->thread_running;
    c->stopping = true;
    c->thread_running = false;
    (void)pthread_cond_broadcast(&c->wake);
    (void)pthread_cond_broadcast(&g->maker_done);
    while (c->running) { /* perhaps another thread's; it ends soon, since the store no longer serves */
        (void)pthread_cond_broadcast(&g->maker_done);
        log_wait(g, &c->done);
    }
    (void)pthread_mutex_unlock(&g->lock);
    if (running) {
        (void)pthread_join(c->thread, NULL);
    }
}

void checkpoint_at_close(ls_store *store) {
    const struct log *g = &store->log;
    bool written = g->last_batch.end_lsn != 0 && g->last_batch.end_lsn == g->end_lsn;
    if (written && store->options.no_checkpoint == 0 && g->poison == 0 && !g->cannot_grow &&
        log_since(store) >= CHECKPOINT_LOG_MIN) {
        (void)checkpoint_take(store, NULL);
    }
}

/* ---- the public part ---- */

int ls_checkpoint(ls_store *store, ls_checkpoint_info *info) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    return store_leave(store, checkpoint_take(store, info), LEAVE_QUIETLY);
}

/* In steps, so that nobody waits long for the lock. */
int ls_checkpoint_size(ls_store *store, ls_checkpoint_info *info) {
    enum { STEP_MESSAGES = 4096 };
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    if (!store->checkpoints.running) {
        rows_forget_old_deletions(store);
    }
    const struct table *t = &store->table;
    uint64_t rows = (uint64_t)DELETION_ROW_BYTES * store->checkpoints.deletion_count +
                    (uint64_t)TRANSACTION_ROW_BYTES * t->tx_count;
    *info = (ls_checkpoint_info){.messages = t->message_count,
                                 .places = t->place_count,
                                 .operations = t->work_count,
                                 .transactions = t->tx_count};
    for (uint32_t number = 0; number < t->message_slots; number++) {
        struct message *m = table_message(t, number);
        rows += (m->flags & MESSAGE_FREE) == 0 ? rows_bytes_of(m) : 0;
        if (number % STEP_MESSAGES == STEP_MESSAGES - 1) {
            log_let_go(&store->log);
            (void)sched_yield();
            log_take_back(&store->log);
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
