// Work on columns of a matrix, and sums over its rows for the gradients of parameters.
#pragma once
#include "common.cuh"

namespace dsmm::cuda {

constexpr int kSumWarps = 8;

// Blocks of (32, kSumWarps) threads, where a lane has N columns and every gridDim.y * kSumWarps-th row.
template <int N> struct Columns {
  int64_t first, first_row, stride;
  __device__ __forceinline__ Columns()
      : first(((int64_t)blockIdx.x * kWarp + threadIdx.x) * N),
        first_row((int64_t)blockIdx.y * kSumWarps + threadIdx.y),
        stride((int64_t)gridDim.y * kSumWarps) {}
};

// Adds up C sums of each of a lane's N columns from `first` on over the warps of a block, into one slice of
// partial (slices, C, width). The caller adds up the slices, in a fixed order: unlike atomics this gives the
// same bits every time.
template <int C, int N>
__device__ __forceinline__ void store_sums(const float (&sums)[C][N], int64_t first, int64_t slice,
                                           int64_t width, float* partial) {
  __shared__ float shared[C][kSumWarps][N][kWarp];
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int k = 0; k < N; ++k) shared[c][threadIdx.y][k][threadIdx.x] = sums[c][k];
  __syncthreads();
  for (int i = threadIdx.y; i < C * N && first < width; i += kSumWarps) {
    float total = 0.f;
    for (int warp = 0; warp < kSumWarps; ++warp) total += shared[i / N][warp][i % N][threadIdx.x];
    partial[(slice * C + i / N) * width + first + i % N] = total;
  }
}

}  // namespace dsmm::cuda
