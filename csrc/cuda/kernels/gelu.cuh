// gelu(x + bias) with the exact erf, and its gradient.
#pragma once
#include "common.cuh"

namespace dsmm::cuda {

__device__ __forceinline__ float normal_cdf(float x) { return 0.5f * (1.f + erff(x * 0.70710678118654752f)); }

template <class T, int N> __global__ void gelu_forward(GeluForward<T> a, int64_t rows) {
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  for_packs<N>(a.width, [&](int64_t i) {
    Floats<N> values = load<N>(a.x + start + i);
    const Floats<N> bias = load<N>(a.bias + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x = values.lanes[k] + bias.lanes[k];
      values.lanes[k] = x * normal_cdf(x);
    }
    store(a.out + start + i, values);
  });
}

template <class T, int N> __global__ void gelu_backward(GeluBackward<T> a, int64_t rows) {
  constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  for_packs<N>(a.width, [&](int64_t i) {
    Floats<N> values = load<N>(a.x + start + i);
    const Floats<N> bias = load<N>(a.bias + i), grad = load<N>(a.grad + start + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x = values.lanes[k] + bias.lanes[k];
      const float slope = normal_cdf(x) + x * expf(-0.5f * x * x) * kInverseSqrt2Pi;
      values.lanes[k] = grad.lanes[k] * slope;
    }
    store(a.grad_x + start + i, values);
  });
}

}  // namespace dsmm::cuda
