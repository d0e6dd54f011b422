/* Plain weights [N, K] into the panels that gemm.c reads. A format is one way to write a group of 32 inputs. */
#include "tm.h"

typedef struct {
    int32_t format, is_fp32;     /* of the source: float32 or bf16 */
    int64_t n, k, padded_k;
    const void *source;          /* [N, K] */
    char *packed;
    float *scale;                /* [padded N], written for int8 */
} tm_pack_job;

/* 32 inputs of a row as floats; zero outside of the matrix. */
static void source_group(const tm_pack_job *j, int64_t row, int64_t first, float v[GROUP]) {
    const int64_t left = row < j->n ? j->k - first : 0, n = left < 0 ? 0 : left < GROUP ? left : GROUP;
    const int64_t at = row * j->k + first;
    for (int64_t i = n; i < GROUP; i++) v[i] = 0.0f;
    if (j->is_fp32) memcpy(v, (const float *)j->source + at, n * sizeof(float));
    else
        for (int64_t i = 0; i < n; i++) v[i] = bf16_to_f32(((const bf16 *)j->source)[at + i]);
}

/* Four-bit codes of 32 inputs of one column; the value at `lane` of its panel's group. */
static void put_codes(const uint8_t *codes, int column, char *group) {
    uint8_t *out = (uint8_t *)group + 64 + column / TILE * 64 + column % TILE * 4;
    for (int i = 0; i < GROUP; i++) {
        uint8_t *byte = out + i / 8 * 128 + i % 4;
        if (i % 8 < 4) *byte = codes[i];
        else *byte |= (uint8_t)(codes[i] << 4);
    }
}

static float largest(const float *v, int n) {
    float top = 0.0f;
    for (int i = 0; i < n; i++) top = fabsf(v[i]) > fabsf(top) ? v[i] : top;
    return top;
}

/* Symmetric with 16 steps, -8 .. 7: the value of largest size meets -8; of some scales nearby, the one with the least
 * squared error. */
static float int4_group(const float v[GROUP], uint8_t codes[GROUP]) {
    static const float steps[] = {-8.0f, -7.5f, -8.5f, -9.0f, 7.5f, 7.0f};
    const float top = largest(v, GROUP);
    float best = INFINITY, scale = 0.0f;
    memset(codes, 8, GROUP);
    if (top == 0.0f) return 0.0f;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        const float d = half_to_f32(f32_to_half(top / steps[s])), inverse = d != 0.0f ? 1.0f / d : 0.0f;
        uint8_t q[GROUP];
        float lane[TILE] = {0}, error = 0.0f; /* squared errors in 16 lanes, which instructions can hold */
        for (int i = 0; i < GROUP; i += TILE)
            for (int l = 0; l < TILE; l++) {
                float r = rintf(v[i + l] * inverse);
                r = r < -8.0f ? -8.0f : r > 7.0f ? 7.0f : r;
                q[i + l] = (uint8_t)(int)(r + 8.0f);
                lane[l] += (v[i + l] - r * d) * (v[i + l] - r * d);
            }
        for (int l = 0; l < TILE; l++) error += lane[l];
        if (error < best) {
            best = error;
            scale = d;
            memcpy(codes, q, GROUP);
        }
    }
    return scale;
}

static void pack_int4(const tm_pack_job *j, int64_t row, int64_t first, int column, char *group) {
    float v[GROUP];
    uint8_t codes[GROUP];
    source_group(j, row, first, v);
    const uint16_t scale = f32_to_half(int4_group(v, codes));
    memcpy(group + 2 * column, &scale, 2);
    put_codes(codes, column, group);
}

/* One scale per column, found before: w = scale * q, |q| <= 127. */
static void pack_int8(const tm_pack_job *j, int64_t row, int64_t first, int column, char *group) {
    const float scale = row < j->n ? j->scale[row] : 0.0f;
    uint8_t *out = (uint8_t *)group + column / TILE * 64 + column % TILE * 4;
    uint8_t q[GROUP];
    float v[GROUP];
    source_group(j, row, first, v);
    if (scale > 0.0f)
        for (int i = 0; i < GROUP; i++) q[i] = (uint8_t)(128 + (int)rintf(v[i] / scale));
    else memset(q, 128, GROUP);
    for (int i = 0; i < GROUP; i += 4) memcpy(out + i * 32, q + i, 4);
}

static void pack_bf16(const tm_pack_job *j, int64_t row, int64_t first, int column, char *group) {
    bf16 *out = (bf16 *)group + column / TILE * 32 + column % TILE * 2;
    float v[GROUP];
    source_group(j, row, first, v);
    for (int i = 0; i < GROUP; i++) out[i / 2 * 64 + i % 2] = f32_to_bf16(v[i]);
}

static void pack_panels(void *arg, int64_t begin, int64_t end) {
    const tm_pack_job *j = arg;
    const int64_t groups = j->padded_k / GROUP, bytes = group_bytes(j->format);
    for (int64_t panel = begin; panel < end; panel++)
        for (int column = 0; column < PANEL; column++) {
            const int64_t row = panel * PANEL + column;
            if (j->format == W_INT8) {
                float top = 0.0f, v[GROUP];
                for (int64_t g = 0; g < groups; g++) {
                    source_group(j, row, g * GROUP, v);
                    const float size = largest_size(v, GROUP);
                    top = size > top ? size : top;
                }
                j->scale[row] = top / 127.0f;
            }
            for (int64_t g = 0; g < groups; g++) {
                char *group = j->packed + (panel * groups + g) * bytes;
                if (j->format == W_BF16) pack_bf16(j, row, g * GROUP, column, group);
                else if (j->format == W_INT8) pack_int8(j, row, g * GROUP, column, group);
                else pack_int4(j, row, g * GROUP, column, group);
            }
        }
}

void tm_pack(const tm_pack_job *job) { tm_for((job->n + PANEL - 1) / PANEL, 1, pack_panels, (void *)job); }

/* Four-bit codes and scales that a checkpoint holds, moved without a change: nvfp4 and mxfp4. */
typedef struct {
    int32_t format;
    int64_t n, k;                /* k a multiple of 32 */
    const uint8_t *codes;        /* [N, K/2], even inputs in the low nibbles */
    const uint8_t *scales;       /* nvfp4: e4m3 [N, K/16]; mxfp4: e8m0 [N, K/32] */
    char *packed;
} tm_pack_fp4_job;

static void pack_fp4_panels(void *arg, int64_t begin, int64_t end) {
    const tm_pack_fp4_job *j = arg;
    const int64_t groups = j->k / GROUP;
    for (int64_t panel = begin; panel < end; panel++)
        for (int column = 0; column < PANEL; column++) {
            const int64_t row = panel * PANEL + column;
            for (int64_t g = 0; g < groups; g++) {
                char *group = j->packed + (panel * groups + g) * group_bytes(j->format);
                uint8_t codes[GROUP] = {0};
                const int is_real = row < j->n;
                if (is_real)
                    for (int i = 0; i < GROUP; i++) codes[i] = j->codes[(row * j->k + g * GROUP + i) / 2] >> (i % 2 * 4) & 15;
                put_codes(codes, column, group);
                if (j->format == W_NVFP4)
                    for (int h = 0; h < 2; h++)
                        group[h * 32 + column] = is_real ? (char)j->scales[row * 2 * groups + 2 * g + h] : 0;
                else {
                    const uint16_t scale = is_real ? (uint16_t)(j->scales[row * groups + g] << 7) : 0;
                    memcpy(group + 2 * column, &scale, 2);
                }
            }
        }
}

void tm_pack_fp4(const tm_pack_fp4_job *job) {
    tm_for((job->n + PANEL - 1) / PANEL, 1, pack_fp4_panels, (void *)job);
}
