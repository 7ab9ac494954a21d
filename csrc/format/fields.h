/*
 * The fields of layout.def as functions, for the files of the codec alone. PUT writes and GET reads a field of the
 * record, row or file that begins at `at`, in as many bytes as the list says. AT is the field's offset.
 */
#ifndef LOGSTORE_FORMAT_FIELDS_H
#define LOGSTORE_FORMAT_FIELDS_H

#include "format/bytes.h"
#include "format/format.h"

#define AT(owner, name)             owner##_##name##_at
#define PUT(at, owner, name, value) put_##owner##_##name(at, value)
#define GET(at, owner, name)        get_##owner##_##name(at)

enum {
#define FIELD(owner, name, offset, bytes) AT(owner, name) = (offset),
#define AREA(owner, name, offset)         AT(owner, name) = (offset),
#include "format/layout.def"
};

/* The header check covers the header from `length` on. */
enum { CHECKED_BYTES = RECORD_HEADER_BYTES - AT(RECORD_HEADER, length) };

/* The numbers of bytes.h, by their bytes. */
#define number_of_1 uint8_t
#define number_of_2 uint16_t
#define number_of_4 uint32_t
#define number_of_8 uint64_t
#define put_1       put8
#define put_2       put16
#define put_4       put32
#define put_8       put64
#define get_1       get8
#define get_2       get16
#define get_4       get32
#define get_8       get64

#define FIELD(owner, name, offset, bytes)                                           \
    static inline void put_##owner##_##name(uint8_t *at, number_of_##bytes value) { \
        put_##bytes(at + (offset), value);                                          \
    }                                                                               \
    static inline number_of_##bytes get_##owner##_##name(const uint8_t *at) { return get_##bytes(at + (offset)); }
#include "format/layout.def"

#endif
