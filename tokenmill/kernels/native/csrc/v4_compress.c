/* The compressors of DeepSeek V4: tokens become entries, and their state crosses steps (see csa_state.py, hca_state.py).
 *
 * State layouts: CSA [block][kv, gate][10][D]: part A of the last closed window's 4 tokens and of at most 3 open ones,
 * then part B of the open ones. HCA [block][maximum, total, weighted][D].
 */
#include "v4.h"

#define CSA_ROWS 10
#define CSA_A 7

/* Make an entry out of a pooled row: norm, rotation at the entry's first token, storage. */
static void store_entry(const v4_model *m, const v4_layout *l, float *row, const float *norm, int64_t position,
                        void *cache, int64_t slot) {
    float c[m->rope_dim / 2], s[m->rope_dim / 2], y[l->width];
    norm_row(row, norm, m->eps, l->width, y);
    angles(m->compress_freq, m->rope_dim / 2, position, c, s);
    turn(y, l->width, m->rope_dim, c, s, 1.0f);
    if (l == &m->index && l->dtype >= ROW_FP8) hadamard_row(y, l->width);
    encode_row(l, y, cache, slot);
}

/* One compressor (main or indexer's) of a CSA layer in a step. */
typedef struct {
    const v4_model *m;
    const v4_step *s;
    const v4_layout *layout;
    const v4_table *entries_table;
    const float *proj;           /* row t: kv A, kv B, gate A, gate B */
    int64_t ld;
    const float *ape, *norm;
    void *entries;
    float *state;
    const int64_t *before, *after; /* [B] tokens: states are written for `after`, rows from `before` on are in proj */
} csa_job;

/* kv and gate of one part (0 = A, 1 = B) of the token at `position`; NULL gate: add ape[position % 4] to `raw`. */
typedef struct {
    const float *kv, *gate, *ape;
} csa_row;

static csa_row csa_find(const csa_job *j, int64_t b, int64_t position, int part, const float *memory) {
    const int64_t d = j->layout->width, before = j->before[b];
    if (position >= before) {
        const float *row = j->proj + (j->s->first_row[b] + position - j->s->context[b]) * j->ld;
        return (csa_row){row + part * d, row + (2 + part) * d, j->ape + (position % 4 * 2 + part) * d};
    }
    int64_t open = before / 4 * 4, i = part ? CSA_A + position - open : position - (open - 4);
    return (csa_row){memory + i * d, memory + (CSA_ROWS + i) * d, NULL};
}

static const float *csa_memory(const csa_job *j, int64_t b) {
    const int64_t block = (j->before[b] - 1) / j->s->block_size;
    return j->state + block_of(&j->s->csa_state, b, block) * 2 * CSA_ROWS * j->layout->width;
}

static void csa_pool(const csa_job *j, int64_t b, int64_t entry, float *out) {
    const int64_t d = j->layout->width;
    const float *memory = csa_memory(j, b);
    csa_row rows[8];
    int n = 0;
    for (int i = entry ? 0 : 4; i < 8; i++) rows[n++] = csa_find(j, b, 4 * entry - 4 + i, i >= 4, memory);
    int64_t k = 0;
    for (; k + LANES <= d; k += LANES) {
        f16v g[8], top = {0}, total = {0}, sum = {0};
        for (int i = 0; i < n; i++) {
            g[i] = rows[i].ape ? ld16(rows[i].gate + k) + ld16(rows[i].ape + k) : ld16(rows[i].gate + k);
            if (i == 0) top = g[i];
            else top = max16(g[i], top);
        }
        for (int i = 0; i < n; i++) {
            f16v w = exp16(g[i] - top);
            total += w;
            sum += w * ld16(rows[i].kv + k);
        }
        st16(out + k, sum / total);
    }
    for (; k < d; k++) {
        float g[8], top = -INFINITY, total = 0.0f, sum = 0.0f;
        for (int i = 0; i < n; i++) {
            g[i] = rows[i].gate[k] + (rows[i].ape ? rows[i].ape[k] : 0.0f);
            top = g[i] > top ? g[i] : top;
        }
        for (int i = 0; i < n; i++) {
            float w = expf(g[i] - top);
            total += w;
            sum += w * rows[i].kv[k];
        }
        out[k] = sum / total;
    }
}

/* Work items: closing entries of all sequences, numbered through. */
static void csa_close(void *arg, int64_t begin, int64_t end) {
    const csa_job *j = arg;
    const v4_step *s = j->s;
    int64_t at = 0;
    float row[j->layout->width];
    for (int64_t b = 0; b < s->num_seqs; b++)
        for (int64_t entry = s->context[b] / 4; entry < s->total[b] / 4; entry++, at++) {
            if (at < begin || at >= end || 4 * entry < s->shared[b]) continue;
            csa_pool(j, b, entry, row);
            store_entry(j->m, j->layout, row, j->norm, 4 * entry, j->entries,
                        slot_of(j->entries_table, b, entry, s->block_size / 4));
        }
}

/* State after n tokens, gathered aside because its block may be the one that is read. */
static void csa_save(const csa_job *j, int64_t b, int64_t n, float *target, const float *memory) {
    const int64_t d = j->layout->width, open = n / 4 * 4;
    float out[2 * CSA_ROWS * d];
    memset(out, 0, sizeof out);
    for (int i = 0; i < CSA_ROWS; i++) {
        int part = i >= CSA_A;
        int64_t position = part ? open + i - CSA_A : open - 4 + i;
        if (position < 0 || position >= n) continue;
        csa_row row = csa_find(j, b, position, part, memory);
        memcpy(out + i * d, row.kv, d * sizeof(float));
        for (int64_t k = 0; k < d; k++) out[(CSA_ROWS + i) * d + k] = row.gate[k] + (row.ape ? row.ape[k] : 0.0f);
    }
    memcpy(target, out, sizeof out);
}

static void csa_states(void *arg, int64_t begin, int64_t end) {
    const csa_job *j = arg;
    const int64_t size = j->s->block_size, state = 2 * CSA_ROWS * j->layout->width;
    for (int64_t b = begin; b < end; b++) {
        if (j->after[b] <= j->before[b]) continue;
        const float *memory = csa_memory(j, b);
        /* Last block first: the first one may hold the memory. */
        for (int64_t block = (j->after[b] - 1) / size; block >= j->before[b] / size; block--) {
            int64_t n = (block + 1) * size < j->after[b] ? (block + 1) * size : j->after[b];
            csa_save(j, b, n, j->state + block_of(&j->s->csa_state, b, block) * state, memory);
        }
    }
}

static csa_job csa_main(const v4_model *m, const v4_layer *l, const v4_step *s, const float *proj) {
    return (csa_job){m, s, &m->kv, &s->csa, proj, 4 * (m->head_dim + m->index_dim), l->ape, l->entry_norm, l->entries,
                     l->state, s->context, s->certain};
}

static csa_job csa_index(const v4_model *m, const v4_layer *l, const v4_step *s, const float *proj) {
    return (csa_job){m, s, &m->index, &s->indexer, proj + 4 * m->head_dim, 4 * (m->head_dim + m->index_dim),
                     l->index_ape, l->index_norm, l->keys, l->index_state, s->context, s->certain};
}

static void csa_compress(const v4_model *m, const v4_layer *l, const v4_step *s, const float *proj) {
    int64_t closing = 0;
    for (int64_t b = 0; b < s->num_seqs; b++) closing += s->total[b] / 4 - s->context[b] / 4;
    csa_job jobs[2] = {csa_main(m, l, s, proj), csa_index(m, l, s, proj)};
    for (int i = 0; i < 2; i++) {
        const int64_t width = jobs[i].layout->width;
        run(closing, closing < 16 ? closing : 16, csa_close, &jobs[i], closing * 100 * width);
        run(s->num_seqs, 4, csa_states, &jobs[i], s->num_seqs * 2 * CSA_ROWS * width);
    }
}

/* ---- HCA ---- */

typedef struct {
    const v4_model *m;
    const v4_layer *l;
    const v4_step *s;
    const float *proj;           /* row t: kv, gate */
    const int64_t *before, *after; /* state is written for `after`; without `stores`, entries were stored already */
    int stores;
} hca_job;

static void hca_add(float *state, const float *kv, const float *gate, const float *ape, int64_t d) {
    float *top = state, *total = state + d, *weighted = state + 2 * d;
    int64_t k = 0;
    for (; k + LANES <= d; k += LANES) {
        f16v g = ld16(gate + k) + ld16(ape + k), old = ld16(top + k), keep, add;
        f16v now = max16(g, old);
        keep = exp16(old - now);
        add = exp16(g - now);
        st16(total + k, ld16(total + k) * keep + add);
        st16(weighted + k, ld16(weighted + k) * keep + add * ld16(kv + k));
        st16(top + k, now);
    }
    for (; k < d; k++) {
        float g = gate[k] + ape[k], now = g > top[k] ? g : top[k];
        float keep = expf(top[k] - now), add = expf(g - now);
        total[k] = total[k] * keep + add;
        weighted[k] = weighted[k] * keep + add * kv[k];
        top[k] = now;
    }
}

static void hca_reset(float *state, int64_t d) {
    for (int64_t k = 0; k < d; k++) state[k] = -INFINITY, state[d + k] = state[2 * d + k] = 0.0f;
}

/* Tokens `from` .. `to`; entries that close are stored when asked for. */
static void hca_run(const hca_job *j, int64_t b, int64_t from, int64_t to, float *state, int stores) {
    const int64_t d = j->m->head_dim, r = j->l->ratio;
    const v4_step *s = j->s;
    float row[d];
    for (int64_t p = from; p < to; p++) {
        const float *proj = j->proj + (s->first_row[b] + p - s->context[b]) * 2 * d;
        hca_add(state, proj, proj + d, j->l->ape + p % r * d, d);
        if ((p + 1) % r) continue;
        if (stores && p + 1 - r >= s->shared[b]) {
            for (int64_t k = 0; k < d; k++) row[k] = state[2 * d + k] / state[d + k];
            store_entry(j->m, &j->m->kv, row, j->l->entry_norm, p + 1 - r, j->l->entries,
                        slot_of(&s->hca, b, p / r, s->block_size / r));
        }
        hca_reset(state, d);
    }
}

static void hca_seqs(void *arg, int64_t begin, int64_t end) {
    const hca_job *j = arg;
    const v4_step *s = j->s;
    const int64_t d = j->m->head_dim, r = j->l->ratio, size = s->block_size;
    float state[3 * d];
    for (int64_t b = begin; b < end; b++) {
        int64_t before = j->before[b], after = j->after[b];
        if (before % r == 0) hca_reset(state, d);
        else memcpy(state, j->l->state + block_of(&s->hca_state, b, (before - 1) / size) * 3 * d, sizeof state);
        hca_run(j, b, before, after, state, j->stores);
        for (int64_t block = before / size; after > before && block <= (after - 1) / size; block++) {
            float *out = j->l->state + block_of(&s->hca_state, b, block) * 3 * d;
            if ((block + 1) * size <= after || after % r == 0) memset(out, 0, sizeof state);
            else memcpy(out, state, sizeof state);
        }
        if (j->stores) hca_run(j, b, after, s->total[b], state, 1); /* drafts: their entries only */
    }
}

static void hca_compress(const v4_model *m, const v4_layer *l, const v4_step *s, const float *proj) {
    hca_job job = {m, l, s, proj, s->context, s->certain, 1};
    run(s->num_seqs, 1, hca_seqs, &job, s->num_tokens * 40 * m->head_dim);
}
