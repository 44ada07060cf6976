// Dropout; the same bits as ds_minimodel/ops/dropout.py.
#pragma once
#include "common.cuh"

namespace dsmm::cuda {

__device__ __forceinline__ unsigned hash32(unsigned x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Drops from the pack that starts at `column` of `row`, in place.
template <int N>
__device__ __forceinline__ void drop(const Dropout& dropout, int64_t row, int column, Floats<N>& values) {
  if (!dropout.keys) return;
  const unsigned first = (unsigned)dropout.keys[row] + (unsigned)(column + 1) * 0x9E3779B9u;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const bool kept = hash32(first + k * 0x9E3779B9u) >= dropout.threshold;
    values.lanes[k] = kept ? values.lanes[k] * dropout.scale : 0.f;
  }
}

template <class T, int N> __global__ void dropout_rows(DropoutRows<T> a, int64_t rows) {
  const int64_t row = row_of_warp();
  if (row >= rows) return;
  for_packs<N, 0>((int)a.width, [&](int, int i) {
    Floats<N> values = load<N>(a.x + row * a.width + i);
    drop(a.dropout, row, i, values);
    store(a.out + row * a.width + i, values);
  });
}

}  // namespace dsmm::cuda
