/*
 * Runs every stored input of a fuzz target once, without a fuzzer: seeds made from real stores, and inputs that found a
 * fault. Include the target first. Run it from the checkout's root, as make does.
 */
#ifndef LOGSTORE_FUZZ_REPLAY_H
#define LOGSTORE_FUZZ_REPLAY_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

/* Reads the input into a buffer without slack, so that a sanitizer detects a read of the first byte after it. */
static inline int replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = NULL;
    long size;

    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0)
        return -1;
    rewind(file);
    bytes = malloc(size > 0 ? (size_t)size : 1);
    if (bytes == NULL || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        return -1;
    (void)fclose(file);
    (void)LLVMFuzzerTestOneInput(bytes, (size_t)size);
    free(bytes);
    return 0;
}

/* Returns the number of inputs. A target that fails aborts; the path printed last names the input. */
static inline int replay_directory(const char *path, int *failed) {
    DIR *dir = opendir(path);
    const struct dirent *e;
    int n = 0;

    while (dir != NULL && (e = readdir(dir)) != NULL) {
        char name[512];

        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        printf("%s\n", name);
        (void)fflush(stdout);
        *failed += replay_file(name) != 0;
        n++;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return n;
}

static inline int replay(const char *target) {
    static const char *const kinds[] = {"seeds", "found"};
    int n = 0, failed = 0;

    for (int i = 0; i < 2; i++) {
        char path[256];

        (void)snprintf(path, sizeof path, "csrc/tests/fuzz/%s/%s", kinds[i], target);
        n += replay_directory(path, &failed);
    }
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0 || n == 0;
}

#endif
