/* The indexer of CSA layers: scores of visible entries, and the choice of the best, ties to the lowest entry. */
#include "v4.h"
#include <stdlib.h>

typedef struct {
    const v4_model *m;
    const v4_layer *l;
    const v4_step *s;
} index_job;

/* Queries as the stored keys want them: turned; rotated and rounded like the keys when those have few bits. */
static void index_queries(void *arg, int64_t begin, int64_t end) {
    const index_job *j = arg;
    const v4_model *m = j->m;
    const int64_t dim = m->index_dim, half = m->rope_dim / 2, rows = j->s->num_tokens;
    uint8_t stored[m->index.row_bytes];
    for (int64_t t = begin; t < end; t++) {
        const float *c = m->cos + (rows + t) * half, *s = m->sin + (rows + t) * half;
        for (int64_t h = 0; h < m->index_heads; h++) {
            float *q = m->iq + (t * m->index_heads + h) * dim;
            turn(q, dim, m->rope_dim, c, s, 1.0f);
            if (m->index.dtype < ROW_FP8) continue;
            hadamard_row(q, dim);
            encode_row(&m->index, q, stored, 0);
            decode_row(&m->index, stored, 0, q);
        }
        float scale = 1.0f / sqrtf((float)dim * (float)m->index_heads);
        for (int64_t h = 0; h < m->index_heads; h++) m->iw[t * m->index_heads + h] *= scale;
    }
}

/* scores[0 .. KEYS) += sum over heads of weight * relu(q . key), for N heads at a time. */
static inline __attribute__((always_inline)) void score_heads(const float *q, const float *w, const int N, int64_t dim,
                                                              const float *kt, f16v out[4]) {
    f16v a[4][4];
    for (int h = 0; h < N; h++)
        for (int c = 0; c < 4; c++) a[h][c] = (f16v){0};
    for (int64_t i = 0; i < dim; i++) {
        f16v k[4];
        for (int c = 0; c < 4; c++) k[c] = ld16(kt + i * KEYS + c * LANES);
        for (int h = 0; h < N; h++)
            for (int c = 0; c < 4; c++) a[h][c] += k[c] * q[h * dim + i];
    }
    const f16v zero = {0};
    for (int h = 0; h < N; h++)
        for (int c = 0; c < 4; c++) out[c] += max16(a[h][c], zero) * w[h];
}

static void score_tile(const v4_model *m, int64_t t, const float *kt, float *scores) {
    const float *q = m->iq + t * m->index_heads * m->index_dim, *w = m->iw + t * m->index_heads;
    f16v out[4] = {{0}, {0}, {0}, {0}};
    int64_t h = 0;
    for (; h + 4 <= m->index_heads; h += 4) score_heads(q + h * m->index_dim, w + h, 4, m->index_dim, kt, out);
    for (; h < m->index_heads; h++) score_heads(q + h * m->index_dim, w + h, 1, m->index_dim, kt, out);
    for (int c = 0; c < 4; c++) st16(scores + c * LANES, out[c]);
}

#if TM_AVX512
/* ---- keys of few bits: bf16 products on tiles of 64 keys, [D/2][64][2] ----
 * Queries were rounded like the keys (fp8, fp4: exact in bf16) or are rounded here (bf16 keys). Even D, groups of 32.
 */

/* 32 E2M1 codes and their scale 2^(e - 127) -> 32 bf16, one table look-up for two of them: the scale is added to the
 * exponents of the table. */
static inline __m512i fp4_group(const uint8_t *codes, uint8_t e) {
    static const uint16_t values[32] = {0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                        0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
    const __mmask32 not_zero = 0xfefe;
    __m512i table = _mm512_loadu_si512(values);
    table = _mm512_mask_add_epi16(table, not_zero, table, _mm512_set1_epi16((short)((e - 127) * 128)));
    const __m512i d = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    const __m512i low = _mm512_and_si512(d, _mm512_set1_epi32(15));
    const __m512i high = _mm512_slli_epi32(_mm512_srli_epi32(d, 4), 16);
    return _mm512_permutexvar_epi16(_mm512_or_si512(low, high), table);
}

static void key_as_bf16(const v4_layout *l, const void *cache, int64_t slot, bf16 *y) {
    const uint8_t *in = (const uint8_t *)cache + slot * l->row_bytes;
    if (l->dtype == ROW_BF16) {
        memcpy(y, in, l->width * sizeof(bf16));
        return;
    }
    if (l->dtype == ROW_FP4 && l->group == GROUP && l->width % GROUP == 0 && !l->num_plain && l->bytes_per_scale == 1) {
        for (int64_t g = 0; g < l->width / GROUP; g++)
            _mm512_storeu_si512(y + g * GROUP, fp4_group(in + g * GROUP / 2, in[l->width / 2 + g]));
        return;
    }
    float row[l->width];
    decode_row(l, cache, slot, row);
    to_bf16_row(row, l->width, l->width, y);
}

/* 16 x 16 words: rows `ld` apart become columns. */
static void transpose16(const uint32_t *in, int64_t ld, uint32_t *out, int64_t ldo) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(in + i * ld);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) { /* r[i]: column i, i + 4, .. of rows 0-3; r[i + 4] of rows 4-7, and so on */
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(out + i * ldo, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_si512(out + (i + 8) * ldo, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_si512(out + (i + 4) * ldo, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_si512(out + (i + 12) * ldo, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

INLINE void score_heads_bf16(const bf16 *q, const float *w, const int N, int64_t dim, const uint32_t *kt, __m512 out[4]) {
    __m512 a[4][4];
    for (int h = 0; h < N; h++)
        for (int c = 0; c < 4; c++) a[h][c] = _mm512_setzero_ps();
    for (int64_t i = 0; i < dim / 2; i++) {
        __m512bh k[4];
        for (int c = 0; c < 4; c++) k[c] = (__m512bh)_mm512_loadu_si512(kt + i * KEYS + c * LANES);
        for (int h = 0; h < N; h++) {
            const __m512bh v = (__m512bh)pair_of(q + h * dim + 2 * i);
            for (int c = 0; c < 4; c++) a[h][c] = _mm512_dpbf16_ps(a[h][c], v, k[c]);
        }
    }
    for (int h = 0; h < N; h++)
        for (int c = 0; c < 4; c++)
            out[c] = _mm512_fmadd_ps(_mm512_max_ps(a[h][c], _mm512_setzero_ps()), _mm512_set1_ps(w[h]), out[c]);
}

static void score_tile_bf16(const v4_model *m, const bf16 *q, const float *w, const uint32_t *kt, float *scores) {
    __m512 out[4];
    for (int c = 0; c < 4; c++) out[c] = _mm512_setzero_ps();
    int64_t h = 0;
    for (; h + 4 <= m->index_heads; h += 4) score_heads_bf16(q + h * m->index_dim, w + h, 4, m->index_dim, kt, out);
    for (; h < m->index_heads; h++) score_heads_bf16(q + h * m->index_dim, w + h, 1, m->index_dim, kt, out);
    for (int c = 0; c < 4; c++) _mm512_storeu_ps(scores + c * LANES, out[c]);
}

static int has_bf16_products(const v4_model *m) { return m->index.dtype != ROW_FP32 && m->index_dim % 32 == 0; }
#endif

/* k-th largest of n values (1-based); `v` is reordered. */
static float kth_largest(float *v, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        float pivot = v[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i <= j) {
                float swap = v[i];
                v[i++] = v[j];
                v[j--] = swap;
            }
        }
        if (k - 1 <= j) high = j;
        else if (k - 1 >= i) low = i;
        else break;
    }
    return v[k - 1];
}

/* Order of floats as order of integers. */
static inline uint32_t ordered(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

#define BIN_BITS 12

/* The k-th largest of n scores: a histogram finds the bin, the bin is then searched. `scratch` holds n floats. */
static float threshold_of(const float *scores, int64_t n, int64_t k, float *scratch) {
    int32_t count[1 << BIN_BITS] = {0};
    for (int64_t i = 0; i < n; i++) count[ordered(scores[i]) >> (32 - BIN_BITS)]++;
    int64_t bin = (1 << BIN_BITS) - 1;
    for (; count[bin] < k; bin--) k -= count[bin];
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        scratch[found] = scores[i];
        found += ordered(scores[i]) >> (32 - BIN_BITS) == (uint32_t)bin;
    }
    return kth_largest(scratch, found, k);
}

static void choose_row(const v4_model *m, int64_t t, int64_t visible, const float *scores, float *scratch) {
    int64_t *chosen = m->chosen + t * m->topk, n = 0;
    if (visible <= m->topk) {
        for (; n < visible; n++) chosen[n] = n;
    } else {
        const float threshold = threshold_of(scores, visible, m->topk, scratch);
        int64_t room = m->topk;
        for (int64_t i = 0; i < visible; i++) room -= scores[i] > threshold;
        for (int64_t i = 0; i < visible; i++) {
            if (scores[i] > threshold || (scores[i] == threshold && room-- > 0)) chosen[n++] = i;
        }
    }
    m->num_chosen[t] = n;
}

/* Keys from .. to (from at a tile's begin) of a unit's sequence against all its rows; scores [rows, padded]. */
#if TM_AVX512
static void score_keys_bf16(const index_job *j, const int64_t *unit, int64_t from, int64_t to, float *scores, int64_t padded) {
    const v4_model *m = j->m;
    const int64_t first = unit[0], rows = unit[1], b = unit[2], dim = m->index_dim, width = m->index_heads * dim;
    bf16 keys[KEYS * dim], q[rows * width];
    uint32_t kt[dim / 2 * KEYS];
    for (int64_t r = 0; r < rows; r++) to_bf16_row(m->iq + (first + r) * width, width, width, q + r * width);
    for (int64_t at = from; at < to; at += KEYS) {
        for (int64_t k = 0; k < KEYS; k++) {
            if (at + k < to) key_as_bf16(&m->index, j->l->keys, slot_of(&j->s->indexer, b, at + k, j->s->block_size / 4), keys + k * dim);
            else memset(keys + k * dim, 0, dim * sizeof(bf16));
        }
        for (int64_t k = 0; k < KEYS; k += 16)
            for (int64_t i = 0; i < dim / 2; i += 16)
                transpose16((const uint32_t *)(keys + k * dim) + i, dim / 2, kt + i * KEYS + k, KEYS);
        for (int64_t r = 0; r < rows; r++)
            score_tile_bf16(m, q + r * width, m->iw + (first + r) * m->index_heads, kt, scores + r * padded + at);
    }
}
#endif

static void score_keys(const index_job *j, const int64_t *unit, int64_t from, int64_t to, float *scores, int64_t padded) {
    const v4_model *m = j->m;
    const int64_t first = unit[0], rows = unit[1], b = unit[2], dim = m->index_dim;
#if TM_AVX512
    if (has_bf16_products(m)) {
        score_keys_bf16(j, unit, from, to, scores, padded);
        return;
    }
#endif
    float row[dim], kt[dim * KEYS];
    for (int64_t at = from; at < to; at += KEYS) {
        for (int64_t k = 0; k < KEYS; k++) {
            if (at + k < to) decode_row(&m->index, j->l->keys, slot_of(&j->s->indexer, b, at + k, j->s->block_size / 4), row);
            else memset(row, 0, sizeof row);
            for (int64_t i = 0; i < dim; i++) kt[i * KEYS + k] = row[i];
        }
        for (int64_t r = 0; r < rows; r++) score_tile(m, first + r, kt, scores + r * padded + at);
    }
}

/* Entries that the last row of a unit sees. */
static int64_t unit_entries(const index_job *j, const int64_t *unit) {
    return (j->s->positions[unit[0] + unit[1] - 1] + 1) / 4;
}

static int64_t whole_tiles(int64_t keys) { return (keys + KEYS - 1) / KEYS * KEYS; }

/* From a unit's scores; `scratch` holds `padded` floats. Without scores where every row takes all it sees. */
static void choose_rows(const index_job *j, const int64_t *unit, const float *scores, int64_t padded, float *scratch) {
    for (int64_t r = 0; r < unit[1]; r++) {
        const int64_t t = unit[0] + r;
        choose_row(j->m, t, (j->s->positions[t] + 1) / 4, scores ? scores + r * padded : NULL, scratch);
    }
}

static void choose_unit(const index_job *j, const int64_t *unit) {
    const int64_t most = unit_entries(j, unit);
    if (most <= j->m->topk) {
        choose_rows(j, unit, NULL, 0, NULL);
        return;
    }
    const int64_t padded = whole_tiles(most);
    float *scores = malloc((unit[1] + 1) * padded * sizeof(float));
    score_keys(j, unit, 0, most, scores, padded);
    choose_rows(j, unit, scores, padded, scores + unit[1] * padded);
    free(scores);
}

static void choose_units(void *arg, int64_t begin, int64_t end) {
    const index_job *j = arg;
    for (int64_t u = begin; u < end; u++) choose_unit(j, j->s->units + 3 * u);
}

/* Few units with many keys, as in decoding long contexts: threads share the keys of each unit. */
#define SPAN (16 * KEYS)

typedef struct {
    index_job index;
    float *scores; /* per unit: its rows, then a scratch row, all `padded` wide */
    int64_t padded, spans, rows;
} span_job;

static float *unit_scores(const span_job *j, int64_t u) { return j->scores + u * (j->rows + 1) * j->padded; }

static void score_spans(void *arg, int64_t begin, int64_t end) {
    const span_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        const int64_t u = i / j->spans, from = i % j->spans * SPAN, *unit = j->index.s->units + 3 * u;
        const int64_t most = unit_entries(&j->index, unit), to = from + SPAN < most ? from + SPAN : most;
        score_keys(&j->index, unit, from, to, unit_scores(j, u), j->padded);
    }
}

static void choose_spans(void *arg, int64_t begin, int64_t end) {
    const span_job *j = arg;
    for (int64_t u = begin; u < end; u++) {
        float *scores = unit_scores(j, u);
        choose_rows(&j->index, j->index.s->units + 3 * u, scores, j->padded, scores + j->rows * j->padded);
    }
}

/* `most` tokens are seen by some row. */
static void choose_entries(index_job *job, int64_t most) {
    const v4_model *m = job->m;
    const v4_step *s = job->s;
    const int64_t keys = most / 4, work = s->num_tokens * keys * m->index_heads * m->index_dim;
    if (keys <= m->topk || s->num_units >= 2 * tm_num_threads() || keys < 2 * SPAN) {
        run(s->num_units, 1, choose_units, job, keys > m->topk ? work : 0);
        return;
    }
    span_job j = {*job, NULL, whole_tiles(keys), (keys + SPAN - 1) / SPAN, 0};
    for (int64_t u = 0; u < s->num_units; u++) j.rows = s->units[3 * u + 1] > j.rows ? s->units[3 * u + 1] : j.rows;
    j.scores = malloc(s->num_units * (j.rows + 1) * j.padded * sizeof(float));
    run(s->num_units * j.spans, 1, score_spans, &j, work);
    run(s->num_units, 1, choose_spans, &j, work);
    free(j.scores);
}
