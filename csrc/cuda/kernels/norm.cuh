// LayerNorm(residual + dropout(x)) over rows, and its gradient.
#pragma once
#include "dropout.cuh"
#include "sums.cuh"

namespace dsmm::cuda {

// Dynamic shared memory: a row of floats for each warp. A lane reads back only what it wrote itself, so
// nothing has to be synchronised.
template <class T, int N> __global__ void norm_forward(NormForward<T> a, int64_t rows) {
  DSMM_DYNAMIC_SHARED(float, shared);
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  float* values = shared + threadIdx.y * a.width;
  float sum = 0.f;
  for_packs<N>(a.width, [&](int64_t i) {
    Floats<N> v = load<N>(a.x + start + i);
    drop(a.dropout, row, i, v);
    if (a.residual) {
      const Floats<N> residual = load<N>(a.residual + start + i);
#pragma unroll
      for (int k = 0; k < N; ++k) v.lanes[k] += residual.lanes[k];
    }
    if (a.total) store(a.total + start + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      v.lanes[k] = rounded<T>(v.lanes[k]);  // the backward pass sees the rounded sum; so do the statistics
      values[i + k] = v.lanes[k];
      sum += v.lanes[k];
    }
  });
  const float mean = warp_sum(sum) / a.width;
  float squares = 0.f;
  for_packs<N>(a.width, [&](int64_t i) {
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (values[i + k] - mean) * (values[i + k] - mean);
  });
  const float rstd = rsqrtf(warp_sum(squares) / a.width + a.eps);
  for_packs<N>(a.width, [&](int64_t i) {
    const Floats<N> weight = load<N>(a.weight + i), bias = load<N>(a.bias + i);
    Floats<N> out;
#pragma unroll
    for (int k = 0; k < N; ++k)
      out.lanes[k] = (values[i + k] - mean) * rstd * weight.lanes[k] + bias.lanes[k];
    store(a.out + start + i, out);
  });
  if (threadIdx.x == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <class T, int N> __global__ void norm_backward(NormBackward<T> a, int64_t rows) {
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  const float mean = a.mean[row], rstd = a.rstd[row];
  float sum = 0.f, sum_with_normalised = 0.f;
  for_packs<N>(a.width, [&](int64_t i) {
    const Floats<N> grad = load<N>(a.grad + start + i), total = load<N>(a.total + start + i);
    const Floats<N> weight = load<N>(a.weight + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float weighted = grad.lanes[k] * weight.lanes[k];
      sum += weighted;
      sum_with_normalised += weighted * (total.lanes[k] - mean) * rstd;
    }
  });
  const float mean_grad = warp_sum(sum) / a.width, slope = warp_sum(sum_with_normalised) / a.width;
  for_packs<N>(a.width, [&](int64_t i) {
    const Floats<N> grad = load<N>(a.grad + start + i), total = load<N>(a.total + start + i);
    const Floats<N> weight = load<N>(a.weight + i);
    Floats<N> grad_total;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float normalised = (total.lanes[k] - mean) * rstd;
      grad_total.lanes[k] = (grad.lanes[k] * weight.lanes[k] - mean_grad - normalised * slope) * rstd;
    }
    if (a.grad_residual) store(a.grad_residual + start + i, grad_total);
    drop(a.dropout, row, i, grad_total);
    if (a.grad_x) store(a.grad_x + start + i, grad_total);
  });
}

// Column sums for the gradients of weight and bias, into partial (slices, 2, width).
template <class T>
__global__ void norm_parameter_sums(NormBackward<T> a, int64_t rows, float* partial) {
  sum_columns<2>(a.width, rows, partial, [&](int64_t row, int64_t column, float* sums) {
    const float grad = widen(a.grad[row * a.width + column]);
    sums[0] += grad * (widen(a.total[row * a.width + column]) - a.mean[row]) * a.rstd[row];
    sums[1] += grad;
  });
}

}  // namespace dsmm::cuda
