/* Replays the stored inputs of the fuzz target "segment" without a fuzzer. */
#include "tests/fuzz/fuzz_segment.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("segment"); }
