// What all device code shares. No torch and no host headers, so that nvcc, NVRTC and the CPU shim of
// the tests (tests/ops/cuda_shim.h, which defines DSMM_CPU_SHIM) compile the same source.
//
// One warp works on one row of a row-major matrix: blocks are (32, warps). A lane takes packs of N
// neighbouring elements, so that it reads 16 bytes at once; N divides the width, or is 1.
#pragma once
#ifndef DSMM_CPU_SHIM
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif
#include <cuda_fp16.h>
#define DSMM_DYNAMIC_SHARED(TYPE, NAME) extern __shared__ TYPE NAME[]
#endif

#include "../../arguments.h"

namespace dsmm::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float widen(fp16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <class T> __device__ T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ fp16 narrow<fp16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
// In integers, to nearest even, for sm_70 has no instruction; a nan stays one.
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) {
  const unsigned bits = __float_as_uint(x);
  const unsigned rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return {(unsigned short)(x == x ? rounded >> 16 : 0x7fc0u)};
}
template <class T> __device__ __forceinline__ float rounded(float x) { return widen(narrow<T>(x)); }

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T lanes[N];
};

template <int N> struct Floats {
  float lanes[N];
};

template <int N, class T> __device__ __forceinline__ Floats<N> load(const T* from) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
  Floats<N> values;
#pragma unroll
  for (int k = 0; k < N; ++k) values.lanes[k] = widen(pack.lanes[k]);
  return values;
}

template <int N, class T> __device__ __forceinline__ void store(T* to, const Floats<N>& values) {
  Pack<T, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) pack.lanes[k] = narrow<T>(values.lanes[k]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// body(column) for each pack of this lane.
template <int N, class Body> __device__ __forceinline__ void for_packs(int64_t width, Body body) {
  for (int64_t i = threadIdx.x * N; i < width; i += kWarp * N) body(i);
}

__device__ __forceinline__ int64_t row_of_warp() { return (int64_t)blockIdx.x * blockDim.y + threadIdx.y; }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

}  // namespace dsmm::cuda
