// Cross-entropy of rows of logits, which turn into their gradient in place. One block for each row.
#pragma once
#include "common.cuh"

namespace dsmm::cuda {

constexpr float kLowest = -3.4028235e38f;

// The largest element met so far, and the sum of exp(element - largest).
struct Normaliser {
  float largest, sum;
  __device__ __forceinline__ void merge(float other_largest, float other_sum) {
    const float both = fmaxf(largest, other_largest);
    sum = sum * expf(largest - both) + other_sum * expf(other_largest - both);
    largest = both;
  }
};

// blockDim is (threads), a multiple of 32 and at most 1024.
template <class T, int N> __global__ void cross_entropy(CrossEntropy<T> a) {
  __shared__ float largest[kWarp], sum[kWarp];
  const int64_t row = blockIdx.x, target = a.targets[row];
  T* logits = a.logits + row * a.width;
  if (target == kIgnored) {
    if (threadIdx.x == 0) a.losses[row] = 0.f;
    if (a.needs_grad)
      for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) logits[i] = narrow<T>(0.f);
    return;
  }
  Normaliser mine = {kLowest, 0.f};
  for (int64_t i = threadIdx.x * N; i < a.width; i += blockDim.x * N) {
    Floats<N> scores = load<N>(logits + i);
    const Floats<N> bias = load<N>(a.bias + i);
    float pack_largest = mine.largest;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      scores.lanes[k] += bias.lanes[k];
      pack_largest = fmaxf(pack_largest, scores.lanes[k]);
    }
    mine.sum *= expf(mine.largest - pack_largest);
    mine.largest = pack_largest;
#pragma unroll
    for (int k = 0; k < N; ++k) mine.sum += expf(scores.lanes[k] - pack_largest);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other_largest = __shfl_xor_sync(kAllLanes, mine.largest, step);
    const float other_sum = __shfl_xor_sync(kAllLanes, mine.sum, step);
    mine.merge(other_largest, other_sum);
  }
  if (threadIdx.x % kWarp == 0) {
    largest[threadIdx.x / kWarp] = mine.largest;
    sum[threadIdx.x / kWarp] = mine.sum;
  }
  __syncthreads();
  mine = {kLowest, 0.f};
  for (int warp = 0; warp < (int)(blockDim.x / kWarp); ++warp) mine.merge(largest[warp], sum[warp]);
  const float normaliser = mine.largest + logf(mine.sum);
  // A target outside the vocabulary makes the loss nan instead of reading past the row.
  const bool valid = target >= 0 && target < a.width;
  if (threadIdx.x == 0)
    a.losses[row] =
        valid ? normaliser - (widen(logits[target]) + a.bias[target]) : __int_as_float(0x7fc00000);
  if (!a.needs_grad) return;
  __syncthreads();  // the target's logit is read before it is overwritten
  for (int64_t i = threadIdx.x * N; i < a.width; i += blockDim.x * N) {
    Floats<N> scores = load<N>(logits + i);
    const Floats<N> bias = load<N>(a.bias + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float prob = expf(scores.lanes[k] + bias.lanes[k] - normaliser);
      scores.lanes[k] = i + k == target ? prob - 1.f : prob;
    }
    store(logits + i, scores);
  }
}

}  // namespace dsmm::cuda
