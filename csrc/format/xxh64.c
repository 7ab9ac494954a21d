/* XXH64 as an ordinary function; the algorithm itself stands in xxh64.h, once. */
#include "format/xxh64.h"

uint64_t xxh64(const void *data, size_t bytes, uint64_t seed) { return xxh64_inline(data, bytes, seed); }
