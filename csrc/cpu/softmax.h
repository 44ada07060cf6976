// dropout(softmax(scale * scores)) over the keys that a sample has, and its gradient.

DSMM_INLINE long num_keys(const int32_t* lengths, int64_t row, int64_t rows_per_sample, int64_t width) {
  if (!lengths) return width;
  const int32_t length = lengths[row / rows_per_sample];
  return length < 0 ? 0 : length < width ? length : width;
}

template <class T>
DSMM_INLINE void clear(T* row, long from, long to) {
  __builtin_memset(row + from, 0, (to - from) * sizeof(T));
}

template <class T>
DSMM_KERNEL void softmax_forward(const SoftmaxForward<T>& a, int64_t begin, int64_t end, float* row) {
  constexpr float kLowest = -3.4028235e38f;
  for (int64_t r = begin; r < end; ++r) {
    const T* scores = a.scores + r * a.width;
    T* out = a.out + r * a.width;
    T* probs = a.probs ? a.probs + r * a.width : nullptr;
    const long keys = num_keys(a.lengths, r, a.rows_per_sample, a.width);
    const RowDropout drop = row_dropout(a.dropout, r);
    F32 largest_lanes = splat(kLowest);
    for_row(keys, [&](long i, auto part) {
      F32 v = only(load(scores + i, part) * a.scale, part, kLowest);
      store(row + i, v, Whole{});
      largest_lanes = larger(v, largest_lanes);
    });
    const float largest = largest_of(largest_lanes);
    const float sum = sum_row(keys, [&](long i, auto part) {
      F32 e = only(exp_of(load(row + i, Whole{}) - largest), part, 0.f);
      store(row + i, e, Whole{});
      return e;
    });
    const float inverse = 1.f / sum;
    for_row(keys, [&](long i, auto part) {
      F32 p = load(row + i, Whole{}) * inverse;
      if (probs) store(probs + i, p, part);
      store(out + i, drop.of(rounded<T>(p), i), part);  // from what the backward pass will see
    });
    clear(out, keys, a.width);
    if (probs) clear(probs, keys, a.width);
  }
}

template <class T>
DSMM_KERNEL void softmax_backward(const SoftmaxBackward<T>& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T *grad = a.grad + r * a.width, *probs = a.probs + r * a.width;
    T* grad_scores = a.grad_scores + r * a.width;
    const long keys = num_keys(a.lengths, r, a.rows_per_sample, a.width);
    const RowDropout drop = row_dropout(a.dropout, r);
    const float mean_grad = sum_row(
        keys, [&](long i, auto part) { return drop.of(load(grad + i, part), i) * load(probs + i, part); });
    for_row(keys, [&](long i, auto part) {
      F32 g = drop.of(load(grad + i, part), i) - mean_grad;
      store(grad_scores + i, load(probs + i, part) * a.scale * g, part);
    });
    clear(grad_scores, keys, a.width);
  }
}
