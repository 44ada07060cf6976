// LayerNorm or RMS norm of residual + dropout(x) over rows, and the gradient of the norm and of that sum.

template <class T>
DSMM_KERNEL void norm_forward(const NormForward<T>& a, int64_t begin, int64_t end, float* row) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = r * a.width;
    const RowDropout drop = row_dropout(a.dropout, r);
    const float sum = sum_row(a.width, [&](long i, auto part) {
      F32 v = drop.of(load(a.x + start + i, part), i);
      if (a.residual) v += load(a.residual + start + i, part);
      if (a.streams_total)
        stream(a.total + start + i, v);
      else if (a.total)
        store(a.total + start + i, v, part);
      v = rounded<T>(v);  // the backward pass sees the rounded sum; so do the statistics
      store(row + i, v, Whole{});
      return v;
    });
    const float mean = a.rms ? 0.f : sum / a.width;
    const float squares = sum_row(a.width, [&](long i, auto part) {
      F32 d = only(load(row + i, Whole{}) - mean, part, 0.f);
      return d * d;
    });
    const float rstd = 1.f / __builtin_sqrtf(squares / a.width + a.eps);
    for_row(a.width, [&](long i, auto part) {
      F32 v = (load(row + i, Whole{}) - mean) * rstd * load(a.weight + i, part);
      if (a.bias) v += load(a.bias + i, part);
      store(a.out + start + i, v, part);
    });
    a.mean[r] = mean;
    a.rstd[r] = rstd;
  }
  if (a.streams_total) end_stream();
}

template <class T>
DSMM_KERNEL void norm_backward(const NormBackward<T>& a, int64_t begin, int64_t end, float* grad_weight,
                               float* grad_bias) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = r * a.width;
    const float mean = a.mean[r], rstd = a.rstd[r];
    const RowDropout drop = row_dropout(a.dropout, r);
    auto normalised = [&](long i, auto part) { return (load(a.total + start + i, part) - mean) * rstd; };
    F32 sum = {}, sum_with_normalised = {};
    for_row(a.width, [&](long i, auto part) {
      F32 grad = load(a.grad + start + i, part), v = normalised(i, part);
      F32 weighted = grad * load(a.weight + i, part);
      sum += weighted;
      sum_with_normalised += weighted * v;
      if (grad_weight) {
        store(grad_weight + i, load(grad_weight + i, part) + grad * v, part);
        store(grad_bias + i, load(grad_bias + i, part) + grad, part);
      }
    });
    const float mean_grad = a.rms ? 0.f : sum_of(sum) / a.width,
                slope = sum_of(sum_with_normalised) / a.width;
    for_row(a.width, [&](long i, auto part) {
      F32 weighted = load(a.grad + start + i, part) * load(a.weight + i, part);
      F32 grad_total = ((weighted - mean_grad) - normalised(i, part) * slope) * rstd;
      if (a.grad_sum) grad_total += load(a.grad_sum + start + i, part);
      if (a.grad_residual) store(a.grad_residual + start + i, grad_total, part);
      if (a.grad_x) store(a.grad_x + start + i, drop.of(grad_total, i), part);
    });
  }
}
