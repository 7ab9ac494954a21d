/*
 * Messages as rows in a log with states of places: consecutive passes give the same rows as one pass, wherever the log is
 * divided; every failed allocation is reported, and leaves nothing behind; a forged state is refused or used without harm.
 */
#include "tests/kit/message_passes.h"
#include "tests/kit/forged_log.h"

enum { OLD = 4104 }; /* a chain that began below the log */

static struct forged f;
static uint64_t newest; /* record of the chain that is written to */
static uint8_t note[255];

static struct slot next_of(uint64_t chain, uint16_t flags) {
    return forge_slot(&f, chain, chain == 0 || newest == 0 ? 0 : newest, flags);
}

static uint64_t start_placed(uint64_t tx, uint32_t order_index, uint32_t queue_count, uint8_t note_bytes) {
    static const uint32_t queues[] = {1, 2, 3};
    const struct message_start m = {.tx_id = tx,
                                    .order_index = order_index,
                                    .header_bytes = 3,
                                    .content_bytes = 9,
                                    .queue_count = queue_count,
                                    .header = note,
                                    .content = note};
    const struct place_state state = {
        .not_before_us = 5, .expires_us = PLACE_TIME_MAX, .note = note, .note_bytes = note_bytes};
    struct slot s = forge_slot(&f, 0, 0, FLAG_PUBLISHED);

    return newest = forge_add(&f, format_put_start_placed(&s, &m, queues, &state));
}

static void put_note(uint64_t chain, uint64_t tx, uint32_t queue_id, uint8_t bytes) {
    const struct message_place m = {.tx_id = tx, .queue_id = queue_id, .note_bytes = bytes, .note = note};
    struct slot s = next_of(chain, 0);

    newest = forge_add(&f, format_put_place(&s, &m));
}

static void move(uint64_t chain, const struct message_move *m) {
    struct slot s = next_of(chain, 0);

    newest = forge_add(&f, format_put_move(&s, m));
}

static void states_of(uint64_t chain, uint32_t queue_id, uint32_t count) {
    const struct state_row rows[] = {
        {.id = chain, .not_before_us = 7, .queue_id = queue_id, .delivery_count = count},
        {.id = chain, .expires_us = 9, .queue_id = queue_id, .delivery_count = count + 1},
        {.id = OLD + 8, .queue_id = 1, .delivery_count = 1}, /* of a message that ended below the log */
    };
    struct slot s = {.seed = f.seed, .lsn = f.lsn + f.bytes, .at = f.image + (f.lsn + f.bytes - f.first_lsn)};

    (void)forge_add(&f, format_put_place_states(&s, rows, 3));
}

/* Two parts: places, then pending work of each kind. */
static void relocated(uint64_t chain, uint64_t tx, uint64_t operation, bool old) {
    const struct place_state states[] = {
        {.delivery_count = 4, .note = note, .note_bytes = 200},
        {.expires_us = 6, .header = note, .header_bytes = 40},
    };
    const struct place_row places[] = {
        {.order_lsn = old ? chain : operation, .queue_id = 8, .delivery_count = 4},
        {.order_lsn = old ? chain : operation, .queue_id = 9, .order_index = 1},
    };
    const struct place_state work_states[] = {{.delivery_count = 1, .header = note}, {.delivery_count = 0}, states[0]};
    struct place_state bare = {.note = note, .note_bytes = 10};
    const struct pending_row work[] = {
        {.tx_id = tx, .lsn = operation, .queue_id = 10, .kind = PENDING_ENQUEUE, .order_index = 3},
        {.tx_id = tx, .lsn = operation, .queue_id = 9, .kind = PENDING_DEQUEUE},
        {.tx_id = tx, .lsn = operation, .queue_id = 8, .kind = PENDING_NOTE},
    };
    struct place_state given[3] = {work_states[0], work_states[1], bare};
    struct message_relocated m = {.content_bytes = 9};
    struct slot s = next_of(chain, FLAG_COPY);

    if (old)
        s.prev = chain;
    newest = m.start_lsn = forge_add(&f, format_put_start(&s, 0, 0, NULL, 0, note, 3, note, 9));
    m.place_count = 2;
    s = next_of(chain, FLAG_PART);
    newest = forge_add(&f, format_put_relocated_placed(&s, &m, NULL, places, states, NULL, NULL));
    m.part = 1;
    m.place_count = 0;
    m.pending_count = 3;
    s = next_of(chain, 0);
    newest = forge_add(&f, format_put_relocated_placed(&s, &m, NULL, NULL, NULL, work, given));
}

static uint64_t plain_record(enum record_type type, uint64_t chain, uint64_t prev) {
    struct slot s = forge_slot(&f, chain, prev, 0);

    return forge_add(&f, format_put_plain(&s, type));
}

static void dequeue(uint64_t chain, uint32_t queue_id) {
    const struct message_dequeue d = {.queue_id = queue_id, .reason = 1};
    struct slot s = next_of(chain, 0);

    newest = forge_add(&f, format_put_dequeue(&s, &d));
}

/* A log with every record that carries states; one transaction is decided in it, the other is not. */
static void make_placed(void) {
    uint64_t id, other_id, tx, open;

    memset(note, 'n', sizeof note);
    fresh();
    (void)put(1, "so that there is a batch", NULL);
    forge_begin(&f);
    id = start_placed(0, 0, 2, 255);
    put_note(id, 0, 1, 30);
    move(id, &(struct message_move){.from_queue_id = 1,
                                    .queue_id = 4,
                                    .reason = 5,
                                    .keeps_note = true,
                                    .state = {.delivery_count = UINT32_MAX, .header = note, .header_bytes = 20}});
    states_of(id, 4, 6);
    move(id, &(struct message_move){.from_queue_id = 4, .queue_id = 4, .keeps_header = true, .keeps_note = true});
    put_note(id, 0, 2, 0);
    tx = plain_record(TX_START, 0, 0);
    open = plain_record(TX_START, 0, 0);
    put_note(id, tx, 4, 100);
    move(id, &(struct message_move){.tx_id = tx, .from_queue_id = 4, .queue_id = 5, .keeps_note = true});
    move(id, &(struct message_move){.tx_id = tx,
                                    .from_queue_id = 5,
                                    .queue_id = 6,
                                    .order_index = 1,
                                    .keeps_header = true,
                                    .keeps_note = true});
    dequeue(id, 2);
    (void)plain_record(TX_COMMIT, tx, tx);
    put_note(id, open, 6, 50);
    other_id = start_placed(open, 0, 3, 1);
    put_note(other_id, open, 2, 9);
    newest = 0;
    relocated(OLD, open, open + 8, true);
    newest = other_id;
    move(other_id, &(struct message_move){.tx_id = open,
                                          .from_queue_id = 2,
                                          .queue_id = 7,
                                          .order_index = 4,
                                          .keeps_header = true,
                                          .keeps_note = true});
    id = start_placed(0, 0, 1, 0);
    states_of(id, 1, 1);
    dequeue(id, 1);
    forge_end(&f);
    rich = sim;
}

static void consecutive_passes_give_the_rows_of_one_pass_wherever_the_log_is_divided(void) {
    pass_over_all(rich);
    check(whole.rows == 5 || !printf("%llu rows\n", (unsigned long long)whole.rows));
    for (size_t i = 0; i < lsn_count; i++)
        cut_at(rich, lsns[i], 1 + i % 3);
}

static void a_pass_without_memory_says_so_wherever_it_begins(void) {
    pass_over_all(rich);
    for (size_t i = 0; TAKEN_OVER && i < lsn_count; i += 4) {
        struct told_rows t = rows_new();

        check(pass_over(vfs_sim_table(rich), 0, lsns[i], 64, NULL, &t, &left) == LS_END);
        starve_from(lsns[i]);
        free(t.bytes);
    }
    check(!TAKEN_OVER || fail_at_nth > 20);
}

static void a_forged_state_is_refused_or_used_without_harm(void) {
    uint64_t placed = 0, parts = 0;

    pass_over_all(rich);
    for (size_t at = 2; at < lsn_count; at += 3) {
        struct told_rows t = rows_new();

        check(pass_over(vfs_sim_table(rich), 0, lsns[at], 64, NULL, &t, &left) == LS_END);
        free(t.bytes);
        for (size_t i = 0; i < left.count && at % 2 == 0; i++) {
            const uint8_t *state = left.states + left.from[i];

            if (get32(state + 4) == 2) {
                forge(left.ids[i], state, left.from[i + 1] - left.from[i], lsns[at], true);
                placed++;
            }
        }
        if (get32(left.rest + 4) == 2) {
            forge(0, left.rest, left.rest_bytes, lsns[at], true);
            forge(0, left.rest, left.rest_bytes, lsns[at], false);
            parts++;
        }
    }
    check((placed > 5 && parts > 0) ||
          !printf("%llu and %llu\n", (unsigned long long)placed, (unsigned long long)parts));
    check(forged_ok > 20 && forged_refused > 20);
}

int main(void) {
    static void (*const tests[])(void) = {
        consecutive_passes_give_the_rows_of_one_pass_wherever_the_log_is_divided,
        a_pass_without_memory_says_so_wherever_it_begins,
        a_forged_state_is_refused_or_used_without_harm,
    };
    int result;

    whole = rows_new();
    make_placed();
    result = run_tests(tests, sizeof tests / sizeof *tests);
    free(whole.bytes);
    done();
    return result;
}
