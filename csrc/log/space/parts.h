/*
 * Functions shared by spares.c (makes and counts files), admission.c (may the log grow), recycle.c (dead segments),
 * relocation.c (when live records are moved) and spare_thread.c (the thread that does this work). The lock is held.
 */
#ifndef LOGSTORE_SPARE_PARTS_H
#define LOGSTORE_SPARE_PARTS_H

#include "log/parts.h"

/* Bytes by which live records grow once moved, within what the log can hold. */
uint64_t admission_expansion(const struct log *g);
size_t spares_most(const struct log *g); /* that are kept when segments die */
bool in_spare_thread(void);
bool relocation_is_possible(const struct log *g);
bool relocation_is_due(struct log *g, bool pressed); /* pressed: no spare can be made */
int relocation_of_oldest(struct log *g);             /* (waits) */
void spares_give_back_beyond(struct log *g, size_t most);

#endif
