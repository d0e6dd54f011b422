/* A small thread pool. Threads spin shortly between the operations of a step, then sleep until the next one.
 *
 * Each thread begins with a range of its own (neighbouring items often lie side by side in memory, and what a thread
 * asked for ahead of time is then its own) and takes from the ends of the others' when it is done: a thread that the
 * system has put aside holds up one grain, not its share.
 */
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

#define SPINS_BEFORE_SLEEP 4000 /* some 50 us: longer than a gap within a step, shorter than others would mind */
#define SLOTS 16
#define MAX_THREADS 256

/* What is left of a thread's range: begin in the high half, end in the low one. */
typedef struct {
    _Alignas(64) _Atomic uint64_t left;
} range;

/* One operation. A helper that comes late finds another ticket in the slot and leaves; one that is inside keeps
 * `users` above zero, so that the slot is not filled anew under its hands. */
typedef struct {
    _Atomic uint64_t ticket;
    _Atomic int users;
    tm_body body;
    void *arg;
    int64_t grain;
    _Alignas(64) _Atomic int64_t done;
    range ranges[MAX_THREADS];
} job;

static struct {
    int num_threads;
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic int num_sleeping;
    job jobs[SLOTS];
    _Atomic uint64_t ticket;
} pool = {.num_threads = 1};

/* Take at most `grain` items, from the front of one's own range or the back of another's. */
static int take(range *r, int64_t grain, int is_own, int64_t *begin, int64_t *end) {
    uint64_t left = atomic_load_explicit(&r->left, memory_order_relaxed);
    for (;;) {
        const int64_t b = (int64_t)(left >> 32), e = (int64_t)(left & UINT32_MAX), n = e - b < grain ? e - b : grain;
        if (n <= 0) return 0;
        *begin = is_own ? b : e - n;
        *end = *begin + n;
        const uint64_t rest = (uint64_t)(is_own ? *end : b) << 32 | (uint64_t)(is_own ? e : *begin);
        if (atomic_compare_exchange_weak_explicit(&r->left, &left, rest, memory_order_relaxed, memory_order_relaxed)) return 1;
    }
}

static void work(job *j, int me) {
    int64_t begin, end;
    for (int i = 0; i < pool.num_threads; i++) {
        const int owner = (me + i) % pool.num_threads;
        while (take(&j->ranges[owner], j->grain, i == 0, &begin, &end)) {
            j->body(j->arg, begin, end);
            atomic_fetch_add_explicit(&j->done, end - begin, memory_order_release);
        }
    }
}

static uint64_t wait_for_ticket(uint64_t seen) {
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        uint64_t now = atomic_load_explicit(&pool.ticket, memory_order_acquire);
        if (now != seen) return now;
        cpu_relax();
    }
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.num_sleeping, 1);
    uint64_t now;
    while ((now = atomic_load(&pool.ticket)) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
    atomic_fetch_sub(&pool.num_sleeping, 1);
    pthread_mutex_unlock(&pool.lock);
    return now;
}

static void *helper(void *number) {
    const int me = (int)(intptr_t)number;
    uint64_t seen = 0;
    for (;;) {
        seen = wait_for_ticket(seen);
        job *j = &pool.jobs[seen % SLOTS];
        atomic_fetch_add(&j->users, 1);
        if (atomic_load(&j->ticket) == seen) work(j, me);
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
        for (int i = 1; i < num_threads && i < MAX_THREADS; i++)
            if (pthread_create(&pool.threads[started], NULL, helper, (void *)(intptr_t)started) == 0) started++;
        pool.num_threads = started;
    }
    pthread_mutex_unlock(&once);
    return pool.num_threads;
}

int tm_num_threads(void) { return pool.num_threads; }

void tm_for(int64_t n, int64_t grain, tm_body body, void *arg) {
    if (pool.num_threads == 1 || n <= grain || n > UINT32_MAX) {
        if (n > 0) body(arg, 0, n);
        return;
    }
    uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_relaxed) + 1;
    job *j = &pool.jobs[ticket % SLOTS];
    atomic_store(&j->ticket, 0);
    while (atomic_load(&j->users)) sched_yield(); /* some operations ago: nearly never */
    j->body = body;
    j->arg = arg;
    j->grain = grain;
    const int64_t threads = pool.num_threads;
    for (int64_t t = 0; t < threads; t++) {
        const uint64_t left = (uint64_t)(n * t / threads) << 32 | (uint64_t)(n * (t + 1) / threads);
        atomic_store_explicit(&j->ranges[t].left, left, memory_order_relaxed);
    }
    atomic_store_explicit(&j->done, 0, memory_order_relaxed);
    atomic_store(&j->ticket, ticket);
    atomic_store(&pool.ticket, ticket);
    if (atomic_load(&pool.num_sleeping)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    work(j, 0);
    /* Only items that a helper has taken hold us up, not helpers that never came; yield when one is descheduled. */
    for (int i = 0; atomic_load_explicit(&j->done, memory_order_acquire) < n; i++) {
        if (i > 2000) sched_yield();
        else cpu_relax();
    }
}
