/*
 * Says which core this is. A Python package and a core of different builds can meet in a checkout, so the core carries
 * its own version; a test compares it with the package's.
 */
#include "logstore.h"

#define VERSION "0.1.0"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* clang defines the macros of gcc for these sanitizers from version 20 on only. */
#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SANITIZER ", address sanitizer"
#elif defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define SANITIZER ", thread sanitizer"
#else
#define SANITIZER ""
#endif

const char *ls_version_text(void) { return VERSION " (" COMPILER SANITIZER ")"; }
