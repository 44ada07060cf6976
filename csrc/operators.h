// The operators that ds_minimodel/ops defines, for any device: checks, allocation of the outputs, and
// the arguments of the kernels. A Backend brings the kernels and how a dtype is chosen. Bound through
// torch's stable ABI, so that one build serves every torch from 2.10 on. All outputs are contiguous.
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"

// torch 2.11 has it by its older name only.
#ifndef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK TORCH_ERROR_CODE_CHECK
#endif

// Throws with a message of its parts. Not torch's STD_TORCH_CHECK: see `serve`.
#define DSMM_CHECK(CONDITION, ...) \
  if (!(CONDITION)) throw std::runtime_error(dsmm::joined(__VA_ARGS__))

namespace dsmm {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

template <class T> T* data(const Tensor& x) { return static_cast<T*>(x.data_ptr()); }
template <class T> T* data_or_null(const Tensor& x) { return x.numel() ? data<T>(x) : nullptr; }
template <class T> T* data_or_null(const MaybeTensor& x) { return x ? data<T>(*x) : nullptr; }

inline Tensor like(const Tensor& x, bool wanted = true) {
  return wanted ? torch::stable::new_empty(x, x.sizes()) : torch::stable::new_empty(x, {0});
}

// A check first: even a call that has nothing to do costs a pass through the dispatcher.
inline Tensor packed(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }
inline Tensor with_type(const Tensor& x, ScalarType type) {
  return x.scalar_type() == type ? x : torch::stable::to(x, type);
}

using Sizes = std::vector<int64_t>;

inline Sizes sizes_of(const Tensor& x, int64_t dropped = 0) {  // without the last `dropped` axes
  return Sizes(x.sizes().data(), x.sizes().data() + x.dim() - dropped);
}

inline std::string text(const std::string& part) { return part; }
inline std::string text(int64_t part) { return std::to_string(part); }
inline std::string text(const Sizes& sizes) {
  std::string result;
  for (const int64_t size : sizes) result += (result.empty() ? "" : ", ") + std::to_string(size);
  return "(" + result + ")";
}
template <class... Parts> std::string joined(const Parts&... parts) { return (std::string() + ... + text(parts)); }

// Every argument passes one of the checks below before a pointer to it is taken: a kernel would read
// whatever lies there. `name` is the argument's in the schema; `x` the first argument.
inline void check_device(const Tensor& argument, const Tensor& x, const char* name) {
  int32_t type, wanted;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(argument.get(), &type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &wanted));
  DSMM_CHECK(type == wanted && (type == aoti_torch_device_type_cpu() ||
                                     argument.get_device_index() == x.get_device_index()),
                  name, " is on another device than the first argument");
}

inline void check_type(const Tensor& argument, ScalarType type, const char* type_name, const char* name) {
  DSMM_CHECK(argument.scalar_type() == type, name, " must be ", type_name);
}

inline void check_sizes(const Tensor& argument, const Sizes& sizes, const char* name) {
  DSMM_CHECK(sizes_of(argument) == sizes, name, " has the shape ", text(sizes_of(argument)),
                  " where it must be ", text(sizes));
}

// An argument of the dtype and shape of x, contiguous.
inline Tensor matching(const Tensor& argument, const Tensor& x, const char* name) {
  check_device(argument, x, name);
  check_type(argument, x.scalar_type(), "of the first argument's dtype", name);
  check_sizes(argument, sizes_of(x), name);
  return packed(argument);
}

// Whether a kernel gets parameters as they are, in the dtype of x: that of CUDA, which needs no casts then.
template <class Backend>
bool as_they_are(const Tensor& x, const Tensor& parameter, const MaybeTensor& other = std::nullopt) {
  const ScalarType type = x.scalar_type();
  return Backend::kReadsNarrow && type != ScalarType::Float && parameter.scalar_type() == type &&
         (!other || other->scalar_type() == type);
}

// A parameter of any dtype, a number for each column: contiguous, and as floats if not as it is.
inline Tensor numbers(const Tensor& parameter, int64_t width, const Tensor& x, const char* name, bool as_it_is) {
  check_device(parameter, x, name);
  check_sizes(parameter, {width}, name);
  return packed(as_it_is ? parameter : with_type(parameter, ScalarType::Float));
}

inline MaybeTensor integers(const MaybeTensor& argument, const Sizes& sizes, const Tensor& x,
                            const char* name) {
  if (!argument) return std::nullopt;
  check_device(*argument, x, name);
  check_type(*argument, ScalarType::Int, "int32", name);
  check_sizes(*argument, sizes, name);
  return packed(*argument);
}

inline Dropout dropout_of(const MaybeTensor& packed_keys, double p) {
  DSMM_CHECK(p >= 0 && p < 1, "p must be at least 0 and below 1, not ", std::to_string(p));
  return {data_or_null<int32_t>(packed_keys), static_cast<uint32_t>(std::floor(p * 4294967296.0)),
          static_cast<float>(1 / (1 - p))};
}

struct Shape {
  int64_t width, rows, samples, rows_per_sample;
  explicit Shape(const Tensor& x)
      : width(x.size(-1)),
        rows(width ? x.numel() / width : 0),
        samples(x.size(0)),
        rows_per_sample(samples ? rows / samples : 0) {}
};

// `sums` where a gradient is wanted, in the dtype of its parameter; else empty.
inline Tensor gradient_of(const Tensor& parameter, const MaybeTensor& sums) {
  return sums ? with_type(*sums, parameter.scalar_type()) : like(parameter, false);
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor> residual_norm(const Tensor& x_, const MaybeTensor& residual_,
                                                 const Tensor& weight_, const MaybeTensor& bias_, double eps,
                                                 double p, const MaybeTensor& row_keys, bool rms) {
  const Tensor x = packed(x_);
  const Shape shape(x);
  const MaybeTensor residual = residual_ ? MaybeTensor(matching(*residual_, x, "residual")) : std::nullopt;
  const bool narrow = as_they_are<Backend>(x, weight_, bias_);
  const Tensor weight = numbers(weight_, shape.width, x, "weight", narrow);
  const MaybeTensor bias = bias_ ? MaybeTensor(numbers(*bias_, shape.width, x, "bias", narrow)) : std::nullopt;
  const MaybeTensor keys = integers(row_keys, sizes_of(x, 1), x, "row_keys");
  Tensor out = like(x), total = like(x, residual || row_keys);
  Tensor statistics = torch::stable::new_empty(x, {2, shape.rows}, ScalarType::Float);
  float* mean = data<float>(statistics);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::norm_forward(NormForward<T>{data<T>(x), data_or_null<T>(residual), data<float>(weight),
                                           data_or_null<float>(bias), data<T>(out), data_or_null<T>(total),
                                           mean, mean + shape.rows, dropout_of(keys, p), shape.width,
                                           static_cast<float>(eps), rms, false, narrow},
                            shape.rows);
    });
  return {out, total, statistics};
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor, Tensor> residual_norm_backward(
    const Tensor& grad_, const MaybeTensor& grad_sum_, const Tensor& total_, const Tensor& statistics_,
    const Tensor& weight_, double p, const MaybeTensor& row_keys, bool has_residual, bool trains, bool rms) {
  const Tensor grad = packed(grad_), total = matching(total_, grad, "total");
  const MaybeTensor grad_sum = grad_sum_ ? MaybeTensor(matching(*grad_sum_, grad, "grad_sum")) : std::nullopt;
  const Shape shape(total);
  check_device(statistics_, grad, "statistics");
  check_type(statistics_, ScalarType::Float, "float32", "statistics");
  check_sizes(statistics_, {2, shape.rows}, "statistics");
  const Tensor statistics = packed(statistics_);
  const float* mean = data<float>(statistics);
  const bool narrow = !trains && as_they_are<Backend>(grad, weight_);
  const Tensor weight = numbers(weight_, shape.width, grad, "weight", narrow);
  const MaybeTensor keys = integers(row_keys, sizes_of(grad, 1), grad, "row_keys");
  Tensor grad_x = like(total, row_keys || !has_residual), grad_residual = like(total, has_residual);
  MaybeTensor sums;
  if (trains) sums = torch::stable::new_zeros(statistics, {2, shape.width});
  if (shape.rows)
    Backend::with_dtype(total, [&](auto zero) {
      using T = decltype(zero);
      Backend::norm_backward(
          NormBackward<T>{data<T>(grad), data_or_null<T>(grad_sum), data<T>(total), data<float>(weight), mean,
                          mean + shape.rows, data_or_null<T>(grad_x), data_or_null<T>(grad_residual),
                          dropout_of(keys, p), shape.width, rms, narrow},
          shape.rows, sums);
    });
  auto row = [&](int64_t i) {  // a copy, for outputs may not share memory
    return sums ? MaybeTensor(torch::stable::clone(torch::stable::select(*sums, 0, i))) : std::nullopt;
  };
  return {grad_x, grad_residual, gradient_of(weight_, row(0)), gradient_of(weight_, row(1))};
}

template <class Backend>
Tensor bias_gelu(const Tensor& x_, const Tensor& bias_) {
  const Tensor x = packed(x_);
  const Shape shape(x);
  const bool narrow = as_they_are<Backend>(x, bias_);
  const Tensor bias = numbers(bias_, shape.width, x, "bias", narrow);
  Tensor out = like(x);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::gelu_forward(GeluForward<T>{data<T>(x), data<float>(bias), data<T>(out), shape.width, narrow},
                            shape.rows);
    });
  return out;
}

template <class Backend>
std::tuple<Tensor, Tensor> bias_gelu_backward(const Tensor& grad_, const Tensor& x_, const Tensor& bias_,
                                              bool trains) {
  const Tensor grad = packed(grad_), x = matching(x_, grad, "x");
  const Shape shape(x);
  const bool narrow = as_they_are<Backend>(x, bias_);
  const Tensor bias = numbers(bias_, shape.width, x, "bias", narrow);
  Tensor grad_x = like(x);
  MaybeTensor sums;
  if (trains) sums = torch::stable::new_zeros(bias, {shape.width}, ScalarType::Float);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::gelu_backward(
          GeluBackward<T>{data<T>(grad), data<T>(x), data<float>(bias), data<T>(grad_x), shape.width, narrow},
          shape.rows, sums);
    });
  return {grad_x, gradient_of(bias_, sums)};
}

// x: rows of two halves.
template <class T> Gated<T> gated_arguments(const Tensor& x, int64_t activation) {
  return {data<T>(x), x.size(-1) / 2, static_cast<Activation>(activation)};
}

inline void check_gated(const Tensor& x, int64_t activation) {
  DSMM_CHECK(x.size(-1) % 2 == 0, "rows of ", x.size(-1), " elements have no halves");
  DSMM_CHECK(activation >= 0 && activation <= static_cast<int64_t>(Activation::silu),
                  "there is no activation ", activation);
}

template <class Backend> Tensor gated(const Tensor& x_, int64_t activation) {
  const Tensor x = packed(x_);
  check_gated(x, activation);
  const Shape shape(x);
  Sizes sizes = sizes_of(x);
  sizes.back() /= 2;
  Tensor out = torch::stable::new_empty(x, sizes);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::gated_forward(gated_arguments<T>(x, activation), data<T>(out), shape.rows);
    });
  return out;
}

template <class Backend>
Tensor gated_backward(const Tensor& grad_, const Tensor& x_, int64_t activation) {
  const Tensor grad = packed(grad_);
  check_gated(x_, activation);
  Sizes sizes = sizes_of(grad);
  sizes.back() *= 2;
  check_device(x_, grad, "x");
  check_type(x_, grad.scalar_type(), "of the first argument's dtype", "x");
  check_sizes(x_, sizes, "x");
  const Tensor x = packed(x_);
  const Shape shape(grad);
  Tensor grad_x = like(x);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::gated_backward(gated_arguments<T>(x, activation), data<T>(grad), data<T>(grad_x), shape.rows);
    });
  return grad_x;
}

// Places of rows in their sequence, (S,) or (B,S): contiguous int64, or none.
inline MaybeTensor places(const MaybeTensor& argument, int64_t samples, int64_t length, const Tensor& x) {
  if (!argument) return std::nullopt;
  check_device(*argument, x, "positions");
  check_type(*argument, ScalarType::Long, "int64", "positions");
  check_sizes(*argument, argument->dim() == 1 ? Sizes{length} : Sizes{samples, length}, "positions");
  return packed(*argument);
}

template <class Backend>
Tensor rotary(const Tensor& x_, const Tensor& table_, int64_t heads, const MaybeTensor& positions_,
              bool back) {
  DSMM_CHECK(x_.dim() == 3 && table_.dim() == 3, "rotary takes x (B,S,C) and a table (length,2,D/2)");
  const Tensor x = packed(x_);
  const Shape shape(x);
  const int64_t length = x.size(1), known = table_.size(0), half = table_.size(2);
  check_device(table_, x, "table");
  check_type(table_, ScalarType::Float, "float32", "table");
  check_sizes(table_, {known, 2, half}, "table");
  const Tensor table = packed(table_);
  const MaybeTensor positions = places(positions_, shape.samples, length, x);
  DSMM_CHECK(heads >= 0 && 2 * heads * half <= shape.width, heads, " heads of ", 2 * half,
                  " are wider than ", shape.width, " columns");
  DSMM_CHECK(positions || length <= known, length, " positions are more than the ", known,
                  " of the table");
  Tensor out = like(x);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      const int64_t period = positions ? positions->numel() : length;
      Backend::rotary(Rotary<T>{data<T>(x), data<float>(table), data_or_null<int64_t>(positions),
                                data<T>(out), shape.width, heads, half, period, known, back ? -1.f : 1.f},
                      shape.rows);
    });
  return out;
}

template <class Backend>
std::tuple<Tensor, Tensor> masked_softmax(const Tensor& scores_, const MaybeTensor& lengths_, double scale,
                                          double p, const MaybeTensor& row_keys) {
  const Tensor scores = packed(scores_);
  const Shape shape(scores);
  const MaybeTensor lengths = integers(lengths_, {shape.samples}, scores, "lengths");
  const MaybeTensor keys = integers(row_keys, sizes_of(scores, 1), scores, "row_keys");
  Tensor out = like(scores), probs = like(scores, row_keys.has_value());
  if (shape.rows)
    Backend::with_dtype(scores, [&](auto zero) {
      using T = decltype(zero);
      Backend::softmax_forward(
          SoftmaxForward<T>{data<T>(scores), data_or_null<int32_t>(lengths), data<T>(out),
                            data_or_null<T>(probs), dropout_of(keys, p), shape.width, shape.rows_per_sample,
                            static_cast<float>(scale)},
          shape.rows);
    });
  return {out, probs};
}

template <class Backend>
Tensor masked_softmax_backward(const Tensor& grad_, const Tensor& probs_, const MaybeTensor& lengths_,
                               double scale, double p, const MaybeTensor& row_keys) {
  const Tensor grad = packed(grad_), probs = matching(probs_, grad, "probs");
  const Shape shape(probs);
  const MaybeTensor lengths = integers(lengths_, {shape.samples}, grad, "lengths");
  const MaybeTensor keys = integers(row_keys, sizes_of(grad, 1), grad, "row_keys");
  Tensor grad_scores = like(probs);
  if (shape.rows)
    Backend::with_dtype(probs, [&](auto zero) {
      using T = decltype(zero);
      Backend::softmax_backward(
          SoftmaxBackward<T>{data<T>(grad), data<T>(probs), data_or_null<int32_t>(lengths),
                             data<T>(grad_scores), dropout_of(keys, p), shape.width, shape.rows_per_sample,
                             static_cast<float>(scale)},
          shape.rows);
    });
  return grad_scores;
}

template <class Backend>
Tensor cross_entropy_(Tensor logits, const MaybeTensor& bias_, const Tensor& targets_, bool needs_grad) {
  DSMM_CHECK(logits.dim() == 2 && logits.is_contiguous(), "logits must be a contiguous matrix");
  const Shape shape(logits);
  check_device(targets_, logits, "targets");
  check_type(targets_, ScalarType::Long, "int64", "targets");
  check_sizes(targets_, {shape.rows}, "targets");
  const Tensor targets = packed(targets_);
  const bool narrow = bias_ && as_they_are<Backend>(logits, *bias_);
  const MaybeTensor bias =
      bias_ ? MaybeTensor(numbers(*bias_, shape.width, logits, "bias", narrow)) : std::nullopt;
  Tensor losses = torch::stable::new_empty(logits, {shape.rows}, ScalarType::Float);
  if (shape.rows)
    Backend::with_dtype(logits, [&](auto zero) {
      using T = decltype(zero);
      Backend::cross_entropy(
          CrossEntropy<T>{data<T>(logits), data_or_null<float>(bias), data<int64_t>(targets),
                          data<float>(losses), shape.width, needs_grad, narrow},
          shape.rows);
    });
  return torch::stable::sum(losses, std::vector<int64_t>{0});
}

template <class Backend>
Tensor dropout(const Tensor& x_, double p, const Tensor& row_keys) {
  const Tensor x = packed(x_);
  const Shape shape(x);
  const MaybeTensor keys = integers(row_keys, sizes_of(x, 1), x, "row_keys");
  Tensor out = like(x);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::dropout(DropoutRows<T>{data<T>(x), data<T>(out), dropout_of(keys, p), shape.width},
                       shape.rows);
    });
  return out;
}

using BoxedKernel = void (*)(StableIValue*, uint64_t, uint64_t);

// What the Backend takes goes to its kernel, all else to the torch reference. Errors are thrown and caught in this
// library, and thrown again by torch: an exception of ours that crossed into it ended the process where another
// compiler had built it.
template <class Backend>
void serve(const char* reference, BoxedKernel kernel, StableIValue* stack, uint64_t num_inputs,
           uint64_t num_outputs) {
  char message[512];
  try {
    int32_t dtype, device;
    int64_t dim, *sizes;
    const AtenTensorHandle first = torch::stable::detail::to<AtenTensorHandle>(stack[0]);
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(first, &dtype));
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(first, &device));
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(first, &dim));
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(first, &sizes));
    if (Backend::takes(dtype, device, reference, dim ? sizes[dim - 1] : 1))
      kernel(stack, num_inputs, num_outputs);
    else
      STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(reference, "", stack, TORCH_ABI_VERSION));
    return;
  } catch (const std::exception& error) {
    std::snprintf(message, sizeof message, "%s", error.what());
  }
  aoti_torch_check(false, reference, __FILE__, __LINE__, message);
}

#define DSMM_SERVE(BACKEND, OP, FUNCTION)                                                         \
  library.impl(#OP, [](StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs) {          \
    serve<BACKEND>("dsmm_reference::" #OP, TORCH_BOX(&FUNCTION), stack, num_inputs, num_outputs); \
  })

#define DSMM_SERVE_ALL(BACKEND)                                                   \
  DSMM_SERVE(BACKEND, residual_norm, residual_norm<BACKEND>);                     \
  DSMM_SERVE(BACKEND, residual_norm_backward, residual_norm_backward<BACKEND>);   \
  DSMM_SERVE(BACKEND, bias_gelu, bias_gelu<BACKEND>);                             \
  DSMM_SERVE(BACKEND, bias_gelu_backward, bias_gelu_backward<BACKEND>);           \
  DSMM_SERVE(BACKEND, gated, gated<BACKEND>);                                     \
  DSMM_SERVE(BACKEND, gated_backward, gated_backward<BACKEND>);                   \
  DSMM_SERVE(BACKEND, rotary, rotary<BACKEND>);                                   \
  DSMM_SERVE(BACKEND, masked_softmax, masked_softmax<BACKEND>);                   \
  DSMM_SERVE(BACKEND, masked_softmax_backward, masked_softmax_backward<BACKEND>); \
  DSMM_SERVE(BACKEND, cross_entropy_, cross_entropy_<BACKEND>);                   \
  DSMM_SERVE(BACKEND, dropout, dropout<BACKEND>)

}  // namespace dsmm
