// Host side of the CUDA kernels: raw pointers and a stream, no torch. Each returns a cudaError_t as int.
// T: float, fp16 or bf16. Rows of norm_forward and softmax hold at most kMaxWidth elements, of others kMaxColumns.
#pragma once
#include "../arguments.h"

namespace dsmm::cuda {

constexpr int64_t kMaxWidth = 12288;      // a row of floats in 48 KiB of shared memory; a multiple of 32 * 8
constexpr int64_t kMaxColumns = 1 << 30;  // of the others, whose kernels number them in 32 bits

// Whether the library holds code for a compute capability, or for that of a device (-1: none, a tensor of
// another kind of device, which the checks of the arguments refuse).
bool has_code(int64_t major, int64_t minor);
bool has_code_for(int device);
const char* error_text(int error);  // CUDA's words for a cudaError_t
// Of the rows of a matrix, for sums of its columns: as many for each processor of the current device, so that
// they end together, and more of narrow rows, that enough bytes are under way; fewer where these had no rows.
int64_t sum_slices(int64_t rows, int64_t width);

template <class T> int norm_forward(const NormForward<T>&, int64_t rows, void* stream);
// partial: (slices, 2, width) floats, sums of columns to be added up over the slices; nullptr: not wanted.
template <class T>
int norm_backward(const NormBackward<T>&, int64_t rows, int64_t slices, float* partial, void* stream);
template <class T> int gelu_forward(const GeluForward<T>&, int64_t rows, void* stream);
// partial: (slices, width), likewise.
template <class T>
int gelu_backward(const GeluBackward<T>&, int64_t rows, int64_t slices, float* partial, void* stream);
template <class T> int gated_forward(const Gated<T>&, T* out, int64_t rows, void* stream);
template <class T> int gated_backward(const Gated<T>&, const T* grad, T* grad_x, int64_t rows, void* stream);
template <class T> int rotary(const Rotary<T>&, int64_t rows, void* stream);
template <class T> int softmax_forward(const SoftmaxForward<T>&, int64_t rows, void* stream);
template <class T> int softmax_backward(const SoftmaxBackward<T>&, int64_t rows, void* stream);
template <class T> int cross_entropy(const CrossEntropy<T>&, int64_t rows, void* stream);
template <class T> int dropout(const DropoutRows<T>&, int64_t rows, void* stream);

}  // namespace dsmm::cuda
