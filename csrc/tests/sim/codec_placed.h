/* Records with states of places, in both directions, for codec.c. */
#ifndef LOGSTORE_TESTS_CODEC_PLACED_H
#define LOGSTORE_TESTS_CODEC_PLACED_H

#include "format/format.h"
#include "tests/sim/testing.h"

bool codec_is_placed(uint16_t type);
uint32_t codec_encode_placed(const struct slot *s, const ls_test_record *t, size_t room); /* 0: it does not fit */
enum format_result codec_decode_placed(const struct record *r, ls_test_record *t);

#endif
