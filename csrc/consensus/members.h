/*
 * The bytes of a configuration, as libraft has them. libraft reads them without looking at their length, so all that comes
 * from a disk or a frame is read here first.
 *
 *   1 │ number of members (8, little-endian) │ id (8) │ address, with a zero │ role (1) │ ... │ zeros up to a multiple of 8
 */
#ifndef LOGSTORE_CONSENSUS_MEMBERS_H
#define LOGSTORE_CONSENSUS_MEMBERS_H

#include "consensus/engine.h"

enum { MEMBER_STANDBY = 0, MEMBER_VOTER = 1 };

struct members {
    uint32_t count;
    struct {
        uint64_t id;
        uint32_t role;
        char address[ENGINE_ADDRESS_MAX + 1];
    } all[ENGINE_MEMBERS_MAX];
};

/* False: not a configuration with at least one voter, ids above 0, and neither an id nor an address twice. */
bool members_decode(struct members *into, const uint8_t *bytes, size_t n);
/* Adds a member. False: there is no place, its id or address is taken, 0 or too long, or the bytes
   would be more than ENGINE_CONFIGURATION_MAX. */
bool members_add(struct members *m, uint64_t id, const char *address, uint32_t role);
/* The number of bytes; `into` has ENGINE_CONFIGURATION_MAX. */
uint32_t members_encode(const struct members *m, uint8_t *into);
/* The place of the member, or count. */
uint32_t members_find(const struct members *m, uint64_t id);
uint32_t members_voters(const struct members *m);

#endif
