/* Row-wise parts of DeepSeek V4: plain float32 products, cached rows in and out, rotation, hyper-connections. */
#include "v4.h"

/* ---- out[T, N] = x[T, K] w[N, K]^T in float32: small weights that are computed in full precision ---- */

static inline __attribute__((always_inline)) void dots(const float *const *x, const float *const *w, const int R,
                                                       const int C, int64_t k, float out[4][4]) {
    f16v a[4][4];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) a[r][c] = (f16v){0};
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) {
        f16v b[4];
        for (int c = 0; c < C; c++) b[c] = ld16(w[c] + i);
        for (int r = 0; r < R; r++) {
            f16v v = ld16(x[r] + i);
            for (int c = 0; c < C; c++) a[r][c] += v * b[c];
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            float s = sum16(a[r][c]);
            for (int64_t j = i; j < k; j++) s += x[r][j] * w[c][j];
            out[r][c] = s;
        }
}

typedef struct {
    const float *x, *w;
    int64_t rows, n, k, ldo;
    float *out;
} plain_job;

static void plain_chunk(void *arg, int64_t begin, int64_t end) {
    const plain_job *job = arg;
    const int64_t columns = (job->n + 3) / 4;
    for (int64_t at = begin; at < end; at++) {
        int64_t r0 = at / columns * 4, c0 = at % columns * 4;
        int rows = job->rows - r0 < 4 ? (int)(job->rows - r0) : 4, cols = job->n - c0 < 4 ? (int)(job->n - c0) : 4;
        const float *x[4], *w[4];
        float out[4][4];
        for (int r = 0; r < 4; r++) x[r] = job->x + (r0 + (r < rows ? r : 0)) * job->k;
        for (int c = 0; c < 4; c++) w[c] = job->w + (c0 + (c < cols ? c : 0)) * job->k;
        if (rows == 4) dots(x, w, 4, 4, job->k, out);
        else for (int r = 0; r < rows; r++) dots(x + r, w, 1, 4, job->k, out + r);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++) job->out[(r0 + r) * job->ldo + c0 + c] = out[r][c];
    }
}

static int64_t plain_chunks(const plain_job *job) { return (job->rows + 3) / 4 * ((job->n + 3) / 4); }

static void plain_gemm(const float *x, int64_t rows, int64_t k, const float *w, int64_t n, int64_t ldo, float *out) {
    plain_job job = {x, w, rows, n, k, ldo, out};
    run(plain_chunks(&job), 1 + 65536 / (16 * (k + 1)), plain_chunk, &job, rows * k * n);
}

/* ---- cached rows ---- */

static float fp8_values[256];

static void init_fp8(void) {
    for (int i = 0; i < 256; i++) {
        int exponent = i >> 3 & 15, mantissa = i & 7;
        float v = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
        fp8_values[i] = (i & 127) == 127 ? NAN : i & 128 ? -v : v;
    }
}

/* Nearest e4m3, ties to even, of |f| <= 448: the mantissa is rounded by adding half of what is cut off. */
static inline uint8_t to_fp8(float f) {
    uint32_t u, sign;
    memcpy(&u, &f, 4);
    sign = u >> 24 & 128;
    u &= 0x7fffffff;
    if (u < 121u << 23) { /* below 2^-6 the steps are 2^-9 wide: let a float addition round */
        float v;
        memcpy(&v, &u, 4);
        return (uint8_t)(sign | (uint32_t)rintf(v * 512.0f));
    }
    u += 0x7ffff + (u >> 20 & 1);
    return (uint8_t)(sign | ((u >> 20) - (120u << 3)));
}

static const float fp4_values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};

static inline uint8_t to_fp4(float x) {
    float a = fabsf(x);
    int code = (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(code | (x < 0 ? 8 : 0));
}

/* Exponent e of the least power of two that is not below x > 0. */
static inline int ceil_log2(float x) {
    int e;
    return frexpf(x, &e) == 0.5f ? e - 1 : e;
}

static void encode_row(const v4_layout *l, const float *x, void *cache, int64_t slot) {
    uint8_t *out = (uint8_t *)cache + slot * l->row_bytes;
    if (l->dtype == ROW_FP32) {
        memcpy(out, x, l->width * 4);
        return;
    }
    if (l->dtype == ROW_BF16) {
        for (int64_t i = 0; i < l->width; i++) ((bf16 *)out)[i] = f32_to_bf16(x[i]);
        return;
    }
    const int is_fp4 = l->dtype == ROW_FP4;
    const int64_t n = l->width - l->num_plain, codes = is_fp4 ? n / 2 : n;
    const float largest = is_fp4 ? 6.0f : 448.0f, least = is_fp4 ? 6.0f * 0x1p-126f : 1e-4f;
    uint8_t *scales = out + codes + 2 * l->num_plain;
    memset(out, 0, l->row_bytes);
    for (int64_t g = 0, s = 0; g < n; g += l->group, s++) {
        int64_t end = g + l->group < n ? g + l->group : n;
        float top = least;
        for (int64_t i = g; i < end; i++) {
            float v = fabsf(bf16_to_f32(f32_to_bf16(x[i])));
            top = v > top ? v : top;
        }
        int e = ceil_log2(top / largest);
        float inverse = ldexpf(1.0f, -e), scale = ldexpf(1.0f, e);
        for (int64_t i = g; i < end; i++) {
            float v = bf16_to_f32(f32_to_bf16(x[i])) * inverse;
            if (is_fp4) out[i / 2] |= (uint8_t)(to_fp4(v) << (i % 2 * 4));
            else out[i] = to_fp8(v);
        }
        if (l->bytes_per_scale == 4) memcpy(scales + 4 * s, &scale, 4);
        else scales[s] = (uint8_t)(e + 127);
    }
    for (int64_t i = 0; i < l->num_plain; i++) {
        bf16 v = f32_to_bf16(x[n + i]);
        memcpy(out + codes + 2 * i, &v, 2);
    }
}

static void decode_row(const v4_layout *l, const void *cache, int64_t slot, float *y) {
    const uint8_t *in = (const uint8_t *)cache + slot * l->row_bytes;
    if (l->dtype == ROW_FP32) {
        memcpy(y, in, l->width * 4);
        return;
    }
    if (l->dtype == ROW_BF16) {
        for (int64_t i = 0; i < l->width; i++) y[i] = bf16_to_f32(((const bf16 *)in)[i]);
        return;
    }
    const int64_t n = l->width - l->num_plain, codes = l->dtype == ROW_FP4 ? n / 2 : n;
    const uint8_t *scales = in + codes + 2 * l->num_plain;
    for (int64_t g = 0, s = 0; g < n; g += l->group, s++) {
        int64_t end = g + l->group < n ? g + l->group : n;
        float scale;
        if (l->bytes_per_scale == 4) memcpy(&scale, scales + 4 * s, 4);
        else {
            uint32_t u = (uint32_t)scales[s] << 23;
            memcpy(&scale, &u, 4);
        }
        if (l->dtype == ROW_FP4)
            for (int64_t i = g; i < end; i++) y[i] = fp4_values[in[i / 2] >> (i % 2 * 4) & 15] * scale;
        else
            for (int64_t i = g; i < end; i++) y[i] = fp8_values[in[i]] * scale;
    }
    for (int64_t i = 0; i < l->num_plain; i++) {
        bf16 v;
        memcpy(&v, in + codes + 2 * i, 2);
        y[n + i] = bf16_to_f32(v);
    }
}

/* H x / sqrt(block) within blocks of the largest power of two that divides n. */
static void hadamard_row(float *x, int64_t n) {
    const int64_t size = n & -n;
    const float scale = 1.0f / sqrtf((float)size);
    for (int64_t b = 0; b < n; b += size) {
        for (int64_t half = 1; half < size; half *= 2)
            for (int64_t i = b; i < b + size; i += 2 * half)
                for (int64_t j = i; j < i + half; j++) {
                    float p = x[j], q = x[j + half];
                    x[j] = p + q;
                    x[j + half] = p - q;
                }
        for (int64_t i = b; i < b + size; i++) x[i] *= scale;
    }
}

/* ---- rotation of the last channels, interleaved pairs ---- */

static inline void turn(float *x, int64_t n, int64_t rope, const float *c, const float *s, float sign) {
    float *p = x + n - rope;
    for (int64_t i = 0; i < rope / 2; i++) {
        float e = p[2 * i], o = p[2 * i + 1], sine = sign * s[i];
        p[2 * i] = e * c[i] - o * sine;
        p[2 * i + 1] = o * c[i] + e * sine;
    }
}

static void angles(const float *freq, int64_t half, int64_t position, float *c, float *s) {
    for (int64_t i = 0; i < half; i++) {
        float angle = (float)position * freq[i];
        c[i] = cosf(angle);
        s[i] = sinf(angle);
    }
}

/* ---- hyper-connections ---- */

static inline float sigmoid1(float x) { return 1.0f / (1.0f + expf(-x)); }

static void sinkhorn_row(float *z, int n, int64_t iters, float eps) {
    for (int i = 0; i < n; i++) {
        float top = z[i * n], sum = 0.0f;
        for (int j = 1; j < n; j++) top = z[i * n + j] > top ? z[i * n + j] : top;
        for (int j = 0; j < n; j++) sum += z[i * n + j] = expf(z[i * n + j] - top);
        for (int j = 0; j < n; j++) z[i * n + j] = z[i * n + j] / sum + eps;
    }
    for (int64_t k = 0; k < iters; k++) {
        for (int i = 0; k && i < n; i++) {
            float sum = eps;
            for (int j = 0; j < n; j++) sum += z[i * n + j];
            float inverse = 1.0f / sum;
            for (int j = 0; j < n; j++) z[i * n + j] *= inverse;
        }
        for (int j = 0; j < n; j++) {
            float sum = eps;
            for (int i = 0; i < n; i++) sum += z[i * n + j];
            float inverse = 1.0f / sum;
            for (int i = 0; i < n; i++) z[i * n + j] *= inverse;
        }
    }
}

/* What lies between two blocks: the last one's output joins the streams, the next one's input leaves them. */
typedef struct {
    const v4_model *m;
    float *streams;
    const float *y;             /* [T, C] output of the last block, NULL at the beginning */
    const v4_connection *next;  /* NULL at the end */
    const float *norm;
    int is_head;                /* `next` is the final collapse */
} boundary_job;

static void join_rows(void *arg, int64_t begin, int64_t end) {
    const boundary_job *job = arg;
    const int64_t c = job->m->hidden, n = job->m->streams;
    float out[n * c];
    for (int64_t t = begin; t < end; t++) {
        float *x = job->streams + t * n * c;
        const float *y = job->y + t * c, *post = job->m->post + t * n, *comb = job->m->comb + t * n * n;
        for (int64_t k = 0; k < n; k++) {
            float *o = out + k * c;
            for (int64_t i = 0; i < c; i++) o[i] = post[k] * y[i];
            for (int64_t j = 0; j < n; j++) {
                const float w = comb[j * n + k], *from = x + j * c;
                for (int64_t i = 0; i < c; i++) o[i] += w * from[i];
            }
        }
        memcpy(x, out, n * c * sizeof(float));
    }
}

static void leave_rows(void *arg, int64_t begin, int64_t end) {
    const boundary_job *job = arg;
    const v4_model *m = job->m;
    const int64_t c = m->hidden, n = m->streams, num_mixes = job->is_head ? n : (2 + n) * n;
    const float *scale = job->next->scale, *base = job->next->base;
    float u[c], pre[n];
    for (int64_t t = begin; t < end; t++) {
        const float *x = job->streams + t * n * c;
        float *mix = m->mixes + t * num_mixes;
        float r = 1.0f / sqrtf(sum_squares(x, n * c) / (float)(n * c) + m->eps);
        for (int64_t i = 0; i < n; i++) pre[i] = sigmoid1(mix[i] * r * scale[0] + base[i]) + m->hc_eps;
        if (!job->is_head) {
            float *post = m->post + t * n, *comb = m->comb + t * n * n;
            for (int64_t i = 0; i < n; i++) post[i] = 2.0f * sigmoid1(mix[n + i] * r * scale[1] + base[n + i]);
            for (int64_t i = 0; i < n * n; i++) comb[i] = mix[2 * n + i] * r * scale[2] + base[2 * n + i];
            sinkhorn_row(comb, (int)n, m->iters, m->hc_eps);
        }
        for (int64_t i = 0; i < c; i++) u[i] = pre[0] * x[i];
        for (int64_t j = 1; j < n; j++)
            for (int64_t i = 0; i < c; i++) u[i] += pre[j] * x[j * c + i];
        norm_row(u, job->norm, m->eps, c, m->x + t * c);
    }
}

static void boundary(const v4_model *m, float *streams, int64_t rows, const float *y, const v4_connection *next,
                     const float *norm, int is_head) {
    boundary_job job = {m, streams, y, next, norm, is_head};
    const int64_t n = m->streams, grain = 1 + 8192 / (n * m->hidden), work = rows * n * n * (m->hidden + 200);
    if (y) run(rows, grain, join_rows, &job, work);
    if (!next) return;
    const int64_t num_mixes = is_head ? n : (2 + n) * n;
    plain_gemm(streams, rows, n * m->hidden, next->fn, num_mixes, num_mixes, m->mixes);
    run(rows, grain, leave_rows, &job, work);
}
