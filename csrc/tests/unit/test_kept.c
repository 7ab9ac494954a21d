/*
 * The kept window of a member's copy: it gives every batch as it was handed out, while it follows and while it leads, after an open,
 * and from below a checkpoint; and its segments stay until it is dropped. See replica/kept.h.
 */
#include "tests/kit/failing_memory.h"
#include "tests/kit/two_members.h"

/* It has these, each as it was handed out. */
static bool gives(struct member *m, uint64_t first, uint64_t last) {
    uint64_t its_first, its_last;
    ls_replica_batch b;
    ls_replica_entry e;

    ls_host_kept(m->host, &its_first, &its_last);
    if (its_first > first || its_last != last)
        return complain("the range");
    for (uint64_t i = first; i <= last; i++) {
        const struct made *was = &made[i];

        if (ls_host_read(m->host, i, &b) != LS_OK || ls_host_entry(m->host, i, &e) != LS_OK)
            return complain("read");
        if (b.index != i || e.index != i || b.term != was->batch.term || e.term != b.term || b.lsn != was->batch.lsn ||
            e.lsn != b.lsn || b.end_lsn != was->batch.end_lsn || e.end_lsn != b.end_lsn ||
            b.first_lsn != was->batch.first_lsn || b.known_durable_lsn != was->batch.known_durable_lsn ||
            memcmp(b.bytes, was->bytes, b.end_lsn - b.lsn) != 0)
            return complain("another batch");
        if ((b.header != NULL) != (was->header != NULL) ||
            (b.header != NULL && memcmp(b.header, was->header, SEGMENT_HEADER_BYTES) != 0))
            return complain("another header");
    }
    return ls_host_read(m->host, last + 1, &b) == LS_REFUSED && ls_host_entry(m->host, last + 1, &e) == LS_REFUSED;
}

static void a_leader_and_a_copy_give_every_batch_as_it_was_handed_out(void) {
    ls_replica_entry e;
    ls_replica_batch b;
    const uint8_t *config;
    size_t bytes;
    uint64_t index;

    enter(1 << 20);
    check(!gives(&one, 1, 1)); /* a single store has none */
    lead(&one, &two, TERM);
    for (int i = 0; i < 40; i++)
        (void)send(&one, &two, 3000);
    check(gives(&one, 1, newest) && gives(&two, 1, newest));
    check(ls_host_entry(two.host, 1, &e) == LS_OK && e.kind == LS_ENTRY_MEMBERS);
    check(ls_host_entry(two.host, 3, &e) == LS_OK && e.kind == LS_ENTRY_BATCH);
    check(ls_host_read(two.host, 1, &b) == LS_OK && ls_replica_members(&b, &config, &bytes) == LS_OK);
    check(bytes == 3 && memcmp(config, "1,2", 3) == 0);
    check(ls_host_read(two.host, 2, &b) == LS_OK && ls_replica_members(&b, &config, &bytes) == LS_OPTION);
    check(ls_host_members(two.host, &index, &config, &bytes) == LS_OK && index == 1 && bytes == 3);
    check(ls_host_members(one.host, &index, &config, &bytes) == LS_OPTION);
    cease_and_follow(&one);
    check(gives(&one, 1, newest));
    lead(&two, &one, TERM + 1);
    for (index = newest; made[index - 1].batch.term == TERM + 1; index--) {
    }
    check(ls_host_entry(one.host, index, &e) == LS_OK && e.kind == LS_ENTRY_FIRST && e.term == TERM + 1);
    (void)send(&two, &one, 10);
    check(ls_host_entry(one.host, newest, &e) == LS_OK && e.kind == LS_ENTRY_BATCH);
    check(gives(&one, 1, newest) && gives(&two, 1, newest));
    leave();
}

static void an_open_finds_the_window_also_below_a_checkpoint(void) {
    uint64_t first, last, all;
    int taken;

    enter(1 << 20);
    lead(&one, &two, TERM);
    for (int i = 0; i < 60; i++)
        (void)send(&one, &two, 3000);
    check(ls_replica_checkpoint(ls_host_replica(two.host), &taken) == LS_OK && taken == 1);
    for (int i = 0; i < 3; i++)
        (void)send(&one, &two, 10);
    ls_host_close(two.host);
    check(open_member(&two) == LS_OK && gives(&two, 1, newest));
    ls_host_close(two.host);
    options.kept_bytes = 2 * SEGMENT;
    check(open_member(&two) == LS_OK);
    ls_host_kept(two.host, &first, &last);
    check(first > 1 && last == newest && gives(&two, first, newest));
    all = made[newest].batch.end_lsn - made[first].batch.lsn;
    check(all >= SEGMENT && all <= 3 * SEGMENT);
    ls_host_close(two.host);
    options.kept_bytes = 0;
    check(open_member(&two) == LS_OK);
    ls_host_kept(two.host, &first, &last);
    check(last < first);
    leave();
}

/* Whether the log has the segment of this batch. A leader renames a file that it recycles; a copy that follows keeps its name. */
static bool has_segment(const struct member *m, uint64_t index) {
    const struct replica *f = m->host->follows;
    uint64_t first_lsn = made[index].batch.first_lsn;
    char name[SEGMENT_NAME_BYTES];
    bool found = false;

    for (size_t i = 0; f != NULL && i < f->segment_count; i++)
        found = found || f->segments[i].first_lsn == first_lsn;
    format_segment_name(name, first_lsn);
    return f != NULL ? found : vfs_sim_get(m->disk, VFS_SIM_SEEN, "/m/copy-1", name, NULL, 0) >= 0;
}

static void segments_stay_until_what_they_have_is_dropped(void) {
    uint64_t before;

    enter(1 << 20);
    lead(&one, &two, TERM);
    churn_here(&one, &two, 120);
    check(gives(&one, 1, newest) && gives(&two, 1, newest));
    before = newest;
    ls_host_drop_kept(one.host, one.leads, newest - 5);
    ls_host_drop_kept(two.host, NULL, newest - 5);
    churn_here(&one, &two, 30);
    check(!has_segment(&one, 1) && !has_segment(&two, 1));
    check(gives(&one, before - 5, newest) && gives(&two, before - 5, newest) && !gives(&two, 1, newest));
    cease_and_follow(&one);
    lead(&two, &one, TERM + 1); /* it keeps as leader what it kept before */
    churn_here(&two, &one, 60);
    check(gives(&two, before - 5, newest));
    ls_host_drop_kept(two.host, two.leads, newest + 1); /* all: those that come stay all the same */
    before = newest;
    churn_here(&two, &one, 60);
    check(gives(&two, before + 1, newest) && !has_segment(&two, before - 60));
    leave();
}

static void a_copy_keeps_what_its_catalog_may_lack_while_it_follows_and_while_it_leads(void) {
    uint64_t lacks, then;

    enter(0);
    lead(&one, &two, TERM);
    churn_here(&one, &two, 40);
    ls_host_close(two.host);
    lacks = newest;
    options.catalog_lsn = made[lacks].batch.lsn;
    check(open_member(&two) == LS_OK);
    churn_here(&one, &two, 60);
    check(has_segment(&two, lacks) && !has_segment(&one, lacks));
    cease_and_follow(&one);
    lead(&two, &one, TERM + 1);
    churn_here(&two, &one, 60);
    check(has_segment(&two, lacks));
    then = newest;
    ls_host_catalog_has(two.host, two.leads, made[then].batch.lsn);
    ls_host_catalog_has(two.host, two.leads, 100); /* it never goes back */
    churn_here(&two, &one, 60);
    check(!has_segment(&two, lacks) && has_segment(&two, then));
    cease_and_follow(&two);
    check(has_segment(&two, then));
    lead(&one, &two, TERM + 2);
    churn_here(&one, &two, 60);
    check(has_segment(&two, then));
    ls_host_catalog_has(two.host, NULL, made[newest].batch.lsn);
    churn_here(&one, &two, 30);
    check(!has_segment(&two, then));
    leave();
}

static void what_was_cut_is_not_kept(void) {
    uint64_t first, last, whole;
    ls_replica_batch b;

    enter(1 << 20);
    lead(&one, &two, TERM);
    (void)send(&one, &two, 10);
    whole = newest;
    (void)send(&one, NULL, 10);
    for (uint64_t i = whole + 1; i <= newest; i++) {
        b = made[i].batch;
        b.bytes = made[i].bytes;
        b.header = made[i].header;
        check(ls_replica_take(ls_host_replica(two.host), &b) == LS_OK || complain("take"));
    }
    check(gives(&two, 1, newest));
    check(ls_host_cut(two.host, whole) == LS_OK || complain("cut"));
    ls_host_kept(two.host, &first, &last);
    check(last == whole && ls_host_read(two.host, whole + 1, &b) == LS_REFUSED);
    b = made[whole + 1].batch; /* of a term that goes on elsewhere */
    b.bytes = made[whole + 1].bytes;
    b.index++;
    check(ls_replica_take(ls_host_replica(two.host), &b) == LS_REFUSED);
    check(gives(&two, 1, whole));
    leave();
}

static void a_batch_that_the_disk_has_spoilt_is_not_given(void) {
    static uint8_t image[SEGMENT];
    const struct made *m;
    char name[SEGMENT_NAME_BYTES];
    ls_replica_batch b;

    enter(1 << 20);
    lead(&one, &two, TERM);
    for (int i = 0; i < 5; i++)
        (void)send(&one, &two, 3000);
    m = &made[3];
    format_segment_name(name, m->batch.first_lsn);
    for (uint64_t at = m->batch.lsn; at < m->batch.end_lsn; at += 97) {
        check(vfs_sim_get(two.disk, VFS_SIM_SEEN, "/m/copy-1", name, image, sizeof image) == SEGMENT);
        image[at - m->batch.first_lsn] ^= 4;
        check(vfs_sim_put(two.disk, "/m/copy-1", name, image, sizeof image) == 0);
        check(ls_host_read(two.host, 3, &b) == LS_CORRUPT);
        check(ls_host_read(two.host, 4, &b) == LS_OK);
        image[at - m->batch.first_lsn] ^= 4;
        check(vfs_sim_put(two.disk, "/m/copy-1", name, image, sizeof image) == 0);
    }
    check(gives(&two, 1, newest));
    leave();
}

static void a_call_that_fails_or_has_no_memory_changes_nothing(void) {
    uint64_t struck = 1;
    ls_replica_batch b;

    enter(1 << 20);
    lead(&one, &two, TERM);
    for (int i = 0; i < 30; i++)
        (void)send(&one, &two, 3000);
    for (uint64_t nth = 1; struck > 0; nth++) {
        const vfs_sim_plan plan = {.nth = nth, .error = EIO};

        check(ls_host_read(two.host, newest, &b) == LS_OK); /* another segment is open */
        vfs_sim_fail(two.disk, &plan);
        int rc = ls_host_read(two.host, 1, &b);
        struck = vfs_sim_fired(two.disk);
        vfs_sim_fail(two.disk, NULL);
        check(rc == LS_OK || rc == LS_IO);
        check(struck > 0 || rc == LS_OK);
    }
    check(gives(&two, 1, newest));
    for (uint64_t nth = struck = 1; struck > 0; nth++) {
        ls_host_close(two.host);
        two.host = NULL;
        allocations = failed = 0;
        fail_at_nth = nth;
        counting = true;
        int rc = open_member(&two);
        rc = rc == LS_OK ? ls_host_read(two.host, 1, &b) : rc;
        counting = false;
        struck = failed;
        check(struck > 0 || rc == LS_OK);
        if (two.host == NULL)
            check(open_member(&two) == LS_OK);
    }
    check(gives(&two, 1, newest));
    leave();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_leader_and_a_copy_give_every_batch_as_it_was_handed_out,
        an_open_finds_the_window_also_below_a_checkpoint,
        segments_stay_until_what_they_have_is_dropped,
        a_copy_keeps_what_its_catalog_may_lack_while_it_follows_and_while_it_leads,
        what_was_cut_is_not_kept,
        a_batch_that_the_disk_has_spoilt_is_not_given,
        a_call_that_fails_or_has_no_memory_changes_nothing,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
