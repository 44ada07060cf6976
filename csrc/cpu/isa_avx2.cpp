#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#define DSMM_AVX2  // the compiler's own macros do not follow the pragma
#endif
#define DSMM_ISA avx2
#include "isa.inl"
