/* When a checkpoint is taken, and in which order. See checkpoint.h. */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

void checkpoints_init(struct checkpoints *c, struct log *log, struct state *state, struct directory *directory,
                      const struct meta *meta, const ls_options *options) {
    c->log = log;
    c->state = state;
    c->directory = directory;
    c->meta = meta;
    c->disabled = options->no_checkpoint != 0;
    c->background = options->background != 0;
    (void)pthread_cond_init(&c->wake, NULL);
    (void)pthread_cond_init(&c->done, NULL);
}

void checkpoints_free(struct checkpoints *c) {
    (void)pthread_cond_destroy(&c->wake);
    (void)pthread_cond_destroy(&c->done);
}

/* ---- the policy ---- */

/* Roughly the size of a checkpoint taken now: most messages are a plain row. */
static uint64_t about_its_size(const struct checkpoints *c) {
    const struct table *t = &c->state->table;
    uint64_t bytes = (uint64_t)PLAIN_ROW_BYTES * t->message_count + (uint64_t)TRANSACTION_ROW_BYTES * t->tx_count +
                     (uint64_t)CHAIN_OPERATION_BYTES * t->work_count;
    return bytes > c->bytes ? bytes : c->bytes;
}

static bool is_due(const struct checkpoints *c) {
    const struct log *g = c->log;
    if (c->disabled || !log_serves(g) || !log_can_grow(g) || log_end_lsn(g) < c->retry_lsn) {
        return false;
    }
    uint64_t much = CHECKPOINT_SEGMENTS * c->meta->segment_size;
    much = much > CHECKPOINT_LOG_MIN ? much : CHECKPOINT_LOG_MIN;
    uint64_t size = CHECKPOINT_TIMES_ITS_SIZE * about_its_size(c);
    return log_bytes_since(g, c->lsn) > (size > much ? size : much); /* an open would have to replay them */
}

void checkpoint_consider(struct checkpoints *c) {
    if (c->thread_running && !c->running) {
        (void)pthread_cond_signal(&c->wake);
    }
}

/* ---- taking one ---- */

struct taking {
    struct checkpoints *c;
    struct checkpoint_header header;
    struct rows rows;
    struct checkpoint_file file;
    int error; /* errno of a failed call */
};

/* The lock is held. After a close has begun only the closing thread continues. */
static bool must_end(const struct checkpoints *c) { return !log_takes_records(c->log) || c->give_up; }

static int ended_early(const struct checkpoints *c) {
    return c->give_up ? fail(LS_FULL, "the checkpoint was given up, since the log needs the disk's last blocks")
                      : fail(LS_CLOSED, "the store is being closed");
}

/* Waits for a moment when no other checkpoint runs and no chain is being moved, and ends a batch there. */
static int find_the_moment(struct checkpoints *c) {
    struct log *g = c->log;
    for (;;) {
        while (c->running) {
            log_wait(g, &c->done);
        }
        if (must_end(c)) {
            return ended_early(c);
        }
        bool named;
        int rc = log_name_batch(g, &named);
        if (rc != LS_OK || named) {
            return rc;
        }
    }
}

static int begin(struct taking *k) {
    struct checkpoints *c = k->c;
    vfs *v = c->directory->v;
    int rc = find_the_moment(c);
    if (rc != LS_OK) {
        return rc;
    }
    k->header = (struct checkpoint_header){
        .lsn = log_named_batch(c->log).end_lsn,
        .epoch = log_epoch(c->log),
        .base_lsn = log_named_base_lsn(c->log),
        .created_us = v->now_us(v),
    };
    memcpy(k->header.uuid, c->meta->uuid, UUID_BYTES);
    int error = v->random(v, &k->header.salt, sizeof k->header.salt);
    if (error != 0) {
        return fail_errno(LS_IO, -error, "no random bytes for a checkpoint");
    }
    rc = rows_begin(&k->rows, c->state, &k->header, false);
    c->running = rc == LS_OK;
    return rc;
}

/* Without the lock. Keeps the last block back until it is known whether it ends the file. */
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

/*
 * The lock is held at call and return. Visits every message even after a failure, so that all have the same mark for
 * the next checkpoint.
 */
static void copy_all(struct taking *k) {
    struct log *g = k->c->log;
    bool more = true;
    log_let_go(g);
    k->error = -checkpoint_file_begin(&k->file, k->c->directory, &k->header);
    while (more) {
        log_take_back(g);
        if (k->error != 0 || must_end(k->c)) {
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

/* The lock is held at call and return. All rows are copied; makes the log durable, and then the file. */
static int finish(struct taking *k) {
    struct log *g = k->c->log;
    bool no_memory = k->rows.failed && k->error == 0 && !must_end(k->c);
    int rc = no_memory ? fail_memory() : must_end(k->c) ? ended_early(k->c) : LS_OK;
    rc = rc == LS_OK && k->error == 0 ? log_force(g, k->header.lsn) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    k->header.batch_lsn = log_named_batch(g).lsn;
    k->header.batch_checksum = log_named_batch(g).checksum;
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

static void wait_for_more(struct checkpoints *c) {
    c->retry_lsn = log_end_lsn(c->log) + CHECKPOINT_SEGMENTS * c->meta->segment_size;
}

static void note_result(struct taking *k, int rc) {
    struct checkpoints *c = k->c;
    if (rc == LS_OK) {
        c->lsn = k->header.lsn;
        c->bytes = k->header.file_bytes;
        c->taken++;
        return;
    }
    wait_for_more(c);
    c->failures++;
}

int checkpoint_take(struct checkpoints *c, ls_checkpoint_info *info) {
    vfs *v = c->directory->v;
    uint64_t start_us = v->monotonic_us(v);
    struct taking k = {.c = c};
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
    c->running = c->give_up = false;
    (void)pthread_cond_broadcast(&c->done);
    if (rc == LS_OK && info != NULL) {
        *info = (ls_checkpoint_info){
            .lsn = k.header.lsn,
            .bytes = k.header.file_bytes,
            .messages = k.header.messages,
            .places = k.header.places,
            .operations = k.header.operations,
            .transactions = k.header.transactions,
            .took_us = v->monotonic_us(v) - start_us,
        };
    }
    return rc;
}

bool checkpoint_give_up(struct checkpoints *c) {
    vfs *v = c->directory->v;
    bool any = c->running;
    while (c->running) {
        c->give_up = true;
        log_wake_waiting(c->log);
        log_wait(c->log, &c->done);
    }
    any = v->unlink(v, c->directory->dir, "CHECKPOINT") == 0 || any;
    c->lsn = c->bytes = 0;
    wait_for_more(c); /* otherwise the next checkpoint would take the freed blocks at once */
    return any;
}

/* ---- the thread ---- */

static void *checkpoint_thread(void *context) {
    struct checkpoints *c = context;
    struct log *g = c->log;
    log_lock(g);
    while (!c->stopping) {
        if (is_due(c)) {
            (void)checkpoint_take(c, NULL);
        } else {
            log_wait(g, &c->wake);
        }
    }
    log_unlock(g);
    return NULL;
}

int checkpoint_start_thread(struct checkpoints *c) {
    if (!c->background || c->disabled) {
        return LS_OK;
    }
    int rc = pthread_create(&c->thread, NULL, checkpoint_thread, c);
    if (rc != 0) {
        return fail_errno(LS_IO, rc, "the thread that takes checkpoints cannot be started");
    }
    log_lock(c->log);
    c->thread_running = true;
    log_unlock(c->log);
    return LS_OK;
}

void checkpoint_stop_thread(struct checkpoints *c) {
    struct log *g = c->log;
    log_lock(g);
    bool running = c->thread_running;
    c->stopping = true;
    c->thread_running = false;
    (void)pthread_cond_broadcast(&c->wake);
    log_wake_waiting(g);
    while (c->running) { /* perhaps another thread's; it ends soon, since the store no longer serves */
        log_wake_waiting(g);
        log_wait(g, &c->done);
    }
    log_unlock(g);
    if (running) {
        (void)pthread_join(c->thread, NULL);
    }
}

void checkpoint_at_close(struct checkpoints *c) {
    const struct log *g = c->log;
    if (log_ends_in_batch(g) && !c->disabled && log_can_grow(g) && log_bytes_since(g, c->lsn) >= CHECKPOINT_LOG_MIN) {
        (void)checkpoint_take(c, NULL);
    }
}
