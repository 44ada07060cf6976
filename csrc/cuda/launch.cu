#include "launch.h"

#include <initializer_list>

#include "kernels/cross_entropy.cuh"
#include "kernels/gelu.cuh"
#include "kernels/norm.cuh"
#include "kernels/softmax.cuh"

#ifndef DSMM_CPU_SHIM
#define DSMM_LAUNCH(KERNEL, GRID, BLOCK, SHARED, STREAM, ...) \
  KERNEL<<<GRID, BLOCK, SHARED, static_cast<cudaStream_t>(STREAM)>>>(__VA_ARGS__)
#endif

namespace dsmm::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

// Whether rows can be read in packs of 16 bytes.
template <class T>
bool takes_packs(int64_t width, std::initializer_list<const void*> pointers) {
  bool aligned = width * sizeof(T) % 16 == 0;
  for (const void* pointer : pointers) aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  return aligned;
}

dim3 row_grid(int64_t rows, int warps) { return dim3(static_cast<unsigned>((rows + warps - 1) / warps)); }

dim3 sums_grid(int64_t width) {
  return dim3(static_cast<unsigned>((width + kWarp - 1) / kWarp), static_cast<unsigned>(kSumSlices));
}

// As many rows to a block as have room for their floats in shared memory.
int warps_with_rows(int64_t width) {
  const int64_t fitting = kMaxWidth / width;
  return static_cast<int>(fitting < kWarpsPerBlock ? fitting : kWarpsPerBlock);
}

}  // namespace

#ifdef DSMM_CPU_SHIM
bool has_code_for(int) { return true; }
#else
bool has_code(int64_t major, int64_t minor) {
  constexpr int architectures[] = {__CUDA_ARCH_LIST__};  // 750 for sm_75, in ascending order
  int64_t newest = 0;
  for (const int64_t architecture : architectures) {
    newest = architecture / 10;
    if (newest / 10 == major && newest % 10 <= minor) return true;
  }
  return DSMM_HAS_PTX && newest <= 10 * major + minor;  // the driver compiles it
}

bool has_code_for(int device) {
  int major = 0, minor = 0;
  if (device < 0) return true;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return has_code(major, minor);
}
#endif

// KERNEL<T, N> for the N that the pointers allow.
#define DSMM_LAUNCH_ROWS(KERNEL, WARPS, SHARED, ...)                                                         \
  do {                                                                                                       \
    if (takes_packs<T>(a.width, {__VA_ARGS__}))                                                              \
      DSMM_LAUNCH((KERNEL<T, 16 / sizeof(T)>), row_grid(rows, WARPS), dim3(kWarp, WARPS), SHARED, stream, a, \
                  rows);                                                                                     \
    else                                                                                                     \
      DSMM_LAUNCH((KERNEL<T, 1>), row_grid(rows, WARPS), dim3(kWarp, WARPS), SHARED, stream, a, rows);       \
    return static_cast<int>(cudaGetLastError());                                                             \
  } while (0)

template <class T> int norm_forward(const NormForward<T>& a, int64_t rows, void* stream) {
  const int warps = warps_with_rows(a.width);
  DSMM_LAUNCH_ROWS(norm_forward, warps, warps * a.width * sizeof(float), a.x, a.residual, a.weight, a.bias,
                   a.out, a.total);
}

template <class T> int norm_backward(const NormBackward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(norm_backward, kWarpsPerBlock, 0, a.grad, a.total, a.weight, a.grad_x, a.grad_residual);
}

template <class T>
int norm_parameter_sums(const NormBackward<T>& a, int64_t rows, float* partial, void* stream) {
  DSMM_LAUNCH((norm_parameter_sums<T>), sums_grid(a.width), dim3(kWarp, kSumWarps), 0, stream, a, rows,
              partial);
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int column_sums(const T* matrix, int64_t rows, int64_t width, float* partial, void* stream) {
  DSMM_LAUNCH((column_sums<T>), sums_grid(width), dim3(kWarp, kSumWarps), 0, stream, matrix, rows, width,
              partial);
  return static_cast<int>(cudaGetLastError());
}

template <class T> int gelu_forward(const GeluForward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(gelu_forward, kWarpsPerBlock, 0, a.x, a.bias, a.out);
}

template <class T> int gelu_backward(const GeluBackward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(gelu_backward, kWarpsPerBlock, 0, a.grad, a.x, a.bias, a.grad_x);
}

template <class T> int softmax_forward(const SoftmaxForward<T>& a, int64_t rows, void* stream) {
  const int warps = warps_with_rows(a.width);
  DSMM_LAUNCH_ROWS(softmax_forward, warps, warps * a.width * sizeof(float), a.scores, a.out, a.probs);
}

template <class T> int softmax_backward(const SoftmaxBackward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(softmax_backward, kWarpsPerBlock, 0, a.grad, a.probs, a.grad_scores);
}

template <class T> int cross_entropy(const CrossEntropy<T>& a, int64_t rows, void* stream) {
  const dim3 grid(static_cast<unsigned>(rows)), block(512);
  if (takes_packs<T>(a.width, {a.logits, a.bias}))
    DSMM_LAUNCH((cross_entropy<T, 16 / sizeof(T)>), grid, block, 0, stream, a);
  else
    DSMM_LAUNCH((cross_entropy<T, 1>), grid, block, 0, stream, a);
  return static_cast<int>(cudaGetLastError());
}

template <class T> int dropout(const DropoutRows<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(dropout_rows, kWarpsPerBlock, 0, a.x, a.out);
}

#define DSMM_INSTANTIATE(T)                                                         \
  template int norm_forward(const NormForward<T>&, int64_t, void*);                 \
  template int norm_backward(const NormBackward<T>&, int64_t, void*);               \
  template int norm_parameter_sums(const NormBackward<T>&, int64_t, float*, void*); \
  template int column_sums(const T*, int64_t, int64_t, float*, void*);              \
  template int gelu_forward(const GeluForward<T>&, int64_t, void*);                 \
  template int gelu_backward(const GeluBackward<T>&, int64_t, void*);               \
  template int softmax_forward(const SoftmaxForward<T>&, int64_t, void*);           \
  template int softmax_backward(const SoftmaxBackward<T>&, int64_t, void*);         \
  template int cross_entropy(const CrossEntropy<T>&, int64_t, void*);               \
  template int dropout(const DropoutRows<T>&, int64_t, void*);
DSMM_INSTANTIATE(float)
DSMM_INSTANTIATE(fp16)
DSMM_INSTANTIATE(bf16)

}  // namespace dsmm::cuda
