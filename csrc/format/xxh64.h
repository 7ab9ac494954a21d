/*
 * XXH64, the checksum of everything the log writes: one-shot, from the published specification.
 *
 * The specification is doc/xxhash_spec.md of the xxHash project, version 0.2.0; names here follow its words
 * (stripe, lane, accumulator, avalanche). The result does not depend on the machine's byte order, and the input may
 * stand at any address. Never used against an adversary: XXH64 finds accidents, not forgeries.
 *
 * xxh64_inline is the whole algorithm for callers whose length is a small constant (a record header's check, a seed);
 * xxh64 is the same as an ordinary function.
 */
#ifndef LOGSTORE_XXH64_H
#define LOGSTORE_XXH64_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define XXH64_PRIME_1 UINT64_C(0x9E3779B185EBCA87)
#define XXH64_PRIME_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define XXH64_PRIME_3 UINT64_C(0x165667B19E3779F9)
#define XXH64_PRIME_4 UINT64_C(0x85EBCA77C2B2AE63)
#define XXH64_PRIME_5 UINT64_C(0x27D4EB2F165667C5)

enum { XXH64_STRIPE_BYTES = 32 }; /* four lanes of eight bytes */

/* 0 < bits < 64 */
static inline uint64_t xxh64_rotate_left(uint64_t value, unsigned bits) {
    return (value << bits) | (value >> (64U - bits));
}

static inline uint64_t xxh64_load_64(const unsigned char *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

static inline uint64_t xxh64_load_32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline uint64_t xxh64_round(uint64_t accumulator, uint64_t lane) {
    return xxh64_rotate_left(accumulator + lane * XXH64_PRIME_2, 31) * XXH64_PRIME_1;
}

static inline uint64_t xxh64_merge(uint64_t hash, uint64_t accumulator) {
    return (hash ^ xxh64_round(0, accumulator)) * XXH64_PRIME_1 + XXH64_PRIME_4;
}

static inline uint64_t xxh64_avalanche(uint64_t hash) {
    hash = (hash ^ (hash >> 33)) * XXH64_PRIME_2;
    hash = (hash ^ (hash >> 29)) * XXH64_PRIME_3;
    return hash ^ (hash >> 32);
}

/* The rest after the whole stripes: fewer than 32 bytes. */
static inline uint64_t xxh64_tail(uint64_t hash, const unsigned char *at, size_t bytes) {
    for (; bytes >= 8; at += 8, bytes -= 8) {
        hash ^= xxh64_round(0, xxh64_load_64(at));
        hash = xxh64_rotate_left(hash, 27) * XXH64_PRIME_1 + XXH64_PRIME_4;
    }
    if (bytes >= 4) {
        hash ^= xxh64_load_32(at) * XXH64_PRIME_1;
        hash = xxh64_rotate_left(hash, 23) * XXH64_PRIME_2 + XXH64_PRIME_3;
        at += 4;
        bytes -= 4;
    }
    for (; bytes > 0; at++, bytes--) {
        hash ^= *at * XXH64_PRIME_5;
        hash = xxh64_rotate_left(hash, 11) * XXH64_PRIME_1;
    }
    return xxh64_avalanche(hash);
}

/* As xxh64 below. */
static inline uint64_t xxh64_inline(const void *data, size_t bytes, uint64_t seed) {
    const unsigned char *at = data;
    if (bytes < XXH64_STRIPE_BYTES)
        return xxh64_tail(seed + XXH64_PRIME_5 + (uint64_t)bytes, at, bytes);

    /* Four scalars, not an array: each lane stays in a register and they multiply side by side. */
    uint64_t lane_1 = seed + XXH64_PRIME_1 + XXH64_PRIME_2;
    uint64_t lane_2 = seed + XXH64_PRIME_2;
    uint64_t lane_3 = seed;
    uint64_t lane_4 = seed - XXH64_PRIME_1;
    size_t left = bytes;
    do {
        lane_1 = xxh64_round(lane_1, xxh64_load_64(at));
        lane_2 = xxh64_round(lane_2, xxh64_load_64(at + 8));
        lane_3 = xxh64_round(lane_3, xxh64_load_64(at + 16));
        lane_4 = xxh64_round(lane_4, xxh64_load_64(at + 24));
        at += XXH64_STRIPE_BYTES;
        left -= XXH64_STRIPE_BYTES;
    } while (left >= XXH64_STRIPE_BYTES);

    uint64_t hash = xxh64_rotate_left(lane_1, 1) + xxh64_rotate_left(lane_2, 7) + xxh64_rotate_left(lane_3, 12) +
                    xxh64_rotate_left(lane_4, 18);
    hash = xxh64_merge(hash, lane_1);
    hash = xxh64_merge(hash, lane_2);
    hash = xxh64_merge(hash, lane_3);
    hash = xxh64_merge(hash, lane_4);
    return xxh64_tail(hash + (uint64_t)bytes, at, left);
}

/* XXH64 of `bytes` bytes at `data`, which may be unaligned, and may be NULL if `bytes` is 0. */
uint64_t xxh64(const void *data, size_t bytes, uint64_t seed);

/* The same, seed 0, of bytes that come piece by piece. */
struct xxh64_sum {
    uint64_t lanes[4];
    uint64_t bytes; /* added so far */
    unsigned char rest[XXH64_STRIPE_BYTES];
};

void xxh64_begin(struct xxh64_sum *sum);
void xxh64_add(struct xxh64_sum *sum, const void *data, size_t bytes);
uint64_t xxh64_end(const struct xxh64_sum *sum); /* of all that was added; more may be added afterwards */

#endif
