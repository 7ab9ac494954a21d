/* Moving what lives in a segment to the head of the log; relocate.c says how, log/space/policy.c says when. */
#ifndef LOGSTORE_RELOCATE_H
#define LOGSTORE_RELOCATE_H

#include "log/log.h"
#include "table/table.h"

/* (waits) Everything that lives in this sealed, durable segment is copied to the head. Lock held at both ends. */
int relocate_segment(struct log *g, struct table *t, struct segment *victim);

#endif
