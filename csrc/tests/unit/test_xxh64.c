/*
 * xxh64 against known answers and against a second, deliberately naive implementation.
 *
 * The known answers were computed with the xxhash package of Python. The naive implementation shares nothing with
 * xxh64.h but the specification: it reads single bytes, and it keeps its position as an index.
 */
#include "format/xxh64.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH_MAX = 1024, SHIFT_MAX = 8, PATTERN_BYTES = 4088 };

static unsigned passed;
static unsigned failed;

static void check(bool holds, const char *promise, size_t bytes, uint64_t seed) {
    if (holds) {
        passed++;
        return;
    }
    failed++;
    fprintf(stderr, "FAILED: %s (%zu bytes, seed %016llx)\n", promise, bytes, (unsigned long long)seed);
}

/* ---- The naive implementation ---- */

static const uint64_t prime[6] = {
    0, 11400714785074694791U, 14029467366897019727U, 1609587929392839161U, 9650029242287828579U, 2870177450012600261U};

static uint64_t naive_rotate(uint64_t value, unsigned bits) {
    while (bits-- > 0)
        value = (value << 1) | (value >> 63);
    return value;
}

static uint64_t naive_load(const uint8_t *data, size_t at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;)
        value = (value << 8) | data[at + i];
    return value;
}

static uint64_t naive_round(uint64_t accumulator, uint64_t lane) {
    accumulator += lane * prime[2];
    accumulator = naive_rotate(accumulator, 31);
    return accumulator * prime[1];
}

static uint64_t naive_xxh64(const uint8_t *data, size_t bytes, uint64_t seed) {
    size_t at = 0;
    uint64_t hash = seed + prime[5];
    if (bytes >= 32) {
        uint64_t accumulators[4] = {seed + prime[1] + prime[2], seed + prime[2], seed, seed - prime[1]};
        for (; at + 32 <= bytes; at += 32)
            for (size_t lane = 0; lane < 4; lane++)
                accumulators[lane] = naive_round(accumulators[lane], naive_load(data, at + 8 * lane, 8));
        static const unsigned turns[4] = {1, 7, 12, 18};
        hash = 0;
        for (size_t lane = 0; lane < 4; lane++)
            hash += naive_rotate(accumulators[lane], turns[lane]);
        for (size_t lane = 0; lane < 4; lane++)
            hash = (hash ^ naive_round(0, accumulators[lane])) * prime[1] + prime[4];
    }
    hash += bytes;
    for (; at + 8 <= bytes; at += 8)
        hash = naive_rotate(hash ^ naive_round(0, naive_load(data, at, 8)), 27) * prime[1] + prime[4];
    for (; at + 4 <= bytes; at += 4)
        hash = naive_rotate(hash ^ (naive_load(data, at, 4) * prime[1]), 23) * prime[2] + prime[3];
    for (; at < bytes; at++)
        hash = naive_rotate(hash ^ (naive_load(data, at, 1) * prime[5]), 11) * prime[1];
    hash ^= hash >> 33;
    hash *= prime[2];
    hash ^= hash >> 29;
    hash *= prime[3];
    hash ^= hash >> 32;
    return hash;
}

/* ---- The promises ---- */

static void known_answers_are_reproduced(void) {
    static unsigned char counting[PATTERN_BYTES]; /* byte i is i modulo 251 */
    for (size_t i = 0; i < sizeof counting; i++)
        counting[i] = (unsigned char)(i % 251);
    static const char sentence[] = "Nobody inspects the spammish repetition";
    const struct {
        const void *data;
        size_t bytes;
        uint64_t seed;
        uint64_t answer;
    } known[] = {
        {"", 0, 0, UINT64_C(0xef46db3751d8e999)},
        {"", 0, 1, UINT64_C(0xd5afba1336a3be4b)},
        {"a", 1, 0, UINT64_C(0xd24ec4f1a98c6e5b)},
        {"abc", 3, 0, UINT64_C(0x44bc2cf5ad770999)},
        {"abcd", 4, 0, UINT64_C(0xde0327b0d25d92cc)},
        {"abcdefgh", 8, 0, UINT64_C(0x3ad351775b4634b7)},
        {sentence, 39, 0, UINT64_C(0xfbcea83c8a378bf1)},
        {sentence, 39, 20141025, UINT64_C(0xce06936136852706)},
        {counting, 32, 0, UINT64_C(0xcbf59c5116ff32b4)},
        {counting, 36, UINT64_C(0x0123456789abcdef), UINT64_C(0x4ce4c07b4b335efa)},
        {counting, 40, UINT64_MAX, UINT64_C(0x4fdefd616ffb7e29)},
        {"LOGSTORE", 8, UINT64_C(0x9e3779b1), UINT64_C(0xe0db01154d4249b9)},
        {counting, 4088, 0, UINT64_C(0x114c04e4f7715c85)},
        {counting, 4088, UINT64_C(0x8000000000000000), UINT64_C(0x82130fa39e4d9602)},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint64_t seed = known[i].seed;
        check(xxh64(known[i].data, known[i].bytes, seed) == known[i].answer, "a known answer comes out", known[i].bytes,
              seed);
        check(naive_xxh64(known[i].data, known[i].bytes, seed) == known[i].answer,
              "the naive implementation gives the known answer", known[i].bytes, seed);
    }
}

static void zero_bytes_at_NULL_hash_like_the_empty_string(void) {
    for (uint64_t seed = 0; seed < 16; seed++)
        check(xxh64(NULL, 0, seed) == xxh64("", 0, seed), "nothing at NULL hashes like the empty string", 0, seed);
}

/*
 * Each input stands at the very end of an allocation of its own, so that an address sanitizer sees any read past it,
 * and at every distance from an aligned address.
 */
static void every_length_at_every_alignment_equals_the_naive_implementation(void) {
    static const uint64_t seeds[] = {0, 1, UINT64_C(0x9E3779B97F4A7C15), UINT64_MAX};
    uint64_t state = 88172645463325252U; /* xorshift: fixed, so a failure repeats */
    for (size_t bytes = 0; bytes <= LENGTH_MAX; bytes++) {
        for (size_t shift = 0; shift < SHIFT_MAX; shift++) {
            unsigned char *data = malloc(shift + bytes > 0 ? shift + bytes : 1);
            if (data == NULL) {
                check(false, "memory for the test", bytes, 0);
                return;
            }
            for (size_t i = 0; i < shift + bytes; i++) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                data[i] = (unsigned char)(state >> 56);
            }
            for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
                uint64_t expected = naive_xxh64(data + shift, bytes, seeds[i]);
                check(xxh64(data + shift, bytes, seeds[i]) == expected, "xxh64 equals the naive implementation", bytes,
                      seeds[i]);
                check(xxh64_inline(data + shift, bytes, seeds[i]) == expected,
                      "xxh64_inline equals the naive implementation", bytes, seeds[i]);
            }
            free(data);
        }
    }
}

static void bytes_that_come_in_pieces_hash_like_the_whole(void) {
    static unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 151 + i / 7);
    for (size_t bytes = 0; bytes <= 140; bytes++) {
        for (size_t first = 0; first <= bytes; first++) {
            for (size_t second = 0; second <= bytes - first; second += 3) {
                struct xxh64_sum sum;
                xxh64_begin(&sum);
                xxh64_add(&sum, data, first);
                xxh64_add(&sum, data + first, second);
                xxh64_add(&sum, NULL, 0);
                xxh64_add(&sum, data + first + second, bytes - first - second);
                check(xxh64_end(&sum) == xxh64(data, bytes, 0), "three pieces hash like the whole", bytes, 0);
            }
        }
    }
    for (size_t piece = 1; piece < 200; piece++) {
        struct xxh64_sum sum;
        xxh64_begin(&sum);
        for (size_t at = 0; at < sizeof data; at += piece) {
            check(xxh64_end(&sum) == xxh64(data, at, 0), "the sum so far is right", at, 0);
            xxh64_add(&sum, data + at, sizeof data - at < piece ? sizeof data - at : piece);
        }
        check(xxh64_end(&sum) == xxh64(data, sizeof data, 0), "many pieces hash like the whole", piece, 0);
    }
}

static void every_single_bit_changes_the_result(void) {
    unsigned char data[100] = {0};
    uint64_t before = xxh64(data, sizeof data, 7);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] = (unsigned char)(1U << (bit % 8));
        check(xxh64(data, sizeof data, 7) != before, "a single bit changes the result", bit, 7);
        data[bit / 8] = 0;
    }
}

int main(void) {
    known_answers_are_reproduced();
    zero_bytes_at_NULL_hash_like_the_empty_string();
    every_length_at_every_alignment_equals_the_naive_implementation();
    bytes_that_come_in_pieces_hash_like_the_whole();
    every_single_bit_changes_the_result();
    printf("%u passed, %u failed\n", passed, failed);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
