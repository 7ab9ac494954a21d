#include "consensus/engine.h"

#include <raft.h>

#ifdef NDEBUG
#error "the assertions of libraft and of the engine stay on"
#endif
#ifndef RAFT__LEGACY_no
#error "the interface of earlier versions of libraft must be off: a library of the system may not be used"
#endif

int engine_raft_version(void) { return raft_version_number(); }
