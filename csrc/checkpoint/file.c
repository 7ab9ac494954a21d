/* A checkpoint's file: written under another name, forced, and only then renamed into place. See checkpoint.h. */
#include "checkpoint/checkpoint.h"

#include <errno.h>

#include "os/io.h"
#include "os/vfs.h"

static uint64_t offset_of(uint64_t index) { return CHECKPOINT_HEADER_BYTES + index * CHECKPOINT_BLOCK_BYTES; }

int checkpoint_file_begin(struct checkpoint_file *f, struct directory *directory,
                          const struct checkpoint_header *header) {
    *f = (struct checkpoint_file){.directory = directory, .header = header, .file = -1};
    vfs *v = directory->v;
    int file = v->open(v, directory->dir, "CHECKPOINT.new", VFS_WRITE | VFS_CREATE);
    if (file < 0) {
        return file;
    }
    f->file = file;
    return v->truncate(v, file, 0);
}

/* The last block's rows end the file. */
int checkpoint_file_write(struct checkpoint_file *f, struct row_block *block, bool last) {
    uint32_t extent = last ? block->used : CHECKPOINT_BLOCK_BYTES;
    format_put_checkpoint_block(block->bytes, f->header, block->index, block->used, extent);
    return io_write(f->directory->v, f->file, block->bytes, extent, offset_of(block->index), &f->directory->written);
}

int checkpoint_file_finish(struct checkpoint_file *f) {
    uint8_t header[CHECKPOINT_HEADER_BYTES];
    vfs *v = f->directory->v;
    int dir = f->directory->dir;
    format_put_checkpoint(header, f->header);
    int rc = io_write(v, f->file, header, sizeof header, 0, &f->directory->written);
    rc = rc == 0 ? v->sync_file(v, f->file) : rc;
    if (rc == 0) {
        rc = v->close(v, f->file);
        f->file = -1;
    }
    rc = rc == 0 ? v->rename(v, dir, "CHECKPOINT.new", "CHECKPOINT") : rc;
    return rc == 0 ? v->sync_dir(v, dir) : rc;
}

void checkpoint_file_abandon(struct checkpoint_file *f) {
    vfs *v = f->directory->v;
    if (f->file >= 0) {
        (void)v->close(v, f->file);
        f->file = -1;
    }
    (void)v->unlink(v, f->directory->dir, "CHECKPOINT.new");
}
