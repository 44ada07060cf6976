// AVX-512 with products of bf16: what attention multiplies. fp32 is as in isa_avx512.cpp.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#define DSMM_AVX512
#define DSMM_BF16_PRODUCTS
#endif
#define DSMM_ISA avx512_bf16
#include "isa.inl"
