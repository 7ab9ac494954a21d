/* See damage.h. */
#include "read/damage.h"

#include <stdarg.h>

#include "format/format.h"

int(fail_at)(int code, uint64_t first_lsn, uint64_t lsn, const char *format, ...) {
    char segment[SEGMENT_NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)fail_with(code, format, arguments);
    va_end(arguments);
    format_segment_name(segment, first_lsn);
    error_locate(segment, lsn - first_lsn, lsn);
    return code;
}
