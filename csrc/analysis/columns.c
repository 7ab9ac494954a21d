/* Memory of columns. See columns.h. */
#include "analysis/columns.h"

#include <pthread.h>
#include <stdlib.h>

#include "format/format.h"

enum { ALIGNED_BYTES = 64 }; /* as Arrow recommends for buffers */

/* ---- the pool ---- */

struct column_pool {
    pthread_mutex_t lock;
    size_t batches; /* that exist, of this pool */
    bool ended;
    uint64_t piece_bytes; /* of the first batch; batches of another size are not kept */
    size_t count;
    uint8_t *pieces[COLUMN_POOL_MOST];
};

struct column_pool *column_pool_new(void) {
    struct column_pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL && pthread_mutex_init(&pool->lock, NULL) != 0) {
        free(pool);
        return NULL;
    }
    return pool;
}

/* Unlocks the pool, and frees it if nothing uses it any more. */
static void leave_pool(struct column_pool *pool) {
    bool unused = pool->ended && pool->batches == 0;
    (void)pthread_mutex_unlock(&pool->lock);
    if (unused) {
        (void)pthread_mutex_destroy(&pool->lock);
        free(pool);
    }
}

void column_pool_end(struct column_pool *pool) {
    if (pool == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    while (pool->count > 0) {
        free(pool->pieces[--pool->count]);
    }
    pool->ended = true;
    leave_pool(pool);
}

/* Memory of a batch. NULL: there is none. */
static uint8_t *take_piece(struct column_pool *pool, uint64_t bytes) {
    uint8_t *piece = NULL;
    if (pool != NULL) {
        (void)pthread_mutex_lock(&pool->lock);
        assert(!pool->ended);
        pool->piece_bytes = pool->piece_bytes != 0 ? pool->piece_bytes : bytes;
        if (pool->piece_bytes == bytes && pool->count > 0) {
            piece = pool->pieces[--pool->count];
        }
        pool->batches++;
        leave_pool(pool);
    }
    /* Not aligned_alloc: glibc before 2.38 does not use a freed piece for the next one of the same size. */
    return piece != NULL ? piece : malloc(bytes);
}

/* `piece` may be NULL. */
static void give_piece(struct column_pool *pool, uint8_t *piece, uint64_t bytes) {
    if (pool != NULL) {
        (void)pthread_mutex_lock(&pool->lock);
        if (piece != NULL && !pool->ended && bytes == pool->piece_bytes && pool->count < COLUMN_POOL_MOST) {
            pool->pieces[pool->count++] = piece;
            piece = NULL;
        }
        pool->batches--;
        leave_pool(pool);
    }
    free(piece);
}

/* ---- a batch ---- */

static uint64_t value_bytes(enum column_kind kind, uint64_t rows) {
    switch (kind) {
    case COLUMN_8:
        return rows;
    case COLUMN_32:
        return 4 * rows;
    case COLUMN_64:
        return 8 * rows;
    case COLUMN_BITS:
        return (rows + 7) / 8;
    default:
        return 0;
    }
}

/* The slack makes every buffer non-empty, and lets a bitmap be changed in words. */
static uint64_t buffer_bytes(uint64_t bytes) { return round_up(bytes + COLUMN_SLACK_BYTES, ALIGNED_BYTES); }

static bool has_offsets(enum column_kind kind) { return kind == COLUMN_BYTES || kind == COLUMN_LIST; }

static uint8_t *aligned(uint8_t *memory) {
    return memory + (ALIGNED_BYTES - (uintptr_t)memory % ALIGNED_BYTES) % ALIGNED_BYTES;
}

/* The next `bytes` of a batch's memory; NULL memory: only counts them. */
static uint8_t *next_buffer(uint8_t *memory, uint64_t *used, uint64_t bytes) {
    uint8_t *at = memory != NULL ? memory + *used : NULL;
    *used += buffer_bytes(bytes);
    return at;
}

/* Gives every requested column its buffers; returns how many bytes they need. */
static uint64_t place_buffers(ls_columns *columns, uint64_t rows, bool zeros, uint8_t *memory) {
    uint64_t used = 0;
    for (size_t i = 0; i < columns->count; i++) {
        struct column *c = &columns->at[i];
        if (c->kind == COLUMN_ABSENT) {
            continue;
        }
        c->value_capacity = c->kind == COLUMN_BYTES ? 16 * rows : value_bytes(c->kind, rows);
        c->values = next_buffer(memory, &used, c->value_capacity);
        c->valid = next_buffer(memory, &used, (rows + 7) / 8);
        c->offsets = has_offsets(c->kind) ? next_buffer(memory, &used, 4 * (rows + 1)) : NULL;
    }
    /* The widest values; one more offset than rows. */
    columns->zeros = zeros ? next_buffer(memory, &used, 8 * (rows + 1)) : NULL;
    return used;
}

static void column_init(struct column *c) {
    memset(c->valid, 0xff, (c->capacity + 7) / 8);
    c->blank = false;
    if (c->kind == COLUMN_BITS) {
        memset(c->values, 0, c->value_capacity);
    }
    if (has_offsets(c->kind)) {
        memset(c->offsets, 0, 4);
    }
}

void column_begin(struct column *c) {
    assert(c->blank && c->nulls == c->rows);
    column_init(c);
    memset(c->valid, 0, c->rows / 8);
    if (c->rows % 8 != 0) {
        c->valid[c->rows / 8] = (uint8_t)(0xffU << (c->rows % 8));
    }
    if (has_offsets(c->kind)) {
        memset(c->offsets, 0, 4 * (c->rows + 1));
    } else {
        memset(c->values, 0, value_bytes(c->kind, c->rows));
    }
}

ls_columns *columns_new(struct column_pool *pool, const enum column_kind *kinds, size_t count, uint64_t rows_max,
                        uint64_t blank) {
    assert(rows_max > 0 && rows_max <= COLUMN_ROWS_MAX && count > 0 && count <= COLUMNS_MAX);
    ls_columns *made = calloc(1, sizeof *made);
    struct column *at = calloc(count, sizeof *at);
    if (made == NULL || at == NULL) {
        free(made);
        free(at);
        return NULL;
    }
    made->at = at;
    made->count = count;
    for (size_t i = 0; i < count; i++) {
        bool is_blank = kinds[i] != COLUMN_ABSENT && (blank >> i & 1) != 0;
        at[i] = (struct column){.kind = kinds[i], .capacity = rows_max, .blank = is_blank};
    }
    made->pool = pool;
    made->memory_bytes = ALIGNED_BYTES + place_buffers(made, rows_max, blank != 0, NULL);
    made->memory = take_piece(pool, made->memory_bytes);
    if (made->memory == NULL) {
        ls_columns_free(made);
        return NULL;
    }
    (void)place_buffers(made, rows_max, blank != 0, aligned(made->memory));
    for (size_t i = 0; i < count; i++) {
        if (at[i].kind != COLUMN_ABSENT && !at[i].blank) {
            column_init(&at[i]);
        }
    }
    return made;
}

void columns_end(ls_columns *columns) {
    if (columns->zeros != NULL) {
        memset(columns->zeros, 0, 8 * (columns->rows + 1));
    }
    for (size_t i = 0; i < columns->count; i++) {
        struct column *c = &columns->at[i];
        if (c->blank) {
            c->values = c->valid = columns->zeros;
            c->offsets = has_offsets(c->kind) ? columns->zeros : NULL;
        }
    }
}

void ls_columns_free(ls_columns *columns) {
    if (columns == NULL) {
        return;
    }
    for (size_t i = 0; i < columns->count; i++) {
        struct column *c = &columns->at[i];
        if (c->values_grew) {
            free(c->values);
        }
        if (c->rows_grew) {
            free(c->offsets);
            free(c->valid);
        }
    }
    give_piece(columns->pool, columns->memory, columns->memory_bytes);
    free(columns->at);
    free(columns);
}

/* A copy of the first `used` bytes, with room for more. NULL: no memory. */
static uint8_t *larger_buffer(const uint8_t *buffer, uint64_t used, uint64_t capacity) {
    uint8_t *larger = aligned_alloc(ALIGNED_BYTES, buffer_bytes(capacity));
    if (larger != NULL) {
        memcpy(larger, buffer, used);
    }
    return larger;
}

static void replace_values(struct column *c, uint8_t *values) {
    if (c->values_grew) {
        free(c->values);
    }
    c->values = values;
    c->values_grew = true;
}

bool column_grow(struct column *c) { return column_has_room_for_items(c, 1); }

bool column_has_room_for_items(struct column *c, uint64_t items) {
    if (items > COLUMN_ROWS_MAX - c->rows) {
        return false;
    }
    uint64_t rows = c->capacity;
    while (rows < c->rows + items) {
        rows *= 2;
    }
    if (rows == c->capacity) {
        return true;
    }
    if (rows > COLUMN_ROWS_MAX) {
        return false;
    }
    uint8_t *valid = larger_buffer(c->valid, (c->rows + 7) / 8, (rows + 7) / 8);
    uint8_t *offsets = has_offsets(c->kind) ? larger_buffer(c->offsets, 4 * (c->rows + 1), 4 * (rows + 1)) : NULL;
    uint8_t *values = c->kind != COLUMN_BYTES
                          ? larger_buffer(c->values, value_bytes(c->kind, c->rows), value_bytes(c->kind, rows))
                          : c->values;
    if (valid == NULL || values == NULL || (has_offsets(c->kind) && offsets == NULL)) {
        free(valid);
        free(offsets);
        free(c->kind != COLUMN_BYTES ? values : NULL);
        return false;
    }
    if (c->rows_grew) {
        free(c->valid);
        free(c->offsets);
    }
    c->valid = valid;
    c->offsets = offsets;
    c->rows_grew = true;
    if (c->kind != COLUMN_BYTES) {
        replace_values(c, values);
    }
    uint64_t before = (c->rows + 7) / 8, after = (rows + 7) / 8;
    memset(c->valid + before, 0xff, after - before);
    if (c->kind == COLUMN_BITS) {
        memset(c->values + before, 0, after - before);
    }
    c->capacity = rows;
    return true;
}

bool column_has_room_for(struct column *c, uint64_t bytes) {
    if (bytes > COLUMN_BYTES_MAX - c->value_bytes) {
        return false;
    }
    uint64_t needed = c->value_bytes + bytes, capacity = c->value_capacity;
    if (needed <= capacity) {
        return true;
    }
    while (capacity < needed) {
        capacity = 2 * capacity + ALIGNED_BYTES;
    }
    capacity = capacity > COLUMN_BYTES_MAX ? COLUMN_BYTES_MAX : capacity;
    uint8_t *values = larger_buffer(c->values, c->value_bytes, capacity);
    if (values == NULL) {
        return false;
    }
    replace_values(c, values);
    c->value_capacity = capacity;
    return true;
}

bool column_put_bytes(struct column *c, const void *bytes, uint64_t n) {
    assert(c->kind == COLUMN_BYTES && c->rows < c->capacity);
    if (!column_has_room_for(c, n)) {
        return false;
    }
    if (n > 0) {
        memcpy(c->values + c->value_bytes, bytes, n);
    }
    c->value_bytes += n;
    c->rows++;
    const uint32_t end = (uint32_t)c->value_bytes;
    memcpy(c->offsets + 4 * c->rows, &end, sizeof end);
    return true;
}

size_t ls_columns_get(const ls_columns *columns, ls_column *into, size_t n, uint64_t *rows) {
    *rows = columns->rows;
    for (size_t i = 0; i < columns->count && i < n; i++) {
        const struct column *c = &columns->at[i];
        into[i] = (ls_column){
            .values = c->values,
            .value_bytes = c->kind == COLUMN_BYTES ? c->value_bytes : value_bytes(c->kind, c->rows),
            .offsets = c->offsets,
            .valid = c->nulls > 0 ? c->valid : NULL,
            .rows = c->rows,
            .nulls = c->nulls,
        };
    }
    return columns->count;
}
