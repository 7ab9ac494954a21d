/* Little-endian numbers at any address, for the files of the codec alone: only they know offsets. */
#ifndef LOGSTORE_FORMAT_BYTES_H
#define LOGSTORE_FORMAT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void put8(uint8_t *at, uint8_t v) { *at = v; }

static inline void put16(uint8_t *at, uint16_t v) {
    at[0] = (uint8_t)v;
    at[1] = (uint8_t)(v >> 8);
}

static inline void put32(uint8_t *at, uint32_t v) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    memcpy(at, &v, sizeof v);
}

static inline void put64(uint8_t *at, uint64_t v) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    memcpy(at, &v, sizeof v);
}

static inline uint8_t get8(const uint8_t *at) { return *at; }

static inline uint16_t get16(const uint8_t *at) { return (uint16_t)(at[0] | (at[1] << 8)); }

static inline uint32_t get32(const uint8_t *at) {
    uint32_t v;
    memcpy(&v, at, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

static inline uint64_t get64(const uint8_t *at) {
    uint64_t v;
    memcpy(&v, at, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline uint64_t pad8(uint64_t bytes) { return (bytes + 7) & ~(uint64_t)7; }

static inline bool all_zero(const uint8_t *at, size_t bytes) {
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

static inline bool is_lsn(uint64_t v) { return v > 0 && v <= INT64_MAX; }

#endif
