// What all device code shares. No torch and no host headers, so that nvcc, NVRTC and the CPU shim of
// the tests (tests/ops/cuda_shim.h, which defines DSMM_CPU_SHIM) compile the same source.
//
// One warp, or one block (B), works on one row of a row-major matrix: blocks are (32, warps). A lane takes packs of N
// neighbouring elements, so that it reads 16 bytes at once; N divides the width, or is 1. P packs hold a
// lane's part of the row in registers; P = 0: the row is too wide for that, or has no packs.
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

template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float widen(fp16 x) { return __half2float(__ushort_as_half(x.bits)); }

// To nearest even; a nan stays one. sm_70 and sm_75 have no instruction for bf16.
template <class T> __device__ T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ fp16 narrow<fp16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) {
#if __CUDA_ARCH__ >= 800
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  const unsigned bits = __float_as_uint(x);
  const unsigned rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return {(unsigned short)(x == x ? rounded >> 16 : 0x7fc0u)};
#endif
}
// Two in a word, the first in its lower half.
template <class T> __device__ __forceinline__ unsigned narrow_pair(float first, float second) {
#if __CUDA_ARCH__ >= 800
  unsigned word;
  if constexpr (is_bf16<T>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  return narrow<T>(first).bits | (unsigned)narrow<T>(second).bits << 16;
#endif
}

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T lanes[N];
};

template <int N> struct Floats {
  float lanes[N];
};

template <int N, class T> __device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <class T, int N> __device__ __forceinline__ Floats<N> widen(const Pack<T, N>& pack) {
  Floats<N> values;
#pragma unroll
  for (int k = 0; k < N; ++k) values.lanes[k] = widen(pack.lanes[k]);
  return values;
}

template <int N, class T> __device__ __forceinline__ Floats<N> load(const T* from) {
  return widen(load_pack<N>(from));
}

// Of a parameter: floats, or as narrow as T.
template <int N, class T>
__device__ __forceinline__ Floats<N> load_parameter(const float* from, bool narrow, int64_t i) {
  if constexpr (sizeof(T) == 2)
    if (narrow) return load<N>(reinterpret_cast<const T*>(from) + i);
  return load<N>(from + i);
}

#ifndef DSMM_CPU_SHIM
// 16 bytes in one instruction: the compiler splits stores of structs where it likes.
__device__ __forceinline__ void store_words(void* to, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
#endif

// A pack as memory takes it: 16 bytes in words, or one element.
template <class T, int N> struct Narrowed {
  unsigned words[4];
};
template <class T> struct Narrowed<T, 1> {
  T element;
};

template <class T, int N> __device__ __forceinline__ Narrowed<T, N> narrow(const Floats<N>& values) {
  const auto& v = values.lanes;
  if constexpr (N == 1)
    return {narrow<T>(v[0])};
  else if constexpr (sizeof(T) == 2)
    return {{narrow_pair<T>(v[0], v[1]), narrow_pair<T>(v[2], v[3]), narrow_pair<T>(v[4], v[5]),
             narrow_pair<T>(v[6], v[7])}};
  else
    return {
        {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])}};
}

template <class T, int N> __device__ __forceinline__ Floats<N> widen(const Narrowed<T, N>& narrowed) {
  Floats<N> values;
#pragma unroll
  for (int k = 0; k < N; ++k)
    if constexpr (N == 1)
      values.lanes[k] = widen(narrowed.element);
    else if constexpr (sizeof(T) == 2)
      values.lanes[k] = widen(T{(uint16_t)(narrowed.words[k / 2] >> k % 2 * 16)});
    else
      values.lanes[k] = __uint_as_float(narrowed.words[k]);
  return values;
}

template <class T, int N> __device__ __forceinline__ void store(T* to, const Narrowed<T, N>& narrowed) {
  if constexpr (N == 1)
    *to = narrowed.element;
  else
    store_words(to, narrowed.words[0], narrowed.words[1], narrowed.words[2], narrowed.words[3]);
}

template <class T, int N> __device__ __forceinline__ void store(T* to, const Floats<N>& values) {
  store(to, narrow<T>(values));
}

// body(p, column) for each pack p of this lane. B: the row is shared out among the warps of a block.
template <int N, int P, bool B = false, class Body>
__device__ __forceinline__ void for_packs(int width, Body body) {
  if constexpr (P > 0) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int column = ((p + (B ? threadIdx.y * P : 0)) * kWarp + threadIdx.x) * N;
      if (column < width) body(p, column);
    }
  } else {
    int p = 0;
    for (int i = threadIdx.x * N; i < width; i += kWarp * N) body(p++, i);
  }
}

// A lane's part of a row in memory: read all at once, or (P = 0) pack by pack wherever it is used.
template <class T, int N, int P, bool B = false> struct Packs {
  Pack<T, N> packs[P];
  __device__ __forceinline__ void read(const T* row, int width) {
    for_packs<N, P, B>(width, [&](int p, int i) { packs[p] = load_pack<N>(row + i); });
  }
  __device__ __forceinline__ Floats<N> at(int p, int) const { return widen(packs[p]); }
};
template <class T, int N> struct Packs<T, N, 0, false> {
  const T* row;
  __device__ __forceinline__ void read(const T* from, int) { row = from; }
  __device__ __forceinline__ Floats<N> at(int, int i) const { return load<N>(row + i); }
};

// A lane's part of a row of floats, in registers; or (P = 0) in the shared memory of its warp, where
// neighbouring lanes have neighbouring floats, in banks of their own. A lane reads back only what it
// wrote itself, so nothing has to be synchronised.
template <int N, int P> struct RowFloats {
  float lanes[P * N];
  __device__ __forceinline__ explicit RowFloats(float*, int) {}
  __device__ __forceinline__ float& at(int p, int k) { return lanes[p * N + k]; }
};
template <int N> struct RowFloats<N, 0> {
  float* lane;
  __device__ __forceinline__ RowFloats(float* shared, int width)
      : lane(shared + threadIdx.y * shared_floats(width) + threadIdx.x) {}
  __device__ __forceinline__ float& at(int p, int k) { return lane[(p * N + k) * kWarp]; }
  // Of a row: whole packs for every lane.
  __device__ static __forceinline__ int shared_floats(int width) {
    return (width + kWarp * N - 1) / (kWarp * N) * (kWarp * N);
  }
};

__device__ __forceinline__ int64_t row_of_warp() { return (int64_t)blockIdx.x * blockDim.y + threadIdx.y; }

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.69314718055994531f;

#ifndef DSMM_CPU_SHIM
// 2^x and 1 / x in one instruction, to 2 units in the last place; below the least normal number 0.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

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

// The sum over the threads of a row, the same bits for each.
template <bool B> __device__ __forceinline__ float row_sum(float x) {
  x = warp_sum(x);
  if constexpr (B) {
    __shared__ float of_warps[kWarp];
    __syncthreads();  // what was here before has been read
    if (threadIdx.x == 0) of_warps[threadIdx.y] = x;
    __syncthreads();
    x = 0.f;
    for (int warp = 0; warp < (int)blockDim.y; ++warp) x += of_warps[warp];
  }
  return x;
}

}  // namespace dsmm::cuda
