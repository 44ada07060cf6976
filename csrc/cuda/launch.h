// Host side of the CUDA kernels: raw pointers and a stream, no torch. Each returns a cudaError_t as int.
// T: float, fp16 or bf16. Rows of norm_forward and softmax hold at most kMaxWidth elements.
#pragma once
#include "../arguments.h"

namespace dsmm::cuda {

constexpr int64_t kMaxWidth = 12288;  // a row of floats in 48 KiB of shared memory; a multiple of 32 * 8

// Whether the library holds code for a compute capability, or for that of a device (-1: none, a tensor of
// another kind of device, which the checks of the arguments refuse).
bool has_code(int64_t major, int64_t minor);
bool has_code_for(int device);

template <class T> int norm_forward(const NormForward<T>&, int64_t rows, void* stream);
template <class T> int norm_backward(const NormBackward<T>&, int64_t rows, void* stream);
// partial: (kSumSlices, 2, width) floats, to be added up over the slices.
constexpr int64_t kSumSlices = 256;
template <class T>
int norm_parameter_sums(const NormBackward<T>&, int64_t rows, float* partial, void* stream);
template <class T> int gelu_forward(const GeluForward<T>&, int64_t rows, void* stream);
// partial: (kSumSlices, width), for the column sums of the gradient; nullptr: not wanted.
template <class T> int gelu_backward(const GeluBackward<T>&, int64_t rows, float* partial, void* stream);
template <class T> int softmax_forward(const SoftmaxForward<T>&, int64_t rows, void* stream);
template <class T> int softmax_backward(const SoftmaxBackward<T>&, int64_t rows, void* stream);
template <class T> int cross_entropy(const CrossEntropy<T>&, int64_t rows, void* stream);
template <class T> int dropout(const DropoutRows<T>&, int64_t rows, void* stream);

}  // namespace dsmm::cuda
