/* Row-wise operations between matrix products: norm, activation quantisation, rotary embedding, cache writes. */
#include "tm.h"
#include "vector.h"

/* Sum of squares in 16 lanes, then lanes in order: one fixed order for every build that has the same lanes. */
static float sum_squares(const float *x, int64_t n) {
    float lane[TILE] = {0};
    for (int64_t i = 0; i + TILE <= n; i += TILE)
        for (int j = 0; j < TILE; j++) lane[j] = fmaf(x[i + j], x[i + j], lane[j]);
    float s = 0.0f;
    for (int j = 0; j < TILE; j++) s += lane[j];
    for (int64_t i = n / TILE * TILE; i < n; i++) s = fmaf(x[i], x[i], s);
    return s;
}

static void norm_row(const float *x, const float *weight, float eps, int64_t n, float *y) {
    float r = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * r * weight[i];
}

static void to_bf16_row(const float *x, int64_t n, int64_t k, bf16 *y) {
    int64_t i = 0;
#if TM_AVX512
    for (; i + TILE <= n; i += TILE) store_bf16(y + i, _mm512_loadu_ps(x + i));
#endif
    for (; i < n; i++) y[i] = f32_to_bf16(x[i]);
    for (; i < k; i++) y[i] = 0;
}

/* 32 values -> int8, |q| <= 127; the scale, and the sums of the first and second 16 integers. */
static inline float quantise_group(const float *v, int8_t *q, int32_t sums[2]) {
#if TM_AVX512
    const __m512 a = _mm512_loadu_ps(v), b = _mm512_loadu_ps(v + TILE);
    const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const __m512 inverse = _mm512_set1_ps(top > 0.0f ? 127.0f / top : 0.0f);
    const __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)), qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(qa));
    _mm_storeu_si128((__m128i *)(q + TILE), _mm512_cvtepi32_epi8(qb));
    sums[0] = _mm512_reduce_add_epi32(qa);
    sums[1] = _mm512_reduce_add_epi32(qb);
#else
    float top = 0.0f;
    for (int j = 0; j < GROUP; j++) top = fabsf(v[j]) > top ? fabsf(v[j]) : top;
    const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
    for (int j = 0; j < GROUP; j++) q[j] = (int8_t)(int32_t)rintf(v[j] * inverse);
    sums[0] = sums[1] = 0;
    for (int j = 0; j < GROUP; j++) sums[j / TILE] += q[j];
#endif
    return top / 127.0f;
}

/* Symmetric int8 with a scale per group of 32; beside it, what makes up for weights that were made unsigned. */
static void to_int8_row(const float *x, int64_t n, int64_t k, int format, int8_t *y, float *scale, int32_t *offsets) {
    const int32_t offset = weight_offset(format);
    const int halves = offsets_per_group(format);
    float padded[GROUP];
    for (int64_t g = 0; g < k / GROUP; g++) {
        const float *v = x + g * GROUP;
        int32_t sums[2];
        if ((g + 1) * GROUP > n) {
            for (int j = 0; j < GROUP; j++) padded[j] = g * GROUP + j < n ? v[j] : 0.0f;
            v = padded;
        }
        scale[g] = quantise_group(v, y + g * GROUP, sums);
        if (halves == 2) offsets[2 * g] = -offset * sums[0], offsets[2 * g + 1] = -offset * sums[1];
        else offsets[g] = -offset * (sums[0] + sums[1]);
    }
}

/* y = silu(gate) * up; gate clamped above, up on both sides when there is a limit. */
static void swiglu_row(const float *x, int64_t n, float limit, float *y) {
    const float *gate = x, *up = x + n;
    int64_t i = 0;
#if TM_AVX512
    const __m512 top = _mm512_set1_ps(limit > 0.0f ? limit : INFINITY), bottom = _mm512_sub_ps(_mm512_setzero_ps(), top);
    for (; i + TILE <= n; i += TILE) {
        __m512 g = _mm512_min_ps(_mm512_loadu_ps(gate + i), top);
        __m512 u = _mm512_max_ps(_mm512_min_ps(_mm512_loadu_ps(up + i), top), bottom);
        _mm512_storeu_ps(y + i, _mm512_mul_ps(silu_ps(g), u));
    }
#endif
    for (; i < n; i++) {
        float g = gate[i], u = up[i];
        if (limit > 0.0f) {
            g = fminf(g, limit);
            u = fmaxf(fminf(u, limit), -limit);
        }
        y[i] = g / (1.0f + expf(-g)) * u;
    }
}

typedef struct {
    const float *x;
    int64_t ldx, n, k;          /* floats per input row, valid and padded inputs */
    const float *norm;          /* [n] or NULL: no norm */
    float eps;
    int32_t is_swiglu;          /* x is [T, 2 n]: gate, up */
    float limit;                /* swiglu clamp, 0 = none */
    int32_t format;             /* of the weights that will read it: W_* */
    void *y;                    /* bf16 [T, k] or int8 [T, k] */
    float *scale;               /* [T, k/32] unless bf16 */
    int32_t *offsets;           /* [T, k/32], nvfp4 [T, k/16] */
} tm_act;

static void act_rows(void *arg, int64_t begin, int64_t end) {
    const tm_act *a = arg;
    float row[a->n];
    for (int64_t t = begin; t < end; t++) {
        const float *x = a->x + t * a->ldx;
        if (a->norm) {
            norm_row(x, a->norm, a->eps, a->n, row);
            x = row;
        } else if (a->is_swiglu) {
            swiglu_row(x, a->n, a->limit, row);
            x = row;
        }
        const int64_t groups = a->k / GROUP;
        if (a->format == W_BF16) to_bf16_row(x, a->n, a->k, (bf16 *)a->y + t * a->k);
        else if (a->format == W_FP32) memcpy((float *)a->y + t * a->k, x, a->n * sizeof(float));
        else to_int8_row(x, a->n, a->k, a->format, (int8_t *)a->y + t * a->k, a->scale + t * groups,
                         a->offsets + t * groups * offsets_per_group(a->format));
    }
}

void tm_activate(const tm_act *a, int64_t rows) { tm_for(rows, rows < 8 ? rows : 4, act_rows, (void *)a); }

typedef struct {
    const bf16 *table;
    const int64_t *ids;
    int64_t n;
    float *out;
} embed_job;

static void embed_rows(void *arg, int64_t begin, int64_t end) {
    const embed_job *job = arg;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < job->n; i++) job->out[t * job->n + i] = bf16_to_f32(job->table[job->ids[t] * job->n + i]);
}

/* ---- rotary embedding, query scaling, key and value rows into the paged cache ----
 * Cache of one layer, in groups of 16 tokens (a block is one or more of them), each [kv head]:
 *   bf16  keys   [D/2][16][2]               two channels of 16 tokens per instruction
 *         values [8][D][2]                  two tokens of 16 channels per instruction
 *   int8  keys   [D/4][16][4], float [16]   q + 128, and a scale per token
 *         values [4][D][4],    float [16]
 */
typedef struct {
    const float *qkv;            /* [T, (H + 2 KVH) D] */
    int64_t num_heads, num_kv_heads, head_dim, kv_format;
    const float *q_norm, *k_norm;
    float eps;
    const float *cos, *sin;      /* [positions, D/2] */
    const int64_t *positions, *slots;
    float q_scale;               /* head_dim^-0.5 * log2(e) */
    bf16 *q;                     /* [T, H, D] */
    char *k_cache, *v_cache;
} tm_rope;

static void rotate(const float *x, const float *norm, float eps, const float *c, const float *s, int64_t d, float *restrict y) {
    float tmp[d];
    if (norm) {
        norm_row(x, norm, eps, d, tmp);
        x = tmp;
    }
    for (int64_t i = 0; i < d / 2; i++) {
        y[i] = x[i] * c[i] - x[i + d / 2] * s[i];
        y[i + d / 2] = x[i + d / 2] * c[i] + x[i] * s[i];
    }
}

static void write_bf16(const float *k, const float *v, int64_t d, int64_t lane, char *k_group, char *v_group) {
    bf16 *key = (bf16 *)k_group, *value = (bf16 *)v_group + lane / 2 * d * 2 + lane % 2, row[2 * d];
    to_bf16_row(k, d, d, row);
    to_bf16_row(v, d, d, row + d);
    for (int64_t i = 0; i < d / 2; i++) memcpy(key + (i * TILE + lane) * 2, row + 2 * i, 4);
    for (int64_t i = 0; i < d; i++) value[2 * i] = row[d + i];
}

/* -> q + 128, w = scale * q, |q| <= 127; returns the scale */
static float to_bytes_row(const float *x, int64_t d, uint8_t *y) {
    const float top = largest_size(x, d), inverse = top > 0.0f ? 127.0f / top : 0.0f;
    for (int64_t i = 0; i < d; i++) y[i] = (uint8_t)(128 + (int)rintf(x[i] * inverse));
    return top / 127.0f;
}

static void write_int8(const float *k, const float *v, int64_t d, int64_t lane, char *k_group, char *v_group) {
    uint8_t row[d];
    float scale = to_bytes_row(k, d, row);
    for (int64_t i = 0; i < d / 4; i++) memcpy(k_group + (i * TILE + lane) * 4, row + 4 * i, 4);
    memcpy(k_group + d * TILE + 4 * lane, &scale, 4);
    scale = to_bytes_row(v, d, row);
    for (int64_t i = 0; i < d; i++) v_group[(lane / 4 * d + i) * 4 + lane % 4] = (char)row[i];
    memcpy(v_group + d * TILE + 4 * lane, &scale, 4);
}

static void rope_rows(void *arg, int64_t begin, int64_t end) {
    const tm_rope *r = arg;
    const int64_t d = r->head_dim, kvh = r->num_kv_heads, width = (r->num_heads + 2 * kvh) * d;
    const int64_t bytes = kv_group_bytes(r->kv_format, d);
    float y[d];
    for (int64_t t = begin; t < end; t++) {
        const float *row = r->qkv + t * width;
        const float *c = r->cos + r->positions[t] * d / 2, *s = r->sin + r->positions[t] * d / 2;
        for (int64_t h = 0; h < r->num_heads; h++) {
            rotate(row + h * d, r->q_norm, r->eps, c, s, d, y);
            for (int64_t i = 0; i < d; i++) y[i] *= r->q_scale;
            to_bf16_row(y, d, d, r->q + (t * r->num_heads + h) * d);
        }
        const int64_t group = r->slots[t] / TILE, lane = r->slots[t] % TILE;
        for (int64_t h = 0; h < kvh; h++) {
            char *k = r->k_cache + (group * kvh + h) * bytes, *v = r->v_cache + (group * kvh + h) * bytes;
            rotate(row + (r->num_heads + h) * d, r->k_norm, r->eps, c, s, d, y);
            (r->kv_format == KV_BF16 ? write_bf16 : write_int8)(y, row + (r->num_heads + kvh + h) * d, d, lane, k, v);
        }
    }
}

void tm_rope_write(const tm_rope *r, int64_t rows) { tm_for(rows, rows < 4 ? rows : 2, rope_rows, (void *)r); }
