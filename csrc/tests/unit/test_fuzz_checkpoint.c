/* What is kept for the fuzz target "checkpoint", replayed without a fuzzer. */
#include "tests/fuzz/fuzz_checkpoint.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("checkpoint"); }
