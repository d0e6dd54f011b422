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

static struct {
    int num_threads;
    pthread_t threads[256];
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int num_sleeping;
    /* the operation being run: written by the caller before `ticket` is raised */
    tm_body body;
    void *arg;
    int64_t n, grain;
    _Atomic int64_t next;
    _Atomic int64_t num_done;      /* helpers that finished this ticket */
    _Atomic uint64_t ticket;
} pool = {.num_threads = 1};

static void work(void) {
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&pool.next, pool.grain, memory_order_relaxed);
        if (begin >= pool.n) return;
        int64_t end = begin + pool.grain;
        pool.body(pool.arg, begin, end < pool.n ? end : pool.n);
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
        work();
        atomic_fetch_add_explicit(&pool.num_done, 1, memory_order_release);
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
    int helpers = pool.num_threads - 1;
    if (helpers == 0 || n <= grain) {
        if (n > 0) body(arg, 0, n);
        return;
    }
    pool.body = body;
    pool.arg = arg;
    pool.n = n;
    pool.grain = grain;
    atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.num_done, 0, memory_order_relaxed);
    atomic_fetch_add(&pool.ticket, 1);
    pthread_mutex_lock(&pool.lock);
    if (pool.num_sleeping) pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    work();
    /* A helper that was descheduled holds us up: give it the processor after a while. */
    for (int i = 0; atomic_load_explicit(&pool.num_done, memory_order_acquire) < helpers; i++) {
        if (i > 2000) sched_yield();
        else cpu_relax();
    }
}
