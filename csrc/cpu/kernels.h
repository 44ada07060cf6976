// The CPU kernels, as tables of functions: one table for each instruction set and dtype.
// A kernel works on rows [begin, end), so that rows can be spread over threads.
#pragma once
#include "../arguments.h"

namespace dsmm {

template <class T> struct Kernels {
  // scratch: floats for one row, rounded up to whole vectors (scratch_size).
  void (*norm_forward)(const NormForward<T>&, int64_t begin, int64_t end, float* scratch);
  // Column sums are added to grad_weight and grad_bias; nullptr: not wanted.
  void (*norm_backward)(const NormBackward<T>&, int64_t begin, int64_t end, float* grad_weight,
                        float* grad_bias);
  void (*gelu_forward)(const GeluForward<T>&, int64_t begin, int64_t end);
  void (*gelu_backward)(const GeluBackward<T>&, int64_t begin, int64_t end, float* grad_bias);
  void (*gated_forward)(const Gated<T>&, T* out, int64_t begin, int64_t end);
  void (*gated_backward)(const Gated<T>&, const T* grad, T* grad_x, int64_t begin, int64_t end);
  void (*rotary)(const Rotary<T>&, int64_t begin, int64_t end);
  void (*softmax_forward)(const SoftmaxForward<T>&, int64_t begin, int64_t end, float* scratch);
  void (*softmax_backward)(const SoftmaxBackward<T>&, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropy<T>&, int64_t begin, int64_t end);
  void (*dropout)(const DropoutRows<T>&, int64_t begin, int64_t end);
  // Heads of keys [begin, end) of the batch; scratch: floats, as many as attention_scratch says, at least one
  // query.
  void (*attention_forward)(const Attention<T>&, T* out, int64_t begin, int64_t end, float* scratch);
  void (*attention_backward)(const Attention<T>&, const AttentionGradients<T>&, int64_t begin, int64_t end,
                             float* scratch);
  int64_t (*attention_scratch)(const Attention<T>&);
};

inline int64_t scratch_size(int64_t width) { return (width + 15) / 16 * 16; }

namespace avx512_bf16 {
extern const Kernels<float> float_kernels;
extern const Kernels<bf16> bf16_kernels;
}  // namespace avx512_bf16
namespace avx512 {
extern const Kernels<float> float_kernels;
extern const Kernels<bf16> bf16_kernels;
}  // namespace avx512
namespace avx2 {
extern const Kernels<float> float_kernels;
extern const Kernels<bf16> bf16_kernels;
}  // namespace avx2
namespace baseline {
extern const Kernels<float> float_kernels;
extern const Kernels<bf16> bf16_kernels;
}  // namespace baseline

}  // namespace dsmm
