/*
 * The core's record scanner for Java: the native methods of logstore.spark.Scanner.
 *
 * A scan is the address of a `struct scan`, a batch that of an `ls_columns`; Java keeps both as numbers and frees each once. A
 * batch stays where it is until it is freed, and Java reads it in place. No call keeps a Java array across a call of the core,
 * so none holds up a garbage collection while a file is read. A failure leaves as a Java exception, made by Failure.of; after
 * one a call returns 0, and Java frees the scan.
 */
#include <assert.h>
#include <jni.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "logstore.h"

/* The numbers of Scanner.open, in the order that Java has them. */
enum {
    OPEN_KEEP_LSN,
    OPEN_END_LSN,
    OPEN_PERMISSIVE,
    OPEN_COLUMNS,
    OPEN_START_LSN,
    OPEN_STOP_LSN,
    OPEN_AS_OF_LSN,
    OPEN_ROWS_MAX,
    OPEN_BODY_MAX,
    OPEN_TYPES,
    OPEN_TIMED,
    OPEN_START_US,
    OPEN_STOP_US,
    OPEN_NUMBERS,
};

/* The layout of a batch: the number of rows, then for each column these. */
enum { COLUMN_VALID, COLUMN_OFFSETS, COLUMN_VALUES, COLUMN_VALUE_BYTES, COLUMN_NULLS, COLUMN_ROWS, COLUMN_NUMBERS };
enum { LAYOUT_NUMBERS = 1 + COLUMN_NUMBERS * LS_ROWS_COLUMNS };

enum { LIST_MOST = 1 << 24 };

static_assert(sizeof(void *) == 8 && sizeof(jlong) == sizeof(uint64_t), "an address is a Java long");

struct scan {
    ls_reader *reader;
    ls_rows *rows;
};

static jlong number_of(const void *pointer) { return (jlong)(uintptr_t)pointer; }

static void *pointer_of(jlong number) { return (void *)(uintptr_t)number; }

static jbyteArray bytes_of(JNIEnv *env, const char *text) {
    jsize n = (jsize)strlen(text);
    jbyteArray made = (*env)->NewByteArray(env, n);
    if (made != NULL) {
        (*env)->SetByteArrayRegion(env, made, 0, n, (const jbyte *)text);
    }
    return made;
}

/* The exception of the Python package for a code that a scan can end with (core/native.py). */
static const char *kind_of(int code) {
    switch (code) {
    case LS_CORRUPT:
        return "CorruptLog";
    case LS_RECYCLED:
        return "LogRecycled";
    case LS_OPTION:
        return "OptionError";
    case LS_NOT_A_STORE:
        return "NotAStore";
    case LS_LOCKED:
        return "StoreLocked";
    case LS_VERSION:
        return "VersionError";
    default:
        return "StoreError";
    }
}

/* Throws what Failure.of makes of the core's last error; without memory for that, the JVM's own OutOfMemoryError. */
static void throw_failure(JNIEnv *env, int code) {
    const ls_error *e = ls_last_error();
    jclass failure = (*env)->FindClass(env, "logstore/spark/Failure");
    jmethodID of =
        failure == NULL
            ? NULL
            : (*env)->GetStaticMethodID(env, failure, "of", "(Ljava/lang/String;JJ[B[B)Ljava/lang/RuntimeException;");
    jstring kind = of == NULL ? NULL : (*env)->NewStringUTF(env, kind_of(code));
    jbyteArray segment = kind == NULL ? NULL : bytes_of(env, e->segment);
    jbyteArray text = segment == NULL ? NULL : bytes_of(env, e->text);
    if (text != NULL) {
        jobject made =
            (*env)->CallStaticObjectMethod(env, failure, of, kind, (jlong)e->offset, (jlong)e->lsn, segment, text);
        if (made != NULL) {
            (*env)->Throw(env, (jthrowable)made);
        }
    }
}

static void throw_argument(JNIEnv *env, const char *text) {
    jclass wrong = (*env)->FindClass(env, "java/lang/IllegalArgumentException");
    if (wrong != NULL) {
        (*env)->ThrowNew(env, wrong, text);
    }
}

static void throw_memory(JNIEnv *env) {
    jclass wrong = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
    if (wrong != NULL) {
        (*env)->ThrowNew(env, wrong, "no native memory for a scan of the log");
    }
}

/* A copy of a Java list of ids; NULL with *n 0 for null. False: an exception is pending. */
static bool copied(JNIEnv *env, jlongArray from, uint64_t **into, size_t *n) {
    *into = NULL;
    *n = 0;
    if (from == NULL) {
        return true;
    }
    jsize length = (*env)->GetArrayLength(env, from);
    if (length > LIST_MOST) {
        throw_argument(env, "a list of ids has more than 16,777,216");
        return false;
    }
    *into = calloc((size_t)length + 1, sizeof **into);
    if (*into == NULL) {
        throw_memory(env);
        return false;
    }
    (*env)->GetLongArrayRegion(env, from, 0, length, (jlong *)*into);
    *n = (size_t)length;
    return true;
}

static void close_scan(struct scan *scan) {
    ls_rows_free(scan->rows);
    ls_reader_close(scan->reader);
    free(scan);
}

static int open_scan(const char *dir, const jlong *given, const ls_rows_options *options, struct scan **made) {
    struct scan *scan = *made = calloc(1, sizeof *scan);
    if (scan == NULL) {
        return LS_NO_MEMORY;
    }
    uint64_t keep_lsn = (uint64_t)given[OPEN_KEEP_LSN], end_lsn = (uint64_t)given[OPEN_END_LSN];
    int code = given[OPEN_PERMISSIVE] != 0
                   ? ls_reader_open_permissive(NULL, dir, keep_lsn, options->start_lsn, &scan->reader)
                   : ls_reader_open_kept(NULL, dir, keep_lsn, end_lsn, options->start_lsn, &scan->reader);
    return code == LS_OK ? ls_rows_open(scan->reader, options, &scan->rows) : code;
}

/* The store's directory as C has it; NULL: an exception is pending. */
static char *directory_of(JNIEnv *env, jbyteArray bytes) {
    jsize n = bytes == NULL ? 0 : (*env)->GetArrayLength(env, bytes);
    if (n == 0) {
        throw_argument(env, "the store has no directory");
        return NULL;
    }
    char *made = calloc((size_t)n + 1, 1);
    if (made == NULL) {
        throw_memory(env);
        return NULL;
    }
    (*env)->GetByteArrayRegion(env, bytes, 0, n, (jbyte *)made);
    if (strlen(made) != (size_t)n) {
        free(made);
        throw_argument(env, "the name of the store's directory has a zero byte");
        return NULL;
    }
    return made;
}

JNIEXPORT jlong JNICALL Java_logstore_spark_Scanner_open(JNIEnv *env, jclass self, jbyteArray directory,
                                                         jlongArray numbers, jlongArray queue_ids, jlongArray ids,
                                                         jlongArray named) {
    (void)self;
    jlong given[OPEN_NUMBERS];
    if (numbers == NULL || (*env)->GetArrayLength(env, numbers) != OPEN_NUMBERS) {
        throw_argument(env, "a scan has other numbers: the jar and its native library are of different versions");
        return 0;
    }
    (*env)->GetLongArrayRegion(env, numbers, 0, OPEN_NUMBERS, given);
    char *dir = directory_of(env, directory);
    uint64_t *queues = NULL, *chains = NULL, *names = NULL;
    ls_rows_options options = {
        .columns = (uint64_t)given[OPEN_COLUMNS],
        .start_lsn = (uint64_t)given[OPEN_START_LSN],
        .stop_lsn = (uint64_t)given[OPEN_STOP_LSN],
        .as_of_lsn = (uint64_t)given[OPEN_AS_OF_LSN],
        .rows_max = (uint64_t)given[OPEN_ROWS_MAX],
        .body_max = (uint64_t)given[OPEN_BODY_MAX],
        .types = (uint64_t)given[OPEN_TYPES],
        .timed = given[OPEN_TIMED] != 0,
        .start_us = (uint64_t)given[OPEN_START_US],
        .stop_us = (uint64_t)given[OPEN_STOP_US],
    };
    struct scan *scan = NULL;
    if (dir != NULL && copied(env, queue_ids, &queues, &options.queue_id_count) &&
        copied(env, ids, &chains, &options.id_count) && copied(env, named, &names, &options.named_count)) {
        options.queue_ids = queues;
        options.ids = chains;
        options.named = names;
        int code = open_scan(dir, given, &options, &scan);
        if (code != LS_OK) {
            if (scan == NULL) {
                throw_memory(env);
            } else {
                throw_failure(env, code);
                close_scan(scan);
                scan = NULL;
            }
        }
    }
    free(dir);
    free(queues);
    free(chains);
    free(names);
    return number_of(scan);
}

/* The address of the next batch, with its layout; 0: there is none in this part of the log, call again; -1: the end. */
JNIEXPORT jlong JNICALL Java_logstore_spark_Scanner_next(JNIEnv *env, jclass self, jlong handle, jlongArray layout) {
    (void)self;
    struct scan *scan = pointer_of(handle);
    if (layout == NULL || (*env)->GetArrayLength(env, layout) != LAYOUT_NUMBERS) {
        throw_argument(env, "a batch has another layout: the jar and its native library are of different versions");
        return 0;
    }
    ls_columns *batch = NULL;
    int code = ls_rows_next(scan->rows, &batch);
    if (code == LS_END) {
        return -1;
    }
    if (code != LS_OK) {
        throw_failure(env, code);
        return 0;
    }
    if (batch == NULL) {
        return 0;
    }
    ls_column columns[LS_ROWS_COLUMNS] = {{0}};
    uint64_t rows = 0;
    ls_columns_get(batch, columns, LS_ROWS_COLUMNS, &rows);
    jlong numbers[LAYOUT_NUMBERS] = {(jlong)rows};
    for (size_t i = 0; i < LS_ROWS_COLUMNS; i++) {
        jlong *at = numbers + 1 + i * COLUMN_NUMBERS;
        at[COLUMN_VALID] = number_of(columns[i].valid);
        at[COLUMN_OFFSETS] = number_of(columns[i].offsets);
        at[COLUMN_VALUES] = number_of(columns[i].values);
        at[COLUMN_VALUE_BYTES] = (jlong)columns[i].value_bytes;
        at[COLUMN_NULLS] = (jlong)columns[i].nulls;
        at[COLUMN_ROWS] = (jlong)columns[i].rows;
    }
    (*env)->SetLongArrayRegion(env, layout, 0, LAYOUT_NUMBERS, numbers);
    return number_of(batch);
}

JNIEXPORT jint JNICALL Java_logstore_spark_Scanner_columns(JNIEnv *env, jclass self) {
    (void)env;
    (void)self;
    return LS_ROWS_COLUMNS;
}

JNIEXPORT jint JNICALL Java_logstore_spark_Scanner_type(JNIEnv *env, jclass self, jlong handle, jint number) {
    (void)env;
    (void)self;
    struct scan *scan = pointer_of(handle);
    return number < 0 ? 0 : ls_rows_type(scan->rows, (unsigned)number);
}

/* The parts that a permissive scan has skipped so far: first LSN and end of each. */
JNIEXPORT jlongArray JNICALL Java_logstore_spark_Scanner_missing(JNIEnv *env, jclass self, jlong handle) {
    (void)self;
    struct scan *scan = pointer_of(handle);
    size_t count = 0;
    (void)ls_reader_missing(scan->reader, NULL, 0, &count); /* it cannot fail */
    if (count > LIST_MOST) {
        throw_argument(env, "a log has more than 16,777,216 unreadable parts");
        return NULL;
    }
    ls_lsn_range *found = calloc(count + 1, sizeof *found);
    if (found == NULL) {
        throw_memory(env);
        return NULL;
    }
    size_t n = 0;
    (void)ls_reader_missing(scan->reader, found, count, &n);
    jlongArray made = (*env)->NewLongArray(env, (jsize)(2 * count));
    for (size_t i = 0; made != NULL && i < count; i++) {
        const jlong pair[] = {(jlong)found[i].first_lsn, (jlong)found[i].end_lsn};
        (*env)->SetLongArrayRegion(env, made, (jsize)(2 * i), 2, pair);
    }
    free(found);
    return made;
}

JNIEXPORT void JNICALL Java_logstore_spark_Scanner_freeBatch(JNIEnv *env, jclass self, jlong batch) {
    (void)env;
    (void)self;
    ls_columns_free(pointer_of(batch));
}

JNIEXPORT void JNICALL Java_logstore_spark_Scanner_freeScan(JNIEnv *env, jclass self, jlong handle) {
    (void)env;
    (void)self;
    struct scan *scan = pointer_of(handle);
    if (scan != NULL) {
        close_scan(scan);
    }
}
