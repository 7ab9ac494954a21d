/* The consensus engine of one replicated store: libraft behind one header. Only engine.c includes raft.h. */
#ifndef LOGSTORE_CONSENSUS_ENGINE_H
#define LOGSTORE_CONSENSUS_ENGINE_H

/* cffi:begin */

/* The version of libraft that the engine is built with: major * 10000 + minor * 100 + release. */
int engine_raft_version(void);

/* cffi:end */

#endif
