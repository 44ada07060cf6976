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

// Dropout of a row, whose key is read once: the compiler would read it again after every store.
struct RowDropout {
  Dropout dropout;
  unsigned key;
  __device__ __forceinline__ RowDropout(const Dropout& dropout, int64_t row)
      : dropout(dropout), key(dropout.keys ? (unsigned)dropout.keys[row] : 0u) {}

  // Drops from the pack that starts at `column`, in place.
  template <int N> __device__ __forceinline__ void operator()(int column, Floats<N>& values) const {
    if (!dropout.keys) return;
    const unsigned first = key + (unsigned)(column + 1) * 0x9E3779B9u;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const bool kept = hash32(first + k * 0x9E3779B9u) >= dropout.threshold;
      values.lanes[k] = kept ? values.lanes[k] * dropout.scale : 0.f;
    }
  }
};

template <class T, int N> __global__ void dropout_rows(DropoutRows<T> a, int64_t rows) {
  const int64_t row = row_of_warp();
  if (row >= rows) return;
  const RowDropout drop(a.dropout, row);
  for_packs<N, 0>((int)a.width, [&](int, int i) {
    Floats<N> values = load<N>(a.x + row * a.width + i);
    drop(i, values);
    store(a.out + row * a.width + i, values);
  });
}

}  // namespace dsmm::cuda
