/* The environment variable LOGSTORE_MUTANT chooses the mutant for the whole process. See mutants.h. */
#include "mutants/mutants.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum mutant ls_mutant;

/* Shared with the processes that a program forks, so that the count at the program's exit has theirs. */
static atomic_ullong *strikes;
static pid_t reporter; /* the process that forks the others, if any is forked */

#define MUTANT_NAME(name) #name,
static const char *const names[] = {"", MUTANTS(MUTANT_NAME)};

bool ls_mutant_strikes(void) {
    atomic_fetch_add_explicit(strikes, 1, memory_order_relaxed);
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
    strikes = mmap(NULL, sizeof *strikes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (strikes == MAP_FAILED) {
        perror("mutants");
        _Exit(2);
    }
    reporter = getpid();
    const char *wanted = getenv("LOGSTORE_MUTANT");
    if (wanted != NULL && *wanted != '\0' && !ls_mutant_choose(wanted)) {
        (void)fprintf(stderr, "LOGSTORE_MUTANT: %s is none of tools/mutants.toml\n", wanted);
        _Exit(2);
    }
}

__attribute__((destructor)) static void report(void) {
    if (ls_mutant != NO_MUTANT && getpid() == reporter) {
        (void)fprintf(stderr, "mutant %s struck %llu times\n", names[ls_mutant], atomic_load(strikes));
    }
}
