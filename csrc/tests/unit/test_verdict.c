/*
 * The torn-or-corrupt rule against the sentences of docs/recovery.md and docs/format.md, in every combination of what the
 * scan can find and of the facts about it.
 */
#include "read/verdict.h"

#include "tests/kit/vfs_test.h"

enum { COMBINATIONS = FOUND_KINDS * (FACTS_ALL + 1) };

static bool answers(const struct verdict_row *row, enum found found, unsigned facts) {
    return row->found == found && (facts & row->with) == row->with && (facts & row->without) == 0;
}

/* "Nothing valid": torn or corrupt. */
static enum verdict verdict_of_no_batch(bool below_w, bool before_end) {
    /* "Everything below W was once known to be on disk. Damage below W is corruption; at or above W it is a torn tail." */
    if (below_w)
        return VERDICT_CORRUPT;
    /* "That header was written only after everything below was durable." */
    return before_end ? VERDICT_CORRUPT : VERDICT_LOG_ENDS;
}

/* The pages' sentences, written without a look at the rows. */
static enum verdict verdict_by_the_page(enum found found, unsigned facts) {
    bool in_log = (facts & IN_LOG) != 0;

    switch (found) {
    case FOUND_BATCH: /* accepted wherever it stands */
        return VERDICT_ACCEPTED;
    case FOUND_NO_BATCH:
        return verdict_of_no_batch((facts & BELOW_W) != 0, (facts & BEFORE_END) != 0);
    case FOUND_IMPOSSIBLE: /* "corruption wherever it stands, never a torn tail" */
        return VERDICT_CORRUPT;
    case FOUND_NEWER: /* another program's, not damage, whatever surrounds it */
        return VERDICT_NEWER;
    case FOUND_EMPTY: /* "the segment is empty: it becomes a spare next time" */
        return VERDICT_SET_ASIDE;
    case FOUND_ONLY_COPIES: /* "If no durable batch names a base that relies on them, the whole segment is left out" */
        return (facts & RELIED_ON) != 0 ? VERDICT_ACCEPTED : VERDICT_SET_ASIDE;
    case FOUND_HEADER: /* what a file held behind its cut cannot be told from a torn tail */
        return in_log && (facts & FILE_CUT) != 0 ? VERDICT_CORRUPT : VERDICT_ACCEPTED;
    case FOUND_LAST_EPOCH: /* there is no epoch for the next open */
        return VERDICT_CORRUPT;
    case FOUND_MOVED_HEADER: /* "the only file of a store without records is found again" */
        return (facts & NO_HEADER) != 0 ? VERDICT_ACCEPTED : VERDICT_SPARE;
    case FOUND_BAD_HEADER: /* "a spare", unless the chain needs it: then a segment is damaged */
        return in_log ? VERDICT_CORRUPT : VERDICT_SPARE;
    case FOUND_TRACES: /* a segment that was durable lost its header; otherwise "a torn first write: a spare" */
        return in_log || (facts & (BELOW_W | NO_HEADER)) != 0 ? VERDICT_CORRUPT : VERDICT_SPARE;
    case FOUND_NO_FILE: /* "below the base: ignored" */
        return in_log ? VERDICT_CORRUPT : VERDICT_IGNORED;
    case FOUND_KINDS:
        break;
    }
    check(false);
    return VERDICT_CORRUPT;
}

static void every_case_has_exactly_one_row_and_it_is_the_one_that_answers(void) {
    int cases = 0;

    for (enum found found = 0; found < FOUND_KINDS; found++)
        for (unsigned facts = 0; facts <= FACTS_ALL; facts++) {
            const struct verdict_row *answer = NULL;
            int rows = 0;

            for (size_t i = 0; i < verdict_row_count; i++)
                if (answers(&verdict_rows[i], found, facts)) {
                    answer = &verdict_rows[i];
                    rows++;
                }
            if (rows != 1)
                printf("found %d with facts %u has %d rows\n", (int)found, facts, rows);
            require(rows == 1);
            check(verdict_of(found, facts) == answer);
            cases++;
        }
    check(cases == COMBINATIONS);
}

static void every_case_has_the_verdict_of_the_page(void) {
    for (enum found found = 0; found < FOUND_KINDS; found++)
        for (unsigned facts = 0; facts <= FACTS_ALL; facts++) {
            enum verdict expected = verdict_by_the_page(found, facts);

            if (verdict_of(found, facts)->verdict != expected)
                printf("found %d with facts %u: %d, not %d\n", (int)found, facts,
                       (int)verdict_of(found, facts)->verdict, (int)expected);
            check(verdict_of(found, facts)->verdict == expected);
        }
}

static void every_row_answers_some_case_and_contradicts_nothing(void) {
    for (size_t i = 0; i < verdict_row_count; i++) {
        const struct verdict_row *row = &verdict_rows[i];

        check(row->found < FOUND_KINDS && ((row->with | row->without) & ~(unsigned)FACTS_ALL) == 0);
        check((row->with & row->without) == 0); /* so no other row matches the case with exactly these facts */
        check(verdict_of(row->found, row->with) == row);
    }
}

static void a_refusal_says_why_and_nothing_else_does(void) {
    for (size_t i = 0; i < verdict_row_count; i++) {
        const struct verdict_row *row = &verdict_rows[i];

        check((row->verdict == VERDICT_CORRUPT) == (row->reason != NO_REASON));
        check((verdict_reason(row->reason)[0] != '\0') == (row->reason != NO_REASON));
    }
}

/* The walk refuses a batch before W is known. So no fact that is found later may make the verdict accept that batch. */
static void what_is_refused_with_no_facts_is_refused_with_all(void) {
    for (enum found found = 0; found < FOUND_EMPTY; found++) {
        enum verdict first = verdict_of(found, 0)->verdict;

        for (unsigned facts = 0; facts <= FACTS_ALL && first != VERDICT_LOG_ENDS; facts++)
            check(verdict_of(found, facts)->verdict == first);
    }
}

static void the_shorter_file_and_the_place_of_the_close_only_choose_the_words(void) {
    for (unsigned facts = 0; facts <= FACTS_ALL; facts++) {
        const struct verdict_row *row = verdict_of(FOUND_NO_BATCH, facts);

        check(row->verdict == verdict_of(FOUND_NO_BATCH, facts & ~(unsigned)(FILE_CUT | CLOSED_BEYOND))->verdict);
        check(row->reason != SEGMENT_CUT || (facts & FILE_CUT) != 0);
        check(row->reason != ENDS_TOO_EARLY || (facts & CLOSED_BEYOND) != 0);
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        every_case_has_exactly_one_row_and_it_is_the_one_that_answers,
        every_case_has_the_verdict_of_the_page,
        every_row_answers_some_case_and_contradicts_nothing,
        a_refusal_says_why_and_nothing_else_does,
        what_is_refused_with_no_facts_is_refused_with_all,
        the_shorter_file_and_the_place_of_the_close_only_choose_the_words,
    };
    int count = (int)(sizeof tests / sizeof *tests), failed = 0;

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed += failures_here > 0;
    }
    return verdict(count - failed, failed);
}
