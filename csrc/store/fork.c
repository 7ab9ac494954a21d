/*
 * After fork() the child must not touch the parent's store: this file marks every open store as foreign in the child,
 * and closes the child's copy of the lock descriptor, so that the lock ends with the parent. A store is registered here
 * before it has that descriptor, and no fork can happen between opening the descriptor and storing it.
 */
#include <pthread.h>

#include "store/store.h"

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static ls_store *registry;
static ls_store *left_behind; /* in a child: never freed, but referenced, so that it is no leak */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int atfork_result;

static void before_fork(void) { (void)pthread_mutex_lock(&registry_lock); }

static void after_fork_in_parent(void) { (void)pthread_mutex_unlock(&registry_lock); }

static void after_fork_in_child(void) {
    for (ls_store *s = registry; s != NULL; s = s->next_open) {
        atomic_store(&s->foreign, true);
        if (s->lock_file >= 0) {
            (void)s->directory.v->close(s->directory.v, s->lock_file);
            s->lock_file = -1;
        }
    }
    registry = NULL;
    (void)pthread_mutex_unlock(&registry_lock);
}

static void install(void) { atfork_result = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

int fork_register(ls_store *store) {
    (void)pthread_once(&once, install);
    if (atfork_result != 0) {
        return fail_errno(LS_IO, atfork_result, "no handler for fork can be installed");
    }
    (void)pthread_mutex_lock(&registry_lock);
    store->next_open = registry;
    registry = store;
    (void)pthread_mutex_unlock(&registry_lock);
    return LS_OK;
}

void fork_wait(void) { (void)pthread_mutex_lock(&registry_lock); }

void fork_go_on(void) { (void)pthread_mutex_unlock(&registry_lock); }

void fork_forget(ls_store *store) {
    (void)pthread_mutex_lock(&registry_lock);
    for (ls_store **link = &registry; *link != NULL; link = &(*link)->next_open) {
        if (*link == store) {
            *link = store->next_open;
            break;
        }
    }
    (void)pthread_mutex_unlock(&registry_lock);
}

/*
 * In the child, moves the store to left_behind instead of freeing it: another thread of the parent may have been
 * changing its memory at the fork.
 */
void fork_leave_behind(ls_store *store) {
    (void)pthread_mutex_lock(&registry_lock);
    store->next_open = left_behind;
    left_behind = store;
    (void)pthread_mutex_unlock(&registry_lock);
}
