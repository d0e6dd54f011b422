/* A small thread pool. Threads spin shortly between the operations of a step, then sleep until the next step. */
#define _GNU_SOURCE
#include "tm.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define cpu_relax() _mm_pause()
#else
#define cpu_relax() ((void)0)
#endif

#define SPINS_BEFORE_SLEEP 20000
#define SLOTS 64

/* One operation. A helper that comes late finds another ticket in the slot and leaves; one that is inside keeps
 * `users` above zero, so that the slot is not filled anew under its hands. */
typedef struct {
    _Atomic uint64_t ticket;
    _Atomic int users;
    tm_body body;
    void *arg;
    int64_t n, grain;
    _Atomic int64_t next, done;
} job;

static struct {
    int num_threads;
    pthread_t threads[256];
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int num_sleeping;
    job jobs[SLOTS];
    _Atomic uint64_t ticket;
} pool = {.num_threads = 1};

static void work(job *j) {
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&j->next, j->grain, memory_order_relaxed);
        if (begin >= j->n) return;
        int64_t end = begin + j->grain < j->n ? begin + j->grain : j->n;
        j->body(j->arg, begin, end);
        atomic_fetch_add_explicit(&j->done, end - begin, memory_order_release);
    }
}

static uint64_t wait_for_ticket(uint64_t seen) {
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        uint64_t now = atomic_load_explicit(&pool.ticket, memory_order_acquire);
        if (now != seen) return now;
        cpu_relax();
    }
    pthread_mutex_lock(&pool.lock);
    pool.num_sleeping++;
    uint64_t now;
    while ((now = atomic_load(&pool.ticket)) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
    pool.num_sleeping--;
    pthread_mutex_unlock(&pool.lock);
    return now;
}

static void *helper(void *unused) {
    (void)unused;
    uint64_t seen = 0;
    for (;;) {
        seen = wait_for_ticket(seen);
        job *j = &pool.jobs[seen % SLOTS];
        atomic_fetch_add(&j->users, 1);
        if (atomic_load(&j->ticket) == seen) work(j);
        atomic_fetch_sub(&j->users, 1);
    }
    return NULL;
}

/* Start the pool once; later calls return the number of threads that it has. */
int tm_start(int num_threads) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (pool.num_threads == 1 && num_threads > 1) {
        pthread_mutex_init(&pool.lock, NULL);
        pthread_cond_init(&pool.wake, NULL);
        int started = 1;
        for (int i = 1; i < num_threads && i < 256; i++)
            if (pthread_create(&pool.threads[i], NULL, helper, NULL) == 0) started++;
        pool.num_threads = started;
    }
    pthread_mutex_unlock(&once);
    return pool.num_threads;
}

int tm_num_threads(void) { return pool.num_threads; }

void tm_for(int64_t n, int64_t grain, tm_body body, void *arg) {
    if (pool.num_threads == 1 || n <= grain) {
        if (n > 0) body(arg, 0, n);
        return;
    }
    uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_relaxed) + 1;
    job *j = &pool.jobs[ticket % SLOTS];
    atomic_store(&j->ticket, 0);
    while (atomic_load(&j->users)) sched_yield(); /* 64 operations ago: nearly never */
    j->body = body;
    j->arg = arg;
    j->n = n;
    j->grain = grain;
    atomic_store_explicit(&j->next, 0, memory_order_relaxed);
    atomic_store_explicit(&j->done, 0, memory_order_relaxed);
    atomic_store(&j->ticket, ticket);
    atomic_store(&pool.ticket, ticket);
    pthread_mutex_lock(&pool.lock);
    if (pool.num_sleeping) pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    work(j);
    /* Only chunks that a helper has taken hold us up, not helpers that never came; yield when one is descheduled. */
    for (int i = 0; atomic_load_explicit(&j->done, memory_order_acquire) < n; i++) {
        if (i > 2000) sched_yield();
        else cpu_relax();
    }
}
