/* The environment variable LOGSTORE_MUTANT chooses the mutant for the whole process. See mutants.h. */
#include "mutants/mutants.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum mutant ls_mutant;

static atomic_ullong strikes;

#define MUTANT_NAME(name) #name,
static const char *const names[] = {"", MUTANTS(MUTANT_NAME)};

bool ls_mutant_strikes(void) {
    atomic_fetch_add_explicit(&strikes, 1, memory_order_relaxed);
    return true;
}

bool ls_mutant_choose(const char *name) {
    for (size_t i = 1; i < MUTANT_COUNT; i++) {
        if (strcmp(names[i], name) == 0) {
            ls_mutant = (enum mutant)i;
        }
    }
    return ls_mutant != NO_MUTANT;
}

/* Runs before main, so that no thread sees it change. An unknown name ends the process: otherwise it would look like a mutant
   that no test kills. */
__attribute__((constructor)) static void choose(void) {
    const char *wanted = getenv("LOGSTORE_MUTANT");
    if (wanted != NULL && *wanted != '\0' && !ls_mutant_choose(wanted)) {
        (void)fprintf(stderr, "LOGSTORE_MUTANT: %s is none of tools/mutants.toml\n", wanted);
        _Exit(2);
    }
}

__attribute__((destructor)) static void report(void) {
    if (ls_mutant != NO_MUTANT) {
        (void)fprintf(stderr, "mutant %s struck %llu times\n", names[ls_mutant], atomic_load(&strikes));
    }
}
