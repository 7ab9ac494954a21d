/* What is kept for the fuzz target "record", replayed without a fuzzer. */
#include "../fuzz/fuzz_record.c"

#include "../fuzz/replay.h"

int main(void) { return replay("record"); }
