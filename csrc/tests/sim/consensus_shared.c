/* What both modes of the simulator use: the run's state, its random numbers, and the end of a run that breaks a rule. */
#include "tests/sim/consensus_shared.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct simulation sim;

void *grow(void *array, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity)
        return array;
    size_t more = *capacity == 0 ? 32 : 2 * *capacity;
    void *grown = realloc(array, more * size);
    if (grown == NULL) {
        perror("the simulator");
        exit(2);
    }
    *capacity = more;
    return grown;
}

/* ---- random numbers (splitmix64) ---- */

static uint64_t state;

uint64_t random_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

void random_seed(uint64_t seed) { state = random_mix(seed + 1); }

static uint64_t random_next(void) { return random_mix(state += UINT64_C(0x9E3779B97F4A7C15)); }

uint64_t random_below(uint64_t n) { return n == 0 ? 0 : random_next() % n; }

double random_unit(void) { return (double)(random_next() >> 11) / 9007199254740992.0; }

bool random_chance(double p) { return random_unit() < p; }

void violation(const char *format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    run_failed(text);
}
