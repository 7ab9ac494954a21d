/* What is kept for the fuzz target "segment", replayed without a fuzzer. */
#include "../fuzz/fuzz_segment.c"

#include "../fuzz/replay.h"

int main(void) { return replay("segment"); }
