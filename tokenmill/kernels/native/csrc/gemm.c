/* out[M, N] = x[M, K] W[N, K]^T for packed weights: bf16, int8 (per output column), int4 (groups of 32 inputs).
 *
 * Packed: tiles of 16 output columns; inside a tile the inputs that one instruction consumes lie together.
 *   bf16  [N/16][K/2][16][2]              two inputs per lane      (vdpbf16ps)
 *   int8  [N/16][K/4][16][4]              four inputs per lane     (vpdpbusd, activations as unsigned + 128)
 *   int4  [N/16][K/8][16][4]              low nibbles inputs 8i..8i+3, high nibbles 8i+4..8i+7
 *         scale, minimum: half [N/16][K/32][16] each; w = scale * q + minimum, q in 0..15
 * K is a multiple of 32 and N of 16 (padded by the packer). Every output element is one chain over K, so its bits
 * depend on its row and column alone.
 */
#include "tm.h"

enum { W_BF16 = 0, W_INT8 = 1, W_INT4 = 2 };
enum { EPI_STORE = 0, EPI_ADD = 1 };

typedef struct {
    int32_t format, epilogue;
    int64_t n, k, ldo;           /* padded columns, padded inputs, floats per output row */
    const void *weight;
    const void *scale;           /* int8: float [N]; int4: half */
    const void *aux;             /* int8: int32 [N] sums of the column's weights; int4: half minima */
    const float *bias;           /* [N] or NULL */
} tm_weight;

typedef struct {
    int64_t m;
    const void *x;               /* bf16 [M, K] or int8 [M, K] */
    const float *x_scale;        /* int8/int4: [M] */
    const float *x_sums;         /* int4: [M, K/32], sum of the group's int8 values */
    float *out;
    int64_t n_valid;             /* columns to store */
    tm_weight w;
    int64_t m_blocks;
} gemm_job;

static inline void finish_tile(const gemm_job *job, int64_t m, int64_t tile, const float *acc) {
    const tm_weight *w = &job->w;
    float *out = job->out + m * w->ldo + tile * TILE;
    const float *bias = w->bias ? w->bias + tile * TILE : NULL;
    int64_t left = job->n_valid - tile * TILE;
    int width = left < TILE ? (int)left : TILE;
    for (int j = 0; j < width; j++) {
        float v = acc[j] + (bias ? bias[j] : 0.0f);
        out[j] = w->epilogue == EPI_ADD ? out[j] + v : v;
    }
}

#if TM_AVX512

/* ---- bf16: R rows x C tiles of accumulators over all of K ---- */
#define BF16_BLOCK(R, C)                                                                                      \
    static void bf16_##R##x##C(const bf16 *x, int64_t k, const bf16 *const *w, float acc[R][C][TILE]) {        \
        __m512 a[R][C];                                                                                       \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) a[r][c] = _mm512_setzero_ps();                                        \
        for (int64_t i = 0; i < k / 2; i++) {                                                                 \
            __m512i b[C];                                                                                     \
            for (int c = 0; c < C; c++) b[c] = _mm512_loadu_si512(w[c] + i * 32);                             \
            for (int r = 0; r < R; r++) {                                                                     \
                int32_t pair;                                                                                 \
                memcpy(&pair, x + r * k + 2 * i, 4);                                                          \
                __m512bh v = (__m512bh)_mm512_set1_epi32(pair);                                               \
                for (int c = 0; c < C; c++) a[r][c] = _mm512_dpbf16_ps(a[r][c], v, (__m512bh)b[c]);           \
            }                                                                                                 \
        }                                                                                                     \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) _mm512_storeu_ps(acc[r][c], a[r][c]);                                 \
    }

#define INT8_BLOCK(R, C)                                                                                      \
    static void int8_##R##x##C(const int8_t *x, int64_t k, const int8_t *const *w, int32_t acc[R][C][TILE]) {  \
        const __m512i flip = _mm512_set1_epi8((char)0x80);                                                    \
        __m512i a[R][C];                                                                                      \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) a[r][c] = _mm512_setzero_si512();                                     \
        for (int64_t i = 0; i < k / 4; i++) {                                                                 \
            __m512i b[C];                                                                                     \
            for (int c = 0; c < C; c++) b[c] = _mm512_loadu_si512(w[c] + i * 64);                             \
            for (int r = 0; r < R; r++) {                                                                     \
                int32_t quad;                                                                                 \
                memcpy(&quad, x + r * k + 4 * i, 4);                                                          \
                __m512i v = _mm512_xor_si512(_mm512_set1_epi32(quad), flip);                                  \
                for (int c = 0; c < C; c++) a[r][c] = _mm512_dpbusd_epi32(a[r][c], v, b[c]);                  \
            }                                                                                                 \
        }                                                                                                     \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) _mm512_storeu_si512(acc[r][c], a[r][c]);                              \
    }

/* int4: one float chain over the groups, in order; within a group exact integers. */
#define INT4_BLOCK(R, C)                                                                                      \
    static void int4_##R##x##C(const int8_t *x, int64_t k, const uint8_t *const *w, const uint16_t *const *sc, \
                               const uint16_t *const *mn, const float *sums, float acc[R][C][TILE]) {          \
        const __m512i low = _mm512_set1_epi8(15);                                                             \
        const int64_t groups = k / GROUP;                                                                     \
        __m512 f[R][C];                                                                                       \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) f[r][c] = _mm512_setzero_ps();                                        \
        for (int64_t g = 0; g < groups; g++) {                                                                \
            __m512i a[R][C];                                                                                  \
            for (int r = 0; r < R; r++)                                                                       \
                for (int c = 0; c < C; c++) a[r][c] = _mm512_setzero_si512();                                 \
            for (int i = 0; i < GROUP / 8; i++) {                                                             \
                __m512i lo[C], hi[C];                                                                         \
                for (int c = 0; c < C; c++) {                                                                 \
                    __m512i b = _mm512_loadu_si512(w[c] + (g * (GROUP / 8) + i) * 64);                        \
                    lo[c] = _mm512_and_si512(b, low);                                                         \
                    hi[c] = _mm512_and_si512(_mm512_srli_epi16(b, 4), low);                                   \
                }                                                                                             \
                for (int r = 0; r < R; r++) {                                                                 \
                    int32_t q0, q1;                                                                           \
                    memcpy(&q0, x + r * k + g * GROUP + 8 * i, 4);                                            \
                    memcpy(&q1, x + r * k + g * GROUP + 8 * i + 4, 4);                                        \
                    for (int c = 0; c < C; c++) {                                                             \
                        a[r][c] = _mm512_dpbusd_epi32(a[r][c], lo[c], _mm512_set1_epi32(q0));                 \
                        a[r][c] = _mm512_dpbusd_epi32(a[r][c], hi[c], _mm512_set1_epi32(q1));                 \
                    }                                                                                         \
                }                                                                                             \
            }                                                                                                 \
            for (int c = 0; c < C; c++) {                                                                     \
                __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(sc[c] + g * TILE)));          \
                __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(mn[c] + g * TILE)));          \
                for (int r = 0; r < R; r++) {                                                                 \
                    f[r][c] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(a[r][c]), f[r][c]);                       \
                    f[r][c] = _mm512_fmadd_ps(m, _mm512_set1_ps(sums[r * groups + g]), f[r][c]);              \
                }                                                                                             \
            }                                                                                                 \
        }                                                                                                     \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) _mm512_storeu_ps(acc[r][c], f[r][c]);                                 \
    }
#else
#define BF16_BLOCK(R, C)                                                                                      \
    static void bf16_##R##x##C(const bf16 *x, int64_t k, const bf16 *const *w, float acc[R][C][TILE]) {        \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) {                                                                     \
                float a[TILE] = {0};                                                                          \
                for (int64_t i = 0; i < k; i++) {                                                             \
                    float v = bf16_to_f32(x[r * k + i]);                                                      \
                    const bf16 *b = w[c] + i / 2 * 32 + i % 2;                                                \
                    for (int j = 0; j < TILE; j++) a[j] += v * bf16_to_f32(b[2 * j]);                         \
                }                                                                                             \
                memcpy(acc[r][c], a, sizeof a);                                                               \
            }                                                                                                 \
    }

/* As on the vector path: activations shifted by 128, so that sums of weights correct both alike. */
#define INT8_BLOCK(R, C)                                                                                      \
    static void int8_##R##x##C(const int8_t *x, int64_t k, const int8_t *const *w, int32_t acc[R][C][TILE]) {  \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) {                                                                     \
                int32_t a[TILE] = {0};                                                                        \
                for (int64_t i = 0; i < k; i++) {                                                             \
                    int32_t v = (int32_t)x[r * k + i] + 128;                                                  \
                    const int8_t *b = w[c] + i / 4 * 64 + i % 4;                                              \
                    for (int j = 0; j < TILE; j++) a[j] += v * b[4 * j];                                      \
                }                                                                                             \
                memcpy(acc[r][c], a, sizeof a);                                                               \
            }                                                                                                 \
    }

#define INT4_BLOCK(R, C)                                                                                      \
    static void int4_##R##x##C(const int8_t *x, int64_t k, const uint8_t *const *w, const uint16_t *const *sc, \
                               const uint16_t *const *mn, const float *sums, float acc[R][C][TILE]) {          \
        const int64_t groups = k / GROUP;                                                                     \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) {                                                                     \
                float f[TILE] = {0};                                                                          \
                for (int64_t g = 0; g < groups; g++) {                                                        \
                    int32_t a[TILE] = {0};                                                                    \
                    for (int i = 0; i < GROUP; i++) {                                                         \
                        int32_t v = x[r * k + g * GROUP + i];                                                 \
                        const uint8_t *b = w[c] + (g * (GROUP / 8) + i / 8) * 64 + i % 4;                     \
                        int shift = i % 8 < 4 ? 0 : 4;                                                        \
                        for (int j = 0; j < TILE; j++) a[j] += v * ((b[4 * j] >> shift) & 15);                \
                    }                                                                                         \
                    for (int j = 0; j < TILE; j++) {                                                          \
                        f[j] = fmaf(half_to_f32(sc[c][g * TILE + j]), (float)a[j], f[j]);                     \
                        f[j] = fmaf(half_to_f32(mn[c][g * TILE + j]), sums[r * groups + g], f[j]);            \
                    }                                                                                         \
                }                                                                                             \
                memcpy(acc[r][c], f, sizeof f);                                                               \
            }                                                                                                 \
    }
#endif

/* Register blocks: few rows with many tiles (memory-bound), many rows with two tiles (compute-bound). */
#define BLOCKS(F) F(1, 4) F(1, 2) F(2, 4) F(2, 2) F(4, 4) F(4, 2) F(8, 2) F(12, 2)
BLOCKS(BF16_BLOCK)
BLOCKS(INT8_BLOCK)
#define BLOCKS_INT4(F) F(1, 4) F(1, 2) F(2, 2) F(4, 2)
BLOCKS_INT4(INT4_BLOCK)

static void finish(const gemm_job *job, int64_t m, int64_t tile, int num_tiles, const float (*acc)[TILE]) {
    for (int c = 0; c < num_tiles; c++) finish_tile(job, m, tile + c, acc[c]);
}

static void finish_int8(const gemm_job *job, int64_t m, int64_t tile, int num_tiles, const int32_t (*acc)[TILE]) {
    const float *scale = job->w.scale;
    const int32_t *sums = job->w.aux;
    float f[4][TILE];
    for (int c = 0; c < num_tiles; c++)
        for (int j = 0; j < TILE; j++) {
            int64_t n = (tile + c) * TILE + j;
            f[c][j] = (float)(acc[c][j] - 128 * sums[n]) * (job->x_scale[m] * scale[n]);
        }
    finish(job, m, tile, num_tiles, (const float(*)[TILE])f);
}

static void finish_int4(const gemm_job *job, int64_t m, int64_t tile, int num_tiles, float (*acc)[TILE]) {
    for (int c = 0; c < num_tiles; c++)
        for (int j = 0; j < TILE; j++) acc[c][j] *= job->x_scale[m];
    finish(job, m, tile, num_tiles, (const float(*)[TILE])acc);
}

#define RUN_BF16(R, C)                                                                                        \
    {                                                                                                         \
        const bf16 *w[C];                                                                                     \
        float acc[R][C][TILE];                                                                                \
        for (int c = 0; c < C; c++) w[c] = (const bf16 *)job->w.weight + (tile + c) * k * TILE;               \
        bf16_##R##x##C((const bf16 *)job->x + m * k, k, w, acc);                                              \
        for (int r = 0; r < R; r++) finish(job, m + r, tile, C, (const float(*)[TILE])acc[r]);                \
    }
#define RUN_INT8(R, C)                                                                                        \
    {                                                                                                         \
        const int8_t *w[C];                                                                                   \
        int32_t acc[R][C][TILE];                                                                              \
        for (int c = 0; c < C; c++) w[c] = (const int8_t *)job->w.weight + (tile + c) * k * TILE;             \
        int8_##R##x##C((const int8_t *)job->x + m * k, k, w, acc);                                            \
        for (int r = 0; r < R; r++) finish_int8(job, m + r, tile, C, (const int32_t(*)[TILE])acc[r]);         \
    }
#define RUN_INT4(R, C)                                                                                        \
    {                                                                                                         \
        const int64_t groups = k / GROUP;                                                                     \
        const uint8_t *w[C];                                                                                  \
        const uint16_t *sc[C], *mn[C];                                                                        \
        float acc[R][C][TILE];                                                                                \
        for (int c = 0; c < C; c++) {                                                                         \
            w[c] = (const uint8_t *)job->w.weight + (tile + c) * k * TILE / 2;                                \
            sc[c] = (const uint16_t *)job->w.scale + (tile + c) * groups * TILE;                              \
            mn[c] = (const uint16_t *)job->w.aux + (tile + c) * groups * TILE;                                \
        }                                                                                                     \
        int4_##R##x##C((const int8_t *)job->x + m * k, k, w, sc, mn, job->x_sums + m * groups, acc);          \
        for (int r = 0; r < R; r++) finish_int4(job, m + r, tile, C, acc[r]);                                 \
    }

/* Rows [m, m_end) of `tiles` tiles from `tile`; tiles is even. */
#define ROWS(RUN, R, C)                                                                                       \
    for (; m + R <= m_end; m += R)                                                                            \
        for (int64_t tile = first; tile < last; tile += C) RUN(R, C)

static void gemm_tiles(const gemm_job *job, int64_t m, int64_t m_end, int64_t first, int64_t last) {
    const int64_t k = job->w.k;
    if (job->w.format == W_INT4) {
        ROWS(RUN_INT4, 4, 2)
        ROWS(RUN_INT4, 2, 2)
        for (; m < m_end; m++) {
            int64_t tile = first;
            for (; tile + 4 <= last; tile += 4) RUN_INT4(1, 4)
            for (; tile < last; tile += 2) RUN_INT4(1, 2)
        }
        return;
    }
#define SMALL(RUN)                                                                                            \
    ROWS(RUN, 12, 2)                                                                                          \
    ROWS(RUN, 8, 2)                                                                                           \
    for (; m + 4 <= m_end; m += 4) {                                                                          \
        int64_t tile = first;                                                                                 \
        for (; tile + 4 <= last; tile += 4) RUN(4, 4)                                                         \
        for (; tile < last; tile += 2) RUN(4, 2)                                                              \
    }                                                                                                         \
    for (; m + 2 <= m_end; m += 2) {                                                                          \
        int64_t tile = first;                                                                                 \
        for (; tile + 4 <= last; tile += 4) RUN(2, 4)                                                         \
        for (; tile < last; tile += 2) RUN(2, 2)                                                              \
    }                                                                                                         \
    for (; m < m_end; m++) {                                                                                  \
        int64_t tile = first;                                                                                 \
        for (; tile + 4 <= last; tile += 4) RUN(1, 4)                                                         \
        for (; tile < last; tile += 2) RUN(1, 2)                                                              \
    }
    if (job->w.format == W_INT8) { SMALL(RUN_INT8) }
    else { SMALL(RUN_BF16) }
}

#define TILES_PER_CHUNK 4
#define ROWS_PER_CHUNK 96

static void gemm_chunk(void *arg, int64_t begin, int64_t end) {
    const gemm_job *job = arg;
    const int64_t tiles = job->w.n / TILE;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        /* Neighbouring chunks share weights when there are many rows. */
        int64_t block = chunk % job->m_blocks, first = chunk / job->m_blocks * TILES_PER_CHUNK;
        int64_t last = first + TILES_PER_CHUNK < tiles ? first + TILES_PER_CHUNK : tiles;
        int64_t m = block * ROWS_PER_CHUNK, m_end = m + ROWS_PER_CHUNK < job->m ? m + ROWS_PER_CHUNK : job->m;
        gemm_tiles(job, m, m_end, first, last);
    }
}

void tm_gemm(const tm_weight *w, int64_t m, const void *x, const float *x_scale, const float *x_sums, float *out,
             int64_t n_valid) {
    gemm_job job = {m, x, x_scale, x_sums, out, n_valid, *w, (m + ROWS_PER_CHUNK - 1) / ROWS_PER_CHUNK};
    int64_t chunks = (w->n / TILE + TILES_PER_CHUNK - 1) / TILES_PER_CHUNK * job.m_blocks;
    int64_t grain = m == 1 && chunks > 16 ? 2 : 1;
    tm_for(chunks, grain, gemm_chunk, &job);
}
