/* What this machine can do at most, for the benchmark of kernels: loops without memory, and nothing but memory. Each
 * runs on all threads of the pool; the caller takes the time. */
#include "tm.h"

#define CHAINS 12          /* independent accumulators: enough to hide the latency of one instruction */

enum { PEAK_BF16 = 0, PEAK_INT8 = 1 };

typedef struct {
    int32_t kind;
    int64_t rounds;
    _Atomic int64_t sink;        /* keeps the compiler from leaving the loops out */
} peak_job;

#if TM_AVX512
#define OPS_PER_ROUND(KIND) (CHAINS * ((KIND) == PEAK_BF16 ? 64 : 128))

static int64_t bf16_rounds(int64_t rounds) {
    __m512 a[CHAINS];
    const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_ps((float)i);
    for (int64_t n = 0; n < rounds; n++) {
        for (int i = 0; i < CHAINS; i++) a[i] = _mm512_dpbf16_ps(a[i], x, x);
        __asm__ volatile("" ::"v"(a[0])); /* one round after the other, as in a product */
    }
    for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    return (int64_t)_mm512_cvtss_f32(a[0]);
}

static int64_t int8_rounds(int64_t rounds) {
    __m512i a[CHAINS];
    const __m512i x = _mm512_set1_epi8(1);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_epi32(i);
    for (int64_t n = 0; n < rounds; n++) {
        for (int i = 0; i < CHAINS; i++) a[i] = _mm512_dpbusd_epi32(a[i], x, x);
        __asm__ volatile("" ::"v"(a[0]));
    }
    for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_epi32(a[0], a[i]);
    return _mm512_reduce_add_epi32(a[0]);
}
#else
#define OPS_PER_ROUND(KIND) (CHAINS * TILE * 2)

/* Without dot-product instructions both kinds of products run on multiply-adds of floats. */
static int64_t bf16_rounds(int64_t rounds) {
    float a[CHAINS][TILE];
    volatile float one = 1.0f;
    const float x = one;
    for (int i = 0; i < CHAINS; i++)
        for (int j = 0; j < TILE; j++) a[i][j] = (float)i;
    for (int64_t n = 0; n < rounds; n++)
        for (int i = 0; i < CHAINS; i++)
            for (int j = 0; j < TILE; j++) a[i][j] = a[i][j] * x + x;
    float sum = 0.0f;
    for (int i = 0; i < CHAINS; i++)
        for (int j = 0; j < TILE; j++) sum += a[i][j];
    return (int64_t)sum;
}

static int64_t int8_rounds(int64_t rounds) { return bf16_rounds(rounds); }
#endif

static void peak_chunk(void *arg, int64_t begin, int64_t end) {
    peak_job *j = arg;
    for (int64_t i = begin; i < end; i++) j->sink += j->kind == PEAK_BF16 ? bf16_rounds(j->rounds) : int8_rounds(j->rounds);
}

/* Operations done (a multiply and an add are two) by `chunks` pieces of `rounds` rounds. */
int64_t tm_peak(int32_t kind, int64_t chunks, int64_t rounds) {
    peak_job job = {.kind = kind, .rounds = rounds};
    tm_for(chunks, 1, peak_chunk, &job);
    return chunks * rounds * OPS_PER_ROUND(kind);
}

typedef struct {
    const char *buffer;
    _Atomic int64_t sink;
} read_job;

#define READ_BYTES 65536

static void read_chunk(void *arg, int64_t begin, int64_t end) {
    read_job *j = arg;
    int64_t sums[64] = {0};
    for (const char *p = j->buffer + begin * READ_BYTES; p < j->buffer + end * READ_BYTES; p += 512) {
        const int64_t *v = (const int64_t *)p;
        for (int i = 0; i < 64; i++) sums[i] += v[i];
    }
    for (int i = 0; i < 64; i++) j->sink += sums[i];
}

/* Reads a buffer from front to end; bytes read (whole pieces of 64 KiB). */
int64_t tm_read(const void *buffer, int64_t num_bytes) {
    read_job job = {.buffer = buffer};
    tm_for(num_bytes / READ_BYTES, 16, read_chunk, &job);
    return num_bytes / READ_BYTES * READ_BYTES;
}
