/*
 * Engines in several threads at once: opened, used and closed. A thread sanitizer finds what they share.
 */
#include <pthread.h>

#include "consensus/reserve.h"
#include "tests/kit/engines.h"

enum { THREADS = 4, ROUNDS = 50 };

static pthread_barrier_t all_are_ready;

static int open_one(engine **e) {
    static const char *const address = "one:1";
    const uint64_t id = 1;
    uint8_t bytes[ENGINE_CONFIGURATION_MAX];
    uint32_t count = 0;
    int begun = engine_bootstrap(&id, &address, 1, bytes, &count);
    struct engine_entry members = {1, ENGINE_MEMBERS, count, bytes};
    struct engine_options options = {GROUP, 1, ELECTION_MS, HEARTBEAT_MS, 300, 2000, 40, 20, 1};
    struct engine_log log = {.vote_term = 1, .first_kept = 1, .count = 1, .entries = &members};
    return begun == ENGINE_OK ? engine_open(&options, &log, 1000, e) : begun;
}

/* A sole voter leads, and gets ten batches durable. */
static bool use(engine *e) {
    (void)engine_vote_forced(e, 1000, engine_answer(e)->vote.number);
    uint64_t term = engine_answer(e)->term;
    for (uint64_t index = 2; index < 12; index++) {
        struct engine_entry entry = {.term = term, .kind = index == 2 ? ENGINE_FIRST : ENGINE_BATCH};
        (void)engine_submit(e, 1000, &entry);
        (void)engine_forced(e, 1000, index, term);
    }
    return engine_answer(e)->durable_index == 11;
}

/* The number of rounds in which an engine did what it should. */
static void *live(void *data) {
    uint32_t *done = data;
    (void)pthread_barrier_wait(&all_are_ready);
    for (int round = 0; round < ROUNDS; round++) {
        engine *e = NULL;
        if (open_one(&e) != ENGINE_OK)
            break;
        *done += use(e);
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

/* What was opened by one thread is used by each of the others in turn, and closed by the last. */
static engine *opened[THREADS][THREADS];

static void *open_some(void *data) {
    size_t me = *(const size_t *)data;
    for (size_t i = 0; i < THREADS; i++)
        if (open_one(&opened[me][i]) != ENGINE_OK)
            return NULL;
    (void)pthread_barrier_wait(&all_are_ready);
    size_t of = (me + 1) % THREADS;
    for (size_t i = 0; i < THREADS; i++)
        check(opened[of][i] != NULL && use(opened[of][i]));
    (void)pthread_barrier_wait(&all_are_ready);
    of = (me + 2) % THREADS;
    for (size_t i = 0; i < THREADS; i++)
        engine_close(opened[of][i]);
    return NULL;
}

static void an_engine_that_another_thread_closes_leaves_no_reserve(void) {
    pthread_t threads[THREADS];
    size_t numbers[THREADS];
    check(reserve_count() == 0);
    require(pthread_barrier_init(&all_are_ready, NULL, THREADS) == 0);
    for (size_t i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, open_some, &numbers[i]) != 0)
            abort();
    }
    for (size_t i = 0; i < THREADS; i++)
        check(pthread_join(threads[i], NULL) == 0);
    check(reserve_count() == 0);
    check(pthread_barrier_destroy(&all_are_ready) == 0);
}

static void one_thread_has_one_reserve_whatever_the_number_of_its_engines(void) {
    engine *some[20] = {NULL};
    for (size_t i = 0; i < 20; i++)
        check(open_one(&some[i]) == ENGINE_OK && use(some[i]));
    check(reserve_count() == 1);
    for (size_t i = 0; i < 20; i++)
        engine_close(some[i]);
    check(reserve_count() == 0);
}

int main(void) {
    static void (*const tests[])(void) = {
        threads_that_open_engines_at_once_do_not_disturb_each_other,
        an_engine_that_another_thread_closes_leaves_no_reserve,
        one_thread_has_one_reserve_whatever_the_number_of_its_engines,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
