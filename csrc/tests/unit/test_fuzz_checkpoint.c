/* Replays the stored inputs of the fuzz target "checkpoint" without a fuzzer. */
#include "tests/fuzz/fuzz_checkpoint.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("checkpoint"); }
