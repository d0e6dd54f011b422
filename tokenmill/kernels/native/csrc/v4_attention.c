/* Attention of DeepSeek V4: one kv row per token that is key and value, window rows and compressed rows, a sink.
 *
 * Online softmax that starts at the sink (maximum = sink, total = 1, nothing weighted). Keys come in tiles of 64,
 * aligned to absolute positions or entry numbers; a row's tiles come in one order whatever rows share them.
 */
#include "v4.h"

typedef struct {
    const v4_model *m;
    const v4_layer *l;
    const v4_step *s;
    const v4_table *window;
    int64_t splits;              /* parts of the heads, for batches with too few rows for all threads */
} attend_job;

/* Keys of a tile, by row [KEYS][D] and by channel [D][KEYS]. */
typedef struct {
    float *rows, *columns;
} key_tile;

static void put_key(const v4_model *m, const key_tile *tile, const void *cache, int64_t slot, int64_t at) {
    const int64_t d = m->head_dim;
    float *row = tile->rows + at * d;
    decode_row(&m->kv, cache, slot, row);
    for (int64_t i = 0; i < d; i++) tile->columns[i * KEYS + at] = row[i];
}

static inline __attribute__((always_inline)) void heads_n(const float *q, const int N, int64_t d, const key_tile *tile,
                                                          int lo, int hi, float scale, float *top, float *total,
                                                          float *out) {
    f16v a[4][4];
    float p[4][KEYS], keep[4];
    for (int h = 0; h < N; h++)
        for (int c = 0; c < 4; c++) a[h][c] = (f16v){0};
    for (int64_t i = 0; i < d; i++) {
        f16v k[4];
        for (int c = 0; c < 4; c++) k[c] = ld16(tile->columns + i * KEYS + c * LANES);
        for (int h = 0; h < N; h++)
            for (int c = 0; c < 4; c++) a[h][c] += k[c] * q[h * d + i];
    }
    for (int h = 0; h < N; h++) {
        for (int c = 0; c < 4; c++) st16(p[h] + c * LANES, a[h][c] * scale);
        for (int k = 0; k < lo; k++) p[h][k] = -INFINITY;
        for (int k = hi; k < KEYS; k++) p[h][k] = -INFINITY;
        float now = top[h];
        for (int k = lo; k < hi; k++) now = p[h][k] > now ? p[h][k] : now;
        f16v sum = {0};
        for (int c = 0; c < 4; c++) {
            f16v e = exp16(ld16(p[h] + c * LANES) - now);
            sum += e;
            st16(p[h] + c * LANES, e);
        }
        keep[h] = expf(top[h] - now);
        total[h] = total[h] * keep[h] + sum16(sum);
        top[h] = now;
    }
    for (int64_t i = 0; i < d; i += LANES) {
        f16v o[4];
        for (int h = 0; h < N; h++) o[h] = ld16(out + h * d + i) * keep[h];
        for (int k = lo; k < hi; k++) {
            f16v v = ld16(tile->rows + k * d + i);
            for (int h = 0; h < N; h++) o[h] += v * p[h][k];
        }
        for (int h = 0; h < N; h++) st16(out + h * d + i, o[h]);
    }
}

/* Keys lo .. hi of the tile join the softmax of `heads` heads of one row. */
static void join(const float *q, int64_t heads, int64_t d, const key_tile *tile, int64_t lo, int64_t hi, float scale,
                 float *top, float *total, float *out) {
    if (lo >= hi) return;
    int64_t h = 0;
    for (; h + 4 <= heads; h += 4)
        heads_n(q + h * d, 4, d, tile, (int)lo, (int)hi, scale, top + h, total + h, out + h * d);
    for (; h < heads; h++) heads_n(q + h * d, 1, d, tile, (int)lo, (int)hi, scale, top + h, total + h, out + h * d);
}

static inline int64_t clamp_key(int64_t x) { return x < 0 ? 0 : x > KEYS ? KEYS : x; }

static void attend_unit(const attend_job *j, const int64_t *unit, int64_t h0, int64_t heads) {
    const v4_model *m = j->m;
    const v4_step *s = j->s;
    const int64_t first = unit[0], rows = unit[1], b = unit[2], d = m->head_dim, all = m->heads, size = s->block_size;
    const float scale = 1.0f / sqrtf((float)d);
    float by_row[KEYS * d], by_column[d * KEYS], top[rows * heads], total[rows * heads];
    const key_tile tile = {by_row, by_column};
    memset(by_column, 0, sizeof by_column);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            top[r * heads + h] = j->l->sink[h0 + h];
            total[r * heads + h] = 1.0f;
            memset(m->mixed + ((first + r) * all + h0 + h) * d, 0, d * sizeof(float));
        }
#define JOIN(r, lo, hi)                                                                                       \
    join(m->q + ((first + (r)) * all + h0) * d, heads, d, &tile, lo, hi, scale, top + (r) * heads,             \
         total + (r) * heads, m->mixed + ((first + (r)) * all + h0) * d)
    const int64_t p0 = s->positions[first], p1 = s->positions[first + rows - 1], present = j->window->first[b] * size;
    int64_t start = p0 - m->window + 1 > present ? p0 - m->window + 1 : present;
    start = start > 0 ? start : 0;
    for (int64_t at = start / KEYS * KEYS; at <= p1; at += KEYS) {
        for (int64_t p = at > start ? at : start; p < at + KEYS && p <= p1; p++)
            put_key(m, &tile, j->l->window, slot_of(j->window, b, p, size), p - at);
        for (int64_t r = 0; r < rows; r++) {
            int64_t lo = p0 + r - m->window + 1 > present ? p0 + r - m->window + 1 : present;
            JOIN(r, clamp_key(lo - at), clamp_key(p0 + r + 1 - at));
        }
    }
    const int64_t ratio = j->l->ratio;
    if (ratio > 4)
        for (int64_t at = 0; at < (p1 + 1) / ratio; at += KEYS) {
            for (int64_t e = at; e < at + KEYS && e < (p1 + 1) / ratio; e++)
                put_key(m, &tile, j->l->entries, slot_of(&s->hca, b, e, size / ratio), e - at);
            for (int64_t r = 0; r < rows; r++) JOIN(r, 0, clamp_key((p0 + r + 1) / ratio - at));
        }
    if (ratio == 4)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t *chosen = m->chosen + (first + r) * m->topk, n = m->num_chosen[first + r];
            for (int64_t at = 0; at < n; at += KEYS) {
                for (int64_t e = at; e < at + KEYS && e < n; e++)
                    put_key(m, &tile, j->l->entries, slot_of(&s->csa, b, chosen[e], size / 4), e - at);
                JOIN(r, 0, clamp_key(n - at));
            }
        }
#undef JOIN
    const int64_t half = m->rope_dim / 2, kind = ratio ? s->num_tokens : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            float *o = m->mixed + ((first + r) * all + h0 + h) * d, inverse = 1.0f / total[r * heads + h];
            for (int64_t i = 0; i < d; i++) o[i] *= inverse;
            turn(o, d, m->rope_dim, m->cos + (kind + first + r) * half, m->sin + (kind + first + r) * half, -1.0f);
        }
}

static void attend_units(void *arg, int64_t begin, int64_t end) {
    const attend_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i % j->splits, h0 = j->m->heads * part / j->splits, h1 = j->m->heads * (part + 1) / j->splits;
        attend_unit(j, j->s->units + i / j->splits * 3, h0, h1 - h0);
    }
}

static void v4_attend(const v4_model *m, const v4_layer *l, const v4_step *s, const v4_table *window) {
    attend_job job = {m, l, s, window, 1};
    int64_t threads = tm_num_threads();
    if (s->num_units < 2 * threads && m->heads >= 4 * threads) job.splits = threads;
    run(s->num_units * job.splits, 1, attend_units, &job, s->num_tokens * m->window * m->heads * m->head_dim);
}

/* Queries: per head normed without a weight, then turned. kv: normed, turned, into the window cache. */
typedef struct {
    const v4_model *m;
    const v4_layer *l;
    const v4_step *s;
    const v4_table *window;
} qkv_job;

static void qkv_rows(void *arg, int64_t begin, int64_t end) {
    const qkv_job *j = arg;
    const v4_model *m = j->m;
    const int64_t d = m->head_dim, half = m->rope_dim / 2, kind = j->l->ratio ? j->s->num_tokens : 0;
    float kv[d];
    for (int64_t t = begin; t < end; t++) {
        const float *c = m->cos + (kind + t) * half, *s = m->sin + (kind + t) * half;
        for (int64_t h = 0; h < m->heads; h++) {
            float *q = m->q + (t * m->heads + h) * d;
            float r = 1.0f / sqrtf(sum_squares(q, d) / (float)d + m->eps);
            for (int64_t i = 0; i < d; i++) q[i] *= r;
            turn(q, d, m->rope_dim, c, s, 1.0f);
        }
        norm_row(m->qkv + t * (m->rank + d) + m->rank, j->l->kv_norm, m->eps, d, kv);
        turn(kv, d, m->rope_dim, c, s, 1.0f);
        encode_row(&m->kv, kv, j->l->window, slot_of(j->window, j->s->seq_ids[t], j->s->positions[t], j->s->block_size));
    }
}
