/*
 * The mutant of this process, for MUTANT(NAME) in a copy of the core that tools/mutants.py has made. There this file is
 * csrc/mutants/mutants.h, next to names.h, which is made from the table in tools/mutants.toml.
 */
#ifndef LOGSTORE_MUTANTS_H
#define LOGSTORE_MUTANTS_H

#include <stdbool.h>

#include "mutants/names.h" /* #define MUTANTS(X) X(NAME) X(NAME) ... */

#define MUTANT_NUMBER(name) MUTANT_##name,
enum mutant { NO_MUTANT, MUTANTS(MUTANT_NUMBER) MUTANT_COUNT };
#undef MUTANT_NUMBER

extern enum mutant ls_mutant;            /* the chosen one; never changes once the program works */
bool ls_mutant_choose(const char *name); /* false: there is none of this name */
bool ls_mutant_strikes(
    void); /* returns true and counts; the count of this process and its children is printed at exit */
#define MUTANT(name) (ls_mutant == MUTANT_##name && ls_mutant_strikes())

#endif
