/* A whole step of a Llama-family model in one call: the order of operations, nothing else. */
#include "tm.h"

typedef struct {
    const float *attn_norm, *ffn_norm, *q_norm, *k_norm;
    tm_weight qkv, o, gate_up, down;
    char *k_cache, *v_cache;
} tm_layer;

typedef struct {
    int64_t num_layers, hidden, inner, num_heads, num_kv_heads, head_dim, heads_per_unit, kv_format;
    float eps, q_scale;
    const bf16 *embed;
    const float *final_norm, *cos, *sin;
    const tm_layer *layers;
    tm_weight head;
    int64_t vocab;
    /* scratch for the largest step: [T, ...] */
    float *x, *wide, *mixed;     /* residual stream; qkv or gate and up; attention output */
    void *act;
    float *act_scale;
    int32_t *act_offsets;
    bf16 *q;
} tm_llama;

typedef struct {
    int64_t num_tokens, num_units, stride;
    const int64_t *token_ids, *positions, *slots, *units, *tables;
    float *hidden;               /* [T, C]: residual stream before the final norm */
} tm_step;

static tm_act activation(const tm_llama *m, const float *x, int64_t n, const float *norm, const tm_weight *w) {
    return (tm_act){x, n, n, w->k, norm, m->eps, 0, 0.0f, w->format, m->act, m->act_scale, m->act_offsets};
}

static void product(const tm_llama *m, const tm_weight *w, int64_t rows, float *out, int64_t n_valid) {
    tm_gemm(w, rows, m->act, m->act_scale, m->act_offsets, out, n_valid);
}

static void layer(const tm_llama *m, const tm_layer *l, const tm_step *s) {
    const int64_t t = s->num_tokens, qkv = (m->num_heads + 2 * m->num_kv_heads) * m->head_dim;
    const int64_t mixed = m->num_heads * m->head_dim;
    tm_act a = activation(m, m->x, m->hidden, l->attn_norm, &l->qkv);
    tm_activate(&a, t);
    product(m, &l->qkv, t, m->wide, qkv);
    tm_rope r = {m->wide, m->num_heads, m->num_kv_heads, m->head_dim, m->kv_format, l->q_norm, l->k_norm, m->eps, m->cos, m->sin,
                 s->positions, s->slots, m->q_scale, m->q, l->k_cache, l->v_cache};
    tm_rope_write(&r, t);
    tm_attention att = {m->num_heads, m->num_kv_heads, m->head_dim, 0, m->heads_per_unit, m->kv_format, m->q, l->k_cache,
                        l->v_cache, s->units, s->tables, s->stride, m->mixed};
    tm_attend(&att, s->num_units);
    a = activation(m, m->mixed, mixed, NULL, &l->o);
    tm_activate(&a, t);
    product(m, &l->o, t, m->x, m->hidden);
    a = activation(m, m->x, m->hidden, l->ffn_norm, &l->gate_up);
    tm_activate(&a, t);
    product(m, &l->gate_up, t, m->wide, 2 * m->inner);
    a = activation(m, m->wide, m->inner, NULL, &l->down);
    a.ldx = 2 * m->inner;
    a.is_swiglu = 1;
    tm_activate(&a, t);
    product(m, &l->down, t, m->x, m->hidden);
}

void tm_llama_step(const tm_llama *m, const tm_step *s) {
    embed_job e = {m->embed, s->token_ids, m->hidden, m->x};
    tm_for(s->num_tokens, 16, embed_rows, &e);
    for (int64_t i = 0; i < m->num_layers; i++) layer(m, &m->layers[i], s);
    memcpy(s->hidden, m->x, s->num_tokens * m->hidden * sizeof(float));
}

/* logits of `rows` residual rows [rows, C], gathered by the caller */
void tm_llama_logits(const tm_llama *m, const float *hidden, int64_t rows, float *logits) {
    tm_act a = activation(m, hidden, m->hidden, m->final_norm, &m->head);
    tm_activate(&a, rows);
    product(m, &m->head, rows, logits, m->vocab);
}
