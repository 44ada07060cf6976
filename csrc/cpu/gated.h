// activation(first half of a row) * its second half, and the gradient of both halves.

// An activation is x * share(x); slope is its derivative.
struct Activated {
  F32 share, slope;
};

struct Gelu {  // with the exact erf
  static DSMM_INLINE F32 share(F32 x) { return normal_cdf(x); }
  static DSMM_INLINE Activated with_slope(F32 x) {
    constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
    const Normal normal = normal_of(x);
    return {normal.cdf, normal.cdf + x * normal.density_sqrt_2pi * kInverseSqrt2Pi};
  }
};

DSMM_INLINE F32 sigmoid(F32 x) { return reciprocal(exp_of(-larger(splat(-88.f), x)) + 1.f); }

// (1 + tanh(u)) / 2 is the sigmoid of 2u.
struct GeluTanh {
  static constexpr float kLinear = 1.5957691216057308f, kCubic = kLinear * 0.044715f;  // 2 sqrt(2 / pi) of x
  static DSMM_INLINE F32 share(F32 x) { return sigmoid(x * (x * x * kCubic + kLinear)); }
  static DSMM_INLINE Activated with_slope(F32 x) {
    const F32 s = share(x);
    return {s, s + x * s * (1.f - s) * (x * x * (3 * kCubic) + kLinear)};
  }
};

struct Silu {
  static DSMM_INLINE F32 share(F32 x) { return sigmoid(x); }
  static DSMM_INLINE Activated with_slope(F32 x) {
    const F32 s = sigmoid(x);
    return {s, s + x * s * (1.f - s)};
  }
};

template <class Body>
DSMM_INLINE void with_activation(Activation activation, Body body) {
  if (activation == Activation::gelu)
    body(Gelu{});
  else if (activation == Activation::gelu_tanh)
    body(GeluTanh{});
  else
    body(Silu{});
}

template <class T>
DSMM_KERNEL void gated_forward(const Gated<T>& a, T* out, int64_t begin, int64_t end) {
  with_activation(a.activation, [&](auto activation) __attribute__((always_inline)) {
    for (int64_t r = begin; r < end; ++r) {
      const T *x = a.x + 2 * r * a.width, *gate = x + a.width;
      for_row(a.width, [&](long i, auto part) __attribute__((always_inline)) {
        const F32 v = load(x + i, part);
        store(out + r * a.width + i, v * activation.share(v) * load(gate + i, part), part);
      });
    }
  });
}

template <class T>
DSMM_KERNEL void gated_backward(const Gated<T>& a, const T* all_grad, T* all_grad_x, int64_t begin,
                                int64_t end) {
  with_activation(a.activation, [&](auto activation) __attribute__((always_inline)) {
    for (int64_t r = begin; r < end; ++r) {
      const T *x = a.x + 2 * r * a.width, *gate = x + a.width, *grad = all_grad + r * a.width;
      T *grad_x = all_grad_x + 2 * r * a.width, *grad_gate = grad_x + a.width;
      for_row(a.width, [&](long i, auto part) __attribute__((always_inline)) {
        const F32 v = load(x + i, part), g = load(grad + i, part);
        const Activated activated = activation.with_slope(v);
        store(grad_x + i, g * load(gate + i, part) * activated.slope, part);
        store(grad_gate + i, g * v * activated.share, part);
      });
    }
  });
}
