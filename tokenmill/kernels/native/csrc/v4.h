/* DeepSeek V4 on CPU: what its kernels share. Rows of caches are stored as kernels/kv_quant/layout.py says.
 *
 * As everywhere in these kernels, a row's bits depend on its own inputs alone: tiles of keys are aligned to absolute
 * positions, sums run in one order, and what is masked adds an exact zero.
 */
#ifndef TM_V4_H
#define TM_V4_H
#include "tm.h"

#define LANES 16
#define KEYS 64            /* keys per softmax or score tile */
#define UNIT_ROWS 8        /* rows of one sequence that share decoded keys */

typedef float f16v __attribute__((vector_size(64)));
typedef float f16u __attribute__((vector_size(64), aligned(4), may_alias));

static inline __attribute__((always_inline)) f16v ld16(const float *p) { return *(const f16u *)p; }
static inline __attribute__((always_inline)) void st16(float *p, f16v v) { *(f16u *)p = v; }

static inline __attribute__((always_inline)) f16v max16(f16v a, f16v b) {
#if TM_AVX512
    return (f16v)_mm512_max_ps((__m512)a, (__m512)b);
#else
    for (int i = 0; i < LANES; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
#endif
}

/* Lanes in order: the same sum on every build. */
static inline float sum16(f16v v) {
    float s = 0.0f;
    for (int i = 0; i < LANES; i++) s += v[i];
    return s;
}

static inline f16v exp16(f16v x) {
#if TM_AVX512
    return (f16v)exp2_ps((__m512)(x * 1.44269504f));
#else
    f16v y;
    for (int i = 0; i < LANES; i++) y[i] = expf(x[i]);
    return y;
#endif
}

/* Work (multiply-adds, roughly) below which waking threads costs more than it brings. */
#define SMALL_WORK 60000

static void run(int64_t n, int64_t grain, tm_body body, const void *arg, int64_t work) {
    if (work < SMALL_WORK) {
        if (n > 0) body((void *)arg, 0, n);
    } else tm_for(n, grain, body, (void *)arg);
}

typedef struct {
    int64_t dtype, width, num_plain, group, bytes_per_scale, row_bytes;
} v4_layout;

enum { ROW_FP32 = 0, ROW_BF16 = 1, ROW_FP8 = 2, ROW_FP4 = 3 };

/* Block table of one cache group: block of logical block i of sequence b is ids[b * stride + i - first[b]]. */
typedef struct {
    const int64_t *ids, *first;
    int64_t stride;
} v4_table;

static inline int64_t block_of(const v4_table *t, int64_t b, int64_t block) {
    int64_t i = block - t->first[b];
    return t->ids[b * t->stride + (i > 0 ? i : 0)];
}

/* Physical row of logical row `row`, in a cache of `per_block` rows per block. */
static inline int64_t slot_of(const v4_table *t, int64_t b, int64_t row, int64_t per_block) {
    return block_of(t, b, row / per_block) * per_block + row % per_block;
}

/* One step; arrays [T] or [B]. context, total, certain: tokens before the step, after it, after it without drafts. */
typedef struct {
    int64_t num_tokens, num_seqs, block_size, num_units;
    const int64_t *token_ids, *positions, *seq_ids;
    const int64_t *context, *total, *certain, *first_row, *shared; /* entries of tokens below `shared` are not written */
    const int64_t *units;       /* [U, 3]: first row, rows, sequence */
    v4_table window, csa, indexer, csa_state, hca, hca_state, mtp_window;
    float *const *proj;         /* [layers] projections of the compressors [T, ..]; commit reads them again */
    float *streams;             /* [T, N, C] */
    float *trace_streams;       /* [layers, T, N, C] or NULL */
    int64_t *trace_chosen;      /* [layers, T, topk] or NULL */
} v4_step;

typedef struct {
    const float *fn, *base, *scale;
} v4_connection;

typedef struct {
    int64_t ratio;
    const float *attn_norm, *ffn_norm, *q_norm, *kv_norm, *sink;
    v4_connection hc_attn, hc_ffn;
    tm_weight qkv, wq_b, wo_b;
    const tm_weight *wo_a;      /* [G] */
    const float *compress;      /* [P, C] float32 */
    const float *ape, *entry_norm;
    const float *index_ape, *index_norm, *index_weights;
    tm_weight index_wq_b;
    void *window, *entries, *keys;
    float *state, *index_state;
    /* experts */
    const float *gate, *bias;   /* [E, C], [E] or NULL in hash layers */
    const int64_t *hash;        /* [V, K] or NULL */
    const tm_weight *w13, *w2;  /* [E] */
    tm_weight shared_w13, shared_w2;
} v4_layer;

typedef struct {
    v4_connection hc_head;
    const float *norm;
} v4_collapse;

typedef struct {
    int64_t num_layers, hidden, heads, head_dim, rope_dim, rank, groups, o_rank, window;
    int64_t index_heads, index_dim, topk, experts, per_token, inner, streams, iters, vocab, embed_is_fp32;
    float eps, hc_eps, routed_scaling, limit;
    v4_layout kv, index;
    const float *sliding_freq, *compress_freq; /* [rope_dim / 2] */
    const void *embed;          /* [V, C], bf16 or float32 */
    const v4_layer *layers;
    v4_collapse collapse;
    tm_weight head;
    /* scratch for the largest step, [T, ..] */
    float *x, *y, *post, *comb, *mixes, *qkv, *q, *mixed, *z, *iq, *iw, *gate, *wide, *hidden_rows, *routed;
    float *cos, *sin;           /* [2, T, rope_dim / 2]: sliding, compressed */
    void *act, *act_rows;       /* activations of the step, and of the rows gathered by expert */
    float *act_scale, *act_rows_scale;
    int32_t *act_offsets, *act_rows_offsets;
    int64_t *chosen, *num_chosen, *expert_ids, *expert_rows, *expert_start;
    float *expert_weights;
} v4_model;

#endif
