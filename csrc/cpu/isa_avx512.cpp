// Other compilers than GCC do not know this pragma; there the file holds the portable kernels again.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#define DSMM_AVX512
#endif
#define DSMM_ISA avx512
#include "isa.inl"
