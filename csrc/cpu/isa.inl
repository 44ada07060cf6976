// The kernels for one instruction set. The including file sets the compiler's target and
// DSMM_ISA, the namespace of that instruction set.
#if defined(DSMM_AVX512) || defined(DSMM_AVX2)
#include <immintrin.h>
#endif
#include "kernels.h"

namespace dsmm::DSMM_ISA {
namespace {
#include "vec.h"
#include "dropout.h"
#include "norm.h"
#include "gelu.h"
#include "gated.h"
#include "rotary.h"
#include "softmax.h"
#include "cross_entropy.h"
#include "product.h"
#include "attention.h"
}  // namespace

template <class T>
constexpr Kernels<T> table() {
  return {norm_forward<T>,       norm_backward<T>,    gelu_forward<T>, gelu_backward<T>,
          gated_forward<T>,      gated_backward<T>,   rotary<T>,       softmax_forward<T>,
          softmax_backward<T>,   cross_entropy<T>,    dropout_rows<T>, attention_forward<T>,
          attention_backward<T>, attention_scratch<T>};
}

extern const Kernels<float> float_kernels = table<float>();
extern const Kernels<bf16> bf16_kernels = table<bf16>();
}  // namespace dsmm::DSMM_ISA
