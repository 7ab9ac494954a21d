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

/* False: the bytes are no configuration with at least one voter, ids above 0, and no id or address twice. */
bool members_decode(struct members *into, const uint8_t *bytes, size_t n);
/* Adds a member. False: there is no room, its id or address is in use, 0 or too long, or the bytes would exceed
   ENGINE_CONFIGURATION_MAX. */
bool members_add(struct members *m, uint64_t id, const char *address, uint32_t role);
/* The number of bytes; `into` has ENGINE_CONFIGURATION_MAX. */
uint32_t members_encode(const struct members *m, uint8_t *into);
/* The position of the member, or count if there is none. */
uint32_t members_find(const struct members *m, uint64_t id);
uint32_t members_voters(const struct members *m);

#endif
