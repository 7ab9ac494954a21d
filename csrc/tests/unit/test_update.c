/*
 * Updates by whole segments: a member that is behind beyond recycling, or has nothing, gets a copy of the log up to a durable
 * batch, and goes on from there by batches. Until the copy is whole the one from before counts. See replica/update.c.
 */
#include "format/xxh64.h"
#include "replica/host.h"
#include "tests/kit/copies.h"

static const char *const HOST = "/m";
enum { MEMBER = 7, DAY_S = 86400 };
static const uint64_t DAY_US = (uint64_t)DAY_S * 1000 * 1000, NO_LIMIT = UINT64_C(1) << 40;

/* The member that is updated. */
static vfs_sim *its_sim;
static vfs *its;
static struct host *host;

/* The sender's answers, and what was asked of it. */
static ls_update_source *source;
static ls_update_manifest manifest;
static ls_update_segment segments[400];
static uint64_t asked_bytes, asked_parts;
static uint8_t part_bytes[SEGMENT];

/* ---- the member ---- */

struct copying {
    vfs_sim *from;
    vfs *table;
    int dir;
    const char *to;
};

static int copy_file(void *context, const char *name) {
    static uint8_t bytes[1 << 21];
    struct copying *c = context;
    int64_t size = vfs_sim_get(c->from, VFS_SIM_SEEN, "/s", name, bytes, sizeof bytes);

    if (size >= 0 && vfs_sim_put(its_sim, c->to, name, bytes, (size_t)size) != 0)
        abort();
    return 0;
}

static int open_host_again(void) {
    host_close(host);
    host = NULL;
    return host_open(its, HOST, &r.options, &host);
}

/* With what this copy has on its disk now, or without a copy. */
static void member_with(int like) {
    struct vote first = {.cluster_uuid = {1}, .member_id = MEMBER, .term = 1, .copy = 1};
    const struct copy *c = &copies[like >= 0 ? like : 0];

    its_sim = vfs_sim_new();
    its = vfs_sim_table(its_sim);
    (void)vfs_sim_record(its_sim, 0);
    first.term = sent_count > 0 ? sent[sent_count - 1].s.term : 1;
    memcpy(first.uuid, (c->follows != NULL ? c->follows->store : c->leads)->meta.uuid, UUID_BYTES);
    check(its->make_dir(its, HOST) == 0);
    int above = its->open_dir(its, HOST);
    if (like >= 0) {
        struct copying job = {.from = copies[like].sim, .table = disk_of(&copies[like]), .to = "/m/copy-1"};
        int made = its->open_subdir(its, above, "copy-1", 1);
        int dir = job.table->open_dir(job.table, "/s");

        check(made >= 0 && its->close(its, made) == 0 && its->sync_dir(its, above) == 0);
        check(job.table->list(job.table, dir, copy_file, &job) == 0);
        check(job.table->close(job.table, dir) == 0);
    }
    check(its->close(its, above) == 0);
    check(vote_create(its, HOST, &first) == LS_OK || complain("VOTE"));
    check(open_host_again() == LS_OK || complain("host"));
}

static void member_ends(void) {
    host_close(host);
    host = NULL;
    check(vfs_sim_handles(its_sim) == 0);
    vfs_sim_free(its_sim);
}

/* ---- an update ---- */

static int describe(void) {
    const uint8_t *config;
    size_t config_bytes;
    uint64_t index;
    int rc;

    check(ls_update_source_members(source, &index, &config, &config_bytes) == LS_WOULD_WAIT);
    check(ls_update_source_manifest(source, &manifest, segments, 1) == LS_WOULD_WAIT && manifest.index >= 2);
    do
        rc = ls_update_source_step(source, 10000);
    while (rc == LS_OK);
    if (rc != LS_END)
        return rc;
    rc = ls_update_source_manifest(source, &manifest, segments, sizeof segments / sizeof *segments);
    if (manifest.segment_count > sizeof segments / sizeof *segments)
        abort();
    return rc;
}

static int source_from(int i, uint64_t limit_bytes, uint64_t applied_lsn) {
    int rc = ls_update_source_open(disk_of(&copies[i]), "/s", "update", limit_bytes, DAY_US, applied_lsn, &source);

    return rc == LS_OK ? describe() : rc;
}

enum { PIECE = 5000 };

static uint64_t stop_after = UINT64_MAX; /* parts */
static uint64_t flip_at = UINT64_MAX;    /* a byte among those that are sent */

/* Moves what is asked for. LS_OK: all is there, or it was to stop. */
static int transfer(ls_update *u) {
    ls_update_part part;
    int rc;

    while ((rc = ls_update_next(u, &part)) == LS_OK) {
        size_t bytes = part.bytes < PIECE ? (size_t)part.bytes : PIECE;

        if (bytes == 0)
            continue;
        if (asked_parts == stop_after)
            return LS_OK;
        rc = ls_update_source_read(source, part.first_lsn, part.offset, part_bytes, bytes);
        if (rc != LS_OK)
            return rc;
        if (flip_at - asked_bytes < bytes)
            part_bytes[flip_at - asked_bytes] ^= 4;
        asked_bytes += bytes;
        asked_parts++;
        rc = ls_update_write(u, part.first_lsn, part.offset, part_bytes, bytes);
        if (rc != LS_OK)
            return rc;
    }
    return rc == LS_END ? LS_OK : rc;
}

static int update(void) {
    ls_update *u = NULL;
    int rc = source == NULL ? fail(LS_CLOSED, "there is no sender") : ls_update_begin(host, &manifest, segments, &u);

    asked_bytes = asked_parts = 0;
    rc = rc == LS_OK ? transfer(u) : rc;
    if (rc == LS_OK && stop_after == UINT64_MAX)
        rc = ls_update_finish(u);
    ls_error kept = *ls_last_error();
    ls_update_free(u);
    if (rc != LS_OK)
        fail_again(&kept);
    return rc;
}

static uint64_t bytes_in_manifest(void) {
    uint64_t bytes = 0;

    for (size_t i = 0; i < manifest.segment_count; i++)
        bytes += segments[i].bytes;
    return bytes;
}

/* ---- afterwards ---- */

static const char *member_dir(void) {
    static char path[64];
    (void)snprintf(path, sizeof path, "%s/copy-%llu", HOST, (unsigned long long)host->vote->now.copy);
    return path;
}

static bool ends_at_the_manifest(void) {
    const struct replica *f = host->follows;

    return f != NULL && f->end.lsn == manifest.end_lsn && f->end.term == manifest.term &&
           f->end.index == manifest.index && host->vote->now.floor_index == manifest.index &&
           host->vote->now.floor_term == manifest.term;
}

/* The member takes what the leader has handed out since, and has the leader's state then. */
static bool goes_on_with_the_leader(void) {
    int last = copies[leader].last, missing[SENT_MAX], n = 0;
    bool fine = true;

    for (int at = last; at >= 0 && sent[at].s.index > host->follows->end.index; at = sent[at].before)
        missing[n++] = at;
    while (fine && n > 0)
        fine = replica_take(host->follows, &sent[missing[--n]].s) == LS_OK || complain("take");
    fine = fine && (replica_durable(host->follows, ls_durable_lsn(r.store)) == LS_OK || complain("durable"));
    if (!fine)
        return false;
    ls_store *theirs = read_disk(disk_of(&copies[leader]), LS_INSPECT_CHECK),
             *own = read_store_in(its, member_dir(), LS_INSPECT_CHECK);

    fine = are_equal(theirs, own);
    ls_free(theirs);
    ls_free(own);
    return fine;
}

/* Whether a member without the update's copy can still be used. */
static bool has_its_old_copy(uint64_t copy, struct tail end) {
    return host->vote->now.copy == copy && host->follows != NULL && host_tail(host).index == end.index &&
           host_tail(host).term == end.term;
}

/* A leader, and a member that has only the beginning of the log, of which the leader's disk has nothing left. */
static void a_member_far_behind(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK || complain("lead"));
    churn(8);
    member_with(2);
    churn(200);
    for (int i = 0; i < 60; i++)
        (void)put_bytes(2, 'z', 3000, 0);
    (void)put(1, "last", NULL);
    check(copies[0].leads->log != NULL && host->follows->end.lsn < log_base_lsn(copies[0].leads->log));
}

static void all_end(void) {
    ls_update_source_close(source);
    source = NULL;
    member_ends();
    copies_end();
}

static void an_update_that_ends_below_what_the_member_took_meanwhile_is_refused(void) {
    ls_update *u = NULL;
    struct tail taken;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    churn(20);
    member_with(2);
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(ls_update_begin(host, &manifest, segments, &u) == LS_OK && transfer(u) == LS_OK);
    (void)put(1, "beyond the update's end", NULL);
    check(goes_on_with_the_leader()); /* by batches, and it says so */
    taken = host_tail(host);
    check(ls_update_finish(u) == LS_REFUSED && strstr(ls_last_error()->text, "by now") != NULL);
    ls_update_free(u);
    check(has_its_old_copy(1, taken));
    (void)put(1, "one more", NULL);
    check(goes_on_with_the_leader());
    all_end();
}

/* Of the log that was sent, and of the copy that came of it. */
static bool has_the_members_that_the_sender_said(void) {
    const uint8_t *said, *found;
    size_t said_bytes, found_bytes;
    uint64_t said_index, found_index;

    return ls_update_source_members(source, &said_index, &said, &said_bytes) == LS_OK &&
           ls_host_members(host, &found_index, &found, &found_bytes) == LS_OK && said_index == found_index &&
           said_bytes == found_bytes && memcmp(said, found, said_bytes) == 0;
}

static void a_copy_behind_the_base_is_brought_up_to_date(void) {
    for (int from = 0; from < 2; from++) { /* a leader, and a copy that follows */
        a_member_far_behind();
        check(source_from(from, NO_LIMIT, 0) == LS_OK || complain("source"));
        check(update() == LS_OK || complain("update"));
        check(ends_at_the_manifest() && host->vote->now.copy == 2);
        check(has_the_members_that_the_sender_said());
        check(host->follows->applied.lsn == manifest.end_lsn);
        check(asked_bytes == bytes_in_manifest());
        check(its->open_dir(its, "/m/copy-1") == -ENOENT);
        (void)put(1, "after the update", NULL);
        check(goes_on_with_the_leader());
        check(open_host_again() == LS_OK || complain("reopen"));
        (void)put(1, "after an open", NULL);
        check(goes_on_with_the_leader());
        all_end();
    }
}

static void a_member_without_a_copy_gets_one(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    churn(60);
    (void)put(2, "lives", NULL);
    member_with(-1);
    check(host->follows == NULL);
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(update() == LS_OK || complain("update"));
    check(ends_at_the_manifest() && goes_on_with_the_leader());
    check(vfs_sim_get(its_sim, VFS_SIM_STABLE, member_dir(), "META", part_bytes, sizeof part_bytes) == META_BYTES);
    check(vfs_sim_get(copies[0].sim, VFS_SIM_STABLE, "/s", "META", part_bytes + META_BYTES, META_BYTES) == META_BYTES);
    check(memcmp(part_bytes, part_bytes + META_BYTES, META_BYTES) == 0);
    all_end();
}

/* Terms come and go, and with them bases that nothing says to be durable at first. */
static void work_on(int i) {
    if (i % 20 == 19) {
        cease();
        check(lead_in(0, 3 + (uint64_t)i) == LS_OK || complain("lead"));
        return;
    }
    uint64_t id = put_bytes(1, 0, 3900, LS_WAIT), lsn;

    for (int j = 0; i % 7 == 6 && j < 4; j++)
        (void)put_bytes(1, 0, 3900, 0);
    if (i % 3 != 0) /* a base is named by this batch, or by the next one */
        check(ls_dequeue(r.store, id, 1, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK);
}

/* Also with nothing alive before the term, so that its base is its own segment, which nothing says to be durable at first. */
static void at_each_moment_the_log_that_is_sent_can_be_opened(void) {
    int earlier = failures_here;
    int waits = 0, updates = 0;

    for (int empty = 0; empty < 2; empty++) {
        if (empty == 0) {
            copies_start();
        } else {
            fresh();
            copies_of_store();
        }
        check(lead_in(0, 2) == LS_OK);
        for (int i = 0; i < 160; i++) {
            for (int from = 0; from < COPIES; from += 2) {
                int rc = source_from(from, NO_LIMIT, 0);

                if (rc == LS_WOULD_WAIT) {
                    waits++;
                } else {
                    check(rc == LS_OK || complain("source"));
                    member_with(-1);
                    check(update() == LS_OK || complain("update"));
                    check(ends_at_the_manifest() && goes_on_with_the_leader());
                    member_ends();
                    updates++;
                }
                ls_update_source_close(source);
                source = NULL;
                if (failures_here > earlier) {
                    printf("  round %d, from copy %d\n", i, from);
                    copies_end();
                    return;
                }
            }
            work_on(i);
        }
        copies_end();
    }
    check(updates > 100);
    printf("  %d updates, %d times to wait\n", updates, waits);
}

static void segments_that_agree_are_copied_and_not_asked_for(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (int i = 0; i < 120; i++)
        (void)put_bytes(1, 'x', 3000, 0);
    check(ls_force(r.store, 0) == LS_OK);
    member_with(2);
    for (int i = 0; i < 30; i++)
        (void)put_bytes(2, 'y', 3000, 0);
    (void)put(1, "last", NULL);
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(update() == LS_OK || complain("update"));
    check(asked_bytes > 0 && asked_bytes <= 3 * (uint64_t)SEGMENT && bytes_in_manifest() > 4 * (uint64_t)SEGMENT);
    check(ends_at_the_manifest() && goes_on_with_the_leader());
    all_end();
}

static void an_update_that_was_ended_leaves_the_copy_from_before_as_it_was(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    for (int i = 0; i < 60; i++)
        (void)put_bytes(1, 'x', 3000, 0);
    check(ls_force(r.store, 0) == LS_OK);
    member_with(2);
    struct tail end = host_tail(host);
    for (int i = 0; i < 60; i++)
        (void)put_bytes(2, 'y', 3000, 0);
    (void)put(1, "last", NULL);
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    stop_after = 4;
    check(update() == LS_OK || complain("update"));
    stop_after = UINT64_MAX;
    check(has_its_old_copy(1, end));
    require(open_host_again() == LS_OK || complain("reopen"));
    check(has_its_old_copy(1, end));
    check(goes_on_with_the_leader()); /* by batches */
    all_end();
}

static void an_update_goes_on_with_what_an_earlier_one_left(void) {
    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(manifest.segment_count > 2);
    stop_after = (segments[0].bytes + PIECE - 1) / PIECE + 2; /* in the second segment */
    check(update() == LS_OK || complain("update"));
    stop_after = UINT64_MAX;
    check(update() == LS_OK || complain("update"));
    check(asked_bytes == bytes_in_manifest() - segments[0].bytes);
    check(ends_at_the_manifest() && goes_on_with_the_leader());
    all_end();
}

/* The first update ended later in the log than the second: what lies above the second one's end is not kept. */
static void what_a_longer_update_left_is_not_believed(void) {
    ls_update_manifest shorter;
    static ls_update_segment its_segments[400];

    a_member_far_behind();
    check(source_from(1, NO_LIMIT, 0) == LS_OK || complain("source"));
    shorter = manifest;
    memcpy(its_segments, segments, sizeof segments);
    ls_update_source_close(source);
    for (int i = 0; i < 3; i++)
        (void)put(1, "more", NULL);
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(manifest.end_lsn > shorter.end_lsn);
    stop_after = 1000000; /* all, but it does not finish */
    check(update() == LS_OK || complain("update"));
    stop_after = UINT64_MAX;
    manifest = shorter;
    memcpy(segments, its_segments, sizeof segments);
    check(update() == LS_OK || complain("update"));
    check(ends_at_the_manifest() && goes_on_with_the_leader());
    all_end();
}

/* ---- the sender goes on ---- */

static void a_hold_keeps_the_segments_while_the_leader_recycles(void) {
    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    uint64_t first_lsn = segments[0].first_lsn;
    churn(200);
    check(log_base_lsn(copies[0].leads->log) > first_lsn + segments[0].bytes);
    check(update() == LS_OK || complain("update"));
    check(ends_at_the_manifest() && goes_on_with_the_leader());
    check(ls_update_source_keep(source, manifest.end_lsn) == LS_OK || complain("keep"));
    churn(40);
    check(goes_on_with_the_leader());
    all_end();
}

static void a_hold_that_was_lost_ends_the_update(void) {
    a_member_far_behind();
    check(source_from(0, 2 * (uint64_t)SEGMENT, 0) == LS_OK || complain("source"));
    struct tail end = host_tail(host);
    churn(300);
    check(update() == LS_RECYCLED || complain("lost"));
    check(has_its_old_copy(1, end));
    ls_update_source_close(source);
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(update() == LS_OK || complain("update"));
    check(ends_at_the_manifest() && goes_on_with_the_leader());
    all_end();
}

enum { IN_STEPS, IN_READS, IN_KEEPS, SENDER_STATES };

/* A call of a sender whose own copy has gone. */
static int go_on(ls_update_source *sender, int state, uint64_t first_lsn) {
    return state == IN_STEPS   ? ls_update_source_step(sender, NO_LIMIT)
           : state == IN_READS ? ls_update_source_read(sender, first_lsn, 0, part_bytes, 8)
                               : ls_update_source_keep(sender, 0);
}

static void a_sender_whose_own_copy_goes_says_that_the_log_is_recycled(void) {
    for (int state = 0; state < 2 * SENDER_STATES; state++) {
        ls_update_source *sender = NULL;
        uint64_t first_lsn = 0;

        copies_start();
        check(lead_in(0, 2) == LS_OK);
        churn(20);
        member_with(2);
        check(ls_update_source_open(its, "/m/copy-1", "update", NO_LIMIT, DAY_US, 0, &sender) == LS_OK ||
              complain("sender"));
        if (state % SENDER_STATES != IN_STEPS) {
            ls_update_source *kept = source;

            source = sender;
            check(describe() == LS_OK || complain("manifest"));
            source = kept;
            first_lsn = segments[0].first_lsn;
            check(go_on(sender, state % SENDER_STATES, first_lsn) == LS_OK);
        }
        if (state < SENDER_STATES) {
            churn(20);
            check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
            check(update() == LS_OK || complain("update"));
        } else {
            check(host_remove_copy(host) == LS_OK || complain("remove"));
        }
        for (int i = 0; i < 2; i++)
            check(go_on(sender, state % SENDER_STATES, first_lsn) == LS_RECYCLED || complain("gone"));
        ls_update_source_close(sender);
        all_end();
    }
}

static uint64_t hold_expires_us(void) {
    ls_hold_info held = {.expires_us = 0};
    size_t count = 0;

    check(ls_holds(disk_of(&copies[0]), "/s", &held, 1, &count) == LS_OK && count == 1);
    return held.expires_us;
}

static void a_hold_is_renewed_by_reading_and_goes_with_the_sender(void) {
    const uint64_t lasts_us = 3000; /* each call of the simulated system takes 1 us */
    ls_hold_info held;
    size_t count = 1;

    a_member_far_behind();
    check(ls_update_source_open(disk_of(&copies[0]), "/s", "update", NO_LIMIT, lasts_us, 0, &source) == LS_OK);
    check(describe() == LS_OK);
    uint64_t expires_us = hold_expires_us();

    for (uint64_t i = 0; i < 2 * lasts_us; i++)
        check(ls_update_source_read(source, segments[0].first_lsn, 0, part_bytes, 8) == LS_OK || complain("read"));
    check(hold_expires_us() > expires_us + lasts_us);
    vfs_sim_advance(copies[0].sim, 100);
    expires_us = hold_expires_us();
    check(ls_update_source_keep(source, segments[1].first_lsn) == LS_OK && hold_expires_us() > expires_us);
    ls_update_source_close(source);
    source = NULL;
    check(ls_holds(disk_of(&copies[0]), "/s", &held, 1, &count) == LS_OK && count == 0);
    all_end();
}

static void an_update_begins_at_the_catalogs_place_if_that_lies_below_the_base(void) {
    ls_hold *kept;

    copies_start();
    check(lead_in(0, 2) == LS_OK);
    churn(20);
    uint64_t lsn = ls_next_lsn(r.store);
    (void)put(1, "here is a change of the catalog", NULL);
    check(ls_hold_take(disk_of(&copies[0]), "/s", "catalog", lsn, NO_LIMIT, DAY_US, &kept) == LS_OK);
    churn(200);
    (void)put(1, "last", NULL);
    member_with(-1);
    check(log_base_lsn(copies[0].leads->log) > lsn + SEGMENT);
    check(source_from(0, NO_LIMIT, lsn) == LS_OK || complain("source"));
    check(segments[0].first_lsn <= lsn && lsn < segments[0].first_lsn + segments[0].bytes);
    ls_hold_release(kept);
    check(update() == LS_OK || complain("update"));
    check(ends_at_the_manifest());
    ls_reader *reader;
    ls_batch batch = {.lsn = 0};
    require(ls_reader_open_kept(its, member_dir(), lsn, 0, 0, &reader) == LS_OK || complain("read"));
    check(ls_reader_next(reader, &batch) == LS_OK &&
          batch.lsn <= lsn); /* the batch with the change, or one before it */
    ls_reader_close(reader);
    check(goes_on_with_the_leader());
    ls_update_source_close(source);
    source = NULL;
    churn(200);
    check(source_from(0, NO_LIMIT, lsn) == LS_RECYCLED);
    all_end();
}

/* ---- a hold that is lowered ---- */

static vfs meddling, *real;
static struct hold lowered_from; /* what the hold file had before the last write */
static bool is_lowered;
static int overtaken;

static int64_t noting_pwrite(vfs *w, int file, const void *from, size_t bytes, uint64_t at) {
    struct hold h;

    (void)w;
    if (bytes == HOLD_BYTES && format_get_hold(from, bytes, &h) == FORMAT_OK) {
        is_lowered = h.hold_lsn < lowered_from.hold_lsn;
        lowered_from = is_lowered ? lowered_from : h;
    }
    return real->pwrite(real, file, from, bytes, at);
}

/* The copy had looked at the holds before this one was lowered; it recycles after the lowering was checked. */
static int overtaking_open(vfs *w, int dir, const char *name, unsigned flags) {
    uint8_t now[HOLD_BYTES], before[HOLD_BYTES];

    (void)w;
    if (is_lowered && strcmp(name, "META") == 0) {
        is_lowered = false;
        overtaken++;
        check(vfs_sim_get(copies[2].sim, VFS_SIM_SEEN, "/s/holds", "update.hold", now, sizeof now) == HOLD_BYTES);
        format_put_hold(before, &lowered_from);
        check(vfs_sim_put(copies[2].sim, "/s/holds", "update.hold", before, sizeof before) == 0);
        for (int i = 0; i < 2; i++)
            (void)put(1, "the base is durable now", NULL);
        check(vfs_sim_put(copies[2].sim, "/s/holds", "update.hold", now, sizeof now) == 0);
    }
    return real->open(real, dir, name, flags);
}

static void a_sender_whose_log_is_recycled_while_its_hold_is_lowered_waits(void) {
    copies_start();
    check(lead_in(0, 2) == LS_OK);
    real = disk_of(&copies[2]);
    meddling = *real;
    meddling.pwrite = noting_pwrite;
    meddling.open = overtaking_open;
    overtaken = 0;
    for (int i = 0; i < 60 && overtaken == 0; i++) {
        lowered_from.hold_lsn = 0;
        is_lowered = false;
        int rc = ls_update_source_open(&meddling, "/s", "update", NO_LIMIT, DAY_US, 0, &source);
        check(rc == (overtaken > 0 ? LS_WOULD_WAIT : rc == LS_WOULD_WAIT ? rc : LS_OK) || complain("source"));
        ls_update_source_close(source);
        source = NULL;
        work_on(i);
    }
    check(overtaken > 0 || complain("no hold was lowered"));
    (void)put(1, "and one more", NULL);
    check(source_from(2, NO_LIMIT, 0) == LS_OK || complain("the next try"));
    ls_update_source_close(source);
    source = NULL;
    copies_end();
}

static void a_sender_that_cannot_say_where_its_log_begins_waits(void) {
    const struct replication calls = {.ship = keep_sent, .forced = ask_the_others};

    copies_start();
    check(source_from(0, NO_LIMIT, 0) == LS_WOULD_WAIT && source == NULL); /* not replicated */
    check(begin_leading(0, 2, &calls) == LS_OK);
    check(source_from(0, NO_LIMIT, 0) == LS_WOULD_WAIT && source == NULL);
    check(source_from(1, NO_LIMIT, 0) == LS_WOULD_WAIT && source == NULL);
    copies_end();
}

/* ---- what is refused ---- */

/* So that the next one asks for all of them again. */
static void delete_what_an_update_has(const ls_update *u) {
    int dir = its->open_dir(its, ls_update_path(u));

    check(dir >= 0);
    for (size_t i = 0; i < manifest.segment_count; i++) {
        char name[SEGMENT_NAME_BYTES];
        format_segment_name(name, segments[i].first_lsn);
        (void)its->unlink(its, dir, name);
    }
    (void)its->close(its, dir);
}

static void a_flipped_bit_is_found_in_its_segment_and_asked_for_again(void) {
    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    uint64_t total = bytes_in_manifest();

    for (uint64_t at = 0; at < total; at += 1 + total / 60) {
        ls_update *u;
        int refusals = 0;

        asked_bytes = asked_parts = 0;
        flip_at = at;
        check(ls_update_begin(host, &manifest, segments, &u) == LS_OK);
        for (int rc = transfer(u); rc != LS_OK && refusals < 2; rc = transfer(u)) {
            check(rc == LS_REFUSED && strstr(ls_last_error()->text, "differ from the manifest") != NULL);
            check(ls_last_error()->segment[0] != '\0');
            refusals++;
            flip_at = UINT64_MAX;
        }
        check(refusals == 1);
        delete_what_an_update_has(u);
        ls_update_free(u);
        flip_at = UINT64_MAX;
    }
    check(update() == LS_OK && ends_at_the_manifest() && goes_on_with_the_leader());
    all_end();
}

static void parts_that_were_not_asked_for_are_refused(void) {
    ls_update *u;
    ls_update_part part;

    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(ls_update_begin(host, &manifest, segments, &u) == LS_OK);
    check(ls_update_finish(u) == LS_REFUSED);
    check(ls_update_write(u, segments[0].first_lsn, 0, part_bytes, 8) == LS_REFUSED); /* before it was asked for */
    check(ls_update_next(u, &part) == LS_OK && part.offset == 0 && part.bytes == segments[0].bytes);
    check(ls_update_write(u, part.first_lsn, 8, part_bytes, 8) == LS_REFUSED);
    check(ls_update_write(u, part.first_lsn, 0, part_bytes, 0) == LS_REFUSED);
    check(ls_update_write(u, part.first_lsn, 0, part_bytes, (size_t)part.bytes + 1) == LS_REFUSED);
    check(ls_update_write(u, segments[1].first_lsn, 0, part_bytes, 8) == LS_REFUSED);
    check(ls_update_source_read(source, part.first_lsn, part.bytes, part_bytes, 1) == LS_OPTION);
    check(ls_update_source_read(source, part.first_lsn, UINT64_MAX, part_bytes, 1) == LS_OPTION);
    check(ls_update_source_read(source, part.first_lsn + 1, 0, part_bytes, 1) == LS_OPTION);
    ls_update *second;
    check(ls_update_begin(host, &manifest, segments, &second) == LS_LOCKED && second == NULL);
    check(transfer(u) == LS_OK && ls_update_finish(u) == LS_OK);
    check(ls_update_finish(u) == LS_POISONED && ls_update_next(u, &part) == LS_POISONED);
    ls_update_free(u);
    all_end();
}

static bool is_refused(const ls_update_manifest *m, const ls_update_segment *s, const char *words) {
    uint64_t changes = vfs_sim_changes(its_sim);
    ls_update *u;
    int rc = ls_update_begin(host, m, s, &u);
    bool right = rc == LS_REFUSED && u == NULL && strstr(ls_last_error()->text, words) != NULL &&
                 vfs_sim_changes(its_sim) == changes;

    if (!right)
        printf("  %d, not refused for %s: %s\n", rc, words, ls_last_error()->text);
    ls_update_free(u);
    return right;
}

#define REFUSED(change, words)           \
    do {                                 \
        ls_update_manifest m = manifest; \
        memcpy(s, segments, sizeof s);   \
        change;                          \
        check(is_refused(&m, s, words)); \
    } while (0)

static void a_manifest_that_contradicts_itself_or_the_member_is_refused_and_nothing_is_written(void) {
    static ls_update_segment s[sizeof segments / sizeof *segments];

    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    size_t last = manifest.segment_count - 1;
    require(last > 2);
    REFUSED(m.uuid[3] ^= 1, "another store");
    REFUSED(m.segment_size += 1, "no META");
    REFUSED(m.segment_size = 0, "no META");
    REFUSED(m.segment_size = UINT64_MAX, "no META");
    REFUSED(m.segment_size *= 2, "");
    REFUSED(m.segment_size /= 2, "");
    REFUSED(m.max_undurable_bytes = 0, "no META");
    REFUSED(m.max_undurable_bytes = UINT64_MAX, "no META");
    REFUSED(m.segment_count = 0, "number of its segments");
    REFUSED(m.segment_count = LS_UPDATE_SEGMENTS_MAX + 1, "number of its segments");
    REFUSED(m.segment_count = SIZE_MAX, "number of its segments");
    REFUSED(m.segment_count--, "last segment");
    REFUSED(m.index = 1, "no batch");
    REFUSED(m.index = 0, "no batch");
    REFUSED(m.term = 0, "no batch");
    REFUSED(m.term = TERM_LIMIT, "no batch");
    REFUSED((m.term++, s[last].term++), "VOTE does not have its term");
    REFUSED(m.term--, "last segment");
    REFUSED(m.end_lsn += 8, "last segment");
    REFUSED(s[last].bytes -= 8, "last segment");
    REFUSED(s[1].first_lsn = s[0].first_lsn, "contradicts itself");
    REFUSED(s[1].first_lsn += m.segment_size, "do not follow");
    REFUSED(s[1].first_lsn += 4096, "no place");
    REFUSED(s[0].first_lsn = 0, "no place");
    REFUSED(s[last].first_lsn = UINT64_MAX / m.segment_size * m.segment_size, "no place");
    REFUSED(s[1].bytes = m.segment_size + 8, "length");
    REFUSED(s[1].bytes = UINT64_MAX - 7, "length");
    REFUSED(s[1].bytes = 4096, "length");
    REFUSED(s[1].bytes -= 4, "length");
    REFUSED(s[1].bytes -= 8, "do not follow"); /* a gap */
    REFUSED(s[1].prev_end_lsn -= 8, "do not follow");
    REFUSED(s[1].prev_end_lsn = s[1].first_lsn + 8, "contradicts itself");
    REFUSED(s[0].term = 0, "contradicts itself");
    REFUSED(s[0].term = m.term + 1, "do not follow");
    REFUSED((memmove(s + 1, s + 2, (last - 1) * sizeof *s), m.segment_count--), "do not follow");
    check(vote_raise_floor(host->vote, (struct tail){manifest.term, manifest.index + 1}) == LS_OK);
    REFUSED((void)m, "this member has more");
    all_end();
}

/* Its checksums are right, and its log is not: a sender whose disk changed bytes before it made the manifest. */
static void an_update_whose_log_cannot_be_opened_never_counts(void) {
    for (int kind = 0; kind < 2; kind++) {
        ls_update *u;
        ls_update_part part;

        a_member_far_behind();
        check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
        struct tail end = host_tail(host);
        if (kind == 0) { /* it ends one batch later than it says */
            manifest.index--;
        }
        static uint8_t bytes[SEGMENT];
        check(ls_update_source_read(source, segments[1].first_lsn, 0, bytes, segments[1].bytes) == LS_OK);
        if (kind == 1) {
            bytes[segments[1].bytes / 2] ^= 1;
            segments[1].checksum = xxh64(bytes, segments[1].bytes, 0);
        }
        check(ls_update_begin(host, &manifest, segments, &u) == LS_OK || complain("begin"));
        while (ls_update_next(u, &part) == LS_OK) {
            check(ls_update_source_read(source, part.first_lsn, part.offset, part_bytes, part.bytes) == LS_OK);
            bool second = part.first_lsn == segments[1].first_lsn;
            check(ls_update_write(u, part.first_lsn, part.offset, second ? bytes : part_bytes, part.bytes) == LS_OK);
        }
        check(ls_update_finish(u) == LS_CORRUPT || complain("finish"));
        check(ls_update_next(u, &part) == LS_POISONED);
        ls_update_free(u);
        check(has_its_old_copy(1, end));
        check(open_host_again() == LS_OK && has_its_old_copy(1, end));
        all_end();
    }
}

static int note_segment(void *context, const char *name) {
    uint64_t first_lsn;

    *(size_t *)context += format_parse_segment_name(name, &first_lsn) ? 1 : 0;
    return 0;
}

/* How many segments the directory has; SIZE_MAX: no META, so it is no store. */
static size_t segments_of_a_store(vfs *on, const char *path) {
    size_t n = 0;
    int dir = on->open_dir(on, path), meta = on->open(on, dir, "META", 0);

    check(dir >= 0 && on->list(on, dir, note_segment, &n) == 0);
    if (meta >= 0)
        (void)on->close(on, meta);
    (void)on->close(on, dir);
    return meta >= 0 ? n : SIZE_MAX;
}

/* What an earlier update left may be whole but for VOTE. Without its newest segments it could pass for the log before replication. */
static void what_an_update_left_is_no_store_before_a_segment_of_it_goes(void) {
    const vfs_sim_event *events;
    ls_update *u = NULL;

    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    manifest.index--; /* the log that arrives does not end as it says */
    check(update() == LS_CORRUPT || complain("update"));
    manifest.index++;
    size_t whole = segments_of_a_store(its, "/m/copy-2");
    manifest.segment_count = 1; /* nothing else of it is used again */
    manifest.end_lsn = segments[1].prev_end_lsn;
    manifest.term = segments[0].term;
    check(whole != SIZE_MAX && whole > 1);
    (void)vfs_sim_record(its_sim, 1);
    int rc = ls_update_begin(host, &manifest, segments, &u);
    check(rc == LS_OK || complain("begin"));
    ls_update_free(u);
    size_t n = vfs_sim_journal(its_sim, &events);
    for (size_t k = 0; k <= n; k++) {
        for (uint64_t seed = 0; seed < 8; seed++) {
            vfs_sim_loss loss = {
                .mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_RANDOM_SUBSET, .seed = k * 8 + seed};
            vfs_sim *left = vfs_sim_crash_at(its_sim, k, &loss);
            size_t found = segments_of_a_store(vfs_sim_table(left), "/m/copy-2");

            check(found == SIZE_MAX || found == whole);
            vfs_sim_free(left);
        }
    }
    all_end();
}

/* ---- no room ---- */

static void a_disk_without_room_is_refused_before_anything_is_written(void) {
    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    struct tail end = host_tail(host);
    uint64_t changes = vfs_sim_changes(its_sim);

    vfs_sim_capacity(its_sim, vfs_sim_used(its_sim) + manifest.segment_count * SEGMENT - BLOCK);
    check(update() == LS_FULL && strstr(ls_last_error()->text, "needs") != NULL);
    check(vfs_sim_changes(its_sim) == changes && has_its_old_copy(1, end));
    vfs_sim_capacity(its_sim, 0);
    stop_after = 40;
    check(update() == LS_OK);
    stop_after = UINT64_MAX;
    vfs_sim_capacity(its_sim, vfs_sim_used(its_sim) + BLOCK); /* others have used it */
    check(update() == LS_FULL);
    check(has_its_old_copy(1, end) && open_host_again() == LS_OK && has_its_old_copy(1, end));
    vfs_sim_capacity(its_sim, vfs_sim_used(its_sim) + (manifest.segment_count + 4) * SEGMENT);
    check(update() == LS_OK || complain("update"));
    check(ends_at_the_manifest() && goes_on_with_the_leader());
    all_end();
}

/* ---- power cuts, and calls that fail ---- */

/* An open that removes nothing, so that an update goes on with what is there. */
static int open_and_keep(void) {
    host = calloc(1, sizeof *host);
    host->options = r.options;
    int rc = vote_open(its, HOST, &host->vote);
    return rc == LS_OK ? host_follow(host) : rc;
}

static vfs_sim *whole_sim;

/* The disk that is left has one of the two copies, whole; from the old one an update leads to the new one. */
static void judge(vfs_sim *left, struct tail before, bool keep, int *old, int *new) {
    its_sim = left;
    its = vfs_sim_table(left);
    require((keep ? open_and_keep() : host_open(its, HOST, &r.options, &host)) == LS_OK || complain("open"));
    bool is_old = host->vote->now.copy == 1;

    if (is_old) {
        (*old)++;
        check(has_its_old_copy(1, before));
        check(update() == LS_OK || complain("update after a crash"));
    } else {
        (*new)++;
    }
    check(host->vote->now.copy == 2 && ends_at_the_manifest());
    if ((*old + *new) % 5 == 0)
        check(goes_on_with_the_leader());
    /* and what this update did is there after a power cut */
    vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    vfs_sim *cut = vfs_sim_crash(left, &all);
    struct host *again = NULL;
    check(host_open(vfs_sim_table(cut), HOST, &r.options, &again) == LS_OK || complain("open after a power cut"));
    check(again == NULL || again->vote->now.copy == 2);
    host_close(again);
    vfs_sim_free(cut);
    host_close(host);
    host = NULL;
    check(vfs_sim_handles(left) == 0);
}

static void after_a_crash_anywhere_one_of_the_two_copies_counts_and_is_whole(void) {
    int earlier = failures_here;
    const vfs_sim_event *events;
    int old = 0, new = 0;

    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    struct tail before = host_tail(host);
    (void)vfs_sim_record(its_sim, 1);
    check(update() == LS_OK || complain("update"));
    size_t n = vfs_sim_journal(its_sim, &events);
    whole_sim = its_sim;
    struct host *whole_host = host;
    for (size_t k = 0; k <= n && failures_here == earlier; k++) {
        if (k > 0 && (events[k - 1].flags & VFS_SIM_CHANGES) == 0)
            continue;
        for (int way = 0; way < 5 && failures_here == earlier; way++) {
            static const vfs_sim_loss losses[] = {
                {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST},
                {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_LOST},
                {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_KEPT},
                {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM_SUBSET},
            };
            vfs_sim_loss loss = losses[way < 4 ? way : 0];
            if ((k + (size_t)way) % ONE_IN != 0)
                continue;
            loss.seed = k;
            vfs_sim *left = way == 4 ? vfs_sim_at(whole_sim, k) : vfs_sim_crash_at(whole_sim, k, &loss);
            judge(left, before, k % 2 == 0, &old, &new);
            if (failures_here > earlier)
                printf("  event %zu of %zu, way %d\n", k, n, way);
            host_close(host);
            host = NULL;
            vfs_sim_free(left);
        }
    }
    check((old > 20 || ONE_IN > 1) && new > 0);
    printf("  %zu events; old %d, new %d\n", n, old, new);
    its_sim = whole_sim;
    its = vfs_sim_table(its_sim);
    host = whole_host;
    all_end();
}

static void a_failed_call_leaves_a_member_that_can_be_updated(void) {
    int earlier = failures_here;
    static const vfs_sim_plan failures[] = {
        {.error = EIO},
        {.error = ENOSPC},
        {.kind = VFS_SIM_SYNC_DATA, .error = EIO, .survive = 3},
        {.kind = VFS_SIM_SYNC_FILE, .error = EIO, .survive = 5},
        {.shorten = VFS_SIM_HALF, .forever = 1},
        {.error = EIO, .forever = 1},
    };
    uint64_t cases = 0;
    int old = 0, new = 0;

    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    struct tail before = host_tail(host);
    host_close(host);
    host = NULL;
    whole_sim = its_sim;
    for (size_t kind = 0; kind < sizeof failures / sizeof *failures; kind++) {
        bool fired = true;
        for (uint64_t nth = 1; fired && failures_here == earlier; nth += 1 + (nth > 40 ? 3 * ONE_IN : ONE_IN - 1)) {
            vfs_sim_plan plan = failures[kind];

            plan.nth = nth;
            its_sim = vfs_sim_clone(whole_sim);
            its = vfs_sim_table(its_sim);
            check(host_open(its, HOST, &r.options, &host) == LS_OK);
            vfs_sim_fail(its_sim, &plan);
            int rc = update();
            fired = vfs_sim_fired(its_sim) > 0;
            vfs_sim_fail(its_sim, NULL);
            check(rc == LS_OK || rc == LS_IO || rc == LS_FULL || rc == LS_OUTCOME_UNKNOWN || rc == LS_CORRUPT ||
                  complain("a failed call"));
            if (rc == LS_OK)
                check(host->vote->now.copy == 2 && ends_at_the_manifest());
            else if (rc != LS_OUTCOME_UNKNOWN)
                check(has_its_old_copy(1, before));
            host_close(host);
            host = NULL;
            judge(its_sim, before, nth % 2 == 0, &old, &new);
            if (failures_here > earlier)
                printf("  failure %zu, call %llu: %d\n", kind, (unsigned long long)nth, rc);
            host_close(host);
            host = NULL;
            vfs_sim_free(its_sim);
            cases++;
        }
    }
    check(cases > 100 / ONE_IN);
    printf("  %llu cases; old %d, new %d\n", (unsigned long long)cases, old, new);
    its_sim = whole_sim;
    its = vfs_sim_table(its_sim);
    all_end();
}

static void without_memory_an_update_fails_and_can_begin_again(void) {
    int earlier = failures_here;
    uint64_t struck = 1, refused = 0;

    a_member_far_behind();
    host_close(host);
    host = NULL;
    whole_sim = its_sim;
    for (uint64_t nth = 1; struck > 0 && failures_here == earlier; nth += 1 + nth / 60) {
        its_sim = vfs_sim_clone(whole_sim);
        its = vfs_sim_table(its_sim);
        check(host_open(its, HOST, &r.options, &host) == LS_OK);
        allocations = failed = 0;
        fail_at_nth = nth;
        counting = true;
        int rc = source_from(0, NO_LIMIT, 0);
        rc = rc == LS_OK ? update() : rc;
        counting = false;
        struck = failed;
        refused += rc != LS_OK;
        if (rc != LS_OK) {
            ls_update_source_close(source);
            source = NULL;
            check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
            check(open_host_again() == LS_OK || complain("open"));
            check(host->vote->now.copy == 2 || update() == LS_OK || complain("update"));
        }
        check(host->vote->now.copy == 2 && ends_at_the_manifest());
        ls_update_source_close(source);
        source = NULL;
        if (failures_here > earlier)
            printf("  allocation %llu\n", (unsigned long long)nth);
        host_close(host);
        host = NULL;
        check(vfs_sim_handles(its_sim) == 0);
        vfs_sim_free(its_sim);
    }
    check(refused > 0 || !TAKEN_OVER);
    printf("  %llu allocations refused\n", (unsigned long long)refused);
    its_sim = whole_sim;
    its = vfs_sim_table(its_sim);
    all_end();
}

/* ---- what the caller adds ---- */

static void the_catalog_is_forced_before_the_copy_counts(void) {
    ls_update *u;

    a_member_far_behind();
    check(source_from(0, NO_LIMIT, 0) == LS_OK || complain("source"));
    check(ls_update_begin(host, &manifest, segments, &u) == LS_OK && transfer(u) == LS_OK);
    check(strcmp(ls_update_path(u), "/m/copy-2") == 0);
    int dir = its->open_dir(its, ls_update_path(u));
    int file = its->open(its, dir, "catalog.sqlite", VFS_WRITE | VFS_CREATE);
    check(its->pwrite(its, file, "rows", 4, 0) == 4);
    check(its->close(its, file) == 0 && its->close(its, dir) == 0);
    check(ls_update_finish(u) == LS_OK || complain("finish"));
    ls_update_free(u);
    vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    vfs_sim *cut = vfs_sim_crash(its_sim, &all);
    check(vfs_sim_get(cut, VFS_SIM_SEEN, "/m/copy-2", "catalog.sqlite", part_bytes, sizeof part_bytes) == 4);
    vfs_sim_free(cut);
    all_end();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_copy_behind_the_base_is_brought_up_to_date,
        a_member_without_a_copy_gets_one,
        at_each_moment_the_log_that_is_sent_can_be_opened,
        segments_that_agree_are_copied_and_not_asked_for,
        an_update_that_was_ended_leaves_the_copy_from_before_as_it_was,
        an_update_goes_on_with_what_an_earlier_one_left,
        what_a_longer_update_left_is_not_believed,
        a_hold_keeps_the_segments_while_the_leader_recycles,
        a_hold_that_was_lost_ends_the_update,
        a_sender_whose_own_copy_goes_says_that_the_log_is_recycled,
        a_hold_is_renewed_by_reading_and_goes_with_the_sender,
        an_update_begins_at_the_catalogs_place_if_that_lies_below_the_base,
        a_sender_that_cannot_say_where_its_log_begins_waits,
        a_sender_whose_log_is_recycled_while_its_hold_is_lowered_waits,
        a_flipped_bit_is_found_in_its_segment_and_asked_for_again,
        parts_that_were_not_asked_for_are_refused,
        an_update_that_ends_below_what_the_member_took_meanwhile_is_refused,
        a_manifest_that_contradicts_itself_or_the_member_is_refused_and_nothing_is_written,
        an_update_whose_log_cannot_be_opened_never_counts,
        what_an_update_left_is_no_store_before_a_segment_of_it_goes,
        a_disk_without_room_is_refused_before_anything_is_written,
        after_a_crash_anywhere_one_of_the_two_copies_counts_and_is_whole,
        a_failed_call_leaves_a_member_that_can_be_updated,
        without_memory_an_update_fails_and_can_begin_again,
        the_catalog_is_forced_before_the_copy_counts,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
