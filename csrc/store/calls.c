/* The table of calls for a binding that is not linked with the core. */
#include "logstore_calls.h"

#define LS_CALLS_ADDRESS(name) .name = ls_##name,

const ls_calls *ls_calls_table(void) {
    static const ls_calls table = {.bytes = sizeof table, LS_CALLS(LS_CALLS_ADDRESS)};
    return &table;
}
