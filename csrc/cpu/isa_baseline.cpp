#define DSMM_ISA baseline
#include "isa.inl"
