/*
 * Memory that the explorer's processes share: counts, the disks already seen, and the present disk of each process, so
 * that a process that dies or hangs can be reported.
 */
#ifndef LOGSTORE_EXPLORER_SHARED_H
#define LOGSTORE_EXPLORER_SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

enum { JOBS_MAX = 64, FOUND_BITS = 12 };

/* The disk on which a process is working. */
struct at {
    _Atomic uint64_t workload;
    _Atomic uint64_t cut;
    _Atomic uint64_t recovery_cut; /* 1 + the event of the recovery, or 0 */
    _Atomic uint64_t disk;         /* disks of the workload before this one */
    _Atomic uint64_t progress;
};

struct shared {
    _Atomic uint64_t states;          /* pairs of cut and loss that were examined */
    _Atomic uint64_t unique;          /* disks opened and judged; each different disk of a workload counts once */
    _Atomic uint64_t second;          /* of these disks, those with a second crash after the recovery */
    _Atomic uint64_t pointed;         /* of these disks, those opened from a checkpoint */
    _Atomic uint64_t recoveries;      /* recoveries that were cut after every call */
    _Atomic uint64_t recovery_states; /* of `states`, after a cut in a recovery */
    _Atomic uint64_t workloads;
    _Atomic uint64_t events;
    _Atomic uint64_t violations;
    _Atomic uint64_t by_check[32];
    _Atomic int stop;
    struct at at[JOBS_MAX];
    uint64_t seen_mask;
    _Atomic uint64_t seen_count;
    _Atomic uint64_t seen[];
};

static inline struct shared *shared_new(uint64_t disks) {
    uint64_t slots = 1 << 16;
    struct shared *s;

    while (slots < 2 * disks)
        slots *= 2;
    s = mmap(NULL, sizeof *s + slots * sizeof s->seen[0], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return NULL;
    s->seen_mask = slots - 1;
    return s;
}

/*
 * The slot of a disk, by its hash. *found: its state plus one, or 0 if the disk is new. NULL: the table is full. An entry
 * has the hash's upper bits and, below them, *found.
 */
static inline _Atomic uint64_t *seen_slot(struct shared *s, uint64_t hash, uint64_t *found) {
    const uint64_t low = ((uint64_t)1 << FOUND_BITS) - 1;
    uint64_t key = hash & ~low;

    key = key != 0 ? key : low + 1;
    *found = 0;
    if (atomic_load_explicit(&s->seen_count, memory_order_relaxed) > s->seen_mask / 8 * 7)
        return NULL;
    for (uint64_t i = hash * UINT64_C(0x9E3779B97F4A7C15) >> 20;; i++) {
        _Atomic uint64_t *slot = &s->seen[i & s->seen_mask];
        uint64_t there = 0;

        if (atomic_compare_exchange_strong(slot, &there, key)) {
            atomic_fetch_add_explicit(&s->seen_count, 1, memory_order_relaxed);
            return slot;
        }
        if ((there & ~low) == key) {
            *found = there & low;
            return slot;
        }
    }
}

static inline void seen_found(_Atomic uint64_t *slot, uint64_t found) {
    const uint64_t low = ((uint64_t)1 << FOUND_BITS) - 1;

    if (found < low)
        atomic_fetch_or(slot, found + 1);
}

#endif
