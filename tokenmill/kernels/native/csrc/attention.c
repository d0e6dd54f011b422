/* Causal attention of ragged queries over the paged cache (layouts in rows.c).
 *
 * Online softmax over tiles of 64 tokens, and over spans of 512: both are aligned to position 0 and taken in order, so
 * that a query's bits depend neither on chunking, nor on its neighbours, nor on the threads that share its context.
 * Queries that share keys (heads of one kv head, neighbouring tokens of a prefill) are one unit: a tile of keys and
 * values is fetched once for all of them.
 */
#include "tm.h"
#include "vector.h"

#define UNIT_QUERIES 48    /* query rows of a unit at most */
#define BLOCK_QUERIES 12   /* of a register block */
#define SPAN_TOKENS 512
#define TILE_GROUPS (KV_TILE / TILE)
#define Q16 16256.0f       /* 127 x 128: queries and weights as two bytes, high x 128 + low */

typedef struct {
    int64_t num_heads, num_kv_heads, head_dim;
    int64_t window;              /* tokens seen, 0 = all */
    int64_t heads_per_unit;      /* query heads of one kv head that are computed together; divides H / KVH */
    int64_t kv_format;
    const bf16 *q;               /* [T, H, D], scaled by D^-0.5 log2(e) */
    const char *k_cache, *v_cache;
    const int64_t *units;        /* [U, 4]: first row, rows of queries, position of the first, sequence */
    const int64_t *tables;       /* [B, stride]: groups of 16 tokens in order */
    int64_t stride;
    float *out;                  /* [T, H D] */
} tm_attention;

/* A unit at work on one span. Two-byte queries and weights (int8 caches): high bytes, then low bytes. */
typedef struct {
    int rows;
    int64_t d;
    const bf16 *q[UNIT_QUERIES];
    int64_t limit[UNIT_QUERIES], start[UNIT_QUERIES]; /* sees start <= position < limit */
    float top[UNIT_QUERIES], keep[UNIT_QUERIES];      /* running maximum; what is left of the sums of before */
    float sum[UNIT_QUERIES][TILE];
    float s[UNIT_QUERIES][KV_TILE];
    bf16 p[UNIT_QUERIES][KV_TILE];
    float *o;                                         /* [rows, D] */
    int8_t *q8;                                       /* [rows, 2, D] */
    float q8_scale[UNIT_QUERIES], p8_scale[UNIT_QUERIES];
    int32_t q8_sum[UNIT_QUERIES][2], p8_sum[UNIT_QUERIES][2];
    int8_t p8[UNIT_QUERIES][2][KV_TILE];
} span_state;

/* Where the keys and values of a tile lie. Those of the next tile are fetched meanwhile, a line with every line that is
 * read: all at once would fill the queue of misses and hold up the reads. Without a next tile they are the same. */
typedef struct {
    int groups;
    const char *k[TILE_GROUPS], *v[TILE_GROUPS], *next_k[TILE_GROUPS], *next_v[TILE_GROUPS];
} kv_tile;

#if TM_AVX512
INLINE __m512i pair_of(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Scores of R rows against G groups of 16 keys. */
INLINE void scores_bf16(span_state *st, int r0, const int R, const int G, const kv_tile *t, int g0) {
    __m512 a[BLOCK_QUERIES][2];
    for (int r = 0; r < R; r++)
        for (int g = 0; g < G; g++) a[r][g] = _mm512_setzero_ps();
    for (int64_t i = 0; i < st->d / 2; i++) {
        __m512bh b[2];
        for (int g = 0; g < G; g++) {
            b[g] = (__m512bh)_mm512_loadu_si512(t->k[g0 + g] + i * 64);
            __builtin_prefetch(t->next_k[g0 + g] + i * 64, 0, 2);
        }
        for (int r = 0; r < R; r++) {
            const __m512bh v = (__m512bh)pair_of(st->q[r0 + r] + 2 * i);
            for (int g = 0; g < G; g++) a[r][g] = _mm512_dpbf16_ps(a[r][g], v, b[g]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int g = 0; g < G; g++) _mm512_storeu_ps(st->s[r0 + r] + (g0 + g) * TILE, a[r][g]);
}

INLINE void scores_int8(span_state *st, int r0, const int R, const int G, const kv_tile *t, int g0) {
    const int64_t d = st->d;
    __m512i high[BLOCK_QUERIES][2], low[BLOCK_QUERIES][2];
    for (int r = 0; r < R; r++)
        for (int g = 0; g < G; g++) { /* keys are stored as q + 128 */
            high[r][g] = _mm512_set1_epi32(-128 * st->q8_sum[r0 + r][0]);
            low[r][g] = _mm512_set1_epi32(-128 * st->q8_sum[r0 + r][1]);
        }
    for (int64_t i = 0; i < d / 4; i++) {
        __m512i b[2];
        for (int g = 0; g < G; g++) {
            b[g] = _mm512_loadu_si512(t->k[g0 + g] + i * 64);
            __builtin_prefetch(t->next_k[g0 + g] + i * 64, 0, 2);
        }
        for (int r = 0; r < R; r++) {
            const int8_t *q = st->q8 + (r0 + r) * 2 * d + 4 * i;
            const __m512i h = pair_of(q), l = pair_of(q + d);
            for (int g = 0; g < G; g++) {
                high[r][g] = _mm512_dpbusd_epi32(high[r][g], b[g], h);
                low[r][g] = _mm512_dpbusd_epi32(low[r][g], b[g], l);
            }
        }
    }
    for (int g = 0; g < G; g++) {
        const __m512 scale = _mm512_loadu_ps(t->k[g0 + g] + d * TILE);
        __builtin_prefetch(t->next_k[g0 + g] + d * TILE, 0, 2);
        __builtin_prefetch(t->next_v[g0 + g] + d * TILE, 0, 2);
        for (int r = 0; r < R; r++) {
            const __m512 v = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r][g], 7), low[r][g]));
            const __m512 s = _mm512_mul_ps(v, _mm512_mul_ps(scale, _mm512_set1_ps(st->q8_scale[r0 + r])));
            _mm512_storeu_ps(st->s[r0 + r] + (g0 + g) * TILE, s);
        }
    }
}

/* o = o * keep + p V for R rows and 16 C channels from c0 on. */
INLINE void mix_bf16(span_state *st, int r0, const int R, const int C, const kv_tile *t, int64_t c0) {
    const int64_t d = st->d;
    __m512 a[6][4];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            a[r][c] = _mm512_mul_ps(_mm512_loadu_ps(st->o + (r0 + r) * d + c0 + c * TILE), _mm512_set1_ps(st->keep[r0 + r]));
    for (int g = 0; g < t->groups; g++)
        for (int i = 0; i < TILE / 2; i++) {
            __m512bh b[4];
            for (int c = 0; c < C; c++) {
                b[c] = (__m512bh)_mm512_loadu_si512(t->v[g] + (i * d + c0 + c * TILE) * 4);
                __builtin_prefetch(t->next_v[g] + (i * d + c0 + c * TILE) * 4, 0, 2);
            }
            for (int r = 0; r < R; r++) {
                const __m512bh w = (__m512bh)pair_of(&st->p[r0 + r][g * TILE + 2 * i]);
                for (int c = 0; c < C; c++) a[r][c] = _mm512_dpbf16_ps(a[r][c], w, b[c]);
            }
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) _mm512_storeu_ps(st->o + (r0 + r) * d + c0 + c * TILE, a[r][c]);
}

INLINE void mix_int8(span_state *st, int r0, const int R, const int C, const kv_tile *t, int64_t c0) {
    const int64_t d = st->d;
    __m512i high[3][4], low[3][4];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            high[r][c] = _mm512_set1_epi32(-128 * st->p8_sum[r0 + r][0]);
            low[r][c] = _mm512_set1_epi32(-128 * st->p8_sum[r0 + r][1]);
        }
    for (int g = 0; g < t->groups; g++)
        for (int i = 0; i < TILE / 4; i++) {
            __m512i b[4];
            for (int c = 0; c < C; c++) {
                b[c] = _mm512_loadu_si512(t->v[g] + (i * d + c0 + c * TILE) * 4);
                __builtin_prefetch(t->next_v[g] + (i * d + c0 + c * TILE) * 4, 0, 2);
            }
            for (int r = 0; r < R; r++) {
                const __m512i h = pair_of(&st->p8[r0 + r][0][g * TILE + 4 * i]), l = pair_of(&st->p8[r0 + r][1][g * TILE + 4 * i]);
                for (int c = 0; c < C; c++) {
                    high[r][c] = _mm512_dpbusd_epi32(high[r][c], b[c], h);
                    low[r][c] = _mm512_dpbusd_epi32(low[r][c], b[c], l);
                }
            }
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            float *o = st->o + (r0 + r) * d + c0 + c * TILE;
            const __m512 v = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r][c], 7), low[r][c]));
            const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(o), _mm512_set1_ps(st->keep[r0 + r]));
            _mm512_storeu_ps(o, _mm512_fmadd_ps(v, _mm512_set1_ps(st->p8_scale[r0 + r]), old));
        }
}
#else
INLINE void scores_bf16(span_state *st, int r0, const int R, const int G, const kv_tile *t, int g0) {
    for (int r = r0; r < r0 + R; r++)
        for (int g = g0; g < g0 + G; g++) {
            const bf16 *k = (const bf16 *)t->k[g];
            float a[TILE] = {0};
            for (int64_t i = 0; i < st->d; i++)
                for (int j = 0; j < TILE; j++) a[j] += bf16_to_f32(st->q[r][i]) * bf16_to_f32(k[(i / 2 * TILE + j) * 2 + i % 2]);
            memcpy(st->s[r] + g * TILE, a, sizeof a);
        }
}

INLINE void scores_int8(span_state *st, int r0, const int R, const int G, const kv_tile *t, int g0) {
    for (int r = r0; r < r0 + R; r++)
        for (int g = g0; g < g0 + G; g++) {
            const uint8_t *k = (const uint8_t *)t->k[g];
            const int8_t *q = st->q8 + r * 2 * st->d;
            for (int j = 0; j < TILE; j++) {
                int32_t a = 0;
                float scale;
                for (int64_t i = 0; i < st->d; i++) a += (q[i] * 128 + q[st->d + i]) * (k[(i / 4 * TILE + j) * 4 + i % 4] - 128);
                memcpy(&scale, k + st->d * TILE + 4 * j, 4);
                st->s[r][g * TILE + j] = (float)a * (scale * st->q8_scale[r]);
            }
        }
}

INLINE void mix_bf16(span_state *st, int r0, const int R, const int C, const kv_tile *t, int64_t c0) {
    for (int r = r0; r < r0 + R; r++)
        for (int64_t c = c0; c < c0 + C * TILE; c++) {
            float a = st->o[r * st->d + c] * st->keep[r];
            for (int j = 0; j < t->groups * TILE; j++)
                a += bf16_to_f32(st->p[r][j]) * bf16_to_f32(((const bf16 *)t->v[j / TILE])[(j % TILE / 2 * st->d + c) * 2 + j % 2]);
            st->o[r * st->d + c] = a;
        }
}

INLINE void mix_int8(span_state *st, int r0, const int R, const int C, const kv_tile *t, int64_t c0) {
    for (int r = r0; r < r0 + R; r++)
        for (int64_t c = c0; c < c0 + C * TILE; c++) {
            int32_t a = 0;
            for (int j = 0; j < t->groups * TILE; j++) {
                const uint8_t v = ((const uint8_t *)t->v[j / TILE])[(j % TILE / 4 * st->d + c) * 4 + j % 4];
                a += (st->p8[r][0][j] * 128 + st->p8[r][1][j]) * (v - 128);
            }
            st->o[r * st->d + c] = fmaf((float)a, st->p8_scale[r], st->o[r * st->d + c] * st->keep[r]);
        }
}
#endif

/* n floats, a multiple of 16, as two signed bytes each, x = scale * (128 high + low); the sums of both. */
static float split_bytes(const float *x, int64_t n, int8_t *high, int8_t *low, int32_t sums[2]) {
    const float top = largest_size(x, n), inverse = top > 0.0f ? Q16 / top : 0.0f;
    sums[0] = sums[1] = 0;
#if TM_AVX512
    __m512i total_h = _mm512_setzero_si512(), total_l = total_h;
    for (int64_t i = 0; i < n; i += TILE) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
        const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(64)), 7);
        const __m512i l = _mm512_sub_epi32(q, _mm512_slli_epi32(h, 7));
        _mm_storeu_si128((__m128i *)(high + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((__m128i *)(low + i), _mm512_cvtepi32_epi8(l));
        total_h = _mm512_add_epi32(total_h, h);
        total_l = _mm512_add_epi32(total_l, l);
    }
    sums[0] = _mm512_reduce_add_epi32(total_h);
    sums[1] = _mm512_reduce_add_epi32(total_l);
#else
    for (int64_t i = 0; i < n; i++) {
        const int32_t q = (int32_t)rintf(x[i] * inverse), h = (q + 64) >> 7;
        high[i] = (int8_t)h;
        low[i] = (int8_t)(q - 128 * h);
        sums[0] += h;
        sums[1] += q - 128 * h;
    }
#endif
    return top / Q16;
}

static void scores_block(span_state *st, int format, int r0, int rows, const kv_tile *t) {
    int g = 0;
#define CALL(R, G) { if (format == KV_BF16) scores_bf16(st, r0, R, G, t, g); else scores_int8(st, r0, R, G, t, g); }
#define CASE(R) case R: for (; g + 2 <= t->groups; g += 2) CALL(R, 2) for (; g < t->groups; g++) CALL(R, 1) break;
#define CASE1(R) case R: for (; g < t->groups; g++) CALL(R, 1) break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
        CASE1(7) CASE1(8) CASE1(9) CASE1(10) CASE1(11) CASE1(12)
    }
#undef CASE
#undef CASE1
#undef CALL
}

#define MIX(NAME, R, C) NAME(st, r, R, C, t, c0); r += R;

static void mix_bf16_rows(span_state *st, const kv_tile *t) {
    for (int64_t c0 = 0; c0 < st->d;) {
        const int is_wide = c0 + 4 * TILE <= st->d;
        for (int r = 0; r < st->rows;) {
            const int left = st->rows - r;
            if (is_wide) {
                if (left >= 6) { MIX(mix_bf16, 6, 4) }
                else if (left >= 4) { MIX(mix_bf16, 4, 4) }
                else if (left == 3) { MIX(mix_bf16, 3, 4) }
                else if (left == 2) { MIX(mix_bf16, 2, 4) }
                else { MIX(mix_bf16, 1, 4) }
            } else if (left >= 4) { MIX(mix_bf16, 4, 1) }
            else { MIX(mix_bf16, 1, 1) }
        }
        c0 += is_wide ? 4 * TILE : TILE;
    }
}

static void mix_int8_rows(span_state *st, const kv_tile *t) {
    for (int64_t c0 = 0; c0 < st->d;) {
        const int is_wide = c0 + 4 * TILE <= st->d;
        for (int r = 0; r < st->rows;) {
            const int left = st->rows - r;
            if (is_wide) {
                if (left >= 3) { MIX(mix_int8, 3, 4) }
                else if (left == 2) { MIX(mix_int8, 2, 4) }
                else { MIX(mix_int8, 1, 4) }
            } else if (left >= 3) { MIX(mix_int8, 3, 1) }
            else { MIX(mix_int8, 1, 1) }
        }
        c0 += is_wide ? 4 * TILE : TILE;
    }
}

/* Mask, running maximum and weights of a row over a tile that starts at `position` and holds `width` tokens. The
 * weights go into p, or, times the scales of the values, into s for int8. */
static void softmax_row(span_state *st, int r, int64_t position, int width) {
    float *s = st->s[r], top = st->top[r];
    if (position + width > st->limit[r] || position < st->start[r])
        for (int j = 0; j < width; j++)
            if (position + j >= st->limit[r] || position + j < st->start[r]) s[j] = -INFINITY;
#if TM_AVX512
    __m512 most = _mm512_loadu_ps(s);
    for (int j = TILE; j < width; j += TILE) most = _mm512_max_ps(most, _mm512_loadu_ps(s + j));
    const float tile_top = _mm512_reduce_max_ps(most);
    top = tile_top > top ? tile_top : top;
#else
    for (int j = 0; j < width; j++) top = s[j] > top ? s[j] : top;
#endif
    if (top == -INFINITY) { /* nothing visible yet */
        memset(st->p[r], 0, sizeof st->p[r]);
        memset(s, 0, sizeof st->s[r]);
        st->keep[r] = 1.0f;
        return;
    }
    const float keep = st->top[r] == -INFINITY ? 0.0f : exp2f(st->top[r] - top);
    st->keep[r] = keep;
    st->top[r] = top;
#if TM_AVX512
    __m512 total = _mm512_mul_ps(_mm512_loadu_ps(st->sum[r]), _mm512_set1_ps(keep));
    for (int j = 0; j < width; j += TILE) {
        const __m512 p = exp2_ps(_mm512_sub_ps(_mm512_loadu_ps(s + j), _mm512_set1_ps(top)));
        total = _mm512_add_ps(total, p);
        store_bf16(&st->p[r][j], p);
        _mm512_storeu_ps(s + j, p);
    }
    _mm512_storeu_ps(st->sum[r], total);
#else
    for (int j = 0; j < TILE; j++) st->sum[r][j] *= keep;
    for (int j = 0; j < width; j++) {
        s[j] = exp2f(s[j] - top);
        st->sum[r][j % TILE] += s[j];
        st->p[r][j] = f32_to_bf16(s[j]);
    }
#endif
}

/* Weights times the values' scales, as two bytes each. */
static void weights_int8(span_state *st, int r, const kv_tile *t) {
    float w[KV_TILE] = {0};
    for (int g = 0; g < t->groups; g++) {
        const float *scale = (const float *)(t->v[g] + st->d * TILE);
        for (int j = 0; j < TILE; j++) w[g * TILE + j] = st->s[r][g * TILE + j] * scale[j];
    }
    st->p8_scale[r] = split_bytes(w, KV_TILE, st->p8[r][0], st->p8[r][1], st->p8_sum[r]);
}

static void attend_tile(span_state *st, int format, const kv_tile *t, int64_t position) {
    const int blocks = (st->rows + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
    for (int b = 0; b < blocks; b++) {
        const int r0 = st->rows * b / blocks, r1 = st->rows * (b + 1) / blocks;
        scores_block(st, format, r0, r1 - r0, t);
    }
    for (int r = 0; r < st->rows; r++) softmax_row(st, r, position, t->groups * TILE);
    if (format == KV_BF16) mix_bf16_rows(st, t);
    else {
        for (int r = 0; r < st->rows; r++) weights_int8(st, r, t);
        mix_int8_rows(st, t);
    }
}

static kv_tile tile_at(const tm_attention *a, const int64_t *table, int64_t kv_head, int64_t at, int64_t end) {
    const int64_t bytes = kv_group_bytes(a->kv_format, a->head_dim), left = (end - at + TILE - 1) / TILE;
    kv_tile t = {0};
    t.groups = left <= 0 ? 0 : left < TILE_GROUPS ? (int)left : TILE_GROUPS;
    for (int g = 0; g < t.groups; g++) {
        const int64_t base = (table[at / TILE + g] * a->num_kv_heads + kv_head) * bytes;
        t.k[g] = t.next_k[g] = a->k_cache + base;
        t.v[g] = t.next_v[g] = a->v_cache + base;
    }
    return t;
}

/* One unit's heads, ready: its queries, what each row sees. Returns the end of what some row sees; begin in *begin. */
static int64_t open_unit(span_state *st, const tm_attention *a, const int64_t *unit, int64_t first_head, int64_t *begin) {
    int64_t end = 0;
    st->rows = 0;
    st->d = a->head_dim;
    *begin = INT64_MAX;
    for (int64_t t = 0; t < unit[1]; t++)
        for (int64_t h = 0; h < a->heads_per_unit; h++) {
            const int r = st->rows++;
            const int64_t limit = unit[2] + t + 1, start = a->window && limit > a->window ? limit - a->window : 0;
            st->q[r] = a->q + ((unit[0] + t) * a->num_heads + first_head + h) * a->head_dim;
            st->limit[r] = limit;
            st->start[r] = start;
            end = limit > end ? limit : end;
            *begin = start < *begin ? start : *begin;
            if (a->kv_format == KV_INT8) {
                float q[a->head_dim];
                int8_t *high = st->q8 + r * 2 * a->head_dim;
                for (int64_t i = 0; i < a->head_dim; i++) q[i] = bf16_to_f32(st->q[r][i]);
                st->q8_scale[r] = split_bytes(q, a->head_dim, high, high + a->head_dim, st->q8_sum[r]);
            }
        }
    return end;
}

/* The tiles of [from, to) into st->o, st->top and st->sum, which start empty; `after`: the tile that is needed next. */
static void attend_span(span_state *st, const tm_attention *a, const int64_t *table, int64_t kv_head, int64_t from,
                        int64_t to, const kv_tile *after) {
    memset(st->o, 0, st->rows * st->d * sizeof(float));
    memset(st->sum, 0, st->rows * sizeof st->sum[0]);
    for (int r = 0; r < st->rows; r++) st->top[r] = -INFINITY;
    kv_tile t = tile_at(a, table, kv_head, from, to);
    for (int64_t at = from; at < to; at += KV_TILE) {
        const kv_tile next = at + KV_TILE < to ? tile_at(a, table, kv_head, at + KV_TILE, to) : *after;
        for (int g = 0; g < next.groups; g++) t.next_k[g] = next.k[g], t.next_v[g] = next.v[g];
        attend_tile(st, (int)a->kv_format, &t, at);
        t = next;
    }
}

/* What a row knows after some spans: maximum, sum of weights, weighted values [D]. */
typedef struct {
    float top, sum, *o;
} row_total;

static void join_span(row_total *row, float top, float sum, const float *o, int64_t d) {
    if (top == -INFINITY) return;
    if (row->top == -INFINITY) {
        row->top = top;
        row->sum = sum;
        memcpy(row->o, o, d * sizeof(float));
        return;
    }
    const float now = row->top > top ? row->top : top, old = exp2f(row->top - now), new = exp2f(top - now);
    row->sum = row->sum * old + sum * new;
    row->top = now;
    for (int64_t i = 0; i < d; i++) row->o[i] = row->o[i] * old + o[i] * new;
}

static float lane_sum(const float lanes[TILE]) {
    float s = 0.0f;
    for (int j = 0; j < TILE; j++) s += lanes[j];
    return s;
}

static void close_row(row_total *row, int64_t d) {
    const float inverse = 1.0f / row->sum;
    for (int64_t i = 0; i < d; i++) row->o[i] *= inverse;
}

static int64_t first_span(int64_t begin) { return begin / SPAN_TOKENS * SPAN_TOKENS; }

/* Tiles before a window are never looked at, whatever span they are in. */
static int64_t span_from(int64_t span, int64_t begin) {
    return span > begin ? span : begin / KV_TILE * KV_TILE;
}

static int64_t span_to(int64_t span, int64_t end) { return span + SPAN_TOKENS < end ? span + SPAN_TOKENS : end; }

/* An item is a unit and some heads of it. */
static int64_t items_of(const tm_attention *a, int64_t num_units) {
    return num_units * (a->num_heads / a->heads_per_unit);
}

static const int64_t *unit_of(const tm_attention *a, int64_t item) {
    return a->units + item / (a->num_heads / a->heads_per_unit) * 4;
}

static int64_t first_head_of(const tm_attention *a, int64_t item) {
    return item % (a->num_heads / a->heads_per_unit) * a->heads_per_unit;
}

static int64_t kv_head_of(const tm_attention *a, int64_t item) {
    return first_head_of(a, item) / (a->num_heads / a->num_kv_heads);
}

static int64_t unit_begin(const tm_attention *a, const int64_t *unit) {
    return a->window && unit[2] + 1 > a->window ? unit[2] + 1 - a->window : 0;
}

/* The tile that an item begins with; empty behind the last item. */
static kv_tile first_tile(const tm_attention *a, int64_t item, int64_t num_items) {
    if (item >= num_items) return (kv_tile){0};
    const int64_t *unit = unit_of(a, item);
    return tile_at(a, a->tables + unit[3] * a->stride, kv_head_of(a, item), unit_begin(a, unit) / KV_TILE * KV_TILE,
                   unit[2] + unit[1]);
}

static float *row_out(const tm_attention *a, const int64_t *unit, int64_t first_head, int64_t r) {
    const int64_t t = unit[0] + r / a->heads_per_unit, head = first_head + r % a->heads_per_unit;
    return a->out + (t * a->num_heads + head) * a->head_dim;
}

static void attend(const tm_attention *a, int64_t item, int64_t num_items) {
    const int64_t *unit = unit_of(a, item);
    const int64_t d = a->head_dim, first_head = first_head_of(a, item), kv_head = kv_head_of(a, item);
    const int64_t *table = a->tables + unit[3] * a->stride, rows = unit[1] * a->heads_per_unit;
    float o[rows * d];
    int8_t q8[a->kv_format == KV_INT8 ? rows * 2 * d : 1];
    row_total total[rows];
    span_state st;
    int64_t begin;
    st.o = o;
    st.q8 = q8;
    const int64_t end = open_unit(&st, a, unit, first_head, &begin);
    for (int64_t r = 0; r < rows; r++) total[r] = (row_total){-INFINITY, 0.0f, row_out(a, unit, first_head, r)};
    for (int64_t span = first_span(begin); span < end; span += SPAN_TOKENS) {
        const kv_tile after = span + SPAN_TOKENS < end ? tile_at(a, table, kv_head, span + SPAN_TOKENS, end)
                                                       : first_tile(a, item + 1, num_items);
        attend_span(&st, a, table, kv_head, span_from(span, begin), span_to(span, end), &after);
        for (int64_t r = 0; r < rows; r++) join_span(&total[r], st.top[r], lane_sum(st.sum[r]), o + r * d, d);
    }
    for (int64_t r = 0; r < rows; r++) close_row(&total[r], d);
}

typedef struct {
    const tm_attention *a;
    int64_t num_items;
} item_job;

static void attend_items(void *arg, int64_t begin, int64_t end) {
    const item_job *j = arg;
    for (int64_t i = begin; i < end; i++) attend(j->a, i, j->num_items);
}

/* ---- few units with long contexts: threads share the spans of each ---- */

typedef struct {
    const tm_attention *a;
    int64_t num_items, num_spans, rows; /* items: unit and heads; rows of the largest */
    float *parts;                       /* [item, span, row, D + 2] */
} split_job;

static float *part_of(const split_job *j, int64_t item, int64_t span, int64_t row) {
    return j->parts + ((item * j->num_spans + span) * j->rows + row) * (j->a->head_dim + 2);
}

static void split_spans(void *arg, int64_t from, int64_t to) {
    const split_job *j = arg;
    const tm_attention *a = j->a;
    const int64_t d = a->head_dim;
    const kv_tile nothing = {0};
    for (int64_t i = from; i < to; i++) {
        const int64_t item = i / j->num_spans, n = i % j->num_spans;
        const int64_t *unit = unit_of(a, item), rows = unit[1] * a->heads_per_unit;
        float o[rows * d];
        int8_t q8[a->kv_format == KV_INT8 ? rows * 2 * d : 1];
        span_state st;
        int64_t begin;
        st.o = o;
        st.q8 = q8;
        const int64_t end = open_unit(&st, a, unit, first_head_of(a, item), &begin), span = first_span(begin) + n * SPAN_TOKENS;
        if (span >= end) {
            for (int64_t r = 0; r < rows; r++) part_of(j, item, n, r)[d] = -INFINITY;
            continue;
        }
        attend_span(&st, a, a->tables + unit[3] * a->stride, kv_head_of(a, item), span_from(span, begin),
                    span_to(span, end), &nothing);
        for (int64_t r = 0; r < rows; r++) {
            float *part = part_of(j, item, n, r);
            memcpy(part, o + r * d, d * sizeof(float));
            part[d] = st.top[r];
            part[d + 1] = lane_sum(st.sum[r]);
        }
    }
}

static void join_items(void *arg, int64_t from, int64_t to) {
    const split_job *j = arg;
    const tm_attention *a = j->a;
    const int64_t d = a->head_dim;
    for (int64_t item = from; item < to; item++) {
        const int64_t *unit = unit_of(a, item), rows = unit[1] * a->heads_per_unit;
        for (int64_t r = 0; r < rows; r++) {
            row_total total = {-INFINITY, 0.0f, row_out(a, unit, first_head_of(a, item), r)};
            for (int64_t n = 0; n < j->num_spans; n++) {
                const float *part = part_of(j, item, n, r);
                join_span(&total, part[d], part[d + 1], part, d);
            }
            close_row(&total, d);
        }
    }
}

/* Spans of the longest unit, counted from the first that it sees. */
static int64_t most_spans(const tm_attention *a, int64_t num_units, int64_t *rows) {
    int64_t most = 0;
    *rows = 0;
    for (int64_t u = 0; u < num_units; u++) {
        const int64_t *unit = a->units + u * 4, end = unit[2] + unit[1];
        const int64_t spans = (end - first_span(unit_begin(a, unit)) + SPAN_TOKENS - 1) / SPAN_TOKENS;
        most = spans > most ? spans : most;
        *rows = unit[1] * a->heads_per_unit > *rows ? unit[1] * a->heads_per_unit : *rows;
    }
    return most;
}

void tm_attend(const tm_attention *a, int64_t num_units) {
    const int64_t items = items_of(a, num_units);
    split_job j = {a, items, 0, 0, NULL};
    j.num_spans = most_spans(a, num_units, &j.rows);
    if (tm_num_threads() > 1 && items < 4 * tm_num_threads() && j.num_spans > 1)
        j.parts = malloc(items * j.num_spans * j.rows * (a->head_dim + 2) * sizeof(float));
    if (!j.parts) {
        item_job all = {a, items};
        tm_for(items, 1, attend_items, &all);
        return;
    }
    tm_for(items * j.num_spans, 1, split_spans, &j);
    tm_for(items, 1, join_items, &j);
    free(j.parts);
}
