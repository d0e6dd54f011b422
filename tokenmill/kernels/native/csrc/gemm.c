/* out[M, N] = x[M, K] W[N, K]^T for packed weights: bf16, int8 (one scale per column), int4 (groups of 32 inputs).
 *
 * Packed: tiles of 16 output columns; inside a tile the inputs that one instruction consumes lie together.
 *   bf16  [N/16][K/2][16][2]              two inputs per lane      (vdpbf16ps)
 *   int8  [N/16][K/4][16][4]              four inputs per lane, stored as unsigned q + 128   (vpdpbusd)
 *   int4  [N/16][K/8][16][4]              low nibbles inputs 8i..8i+3, high nibbles 8i+4..8i+7
 *         scale, minimum: half [N/16][K/32][16] each; w = scale * q + minimum, q in 0..15
 * K is a multiple of 32 and N of 32 (padded by the packer). int8 and int4 weights meet activations in int8 with a
 * scale per row and group of 32 inputs: exact integers within a group, one float chain over the groups. Every output
 * element is one chain over K in one order, so its bits depend on its row and column alone.
 */
#include "tm.h"

enum { W_BF16 = 0, W_INT8 = 1, W_INT4 = 2, W_FP32 = 3 }; /* W_FP32: row-major, not packed; see v4_rows.c */
enum { EPI_STORE = 0, EPI_ADD = 1 };

typedef struct {
    int32_t format, epilogue;
    int64_t n, k, ldo;           /* padded columns, padded inputs, floats per output row */
    const void *weight;
    const void *scale;           /* int8: float [N]; int4: half */
    const void *aux;             /* int4: half minima */
    const float *bias;           /* [N] or NULL */
} tm_weight;

typedef struct {
    int64_t m;
    const void *x;               /* bf16 [M, K] or int8 [M, K] */
    const float *x_scale;        /* int8, int4: [M, K/32] */
    const float *x_sums;         /* int8, int4: [M, K/32], scale x sum of the group's int8 values */
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

/* Within a group exact integers; over the groups one chain of f += scale_of_row_and_group * integer. */
#define INT8_BLOCK(R, C)                                                                                      \
    static void int8_##R##x##C(const int8_t *x, int64_t k, const uint8_t *const *w, const float *xs,           \
                               float acc[R][C][TILE]) {                                                       \
        const int64_t groups = k / GROUP;                                                                     \
        __m512 f[R][C];                                                                                       \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) f[r][c] = _mm512_setzero_ps();                                        \
        for (int64_t g = 0; g < groups; g++) {                                                                \
            __m512i a[R][C];                                                                                  \
            for (int r = 0; r < R; r++)                                                                       \
                for (int c = 0; c < C; c++) a[r][c] = _mm512_setzero_si512();                                 \
            for (int i = 0; i < GROUP / 4; i++) {                                                             \
                __m512i b[C];                                                                                 \
                for (int c = 0; c < C; c++) b[c] = _mm512_loadu_si512(w[c] + (g * (GROUP / 4) + i) * 64);     \
                for (int r = 0; r < R; r++) {                                                                 \
                    int32_t quad;                                                                             \
                    memcpy(&quad, x + r * k + g * GROUP + 4 * i, 4);                                          \
                    for (int c = 0; c < C; c++)                                                               \
                        a[r][c] = _mm512_dpbusd_epi32(a[r][c], b[c], _mm512_set1_epi32(quad));                \
                }                                                                                             \
            }                                                                                                 \
            for (int r = 0; r < R; r++)                                                                       \
                for (int c = 0; c < C; c++)                                                                   \
                    f[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[r][c]), _mm512_set1_ps(xs[r * groups + g]), \
                                              f[r][c]);                                                       \
        }                                                                                                     \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) _mm512_storeu_ps(acc[r][c], f[r][c]);                                 \
    }

#define INT4_BLOCK(R, C)                                                                                      \
    static void int4_##R##x##C(const int8_t *x, int64_t k, const uint8_t *const *w, const uint16_t *const *sc, \
                               const uint16_t *const *mn, const float *xs, const float *sums,                 \
                               float acc[R][C][TILE]) {                                                       \
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
                    __m512 s = _mm512_mul_ps(d, _mm512_set1_ps(xs[r * groups + g]));                          \
                    f[r][c] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(a[r][c]), f[r][c]);                       \
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

#define INT8_BLOCK(R, C)                                                                                      \
    static void int8_##R##x##C(const int8_t *x, int64_t k, const uint8_t *const *w, const float *xs,           \
                               float acc[R][C][TILE]) {                                                       \
        const int64_t groups = k / GROUP;                                                                     \
        for (int r = 0; r < R; r++)                                                                           \
            for (int c = 0; c < C; c++) {                                                                     \
                float f[TILE] = {0};                                                                          \
                for (int64_t g = 0; g < groups; g++) {                                                        \
                    int32_t a[TILE] = {0};                                                                    \
                    for (int i = 0; i < GROUP; i++) {                                                         \
                        int32_t v = x[r * k + g * GROUP + i];                                                 \
                        const uint8_t *b = w[c] + (g * (GROUP / 4) + i / 4) * 64 + i % 4;                     \
                        for (int j = 0; j < TILE; j++) a[j] += v * b[4 * j];                                  \
                    }                                                                                         \
                    for (int j = 0; j < TILE; j++) f[j] = fmaf((float)a[j], xs[r * groups + g], f[j]);        \
                }                                                                                             \
                memcpy(acc[r][c], f, sizeof f);                                                               \
            }                                                                                                 \
    }

#define INT4_BLOCK(R, C)                                                                                      \
    static void int4_##R##x##C(const int8_t *x, int64_t k, const uint8_t *const *w, const uint16_t *const *sc, \
                               const uint16_t *const *mn, const float *xs, const float *sums,                 \
                               float acc[R][C][TILE]) {                                                       \
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
                        float s = half_to_f32(sc[c][g * TILE + j]) * xs[r * groups + g];                      \
                        f[j] = fmaf(s, (float)a[j], f[j]);                                                    \
                        f[j] = fmaf(half_to_f32(mn[c][g * TILE + j]), sums[r * groups + g], f[j]);            \
                    }                                                                                         \
                }                                                                                             \
                memcpy(acc[r][c], f, sizeof f);                                                               \
            }                                                                                                 \
    }
#endif

/* Register blocks: few rows with many tiles (memory-bound), many rows with two tiles (compute-bound). */
#define BLOCKS_BF16(F) F(1, 4) F(1, 2) F(2, 4) F(2, 2) F(4, 4) F(4, 2) F(8, 2) F(12, 2)
#define BLOCKS_INT(F) F(1, 4) F(1, 2) F(2, 2) F(4, 2) F(6, 2)
BLOCKS_BF16(BF16_BLOCK)
BLOCKS_INT(INT8_BLOCK)
BLOCKS_INT(INT4_BLOCK)

static void finish(const gemm_job *job, int64_t m, int64_t tile, int num_tiles, const float (*acc)[TILE]) {
    for (int c = 0; c < num_tiles; c++) finish_tile(job, m, tile + c, acc[c]);
}

/* q + 128 was stored: 128 times the row's sum comes off, the same for every column. */
static void finish_int8(const gemm_job *job, int64_t m, int64_t tile, int num_tiles, float (*acc)[TILE]) {
    const float *scale = job->w.scale;
    const int64_t groups = job->w.k / GROUP;
    float sum = 0.0f;
    for (int64_t g = 0; g < groups; g++) sum += job->x_sums[m * groups + g];
    for (int c = 0; c < num_tiles; c++)
        for (int j = 0; j < TILE; j++) acc[c][j] = (acc[c][j] - 128.0f * sum) * scale[(tile + c) * TILE + j];
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
        const uint8_t *w[C];                                                                                  \
        float acc[R][C][TILE];                                                                                \
        for (int c = 0; c < C; c++) w[c] = (const uint8_t *)job->w.weight + (tile + c) * k * TILE;            \
        int8_##R##x##C((const int8_t *)job->x + m * k, k, w, job->x_scale + m * (k / GROUP), acc);            \
        for (int r = 0; r < R; r++) finish_int8(job, m + r, tile, C, acc[r]);                                 \
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
        int4_##R##x##C((const int8_t *)job->x + m * k, k, w, sc, mn, job->x_scale + m * groups,               \
                       job->x_sums + m * groups, acc);                                                        \
        for (int r = 0; r < R; r++) finish(job, m + r, tile, C, (const float(*)[TILE])acc[r]);                \
    }

/* Rows [m, m_end) of tiles [first, last), an even number, in register blocks of R rows and C tiles (the rest in 2). */
#define ROWS(RUN, R, C)                                                                                       \
    for (; m + R <= m_end; m += R) {                                                                          \
        int64_t tile = first;                                                                                 \
        for (; tile + C <= last; tile += C) RUN(R, C)                                                         \
        for (; tile < last; tile += 2) RUN(R, 2)                                                              \
    }

static void gemm_tiles(const gemm_job *job, int64_t m, int64_t m_end, int64_t first, int64_t last) {
    const int64_t k = job->w.k;
    if (job->w.format == W_BF16) {
        ROWS(RUN_BF16, 12, 2)
        ROWS(RUN_BF16, 8, 2)
        ROWS(RUN_BF16, 4, 4)
        ROWS(RUN_BF16, 2, 4)
        ROWS(RUN_BF16, 1, 4)
    } else if (job->w.format == W_INT8) {
        ROWS(RUN_INT8, 6, 2)
        ROWS(RUN_INT8, 4, 2)
        ROWS(RUN_INT8, 2, 2)
        ROWS(RUN_INT8, 1, 4)
    } else {
        ROWS(RUN_INT4, 6, 2)
        ROWS(RUN_INT4, 4, 2)
        ROWS(RUN_INT4, 2, 2)
        ROWS(RUN_INT4, 1, 4)
    }
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
