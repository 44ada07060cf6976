// The operators that ds_minimodel/ops defines, for any device: checks, allocation of the outputs, and
// the arguments of the kernels. A Backend brings the kernels and how a dtype is chosen. Bound through
// torch's stable ABI, so that one build serves every torch from 2.10 on. All outputs are contiguous.
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "arguments.h"

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

// x contiguous, after a check that its dtype and size are those of `model`.
inline Tensor matching(const Tensor& x, const Tensor& model) {
  STD_TORCH_CHECK(x.scalar_type() == model.scalar_type() && x.numel() == model.numel(),
                  "tensors that go together differ in dtype or shape");
  return packed(x);
}

// A parameter of any dtype, contiguous and as floats.
inline Tensor floats(const Tensor& parameter, int64_t size) {
  STD_TORCH_CHECK(parameter.numel() == size, "a parameter has ", parameter.numel(), " elements, not ", size);
  return packed(with_type(parameter, ScalarType::Float));
}

inline Tensor integers(const Tensor& x, int64_t size) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Int && x.numel() == size,
                  "row_keys and lengths must be int32, one for each row or sample");
  return packed(x);
}
inline MaybeTensor integers(const MaybeTensor& x, int64_t size) {
  return x ? MaybeTensor(integers(*x, size)) : x;
}

inline Dropout dropout_of(const MaybeTensor& packed_keys, double p) {
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
std::tuple<Tensor, Tensor, Tensor> residual_layer_norm(const Tensor& x_, const MaybeTensor& residual_,
                                                       const Tensor& weight_, const Tensor& bias_, double eps,
                                                       double p, const MaybeTensor& row_keys) {
  const Tensor x = packed(x_);
  const Shape shape(x);
  const MaybeTensor residual = residual_ ? MaybeTensor(matching(*residual_, x)) : std::nullopt;
  const Tensor weight = floats(weight_, shape.width), bias = floats(bias_, shape.width);
  const MaybeTensor keys = integers(row_keys, shape.rows);
  Tensor out = like(x), total = like(x, residual || row_keys);
  Tensor statistics = torch::stable::new_empty(x, {2, shape.rows}, ScalarType::Float);
  float* mean = data<float>(statistics);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::norm_forward(
          NormForward<T>{data<T>(x), data_or_null<T>(residual), data<float>(weight), data<float>(bias),
                         data<T>(out), data_or_null<T>(total), mean, mean + shape.rows, dropout_of(keys, p),
                         shape.width, static_cast<float>(eps), false},
          shape.rows);
    });
  return {out, total, statistics};
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor, Tensor> residual_layer_norm_backward(
    const Tensor& grad_, const Tensor& total_, const Tensor& statistics_, const Tensor& weight_, double p,
    const MaybeTensor& row_keys, bool has_residual, bool trains) {
  const Tensor total = packed(total_), grad = matching(grad_, total), statistics = packed(statistics_);
  const Shape shape(total);
  STD_TORCH_CHECK(statistics.scalar_type() == ScalarType::Float && statistics.numel() == 2 * shape.rows,
                  "statistics must be float32, mean and rstd of each row");
  const float* mean = data<float>(statistics);
  const Tensor weight = floats(weight_, shape.width);
  const MaybeTensor keys = integers(row_keys, shape.rows);
  Tensor grad_x = like(total, row_keys || !has_residual), grad_residual = like(total, has_residual);
  MaybeTensor sums;
  if (trains) sums = torch::stable::new_zeros(weight, {2, shape.width});
  if (shape.rows)
    Backend::with_dtype(total, [&](auto zero) {
      using T = decltype(zero);
      Backend::norm_backward(
          NormBackward<T>{data<T>(grad), data<T>(total), data<float>(weight), mean, mean + shape.rows,
                          data_or_null<T>(grad_x), data_or_null<T>(grad_residual), dropout_of(keys, p),
                          shape.width},
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
  const Tensor bias = floats(bias_, shape.width);
  Tensor out = like(x);
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::gelu_forward(GeluForward<T>{data<T>(x), data<float>(bias), data<T>(out), shape.width},
                            shape.rows);
    });
  return out;
}

template <class Backend>
std::tuple<Tensor, Tensor> bias_gelu_backward(const Tensor& grad_, const Tensor& x_, const Tensor& bias_,
                                              bool trains) {
  const Tensor x = packed(x_), grad = matching(grad_, x);
  const Shape shape(x);
  const Tensor bias = floats(bias_, shape.width);
  Tensor grad_x = like(x);
  MaybeTensor sums;
  if (trains) sums = torch::stable::new_zeros(bias, {shape.width});
  if (shape.rows)
    Backend::with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      Backend::gelu_backward(
          GeluBackward<T>{data<T>(grad), data<T>(x), data<float>(bias), data<T>(grad_x), shape.width},
          shape.rows, sums);
    });
  return {grad_x, gradient_of(bias_, sums)};
}

template <class Backend>
std::tuple<Tensor, Tensor> masked_softmax(const Tensor& scores_, const MaybeTensor& lengths_, double scale,
                                          double p, const MaybeTensor& row_keys) {
  const Tensor scores = packed(scores_);
  const Shape shape(scores);
  const MaybeTensor lengths = integers(lengths_, shape.samples), keys = integers(row_keys, shape.rows);
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
  const Tensor probs = packed(probs_), grad = matching(grad_, probs);
  const Shape shape(probs);
  const MaybeTensor lengths = integers(lengths_, shape.samples), keys = integers(row_keys, shape.rows);
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
Tensor cross_entropy_(Tensor logits, const Tensor& bias_, const Tensor& targets_, bool needs_grad) {
  STD_TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous(), "logits must be a contiguous matrix");
  const Shape shape(logits);
  STD_TORCH_CHECK(targets_.scalar_type() == ScalarType::Long && targets_.numel() == shape.rows,
                  "targets must be int64, one for each row");
  const Tensor targets = packed(targets_), bias = floats(bias_, shape.width);
  Tensor losses = torch::stable::new_empty(bias, {shape.rows});
  if (shape.rows)
    Backend::with_dtype(logits, [&](auto zero) {
      using T = decltype(zero);
      Backend::cross_entropy(CrossEntropy<T>{data<T>(logits), data<float>(bias), data<int64_t>(targets),
                                             data<float>(losses), shape.width, needs_grad},
                             shape.rows);
    });
  return torch::stable::sum(losses, std::vector<int64_t>{0});
}

template <class Backend>
Tensor dropout(const Tensor& x_, double p, const Tensor& row_keys) {
  const Tensor x = packed(x_);
  const Shape shape(x);
  const MaybeTensor keys = integers(row_keys, shape.rows);
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

// Dtypes that the Backend takes go to its kernel, others to the torch reference.
template <class Backend>
void serve(const char* reference, BoxedKernel kernel, StableIValue* stack, uint64_t num_inputs,
           uint64_t num_outputs) {
  int32_t dtype;
  const AtenTensorHandle first = torch::stable::detail::to<AtenTensorHandle>(stack[0]);
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(first, &dtype));
  if (Backend::takes(dtype))
    kernel(stack, num_inputs, num_outputs);
  else
    STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(reference, "", stack, TORCH_ABI_VERSION));
}

#define DSMM_SERVE(BACKEND, OP, FUNCTION)                                                         \
  library.impl(#OP, [](StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs) {          \
    serve<BACKEND>("dsmm_reference::" #OP, TORCH_BOX(&FUNCTION), stack, num_inputs, num_outputs); \
  })

#define DSMM_SERVE_ALL(BACKEND)                                                             \
  DSMM_SERVE(BACKEND, residual_layer_norm, residual_layer_norm<BACKEND>);                   \
  DSMM_SERVE(BACKEND, residual_layer_norm_backward, residual_layer_norm_backward<BACKEND>); \
  DSMM_SERVE(BACKEND, bias_gelu, bias_gelu<BACKEND>);                                       \
  DSMM_SERVE(BACKEND, bias_gelu_backward, bias_gelu_backward<BACKEND>);                     \
  DSMM_SERVE(BACKEND, masked_softmax, masked_softmax<BACKEND>);                             \
  DSMM_SERVE(BACKEND, masked_softmax_backward, masked_softmax_backward<BACKEND>);           \
  DSMM_SERVE(BACKEND, cross_entropy_, cross_entropy_<BACKEND>);                             \
  DSMM_SERVE(BACKEND, dropout, dropout<BACKEND>)

}  // namespace dsmm
