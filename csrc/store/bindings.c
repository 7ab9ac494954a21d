/*
 * For bindings: which core this is, its calls as a table, and the sizes of items of an Arrow array.
 *
 * A Python package and a core of different builds can meet in a checkout, so the core carries its own version; a test
 * compares it with the package's.
 */
#include <string.h>

#include "logstore_calls.h"
#include "os/error.h"

#define VERSION "0.1.0"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* clang defines the macros of gcc for these sanitizers from version 20 on only. */
#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SANITIZER ", address sanitizer"
#elif defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define SANITIZER ", thread sanitizer"
#else
#define SANITIZER ""
#endif

const char *ls_version_text(void) { return VERSION " (" COMPILER SANITIZER ")"; }

#define LS_CALLS_ADDRESS(name) .name = ls_##name,

const ls_calls *ls_calls_table(void) {
    static const ls_calls table = {.bytes = sizeof table, LS_CALLS(LS_CALLS_ADDRESS)};
    return &table;
}

/* ---- sizes of items from the offsets of an Arrow array, so that a binding publishes one without touching each item ---- */

/* Each offset is read once. No offset is above data_bytes, so the sum of the sizes is not above it, either. */
int ls_sizes_of_offsets(const uint8_t *offsets, size_t width, size_t n, uint64_t data_bytes, uint64_t *sizes) {
    uint64_t before = 0, most = width == 4 ? INT32_MAX : INT64_MAX; /* a signed offset above is negative */
    most = data_bytes < most ? data_bytes : most;
    for (size_t i = 0; i <= n; i++) {
        uint64_t at = 0;
        memcpy(&at, offsets + i * width, width); /* Arrow uses the machine's byte order: little-endian here */
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
