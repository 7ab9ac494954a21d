/* Replays the stored inputs of the fuzz target "record" without a fuzzer. */
#include "tests/fuzz/fuzz_record.c"

#include "tests/fuzz/replay.h"

int main(void) { return replay("record"); }
