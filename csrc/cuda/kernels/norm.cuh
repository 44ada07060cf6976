// LayerNorm(residual + dropout(x)) over rows, and its gradient.
#pragma once
#include "dropout.cuh"
#include "sums.cuh"

namespace dsmm::cuda {

template <class T, int N, int P> __global__ void norm_forward(NormForward<T> a, int64_t rows) {
  DSMM_DYNAMIC_SHARED(float, shared);
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  Packs<T, N, P> x, residual;
  x.read(a.x + start, a.width);
  if (a.residual) residual.read(a.residual + start, a.width);
  RowFloats<N, P> values(shared, a.width);
  float sum = 0.f;
  for_packs<N, P>(a.width, [&](int p, int64_t i) {
    Floats<N> v = x.at(p, i);
    drop(a.dropout, row, i, v);
    if (a.residual) {
      const Floats<N> added = residual.at(p, i);
#pragma unroll
      for (int k = 0; k < N; ++k) v.lanes[k] += added.lanes[k];
    }
    if (a.total) store(a.total + start + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float seen = rounded<T>(v.lanes[k]);  // as the backward pass sees the sum; so do the statistics
      values.at(p, k) = seen;
      sum += seen;
    }
  });
  const float mean = warp_sum(sum) / a.width;
  float squares = 0.f;
  for_packs<N, P>(a.width, [&](int p, int64_t) {
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (values.at(p, k) - mean) * (values.at(p, k) - mean);
  });
  const float rstd = rsqrtf(warp_sum(squares) / a.width + a.eps);
  for_packs<N, P>(a.width, [&](int p, int64_t i) {
    const Floats<N> weight = load<N>(a.weight + i), bias = load<N>(a.bias + i);
    Floats<N> out;
#pragma unroll
    for (int k = 0; k < N; ++k)
      out.lanes[k] = (values.at(p, k) - mean) * rstd * weight.lanes[k] + bias.lanes[k];
    store(a.out + start + i, out);
  });
  if (threadIdx.x == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <class T, int N, int P> __global__ void norm_backward(NormBackward<T> a, int64_t rows) {
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  Packs<T, N, P> grads, totals;
  grads.read(a.grad + start, a.width);
  totals.read(a.total + start, a.width);
  const float mean = a.mean[row], rstd = a.rstd[row];
  float sum = 0.f, sum_with_normalised = 0.f;
  for_packs<N, P>(a.width, [&](int p, int64_t i) {
    const Floats<N> grad = grads.at(p, i), total = totals.at(p, i), weight = load<N>(a.weight + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float weighted = grad.lanes[k] * weight.lanes[k];
      sum += weighted;
      sum_with_normalised += weighted * (total.lanes[k] - mean) * rstd;
    }
  });
  const float mean_grad = warp_sum(sum) / a.width, slope = warp_sum(sum_with_normalised) / a.width;
  for_packs<N, P>(a.width, [&](int p, int64_t i) {
    const Floats<N> grad = grads.at(p, i), total = totals.at(p, i), weight = load<N>(a.weight + i);
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
template <class T, int N>
__global__ void norm_parameter_sums(NormBackward<T> a, int64_t rows, float* partial) {
  const Columns<N> columns(rows);
  float sums[2][N] = {};
  if (columns.first < a.width)
#pragma unroll 4  // nothing is written between the reads, so those of four rows are under way at once
    for (int64_t row = columns.first_row; row < rows; row += columns.stride) {
      const Floats<N> grad = load<N>(a.grad + row * a.width + columns.first);
      const Floats<N> total = load<N>(a.total + row * a.width + columns.first);
      const float mean = a.mean[row], rstd = a.rstd[row];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        sums[0][k] += grad.lanes[k] * (total.lanes[k] - mean) * rstd;
        sums[1][k] += grad.lanes[k];
      }
    }
  store_sums(sums, a.width, partial);
}

}  // namespace dsmm::cuda
