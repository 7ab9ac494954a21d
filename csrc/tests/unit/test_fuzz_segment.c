/* What is kept for the fuzz target "segment", replayed without a fuzzer. */
#include "tests/fuzz/fuzz_segment.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("segment"); }
