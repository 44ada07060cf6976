// The CPU kernels, float32 and bfloat16, in the place of the torch references.
#include "../operators.h"

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace dsmm {
namespace {

enum class Isa { baseline, avx2, avx512, avx512_bf16 };

Isa best_isa() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}

Isa isa = best_isa();

int64_t get_isa() { return static_cast<int64_t>(isa); }

// Take an instruction set, for tests; not more than the machine has.
void set_isa(int64_t wanted) {
  isa = static_cast<Isa>(std::clamp<int64_t>(wanted, 0, static_cast<int64_t>(best_isa())));
}

template <class T> const Kernels<T>& kernels();
#define DSMM_KERNELS_OF(T, TABLE)                                                              \
  template <> const Kernels<T>& kernels() {                                                    \
    static const Kernels<T>* const tables[] = {&baseline::TABLE, &avx2::TABLE, &avx512::TABLE, \
                                               &avx512_bf16::TABLE};                           \
    return *tables[static_cast<int>(isa)];                                                     \
  }
DSMM_KERNELS_OF(float, float_kernels)
DSMM_KERNELS_OF(bf16, bf16_kernels)

// body(begin, end) over the rows, on torch's threads.
template <class Body>
void for_rows(int64_t rows, int64_t width, Body body) {
  const int64_t grain = std::max<int64_t>(1, 32768 / width);
  torch::stable::parallel_for(0, rows, grain, body);
}

// body(begin, end, partial) over the rows, where body adds to the floats of `partial`; their totals go
// to `sums`. The blocks depend on the number of rows alone, so the totals do not depend on the number
// of threads.
template <class Body>
void for_rows_with_sums(int64_t rows, const Tensor& sums, Body body) {
  const int64_t size = sums.numel();
  const int64_t block_rows = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  std::vector<float> partial(blocks * size, 0.f);
  torch::stable::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block)
      body(block * block_rows, std::min(rows, (block + 1) * block_rows), partial.data() + block * size);
  });
  float* totals = data<float>(sums);
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t i = 0; i < size; ++i) totals[i] += partial[block * size + i];
}

// Whether a matrix can be written past the caches, and is too large to stay in them anyway. With 2048
// rows of 768 floats this makes the whole of the LayerNorm 1.6 times as fast.
template <class T>
bool worth_streaming(const T* matrix, int64_t width, int64_t rows) {
  constexpr int64_t kCacheBytes = 1 << 20;
  return matrix && width % 16 == 0 && reinterpret_cast<uintptr_t>(matrix) % 64 == 0 &&
         rows * width * static_cast<int64_t>(sizeof(T)) > kCacheBytes;
}

struct Cpu {
  static constexpr bool kReadsNarrow = false;

  static bool takes(int32_t dtype, int32_t, const char*, int64_t) {
    return dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_bfloat16();
  }

  // body(T{}) for the dtype of x.
  template <class Body>
  static void with_dtype(const Tensor& x, Body body) {
    if (x.scalar_type() == ScalarType::Float)
      body(float{});
    else
      body(bf16{});
  }

  template <class T>
  static void norm_forward(NormForward<T> a, int64_t rows) {
    a.streams_total = worth_streaming(a.total, a.width, rows);
    for_rows(rows, a.width, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(scratch_size(a.width));
      kernels<T>().norm_forward(a, begin, end, scratch.data());
    });
  }

  // sums: (2, width), the gradients of weight and bias; none: not wanted.
  template <class T>
  static void norm_backward(const NormBackward<T>& a, int64_t rows, const MaybeTensor& sums) {
    if (sums)
      for_rows_with_sums(rows, *sums, [&](int64_t begin, int64_t end, float* partial) {
        kernels<T>().norm_backward(a, begin, end, partial, partial + a.width);
      });
    else
      for_rows(rows, a.width, [&](int64_t begin, int64_t end) {
        kernels<T>().norm_backward(a, begin, end, nullptr, nullptr);
      });
  }

  template <class T>
  static void gelu_forward(const GeluForward<T>& a, int64_t rows) {
    for_rows(rows, a.width, [&](int64_t begin, int64_t end) { kernels<T>().gelu_forward(a, begin, end); });
  }

  // sums: (width), the gradient of the bias; none: not wanted.
  template <class T>
  static void gelu_backward(const GeluBackward<T>& a, int64_t rows, const MaybeTensor& sums) {
    if (sums)
      for_rows_with_sums(rows, *sums, [&](int64_t begin, int64_t end, float* partial) {
        kernels<T>().gelu_backward(a, begin, end, partial);
      });
    else
      for_rows(rows, a.width,
               [&](int64_t begin, int64_t end) { kernels<T>().gelu_backward(a, begin, end, nullptr); });
  }

  template <class T>
  static void gated_forward(const Gated<T>& a, T* out, int64_t rows) {
    for_rows(rows, a.width,
             [&](int64_t begin, int64_t end) { kernels<T>().gated_forward(a, out, begin, end); });
  }

  template <class T>
  static void gated_backward(const Gated<T>& a, const T* grad, T* grad_x, int64_t rows) {
    for_rows(rows, a.width,
             [&](int64_t begin, int64_t end) { kernels<T>().gated_backward(a, grad, grad_x, begin, end); });
  }

  template <class T>
  static void rotary(const Rotary<T>& a, int64_t rows) {
    for (int64_t i = 0; a.positions && i < a.period; ++i)
      DSMM_CHECK(a.positions[i] >= 0 && a.positions[i] < a.known, "position ", a.positions[i],
                      " is out of bounds for a table of ", a.known);
    for_rows(rows, a.width, [&](int64_t begin, int64_t end) { kernels<T>().rotary(a, begin, end); });
  }

  template <class T>
  static void softmax_forward(const SoftmaxForward<T>& a, int64_t rows) {
    for_rows(rows, a.width, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(scratch_size(a.width));
      kernels<T>().softmax_forward(a, begin, end, scratch.data());
    });
  }

  template <class T>
  static void softmax_backward(const SoftmaxBackward<T>& a, int64_t rows) {
    for_rows(rows, a.width,
             [&](int64_t begin, int64_t end) { kernels<T>().softmax_backward(a, begin, end); });
  }

  template <class T>
  static void cross_entropy(const CrossEntropy<T>& a, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r)
      DSMM_CHECK(a.targets[r] == kIgnored || (a.targets[r] >= 0 && a.targets[r] < a.width), "target ",
                      a.targets[r], " is out of bounds for a vocabulary of ", a.width);
    for_rows(rows, a.width, [&](int64_t begin, int64_t end) { kernels<T>().cross_entropy(a, begin, end); });
  }

  template <class T>
  static void dropout(const DropoutRows<T>& a, int64_t rows) {
    for_rows(rows, a.width, [&](int64_t begin, int64_t end) { kernels<T>().dropout(a, begin, end); });
  }
};

// The keys that queries see around their positions; none: all.
struct Window {
  Tensor positions;
  int64_t before, after;
};

// The heads of a batch: attention's arguments, and the tensors that they point into.
struct HeadBatch {
  Tensor projected;
  MaybeTensor queries, lengths, row_keys, positions;
  int64_t samples, num_heads, num_key_heads, num_queries, num_keys, width, query_pitch, key_pitch;
  int64_t before = 0, after = 0;
  double dropout_rate, scale;

  // projected: (B,S,3*N*D), or with queries (B,Q,N*D) the other two parts.
  HeadBatch(const Tensor& projected_, const MaybeTensor& queries_, int64_t heads, const MaybeTensor& lengths_,
            double p, const MaybeTensor& row_keys_)
      : projected(packed(projected_)),
        queries(queries_ ? MaybeTensor(packed(*queries_)) : std::nullopt),
        num_heads(heads),
        num_key_heads(heads),
        dropout_rate(p) {
    DSMM_CHECK(projected.dim() == 3 && (!queries || queries->dim() == 3), "attention takes (B,S,C*N*D)");
    samples = projected.size(0), num_keys = projected.size(1), key_pitch = projected.size(2);
    const int64_t parts = (queries ? 2 : 3) * heads;
    DSMM_CHECK(heads > 0 && key_pitch % parts == 0, key_pitch, " columns do not divide into ", parts);
    width = key_pitch / parts;
    query_pitch = queries ? width * heads : key_pitch;
    num_queries = queries ? queries->size(1) : num_keys;
    check_others(lengths_, row_keys_);
    scale = 1 / std::sqrt(static_cast<double>(width));
  }

  // keys_values: (B,S,2*K*D), of which heads of queries (B,Q,N*D) in a row share one.
  HeadBatch(const Tensor& keys_values, const Tensor& queries_, int64_t heads, const Window& window,
            const MaybeTensor& lengths_, double p, const MaybeTensor& row_keys_, double scale_)
      : projected(packed(keys_values)),
        queries(packed(queries_)),
        num_heads(heads),
        before(window.before),
        after(window.after),
        dropout_rate(p),
        scale(scale_) {
    DSMM_CHECK(projected.dim() == 3 && queries->dim() == 3, "attention takes (B,S,2*K*D) and (B,Q,N*D)");
    samples = projected.size(0), num_keys = projected.size(1), key_pitch = projected.size(2);
    num_queries = queries->size(1), query_pitch = queries->size(2);
    DSMM_CHECK(heads > 0 && query_pitch % heads == 0, query_pitch, " columns do not divide into ",
                    heads);
    width = query_pitch / heads;
    num_key_heads = width ? key_pitch / (2 * width) : 0;
    DSMM_CHECK(num_key_heads > 0 && key_pitch == 2 * num_key_heads * width && heads % num_key_heads == 0,
                    "keys_values has the shape ", text(sizes_of(projected)), " where it must be (B, S, 2*K*",
                    width, "), ", heads, " a multiple of K");
    DSMM_CHECK(before >= 0 && after >= 0, "a window must hold its middle");
    check_others(lengths_, row_keys_);
    positions = places(window.positions, samples, num_queries, projected);
  }

  void check_others(const MaybeTensor& lengths_, const MaybeTensor& row_keys_) {
    if (queries) {
      check_device(*queries, projected, "queries");
      check_type(*queries, projected.scalar_type(), "of the first argument's dtype", "queries");
      check_sizes(*queries, {samples, num_queries, query_pitch}, "queries");
    }
    lengths = integers(lengths_, {samples}, projected, "lengths");
    row_keys = integers(row_keys_, {samples, num_heads, num_queries}, projected, "row_keys");
  }

  int64_t first_key() const { return queries ? 0 : num_heads * width; }
  int64_t first_value() const { return first_key() + num_key_heads * width; }

  template <class T> Attention<T> arguments() const {
    const T* columns = data<T>(projected);
    return {queries ? data<T>(*queries) : columns,
            columns + first_key(),
            columns + first_value(),
            query_pitch,
            key_pitch,
            num_heads * width,
            num_heads,
            num_key_heads,
            num_queries,
            num_keys,
            width,
            data_or_null<int32_t>(lengths),
            data_or_null<int64_t>(positions),
            positions && positions->dim() == 2 ? num_queries : 0,
            before,
            after,
            dropout_of(row_keys, dropout_rate),
            static_cast<float>(scale)};
  }

  // kernel(begin, end, scratch) over the heads of keys, on torch's threads.
  template <class T, class Kernel> void for_heads(const Attention<T>& arguments, Kernel kernel) const {
    const int64_t size = kernels<T>().attention_scratch(arguments);
    torch::stable::parallel_for(0, samples * num_key_heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(size);
      kernel(begin, end, scratch.data());
    });
  }

  Tensor forward() const {
    Tensor out = torch::stable::new_empty(projected, {samples, num_queries, num_heads * width});
    if (out.numel())
      Cpu::with_dtype(out, [&](auto zero) {
        using T = decltype(zero);
        const Attention<T> a = arguments<T>();
        for_heads(a, [&](int64_t begin, int64_t end, float* scratch) {
          kernels<T>().attention_forward(a, data<T>(out), begin, end, scratch);
        });
      });
    return out;
  }

  std::tuple<Tensor, Tensor> backward(const Tensor& grad_) const {
    check_device(grad_, projected, "grad");
    check_type(grad_, projected.scalar_type(), "of the dtype of projected", "grad");
    check_sizes(grad_, {samples, num_queries, num_heads * width}, "grad");
    const Tensor grad = packed(grad_);
    if (!grad.numel())  // keys that no query reads have a gradient, too
      return {torch::stable::new_zeros(projected, projected.sizes()),
              queries ? like(*queries) : like(projected, false)};
    Tensor grad_projected = like(projected);
    Tensor grad_queries = queries ? like(*queries) : like(projected, false);
    Cpu::with_dtype(grad, [&](auto zero) {
      using T = decltype(zero);
      T* columns = data<T>(grad_projected);
      const AttentionGradients<T> gradients{data<T>(grad), queries ? data<T>(grad_queries) : columns,
                                            columns + first_key(), columns + first_value()};
      const Attention<T> a = arguments<T>();
      for_heads(a, [&](int64_t begin, int64_t end, float* scratch) {
        kernels<T>().attention_backward(a, gradients, begin, end, scratch);
      });
    });
    return {grad_projected, grad_queries};
  }
};

Tensor attention(const Tensor& projected, const MaybeTensor& queries, int64_t num_heads,
                 const MaybeTensor& lengths, double p, const MaybeTensor& row_keys) {
  return HeadBatch(projected, queries, num_heads, lengths, p, row_keys).forward();
}

std::tuple<Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& projected,
                                              const MaybeTensor& queries, int64_t num_heads,
                                              const MaybeTensor& lengths, double p,
                                              const MaybeTensor& row_keys) {
  return HeadBatch(projected, queries, num_heads, lengths, p, row_keys).backward(grad);
}

Tensor window_attention(const Tensor& keys_values, const Tensor& queries, int64_t num_heads,
                        const Tensor& positions, int64_t before, int64_t after, const MaybeTensor& lengths,
                        double p, const MaybeTensor& row_keys, double scale) {
  const Window window{positions, before, after};
  return HeadBatch(keys_values, queries, num_heads, window, lengths, p, row_keys, scale).forward();
}

std::tuple<Tensor, Tensor> window_attention_backward(const Tensor& grad, const Tensor& keys_values,
                                                     const Tensor& queries, int64_t num_heads,
                                                     const Tensor& positions, int64_t before, int64_t after,
                                                     const MaybeTensor& lengths, double p,
                                                     const MaybeTensor& row_keys, double scale) {
  const Window window{positions, before, after};
  return HeadBatch(keys_values, queries, num_heads, window, lengths, p, row_keys, scale).backward(grad);
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

STABLE_TORCH_LIBRARY_IMPL(dsmm, CPU, library) {
  DSMM_SERVE_ALL(Cpu);
  DSMM_SERVE(Cpu, attention, attention);
  DSMM_SERVE(Cpu, attention_backward, attention_backward);
  DSMM_SERVE(Cpu, window_attention, window_attention);
  DSMM_SERVE(Cpu, window_attention_backward, window_attention_backward);
}

}  // namespace dsmm
