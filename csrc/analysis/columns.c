/* Memory of columns. See columns.h. */
#include "analysis/columns.h"

#include <stdlib.h>

#include "format/format.h"

enum { ALIGNED_BYTES = 64 }; /* as Arrow recommends for buffers */

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
static uint8_t *new_buffer(uint64_t bytes) {
    return aligned_alloc(ALIGNED_BYTES, round_up(bytes + COLUMN_SLACK_BYTES, ALIGNED_BYTES));
}

static bool has_offsets(enum column_kind kind) { return kind == COLUMN_BYTES || kind == COLUMN_LIST; }

static bool column_init(struct column *c) {
    const enum column_kind kind = c->kind;
    const uint64_t rows = c->capacity, bytes = value_bytes(kind, rows);
    c->value_capacity = kind == COLUMN_BYTES ? 16 * rows : bytes;
    c->values = new_buffer(c->value_capacity);
    c->valid = new_buffer((rows + 7) / 8);
    c->offsets = has_offsets(kind) ? new_buffer(4 * (rows + 1)) : NULL;
    if (c->values == NULL || c->valid == NULL || (has_offsets(kind) && c->offsets == NULL)) {
        return false;
    }
    memset(c->valid, 0xff, (rows + 7) / 8);
    c->blank = false;
    if (kind == COLUMN_BITS) {
        memset(c->values, 0, bytes);
    }
    if (has_offsets(kind)) {
        memset(c->offsets, 0, 4);
    }
    return true;
}

bool column_begin(struct column *c) {
    assert(c->blank && c->nulls == c->rows);
    if (!column_init(c)) {
        free(c->values);
        free(c->offsets);
        free(c->valid);
        c->values = c->offsets = c->valid = NULL;
        return false;
    }
    memset(c->valid, 0, c->rows / 8);
    if (c->rows % 8 != 0) {
        c->valid[c->rows / 8] = (uint8_t)(0xffU << (c->rows % 8));
    }
    if (has_offsets(c->kind)) {
        memset(c->offsets, 0, 4 * (c->rows + 1));
    } else {
        memset(c->values, 0, value_bytes(c->kind, c->rows));
    }
    return true;
}

/* The zeros of blank columns belong to the batch. */
static void column_free(struct column *c) {
    if (!c->blank) {
        free(c->values);
        free(c->offsets);
        free(c->valid);
    }
}

ls_columns *columns_new(const enum column_kind *kinds, size_t count, uint64_t rows_max, uint64_t blank) {
    assert(rows_max > 0 && rows_max <= COLUMN_ROWS_MAX);
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
        bool is_blank = i < 64 && (blank >> i & 1) != 0;
        at[i] = (struct column){.kind = kinds[i], .capacity = rows_max};
        if (kinds[i] != COLUMN_ABSENT && !is_blank && !column_init(&at[i])) {
            ls_columns_free(made);
            return NULL;
        }
        at[i].blank = kinds[i] != COLUMN_ABSENT && is_blank;
    }
    return made;
}

bool columns_end(ls_columns *columns) {
    for (size_t i = 0; i < columns->count; i++) {
        struct column *c = &columns->at[i];
        if (!c->blank) {
            continue;
        }
        if (columns->zeros == NULL) {
            const uint64_t bytes = 8 * (columns->rows + 1); /* the widest values; one more offset than rows */
            columns->zeros = new_buffer(bytes);
            if (columns->zeros == NULL) {
                return false;
            }
            memset(columns->zeros, 0, bytes);
        }
        c->values = c->valid = columns->zeros;
        c->offsets = has_offsets(c->kind) ? columns->zeros : NULL;
    }
    return true;
}

void ls_columns_free(ls_columns *columns) {
    if (columns == NULL) {
        return;
    }
    for (size_t i = 0; i < columns->count; i++) {
        column_free(&columns->at[i]);
    }
    free(columns->zeros);
    free(columns->at);
    free(columns);
}

static bool grow_buffer(uint8_t **buffer, uint64_t used, uint64_t capacity) {
    uint8_t *grown = new_buffer(capacity);
    if (grown == NULL) {
        return false;
    }
    memcpy(grown, *buffer, used);
    free(*buffer);
    *buffer = grown;
    return true;
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
    bool grown = grow_buffer(&c->valid, (c->rows + 7) / 8, (rows + 7) / 8);
    if (grown && has_offsets(c->kind)) {
        grown = grow_buffer(&c->offsets, 4 * (c->rows + 1), 4 * (rows + 1));
    }
    if (grown && c->kind != COLUMN_BYTES) {
        grown = grow_buffer(&c->values, value_bytes(c->kind, c->rows), value_bytes(c->kind, rows));
    }
    if (!grown) {
        return false;
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
    if (!grow_buffer(&c->values, c->value_bytes, capacity)) {
        return false;
    }
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
