#include "consensus/reserve.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct reserve {
    size_t size;
    size_t used;
    atomic_uint holds; /* one for the event or the process, and one for each block */
};

/* Stands before each block. Its size is a multiple of the strictest alignment. */
struct block {
    struct reserve *from; /* NULL: the C library */
    size_t bytes;
};

_Static_assert(sizeof(struct block) % _Alignof(max_align_t) == 0, "a block behind it is aligned");
enum { RESERVE_HEAD = (sizeof(struct reserve) + 15) / 16 * 16 };

/* The reserve of the event that runs in this thread. */
static _Thread_local struct reserve *mine;

/* The reserves between events. A thread that takes one owns it. No lock is used, because a fork could leave it
   locked. */
enum { IDLE_MAX = 8 };
static struct reserve *_Atomic idle[IDLE_MAX];
static atomic_uint engines;
static atomic_uint existing;

static void let_go(struct reserve *r) {
    if (r != NULL && atomic_fetch_sub(&r->holds, 1) == 1) {
        free(r);
        atomic_fetch_sub(&existing, 1);
    }
}

unsigned reserve_count(void) { return atomic_load(&existing); }

void reserve_enter(void) { atomic_fetch_add(&engines, 1); }

void reserve_leave(void) {
    reserve_give_back();
    if (atomic_fetch_sub(&engines, 1) != 1)
        return;
    for (size_t i = 0; i < IDLE_MAX; i++)
        let_go(atomic_exchange(&idle[i], NULL));
}

void reserve_give_back(void) {
    struct reserve *r = mine;
    mine = NULL;
    for (size_t i = 0; i < IDLE_MAX && r != NULL && atomic_load(&r->holds) == 1; i++) {
        struct reserve *none = NULL;
        if (atomic_compare_exchange_strong(&idle[i], &none, r))
            return;
    }
    let_go(r);
}

bool reserve_take(size_t bytes) {
    for (size_t i = 0; i < IDLE_MAX && mine == NULL; i++)
        mine = atomic_exchange(&idle[i], NULL);
    if (mine != NULL && mine->size >= bytes && atomic_load(&mine->holds) == 1) {
        mine->used = 0;
        return true;
    }
    struct reserve *made = malloc(RESERVE_HEAD + bytes);
    if (made == NULL)
        return false;
    atomic_fetch_add(&existing, 1);
    let_go(mine);
    made->size = bytes;
    made->used = 0;
    atomic_init(&made->holds, 1);
    mine = made;
    return true;
}

void *reserve_malloc(void *data, size_t bytes) {
    (void)data;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    struct block *b = malloc(sizeof *b + bytes);
    if (b != NULL) {
        *b = (struct block){NULL, bytes};
        return b + 1;
    }
    size_t taken = sizeof *b + (bytes + 15) / 16 * 16;
    if (mine == NULL || mine->size - mine->used < taken)
        return NULL;
    b = (struct block *)(void *)((char *)mine + RESERVE_HEAD + mine->used);
    mine->used += taken;
    atomic_fetch_add(&mine->holds, 1);
    *b = (struct block){mine, bytes};
    return b + 1;
}

void *reserve_calloc(void *data, size_t n, size_t bytes) {
    if (bytes != 0 && n > SIZE_MAX / 2 / bytes)
        return NULL;
    void *made = reserve_malloc(data, n * bytes);
    return made == NULL ? NULL : memset(made, 0, n * bytes);
}

void *reserve_realloc(void *data, void *old, size_t bytes) {
    void *made = reserve_malloc(data, bytes);
    if (made == NULL || old == NULL)
        return made;
    size_t had = ((struct block *)old - 1)->bytes;
    memcpy(made, old, had < bytes ? had : bytes);
    reserve_free(data, old);
    return made;
}

void reserve_free(void *data, void *block) {
    (void)data;
    if (block == NULL)
        return;
    struct block *b = (struct block *)block - 1;
    if (b->from == NULL)
        free(b);
    else
        let_go(b->from);
}
