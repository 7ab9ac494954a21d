/* What is kept for the fuzz target "store", replayed without a fuzzer. */
#include "tests/fuzz/fuzz_store.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("store"); }
