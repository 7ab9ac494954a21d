/* Shared by files.c (segment files, and how many the log needs) and policy.c (when they are made and moved). */
#ifndef LOGSTORE_SPARE_PARTS_H
#define LOGSTORE_SPARE_PARTS_H

#include "log/log.h"

enum { FAST_SWITCH_US = 500 * 1000 };

size_t spares_segments_kept(const struct log *g); /* not by a hold alone */
size_t spares_segments_used(const struct log *g); /* from the base on */
size_t spares_files(const struct log *g);         /* of the log, spares included */
uint64_t spares_expansion(const struct log *g);   /* bytes that what lives takes more once it is moved */
void spares_give_back_beyond(struct log *g, size_t most);

#endif
