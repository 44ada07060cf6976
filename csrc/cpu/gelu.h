// gelu(x + bias) with the exact erf, and its gradient.

template <class T>
DSMM_KERNEL void gelu_forward(const GeluForward<T>& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = r * a.width;
    for_row(a.width, [&](long i, auto part) {
      F32 v = load(a.x + start + i, part) + load(a.bias + i, part);
      store(a.out + start + i, v * normal_cdf(v), part);
    });
  }
}

template <class T>
DSMM_KERNEL void gelu_backward(const GeluBackward<T>& a, int64_t begin, int64_t end, float* grad_bias) {
  constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = r * a.width;
    for_row(a.width, [&](long i, auto part) {
      F32 v = load(a.x + start + i, part) + load(a.bias + i, part);
      Normal normal = normal_of(v);
      F32 slope = normal.cdf + v * normal.density_sqrt_2pi * kInverseSqrt2Pi;
      F32 grad = load(a.grad + start + i, part) * slope;
      store(a.grad_x + start + i, grad, part);
      if (grad_bias) store(grad_bias + i, load(grad_bias + i, part) + grad, part);
    });
  }
}
