/* Causal attention of ragged queries over the paged cache (layout in rows.c): online softmax over tiles of 64
 * tokens aligned to position 0, so that a query's bits do not depend on chunking or on its neighbours.
 */
#include "tm.h"
#include "vector.h"

typedef struct {
    int64_t num_heads, num_kv_heads, head_dim;
    int64_t window;              /* tokens seen, 0 = all */
    int64_t heads_per_unit;      /* query heads of one kv head that are computed together; divides H / KVH */
    const bf16 *q;               /* [T, H, D], scaled by D^-0.5 log2(e) */
    const bf16 *k_cache, *v_cache;
    const int64_t *units;        /* [U, 4]: first row, rows of queries, position of the first, sequence */
    const int64_t *tables;       /* [B, stride]: groups of 16 tokens in order */
    int64_t stride;
    float *out;                  /* [T, H D] */
} tm_attention;

#define MAX_ROWS 12

typedef struct {
    const bf16 *q[MAX_ROWS];
    int64_t limit[MAX_ROWS], start[MAX_ROWS]; /* sees start <= position < limit */
    float top[MAX_ROWS], sum[MAX_ROWS], scale[MAX_ROWS];
    float s[MAX_ROWS][KV_TILE];
    bf16 p[MAX_ROWS][KV_TILE];
    float *o[MAX_ROWS];
} rows_state;

#if TM_AVX512
static inline __attribute__((always_inline)) void scores_n(rows_state *st, const int R, const bf16 *k, int64_t d, int at) {
    __m512 a[MAX_ROWS];
    for (int r = 0; r < R; r++) a[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < d / 2; i++) {
        __m512bh b = (__m512bh)_mm512_loadu_si512(k + i * 32);
        for (int r = 0; r < R; r++) {
            int32_t pair;
            memcpy(&pair, st->q[r] + 2 * i, 4);
            a[r] = _mm512_dpbf16_ps(a[r], (__m512bh)_mm512_set1_epi32(pair), b);
        }
    }
    for (int r = 0; r < R; r++) _mm512_storeu_ps(&st->s[r][at], a[r]);
}

/* o[r] = o[r] * scale[r] + p[r] V for rows [r0, r0 + R), channels [c0, c0 + 16 C) */
static inline __attribute__((always_inline)) void mix_n(rows_state *st, int r0, const int R, const int C,
                                                        const bf16 *const *v, int64_t d, int64_t c0, int groups) {
    __m512 a[6][4];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            a[r][c] = _mm512_mul_ps(_mm512_loadu_ps(st->o[r0 + r] + c0 + c * TILE), _mm512_set1_ps(st->scale[r0 + r]));
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < TILE / 2; i++) {
            __m512bh b[4];
            for (int c = 0; c < C; c++) b[c] = (__m512bh)_mm512_loadu_si512(v[g] + (i * d + c0 + c * TILE) * 2);
            for (int r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, &st->p[r0 + r][g * TILE + 2 * i], 4);
                __m512bh w = (__m512bh)_mm512_set1_epi32(pair);
                for (int c = 0; c < C; c++) a[r][c] = _mm512_dpbf16_ps(a[r][c], w, b[c]);
            }
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) _mm512_storeu_ps(st->o[r0 + r] + c0 + c * TILE, a[r][c]);
}
#else
static inline void scores_n(rows_state *st, const int R, const bf16 *k, int64_t d, int at) {
    for (int r = 0; r < R; r++)
        for (int j = 0; j < TILE; j++) {
            float a = 0.0f;
            for (int64_t i = 0; i < d; i++)
                a += bf16_to_f32(st->q[r][i]) * bf16_to_f32(k[(i / 2 * TILE + j) * 2 + i % 2]);
            st->s[r][at + j] = a;
        }
}

static inline void mix_n(rows_state *st, int r0, const int R, const int C, const bf16 *const *v, int64_t d, int64_t c0,
                         int groups) {
    for (int r = r0; r < r0 + R; r++)
        for (int64_t c = c0; c < c0 + C * TILE; c++) {
            float a = st->o[r][c] * st->scale[r];
            for (int j = 0; j < groups * TILE; j++)
                a += bf16_to_f32(st->p[r][j]) * bf16_to_f32(v[j / TILE][(j % TILE / 2 * d + c) * 2 + j % 2]);
            st->o[r][c] = a;
        }
}
#endif

static void scores(rows_state *st, int rows, const bf16 *k, int64_t d, int at) {
    switch (rows) {
#define CASE(R) case R: scores_n(st, R, k, d, at); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
    }
}

#define MIX(C)                                                                                                \
    for (int r = 0; r < rows;) {                                                                              \
        int left = rows - r;                                                                                  \
        if (left >= 6) { mix_n(st, r, 6, C, v, d, c0, groups); r += 6; }                                      \
        else if (left >= 4) { mix_n(st, r, 4, C, v, d, c0, groups); r += 4; }                                 \
        else if (left == 3) { mix_n(st, r, 3, C, v, d, c0, groups); r += 3; }                                 \
        else if (left == 2) { mix_n(st, r, 2, C, v, d, c0, groups); r += 2; }                                 \
        else { mix_n(st, r, 1, C, v, d, c0, groups); r += 1; }                                                \
    }

static void mix(rows_state *st, int rows, const bf16 *const *v, int64_t d, int groups) {
    int64_t c0 = 0;
    for (; c0 + 4 * TILE <= d; c0 += 4 * TILE) MIX(4)
    for (; c0 < d; c0 += TILE) MIX(1)
}

/* Mask, running maximum, probabilities of one tile that starts at `position` and holds `width` tokens. */
static void softmax_row(rows_state *st, int r, int64_t position, int width) {
    float *s = st->s[r];
    for (int j = 0; j < width; j++)
        if (position + j >= st->limit[r] || position + j < st->start[r]) s[j] = -INFINITY;
    float top = st->top[r];
    for (int j = 0; j < width; j++) top = s[j] > top ? s[j] : top;
    if (top == -INFINITY) { /* nothing visible yet */
        memset(st->p[r], 0, sizeof st->p[r]);
        st->scale[r] = 1.0f;
        return;
    }
    st->scale[r] = st->top[r] == -INFINITY ? 0.0f : exp2f(st->top[r] - top);
    float lane[TILE] = {0};
#if TM_AVX512
    __m512 total = _mm512_setzero_ps();
    for (int j = 0; j < width; j += TILE) {
        __m512 p = exp2_ps(_mm512_sub_ps(_mm512_loadu_ps(s + j), _mm512_set1_ps(top)));
        total = _mm512_add_ps(total, p);
        store_bf16(&st->p[r][j], p);
    }
    _mm512_storeu_ps(lane, total);
#else
    for (int j = 0; j < width; j++) {
        float p = exp2f(s[j] - top);
        lane[j % TILE] += p;
        st->p[r][j] = f32_to_bf16(p);
    }
#endif
    float sum = 0.0f;
    for (int j = 0; j < TILE; j++) sum += lane[j];
    st->sum[r] = st->sum[r] * st->scale[r] + sum;
    st->top[r] = top;
}

static void attend(const tm_attention *a, const int64_t *unit, int64_t first_head) {
    const int64_t d = a->head_dim, h = a->num_heads, kv_head = first_head / (h / a->num_kv_heads);
    const int64_t *table = a->tables + unit[3] * a->stride;
    rows_state st;
    int rows = 0;
    int64_t end = 0, begin = INT64_MAX;
    for (int64_t t = 0; t < unit[1]; t++)
        for (int64_t g = 0; g < a->heads_per_unit; g++, rows++) {
            int64_t head = first_head + g, limit = unit[2] + t + 1;
            st.q[rows] = a->q + ((unit[0] + t) * h + head) * d;
            st.o[rows] = a->out + ((unit[0] + t) * h + head) * d;
            memset(st.o[rows], 0, d * sizeof(float));
            st.limit[rows] = limit;
            st.start[rows] = a->window && limit > a->window ? limit - a->window : 0;
            st.top[rows] = -INFINITY;
            st.sum[rows] = 0.0f;
            end = limit > end ? limit : end;
            begin = st.start[rows] < begin ? st.start[rows] : begin;
        }
    for (int64_t at = begin / KV_TILE * KV_TILE; at < end; at += KV_TILE) {
        int groups = (int)((end - at + TILE - 1) / TILE);
        groups = groups < KV_TILE / TILE ? groups : KV_TILE / TILE;
        const bf16 *v[KV_TILE / TILE];
        for (int g = 0; g < groups; g++) {
            int64_t base = (table[at / TILE + g] * a->num_kv_heads + kv_head) * d * TILE;
            scores(&st, rows, a->k_cache + base, d, g * TILE);
            v[g] = a->v_cache + base;
        }
        for (int r = 0; r < rows; r++) softmax_row(&st, r, at, groups * TILE);
        mix(&st, rows, v, d, groups);
    }
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) st.o[r][i] /= st.sum[r];
}

static void attention_units(void *arg, int64_t begin, int64_t end) {
    const tm_attention *a = arg;
    const int64_t splits = a->num_heads / a->heads_per_unit;
    for (int64_t i = begin; i < end; i++) attend(a, a->units + i / splits * 4, i % splits * a->heads_per_unit);
}

void tm_attend(const tm_attention *a, int64_t num_units) {
    tm_for(num_units * (a->num_heads / a->heads_per_unit), 1, attention_units, (void *)a);
}
