/* Sizes of items from the offsets of an Arrow array, so that a binding publishes one without touching each item. */
#include <string.h>

#include "logstore.h"
#include "os/error.h"

/* Each offset is read once. None is above data_bytes, so the sum of the sizes is not either. */
int ls_sizes_of_offsets(const uint8_t *offsets, size_t width, size_t n, uint64_t data_bytes, uint64_t *sizes) {
    uint64_t before = 0, most = width == 4 ? INT32_MAX : INT64_MAX; /* they are signed: none is negative */
    most = data_bytes < most ? data_bytes : most;
    for (size_t i = 0; i <= n; i++) {
        uint64_t at = 0;
        memcpy(&at, offsets + i * width, width); /* Arrow's are of the machine's own order: little-endian here */
        if (at > most) {
            return fail(LS_OPTION, "the array's offsets point outside its data; validate() it first");
        }
        if (i > 0 && at < before) {
            return fail(LS_OPTION, "offset %zu of the array lies before the one before it", i);
        }
        if (i > 0) {
            sizes[i - 1] = at - before;
        }
        before = at;
    }
    return LS_OK;
}
