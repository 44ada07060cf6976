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

// Of one row, over `keys` elements. probs, before dropout, may be nullptr; row: room for them in whole
// vectors.
template <class S, class T>
DSMM_INLINE void softmax_row(const S* scores, T* out, T* probs, long keys, float scale,
                             const RowDropout& drop, float* row) {
  constexpr float kLowest = -3.4028235e38f;
  F32 largest_lanes = splat(kLowest);
  for_row(keys, [&](long i, auto part) {
    F32 v = only(load(scores + i, part) * scale, part, kLowest);
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
}

template <class S, class T>
DSMM_INLINE void softmax_backward_row(const S* grad, const T* probs, T* grad_scores, long keys, float scale,
                                      const RowDropout& drop) {
  const float mean_grad = sum_row(
      keys, [&](long i, auto part) { return drop.of(load(grad + i, part), i) * load(probs + i, part); });
  for_row(keys, [&](long i, auto part) {
    F32 g = drop.of(load(grad + i, part), i) - mean_grad;
    store(grad_scores + i, load(probs + i, part) * scale * g, part);
  });
}

template <class T>
DSMM_KERNEL void softmax_forward(const SoftmaxForward<T>& a, int64_t begin, int64_t end, float* row) {
  for (int64_t r = begin; r < end; ++r) {
    T *out = a.out + r * a.width, *probs = a.probs ? a.probs + r * a.width : nullptr;
    const long keys = num_keys(a.lengths, r, a.rows_per_sample, a.width);
    softmax_row(a.scores + r * a.width, out, probs, keys, a.scale, row_dropout(a.dropout, r), row);
    clear(out, keys, a.width);
    if (probs) clear(probs, keys, a.width);
  }
}

template <class T>
DSMM_KERNEL void softmax_backward(const SoftmaxBackward<T>& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = r * a.width;
    const long keys = num_keys(a.lengths, r, a.rows_per_sample, a.width);
    softmax_backward_row(a.grad + start, a.probs + start, a.grad_scores + start, keys, a.scale,
                         row_dropout(a.dropout, r));
    clear(a.grad_scores + start, keys, a.width);
  }
}
