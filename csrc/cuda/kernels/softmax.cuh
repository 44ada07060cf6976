// dropout(softmax(scale * scores)) over the keys that a sample has, and its gradient.
#pragma once
#include "dropout.cuh"

namespace dsmm::cuda {

__device__ __forceinline__ int64_t num_keys(const int32_t* lengths, int64_t row, int64_t rows_per_sample,
                                            int64_t width) {
  if (!lengths) return width;
  const int64_t length = lengths[row / rows_per_sample];
  return length < 0 ? 0 : length < width ? length : width;
}

// Dynamic shared memory: a row of floats for each warp; a lane reads back only what it wrote itself.
template <class T, int N> __global__ void softmax_forward(SoftmaxForward<T> a, int64_t rows) {
  DSMM_DYNAMIC_SHARED(float, shared);
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  const int64_t keys = num_keys(a.lengths, row, a.rows_per_sample, a.width);
  float* values = shared + threadIdx.y * a.width;
  float largest = -3.4028235e38f;
  for_packs<N>(keys, [&](int64_t i) {  // a pack may reach beyond the keys, never beyond the row
    const Floats<N> scores = load<N>(a.scores + start + i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (i + k < keys) {
        values[i + k] = scores.lanes[k] * a.scale;
        largest = fmaxf(largest, values[i + k]);
      }
  });
  largest = warp_max(largest);
  float sum = 0.f;
  for_packs<N>(keys, [&](int64_t i) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (i + k < keys) {
        values[i + k] = expf(values[i + k] - largest);
        sum += values[i + k];
      }
  });
  const float inverse = 1.f / warp_sum(sum);
  for_packs<N>(a.width, [&](int64_t i) {
    Floats<N> probs;
#pragma unroll
    for (int k = 0; k < N; ++k) probs.lanes[k] = i + k < keys ? rounded<T>(values[i + k] * inverse) : 0.f;
    if (a.probs) store(a.probs + start + i, probs);
    drop(a.dropout, row, i, probs);
    store(a.out + start + i, probs);
  });
}

template <class T, int N> __global__ void softmax_backward(SoftmaxBackward<T> a, int64_t rows) {
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  const int64_t keys = num_keys(a.lengths, row, a.rows_per_sample, a.width);
  float sum = 0.f;
  for_packs<N>(keys, [&](int64_t i) {  // beyond the keys the probabilities are 0
    Floats<N> grad = load<N>(a.grad + start + i);
    const Floats<N> probs = load<N>(a.probs + start + i);
    drop(a.dropout, row, i, grad);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += i + k < keys ? grad.lanes[k] * probs.lanes[k] : 0.f;
  });
  const float mean_grad = warp_sum(sum);
  for_packs<N>(a.width, [&](int64_t i) {
    Floats<N> grad = load<N>(a.grad + start + i);
    const Floats<N> probs = load<N>(a.probs + start + i);
    drop(a.dropout, row, i, grad);
#pragma unroll
    for (int k = 0; k < N; ++k)
      grad.lanes[k] = i + k < keys ? a.scale * probs.lanes[k] * (grad.lanes[k] - mean_grad) : 0.f;
    store(a.grad_scores + start + i, grad);
  });
}

}  // namespace dsmm::cuda
