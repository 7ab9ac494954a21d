/* What is kept for the fuzz target "checkpoint", replayed without a fuzzer. */
#include "../fuzz/fuzz_checkpoint.c"

#include "../fuzz/replay.h"

int main(void) { return replay("checkpoint"); }
