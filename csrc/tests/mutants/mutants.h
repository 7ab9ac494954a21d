/*
 * Which mutant this process is: what MUTANT(NAME) asks in a copy of the core that tools/mutants.py has made. There this
 * file is csrc/mutants/mutants.h, and names.h, made of the table in tools/mutants.toml, lies beside it.
 */
#ifndef LOGSTORE_MUTANTS_H
#define LOGSTORE_MUTANTS_H

#include <stdbool.h>

#include "mutants/names.h" /* #define MUTANTS(X) X(NAME) X(NAME) ... */

#define MUTANT_NUMBER(name) MUTANT_##name,
enum mutant { NO_MUTANT, MUTANTS(MUTANT_NUMBER) MUTANT_COUNT };
#undef MUTANT_NUMBER

extern enum mutant ls_mutant; /* the one chosen; the same from start to end */
bool ls_mutant_strikes(void); /* true, and counted: how often is said at the end */
#define MUTANT(name) (ls_mutant == MUTANT_##name && ls_mutant_strikes())

#endif
