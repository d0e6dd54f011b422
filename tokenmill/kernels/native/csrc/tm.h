/* Shared declarations of the CPU kernels: threads, number formats, the step's view.
 *
 * Every kernel computes a row from that row's inputs alone and in one fixed order, whatever the number of rows and
 * threads: results are batch-invariant bit for bit. Plain C beside every intrinsic path; the compiler's target
 * decides which one is built (see build.py).
 */
#ifndef TM_H
#define TM_H

#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define TM_AVX512 1
#include <immintrin.h>
#else
#define TM_AVX512 0
#endif

#define TILE 16            /* output columns per packed weight tile, tokens per KV tile row */
#define KV_TILE 64         /* tokens per softmax update; aligned to position 0 */
#define GROUP 32           /* inputs per activation scale */
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

static inline float bf16_to_f32(bf16 x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline bf16 f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return (bf16)((u >> 16) | 0x40);
    return (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline float half_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 1023, u;
    float f;
    if (exp == 0) {
        f = ldexpf((float)man, -24);
        return sign ? -f : f;
    }
    u = sign | ((exp == 31 ? 255u : exp + 112u) << 23) | (man << 13);
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; what is too large for a half becomes infinite. */
static inline uint16_t f32_to_half(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    const float a = fabsf(f);
    if (a < 0x1p-14f) return (uint16_t)(sign | (int)rintf(a * 0x1p24f)); /* steps of 2^-24, up to the first normal */
    if (!(a < 65520.0f)) return (uint16_t)(sign | (a == a ? 0x7c00 : 0x7e00));
    u = (u & 0x7fffffff) + 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

/* ---- rows of a paged cache ---- */

enum { KV_BF16 = 0, KV_INT8 = 1 };

/* Bytes of the keys, or of the values, of 16 tokens and one kv head (layouts in rows.c). */
static inline int64_t kv_group_bytes(int64_t format, int64_t d) {
    return format == KV_BF16 ? d * TILE * 2 : d * TILE + TILE * (int64_t)sizeof(float);
}

/* ---- threads: one pool per process, work handed out in chunks of an index range ---- */

typedef void (*tm_body)(void *arg, int64_t begin, int64_t end);

/* Run body over [0, n) in chunks of `grain`, on all threads of the pool; returns when all is done. */
void tm_for(int64_t n, int64_t grain, tm_body body, void *arg);
int tm_num_threads(void);

#endif
