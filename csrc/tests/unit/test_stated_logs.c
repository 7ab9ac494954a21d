/*
 * Replay of logs whose places have states: it gives what the records say, from the base, from a checkpoint at any batch, and in a
 * copy that follows; and what contradicts is refused.
 */
#include "tests/kit/failing_memory.h"
#include "tests/kit/checkpoint_pair.h"
#include "tests/kit/equal_tables.h"
#include "tests/kit/stated_log.h"

/* ---- any log ---- */

static void a_random_log_gives_what_its_records_say(void) {
    for (uint64_t seed = 1; seed <= 300; seed += ONE_IN) {
        ls_store *store, *seen = NULL;

        sl_start(seed);
        while (sl_has_room() && sl_below(60) > 0) {
            sl_batch(seed % 2 == 0);
            sl_next_batch();
        }
        sl_batch(seed % 2 == 0);
        sl_recover();
        store = opened(vfs_sim_table(sim), "/s", 1);
        if (store == NULL || !sl_same(&store->state.table)) {
            printf("seed %llu\n", (unsigned long long)seed);
            check(false);
        }
        ls_free(store);
        (void)seen;
        done();
        if (failures_here > 0)
            return;
    }
    for (int i = 0; i < 11; i++)
        check(model.kinds[i] > 20 / ONE_IN);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_random_log_gives_what_its_records_say,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
