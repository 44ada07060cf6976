// Cross-entropy of rows of logits, which turn into their gradient in place. A block has R rows, for which it
// reads each bias once a pass: the fp32 biases of a large vocabulary are twice as many bytes as its logits.
#pragma once
#include "common.cuh"

namespace dsmm::cuda {

constexpr int kCrossEntropyThreads = 384;
constexpr float kLowest = -3.4028235e38f;

// The largest element met so far, and the sum of 2^(element - largest).
struct Normaliser {
  float largest = kLowest, sum = 0.f;
  __device__ __forceinline__ void merge(float other_largest, float other_sum) {
    const float both = fmaxf(largest, other_largest);
    sum = sum * power_of_2(largest - both) + other_sum * power_of_2(other_largest - both);
    largest = both;
  }
};

// body(column, packs of the R rows, biases in units of log 2) for each pack of this thread; the packs of all
// rows are under way at once.
template <int N, int R, class T, class Body>
__device__ __forceinline__ void for_columns(const CrossEntropy<T>& a, int64_t first, int num_rows,
                                            Body body) {
  for (int i = threadIdx.x * N; i < a.width; i += kCrossEntropyThreads * N) {
    Pack<T, N> packs[R];
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (r < num_rows) packs[r] = load_pack<N>(a.logits + (first + r) * a.width + i);
    Floats<N> bias = {};
    if (a.bias) bias = load_parameter<N, T>(a.bias, a.narrow, i);
#pragma unroll
    for (int k = 0; k < N; ++k) bias.lanes[k] *= kLog2E;
    body(i, packs, bias);
  }
}

template <class T, int N, int R>
__global__ void __launch_bounds__(kCrossEntropyThreads, 2) cross_entropy(CrossEntropy<T> a, int64_t rows) {
  constexpr int kWarps = kCrossEntropyThreads / kWarp;
  __shared__ float largest[R][kWarps], sum[R][kWarps];
  const int64_t first = (int64_t)blockIdx.x * R;
  const int num_rows = (int)(rows - first < R ? rows - first : R);
  Normaliser mine[R];
  for_columns<N, R>(a, first, num_rows, [&](int, const Pack<T, N>(&packs)[R], const Floats<N>& bias) {
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (r < num_rows) {
        Floats<N> scores = widen(packs[r]);
        float pack_largest = mine[r].largest;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          scores.lanes[k] = scores.lanes[k] * kLog2E + bias.lanes[k];
          pack_largest = fmaxf(pack_largest, scores.lanes[k]);
        }
        mine[r].sum *= power_of_2(mine[r].largest - pack_largest);
        mine[r].largest = pack_largest;
#pragma unroll
        for (int k = 0; k < N; ++k) mine[r].sum += power_of_2(scores.lanes[k] - pack_largest);
      }
  });
  float normalisers[R];  // log2 of the sum of exp(score)
  int hits[R];           // the column of the target; -1: the row counts nothing
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other_largest = __shfl_xor_sync(kAllLanes, mine[r].largest, step);
      const float other_sum = __shfl_xor_sync(kAllLanes, mine[r].sum, step);
      mine[r].merge(other_largest, other_sum);
    }
    if (threadIdx.x % kWarp == 0) {
      largest[r][threadIdx.x / kWarp] = mine[r].largest;
      sum[r][threadIdx.x / kWarp] = mine[r].sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < R; ++r) {
    Normaliser all;
    for (int warp = 0; warp < kWarps; ++warp) all.merge(largest[r][warp], sum[r][warp]);
    normalisers[r] = all.largest + log2f(all.sum);
    const int64_t target = r < num_rows ? a.targets[first + r] : kIgnored;
    hits[r] = target == kIgnored ? -1 : (int)target;
    if (threadIdx.x == 0 && r < num_rows) {
      // A target outside the vocabulary makes the loss nan instead of reading past the row.
      float loss = target == kIgnored ? 0.f : __int_as_float(0x7fc00000);
      if (target >= 0 && target < a.width) {
        const float bias = a.bias ? load_parameter<1, T>(a.bias, a.narrow, target).lanes[0] : 0.f;
        loss = normalisers[r] * kLn2 - (widen(a.logits[(first + r) * a.width + target]) + bias);
      }
      a.losses[first + r] = loss;
    }
  }
  if (!a.needs_grad) return;
  __syncthreads();  // the targets' logits are read before they are overwritten
  for_columns<N, R>(a, first, num_rows, [&](int i, const Pack<T, N>(&packs)[R], const Floats<N>& bias) {
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (r < num_rows) {
        Floats<N> scores = widen(packs[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float prob = power_of_2(scores.lanes[k] * kLog2E + bias.lanes[k] - normalisers[r]);
          scores.lanes[k] = hits[r] < 0 ? 0.f : i + k == hits[r] ? prob - 1.f : prob;
        }
        store(a.logits + (first + r) * a.width + i, scores);
      }
  });
}

}  // namespace dsmm::cuda
