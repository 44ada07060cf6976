// activation(first half of a row) * its second half, and the gradient of both halves.
#pragma once
#include "gelu.cuh"

namespace dsmm::cuda {

// An activation is x * share(x); slope is its derivative.
struct Activated {
  float share, slope;
};

__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.f + power_of_2(-kLog2E * x)); }

template <int A> __device__ __forceinline__ Activated activated(float x) {
  if constexpr (A == (int)Activation::gelu) {
    constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
    const Normal normal = normal_of(x);
    return {normal.cdf, normal.cdf + x * normal.density_sqrt_2pi * kInverseSqrt2Pi};
  } else if constexpr (A == (int)Activation::gelu_tanh) {  // (1 + tanh(u)) / 2 is the sigmoid of 2u
    constexpr float kLinear = 1.5957691216057308f, kCubic = kLinear * 0.044715f;
    const float share = sigmoid(x * (x * x * kCubic + kLinear));
    return {share, share + x * share * (1.f - share) * (x * x * (3 * kCubic) + kLinear)};
  } else {
    const float share = sigmoid(x);
    return {share, share + x * share * (1.f - share)};
  }
}

// Rows that a lane reads before it works on the first of them.
constexpr int kGatedAhead = 2;

template <class T, int N, int A> __global__ void gated_forward(Gated<T> a, T* out, int64_t rows) {
  const Columns<N> columns;
  if (columns.first >= a.width) return;
  for (int64_t row = columns.first_row; row < rows; row += kGatedAhead * columns.stride) {
    Pack<T, N> packs[kGatedAhead], gates[kGatedAhead];
#pragma unroll
    for (int r = 0; r < kGatedAhead; ++r)
      if (row + r * columns.stride < rows) {
        const T* x = a.x + 2 * (row + r * columns.stride) * a.width + columns.first;
        packs[r] = load_pack<N>(x);
        gates[r] = load_pack<N>(x + a.width);
      }
#pragma unroll
    for (int r = 0; r < kGatedAhead; ++r)
      if (row + r * columns.stride < rows) {
        Floats<N> values = widen(packs[r]);
        const Floats<N> gate = widen(gates[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) values.lanes[k] *= activated<A>(values.lanes[k]).share * gate.lanes[k];
        store(out + (row + r * columns.stride) * a.width + columns.first, values);
      }
  }
}

template <class T, int N, int A>
__global__ void gated_backward(Gated<T> a, const T* grad, T* grad_x, int64_t rows) {
  const Columns<N> columns;
  if (columns.first >= a.width) return;
  for (int64_t row = columns.first_row; row < rows; row += columns.stride) {
    const int64_t i = 2 * row * a.width + columns.first;
    Floats<N> values = load<N>(a.x + i), gate = load<N>(a.x + i + a.width);
    const Floats<N> g = load<N>(grad + row * a.width + columns.first);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x = values.lanes[k];
      const Activated at = activated<A>(x);
      values.lanes[k] = g.lanes[k] * gate.lanes[k] * at.slope;
      gate.lanes[k] = g.lanes[k] * x * at.share;
    }
    store(grad_x + i, values);
    store(grad_x + i + a.width, gate);
  }
}

}  // namespace dsmm::cuda
