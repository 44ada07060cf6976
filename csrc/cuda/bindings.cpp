// The CUDA kernels, float32, float16 and bfloat16, in the place of the torch references.
#include "../operators.h"

#include "launch.h"

// The tests build this file with the CPU shim, under another name and for CPU tensors.
#ifndef DSMM_CPU_SHIM
#define DSMM_LIBRARY dsmm
#define DSMM_DISPATCH_KEY CUDA
#endif

namespace dsmm {
namespace {

// The stream that torch works on, on the device of the tensors at hand.
void* current_stream() {
#ifdef DSMM_CPU_SHIM
  return nullptr;
#else
  int32_t device;
  void* stream;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_device_index(&device));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return stream;
#endif
}

void check(const char* kernel, int error) {
  DSMM_CHECK(error == 0, "CUDA error at the launch of ", kernel, ": ", cuda::error_text(error));
}
#define DSMM_RUN(KERNEL, ...) check(#KERNEL, cuda::KERNEL(__VA_ARGS__, current_stream()))

struct Cuda {
  static constexpr bool kReadsNarrow = true;

  // Wide rows go to torch's operators where they would have to lie in shared memory.
  static bool takes(int32_t dtype, int32_t device, const std::string& op, int64_t width) {
    if (!cuda::has_code_for(device)) return false;
    const bool holds_rows = op.find("softmax") != op.npos || op == "dsmm_reference::residual_norm";
    if (width > (holds_rows ? cuda::kMaxWidth : cuda::kMaxColumns)) return false;
    return dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_float16() ||
           dtype == aoti_torch_dtype_bfloat16();
  }

  // body(T{}) for the dtype of x, with the device of x as the current one.
  template <class Body>
  static void with_dtype(const Tensor& x, Body body) {
#ifndef DSMM_CPU_SHIM
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
#endif
    if (x.scalar_type() == ScalarType::Float)
      body(float{});
    else if (x.scalar_type() == ScalarType::Half)
      body(fp16{});
    else
      body(bf16{});
  }

  template <class T> static void norm_forward(const NormForward<T>& a, int64_t rows) {
    DSMM_RUN(norm_forward, a, rows);
  }
  template <class T>
  static void norm_backward(const NormBackward<T>& a, int64_t rows, MaybeTensor& sums) {
    if (!sums) return DSMM_RUN(norm_backward, a, rows, 0, nullptr);
    const int64_t slices = cuda::sum_slices(rows, a.width);
    const Tensor partial = torch::stable::new_empty(*sums, {slices, 2, a.width});
    DSMM_RUN(norm_backward, a, rows, slices, data<float>(partial));
    sums = torch::stable::sum(partial, std::vector<int64_t>{0});
  }
  template <class T> static void gelu_forward(const GeluForward<T>& a, int64_t rows) {
    DSMM_RUN(gelu_forward, a, rows);
  }
  template <class T>
  static void gelu_backward(const GeluBackward<T>& a, int64_t rows, MaybeTensor& sums) {
    if (!sums) return DSMM_RUN(gelu_backward, a, rows, 0, nullptr);
    const int64_t slices = cuda::sum_slices(rows, a.width);
    const Tensor partial = torch::stable::new_empty(*sums, {slices, a.width});
    DSMM_RUN(gelu_backward, a, rows, slices, data<float>(partial));
    sums = torch::stable::sum(partial, std::vector<int64_t>{0});
  }
  template <class T> static void gated_forward(const Gated<T>& a, T* out, int64_t rows) {
    DSMM_RUN(gated_forward, a, out, rows);
  }
  template <class T>
  static void gated_backward(const Gated<T>& a, const T* grad, T* grad_x, int64_t rows) {
    DSMM_RUN(gated_backward, a, grad, grad_x, rows);
  }
  template <class T> static void rotary(const Rotary<T>& a, int64_t rows) { DSMM_RUN(rotary, a, rows); }
  template <class T> static void softmax_forward(const SoftmaxForward<T>& a, int64_t rows) {
    DSMM_RUN(softmax_forward, a, rows);
  }
  template <class T> static void softmax_backward(const SoftmaxBackward<T>& a, int64_t rows) {
    DSMM_RUN(softmax_backward, a, rows);
  }
  template <class T> static void cross_entropy(const CrossEntropy<T>& a, int64_t rows) {
    DSMM_RUN(cross_entropy, a, rows);
  }
  template <class T> static void dropout(const DropoutRows<T>& a, int64_t rows) { DSMM_RUN(dropout, a, rows); }
};

#ifndef DSMM_CPU_SHIM
bool has_code(int64_t major, int64_t minor) { return cuda::has_code(major, minor); }
#endif

}  // namespace

#ifndef DSMM_CPU_SHIM
STABLE_TORCH_LIBRARY(dsmm_cuda, library) { library.def("has_code(int major, int minor) -> bool"); }
STABLE_TORCH_LIBRARY_IMPL(dsmm_cuda, CompositeExplicitAutograd, library) {
  library.impl("has_code", TORCH_BOX(&has_code));
}
#endif

STABLE_TORCH_LIBRARY_IMPL(DSMM_LIBRARY, DSMM_DISPATCH_KEY, library) { DSMM_SERVE_ALL(Cuda); }
#ifdef DSMM_CPU_SHIM  // tensors of two devices reach the checks, as a GPU's beside the CPU's would
STABLE_TORCH_LIBRARY_IMPL(DSMM_LIBRARY, Meta, library) { DSMM_SERVE_ALL(Cuda); }
#endif

}  // namespace dsmm
