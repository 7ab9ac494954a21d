/*
 * A leader minds the room on the disks of the others: one copy of three is gone, and one has no room for another file. Then growth is
 * refused, the log can be drained, and it grows again. See log/space/others.c.
 */
#include <errno.h>
#include <semaphore.h>

#include "log/parts.h"
#include "tests/kit/copies.h"

enum { FULL = 1, GONE = 2, MESSAGES = 1000 };

/* ---- a thread that moves batches, as a program does ---- */

static struct {
    pthread_t thread;
    pthread_mutex_t lock; /* of what was sent, and of the copy that follows */
    sem_t handed, moved;
    bool ended;
    bool gone; /* the full copy, too: it is not counted then */
    int stuck; /* how many times it had no file for a batch */
    int least; /* of its spares that it had left */
} mover;

static void ship(void *context, const struct shipment *s) {
    (void)pthread_mutex_lock(&mover.lock);
    keep_sent(context, s);
    (void)pthread_mutex_unlock(&mover.lock);
    (void)sem_post(&mover.handed);
}

static uint64_t forced(void *context, uint64_t index, uint64_t end_lsn) {
    (void)context;
    (void)index;
    (void)end_lsn;
    (void)sem_post(&mover.handed);
    return 0;
}

static uint64_t take_batches(struct other_room *room) {
    struct replica *f = copies[FULL].follows;
    int rc = catch_up(&copies[FULL], copies[leader].last);

    if (rc == LS_FULL) { /* a fault of the leader, which would now wait for ever */
        mover.stuck++;
        vfs_sim_capacity(copies[FULL].sim, 0);
        rc = catch_up(&copies[FULL], copies[leader].last);
    }
    check(rc == LS_OK || complain("take"));
    replica_room(f, room);
    mover.least = (int)room->spares < mover.least ? (int)room->spares : mover.least;
    room->member = FULL;
    return f->end.lsn;
}

static void *move(void *log) {
    struct log *g = log;

    for (;;) {
        struct other_room room;
        uint64_t lsn;

        (void)sem_wait(&mover.handed);
        (void)pthread_mutex_lock(&mover.lock);
        if (mover.ended)
            break;
        lsn = take_batches(&room);
        log_lock(g);
        lsn = lsn < log_forced_lsn(g) ? lsn : log_forced_lsn(g);
        log_unlock(g);
        check(replica_durable(copies[FULL].follows, lsn) == LS_OK);
        (void)take_batches(&room);
        (void)pthread_mutex_unlock(&mover.lock);
        log_lock(g);
        log_majority_has(g, lsn);
        log_others_have(g, &room, mover.gone ? 0 : 1);
        log_unlock(g);
        (void)sem_post(&mover.moved);
    }
    (void)pthread_mutex_unlock(&mover.lock);
    return NULL;
}

/* ---- a group with one copy gone, and one without room ---- */

static void wait_for_spares(struct replica *f) {
    while (f->spares.count < REPLICA_SPARES) {
        replica_take_spare(f);
        replica_make_spare(f, false);
    }
}

static void start(void) {
    struct replication calls = {.ship = ship, .forced = forced};
    uint32_t ids[QUEUES];
    size_t n;
    struct log *g;

    copies_start();
    mover.ended = mover.gone = false;
    mover.stuck = 0;
    mover.least = REPLICA_SPARES;
    (void)pthread_mutex_init(&mover.lock, NULL);
    (void)sem_init(&mover.handed, 0, 0);
    (void)sem_init(&mover.moved, 0, 0);
    replica_free(copies[FULL].follows);
    r.options.background = 1;
    check(follow_again(FULL) == LS_OK);
    r.options.background = 0;
    n = list_queues(r.catalog, ids);
    check(begin_leading(0, 2, &calls) == LS_OK || complain("lead"));
    copies[GONE].reached = false;
    check(catch_up(&copies[FULL], copies[0].last) == LS_OK);
    wait_for_spares(copies[FULL].follows);
    vfs_sim_capacity(copies[FULL].sim, vfs_sim_used(copies[FULL].sim));
    g = copies[0].leads->log;
    log_lock(g);
    log_majority_has(g, log_forced_lsn(g));
    log_unlock(g);
    (void)pthread_create(&mover.thread, NULL, move, g);
    check(replica_serve(r.store, ids, n, QUEUES + 1) == LS_OK || complain("serve"));
}

static void end(void) {
    (void)pthread_mutex_lock(&mover.lock);
    mover.ended = true;
    (void)pthread_mutex_unlock(&mover.lock);
    (void)sem_post(&mover.handed);
    (void)pthread_join(mover.thread, NULL);
    (void)sem_destroy(&mover.handed);
    (void)sem_destroy(&mover.moved);
    (void)pthread_mutex_destroy(&mover.lock);
}

static uint64_t ids[MESSAGES];

static int publish_one(uint64_t *id) {
    static const uint8_t content[3000];
    uint32_t queue = 1;

    return ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, id);
}

static int fill_up(void) {
    int n = 0, rc = LS_OK;

    while (n < MESSAGES && rc == LS_OK)
        rc = publish_one(&ids[n++]);
    check(rc == LS_FULL || complain("it grows for ever"));
    return n - 1;
}

static void drain(int n) {
    uint64_t lsn;

    for (int i = 0; i < n; i++)
        check(ls_dequeue(r.store, ids[i], 1, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK || complain("dequeue"));
}

static void a_full_copy_bounds_growth_and_the_log_can_be_drained(void) {
    uint64_t id;

    start();
    for (int round = 0; round < 3; round++) {
        int n = fill_up();

        check(n > 4 || complain("there was no room at all"));
        check(strstr(ls_last_error()->text, "the copy on member 1 has") != NULL || complain("reason"));
        check(ls_last_error()->sys_errno == ENOSPC);
        drain(n);
        check(publish_one(&id) == LS_OK || complain("it is drained, and does not grow"));
        ids[0] = id;
        drain(1);
    }
    end();
    check(mover.stuck == 0 || complain("it had no file for a batch"));
    check(mover.least > 0);
    check(copies[GONE].last < copies[FULL].last);
    copies[GONE].reached = true;
    check(catch_up(&copies[FULL], copies[0].last) == LS_OK && catch_up(&copies[GONE], copies[0].last) == LS_OK);
    check(copies_agree());
    copies_end();
}

static void a_full_copy_bounds_nothing_once_it_has_room_or_is_gone(void) {
    uint64_t id;

    for (int gone = 0; gone < 2; gone++) {
        int rc;

        start();
        (void)fill_up();
        (void)pthread_mutex_lock(&mover.lock);
        vfs_sim_capacity(copies[FULL].sim, 0);
        mover.gone = gone == 1;
        (void)pthread_mutex_unlock(&mover.lock);
        do {
            (void)pthread_mutex_lock(&mover.lock);
            copies[FULL].follows->no_room.again_us = 0;
            (void)pthread_mutex_unlock(&mover.lock);
            while (sem_trywait(&mover.moved) == 0) {
            }
            (void)sem_post(&mover.handed); /* it tells its room now and then, also if nothing is published */
            (void)sem_wait(&mover.moved);
            rc = publish_one(&id);
        } while (rc == LS_FULL);
        check(rc == LS_OK);
        for (int i = 0; i < 100; i++)
            check(publish_one(&id) == LS_OK || complain("publish"));
        end();
        check(catch_up(&copies[FULL], copies[0].last) == LS_OK && catch_up(&copies[GONE], copies[0].last) == LS_OK);
        check(copies_agree());
        copies_end();
    }
}

/* A report is as old as the segment that it names; it comes later than the batches after it. */
static void segments_that_were_begun_since_a_report_count_as_used(void) {
    struct other_room room = {.member = FULL, .spares = REPLICA_SPARES, .error = ENOSPC};
    struct log *g;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    g = copies[0].leads->log;
    while (g->segment_count < REPLICA_SPARES + 2)
        (void)put_bytes(1, 'x', 3900, LS_WAIT);
    for (size_t begun = 0; begun < REPLICA_SPARES + 2; begun++) {
        size_t left = begun + 1 < REPLICA_SPARES ? REPLICA_SPARES - begun - 1 : 0;

        room.first_lsn = g->segments[g->segment_count - 1 - begun]->first_lsn;
        log_lock(g);
        log_others_have(g, &room, 1);
        check(g->space.others.spares == left && g->space.others.least_member == FULL);
        log_unlock(g);
    }
    log_lock(g);
    log_others_have(g, NULL, 0);
    log_unlock(g);
    check(copies_agree());
    copies_end();
}

int main(void) {
    static void (*const tests[])(void) = {
        segments_that_were_begun_since_a_report_count_as_used,
        a_full_copy_bounds_growth_and_the_log_can_be_drained,
        a_full_copy_bounds_nothing_once_it_has_room_or_is_gone,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
