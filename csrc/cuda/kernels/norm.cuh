// LayerNorm or RMS norm of residual + dropout(x) over rows, and the gradient of the norm and of that sum.
#pragma once
#include "dropout.cuh"
#include "sums.cuh"

namespace dsmm::cuda {

template <bool B> __device__ __forceinline__ int64_t first_row() { return B ? blockIdx.x : row_of_warp(); }
template <bool B> __device__ __forceinline__ int64_t row_stride() {
  return (int64_t)gridDim.x * (B ? 1 : blockDim.y);
}

template <class T, int N, int P, bool B> __global__ void norm_forward(NormForward<T> a, int64_t rows) {
  DSMM_DYNAMIC_SHARED(float, shared);
  for (int64_t row = first_row<B>(); row < rows; row += row_stride<B>()) {
    const int64_t start = row * a.width;
    const int width = (int)a.width;
    const RowDropout drop(a.dropout, row);
    Packs<T, N, P, B> x, residual;
    x.read(a.x + start, width);
    if (a.residual) residual.read(a.residual + start, width);
    RowFloats<N, P> values(shared, width);
    float sum = 0.f;
    for_packs<N, P, B>(width, [&](int p, int i) {
      Floats<N> v = x.at(p, i);
      drop(i, v);
      if (a.residual) {
        const Floats<N> added = residual.at(p, i);
#pragma unroll
        for (int k = 0; k < N; ++k) v.lanes[k] += added.lanes[k];
      }
      const Narrowed<T, N> total = narrow<T>(v);
      if (a.total) store(a.total + start + i, total);
      const Floats<N> seen = widen(total);  // as the backward pass sees the sum; so do the statistics
#pragma unroll
      for (int k = 0; k < N; ++k) {
        values.at(p, k) = seen.lanes[k];
        sum += seen.lanes[k];
      }
    });
    const float mean = a.rms ? 0.f : row_sum<B>(sum) / width;
    float squares = 0.f;
    for_packs<N, P, B>(width, [&](int p, int) {
#pragma unroll
      for (int k = 0; k < N; ++k) squares += (values.at(p, k) - mean) * (values.at(p, k) - mean);
    });
    const float rstd = rsqrtf(row_sum<B>(squares) / width + a.eps);
    for_packs<N, P, B>(width, [&](int p, int i) {
      const Floats<N> weight = load_parameter<N, T>(a.weight, a.narrow, i);
      Floats<N> bias = {}, out;
      if (a.bias) bias = load_parameter<N, T>(a.bias, a.narrow, i);
#pragma unroll
      for (int k = 0; k < N; ++k)
        out.lanes[k] = (values.at(p, k) - mean) * rstd * weight.lanes[k] + bias.lanes[k];
      store(a.out + start + i, out);
    });
    if (threadIdx.x == 0 && (!B || threadIdx.y == 0)) {
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
  }
}

// Gradient of one row. see(p, k, grad, normalised) is called with each element of this lane.
template <class T, int N, int P, bool B, class See>
__device__ __forceinline__ void norm_backward_row(const NormBackward<T>& a, int64_t row, See see) {
  const int64_t start = row * a.width;
  const int width = (int)a.width;
  const RowDropout drop(a.dropout, row);
  Packs<T, N, P, B> grads, totals;
  grads.read(a.grad + start, width);
  totals.read(a.total + start, width);
  const float mean = a.mean[row], rstd = a.rstd[row];
  float sum = 0.f, sum_with_normalised = 0.f;
  for_packs<N, P, B>(width, [&](int p, int i) {
    const Floats<N> grad = grads.at(p, i), total = totals.at(p, i), weight = load_parameter<N, T>(a.weight, a.narrow, i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float weighted = grad.lanes[k] * weight.lanes[k], normalised = (total.lanes[k] - mean) * rstd;
      sum += weighted;
      sum_with_normalised += weighted * normalised;
      see(p, k, grad.lanes[k], normalised);
    }
  });
  const float mean_grad = a.rms ? 0.f : row_sum<B>(sum) / width, slope = row_sum<B>(sum_with_normalised) / width;
  for_packs<N, P, B>(width, [&](int p, int i) {
    const Floats<N> grad = grads.at(p, i), total = totals.at(p, i), weight = load_parameter<N, T>(a.weight, a.narrow, i);
    Floats<N> grad_total;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float normalised = (total.lanes[k] - mean) * rstd;
      grad_total.lanes[k] = (grad.lanes[k] * weight.lanes[k] - mean_grad - normalised * slope) * rstd;
    }
    if (a.grad_sum) {
      const Floats<N> of_sum = load<N>(a.grad_sum + start + i);
#pragma unroll
      for (int k = 0; k < N; ++k) grad_total.lanes[k] += of_sum.lanes[k];
    }
    if (a.grad_residual) store(a.grad_residual + start + i, grad_total);
    drop(i, grad_total);
    if (a.grad_x) store(a.grad_x + start + i, grad_total);
  });
}

template <class T, int N, int P, bool B> __global__ void norm_backward(NormBackward<T> a, int64_t rows) {
  for (int64_t row = first_row<B>(); row < rows; row += row_stride<B>())
    norm_backward_row<T, N, P, B>(a, row, [](int, int, float, float) {});
}

// The same, and column sums for the gradients of weight and bias, into partial (slices, 2, width): a lane has
// those of its columns, so that nothing is read a second time. Rows in registers (P > 0); blocks of (32,
// kSumWarps).
template <class T, int N, int P>
__global__ void __launch_bounds__(kWarp* kSumWarps, sizeof(T) == 4 || P == 4 ? 1
                                                    : P == 1                 ? 4
                                                                             : 2)
    norm_backward_with_sums(NormBackward<T> a, int64_t rows, float* partial) {
  a.narrow = false;  // it is not, where weights train: registers are scarce here
  float sums[P][2][N] = {};
  for (int64_t row = row_of_warp(); row < rows; row += (int64_t)gridDim.x * kSumWarps)
    norm_backward_row<T, N, P, false>(a, row, [&](int p, int k, float grad, float normalised) {
      sums[p][0][k] += grad * normalised;
      sums[p][1][k] += grad;
    });
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (p) __syncthreads();  // the sums of the packs before are read
    store_sums(sums[p], (p * kWarp + threadIdx.x) * N, blockIdx.x, a.width, partial);
  }
}

// The column sums alone, by a second read, where a row is not in registers.
template <class T, int N>
__global__ void norm_parameter_sums(NormBackward<T> a, int64_t rows, float* partial) {
  const Columns<N> columns;
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
  store_sums(sums, columns.first, blockIdx.y, a.width, partial);
}

}  // namespace dsmm::cuda
