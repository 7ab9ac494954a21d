/* The memory of columns: batches of a scan use it again, whichever thread frees them; growing keeps what was put. */
#include <pthread.h>

#include "analysis/columns.h"
#include "tests/kit/vfs_test.h"

enum { ROWS = 100, BATCHES = 200 };

static const enum column_kind kinds[] = {COLUMN_64, COLUMN_BYTES, COLUMN_LIST, COLUMN_BITS};
#define COLUMNS (sizeof kinds / sizeof *kinds)

static ls_columns *new_batch(struct column_pool *pool, uint64_t rows) {
    ls_columns *made = columns_new(pool, kinds, COLUMNS, rows, UINT64_C(1) << 3);

    if (made == NULL)
        abort();
    return made;
}

static void a_scan_uses_the_memory_of_a_freed_batch_for_the_next(void) {
    struct column_pool *pool = column_pool_new();
    ls_columns *first = new_batch(pool, ROWS), *second = new_batch(pool, ROWS), *third;
    uint8_t *memory = first->memory;

    check(second->memory != memory);
    ls_columns_free(first);
    third = new_batch(pool, ROWS);
    check(third->memory == memory);
    ls_columns_free(second);
    ls_columns_free(third);
    column_pool_end(pool);
}

static void memory_of_another_size_is_not_used(void) {
    struct column_pool *pool = column_pool_new();
    ls_columns *batch = new_batch(pool, ROWS);
    struct column *c;

    ls_columns_free(batch);
    batch = new_batch(pool, 10 * ROWS);
    c = &batch->at[0];
    for (uint64_t i = 0; i < 10 * ROWS; i++) /* the address sanitizer looks on */
        column_put64(c, i);
    ls_columns_free(batch);
    column_pool_end(pool);
}

static void batches_outlive_their_scan(void) {
    struct column_pool *pool = column_pool_new();
    ls_columns *kept[3];

    for (size_t i = 0; i < 3; i++)
        kept[i] = new_batch(pool, ROWS);
    ls_columns_free(kept[0]);
    column_pool_end(pool);
    column_put64(&kept[1]->at[0], 7);
    ls_columns_free(kept[1]);
    ls_columns_free(kept[2]);
}

/* ---- threads ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static ls_columns *handed; /* to the thread that frees; NULL: nothing */

static ls_columns *take_handed(void) {
    ls_columns *taken;

    (void)pthread_mutex_lock(&lock);
    while (handed == NULL)
        (void)pthread_cond_wait(&changed, &lock);
    taken = handed;
    handed = NULL;
    (void)pthread_cond_signal(&changed);
    (void)pthread_mutex_unlock(&lock);
    return taken;
}

static void hand(ls_columns *batch) {
    (void)pthread_mutex_lock(&lock);
    while (handed != NULL)
        (void)pthread_cond_wait(&changed, &lock);
    handed = batch;
    (void)pthread_cond_signal(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void *free_batches(void *wrong) {
    for (uint64_t n = 0; n < BATCHES; n++) {
        ls_columns *batch = take_handed();
        uint64_t value;

        memcpy(&value, batch->at[0].values, sizeof value);
        *(uint64_t *)wrong += value != n;
        ls_columns_free(batch);
    }
    return NULL;
}

static void another_thread_frees_batches_while_the_scan_makes_more(void) {
    struct column_pool *pool = column_pool_new();
    uint64_t wrong = 0;
    pthread_t thread;

    require(pthread_create(&thread, NULL, free_batches, &wrong) == 0);
    for (uint64_t n = 0; n < BATCHES; n++) {
        ls_columns *batch = new_batch(pool, ROWS);

        column_put64(&batch->at[0], n);
        hand(batch);
    }
    column_pool_end(pool);
    require(pthread_join(thread, NULL) == 0);
    check(wrong == 0);
}

/* ---- growing ---- */

static void a_column_that_grows_keeps_its_values(void) {
    ls_columns *batch = new_batch(NULL, ROWS);
    struct column *items = &batch->at[0], *bytes = &batch->at[1];

    for (uint64_t i = 0; i < 1000 * ROWS; i++) {
        require(column_grow(items));
        column_put64_or_null(items, i, i % 3 == 0);
    }
    for (uint64_t i = 0; i < ROWS; i++) {
        uint8_t text[300];

        memset(text, (int)i, sizeof text);
        require(column_put_bytes(bytes, text, sizeof text));
    }
    for (uint64_t i = 0; i < 1000 * ROWS; i++) {
        uint64_t value;

        memcpy(&value, items->values + 8 * i, sizeof value);
        check(value == (i % 3 == 0 ? 0 : i) && (items->valid[i / 8] >> i % 8 & 1) == (i % 3 != 0));
    }
    for (uint64_t i = 0; i < ROWS; i++)
        check(bytes->values[300 * i] == i && bytes->values[300 * i + 299] == i);
    check(bytes->value_bytes == 300 * ROWS);
    ls_columns_free(batch);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_scan_uses_the_memory_of_a_freed_batch_for_the_next,
        memory_of_another_size_is_not_used,
        batches_outlive_their_scan,
        another_thread_frees_batches_while_the_scan_makes_more,
        a_column_that_grows_keeps_its_values,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
