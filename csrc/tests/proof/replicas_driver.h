/*
 * The driver of the copies' explorer: three members, or five, with a copy of one log, each on a simulated disk, in one thread. A majority votes
 * for its most up to date (the term of its newest batch, then its index) in a term above all that their VOTEs have. It leads and
 * works; followers lag, are cut, take checkpoints, get updates by segments, lose power or die in the middle of a call; leaders fail
 * before a majority has anything, and one after another, or cease and follow.
 *
 * What always holds:
 *   - only what a copy has said to be forced counts for a majority, and a copy that fails comes back with all that others rely on;
 *   - every disk's journal has a mark for each batch that the copy has said to be forced, and for each vote, before anybody relies on it;
 *   - terms come from the VOTEs of a majority and from nowhere else, and no term is led twice;
 *   - an error is an answer only where a failure was planned for that disk, or the leader was left without a majority.
 */
#ifndef LOGSTORE_REPLICAS_DRIVER_H
#define LOGSTORE_REPLICAS_DRIVER_H

#include "tests/proof/replicas_updates.h"

/* ---- from the leader to the others ---- */

static void take_a_checkpoint(int i) {
    bool taken = false;
    int rc;

    memory_is_short(4, 12);
    rc = dice(3) == 0 ? replica_checkpoint(copies[i].follows, &taken)
                      : replica_checkpoint_begin(copies[i].follows, &taken); /* batches are taken meanwhile */
    d.checkpoints += taken;
    if (!memory_was_short() && rc != LS_OK && !was_struck(i))
        (void)violated(ANSWER, "a follower's checkpoint fails");
}

/* Sends a follower what it lacks; now and then it dies meanwhile. False: it has not said that it has all. */
static bool delivers(int i) {
    struct copy *c = &copies[i];
    size_t since = journal_end(c);
    bool was_short;
    int rc;

    memory_is_short(40, 20);
    rc = catch_up(c, copies[leader].last);
    was_short = memory_was_short();
    if (was_short && rc == LS_NO_MEMORY)
        rc = catch_up(c, copies[leader].last); /* it takes the same batches, or none */
    if (was_short && rc == LS_POISONED) {
        (void)starts_again(i);
        return false;
    }
    if (rc != LS_OK) {
        if (!was_struck(i) && (c->follows->error == 0 || c->host->vote->error != 0))
            return violated(ANSWER, "a follower refuses the leader's batches");
        if (!was_struck(i))
            return violated(ANSWER, "a follower's disk failed, and no failure was planned");
        (void)starts_again(i);
        return false;
    }
    if (dice(70) == 0) {
        (void)dies(i, since, dice(3) != 0);
        return false;
    }
    return true;
}

static void deliver_to_some(void) {
    bool one_has = false;

    for (int i = 0; i < d.members; i++) {
        bool lags = (one_has && dice((uint64_t)d.lag) == 0) || (updating[i].wanted && !d.ends && dice(12) != 0);

        if (i != leader && copies[i].reached && copies[i].follows != NULL && !lags && d.broken == NOTHING_BROKEN)
            one_has = delivers(i) || one_has;
    }
}

static void hand_out(void *context, const struct shipment *s) {
    struct shortage was = shortage_pauses();

    for (int i = 0; i < sent_count; i++) {
        if (s->lsn < sent[i].s.end_lsn && sent[i].s.lsn < s->end_lsn)
            (void)violated(IDS, "two batches have an LSN in common");
        if (s->header != NULL && sent[i].s.first_lsn == s->first_lsn)
            (void)violated(IDS, "two segments begin at one LSN");
    }
    keep_sent(context, s);
    if (dice(4) == 0) {
        deliver_to_some(); /* they force it before this disk does, */
        if (dice(12) == 0 && d.fails_calls)
            vfs_sim_fail(copies[leader].sim,
                         &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO}); /* which never will */
    }
    shortage_goes_on(was);
}

/* How many have this batch. */
static int copies_with(int batch) {
    int n = 0;

    for (int i = 0; i < d.members; i++)
        n += is_in(copies[i].last, batch);
    return n;
}

/* The newest batch of this term that the leader and a majority have, in `sent`; -1: none. */
static int majority_has(void) {
    int best = -1;

    for (int i = 0; i < d.members; i++) {
        int common = i != leader ? common_of(copies[i].last, copies[leader].last) : -1;

        if (common >= 0 && sent[common].s.term == d.term && copies_with(common) > d.members / 2 &&
            (best < 0 || sent[common].s.index > sent[best].s.index))
            best = common;
    }
    for (int i = 0; best >= 0 && i < d.members; i++)
        d.relied[i] = journal_end(&copies[i]);
    d.durable = best >= 0 ? best : d.durable;
    return best;
}

/* The floor follows the log at most each half second of a clock that stands nearly still here. */
static void note_tail_of(int i, struct tail forced) {
    struct host *h = copies[i].host;

    h->floor_written_us = dice(2) ? 0 : h->floor_written_us;
    if (host_note_tail(h, forced) == LS_OK)
        return;
    if (!was_struck(i))
        (void)violated(ANSWER, "a member's floor cannot be raised");
    else if (i == leader)
        r.lost = true;
    else
        (void)starts_again(i);
}

/* A part of one that was begun. */
static void checkpoint_moves_on(int i) {
    bool ended = false;
    int rc;

    if (copies[i].follows->checkpoint == NULL)
        return;
    memory_is_short(8, 12);
    rc = replica_checkpoint_ended(copies[i].follows, &ended);
    if (!memory_was_short() && rc != LS_OK && !was_struck(i))
        (void)violated(ANSWER, "a follower's checkpoint cannot be finished");
}

/* Followers learn what is durable, or not yet. */
static void tell_followers(int durable) {
    for (int i = 0; durable >= 0 && i < d.members; i++) {
        struct copy *c = &copies[i];
        int common = common_of(c->last, durable);

        if (i == leader || c->follows == NULL || common != durable || dice(2))
            continue;
        if (replica_durable(c->follows, sent[durable].s.end_lsn) != LS_OK && !was_struck(i))
            (void)violated(ANSWER, "a follower cannot apply what is durable");
        if (dice(25) == 0)
            take_a_checkpoint(i);
        checkpoint_moves_on(i);
        if (dice(8) == 0)
            note_tail_of(i, host_tail(c->host));
    }
}

static uint64_t ask_them(void *context, uint64_t index, uint64_t end_lsn) {
    struct shortage was = shortage_pauses();
    int durable;

    (void)context;
    (void)index;
    (void)end_lsn;
    tell(&copies[leader]);
    deliver_to_some();
    durable = majority_has();
    tell_followers(durable);
    shortage_goes_on(was);
    return durable >= 0 ? sent[durable].s.end_lsn : 0;
}

static const struct replication calls = {.ship = hand_out, .forced = ask_them};

/* With the log's lock: the others are reached again, and a majority may have what the leader has. */
static void others_come_back(struct log *g) {
    int durable;

    for (int i = 0; i < d.members; i++)
        copies[i].reached = copies[i].reached || dice(2);
    deliver_to_some();
    durable = majority_has();
    tell_followers(durable);
    if (durable >= 0)
        log_majority_has(g, sent[durable].s.end_lsn);
}

/*
 * The C library's: in this one thread nobody would end the wait. The others come back and have what it waits for, or the leader,
 * which has no majority, ceases to lead.
 */
int sem_wait(sem_t *semaphore) {
    struct shortage was;
    struct log *g;

    if (sem_trywait(semaphore) == 0)
        return 0;
    if (leader < 0 || copies[leader].leads == NULL)
        abort();
    g = copies[leader].leads->log;
    was = shortage_pauses();
    for (int tries = d.ends ? 20 : 1; tries > 0; tries--) {
        log_lock(g);
        if (!d.cut_off && g->poison == 0 && (d.ends || dice(3) != 0))
            others_come_back(g);
        log_unlock(g);
        if (sem_trywait(semaphore) == 0) {
            shortage_goes_on(was);
            return 0;
        }
    }
    d.left_alone = true;
    log_lock(g);
    log_cease(g);
    log_unlock(g);
    if (sem_trywait(semaphore) != 0)
        abort();
    shortage_goes_on(was);
    return 0;
}

/* ---- work ---- */

static void note_durable_ops(void) {
    d.durable_ops = d.durable_ops > r.durable ? d.durable_ops : r.durable;
    if (r.store != NULL)
        d.durable_ops = durable_at(&r, ls_durable_lsn(r.store), d.durable_ops);
}

/* No id that was given before is given again, also of what never reached a disk. */
static void note_ids(size_t from) {
    if (r.told_count > 0 && r.told[r.told_count - 1].id == 0)
        r.told_count--; /* the leader ceased in the midst of a message, which never had an id */
    for (size_t i = from; i < r.op_count; i++) {
        const struct op *op = &r.ops[i];
        uint64_t id = op->kind == PUBLISH || op->kind == STAGE ? op->id : op->kind == BEGIN ? op->tx : 0;

        if (id != 0 && id <= d.id_max)
            (void)violated(IDS, "an id was given out twice");
        d.id_max = id > d.id_max ? id : d.id_max;
    }
}

/* Not if there was no memory for it: then it is to be repeated, and the queue stays. */
static bool a_queue_was_deleted(size_t from) {
    bool found = false;

    for (size_t i = from; i < r.op_count; i++)
        found = found || r.ops[i].kind == DELETE_QUEUE;
    return found;
}

/*
 * One operation of the kit. A queue that is deleted leaves the catalog only once that is durable, as in a cluster; where that is not
 * known, the next leader's log says it.
 */
static void operate(bool moves) {
    unsigned catalog = r.catalog;
    size_t from = r.op_count;

    memory_is_short(6, 30); /* a call that fails then has changed nothing */
    if (moves) {
        publish(&r, PUBLISH, 2, -1, dice(8) == 0 && !r.hasty, 3500);
        if (!r.lost && r.now.depth[1] > 3 && r.now.places[1][r.now.depth[1] - 1].locked_by == 0)
            change_place(&r, DEQUEUE, r.now.places[1][r.now.depth[1] - 1].id, 1, -1, dice(8) == 0 && !r.hasty);
    }
    if (!r.lost && (!moves || dice(4) == 0))
        one_operation(&r);
    d.short_ops += memory_was_short();
    if (!r.lost && !a_queue_was_deleted(from))
        r.catalog |= catalog;
    if ((catalog & ~r.catalog) != 0 && (r.lost || ls_force(r.store, 0) != LS_OK)) {
        r.lost = true;
        r.catalog |= catalog;
    }
    note_ids(from);
    note_durable_ops();
    if (!r.lost && leader >= 0 && dice(10) == 0) {
        struct promise told = promised(copies[leader].sim, journal_end(&copies[leader]));

        if (told.last >= 0)
            note_tail_of(leader, (struct tail){sent[told.last].s.term, sent[told.last].s.index});
    }
}

/* Several segments are filled, and then all of it is dead at once. */
static void fill_and_drain_segments(void) {
    for (int i = 0; i < 26 && !r.lost && r.op_count + 60 < OPS_MAX; i++)
        publish(&r, PUBLISH, 2, -1, false, 12000);
    while (!r.lost && r.now.depth[1] > 0 && r.now.places[1][0].locked_by == 0 && r.op_count + 40 < OPS_MAX)
        change_place(&r, DEQUEUE, r.now.places[1][0].id, 1, -1, false);
}

static bool may_go_on(void) { return !r.lost && d.broken == NOTHING_BROKEN && r.op_count + 40 < OPS_MAX; }

static void work(uint64_t n, bool moves) {
    size_t from = r.op_count;

    if (moves && d.drains && may_go_on())
        fill_and_drain_segments();
    note_ids(from);
    note_durable_ops();
    for (uint64_t i = 0; i < n && may_go_on(); i++) {
        operate(moves);
        some_need_an_update();
        updates_move_on();
    }
}

/* The leader alone gets these: no majority has them, and a later leader may cut them. */
static void work_alone(uint64_t n) {
    bool checkpoints = r.checkpoints;

    for (int i = 0; i < d.members; i++)
        copies[i].reached = false;
    d.cut_off = true;
    r.hasty = true;
    r.checkpoints = false;
    for (uint64_t i = 0; i < n && may_go_on(); i++) {
        struct log *g = r.store->log;

        operate(false);
        log_lock(g);
        while (!r.lost && g->poison == 0 && log_unforced(g) > 0 && dice(3) == 0)
            log_lead_one(g);
        log_unlock(g);
    }
    r.hasty = false;
    r.checkpoints = checkpoints;
    d.cut_off = false;
}

/* ---- elections ---- */

static bool is_newer(int a, int b) {
    int x = copies[a].last, y = copies[b].last;
    uint64_t term_x = x >= 0 ? sent[x].s.term : 0, term_y = y >= 0 ? sent[y].s.term : 0;
    uint64_t index_x = x >= 0 ? sent[x].s.index : 0, index_y = y >= 0 ? sent[y].s.index : 0;

    return term_x > term_y || (term_x == term_y && (index_x > index_y || (index_x == index_y && dice(2))));
}

/* The catalog without queues that the leader's log has as deleted. It counts in memory until that is durable. */
static unsigned catalog_of_leader(void) {
    unsigned catalog = r.catalog;

    for (uint32_t q = 1; q <= QUEUES; q++) {
        const struct queue *queue = table_any_queue(&r.store->state.table, q);

        if (queue != NULL && queue->deleted)
            catalog &= ~(1u << q);
    }
    return catalog;
}

/* The new leader serves: the model must know its state. */
static bool is_recognised(void) {
    static struct model_state s;
    const struct bounds b = {d.durable_ops, r.op_count, r.catalog};
    size_t found = 0;

    if (!recognise(&r, r.store, b, &s, &found) || !contents_are(&r, r.store, &s))
        return !was_struck(leader) && violated(MODEL, "the new leader's state is not what the answers allow");
    forget_after(&r, found, r.op_count);
    r.ops[r.op_count++] = (struct op){.kind = REOPEN};
    r.durable = d.durable_ops = r.op_count;
    r.now = s;
    for (int t = 0; t < s.tx_count && t < TXS; t++) {
        r.tx_ids[t] = s.txs[t].id;
        r.distributed[t] = r.ended[t] = true;
        if (ls_in_doubt_take(r.store, s.txs[t].id, &r.handles[t]) != LS_OK)
            return !was_struck(leader) && violated(MODEL, "a transaction in doubt cannot be taken");
    }
    return true;
}

/* This member gives its vote, and tells it. */
static bool votes(int i, uint64_t term, int for_whom) {
    struct host *h = copies[i].host;
    uint64_t member = (uint64_t)for_whom + 1;

    if (host_vote(h, term, member) != LS_OK) {
        if (!was_struck(i))
            return violated(ANSWER, "a member cannot vote in a new term");
        (void)starts_again(i);
        return false;
    }
    note_vote(i, term, member);
    d.relied[i] = journal_end(&copies[i]);
    if (dice(12) == 0 &&
        (host_vote(h, term, 1 + member % (uint64_t)d.members) == LS_OK || host_vote(h, term - 1, 0) == LS_OK))
        return violated(VOTE, "a member votes twice in a term, or in an earlier one");
    return true;
}

/* A majority. */
struct voters {
    int who[COPIES_MAX];
    int count;
};

/* Without this member, if the others are enough. A member that lost its copy does not vote. */
static struct voters voters_without(int out) {
    struct voters v = {.count = 0};
    int from = (int)dice((uint64_t)d.members);
    bool spared = d.standby >= 0 && d.standby != out && d.members == COPIES;

    for (int k = 0; k < d.members && v.count <= d.members / 2; k++) {
        int i = (from + k) % d.members;

        if (i != d.standby && (i != out || spared))
            v.who[v.count++] = i;
    }
    return v;
}

static int best_of(const struct voters *v) {
    int best = v->who[0];

    for (int k = 1; k < v->count; k++)
        best = is_newer(v->who[k], best) ? v->who[k] : best;
    return best;
}

/* All vote for l, in a term that none of them knows. Now and then one dies between its vote and the lead. */
static bool majority_votes(const struct voters *v, int l) {
    uint64_t least = replica_least_term(copies[l].follows), known = 0;
    int first = (int)dice((uint64_t)v->count), dead = v->who[dice((uint64_t)v->count)];

    for (int k = 0; k < v->count; k++) {
        uint64_t term = host_term(copies[v->who[k]].host);

        known = term > known ? term : known;
    }
    d.term = known + 1 + dice(3);
    d.term = least > d.term ? least : d.term;
    for (int k = 0; k < v->count; k++) {
        if (!votes(v->who[(first + k) % v->count], d.term, l))
            return false;
    }
    for (size_t i = 0; i < d.led_count; i++) {
        if (d.led[i] == d.term)
            return violated(VOTE, "a term is led twice");
    }
    if (d.led_count == LEADS_MAX)
        abort();
    d.led[d.led_count++] = d.term;
    return dead == l || dice(10) != 0 || dies(dead, d.relied[dead], dice(3) != 0);
}

/* After a start, an earlier run's vote does not count. */
static bool leads_only_with_a_vote_of_this_run(int l) {
    if (dice(25) != 0)
        return true;
    if (starts_again(l)) {
        if (begin_leading(l, d.term, &calls) != LS_REFUSED)
            (void)violated(VOTE, "a run leads with the vote of another run");
        copies[l].follows = copies[l].host->follows;
    }
    leader = -1;
    return false;
}

static bool leads(int l) {
    int rc;

    d.leads++;
    update_ends(l);
    memory_is_short(12, 60);
    rc = begin_leading(l, d.term, &calls);
    if (!memory_was_short() && rc != LS_OK && !was_struck(l) && !(rc == LS_FULL && r.options.max_log_bytes != 0))
        return violated(ANSWER, "a copy cannot lead");
    if (rc != LS_OK) {
        leader = -1;
        (void)starts_again(l);
    }
    return rc == LS_OK;
}

static void reaches(const struct voters *v, uint64_t one_in) {
    for (int k = 0; k < v->count; k++)
        copies[v->who[k]].reached = copies[v->who[k]].reached || dice(one_in) == 0;
}

/* The best of these leads, and serves if a majority gets its first batch. False: it is not the leader any more, or broken. */
static bool elects(struct voters v, bool alone) {
    int l = best_of(&v), rc;
    uint32_t ids[QUEUES];
    unsigned catalog;
    size_t n;

    d.struck = d.left_alone = false;
    for (int i = 0; i < d.members; i++)
        copies[i].reached = !alone && dice(2);
    if (!alone)
        reaches(&v, 1);
    if (!majority_votes(&v, l) || !leads_only_with_a_vote_of_this_run(l) || !leads(l))
        return false;
    if (dice(2))
        reaches(&v, 1); /* its first batch may be durable only later */
    log_lock(r.store->log);
    if (!log_leads(r.store->log))
        others_come_back(r.store->log);
    log_unlock(r.store->log);
    catalog = catalog_of_leader();
    n = list_queues(catalog, ids);
    r.lost = false;
    r.sim = NULL; /* it needs no marks, which may find no memory */
    rc = d.broken == NOTHING_BROKEN ? replica_serve(r.store, ids, n, QUEUES + 1) : LS_OK;
    r.catalog = rc == LS_OK ? catalog : r.catalog;
    if (rc == LS_OK)
        return d.broken == NOTHING_BROKEN && is_recognised();
    if (rc != LS_WOULD_WAIT && !was_struck(l) && !d.left_alone)
        (void)violated(ANSWER, "the leader cannot serve");
    return false;
}

/* ---- rounds ---- */

/* Some call of one of the disks fails, once or from then on. */
static void plan_a_failure(void) {
    static const int errors[] = {EIO, EIO, ENOSPC, EDQUOT};
    static const int kinds[] = {0,
                                0,
                                VFS_SIM_PWRITE,
                                VFS_SIM_SYNC_DATA,
                                VFS_SIM_SYNC_FILE,
                                VFS_SIM_SYNC_DIR,
                                VFS_SIM_RENAME,
                                VFS_SIM_UNLINK,
                                VFS_SIM_OPEN,
                                VFS_SIM_ALLOCATE,
                                VFS_SIM_PREAD};
    const vfs_sim_plan plan = {.kind = kinds[dice(sizeof kinds / sizeof *kinds)],
                               .nth = 1 + dice(dice(2) ? 8 : 120),
                               .forever = (int)dice(2),
                               .error = errors[dice(sizeof errors / sizeof *errors)],
                               .survive = dice(2) ? chance(&d.chance) : 0};

    vfs_sim_fail(copies[dice((uint64_t)d.members)].sim, &plan);
}

/* The failures that were planned are over: what was struck is a process less. */
static bool failures_end(void) {
    bool fine = true;

    for (int i = 0; i < d.members; i++) {
        bool struck = was_struck(i);

        vfs_sim_fail(copies[i].sim, NULL);
        if (struck && copies[i].host != NULL && copies[i].leads == NULL)
            fine = fine && starts_again(i);
    }
    return fine;
}

static bool leads_no_term_twice(int l) {
    if (dice(2))
        return true;
    if (begin_leading(l, d.term, &calls) != LS_REFUSED)
        return violated(VOTE, "a member leads twice in a term");
    leader = -1;
    return true;
}

static bool leader_fails(size_t since) {
    int l = leader;

    if (l < 0 || copies[l].leads == NULL)
        return true;
    if (copies[l].host->vote->error == 0 && dice(3) == 0)
        return ceases(l) && leads_no_term_twice(l);
    return dies(l, since, dice(3) != 0);
}

/* One leader, from its election to its end. */
static void one_round(void) {
    int out = leader >= 0 && dice(4) != 0 ? leader : (int)dice((uint64_t)d.members);
    int style;

    if (leader >= 0 && !leader_fails(d.relied[leader]))
        return;
    for (int i = 0; i < d.members; i++) {
        if (copies[i].leads == NULL && dice(12) == 0 && !dies(i, d.relied[i], dice(2)))
            return;
    }
    for (uint64_t n = dice(8); n > 0 && d.broken == NOTHING_BROKEN; n--)
        updates_move_on(); /* without a leader */
    if (d.broken != NOTHING_BROKEN)
        return;
    if (d.fails_calls && dice(3) == 0)
        plan_a_failure();
    if (elects(voters_without(out), dice(4) == 0)) {
        work(4 + dice(25), dice(2) != 0);
        copies[out].reached = copies[out].reached || dice(2);
        style = (int)dice(4);
        if (style == 0) {
            int y = (leader + 1 + (int)dice((uint64_t)d.members - 1)) % d.members;

            if (d.broken == NOTHING_BROKEN && !was_struck(y) && dies(y, d.relied[y], true))
                work(6, false);
        } else if (style < 3 && may_go_on()) {
            work_alone(2 + dice(20));
        } else if (may_go_on()) {
            for (int i = 0; i < d.members; i++)
                copies[i].reached = false;
            work(4, true);
        }
        note_durable_ops();
    }
    if (d.broken == NOTHING_BROKEN)
        (void)failures_end();
}

/* ---- a run ---- */

static void run_options(uint64_t number) {
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = 2 + (uint32_t)(number % 5);
    r.options.initial_segments = 2 + (uint32_t)(number % 3);
    r.options.background = 0;
    r.options.max_log_bytes = number % 5 == 4 ? 12 * SEGMENT : 0;
    r.checkpoints = number % 3 == 0;
    r.busy = number % 4 == 3;
    r.stays = true;
}

/* One store with some work in it, copied to three disks, or to five. */
static bool begins(uint64_t number) {
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    memset(&d, 0, sizeof d);
    memset(updating, 0, sizeof updating);
    updates_to_count = 0;
    sent_count = 0;
    leader = d.durable = d.standby = d.owed = -1;
    d.members = number % 8 == 5 ? COPIES_MAX : COPIES;
    r.path = "/m/copy-1";
    d.chance = number * 7919 + 13;
    d.lag = 2 + (int)dice(8);
    d.hints_settle = number % 7 != 6;
    d.fails_calls = number % 2 != 0;
    d.drains = number % 4 == 2;
    run_options(number);
    vfs_sim_seed(sim, number);
    (void)vfs_sim_record(sim, 0);
    if (vfs_sim_table(sim)->make_dir(vfs_sim_table(sim), HOST) != 0)
        return violated(ANSWER, "no directory");
    run_start(&r, sim, number + 1);
    run_some(&r, dice(3) == 0 ? 0 : 20);
    note_ids(0);
    let_go_of_handles();
    if (r.lost || ls_close(r.store) != LS_OK)
        return violated(ANSWER, "the first store cannot be made");
    ls_free(r.store);
    r.store = NULL;
    r.durable = d.durable_ops = r.op_count;
    for (int i = 0; i < d.members; i++) {
        const struct vote first = {.cluster_uuid = {1}, .member_id = (uint64_t)i + 1, .copy = 1};
        const struct promise nothing = {.last = -1};

        copies[i] = (struct copy){.reached = true, .sim = i < d.members - 1 ? vfs_sim_clone(sim) : sim};
        if (host_create(vfs_sim_table(copies[i].sim), HOST, &first) != LS_OK)
            return violated(ANSWER, "a host cannot be made");
        use_disk(i, copies[i].sim, nothing);
        if (!opens_copy(i, &nothing))
            return false;
    }
    return true;
}

static bool all_have(int last) {
    bool same = true;

    for (int i = 0; i < d.members; i++)
        same = same && copies[i].last == last;
    return same;
}

/* At the end all have one log, and all of it is durable. False: broken. */
static bool all_agree(void) {
    int l;

    if (leader >= 0 && !leader_fails(d.relied[leader]))
        return false;
    d.lag = INT32_MAX;
    d.fails_calls = false;
    d.ends = true;
    for (int tries = 0; d.standby >= 0 && leader < 0 && tries < 10; tries++)
        updates_move_on(); /* it may need what only a leader has */
    for (int tries = 0; leader < 0 || r.lost; tries++) {
        if (d.broken != NOTHING_BROKEN || tries > 20)
            return violated(ANSWER, "no copy can lead in the end");
        if (leader >= 0 && !leader_fails(journal_end(&copies[leader])))
            return false;
        if (!elects(voters_without((int)dice((uint64_t)d.members)), false) && leader >= 0 && d.broken == NOTHING_BROKEN)
            r.lost = true;
    }
    if (d.broken != NOTHING_BROKEN)
        return false;
    for (int i = 0; i < d.members; i++)
        copies[i].reached = true;
    work(4, false);
    if (r.lost || ls_force(r.store, 0) != LS_OK)
        return violated(ANSWER, "the last leader cannot force its log");
    l = leader;
    for (int tries = 0; d.broken == NOTHING_BROKEN && d.standby >= 0; tries++) {
        work(1, false);
        if (tries > 2000)
            return violated(ANSWER, "a removed copy does not come back");
    }
    for (int i = 0; i < d.members; i++)
        sender_is_lost(i);
    if (d.broken == NOTHING_BROKEN && (r.lost || ls_force(r.store, 0) != LS_OK))
        return violated(ANSWER, "the last leader cannot force its log");
    while (d.broken == NOTHING_BROKEN && !all_have(copies[l].last))
        deliver_to_some();
    return d.broken == NOTHING_BROKEN && dies(l, journal_end(&copies[l]), false);
}

static void drives(uint64_t number, int rounds) {
    if (!begins(number))
        return;
    for (int i = 0; i < rounds && d.broken == NOTHING_BROKEN && r.op_count + 80 < OPS_MAX &&
                    sent_count + 400 < SENT_MAX && d.life_count + 20 < LIVES_MAX;
         i++)
        one_round();
    if (d.broken == NOTHING_BROKEN && failures_end())
        (void)all_agree();
}

static void driver_free(void) {
    for (int i = 0; i < d.members; i++) {
        if (copies[i].sim == NULL)
            continue;
        end_process(i);
        vfs_sim_free(copies[i].sim);
        copies[i].sim = NULL;
    }
    for (int i = 0; i < d.life_count; i++)
        vfs_sim_free(d.lives[i].sim);
    for (int i = 0; i < sent_count; i++) {
        free(sent[i].header);
        free(sent[i].bytes);
    }
    d.life_count = sent_count = 0;
}

#endif
