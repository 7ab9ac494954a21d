#include "consensus/members.h"

#include <string.h>

enum { ENCODING = 1, HEAD_BYTES = 9, MEMBER_BYTES = 8 + 1 + 1 };

_Static_assert(ENGINE_CONFIGURATION_MAX % 8 == 0, "what fits without the zeros at the end fits with them");

static uint64_t get64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static uint8_t *put64(uint8_t *at, uint64_t value) {
    for (int i = 0; i < 8; i++)
        *at++ = (uint8_t)(value >> 8 * i);
    return at;
}

uint32_t members_find(const struct members *m, uint64_t id) {
    uint32_t i = 0;
    while (i < m->count && m->all[i].id != id)
        i++;
    return i;
}

uint32_t members_voters(const struct members *m) {
    uint32_t voters = 0;
    for (uint32_t i = 0; i < m->count; i++)
        voters += m->all[i].role == MEMBER_VOTER;
    return voters;
}

/* Without the zeros at the end. */
static size_t encoded_bytes(const struct members *m) {
    size_t bytes = HEAD_BYTES;
    for (uint32_t i = 0; i < m->count; i++)
        bytes += MEMBER_BYTES + strlen(m->all[i].address);
    return bytes;
}

bool members_add(struct members *m, uint64_t id, const char *address, uint32_t role) {
    size_t length = strnlen(address, ENGINE_ADDRESS_MAX + 1);
    if (id == 0 || length > ENGINE_ADDRESS_MAX || m->count == ENGINE_MEMBERS_MAX || role > MEMBER_VOTER)
        return false;
    for (uint32_t i = 0; i < m->count; i++)
        if (m->all[i].id == id || strcmp(m->all[i].address, address) == 0)
            return false;
    if (encoded_bytes(m) + MEMBER_BYTES + length > ENGINE_CONFIGURATION_MAX)
        return false;
    m->all[m->count].id = id;
    m->all[m->count].role = role;
    memcpy(m->all[m->count].address, address, length + 1);
    m->count++;
    return true;
}

bool members_decode(struct members *into, const uint8_t *bytes, size_t n) {
    into->count = 0;
    if (bytes == NULL || n < HEAD_BYTES || n > ENGINE_CONFIGURATION_MAX || n % 8 != 0 || bytes[0] != ENCODING)
        return false;
    uint64_t count = get64(bytes + 1);
    size_t at = HEAD_BYTES;
    if (count == 0 || count > ENGINE_MEMBERS_MAX)
        return false;
    for (uint64_t i = 0; i < count; i++) {
        if (n - at < MEMBER_BYTES)
            return false;
        uint64_t id = get64(bytes + at);
        const char *address = (const char *)bytes + at + 8;
        size_t length = strnlen(address, n - at - 8);
        at += 8 + length + 1;
        if (at >= n || !members_add(into, id, address, bytes[at]))
            return false;
        at++;
    }
    if (n - at >= 8)
        return false;
    while (at < n)
        if (bytes[at++] != 0)
            return false;
    return members_voters(into) > 0;
}

uint32_t members_encode(const struct members *m, uint8_t *into) {
    uint8_t *at = into;
    *at++ = ENCODING;
    at = put64(at, m->count);
    for (uint32_t i = 0; i < m->count; i++) {
        size_t length = strlen(m->all[i].address) + 1;
        at = put64(at, m->all[i].id);
        memcpy(at, m->all[i].address, length);
        at += length;
        *at++ = (uint8_t)m->all[i].role;
    }
    while ((at - into) % 8 != 0)
        *at++ = 0;
    return (uint32_t)(at - into);
}
