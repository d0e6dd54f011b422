/* Mixture of experts: routing, then each expert once over all rows that visit it. A row adds its experts in the order
 * of their numbers, so that its bits do not depend on the batch. */
#include "v4.h"

/* Activations into the format that a weight reads, and their product with it; small ones stay on this thread. */
static void v4_activate(const tm_act *a, int64_t rows) { run(rows, rows < 8 ? rows : 4, act_rows, a, rows * a->n * 8); }

static int64_t act_bytes(const tm_weight *w) {
    return w->k * (w->format == W_FP32 ? 4 : w->format == W_BF16 ? 2 : 1);
}

static void v4_product(const v4_model *m, const tm_weight *w, int64_t rows, float *out, int64_t n) {
    if (w->format == W_FP32) plain_gemm(m->act, rows, w->k, w->weight, n, w->ldo, out);
    else if (rows * w->n * w->k / 8 < SMALL_WORK) {
        gemm_job job = {rows, m->act, m->act_scale, m->act_offsets, out, n, *w};
        gemm_panels(&job, 0, rows, 0, w->n / PANEL);
    } else tm_gemm(w, rows, m->act, m->act_scale, m->act_offsets, out, n);
}

typedef struct {
    const v4_model *m;
    const v4_layer *l;
    const v4_step *s;
    const int64_t *token_ids;
} moe_job;

static void route_rows(void *arg, int64_t begin, int64_t end) {
    const moe_job *j = arg;
    const v4_model *m = j->m;
    const int64_t e = m->experts, k = m->per_token;
    for (int64_t t = begin; t < end; t++) {
        float *score = m->gate + t * e, biased[e], sum = 1e-20f;
        int64_t *ids = m->expert_ids + t * k;
        for (int64_t i = 0; i < e; i++) {
            float x = score[i];
            score[i] = sqrtf((x > 0 ? x : 0) + log1pf(expf(-fabsf(x))));
        }
        if (j->l->hash) memcpy(ids, j->l->hash + j->token_ids[t] * k, k * sizeof(int64_t));
        else {
            for (int64_t i = 0; i < e; i++) biased[i] = score[i] + j->l->bias[i];
            for (int64_t n = 0; n < k; n++) {
                int64_t best = 0;
                for (int64_t i = 1; i < e; i++)
                    if (biased[i] > biased[best]) best = i;
                ids[n] = best;
                biased[best] = -INFINITY;
            }
        }
        for (int64_t n = 1; n < k; n++) /* ascending: the order in which they are added */
            for (int64_t i = n; i > 0 && ids[i] < ids[i - 1]; i--) {
                int64_t swap = ids[i];
                ids[i] = ids[i - 1];
                ids[i - 1] = swap;
            }
        for (int64_t n = 0; n < k; n++) sum += score[ids[n]];
        for (int64_t n = 0; n < k; n++) m->expert_weights[t * k + n] = score[ids[n]] / sum * m->routed_scaling;
    }
}

/* expert_rows: (row, slot) pairs t * k + n by expert; expert_start [E + 1]. */
static void group_rows(const v4_model *m, int64_t rows) {
    const int64_t e = m->experts, n = rows * m->per_token;
    int64_t *start = m->expert_start;
    memset(start, 0, (e + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) start[m->expert_ids[i] + 1]++;
    for (int64_t i = 0; i < e; i++) start[i + 1] += start[i];
    int64_t next[e];
    memcpy(next, start, e * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) m->expert_rows[next[m->expert_ids[i]]++] = i;
}

static void copy_act(const v4_model *m, const tm_weight *w, int64_t from, int64_t to) {
    const int64_t size = act_bytes(w), groups = w->k / GROUP, offsets = groups * offsets_per_group(w->format);
    memcpy((char *)m->act_rows + to * size, (const char *)m->act + from * size, size);
    if (w->format == W_BF16 || w->format == W_FP32) return;
    memcpy(m->act_rows_scale + to * groups, m->act_scale + from * groups, groups * sizeof(float));
    memcpy(m->act_rows_offsets + to * offsets, m->act_offsets + from * offsets, offsets * sizeof(int32_t));
}

/* One product on this thread. Rows begin at `row` of the gathered activations and of `out` [.., ldo]. */
static void expert_gemm(const v4_model *m, const tm_weight *w, int64_t row, int64_t rows, float *out, int64_t n) {
    const int64_t size = act_bytes(w), groups = w->k / GROUP;
    if (w->format == W_FP32) {
        plain_job plain = {(float *)m->act_rows + row * w->k, w->weight, rows, n, w->k, w->ldo, out + row * w->ldo};
        plain_chunk(&plain, 0, plain_chunks(&plain));
        return;
    }
    gemm_job job = {rows, (char *)m->act_rows + row * size, m->act_rows_scale + row * groups,
                    m->act_rows_offsets + row * groups * offsets_per_group(w->format), out + row * w->ldo, n, *w};
    gemm_panels(&job, 0, rows, 0, w->n / PANEL);
}

/* First product of each expert: act_rows was filled by gather_rows. */
static void expert_up(void *arg, int64_t begin, int64_t end) {
    const moe_job *j = arg;
    const v4_model *m = j->m;
    for (int64_t e = begin; e < end; e++) {
        int64_t at = m->expert_start[e], rows = m->expert_start[e + 1] - at;
        if (rows) expert_gemm(m, &j->l->w13[e], at, rows, m->hidden_rows, 2 * m->inner);
    }
}

static void expert_down(void *arg, int64_t begin, int64_t end) {
    const moe_job *j = arg;
    const v4_model *m = j->m;
    for (int64_t e = begin; e < end; e++) {
        int64_t at = m->expert_start[e], rows = m->expert_start[e + 1] - at;
        if (rows) expert_gemm(m, &j->l->w2[e], at, rows, m->routed, m->hidden);
    }
}

static void gather_rows(void *arg, int64_t begin, int64_t end) {
    const moe_job *j = arg;
    for (int64_t i = begin; i < end; i++) copy_act(j->m, j->l->w13, j->m->expert_rows[i] / j->m->per_token, i);
}

/* y [T, C] holds the shared expert; `routed` rows lie by expert, hence ascending for every token. */
static void scatter_rows(void *arg, int64_t begin, int64_t end) {
    const moe_job *j = arg;
    const v4_model *m = j->m;
    const int64_t k = m->per_token, c = m->hidden, *place = m->expert_ids;
    for (int64_t t = begin; t < end; t++) {
        float *y = m->y + t * c, sum[c];
        memset(sum, 0, sizeof sum);
        for (int64_t n = 0; n < k; n++) {
            const float w = m->expert_weights[t * k + n], *row = m->routed + place[t * k + n] * c;
            for (int64_t i = 0; i < c; i++) sum[i] += w * row[i];
        }
        for (int64_t i = 0; i < c; i++) y[i] += sum[i];
    }
}

/* m->x [T, C], normalised -> m->y [T, C] */
static void v4_moe(const v4_model *m, const v4_layer *l, const v4_step *s, const int64_t *token_ids) {
    const int64_t rows = s->num_tokens, n = rows * m->per_token, c = m->hidden, f = m->inner;
    moe_job job = {m, l, s, token_ids};
    plain_gemm(m->x, rows, c, l->gate, m->experts, m->experts, m->gate);
    run(rows, 1 + 2048 / m->experts, route_rows, &job, rows * 40 * m->experts);
    group_rows(m, rows);
    /* All experts and the shared one read activations of the same format and width. */
    tm_act a = {m->x, c, c, l->shared_w13.k, NULL, 0.0f, 0, 0.0f, l->shared_w13.format, m->act, m->act_scale, m->act_offsets};
    v4_activate(&a, rows);
    run(n, 16, gather_rows, &job, n * c / 8);
    v4_product(m, &l->shared_w13, rows, m->wide, 2 * f);
    run(m->experts, 1, expert_up, &job, n * c * f);
    tm_act down = {m->hidden_rows, 2 * f, f, l->w2[0].k, NULL, 0.0f, 1, m->limit, l->w2[0].format, m->act_rows,
                   m->act_rows_scale, m->act_rows_offsets};
    v4_activate(&down, n);
    run(m->experts, 1, expert_down, &job, n * c * f);
    tm_act shared = {m->wide, 2 * f, f, l->shared_w2.k, NULL, 0.0f, 1, m->limit, l->shared_w2.format, m->act,
                     m->act_scale, m->act_offsets};
    v4_activate(&shared, rows);
    v4_product(m, &l->shared_w2, rows, m->y, c);
    for (int64_t i = 0; i < n; i++) m->expert_ids[m->expert_rows[i]] = i; /* from here on: place of (row, slot) */
    run(rows, 1 + 4096 / c, scatter_rows, &job, n * c);
}
