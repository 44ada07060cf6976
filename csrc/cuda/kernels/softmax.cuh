// dropout(softmax(scale * scores)) over the keys that a sample has, and its gradient.
#pragma once
#include "dropout.cuh"

namespace dsmm::cuda {

__device__ __forceinline__ int num_keys(const int32_t* lengths, int64_t row, int64_t rows_per_sample,
                                        int width) {
  if (!lengths) return width;
  const int length = lengths[row / rows_per_sample];
  return length < 0 ? 0 : length < width ? length : width;
}

template <class T, int N, int P> __global__ void softmax_forward(SoftmaxForward<T> a, int64_t rows) {
  DSMM_DYNAMIC_SHARED(float, shared);
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  const int width = (int)a.width, keys = num_keys(a.lengths, row, a.rows_per_sample, width);
  const float scale = a.scale * kLog2E;
  const RowDropout drop(a.dropout, row);
  Packs<T, N, P> scores;
  scores.read(a.scores + start, keys);  // a pack may reach beyond the keys, never beyond the row
  RowFloats<N, P> values(shared, width);
  float largest = -3.4028235e38f;
  for_packs<N, P>(keys, [&](int p, int i) {
    const Floats<N> pack = scores.at(p, i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (i + k < keys) {
        const float scaled = pack.lanes[k] * scale;
        values.at(p, k) = scaled;
        largest = fmaxf(largest, scaled);
      }
  });
  largest = warp_max(largest);
  float sum = 0.f;
  for_packs<N, P>(keys, [&](int p, int i) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (i + k < keys) {
        const float power = power_of_2(values.at(p, k) - largest);
        values.at(p, k) = power;
        sum += power;
      }
  });
  const float inverse = 1.f / warp_sum(sum);
  for_packs<N, P>(width, [&](int p, int i) {
    Floats<N> probs;
#pragma unroll
    for (int k = 0; k < N; ++k) probs.lanes[k] = i + k < keys ? values.at(p, k) * inverse : 0.f;
    const Narrowed<T, N> undropped = narrow<T>(probs);
    if (a.probs) store(a.probs + start + i, undropped);
    probs = widen(undropped);
    drop(i, probs);
    store(a.out + start + i, probs);
  });
}

template <class T, int N, int P> __global__ void softmax_backward(SoftmaxBackward<T> a, int64_t rows) {
  DSMM_DYNAMIC_SHARED(float, shared);
  const int64_t row = row_of_warp(), start = row * a.width;
  if (row >= rows) return;
  const int width = (int)a.width, keys = num_keys(a.lengths, row, a.rows_per_sample, width);
  const RowDropout drop(a.dropout, row);
  Packs<T, N, P> grads, probs;
  grads.read(a.grad + start, keys);
  probs.read(a.probs + start, keys);
  RowFloats<N, P> values(shared, width);  // the gradient of the probabilities, for which bits are hashed once
  float sum = 0.f;
  for_packs<N, P>(keys, [&](int p, int i) {  // beyond the keys the probabilities are 0
    Floats<N> grad = grads.at(p, i);
    const Floats<N> prob = probs.at(p, i);
    drop(i, grad);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      values.at(p, k) = grad.lanes[k];
      sum += i + k < keys ? grad.lanes[k] * prob.lanes[k] : 0.f;
    }
  });
  const float mean_grad = warp_sum(sum);
  for_packs<N, P>(width, [&](int p, int i) {
    Floats<N> grad = {};
    if (i < keys) {
      const Floats<N> prob = probs.at(p, i);
#pragma unroll
      for (int k = 0; k < N; ++k)
        grad.lanes[k] = i + k < keys ? a.scale * prob.lanes[k] * (values.at(p, k) - mean_grad) : 0.f;
    }
    store(a.grad_scores + start + i, grad);
  });
}

}  // namespace dsmm::cuda
