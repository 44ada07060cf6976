// gelu(x + bias) with the exact erf, and its gradient.
#pragma once
#include "sums.cuh"

namespace dsmm::cuda {

struct Normal {
  float cdf, density_sqrt_2pi;
};

// Distribution function of the standard normal, through erfc of Abramowitz and Stegun 7.1.26 (absolute
// error 1.5e-7; half the instructions of erff), and exp(-x^2 / 2), which comes with it.
__device__ __forceinline__ Normal normal_of(float x) {
  const float density = power_of_2(x * x * (-0.5f * kLog2E));
  const float t = reciprocal(1.f + fabsf(x) * (0.3275911f * 0.70710678118654752f));
  float p = 0.5f * 1.061405429f;
  p = p * t - 0.5f * 1.453152027f;
  p = p * t + 0.5f * 1.421413741f;
  p = p * t - 0.5f * 0.284496736f;
  p = p * t + 0.5f * 0.254829592f;
  const float upper_tail = p * t * density;
  return {x < 0.f ? upper_tail : 1.f - upper_tail, density};
}

// Rows that a lane reads before it works on the first of them; it has no others. On a simulated V100 four take an
// eighth more cycles.
constexpr int kRowsAhead = 2;

template <class T, int N> __global__ void gelu_forward(GeluForward<T> a, int64_t rows) {
  const Columns<N> columns;
  if (columns.first >= a.width) return;
  const Floats<N> bias = load_parameter<N, T>(a.bias, a.narrow, columns.first);
  for (int64_t row = columns.first_row; row < rows; row += kRowsAhead * columns.stride) {
    Pack<T, N> packs[kRowsAhead];
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r)
      if (row + r * columns.stride < rows)
        packs[r] = load_pack<N>(a.x + (row + r * columns.stride) * a.width + columns.first);
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r)
      if (row + r * columns.stride < rows) {
        Floats<N> values = widen(packs[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float x = values.lanes[k] + bias.lanes[k];
          values.lanes[k] = x * normal_of(x).cdf;
        }
        store(a.out + (row + r * columns.stride) * a.width + columns.first, values);
      }
  }
}

// Sums: write the column sums of the gradient, that of the bias, into partial (slices, 1, width).
template <class T, int N, bool Sums>
__global__ void gelu_backward(GeluBackward<T> a, int64_t rows, float* partial) {
  constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
  const Columns<N> columns;
  float sums[1][N] = {};
  if (columns.first < a.width) {
    const Floats<N> bias = load_parameter<N, T>(a.bias, a.narrow, columns.first);
    for (int64_t row = columns.first_row; row < rows; row += columns.stride) {
      const int64_t i = row * a.width + columns.first;
      Floats<N> values = load<N>(a.x + i);
      const Floats<N> grad = load<N>(a.grad + i);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float x = values.lanes[k] + bias.lanes[k];
        const Normal normal = normal_of(x);
        values.lanes[k] = grad.lanes[k] * (normal.cdf + x * normal.density_sqrt_2pi * kInverseSqrt2Pi);
        if (Sums) sums[0][k] += values.lanes[k];
      }
      store(a.grad_x + i, values);
    }
  }
  if (Sums) store_sums(sums, columns.first, blockIdx.y, a.width, partial);
}

}  // namespace dsmm::cuda
