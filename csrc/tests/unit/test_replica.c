/*
 * Copies of one log on three disks: a follower has the leader's bytes, applies what is durable, leads when it is told to, and
 * refuses what does not follow. See replica/replica.h.
 */
#include "log/parts.h"
#include "tests/kit/copies.h"

/* With the lock: writes and forces what was appended, whatever a majority has. */
static bool force_here(struct log *g) {
    while (g->poison == 0 && log_unforced(g) > 0)
        log_lead_one(g);
    return g->poison == 0;
}

static uint64_t messages_in(int i) { return copies[i].follows->store->state.table.message_count; }

/* ---- following ---- */

static void followers_have_the_leaders_bytes_and_apply_what_is_durable(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK || complain("lead"));
    for (int i = 0; i < 20; i++)
        (void)put(1, "message", NULL);
    check(ls_force(r.store, 0) == LS_OK);
    check(messages_in(1) >= 20 && messages_in(2) >= 20);
    check(copies[1].follows->applied.lsn <
          copies[1].follows->end.lsn); /* the leader has not said yet that it is durable */
    check(ls_durable_lsn(r.store) == ls_next_lsn(r.store));
    check(copies_agree());
    copies_end();
}

static void a_message_is_durable_without_one_of_three_copies_and_not_without_two(void) {
    uint64_t lsn;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    copies[1].reached = false;
    (void)put(1, "on two disks", NULL);
    copies[2].reached = false;
    (void)put_bytes(1, 'x', 10, 0);
    log_lock(r.store->log);
    lsn = log_end_lsn(r.store->log);
    check(force_here(r.store->log));
    check(log_durable_lsn(r.store->log) < lsn && log_forced_lsn(r.store->log) == lsn);
    log_unlock(r.store->log);
    copies[1].reached = true;
    (void)put(1, "again", NULL);
    check(ls_durable_lsn(r.store) == ls_next_lsn(r.store));
    copies_end();
}

static void a_copy_that_was_killed_goes_on_where_it_was(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (int i = 0; i < 10; i++) {
        (void)put(1, "message", NULL);
        replica_free(copies[1].follows); /* in the middle of a segment, and of a block */
        check(follow_again(1) == LS_OK || complain("follow"));
    }
    check(ls_force(r.store, 0) == LS_OK && copies_agree());
    copies_end();
}

/* ---- recycling ---- */

static void every_copy_recycles_what_lies_below_the_base(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    churn(200);
    (void)put(1, "last", NULL);
    (void)put(1, "and what it made durable", NULL);
    for (int i = 1; i < COPIES; i++) {
        check(copies[i].follows->stats.segments_recycled > 5);
        check(copies[i].follows->segment_count < 8);
    }
    check(copies_agree());
    cease();
    check(lead_in(2, 9) == LS_OK);
    churn(100);
    check(copies_agree());
    copies_end();
}

/* As a program does it with ls_replica_change_members. *lsn: below the record. */
static int change_members(const char *config, uint64_t *lsn) {
    uint32_t bytes = (uint32_t)strlen(config);
    int rc = store_enter(r.store);

    rc = rc == LS_OK ? log_begin_batch(r.store->log, format_members_bytes(bytes)) : rc;
    if (rc == LS_OK) {
        *lsn = log_end_lsn(r.store->log);
        replication_put_members(r.store, config, bytes);
        log_end_batch(r.store->log);
    }
    return store_leave(r.store, rc, LS_WAIT);
}

static void members_that_were_changed_hold_no_segment(void) {
    uint64_t lsn = 0;

    copies_start();
    check(lead_in(0, 7) == LS_OK);
    for (int i = 0; i < 3; i++) {
        churn(60);
        check(change_members(i % 2 == 0 ? "1,2" : "1,2,3", &lsn) == LS_OK);
    }
    churn(60);
    check(ls_base_lsn(r.store) >= lsn / SEGMENT * SEGMENT);
    check(copies_agree());
    copies_end();
}

static void wait_for_spares(struct replica *f) {
    while (f->spares.count < REPLICA_SPARES) {
        replica_take_spare(f); /* waits for the thread */
        replica_make_spare(f, false);
    }
}

/* A thread makes the next segment's file, under a name that no header of this term can cut, and a reserve. */
static void a_copy_has_spares_before_a_segment_begins(void) {
    uint64_t file_lsn, allocated;

    copies_start();
    replica_free(copies[1].follows);
    r.options.background = 1;
    check(follow_again(1) == LS_OK);
    r.options.background = 0;
    check(lead_in(0, 2) == LS_OK);
    for (int turn = 0; turn < 3; turn++) {
        file_lsn = copies[1].follows->file_lsn;
        wait_for_spares(copies[1].follows);
        check(copies_agree());
        allocated = vfs_sim_calls(copies[1].sim, VFS_SIM_ALLOCATE);
        copies[1].follows->turned_us = UINT64_MAX / 2; /* the last segment lasted long: the next is filled with zeros */
        while (copies[1].follows->file_lsn == file_lsn)
            (void)put_bytes(1, 'x', 3900, LS_WAIT);
        replica_take_spare(copies[1].follows);
        check(vfs_sim_calls(copies[1].sim, VFS_SIM_ALLOCATE) == allocated);
    }
    replica_free(copies[1].follows);
    check(follow_again(1) == LS_OK && copies_agree()); /* the spare goes; its batches come without a thread */
    cease();
    check(lead_in(2, 3) == LS_OK);
    (void)put(1, "for all", NULL);
    check(copies_agree());
    copies_end();
}

/* What it could recycle before, it can at once when it is opened again, from its log alone: and never more. */
static void a_copy_that_is_opened_again_recycles_what_it_could_before(void) {
    static const uint8_t content[3900];
    uint32_t queue = 1;
    uint64_t id, lsn;
    int same = 0, more = 0;
    bool taken;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (int i = 0; i < 400; i++) {
        uint64_t before, after;

        check(ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, i % 3 == 0 ? LS_WAIT : 0, &id) ==
              LS_OK);
        check(ls_dequeue(r.store, id, 1, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK);
        if (i == 200)
            check(replica_checkpoint(copies[1].follows, &taken) == LS_OK && taken);
        before = copies[1].follows->safe_base_lsn;
        replica_free(copies[1].follows);
        check(follow_again(1) == LS_OK || complain("follow"));
        after = copies[1].follows->safe_base_lsn;
        check(copies[1].follows->segments[0].first_lsn >= after);
        same += after == before;
        more += after > before;
    }
    check(more == 0 && same > 300);
    (void)put(1, "last", NULL);
    (void)put(1, "and what makes it durable", NULL);
    check(copies[1].follows->safe_base_lsn > 0 && copies[1].follows->segment_count < 8);
    check(copies_agree());
    copies_end();
}

/* ---- leading ---- */

static void another_copy_leads_with_all_that_was_durable(void) {
    uint64_t id;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    id = put(2, "durable", NULL);
    cease();
    check(lead_in(2, 5) == LS_OK || complain("lead"));
    check(has(id));
    (void)put(2, "next", NULL);
    check(copies_agree());
    copies_end();
}

/* The old leader alone has the end of its log. The new leader's header cuts it, and it follows. */
static void what_no_majority_has_is_cut_by_the_next_leader(void) {
    uint64_t lost;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    (void)put(1, "durable", NULL);
    copies[1].reached = copies[2].reached = false;
    lost = put_bytes(1, 'x', 100, 0);
    log_lock(r.store->log);
    check(force_here(r.store->log));
    log_unlock(r.store->log);
    cease();
    copies[0].reached = false;
    copies[1].reached = copies[2].reached = true;
    check(lead_in(1, 3) == LS_OK);
    (void)put(1, "after", NULL);
    check(!has(lost));
    copies[0].reached = true;
    (void)put(1, "for all", NULL);
    check(copies_agree());
    check(copies[0].follows->stats.cut_batches > 0);
    copies_end();
}

static void a_copy_of_which_a_term_was_cut_goes_on_below_it(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    (void)put(1, "durable", NULL);
    cease();
    for (int i = 0; i < COPIES; i++)
        copies[i].reached = false;
    check(lead_in(1, 3) == LS_WOULD_WAIT); /* a term of which no other copy has anything */
    cease();
    copies[1].reached = false;
    copies[0].reached = copies[2].reached = true;
    check(lead_in(2, 4) == LS_OK);
    (void)put(1, "after", NULL);
    copies[1].reached = true;
    (void)put(1, "for all", NULL);
    check(copies_agree());
    copies_end();
}

/* The base that a batch names which some leader has handed out. */
static uint64_t base_in(int one) {
    struct record record;
    struct batch b = {.base_lsn = 0};

    format_read_verified(sent[one].bytes, &record);
    check(format_get_batch(&record, &b) == FORMAT_OK);
    return b.base_lsn;
}

/* Nothing lived in the store, so the base of the first batch is the term's own segment, which is cut. */
static void a_copy_of_which_the_first_term_was_cut_has_its_old_base(void) {
    fresh();
    copies_of_store();
    copies[0].reached = copies[2].reached = false;
    check(lead_in(1, 3) == LS_WOULD_WAIT);
    check(base_in(copies[1].last) == sent[copies[1].last].s.first_lsn);
    cease();
    copies[1].reached = copies[2].reached = true;
    check(lead_in(0, 4) == LS_OK);
    (void)put(1, "for all", NULL);
    check(copies_agree());
    copies_end();
}

/* Behind its checkpoint stood a batch of which no majority knows. What that said of durability goes with it: the next leader, who
   has all that the checkpoint covers, may know less. */
static void a_copy_that_is_cut_to_its_checkpoint_follows_a_leader_that_knows_less(void) {
    bool taken = false;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    (void)put(1, "durable", NULL);
    check(replica_durable(copies[2].follows, ls_durable_lsn(r.store)) == LS_OK);
    check(replica_checkpoint(copies[2].follows, &taken) == LS_OK && taken);
    copies[1].reached = false;
    (void)put(1, "not on copy 1", NULL);
    replica_free(copies[2].follows);
    check(follow_again(2) == LS_OK || complain("follow"));
    check(copies[2].follows->applied.index + 1 == copies[2].follows->end.index);
    cease();
    copies[0].reached = false;
    copies[1].reached = true;
    check(lead_in(1, 3) == LS_OK || complain("lead"));
    copies[0].reached = true;
    (void)put(1, "for all", NULL);
    check(copies_agree());
    copies_end();
}

static size_t segments_before;

/* As ask_the_others, but the leader ends with the first batch that names another base when it has that many segments. */
static uint64_t end_at_a_new_base(void *context, uint64_t index, uint64_t end_lsn) {
    const struct copy *l = &copies[leader];
    uint64_t has = ask_the_others(context, index, end_lsn);

    if (l->leads != NULL && l->leads->log->segment_count >= segments_before &&
        base_in(l->last) > base_in(sent[l->last].before))
        l->leads->log->poison = ECANCELED;
    return has;
}

/* The newest batch of copy 1 names a higher base than any that it knows to be durable. */
static void name_a_base_that_is_not_known_to_be_durable(size_t segments) {
    static const struct replication calls = {.ship = keep_sent, .forced = end_at_a_new_base};
    static const uint8_t content[3900];
    uint32_t ids[QUEUES], queue = 1;
    uint64_t made[400], lsn;
    size_t n = list_queues(r.catalog, ids);
    int ahead = (int)(segments - 1) * SEGMENT / 4096;

    segments_before = segments;
    copies_start();
    check(begin_leading(0, 2, &calls) == LS_OK && replica_serve(r.store, ids, n, QUEUES + 1) == LS_OK);
    for (int i = 0; i < 400 && log_poison(r.store->log) == 0; i++) {
        (void)ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &made[i]);
        if (i >= ahead)
            (void)ls_dequeue(r.store, made[i - ahead], 1, NULL, 1, 0, LS_WAIT, &lsn);
    }
    check(base_in(copies[1].last) > copies[1].follows->base_lsn);
    cease();
}

/* After a power cut at each call of its journal. */
static void a_start_finds_all_files(const struct copy *c) {
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(c->sim, &events);

    for (size_t k = 0; k <= n; k++) {
        struct replica *again = NULL;
        vfs_sim *left = vfs_sim_at(c->sim, k);

        check(replica_open(vfs_sim_table(left), "/s", &r.options, &again) == LS_OK || complain("open"));
        replica_free(again);
        vfs_sim_free(left);
    }
}

/* Until a batch of its own term says that the base is durable, the files below stay: a process that comes back looks for them. */
static void a_new_leader_that_is_killed_finds_its_files_again(void) {
    struct copy *c = &copies[1];

    name_a_base_that_is_not_known_to_be_durable(1);
    check(vfs_sim_record(c->sim, 1) == 0 && lead_in(1, 3) == LS_OK);
    (void)put(1, "needs room", NULL);
    a_start_finds_all_files(c);
    copies_end();
}

/* As above, with the batch that ends replication, and where there is no room for another file. */
static void a_detach_that_is_killed_finds_its_files_again(void) {
    struct copy *c = &copies[1];

    name_a_base_that_is_not_known_to_be_durable(6);
    r.options.max_log_bytes = 6 * (uint64_t)SEGMENT;
    replica_free(c->follows);
    check(follow_again(1) == LS_OK);
    check(c->follows->segment_count >= 6);
    check(base_in(c->last) > c->follows->base_lsn);
    check(vfs_sim_record(c->sim, 1) == 0 && replica_detach(c->follows, 0) == LS_OK);
    c->follows = NULL;
    a_start_finds_all_files(c);
    copies_end();
}

/* ---- no room ---- */

/* What is below the base goes only in a term: so the term's own segment does not count against max_log_bytes. */
static void a_full_log_can_be_led_and_drained(void) {
    static const uint8_t content[3000];
    uint32_t queue = 1;
    uint64_t ids[400], lsn;
    int n = 0, rc = LS_OK;

    copies_start();
    r.options.max_log_bytes = 6 * (uint64_t)SEGMENT;
    for (int i = 0; i < COPIES; i++) {
        replica_free(copies[i].follows);
        check(follow_again(i) == LS_OK);
    }
    check(lead_in(0, 2) == LS_OK);
    while (n < 400 && rc == LS_OK)
        rc = ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &ids[n++]);
    check(rc == LS_FULL);
    copies[1].reached = copies[2].reached = false;
    for (uint64_t term = 3; term < 12; term++) { /* each leaves a segment with its first batch */
        cease();
        check(lead_in(0, term) == LS_WOULD_WAIT || complain("lead"));
    }
    cease();
    copies[1].reached = copies[2].reached = true;
    check(lead_in(0, 12) == LS_OK || complain("lead"));
    for (int i = 0; i < n - 1; i++)
        check(ls_dequeue(r.store, ids[i], queue, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK || complain("dequeue"));
    (void)put(1, "there is room", NULL);
    check(copies_agree());
    copies_end();
}

/* ---- no memory ---- */

/* What cannot be applied may be in the table in part: only a copy that is opened again may go on then. */
static void a_copy_without_memory_for_a_batch_goes_on_with_it_or_not_at_all(void) {
    static const uint8_t content[20000];
    const uint32_t queues[] = {1, 2, 3};
    uint64_t id, struck = 1;
    uint32_t undecided = 0;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (uint64_t nth = 1; struck > 0; nth++) {
        struct copy *c = &copies[1];
        ls_tx *tx;
        int rc;

        c->reached = false;
        check(ls_publish(r.store, queues, 3, NULL, 0, content, sizeof content, NULL, LS_WAIT, &id) == LS_OK);
        check(ls_begin(r.store, NULL, &tx) == LS_OK);
        (void)put(1, "of a transaction", tx);
        check(ls_commit(tx, LS_WAIT) == LS_OK);
        ls_tx_free(tx);
        allocations = failed = 0;
        fail_at_nth = nth;
        counting = true;
        rc = catch_up(c, copies[0].last);
        counting = false;
        struck = failed;
        if (rc != LS_OK && catch_up(c, copies[0].last) != LS_OK) {
            check(ls_last_error()->code == LS_POISONED || complain("no memory"));
            undecided++;
            replica_free(c->follows);
            check(follow_again(1) == LS_OK || complain("follow"));
            c->last = last_of(c->follows);
        }
        c->reached = true;
        (void)put(1, "for all", NULL);
        check(copies_agree() && has_the_table_of_its_directory(1));
    }
    check(undecided > 0 || !TAKEN_OVER);
    copies_end();
}

/* ---- what was cut ---- */

/* Copy 1 gets an empty segment: it led in term 3, and its first batch could not be written. */
static void leave_an_empty_segment(void) {
    const struct replication calls = {.ship = keep_sent, .forced = ask_the_others};
    const vfs_sim_plan second_write = {.kind = VFS_SIM_PWRITE, .nth = 2, .error = EIO};

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    (void)put(1, "the last one", NULL);
    cease();
    replica_free(copies[1].follows);
    check(follow_again(1) == LS_OK);
    vfs_sim_fail(copies[1].sim, &second_write); /* after the header */
    check(begin_leading(1, 3, &calls) != LS_OK);
    vfs_sim_fail(copies[1].sim, NULL);
    replica_free(copies[1].follows);
    check(follow_again(1) == LS_OK || complain("follow"));
    check(copies[1].follows->cut.count == 1);
    leader = -1;
}

/* Wherever the power is cut from here on, damage in the newest batch is still known for that: the header of a later term says that
   the batch was forced. */
static void check_that_damage_is_found(uint64_t first_lsn, uint64_t end_lsn) {
    static uint8_t bytes[SEGMENT];
    const vfs_sim_event *events;
    struct copy *c = &copies[1];
    size_t n = vfs_sim_journal(c->sim, &events);
    char name[SEGMENT_NAME_BYTES];

    format_segment_name(name, first_lsn);
    for (size_t k = 0; k <= 2 * n + 1; k++) {
        const vfs_sim_loss loss = {.mode = k % 2 ? VFS_SIM_ALL_KEPT : VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_KEPT};
        vfs_sim *left = vfs_sim_crash_at(c->sim, k / 2, &loss);
        struct replica *again = NULL;

        check(vfs_sim_get(left, VFS_SIM_DEVICE, "/s", name, bytes, sizeof bytes) == SEGMENT);
        bytes[end_lsn - first_lsn - 1] ^= 1;
        check(vfs_sim_put(left, "/s", name, bytes, sizeof bytes) == 0);
        check(replica_open(vfs_sim_table(left), "/s", &r.options, &again) == LS_CORRUPT);
        replica_free(again);
        vfs_sim_free(left);
    }
}

static void a_follower_uses_the_file_of_what_was_cut_only_when_the_cut_is_durable(void) {
    struct copy *c = &copies[1];
    uint64_t first_lsn, end_lsn;

    leave_an_empty_segment();
    first_lsn = c->follows->segments[c->follows->segment_count - 1].first_lsn;
    end_lsn = c->follows->end.lsn;
    check(vfs_sim_record(c->sim, 1) == 0 && lead_in(2, 4) == LS_OK);
    check_that_damage_is_found(first_lsn, end_lsn);
    (void)put(1, "for all", NULL);
    check(copies_agree());
    copies_end();
}

static void a_leader_uses_the_file_of_what_was_cut_only_when_the_cut_is_durable(void) {
    struct copy *c = &copies[1];
    uint64_t first_lsn, end_lsn;

    leave_an_empty_segment();
    first_lsn = c->follows->segments[c->follows->segment_count - 1].first_lsn;
    end_lsn = c->follows->end.lsn;
    check(vfs_sim_record(c->sim, 1) == 0 && lead_in(1, 4) == LS_OK);
    check_that_damage_is_found(first_lsn, end_lsn);
    (void)put(1, "for all", NULL);
    check(copies_agree());
    copies_end();
}

/* ---- what does not follow ---- */

static struct shipment made; /* a batch that the tests spoil */
static uint8_t made_bytes[1 << 16];

static bool is_refused(struct replica *x, const char *words) {
    vfs_sim *on = copies[1].sim;
    uint64_t changes = vfs_sim_changes(on);
    int rc = replica_take(x, &made);
    bool right = rc == LS_REFUSED && strstr(ls_last_error()->text, words) != NULL && vfs_sim_changes(on) == changes;

    if (!right)
        printf("%d, not refused for %s: %s\n", rc, words, rc == LS_OK ? "" : ls_last_error()->text);
    return right;
}

/* The next batch of the leader, which copy 1 does not get. */
static struct shipment next_for_copy_1(void) {
    copies[1].reached = false;
    (void)put(1, "not for all", NULL);
    made = sent[copies[0].last].s;
    memcpy(made_bytes, made.bytes, made.end_lsn - made.lsn);
    made.bytes = made_bytes;
    return made;
}

static void a_batch_that_does_not_follow_is_refused_and_nothing_is_written(void) {
    struct shipment whole;
    struct replica *x;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    (void)put(1, "one", NULL);
    x = copies[1].follows;
    made = sent[copies[0].last].s;
    check(is_refused(x, "its index is not the next one")); /* twice */
    whole = next_for_copy_1();
    made.index++;
    check(is_refused(x, "its index is not the next one"));
    made = whole;
    made.lsn += 8;
    check(is_refused(x, "belongs to another place"));
    made = whole;
    made.end_lsn -= 8;
    check(is_refused(x, "contents are impossible"));
    made.end_lsn = made.lsn;
    check(is_refused(x, "its length or its place is impossible"));
    made = whole;
    made.first_lsn += SEGMENT;
    check(is_refused(x, "its length or its place is impossible"));
    made = whole;
    made.term = 1;
    check(is_refused(x, "its term lies below"));
    made.term = 3;
    check(is_refused(x, "checksum"));
    made = whole;
    for (size_t at = 0; at < whole.end_lsn - whole.lsn; at += 7) {
        made_bytes[at] ^= 0x10;
        check(is_refused(x, ""));
        made_bytes[at] ^= 0x10;
    }
    check(replica_take(x, &whole) == LS_OK);
    copies[1].last = copies[0].last;
    copies[1].reached = true;
    (void)put(1, "for all", NULL);
    check(copies_agree());
    copies_end();
}

static void a_cut_of_what_is_durable_is_refused(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    (void)put(1, "one", NULL);
    (void)put(1, "two", NULL);
    check(copies[1].follows->applied.index > 1);
    check(replica_cut(copies[1].follows, 1) == LS_REFUSED && strstr(ls_last_error()->text, "is durable") != NULL);
    check(replica_cut(copies[1].follows, 1000) == LS_REFUSED);
    check(replica_durable(copies[1].follows, UINT64_MAX) == LS_REFUSED);
    copies_end();
}

static void a_copy_leads_in_a_higher_term_only(void) {
    struct replication calls = {.ship = keep_sent, .forced = ask_the_others};
    ls_store *store;

    copies_start();
    check(lead_in(0, 7) == LS_OK);
    (void)put(1, "one", NULL);
    for (uint64_t term = 0; term < 8; term++)
        check(replica_lead(copies[1].follows, term, &calls, NULL, 0, &store) == LS_OPTION && store == NULL);
    check(replica_lead(copies[1].follows, TERM_LIMIT, &calls, NULL, 0, &store) == LS_OPTION);
    check(replica_lead(copies[1].follows, 8, &calls, "1", 1, &store) == LS_OPTION);
    check(replica_least_term(copies[1].follows) == 8);
    copies_end();
}

int main(void) {
    static void (*const tests[])(void) = {
        followers_have_the_leaders_bytes_and_apply_what_is_durable,
        a_message_is_durable_without_one_of_three_copies_and_not_without_two,
        a_copy_that_was_killed_goes_on_where_it_was,
        every_copy_recycles_what_lies_below_the_base,
        members_that_were_changed_hold_no_segment,
        a_copy_has_spares_before_a_segment_begins,
        a_copy_that_is_opened_again_recycles_what_it_could_before,
        another_copy_leads_with_all_that_was_durable,
        what_no_majority_has_is_cut_by_the_next_leader,
        a_copy_of_which_a_term_was_cut_goes_on_below_it,
        a_copy_of_which_the_first_term_was_cut_has_its_old_base,
        a_copy_that_is_cut_to_its_checkpoint_follows_a_leader_that_knows_less,
        a_new_leader_that_is_killed_finds_its_files_again,
        a_detach_that_is_killed_finds_its_files_again,
        a_full_log_can_be_led_and_drained,
        a_copy_without_memory_for_a_batch_goes_on_with_it_or_not_at_all,
        a_follower_uses_the_file_of_what_was_cut_only_when_the_cut_is_durable,
        a_leader_uses_the_file_of_what_was_cut_only_when_the_cut_is_durable,
        a_batch_that_does_not_follow_is_refused_and_nothing_is_written,
        a_cut_of_what_is_durable_is_refused,
        a_copy_leads_in_a_higher_term_only,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
