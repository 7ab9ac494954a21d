/*
 * Seeds for the fuzz target "checkpoint". `make_checkpoint_seeds DIRECTORY` writes DIRECTORY/checkpoint: the true checkpoint
 * of the target's store, as a file, as all its rows, and as each kind of row alone.
 */
#include "tests/fuzz/fuzz_checkpoint.c"

#include <stdio.h>
#include <sys/stat.h>

static const char *into;

static void save(const char *name, uint8_t switches, const uint8_t *bytes, size_t n) {
    char path[512];
    FILE *file;
    (void)snprintf(path, sizeof path, "%s/checkpoint", into);
    (void)mkdir(path, 0755);
    (void)snprintf(path, sizeof path, "%s/checkpoint/%s", into, name);
    file = fopen(path, "wb");
    require(file != NULL && fputc(switches, file) == switches && fwrite(bytes, 1, n, file) == n && fclose(file) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        printf("usage: make_checkpoint_seeds DIRECTORY\n");
        return 2;
    }
    into = argv[1];
    make_store();
    const uint8_t *rows = whole.file + CHECKPOINT_HEADER_BYTES + CHECKPOINT_BLOCK_HEADER_BYTES;
    size_t bytes = whole.file_bytes - CHECKPOINT_HEADER_BYTES - CHECKPOINT_BLOCK_HEADER_BYTES;
    save("file", TOLD_AS_A_FILE, whole.file, whole.file_bytes);
    save("file-crashed", TOLD_AS_A_FILE | TOLD_CRASHED, whole.file, whole.file_bytes);
    save("rows", 0, rows, bytes);
    save("rows-crashed", TOLD_CRASHED, rows, bytes);
    save("miscounted", TOLD_MISCOUNTED, rows, bytes);
    save("empty", 0, rows, 0);
    for (size_t at = 0, n = 0; at < bytes; at += n) {
        struct checkpoint_header counts = {.messages = 0};
        char name[32];
        n = count_row(&counts, rows + at, bytes - at);
        require(n > 0);
        (void)snprintf(name, sizeof name, "row-%03zu", at);
        save(name, 0, rows + at, n);
    }
    return 0;
}
