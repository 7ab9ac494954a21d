/* What is kept for the fuzz target "record", replayed without a fuzzer. */
#include "tests/fuzz/fuzz_record.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("record"); }
