// Sums over the rows of a matrix, for the gradients of parameters.
#pragma once
#include "common.cuh"

namespace dsmm::cuda {

constexpr int kSumWarps = 8;

// Each block, (32, kSumWarps) threads, adds up 32 columns of a slice of the rows into
// partial (gridDim.y, C, width); add(row, column, sums) adds to C sums. The caller adds up the slices,
// in a fixed order: unlike atomics this gives the same bits every time.
template <int C, class Add>
__device__ __forceinline__ void sum_columns(int64_t width, int64_t rows, float* partial, Add add) {
  __shared__ float shared[C][kSumWarps][kWarp];
  const int64_t column = (int64_t)blockIdx.x * kWarp + threadIdx.x;
  float sums[C] = {};
  if (column < width)
    for (int64_t row = (int64_t)blockIdx.y * kSumWarps + threadIdx.y; row < rows;
         row += (int64_t)gridDim.y * kSumWarps)
      add(row, column, sums);
#pragma unroll
  for (int c = 0; c < C; ++c) shared[c][threadIdx.y][threadIdx.x] = sums[c];
  __syncthreads();
  if (threadIdx.y < C && column < width) {
    float total = 0.f;
    for (int warp = 0; warp < kSumWarps; ++warp) total += shared[threadIdx.y][warp][threadIdx.x];
    partial[((int64_t)blockIdx.y * C + threadIdx.y) * width + column] = total;
  }
}

template <class T>
__global__ void column_sums(const T* matrix, int64_t rows, int64_t width, float* partial) {
  sum_columns<1>(width, rows, partial, [&](int64_t row, int64_t column, float* sums) {
    sums[0] += widen(matrix[row * width + column]);
  });
}

}  // namespace dsmm::cuda
