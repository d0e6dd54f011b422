/* out[M, N] = x[M, K] W[N, K]^T for packed weights.
 *
 * Packed: panels of 32 output columns (two tiles of 16), one after the other; inside a panel, group after group of 32
 * inputs, everything that a group needs side by side, so that a product reads its weights as one stream:
 *   bf16   [16 pairs][2 tiles][16][2]                 two inputs per lane (vdpbf16ps)
 *   int8   [8 quads][2 tiles][16][4]                  four inputs per lane, stored as unsigned q + 128 (vpdpbusd)
 *   4 bit  64 bytes of scales, then [4][2 tiles][16][4]: low nibbles inputs 8i..8i+3, high nibbles 8i+4..8i+7
 *     int4    scale: half [32];           w = scale * (q - 8)
 *     nvfp4   scale: e4m3 [2][32] for 16 inputs each;  w = scale * e2m1(q)
 *     mxfp4   scale: bf16 [32];           w = scale * e2m1(q)
 * All but bf16 and int4 have a float scale per column as well, applied at the end. K and N are multiples of 32 (padded
 * by the packer). Integer weights meet activations in int8 with a scale per row and group of 32 inputs: exact integers
 * within a scale, one float chain over the groups. What makes weights unsigned comes off as an integer, too
 * (tm_act.offsets). Every output element is one chain over K in one order: its bits depend on its row and column alone.
 */
#include "tm.h"

enum { W_BF16 = 0, W_INT8 = 1, W_INT4 = 2, W_FP32 = 3, W_NVFP4 = 4, W_MXFP4 = 5 }; /* W_FP32: row-major; v4_rows.c */
enum { EPI_STORE = 0, EPI_ADD = 1 };

#define PANEL 32
#define LINE 64
#define BF16_ROWS 12       /* rows of a register block: 12 x 2 accumulators and their operands fill 32 registers */
#define INT_ROWS 6         /* two accumulators each, integers and floats */
#define PANEL_L2 (512 * 1024)

typedef struct {
    int32_t format, epilogue;
    int64_t n, k, ldo;           /* padded columns, padded inputs, floats per output row */
    const void *weight;
    const float *scale;          /* [N] or NULL */
    const float *bias;           /* [N] or NULL */
} tm_weight;

typedef struct {
    int64_t m;
    const void *x;               /* bf16 [M, K] or int8 [M, K] */
    const float *x_scale;        /* [M, K/32]; unused by bf16 */
    const int32_t *x_offsets;    /* [M, K/32], nvfp4 [M, K/16] */
    float *out;
    int64_t n_valid;             /* columns to store */
    tm_weight w;
} gemm_job;

/* What a format is, for everything but the inner loops. */
static int64_t group_bytes(int format) {
    return format == W_BF16 ? 2048 : format == W_INT8 ? 1024 : 64 + 512;
}

static int weight_offset(int format) { return format == W_INT8 ? 128 : format == W_INT4 ? 8 : 12; }

static int offsets_per_group(int format) { return format == W_NVFP4 ? 2 : 1; }

/* Lines of the panel after this one that a pass over this one asks for: weights come from memory while rows are
 * computed, and each pass over a panel asks for its share. */
typedef struct {
    const char *at;
    int from, to;
    int64_t step;
} ahead;

static inline void ask(ahead *a) {
    for (int l = a->from; l < a->to; l++) __builtin_prefetch(a->at + l * LINE, 0, 2);
    a->at += a->step;
}

/* One row of a panel's sums to its place: column scale, bias, addition. */
#if TM_AVX512
INLINE void finish(const gemm_job *job, int64_t m, int64_t panel, __m512 lo, __m512 hi) {
    const tm_weight *w = &job->w;
    const int64_t first = panel * PANEL, left = job->n_valid - first;
    const uint32_t mask = left < PANEL ? (1u << left) - 1 : ~0u;
    float *out = job->out + m * w->ldo + first;
    if (w->scale) {
        lo = _mm512_mul_ps(lo, _mm512_loadu_ps(w->scale + first));
        hi = _mm512_mul_ps(hi, _mm512_loadu_ps(w->scale + first + TILE));
    }
    if (w->bias) {
        lo = _mm512_add_ps(lo, _mm512_loadu_ps(w->bias + first));
        hi = _mm512_add_ps(hi, _mm512_loadu_ps(w->bias + first + TILE));
    }
    if (w->epilogue == EPI_ADD) {
        lo = _mm512_add_ps(lo, _mm512_maskz_loadu_ps((__mmask16)mask, out));
        hi = _mm512_add_ps(hi, _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), out + TILE));
    }
    _mm512_mask_storeu_ps(out, (__mmask16)mask, lo);
    _mm512_mask_storeu_ps(out + TILE, (__mmask16)(mask >> 16), hi);
}
#else
static void finish(const gemm_job *job, int64_t m, int64_t panel, const float *acc) {
    const tm_weight *w = &job->w;
    const int64_t first = panel * PANEL, left = job->n_valid - first;
    const int width = left < PANEL ? (int)left : PANEL;
    float *out = job->out + m * w->ldo + first;
    for (int j = 0; j < width; j++) {
        float v = acc[j];
        if (w->scale) v *= w->scale[first + j];
        if (w->bias) v += w->bias[first + j];
        out[j] = w->epilogue == EPI_ADD ? out[j] + v : v;
    }
}
#endif

/* 2 x E2M1 + 12, the bytes that an E2M1 code stands for in the dot products */
static const uint8_t e2m1_bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#if TM_AVX512
INLINE __m512i set_pair(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

INLINE void bf16_block(const int R, const gemm_job *job, int64_t m, int64_t panel, const char *w, ahead next) {
    const int64_t k = job->w.k;
    const bf16 *x = (const bf16 *)job->x + m * k;
    __m512 a[BF16_ROWS][2];
    for (int r = 0; r < R; r++) a[r][0] = a[r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < k / GROUP; g++, w += 2048, x += GROUP) {
        ask(&next);
        for (int i = 0; i < GROUP / 2; i++) {
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(w + i * 128), b1 = (__m512bh)_mm512_loadu_si512(w + i * 128 + 64);
            for (int r = 0; r < R; r++) {
                const __m512bh v = (__m512bh)set_pair(x + r * k + 2 * i);
                a[r][0] = _mm512_dpbf16_ps(a[r][0], v, b0);
                a[r][1] = _mm512_dpbf16_ps(a[r][1], v, b1);
            }
        }
    }
    for (int r = 0; r < R; r++) finish(job, m + r, panel, a[r][0], a[r][1]);
}

INLINE void int8_block(const int R, const gemm_job *job, int64_t m, int64_t panel, const char *w, ahead next) {
    const int64_t k = job->w.k, groups = k / GROUP;
    const int8_t *x = (const int8_t *)job->x + m * k;
    const float *xs = job->x_scale + m * groups;
    const int32_t *offsets = job->x_offsets + m * groups;
    __m512 f[INT_ROWS][2];
    for (int r = 0; r < R; r++) f[r][0] = f[r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++, w += 1024, x += GROUP) {
        __m512i a[INT_ROWS][2];
        ask(&next);
        for (int r = 0; r < R; r++) a[r][0] = a[r][1] = _mm512_set1_epi32(offsets[r * groups + g]);
        for (int i = 0; i < GROUP / 4; i++) {
            const __m512i b0 = _mm512_loadu_si512(w + i * 128), b1 = _mm512_loadu_si512(w + i * 128 + 64);
            for (int r = 0; r < R; r++) {
                const __m512i v = set_pair(x + r * k + 4 * i);
                a[r][0] = _mm512_dpbusd_epi32(a[r][0], b0, v);
                a[r][1] = _mm512_dpbusd_epi32(a[r][1], b1, v);
            }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < 2; c++)
                f[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[r][c]), _mm512_set1_ps(xs[r * groups + g]), f[r][c]);
    }
    for (int r = 0; r < R; r++) finish(job, m + r, panel, f[r][0], f[r][1]);
}

/* Scales of 16 columns; `half` is the first or second half of a group's inputs (nvfp4). */
INLINE __m512 load_scale(const int F, const char *w, int half, int c) {
    if (F == W_INT4) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + c * 32)));
    if (F == W_MXFP4) return load_bf16((const bf16 *)(w + c * 32));
    /* e4m3 without its sign, moved into a half's place, is 2^-8 of its value: the column scale makes up for it */
    __m256i e = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(w + half * 32 + c * 16)));
    return _mm512_cvtph_ps(_mm256_slli_epi16(e, 7));
}

INLINE __m512i nibble_bytes(const int F, __m512i nibbles) {
    if (F == W_INT4) return nibbles;
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)e2m1_bytes)), nibbles);
}

INLINE void nibble_block(const int F, const int R, const gemm_job *job, int64_t m, int64_t panel, const char *w, ahead next) {
    const int64_t k = job->w.k, groups = k / GROUP;
    const int halves = F == W_NVFP4 ? 2 : 1, steps = GROUP / 8 / halves;
    const int8_t *x = (const int8_t *)job->x + m * k;
    const float *xs = job->x_scale + m * groups;
    const int32_t *offsets = job->x_offsets + m * groups * halves;
    const __m512i low = _mm512_set1_epi8(15);
    __m512 f[INT_ROWS][2];
    for (int r = 0; r < R; r++) f[r][0] = f[r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++, w += 576, x += GROUP) {
        ask(&next);
        for (int h = 0; h < halves; h++) {
            __m512i a[INT_ROWS][2];
            for (int r = 0; r < R; r++)
                a[r][0] = a[r][1] = _mm512_set1_epi32(offsets[(r * groups + g) * halves + h]);
            for (int s = 0; s < steps; s++) {
                const int i = h * steps + s;
                __m512i lo[2], hi[2];
                for (int c = 0; c < 2; c++) {
                    const __m512i b = _mm512_loadu_si512(w + 64 + i * 128 + c * 64);
                    lo[c] = nibble_bytes(F, _mm512_and_si512(b, low));
                    hi[c] = nibble_bytes(F, _mm512_and_si512(_mm512_srli_epi16(b, 4), low));
                }
                for (int r = 0; r < R; r++) {
                    const __m512i v0 = set_pair(x + r * k + 8 * i), v1 = set_pair(x + r * k + 8 * i + 4);
                    for (int c = 0; c < 2; c++) a[r][c] = _mm512_dpbusd_epi32(a[r][c], lo[c], v0);
                    for (int c = 0; c < 2; c++) a[r][c] = _mm512_dpbusd_epi32(a[r][c], hi[c], v1);
                }
            }
            for (int c = 0; c < 2; c++) {
                const __m512 scale = load_scale(F, w, h, c);
                for (int r = 0; r < R; r++) {
                    const __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(a[r][c]), scale);
                    f[r][c] = _mm512_fmadd_ps(v, _mm512_set1_ps(xs[r * groups + g]), f[r][c]);
                }
            }
        }
    }
    for (int r = 0; r < R; r++) finish(job, m + r, panel, f[r][0], f[r][1]);
}
#else
INLINE void bf16_block(const int R, const gemm_job *job, int64_t m, int64_t panel, const char *w, ahead next) {
    const int64_t k = job->w.k;
    const bf16 *x = (const bf16 *)job->x + m * k;
    (void)next;
    for (int r = 0; r < R; r++) {
        float a[PANEL] = {0};
        for (int64_t i = 0; i < k; i++) {
            const float v = bf16_to_f32(x[r * k + i]);
            const bf16 *b = (const bf16 *)w + i / 2 * 64 + i % 2;
            for (int j = 0; j < PANEL; j++) a[j] += v * bf16_to_f32(b[2 * j]);
        }
        finish(job, m + r, panel, a);
    }
}

INLINE void int8_block(const int R, const gemm_job *job, int64_t m, int64_t panel, const char *w, ahead next) {
    const int64_t k = job->w.k, groups = k / GROUP;
    const int8_t *x = (const int8_t *)job->x + m * k;
    const float *xs = job->x_scale + m * groups;
    const int32_t *offsets = job->x_offsets + m * groups;
    (void)next;
    for (int r = 0; r < R; r++) {
        float f[PANEL] = {0};
        for (int64_t g = 0; g < groups; g++) {
            int32_t a[PANEL];
            for (int j = 0; j < PANEL; j++) a[j] = offsets[r * groups + g];
            for (int i = 0; i < GROUP; i++) {
                const int32_t v = x[r * k + g * GROUP + i];
                const uint8_t *b = (const uint8_t *)w + g * 1024 + i / 4 * 128 + i % 4;
                for (int j = 0; j < PANEL; j++) a[j] += v * b[4 * j];
            }
            for (int j = 0; j < PANEL; j++) f[j] = fmaf((float)a[j], xs[r * groups + g], f[j]);
        }
        finish(job, m + r, panel, f);
    }
}

INLINE float scale_of(const int F, const char *w, int half, int j) {
    if (F == W_NVFP4) return half_to_f32((uint16_t)((uint8_t)w[half * 32 + j] << 7));
    uint16_t bits;
    memcpy(&bits, w + 2 * j, 2);
    return F == W_INT4 ? half_to_f32(bits) : bf16_to_f32(bits);
}

INLINE void nibble_block(const int F, const int R, const gemm_job *job, int64_t m, int64_t panel, const char *w, ahead next) {
    const int64_t k = job->w.k, groups = k / GROUP;
    const int halves = F == W_NVFP4 ? 2 : 1, width = GROUP / halves;
    const int8_t *x = (const int8_t *)job->x + m * k;
    const float *xs = job->x_scale + m * groups;
    const int32_t *offsets = job->x_offsets + m * groups * halves;
    (void)next;
    for (int r = 0; r < R; r++) {
        float f[PANEL] = {0};
        for (int64_t g = 0; g < groups; g++)
            for (int h = 0; h < halves; h++) {
                const char *group = w + g * 576;
                int32_t a[PANEL];
                for (int j = 0; j < PANEL; j++) a[j] = offsets[(r * groups + g) * halves + h];
                for (int i = h * width; i < (h + 1) * width; i++) {
                    const int32_t v = x[r * k + g * GROUP + i];
                    const uint8_t *b = (const uint8_t *)group + 64 + i / 8 * 128 + i % 4;
                    const int shift = i % 8 < 4 ? 0 : 4;
                    for (int j = 0; j < PANEL; j++) {
                        const int q = b[4 * j] >> shift & 15;
                        a[j] += v * (F == W_INT4 ? q : e2m1_bytes[q]);
                    }
                }
                for (int j = 0; j < PANEL; j++)
                    f[j] = fmaf((float)a[j] * scale_of(F, group, h, j), xs[r * groups + g], f[j]);
            }
        finish(job, m + r, panel, f);
    }
}
#endif

/* R rows from m on of one panel. */
INLINE void rows_of(const int R, const gemm_job *job, int64_t m, int64_t panel, ahead next) {
    const int format = job->w.format;
    const char *w = (const char *)job->w.weight + panel * (job->w.k / GROUP) * group_bytes(format);
    for (int r = 0; r < R; r++) { /* results are on their way to the cache while the sums are made */
        const float *out = job->out + (m + r) * job->w.ldo + panel * PANEL;
        __builtin_prefetch(out, 1);
        __builtin_prefetch(out + TILE, 1);
    }
    if (format == W_BF16) bf16_block(R, job, m, panel, w, next);
    else if (R <= INT_ROWS) {
        if (format == W_INT8) int8_block(R, job, m, panel, w, next);
        else if (format == W_INT4) nibble_block(W_INT4, R, job, m, panel, w, next);
        else if (format == W_NVFP4) nibble_block(W_NVFP4, R, job, m, panel, w, next);
        else nibble_block(W_MXFP4, R, job, m, panel, w, next);
    }
}

#define CASE(R) static void rows_##R(const gemm_job *job, int64_t m, int64_t panel, ahead next) { rows_of(R, job, m, panel, next); }
CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
static void (*const block_of_rows[])(const gemm_job *, int64_t, int64_t, ahead) = {
    NULL, rows_1, rows_2, rows_3, rows_4, rows_5, rows_6, rows_7, rows_8, rows_9, rows_10, rows_11, rows_12};

/* Rows [m, m_end) of panels [first, last): register blocks of nearly equal size. */
static void gemm_panels(const gemm_job *job, int64_t m, int64_t m_end, int64_t first, int64_t last) {
    const int64_t most = job->w.format == W_BF16 ? BF16_ROWS : INT_ROWS, rows = m_end - m;
    const int64_t passes = (rows + most - 1) / most, step = group_bytes(job->w.format), bytes = job->w.k / GROUP * step;
    const int lines = (int)(step / LINE);
    for (int64_t panel = first; panel < last; panel++) {
        const char *next = (const char *)job->w.weight + (panel + 1) * bytes;
        const int ask_all = (panel + 1) * PANEL < job->w.n;
        for (int64_t p = 0; p < passes; p++) {
            const int64_t begin = m + rows * p / passes, end = m + rows * (p + 1) / passes;
            ahead a = {next, (int)(lines * p / passes), ask_all ? (int)(lines * (p + 1) / passes) : 0, step};
            block_of_rows[end - begin](job, begin, panel, a);
        }
    }
}

/* Work items: blocks of rows that fit into the L2 cache, panel by panel; neighbours share rows. */
typedef struct {
    const gemm_job *job;
    int64_t rows_per_block;
} gemm_blocks;

static void gemm_chunk(void *arg, int64_t begin, int64_t end) {
    const gemm_blocks *b = arg;
    const int64_t panels = b->job->w.n / PANEL;
    while (begin < end) {
        const int64_t block = begin / panels, first = begin % panels;
        const int64_t last = first + end - begin < panels ? first + end - begin : panels;
        const int64_t m = block * b->rows_per_block, m_end = m + b->rows_per_block;
        gemm_panels(b->job, m, m_end < b->job->m ? m_end : b->job->m, first, last);
        begin += last - first;
    }
}

void tm_gemm(const tm_weight *w, int64_t m, const void *x, const float *x_scale, const int32_t *x_offsets, float *out,
             int64_t n_valid) {
    gemm_job job = {m, x, x_scale, x_offsets, out, n_valid, *w};
    const int64_t row_bytes = w->k * (w->format == W_BF16 ? 2 : 1);
    int64_t rows = PANEL_L2 / row_bytes / BF16_ROWS * BF16_ROWS;
    rows = rows < 4 * BF16_ROWS ? 4 * BF16_ROWS : rows;
    const int64_t blocks = (m + rows - 1) / rows;
    gemm_blocks all = {&job, blocks > 1 ? (m + blocks - 1) / blocks : m};
    tm_for(blocks * (w->n / PANEL), m < 4 ? 4 : 1, gemm_chunk, &all);
}
