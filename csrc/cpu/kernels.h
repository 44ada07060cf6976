// The CPU kernels, as tables of functions: one table for each instruction set and dtype.
// A kernel works on rows [begin, end) of row-major matrices, so that rows can be spread over threads.
#pragma once
#include <cstdint>

namespace dsmm {

struct bf16 { uint16_t bits; };

// Dropout of rows (ds_minimodel/ops/dropout.py). keys == nullptr: no dropout.
struct Dropout {
  const int32_t* keys;  // one for each row
  uint32_t threshold;   // an element is kept if its hash is at least this
  float scale;          // 1 / (1 - p)
};

template <class T> struct NormForward {
  const T *x, *residual;       // residual may be nullptr
  const float *weight, *bias;
  T *out, *total;              // total: residual + dropout(x), nullptr where that is x itself
  float *mean, *rstd;
  Dropout dropout;
  int64_t width;
  float eps;
  // Write total past the caches: it is read in the backward pass only. Rows must be whole vectors,
  // and total aligned to them.
  bool streams_total;
};

template <class T> struct NormBackward {
  const T *grad, *total;
  const float *weight, *mean, *rstd;
  T *grad_x, *grad_residual;   // either may be nullptr
  Dropout dropout;
  int64_t width;
};

template <class T> struct GeluForward { const T* x; const float* bias; T* out; int64_t width; };

template <class T> struct GeluBackward { const T *grad, *x; const float* bias; T* grad_x; int64_t width; };

template <class T> struct SoftmaxForward {
  const T* scores;
  const int32_t* lengths;      // keys of each sample, nullptr: all
  T *out, *probs;              // probs: before dropout, nullptr without dropout
  Dropout dropout;
  int64_t width, rows_per_sample;
  float scale;
};

template <class T> struct SoftmaxBackward {
  const T *grad, *probs;
  const int32_t* lengths;
  T* grad_scores;
  Dropout dropout;
  int64_t width, rows_per_sample;
  float scale;
};

template <class T> struct CrossEntropy {
  T* logits;                   // without bias; becomes d loss / d logits if needs_grad
  const float* bias;
  const int64_t* targets;      // kIgnored: the row counts nothing
  float* losses;
  int64_t width;
  bool needs_grad;
};
constexpr int64_t kIgnored = -100;

template <class T> struct DropoutRows { const T* x; T* out; Dropout dropout; int64_t width; };

template <class T> struct Kernels {
  // scratch: floats for one row, rounded up to whole vectors (scratch_size).
  void (*norm_forward)(const NormForward<T>&, int64_t begin, int64_t end, float* scratch);
  // Column sums are added to grad_weight and grad_bias; nullptr: not wanted.
  void (*norm_backward)(const NormBackward<T>&, int64_t begin, int64_t end, float* grad_weight,
                        float* grad_bias);
  void (*gelu_forward)(const GeluForward<T>&, int64_t begin, int64_t end);
  void (*gelu_backward)(const GeluBackward<T>&, int64_t begin, int64_t end, float* grad_bias);
  void (*softmax_forward)(const SoftmaxForward<T>&, int64_t begin, int64_t end, float* scratch);
  void (*softmax_backward)(const SoftmaxBackward<T>&, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropy<T>&, int64_t begin, int64_t end);
  void (*dropout)(const DropoutRows<T>&, int64_t begin, int64_t end);
};

inline int64_t scratch_size(int64_t width) { return (width + 15) / 16 * 16; }

namespace avx512 { extern const Kernels<float> float_kernels; extern const Kernels<bf16> bf16_kernels; }
namespace avx2 { extern const Kernels<float> float_kernels; extern const Kernels<bf16> bf16_kernels; }
namespace baseline { extern const Kernels<float> float_kernels; extern const Kernels<bf16> bf16_kernels; }

}  // namespace dsmm
