#ifdef __x86_64__
#pragma GCC target("avx2,fma")
#endif
#define DSMM_ISA avx2
#include "isa.inl"
