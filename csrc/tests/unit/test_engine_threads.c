/*
 * Engines in several threads at once: opened, used and closed. A thread sanitizer finds what they share.
 */
#include <pthread.h>

#include "tests/kit/engines.h"

enum { THREADS = 4, ROUNDS = 50 };

static pthread_barrier_t all_are_ready;

/* A sole voter that starts, leads, gets ten batches durable and ends. The number of rounds in which it did. */
static void *live(void *data) {
    static const char *const address = "one:1";
    const uint64_t id = 1;
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    uint32_t *done = data;
    uint32_t count = 0;
    int begun = engine_bootstrap(&id, &address, 1, bytes, &count);
    struct engine_entry members = {1, ENGINE_MEMBERS, count, bytes};
    struct engine_options options = {GROUP, 1, ELECTION_MS, HEARTBEAT_MS, 300, 2000, 40, 20, 1};
    struct engine_log log = {.vote_term = 1, .first_kept = 1, .count = 1, .entries = &members};
    (void)pthread_barrier_wait(&all_are_ready);
    for (int round = 0; begun == ENGINE_OK && round < ROUNDS; round++) {
        engine *e = NULL;
        if (engine_open(&options, &log, 1000, &e) != ENGINE_OK)
            break;
        (void)engine_vote_forced(e, 1000, engine_answer(e)->vote.number);
        uint64_t term = engine_answer(e)->term;
        for (uint64_t index = 2; index < 12; index++) {
            struct engine_entry entry = {.term = term, .kind = index == 2 ? ENGINE_FIRST : ENGINE_BATCH};
            (void)engine_submit(e, 1000, &entry);
            (void)engine_forced(e, 1000, index, term);
        }
        *done += engine_answer(e)->durable_index == 11;
        engine_close(e);
    }
    return NULL;
}

static void threads_that_open_engines_at_once_do_not_disturb_each_other(void) {
    pthread_t threads[THREADS];
    uint32_t done[THREADS] = {0};
    require(pthread_barrier_init(&all_are_ready, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, live, &done[i]) != 0)
            abort();
    for (int i = 0; i < THREADS; i++) {
        check(pthread_join(threads[i], NULL) == 0);
        check(done[i] == ROUNDS);
    }
    check(pthread_barrier_destroy(&all_are_ready) == 0);
}

int main(void) {
    static void (*const tests[])(void) = {
        threads_that_open_engines_at_once_do_not_disturb_each_other,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
