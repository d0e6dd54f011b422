/* 2^x and e^x on 16 floats, relative error below 2e-7 (Cephes-style range reduction, degree-6 polynomial). */
#ifndef TM_VECTOR_H
#define TM_VECTOR_H
#include "tm.h"

#if TM_AVX512
static inline __m512 exp2_ps(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-150.0f));
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 silu_ps(__m512 x) {
    __m512 e = exp2_ps(_mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

static inline __m512 load_bf16(const bf16 *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline void store_bf16(bf16 *p, __m512 x) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
}
#endif

/* The largest |x| of n floats. */
static inline float largest_size(const float *x, int64_t n) {
    float top = 0.0f;
    int64_t i = 0;
#if TM_AVX512
    __m512 most = _mm512_setzero_ps();
    for (; i + 16 <= n; i += 16) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    top = _mm512_reduce_max_ps(most);
#endif
    for (; i < n; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top;
}
#endif
