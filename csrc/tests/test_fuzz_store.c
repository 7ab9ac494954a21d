/* What is kept for the fuzz target "store", replayed without a fuzzer. */
#include "../fuzz/fuzz_store.c"

#include "../fuzz/replay.h"

int main(void) { return replay("store"); }
