/*
 * Checkpoints while many threads work on the store, taken by the store's thread and by other threads at the same time. After
 * a kill at any moment an open from the checkpoint gives the same state as the whole log. Run it under a thread sanitizer.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/kit/checkpoint_pair.h"

enum { WORKERS = 3, ROUNDS = ONE_IN > 1 ? 12 : 40, MINE = 400 };

static atomic_bool stop, resting; /* ... the workers rest while the result is checked, since there are few processors */
static atomic_int refusals, taken;
static ls_store *store;

struct worker {
    pthread_t thread;
    uint32_t queue;
    uint64_t chance;
};

static void refuse_none(int rc) {
    if (rc != LS_OK && rc != LS_CLOSED && atomic_fetch_add(&refusals, 1) == 0)
        printf("refused: %d %s\n", rc, ls_last_error()->text);
}

static void rest(void) {
    const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};

    while (atomic_load(&resting) && !atomic_load(&stop))
        (void)nanosleep(&pause, NULL);
}

/* Publishes, takes, stages, moves from queue to queue and works in transactions, on messages of its own. */
static void *work(void *context) {
    struct worker *w = context;
    static const uint8_t content[5000];
    uint64_t ids[MINE], lsn;
    int count = 0;

    while (!atomic_load(&stop)) {
        uint64_t c = chance(&w->chance);
        ls_tx *tx = NULL;
        int rc = LS_OK;

        rest();
        if (c % 5 == 0)
            rc = ls_begin(store, NULL, &tx);
        if (rc == LS_OK && count < MINE && (count < 10 || c % 16 < 9)) {
            uint32_t queues[] = {w->queue, 4};

            rc = ls_publish(store, queues, 1 + c % 2, NULL, 0, content, c % 37 == 0 ? 5000 : c % 300, tx, 0,
                            &ids[count]);
            count += rc == LS_OK;
        } else if (rc == LS_OK) {
            uint64_t id = ids[chance(&w->chance) % (uint64_t)count];

            rc = ls_dequeue(store, id, c % 3 == 0 ? 4 : w->queue, tx, 1, 0, 0, &lsn);
            if (rc == LS_UNKNOWN_MESSAGE || rc == LS_NOT_ENQUEUED) {
                for (int i = 0; i < count; i++)
                    if (ids[i] == id)
                        ids[i] = ids[--count];
                rc = LS_OK;
            }
        }
        refuse_none(rc);
        if (tx != NULL) {
            rc = c % 7 == 0 ? ls_rollback(tx, 0) : ls_commit(tx, c % 3 == 0 ? LS_WAIT : 0);
            refuse_none(rc);
        }
        ls_tx_free(tx);
    }
    return NULL;
}

static void *take_checkpoints(void *context) {
    (void)context;
    while (!atomic_load(&stop)) {
        int rc = ls_checkpoint(store, NULL);

        rest();
        refuse_none(rc);
        atomic_fetch_add(&taken, rc == LS_OK);
    }
    return NULL;
}

static void after_a_kill_an_open_gives_the_same_state_with_and_without_the_checkpoint(void) {
    struct worker workers[WORKERS];
    pthread_t takers[2];
    ls_options o;
    int used = 0;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    fresh_with(&o);
    store = r.store;
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.queue = (uint32_t)i + 1, .chance = (uint64_t)i};
        require(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        require(pthread_create(&takers[i], NULL, take_checkpoints, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};
        int until = atomic_load(&taken) + 1;
        vfs_sim *disk;

        while (atomic_load(&taken) < until && atomic_load(&refusals) == 0)
            (void)nanosleep(&pause, NULL);
        disk = vfs_sim_clone(sim);
        atomic_store(&resting, true);
        used += same_both_ways(disk, r.catalog);
        vfs_sim_free(disk);
        atomic_store(&resting, false);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < WORKERS; i++)
        check(pthread_join(workers[i].thread, NULL) == 0);
    for (int i = 0; i < 2; i++)
        check(pthread_join(takers[i], NULL) == 0);
    check(atomic_load(&refusals) == 0);
    check(used > ROUNDS / 2 || complain("too few checkpoints were used"));
    again();
    done();
}

/* The store's own thread takes one when there is enough log for it, and the close waits for no other thread. */
static void one_is_taken_in_the_background_when_there_is_much_log(void) {
    ls_options o;
    ls_stats stats = {.checkpoints = 0};

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    fresh_with(&o);
    for (int i = 0; i < 12000 && stats.checkpoints == 0; i++) {
        (void)put_bytes(1, 1, 3900, 0);
        ls_stats_get(r.store, &stats);
    }
    for (int i = 0; i < 20000 && stats.checkpoints == 0; i++) {
        const struct timespec pause = {.tv_nsec = 1000 * 1000};

        (void)nanosleep(&pause, NULL);
        ls_stats_get(r.store, &stats);
    }
    check(ls_force(r.store, 0) == LS_OK); /* the flusher has nothing left to write between two looks at the disk */
    check(stats.checkpoints > 0 && stats.checkpoint_failures == 0);
    check(same_both_ways(sim, r.catalog) == 1);
    done();
}

static void the_close_takes_one_if_much_would_have_to_be_replayed(void) {
    for (int much = 0; much < 2; much++) {
        ls_recovery report;

        fresh();
        for (int i = 0; i < (much ? 2600 : 1300); i++)
            (void)put_bytes(1, 1, 3900, 0);
        again();
        ls_recovery_report(r.store, &report);
        check(report.checkpoint_used == much && report.clean);
        check(report.records <= (much ? 1 : 2000));
        done();
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        one_is_taken_in_the_background_when_there_is_much_log,
        the_close_takes_one_if_much_would_have_to_be_replayed,
        after_a_kill_an_open_gives_the_same_state_with_and_without_the_checkpoint,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
