/*
 * A log whose newest batch has an index is a copy of a replicated one: only its member may open it, readers stop at what a
 * majority is known to have, and what its batches say of replication is judged. docs/format.md, section 10.
 */
#include "tests/kit/forged_terms.h"

static int inspect(int flags, ls_inspection *found, uint64_t *messages) {
    ls_store *seen = NULL;
    ls_stats stats;
    uint64_t lsn;
    int rc = ls_inspect_open(r.v, "/s", flags, &seen);

    memset(found, 0, sizeof *found);
    *messages = 0;
    while (rc == LS_OK)
        rc = ls_inspect_step(seen, 1 << 20, &lsn);
    if (rc == LS_END) {
        ls_inspect_describe(seen, found);
        ls_stats_get(seen, &stats);
        *messages = stats.messages;
    }
    if (seen != NULL)
        ls_free(seen);
    return rc;
}

/* Every way of reading refuses the log as damaged at this LSN; only verify reads what is undurable. */
static bool is_corrupt_at(uint64_t lsn, const char *words) {
    ls_inspection found;
    uint64_t messages;
    int rc = inspect(LS_INSPECT_CHECK, &found, &messages);
    const ls_error *e = ls_last_error();
    bool right = rc == LS_CORRUPT && e->lsn == lsn && strstr(e->text, words) != NULL;

    if (!right)
        printf("%d at %llu, not %llu: %s\n", rc, (unsigned long long)e->lsn, (unsigned long long)lsn, e->text);
    return right;
}

/* ---- who opens it ---- */

static void an_open_of_a_replicated_log_refuses_and_writes_nothing(void) {
    uint64_t changes;

    forge_replication();
    changes = vfs_sim_changes(sim);
    check(open_again() == LS_REPLICATED && strstr(ls_last_error()->text, "term 3, index 1") != NULL);
    check(strstr(ls_last_error()->text, "logstore cluster detach") != NULL);
    check(vfs_sim_changes(sim) == changes);
    done();
}

/* Also if replication had content of its own, and the MEMBERS still stands in the log. */
static void a_log_whose_newest_batch_has_no_index_is_a_single_store(void) {
    ls_inspection found;
    uint64_t id, messages;

    forge_replication();
    id = forge_message(1);
    (void)forge_next();
    next_index = 0;
    forge_term(70000);
    (void)forge_next();
    check(inspect(0, &found, &messages) == LS_END && messages == 2);
    check(found.log.index == 0 && found.log.term == 0 && found.log.known_durable_lsn == 0);
    check(open_again() == LS_OK && has(id));
    check(put(1, "after", NULL) != 0);
    churn(60); /* the base passes the MEMBERS */
    again();
    check(has(id));
    done();
}

/* ---- what is durable ---- */

static void a_reader_stops_at_what_a_majority_is_known_to_have(void) {
    ls_inspection found;
    uint64_t end, messages;
    ls_reader *reader;
    ls_reader_info info;
    ls_batch b;

    forge_replication();
    end = log_end;
    (void)forge_message(1);
    (void)forge_next();
    known_lsn = end;
    (void)forge_message(2);
    (void)forge_next();
    check(inspect(0, &found, &messages) == LS_END && messages == 1 && found.log.end_lsn == end);
    check(found.log.index == 3 && found.log.term == 3 && found.log.known_durable_lsn == end);
    check(found.log.seen_lsn == log_end);
    check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END && messages == 3 && found.log.end_lsn == log_end);
    check(ls_reader_open(r.v, "/s", 0, &reader) == LS_OK);
    for (b.lsn = 0; ls_reader_next(reader, &b) == LS_OK;)
        check(b.lsn < end);
    check(b.lsn == end - b.size);
    ls_reader_describe(reader, &info);
    check(info.end_lsn == end && info.index == 3 && info.known_durable_lsn == end);
    ls_reader_close(reader);
    check(ls_reader_open_kept(r.v, "/s", info.base_lsn, end, 0, &reader) == LS_OK);
    for (b.lsn = 0; ls_reader_next(reader, &b) == LS_OK;)
        check(b.lsn < end);
    check(b.lsn == end - b.size);
    ls_reader_describe(reader, &info);
    check(info.end_lsn == end && info.index > 0 && info.index <= 3 && info.known_durable_lsn == end);
    ls_reader_close(reader);
    done();
}

/* Nothing of the new term is known to be durable: its leader may go without having had a majority. */
static void a_reader_stops_in_the_segment_of_an_earlier_term(void) {
    ls_inspection found;
    uint64_t end, messages;

    forge_replication();
    end = log_end;
    (void)forge_message(1);
    (void)forge_next();
    forge_term(4);
    (void)forge_next();
    check(inspect(0, &found, &messages) == LS_END && messages == 1 && found.log.end_lsn < end);
    check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END && messages == 2);
    known_lsn = end;
    (void)forge_next();
    check(inspect(0, &found, &messages) == LS_END && messages == 1 && found.log.end_lsn == end);
    check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END && messages == 2);
    done();
}

/* The undurable batch that names a higher base may be cut; then all from the lower one on is needed. */
static void the_base_is_that_of_the_newest_batch_known_to_be_durable(void) {
    ls_inspection found;
    uint64_t first = 0, messages;

    forge_replication();
    first = base_lsn;
    (void)forge_message(1);
    (void)forge_next();
    base_lsn = f.first_lsn;
    forge_members(1, FLAG_COPY, members_lsn, members_lsn);
    (void)forge_next();
    check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END && found.log.base_lsn == first && messages == 2);
    known_lsn = log_end;
    (void)forge_next();
    check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END && found.log.base_lsn == f.first_lsn && messages == 1);
    done();
}

/* ---- where it ends ---- */

static void a_last_segment_that_holds_only_copies_is_not_set_aside(void) {
    ls_inspection found;
    uint64_t messages, id;

    for (int replicated = 0; replicated < 2; replicated++) {
        forge_replication();
        id = members_lsn;
        if (replicated == 0)
            next_index = 0;
        forge_segment(3, f.first_lsn + SEGMENT, log_end);
        forge_members(1, FLAG_COPY, id, id);
        (void)forge_next();
        check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END);
        check(found.log.index == (replicated == 0 ? 1 : 2));
        check((found.log.end_lsn == log_end) == (replicated == 1));
        done();
    }
}

static void a_close_makes_no_end_of_a_replicated_log_clean(void) {
    ls_inspection found;
    uint64_t messages;
    struct slot s;

    forge_replication();
    s = forge_slot(&f, 0, 0, 0);
    s.id = 0;
    (void)forge_add(&f, format_put_plain(&s, CLOSE));
    (void)forge_next();
    check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END && found.log.clean == 0);
    done();
}

static void a_term_whose_first_batch_was_torn_leaves_the_log_replicated(void) {
    forge_replication();
    forge_term(4);
    check(open_again() == LS_REPLICATED && strstr(ls_last_error()->text, "term 3, index 1") != NULL);
    done();
}

/* ---- what contradicts itself ---- */

static void indexes_follow_one_another(void) {
    static const uint64_t wrong[] = {1, 3, UINT64_MAX};

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        forge_replication();
        next_index = wrong[i];
        if (wrong[i] == 1) /* as if replication began again */
            forge_members(1, 0, 0, 0);
        check(is_corrupt_at(forge_next(), "index does not follow"));
        done();
    }
}

static void what_is_known_to_be_durable_never_decreases(void) {
    forge_replication();
    known_lsn--;
    check(is_corrupt_at(forge_next(), "knows less to be durable"));
    done();
}

static void replication_begins_with_members(void) {
    for (int again = 0; again < 2; again++) {
        uint64_t lsn;

        forge_replication();
        if (again == 0) { /* at first */
            forge_segment(3, f.first_lsn, known_lsn);
            next_index = 1;
        } else { /* and after it had ended */
            next_index = 0;
            forge_term(70000);
            (void)forge_next();
            next_index = 2;
            forge_term(70001);
        }
        (void)forge_message(1);
        lsn = forge_next();
        check(is_corrupt_at(lsn, "no MEMBERS"));
        done();
    }
}

static void a_member_names_the_batch_that_it_was_first_written_in(void) {
    forge_replication();
    forge_members(1, 0, 0, 0);
    (void)forge_next();
    check(is_corrupt_at(members_lsn, "another batch than its own"));
    done();
}

static void members_that_are_copied_are_the_newest(void) {
    uint64_t first;

    forge_replication();
    first = members_lsn;
    forge_members(2, 0, 0, 0);
    (void)forge_next();
    forge_members(1, FLAG_COPY, first, first);
    (void)forge_next();
    check(is_corrupt_at(members_lsn, "is not the newest"));
    done();
}

static void a_copy_of_the_members_is_equal_to_it(void) {
    for (uint64_t index = 1; index <= 2; index++) {
        ls_inspection found;
        uint64_t messages;

        forge_replication();
        forge_members(index, FLAG_COPY, members_lsn, members_lsn);
        (void)forge_next();
        if (index == 1)
            check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END);
        else
            check(is_corrupt_at(members_lsn, "is not the newest"));
        done();
    }
}

static void members_that_are_no_copy_are_alone_in_their_batch(void) {
    forge_replication();
    forge_members(2, 0, 0, 0);
    (void)forge_message(1);
    (void)forge_next();
    check(is_corrupt_at(members_lsn, "not alone in its batch"));
    done();
}

/* The base has passed it, and it was not moved. */
static void the_newest_members_lives(void) {
    forge_replication();
    forge_segment(3, f.first_lsn + SEGMENT, log_end);
    base_lsn = f.first_lsn;
    (void)forge_message(1);
    (void)forge_next();
    known_lsn = log_end;
    (void)forge_next();
    check(is_corrupt_at(base_lsn, "no MEMBERS stands in it"));
    done();
}

static void a_term_has_its_own_lsns(void) {
    for (int i = 0; i < 2; i++) {
        uint64_t lsn;

        forge_replication();
        forge_segment(4, term_first_lsn(4) + (i == 0 ? -(uint64_t)SEGMENT : (uint64_t)1 << TERM_SHIFT), log_end);
        lsn = forge_next();
        check(is_corrupt_at(lsn, "no writer writes"));
        done();
    }
}

static void a_term_begins_with_its_first_segment(void) {
    uint64_t lsn;

    forge_replication();
    forge_segment(4, term_first_lsn(4) + SEGMENT, log_end);
    lsn = forge_next();
    check(is_corrupt_at(lsn, "where its term begins"));
    done();
}

/* ---- a catalog change has no effect on messages ---- */

/* Adds a part to the batch, and seals that. Its LSN. */
static uint64_t forge_part(uint32_t part, bool more) {
    uint8_t rows[64];
    const struct catalog_row row = {
        .action = CATALOG_PUT, .object = CATALOG_QUEUE, .queue_id = 3, .bytes = 2, .data = (const uint8_t *)"{}"};
    struct slot s = forge_slot(&f, 0, 0, more ? FLAG_PART : 0);
    uint64_t lsn;

    s.id = 0;
    lsn = forge_add(&f, format_put_catalog_change(&s, part, 1, rows, format_put_catalog_row(rows, &row)));
    (void)forge_next();
    return lsn;
}

static void the_parts_of_a_catalog_change_follow_one_another(void) {
    static const struct {
        uint32_t parts[3];
        bool more[3];
        bool new_term; /* before the last one */
        bool right;
    } cases[] = {
        {{0, 1, 2}, {true, true, false}, false, true},    {{0, 0, 0}, {false, false, false}, false, true},
        {{0, 1, 0}, {true, true, false}, true, true},     {{0, 1, 2}, {true, true, false}, true, true},
        {{0, 1, 1}, {true, true, false}, false, false},   {{0, 1, 0}, {true, true, false}, false, false},
        {{0, 0, 1}, {false, false, false}, false, false}, {{0, 1, 2}, {true, false, false}, true, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_inspection found;
        uint64_t messages, lsn = 0;

        forge_replication();
        for (int n = 0; n < 3; n++) {
            if (n == 2 && cases[i].new_term)
                forge_term(4);
            lsn = forge_part(cases[i].parts[n], cases[i].more[n]);
        }
        if (cases[i].right)
            check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END);
        else
            check(is_corrupt_at(lsn, "where another belongs"));
        done();
    }
}

static void a_catalog_change_is_read_and_judged(void) {
    uint8_t rows[64];
    const struct catalog_row row = {
        .action = CATALOG_PUT, .object = CATALOG_QUEUE, .queue_id = 3, .bytes = 2, .data = (const uint8_t *)"{}"};
    ls_inspection found;
    uint64_t messages, lsn;

    for (int wrong = 0; wrong < 2; wrong++) {
        struct slot s;
        uint32_t bytes;

        forge_replication();
        s = forge_slot(&f, 0, 0, 0);
        s.id = 0;
        bytes = format_put_catalog_change(&s, 0, 1, rows, format_put_catalog_row(rows, &row));
        lsn = forge_add(&f, bytes);
        if (wrong == 1)
            forge_spoil(s, bytes, 52, 4, 2);
        (void)forge_next();
        if (wrong == 1)
            check(is_corrupt_at(lsn, "contents are impossible"));
        else
            check(inspect(LS_INSPECT_CHECK, &found, &messages) == LS_END && messages == 1);
        done();
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        an_open_of_a_replicated_log_refuses_and_writes_nothing,
        a_log_whose_newest_batch_has_no_index_is_a_single_store,
        a_reader_stops_at_what_a_majority_is_known_to_have,
        a_reader_stops_in_the_segment_of_an_earlier_term,
        the_base_is_that_of_the_newest_batch_known_to_be_durable,
        a_last_segment_that_holds_only_copies_is_not_set_aside,
        a_close_makes_no_end_of_a_replicated_log_clean,
        a_term_whose_first_batch_was_torn_leaves_the_log_replicated,
        indexes_follow_one_another,
        what_is_known_to_be_durable_never_decreases,
        replication_begins_with_members,
        a_member_names_the_batch_that_it_was_first_written_in,
        members_that_are_copied_are_the_newest,
        a_copy_of_the_members_is_equal_to_it,
        members_that_are_no_copy_are_alone_in_their_batch,
        the_newest_members_lives,
        a_term_has_its_own_lsns,
        a_term_begins_with_its_first_segment,
        the_parts_of_a_catalog_change_follow_one_another,
        a_catalog_change_is_read_and_judged,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
