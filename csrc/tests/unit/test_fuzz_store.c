/* Replays the stored inputs of the fuzz target "store" without a fuzzer. */
#include "tests/fuzz/fuzz_store.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("store"); }
