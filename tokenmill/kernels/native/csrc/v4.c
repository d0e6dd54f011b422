/* A whole step of DeepSeek V4 in one call: the order of operations, nothing else. */
#include "v4.h"

static tm_act v4_act(const v4_model *m, const float *x, int64_t ldx, int64_t n, const float *norm, const tm_weight *w) {
    return (tm_act){x, ldx, n, w->k, norm, m->eps, 0, 0.0f, w->format, m->act, m->act_scale, m->act_offsets};
}

typedef struct {
    const v4_model *m;
    const v4_step *s;
} angle_job;

static void angle_rows(void *arg, int64_t begin, int64_t end) {
    const angle_job *j = arg;
    const int64_t half = j->m->rope_dim / 2, rows = j->s->num_tokens;
    for (int64_t t = begin; t < end; t++) {
        angles(j->m->sliding_freq, half, j->s->positions[t], j->m->cos + t * half, j->m->sin + t * half);
        angles(j->m->compress_freq, half, j->s->positions[t], j->m->cos + (rows + t) * half, j->m->sin + (rows + t) * half);
    }
}

static void v4_angles(const v4_model *m, const v4_step *s) {
    angle_job job = {m, s};
    run(s->num_tokens, 16, angle_rows, &job, s->num_tokens * m->rope_dim * 40);
}

static void v4_compress(const v4_model *m, const v4_layer *l, const v4_step *s, float *proj) {
    const int64_t rows = s->num_tokens, parts = l->ratio == 4 ? 4 : 2;
    const int64_t width = parts * (m->head_dim + (l->ratio == 4 ? m->index_dim : 0));
    plain_gemm(m->x, rows, m->hidden, l->compress, width, width, proj);
    if (l->ratio > 4) {
        hca_compress(m, l, s, proj);
        return;
    }
    csa_compress(m, l, s, proj);
    index_job job = {m, l, s};
    int64_t most = 0;
    for (int64_t t = 0; t < rows; t++) most = s->positions[t] + 1 > most ? s->positions[t] + 1 : most;
    if (most / 4 > m->topk) { /* the latent rows are in act already, from the main queries */
        v4_product(m, &l->index_wq_b, rows, m->iq, m->index_heads * m->index_dim);
        plain_gemm(m->x, rows, m->hidden, l->index_weights, m->index_heads, m->index_heads, m->iw);
        run(rows, 2, index_queries, &job, rows * m->index_heads * m->index_dim * 4);
    }
    choose_entries(&job, most);
}

/* m->x [T, C], normalised -> m->y [T, C] */
static void v4_attention(const v4_model *m, const v4_layer *l, const v4_step *s, const v4_table *window, float *proj) {
    const int64_t rows = s->num_tokens, d = m->head_dim, per_group = m->heads * d / m->groups;
    tm_act a = v4_act(m, m->x, m->hidden, m->hidden, NULL, &l->qkv);
    v4_activate(&a, rows);
    v4_product(m, &l->qkv, rows, m->qkv, m->rank + d);
    a = v4_act(m, m->qkv, m->rank + d, m->rank, l->q_norm, &l->wq_b);
    v4_activate(&a, rows);
    v4_product(m, &l->wq_b, rows, m->q, m->heads * d);
    qkv_job job = {m, l, s, window};
    run(rows, 2, qkv_rows, &job, rows * m->heads * d * 4);
    if (l->ratio) v4_compress(m, l, s, proj);
    v4_attend(m, l, s, window);
    for (int64_t g = 0; g < m->groups; g++) {
        a = v4_act(m, m->mixed + g * per_group, m->heads * d, per_group, NULL, &l->wo_a[g]);
        v4_activate(&a, rows);
        v4_product(m, &l->wo_a[g], rows, m->z + g * m->o_rank, m->o_rank);
    }
    a = v4_act(m, m->z, m->groups * m->o_rank, m->groups * m->o_rank, NULL, &l->wo_b);
    v4_activate(&a, rows);
    v4_product(m, &l->wo_b, rows, m->y, m->hidden);
}

static void v4_block(const v4_model *m, const v4_layer *l, const v4_step *s, const v4_table *window, float *streams,
                     const float *y, const int64_t *token_ids, float *proj) {
    boundary(m, streams, s->num_tokens, y, &l->hc_attn, l->attn_norm, 0);
    v4_attention(m, l, s, window, proj);
    boundary(m, streams, s->num_tokens, m->y, &l->hc_ffn, l->ffn_norm, 0);
    v4_moe(m, l, s, token_ids);
}

static void embed_row(const v4_model *m, int64_t id, float *x) {
    const int64_t c = m->hidden;
    if (m->embed_is_fp32) memcpy(x, (const float *)m->embed + id * c, c * sizeof(float));
    else for (int64_t i = 0; i < c; i++) x[i] = bf16_to_f32(((const bf16 *)m->embed)[id * c + i]);
}

void tm_v4_init(void) { init_fp8(); }

void tm_v4_step(const v4_model *m, const v4_step *s) {
    const int64_t rows = s->num_tokens, c = m->hidden, n = m->streams, all = rows * n * c;
    v4_angles(m, s);
    for (int64_t t = 0; t < rows; t++) {
        float *x = s->streams + t * n * c;
        embed_row(m, s->token_ids[t], x);
        for (int64_t k = 1; k < n; k++) memcpy(x + k * c, x, c * sizeof(float));
    }
    for (int64_t i = 0; i < m->num_layers; i++) {
        v4_block(m, &m->layers[i], s, &s->window, s->streams, i ? m->y : NULL, s->token_ids, s->proj[i]);
        if (s->trace_streams) {
            boundary(m, s->streams, rows, m->y, NULL, NULL, 0);
            memcpy(s->trace_streams + i * all, s->streams, all * sizeof(float));
            memset(m->y, 0, rows * c * sizeof(float)); /* joined already: what follows must add nothing */
            for (int64_t t = 0; t < rows; t++)
                for (int64_t j = 0; j < n; j++)
                    for (int64_t k = 0; k < n; k++) m->comb[(t * n + j) * n + k] = j == k;
        }
        if (s->trace_chosen && m->layers[i].ratio == 4)
            for (int64_t t = 0; t < rows; t++)
                for (int64_t k = 0; k < m->topk; k++)
                    s->trace_chosen[(i * rows + t) * m->topk + k] =
                        k < m->num_chosen[t] ? m->chosen[t * m->topk + k] : -1;
    }
    boundary(m, s->streams, rows, m->y, NULL, NULL, 0);
}

/* streams [T, N, C] -> hidden states [T, C], normalised */
void tm_v4_collapse(const v4_model *m, const v4_collapse *to, float *streams, int64_t rows, float *hidden) {
    boundary(m, streams, rows, NULL, &to->hc_head, to->norm, 1);
    memcpy(hidden, m->x, rows * m->hidden * sizeof(float));
}

void tm_v4_logits(const v4_model *m, const float *hidden, int64_t rows, float *logits) {
    tm_act a = v4_act(m, hidden, m->hidden, m->hidden, NULL, &m->head);
    v4_activate(&a, rows);
    v4_product(m, &m->head, rows, logits, m->vocab);
}

/* Write the states after `after[b]` tokens, of which those from certain[b] on were drafts; see v4_step.proj. */
void tm_v4_commit(const v4_model *m, const v4_step *s, const int64_t *after) {
    for (int64_t i = 0; i < m->num_layers; i++) {
        const v4_layer *l = &m->layers[i];
        if (l->ratio == 4) {
            csa_job jobs[2] = {csa_main(m, l, s, s->proj[i]), csa_index(m, l, s, s->proj[i])};
            for (int k = 0; k < 2; k++) {
                jobs[k].before = s->certain;
                jobs[k].after = after;
                run(s->num_seqs, 4, csa_states, &jobs[k], 0);
            }
        } else if (l->ratio) {
            hca_job job = {m, l, s, s->proj[i], s->certain, after, 0};
            run(s->num_seqs, 1, hca_seqs, &job, 0);
        }
    }
}

typedef struct {
    v4_layer layer;
    tm_weight e_proj, h_proj;
    const float *enorm, *hnorm;
    v4_collapse collapse;
} v4_mtp;

/* One drafting pass: streams in (trunk's, or of the pass before) -> s->streams. next_ids follow the positions. */
void tm_v4_mtp(const v4_model *m, const v4_mtp *mtp, const v4_step *s, const float *streams, const int64_t *next_ids) {
    const int64_t rows = s->num_tokens, c = m->hidden, n = m->streams;
    v4_angles(m, s);
    for (int64_t t = 0; t < rows; t++) embed_row(m, next_ids[t], m->x + t * c);
    tm_act a = v4_act(m, m->x, c, c, mtp->enorm, &mtp->e_proj);
    v4_activate(&a, rows);
    v4_product(m, &mtp->e_proj, rows, m->y, c);
    for (int64_t k = 0; k < n; k++) { /* every stream of all rows: rows of the streams lie n C apart */
        a = v4_act(m, streams + k * c, n * c, c, mtp->hnorm, &mtp->h_proj);
        v4_activate(&a, rows);
        v4_product(m, &mtp->h_proj, rows, m->x, c);
        for (int64_t t = 0; t < rows; t++)
            for (int64_t i = 0; i < c; i++) s->streams[(t * n + k) * c + i] = m->x[t * c + i] + m->y[t * c + i];
    }
    v4_block(m, &mtp->layer, s, &s->mtp_window, s->streams, NULL, next_ids, NULL);
    boundary(m, s->streams, rows, m->y, NULL, NULL, 0);
}
