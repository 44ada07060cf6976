// The CPU kernels as implementations of the operators that ds_minimodel/ops defines, in float32 and
// bfloat16. Bound through torch's stable ABI, so that one build serves every torch from 2.10 on.
// All outputs are contiguous.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace dsmm {
namespace {

using torch::stable::Tensor;
using torch::headeronly::ScalarType;
using MaybeTensor = std::optional<Tensor>;

enum class Isa { baseline, avx2, avx512 };

Isa best_isa() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}

Isa isa = best_isa();

int64_t get_isa() { return static_cast<int64_t>(isa); }

// Take a lesser instruction set than the machine has, for tests.
void set_isa(int64_t wanted) {
  STD_TORCH_CHECK(wanted >= 0 && wanted <= static_cast<int64_t>(best_isa()), "this machine lacks it");
  isa = static_cast<Isa>(wanted);
}

template <class T> const Kernels<T>& kernels();
template <> const Kernels<float>& kernels() {
  return isa == Isa::avx512 ? avx512::float_kernels : isa == Isa::avx2 ? avx2::float_kernels
                                                                       : baseline::float_kernels;
}
template <> const Kernels<bf16>& kernels() {
  return isa == Isa::avx512 ? avx512::bf16_kernels : isa == Isa::avx2 ? avx2::bf16_kernels
                                                                      : baseline::bf16_kernels;
}

// body(T{}) for the dtype of x.
template <class Body>
void with_dtype(const Tensor& x, Body body) {
  if (x.scalar_type() == ScalarType::Float) return body(float{});
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::BFloat16, "the CPU kernels take float32 and bfloat16");
  body(bf16{});
}

template <class T> T* data(const Tensor& x) { return static_cast<T*>(x.data_ptr()); }
template <class T> T* data_or_null(const Tensor& x) { return x.numel() ? data<T>(x) : nullptr; }

Tensor like(const Tensor& x, bool wanted = true) {
  return wanted ? torch::stable::new_empty(x, x.sizes()) : torch::stable::new_empty(x, {0});
}
Tensor floats_like(const Tensor& x, int64_t n) { return torch::stable::new_empty(x, {n}, ScalarType::Float); }

// A check first: even a call that has nothing to do costs a pass through the dispatcher.
Tensor packed(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

// x contiguous, after a check that its dtype and shape are those of `model`.
Tensor matching(const Tensor& x, const Tensor& model) {
  STD_TORCH_CHECK(x.scalar_type() == model.scalar_type() && x.numel() == model.numel(),
                  "tensors that go together differ in dtype or shape");
  return packed(x);
}

// A parameter of either dtype as floats.
std::vector<float> as_floats(const Tensor& parameter, int64_t size) {
  STD_TORCH_CHECK(parameter.numel() == size, "parameter of ", parameter.numel(), " elements, not ", size);
  Tensor source = packed(parameter);
  std::vector<float> values(size);
  with_dtype(source, [&](auto zero) {
    using T = decltype(zero);
    const T* from = data<T>(source);
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        values[i] = from[i];
      } else {
        const uint32_t bits = uint32_t{from[i].bits} << 16;
        std::memcpy(&values[i], &bits, sizeof bits);
      }
    }
  });
  return values;
}

// Whether a matrix can be written past the caches, and is too large to stay in them anyway. With 2048
// rows of 768 floats this makes the whole of the LayerNorm 1.6 times as fast.
template <class T>
bool worth_streaming(const T* matrix, int64_t width, int64_t rows) {
  constexpr int64_t kCacheBytes = 1 << 20;
  return matrix && width % 16 == 0 && reinterpret_cast<uintptr_t>(matrix) % 64 == 0 &&
         rows * width * static_cast<int64_t>(sizeof(T)) > kCacheBytes;
}

struct Keys {
  std::optional<Tensor> held;
  Dropout dropout{nullptr, 0, 1.f};
};

Keys dropout_of(const MaybeTensor& row_keys, double p, int64_t rows) {
  Keys keys;
  if (!row_keys) return keys;
  STD_TORCH_CHECK(row_keys->scalar_type() == ScalarType::Int && row_keys->numel() == rows,
                  "row_keys must be int32, one for each row");
  keys.held = packed(*row_keys);
  keys.dropout = {data<int32_t>(*keys.held), static_cast<uint32_t>(std::floor(p * 4294967296.0)),
                  static_cast<float>(1 / (1 - p))};
  return keys;
}

MaybeTensor lengths_of(const MaybeTensor& lengths, int64_t samples) {
  if (!lengths) return lengths;
  STD_TORCH_CHECK(lengths->scalar_type() == ScalarType::Int && lengths->numel() == samples,
                  "lengths must be int32, one for each sample");
  return packed(*lengths);
}

// body(begin, end) over the rows, on torch's threads.
template <class Body>
void for_rows(int64_t rows, int64_t width, Body body) {
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(width, 1));
  torch::stable::parallel_for(0, rows, grain, body);
}

// body(begin, end, sums) over the rows, where sums are `width` floats to add to; returns the totals
// as `parameter` wants them. The blocks depend on the number of rows alone, so the result does not
// depend on the number of threads.
template <class Body>
void for_rows_with_sums(int64_t rows, int64_t num_sums, std::vector<float>& totals, Body body) {
  const int64_t block_rows = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  std::vector<float> partial(blocks * num_sums, 0.f);
  torch::stable::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block)
      body(block * block_rows, std::min(rows, (block + 1) * block_rows), partial.data() + block * num_sums);
  });
  totals.assign(num_sums, 0.f);
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t i = 0; i < num_sums; ++i) totals[i] += partial[block * num_sums + i];
}

// `size` floats as a tensor of the dtype of `parameter`.
Tensor as_parameter(const float* values, int64_t size, const Tensor& parameter) {
  Tensor out = floats_like(parameter, size);
  std::copy(values, values + size, data<float>(out));
  return parameter.scalar_type() == ScalarType::Float ? out
                                                       : torch::stable::to(out, parameter.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> residual_layer_norm(
    const Tensor& x_, const MaybeTensor& residual_, const Tensor& weight, const Tensor& bias, double eps,
    double p, const MaybeTensor& row_keys) {
  const Tensor x = packed(x_);
  const MaybeTensor residual = residual_ ? MaybeTensor(matching(*residual_, x)) : std::nullopt;
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  const std::vector<float> weights = as_floats(weight, width), biases = as_floats(bias, width);
  const Keys keys = dropout_of(row_keys, p, rows);
  Tensor out = like(x), total = like(x, residual || row_keys);
  Tensor statistics = torch::stable::new_empty(x, {2, rows}, ScalarType::Float);
  float* mean = data<float>(statistics);
  with_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const NormForward<T> args{data<T>(x), residual ? data<T>(*residual) : nullptr, weights.data(),
                              biases.data(), data<T>(out), data_or_null<T>(total), mean,
                              mean + rows, keys.dropout, width, static_cast<float>(eps),
                              worth_streaming(data_or_null<T>(total), width, rows)};
    for_rows(rows, width, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(scratch_size(width));
      kernels<T>().norm_forward(args, begin, end, scratch.data());
    });
  });
  return {out, total, statistics};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> residual_layer_norm_backward(
    const Tensor& grad_, const Tensor& total_, const Tensor& statistics_, const Tensor& weight, double p,
    const MaybeTensor& row_keys, bool has_residual, bool trains) {
  const Tensor statistics = packed(statistics_), total = packed(total_), grad = matching(grad_, total);
  const int64_t width = total.size(-1), rows = width ? total.numel() / width : 0;
  STD_TORCH_CHECK(statistics.scalar_type() == ScalarType::Float && statistics.numel() == 2 * rows,
                  "statistics must be float32, mean and rstd of each row");
  const float* mean = data<float>(statistics);
  const std::vector<float> weights = as_floats(weight, width);
  const Keys keys = dropout_of(row_keys, p, rows);
  Tensor grad_x = like(total, row_keys || !has_residual), grad_residual = like(total, has_residual);
  std::vector<float> sums(2 * width);
  with_dtype(total, [&](auto zero) {
    using T = decltype(zero);
    const NormBackward<T> args{data<T>(grad), data<T>(total), weights.data(), mean,
                               mean + rows, data_or_null<T>(grad_x), data_or_null<T>(grad_residual),
                               keys.dropout, width};
    if (trains)
      for_rows_with_sums(rows, 2 * width, sums, [&](int64_t begin, int64_t end, float* partial) {
        kernels<T>().norm_backward(args, begin, end, partial, partial + width);
      });
    else
      for_rows(rows, width, [&](int64_t begin, int64_t end) {
        kernels<T>().norm_backward(args, begin, end, nullptr, nullptr);
      });
  });
  const int64_t size = trains ? width : 0;
  return {grad_x, grad_residual, as_parameter(sums.data(), size, weight),
          as_parameter(sums.data() + width, size, weight)};
}

Tensor bias_gelu(const Tensor& x_, const Tensor& bias) {
  const Tensor x = packed(x_);
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  const std::vector<float> biases = as_floats(bias, width);
  Tensor out = like(x);
  with_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const GeluForward<T> args{data<T>(x), biases.data(), data<T>(out), width};
    for_rows(rows, width, [&](int64_t begin, int64_t end) { kernels<T>().gelu_forward(args, begin, end); });
  });
  return out;
}

std::tuple<Tensor, Tensor> bias_gelu_backward(const Tensor& grad_, const Tensor& x_, const Tensor& bias,
                                              bool trains) {
  const Tensor x = packed(x_), grad = matching(grad_, x);
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  const std::vector<float> biases = as_floats(bias, width);
  Tensor grad_x = like(x);
  std::vector<float> sums(width);
  with_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const GeluBackward<T> args{data<T>(grad), data<T>(x), biases.data(), data<T>(grad_x), width};
    if (trains)
      for_rows_with_sums(rows, width, sums, [&](int64_t begin, int64_t end, float* partial) {
        kernels<T>().gelu_backward(args, begin, end, partial);
      });
    else
      for_rows(rows, width, [&](int64_t begin, int64_t end) {
        kernels<T>().gelu_backward(args, begin, end, nullptr);
      });
  });
  return {grad_x, as_parameter(sums.data(), trains ? width : 0, bias)};
}

std::tuple<Tensor, Tensor> masked_softmax(const Tensor& scores_, const MaybeTensor& lengths_, double scale,
                                          double p, const MaybeTensor& row_keys) {
  const Tensor scores = packed(scores_);
  const int64_t width = scores.size(-1), rows = width ? scores.numel() / width : 0;
  const int64_t samples = scores.size(0), rows_per_sample = samples ? rows / samples : 0;
  const MaybeTensor lengths = lengths_of(lengths_, samples);
  const Keys keys = dropout_of(row_keys, p, rows);
  Tensor out = like(scores), probs = like(scores, row_keys.has_value());
  with_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const SoftmaxForward<T> args{data<T>(scores), lengths ? data<int32_t>(*lengths) : nullptr, data<T>(out),
                                 data_or_null<T>(probs), keys.dropout, width, rows_per_sample,
                                 static_cast<float>(scale)};
    for_rows(rows, width, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(scratch_size(width));
      kernels<T>().softmax_forward(args, begin, end, scratch.data());
    });
  });
  return {out, probs};
}

Tensor masked_softmax_backward(const Tensor& grad_, const Tensor& probs_, const MaybeTensor& lengths_,
                               double scale, double p, const MaybeTensor& row_keys) {
  const Tensor probs = packed(probs_), grad = matching(grad_, probs);
  const int64_t width = probs.size(-1), rows = width ? probs.numel() / width : 0;
  const int64_t samples = probs.size(0), rows_per_sample = samples ? rows / samples : 0;
  const MaybeTensor lengths = lengths_of(lengths_, samples);
  const Keys keys = dropout_of(row_keys, p, rows);
  Tensor grad_scores = like(probs);
  with_dtype(probs, [&](auto zero) {
    using T = decltype(zero);
    const SoftmaxBackward<T> args{data<T>(grad), data<T>(probs), lengths ? data<int32_t>(*lengths) : nullptr,
                                  data<T>(grad_scores), keys.dropout, width, rows_per_sample,
                                  static_cast<float>(scale)};
    for_rows(rows, width,
             [&](int64_t begin, int64_t end) { kernels<T>().softmax_backward(args, begin, end); });
  });
  return grad_scores;
}

Tensor cross_entropy_(Tensor logits, const Tensor& bias, const Tensor& targets_, bool needs_grad) {
  STD_TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous(), "logits must be a contiguous matrix");
  const int64_t rows = logits.size(0), width = logits.size(1);
  STD_TORCH_CHECK(targets_.scalar_type() == ScalarType::Long && targets_.numel() == rows,
                  "targets must be int64, one for each row");
  const Tensor targets = packed(targets_);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t target = data<int64_t>(targets)[r];
    STD_TORCH_CHECK(target == kIgnored || (target >= 0 && target < width), "target ", target,
                    " is out of bounds for a vocabulary of ", width);
  }
  const std::vector<float> biases = as_floats(bias, width);
  std::vector<float> losses(rows);
  with_dtype(logits, [&](auto zero) {
    using T = decltype(zero);
    const CrossEntropy<T> args{data<T>(logits), biases.data(), data<int64_t>(targets), losses.data(), width,
                               needs_grad};
    for_rows(rows, width, [&](int64_t begin, int64_t end) { kernels<T>().cross_entropy(args, begin, end); });
  });
  double total = 0;
  for (const float loss : losses) total += loss;
  Tensor out = torch::stable::new_empty(logits, std::vector<int64_t>{}, ScalarType::Float);
  *data<float>(out) = static_cast<float>(total);
  return out;
}

Tensor dropout(const Tensor& x_, double p, const Tensor& row_keys) {
  const Tensor x = packed(x_);
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  const Keys keys = dropout_of(row_keys, p, rows);
  Tensor out = like(x);
  with_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const DropoutRows<T> args{data<T>(x), data<T>(out), keys.dropout, width};
    for_rows(rows, width, [&](int64_t begin, int64_t end) { kernels<T>().dropout(args, begin, end); });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(dsmm_cpu_isa, library) {
  library.def("get() -> int");
  library.def("set(int isa) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(dsmm_cpu_isa, CompositeExplicitAutograd, library) {
  library.impl("get", TORCH_BOX(&get_isa));
  library.impl("set", TORCH_BOX(&set_isa));
}

// float32 and bfloat16 go to the kernel, other dtypes to the torch reference.
void serve(const char* reference, void (*kernel)(StableIValue*, uint64_t, uint64_t), StableIValue* stack,
           uint64_t num_inputs, uint64_t num_outputs) {
  int32_t dtype;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(torch::stable::detail::to<AtenTensorHandle>(stack[0]), &dtype));
  if (dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_bfloat16())
    kernel(stack, num_inputs, num_outputs);
  else
    STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(reference, "", stack, TORCH_ABI_VERSION));
}

#define DSMM_SERVE(OP)                                                                         \
  library.impl(#OP, [](StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs) {       \
    serve("dsmm_reference::" #OP, TORCH_BOX(&OP), stack, num_inputs, num_outputs);             \
  })

STABLE_TORCH_LIBRARY_IMPL(dsmm, CPU, library) {
  DSMM_SERVE(residual_layer_norm);
  DSMM_SERVE(residual_layer_norm_backward);
  DSMM_SERVE(bias_gelu);
  DSMM_SERVE(bias_gelu_backward);
  DSMM_SERVE(masked_softmax);
  DSMM_SERVE(masked_softmax_backward);
  DSMM_SERVE(cross_entropy_);
  DSMM_SERVE(dropout);
}

}  // namespace dsmm
