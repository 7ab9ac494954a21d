/*
 * A hash table from 64-bit keys to 32-bit numbers, with open addressing and linear probing. It stores only the number;
 * key_of() gives the number's key. When it fills, a table of twice the size takes over and every later insertion moves
 * a few old slots, so that no single operation pays for the growth.
 *
 * The keys of messages and transactions are LSNs, and keys that are close in the log are looked up together: messages
 * are published, taken from a queue's front and recovered in that order. So the hash is taken of a 512-byte range of the
 * log, and the keys in one range get adjacent slots: one cache line serves several look-ups. The record that creates a
 * message has at least 80 bytes, so a range has at most seven keys.
 *
 *     slots:      uint32_t [mask + 1]   number + 1; 0 free
 *     distances:  uint8_t  [mask + 1]   how many slots it is from its home slot; FAR: this many or more
 *
 * The distance saves calls of key_of(), each of which may wait for memory: a look-up compares only keys with the right
 * distance; a removal looks for the number and compares no keys, unless the distance is FAR.
 */
#include <assert.h>
#include <stdlib.h>

#include "table/table.h"
#include "os/prefetch.h"
#include "os/vfs.h"

enum {
    INDEX_SLOTS_MIN = 64,
    MOVES_PER_INSERTION = 8,
    FAR = UINT8_MAX,
    GROUP_BITS = 9, /* 512 bytes of the log share a hash, */
    NEAR_BITS = 6,  /* and have one home slot for each 64 bytes */
    NEAR_SLOTS = 1 << (GROUP_BITS - NEAR_BITS),
};
static const uint32_t GONE = UINT32_MAX;

static uint64_t hash(uint64_t key) {
    key ^= key >> 32;
    key *= UINT64_C(0x9E3779B97F4A7C15);
    return key ^ (key >> 29);
}

/* The slot where the search for a key begins. */
static uint64_t home_of(const struct index *x, uint64_t key, uint64_t mask) {
    uint64_t group = hash(key >> x->group_bits) << (x->group_bits - x->near_bits);
    uint64_t near = (key & ((UINT64_C(1) << x->group_bits) - 1)) >> x->near_bits;
    return (group | near) & mask;
}

void index_init(struct index *x, index_key_fn *key_of, const void *context) {
    *x = (struct index){.key_of = key_of, .context = context};
}

void index_init_by_lsn(struct index *x, index_key_fn *key_of, const void *context) {
    *x = (struct index){.key_of = key_of, .context = context, .group_bits = GROUP_BITS, .near_bits = NEAR_BITS};
}

void index_free(struct index *x) {
    free(x->slots);
    free(x->old);
    x->slots = x->old = NULL;
}

static uint8_t *distances_of(uint32_t *slots, uint64_t mask) { return (uint8_t *)(slots + mask + 1); }

static uint8_t capped(uint64_t distance) { return distance < FAR ? (uint8_t)distance : (uint8_t)FAR; }

static void put(struct index *x, uint64_t key, uint32_t stored) {
    uint64_t home = home_of(x, key, x->mask), at = home;
    while (x->slots[at] != 0) {
        at = (at + 1) & x->mask;
    }
    x->slots[at] = stored;
    distances_of(x->slots, x->mask)[at] = capped((at - home) & x->mask);
}

static void move_some(struct index *x, uint64_t slots) {
    while (x->old != NULL && slots-- > 0) {
        uint32_t stored = x->old[x->old_next];
        if (stored != 0 && stored != GONE) {
            put(x, x->key_of(x->context, stored - 1), stored);
            x->old[x->old_next] = GONE;
        }
        if (x->old_next++ == x->old_mask) {
            free(x->old);
            x->old = NULL;
        }
    }
}

/* The new table is at most 3/4 full after the old one has moved into it. */
static bool grow(struct index *x, uint64_t slots) {
    uint32_t *fresh = calloc(slots, sizeof *fresh + sizeof(uint8_t));
    if (fresh == NULL) {
        return false;
    }
    vfs_advise_large_pages(fresh, slots * (sizeof *fresh + sizeof(uint8_t)));
    move_some(x, UINT64_MAX);
    x->old = x->count > 0 ? x->slots : NULL;
    if (x->count == 0) {
        free(x->slots);
    }
    x->old_mask = x->mask;
    x->old_next = 0;
    x->slots = fresh;
    x->mask = slots - 1;
    return true;
}

bool index_has_room(const struct index *x, uint64_t more) {
    return x->slots != NULL && (x->count + more) * 4 <= (x->mask + 1) * 3;
}

bool index_prepare(struct index *x, uint64_t more) {
    uint64_t slots = x->slots == NULL ? INDEX_SLOTS_MIN : x->mask + 1;
    while ((x->count + more) * 4 > slots * 3) {
        slots *= 2;
    }
    return (x->slots != NULL && slots == x->mask + 1) || grow(x, slots);
}

static void prefetch_home(const struct index *x, uint64_t key, uint32_t *slots, uint64_t mask) {
    uint64_t home = home_of(x, key, mask);
    prefetch(&slots[home]);
    prefetch(&slots[(home + NEAR_SLOTS) & mask]); /* it may be on the next cache line */
    prefetch(&distances_of(slots, mask)[home]);
}

void index_prefetch(const struct index *x, uint64_t key) {
    if (x->slots != NULL) {
        prefetch_home(x, key, x->slots, x->mask);
    }
    if (x->old != NULL) {
        prefetch_home(x, key, x->old, x->old_mask);
    }
}

uint32_t index_likely(const struct index *x, uint64_t key) {
    if (x->slots == NULL) {
        return INDEX_NONE;
    }
    const uint8_t *distances = distances_of(x->slots, x->mask);
    uint64_t at = home_of(x, key, x->mask);
    for (unsigned distance = 0; distance < FAR && x->slots[at] != 0; distance++) {
        if (distances[at] == distance) {
            return x->slots[at] - 1;
        }
        at = (at + 1) & x->mask;
    }
    return INDEX_NONE;
}

void index_insert(struct index *x, uint64_t key, uint32_t number) {
    assert(x->slots != NULL && (x->count + 1) * 4 <= (x->mask + 1) * 3 && number < GONE - 1);
    move_some(x, MOVES_PER_INSERTION);
    put(x, key, number + 1);
    x->count++;
}

/* The slot of the key in this table, or NULL. */
static uint32_t *locate(const struct index *x, uint64_t key, uint32_t *slots, uint64_t mask) {
    const uint8_t *distances = distances_of(slots, mask);
    uint64_t distance = 0;
    for (uint64_t at = home_of(x, key, mask); slots[at] != 0; at = (at + 1) & mask) {
        if (distances[at] == capped(distance++) && slots[at] != GONE && x->key_of(x->context, slots[at] - 1) == key) {
            return &slots[at];
        }
    }
    return NULL;
}

uint32_t index_find(const struct index *x, uint64_t key) {
    if (x->count == 0) {
        return INDEX_NONE;
    }
    uint32_t *slot = locate(x, key, x->slots, x->mask);
    if (slot == NULL && x->old != NULL) {
        slot = locate(x, key, x->old, x->old_mask);
    }
    return slot == NULL ? INDEX_NONE : *slot - 1;
}

static uint64_t distance_of(const struct index *x, uint64_t at) {
    uint8_t stored = distances_of(x->slots, x->mask)[at];
    return stored < FAR ? stored : (at - home_of(x, x->key_of(x->context, x->slots[at] - 1), x->mask)) & x->mask;
}

/* Moves later entries into the gap if a search from their home slot would now stop at it. */
static void close_gap(struct index *x, uint64_t gap) {
    uint64_t at = gap;
    for (;;) {
        at = (at + 1) & x->mask;
        if (x->slots[at] == 0) {
            break;
        }
        uint64_t distance = distance_of(x, at), back = (at - gap) & x->mask;
        if (distance >= back) {
            x->slots[gap] = x->slots[at];
            distances_of(x->slots, x->mask)[gap] = capped(distance - back);
            gap = at;
        }
    }
    x->slots[gap] = 0;
}

/* The same where the number is known: no key is compared. */
static uint32_t *locate_number(const struct index *x, uint64_t key, uint32_t number, uint32_t *slots, uint64_t mask) {
    uint64_t at = home_of(x, key, mask);
    while (slots[at] != 0 && slots[at] != number + 1) {
        at = (at + 1) & mask;
    }
    return slots[at] != 0 ? &slots[at] : NULL;
}

void index_remove(struct index *x, uint64_t key, uint32_t number) {
    uint32_t *slot = locate_number(x, key, number, x->slots, x->mask);
    if (slot != NULL) {
        close_gap(x, (uint64_t)(slot - x->slots));
    } else {
        slot = x->old != NULL ? locate_number(x, key, number, x->old, x->old_mask) : NULL;
        assert(slot != NULL);
        *slot = GONE;
    }
    x->count--;
    if (x->count == 0 && x->mask + 1 > INDEX_SLOTS_MIN * 1024) {
        (void)grow(x, INDEX_SLOTS_MIN); /* frees the memory; on failure the large table stays */
    }
}
