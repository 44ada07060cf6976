// Cross-entropy of rows of logits, which turn into their gradient in place.

// log(sum(exp(logits + bias))) in one pass over memory: a block stays in the first-level cache
// between the search for its largest element and the sum.
template <class T>
DSMM_INLINE float log_normaliser(const T* logits, const float* bias, int64_t width) {
  constexpr long kBlock = 1024;
  constexpr float kLowest = -3.4028235e38f;
  float largest = kLowest;
  F32 sum = {};
  for (int64_t start = 0; start < width; start += kBlock) {
    const long n = width - start < kBlock ? width - start : kBlock;
    auto score = [&](long i, auto part) {
      const F32 logit = load(logits + start + i, part);
      return only(bias ? logit + load(bias + start + i, part) : logit, part, kLowest);
    };
    F32 largest_lanes = splat(largest);
    for_row(n, [&](long i, auto part) { largest_lanes = larger(score(i, part), largest_lanes); });
    const float new_largest = largest_of(largest_lanes);
    sum *= exp_of(splat(largest - new_largest));
    largest = new_largest;
    for_row(n, [&](long i, auto part) { sum += only(exp_of(score(i, part) - largest), part, 0.f); });
  }
  return largest + __builtin_logf(sum_of(sum));
}

template <class T>
DSMM_KERNEL void cross_entropy(const CrossEntropy<T>& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* logits = a.logits + r * a.width;
    const int64_t target = a.targets[r];
    if (target == kIgnored) {
      a.losses[r] = 0.f;
      if (a.needs_grad) clear(logits, 0, a.width);
      continue;
    }
    const float normaliser = log_normaliser(logits, a.bias, a.width);
    const float target_score = load(logits + target, Part{1})[0] + (a.bias ? a.bias[target] : 0.f);
    a.losses[r] = normaliser - target_score;
    if (!a.needs_grad) continue;
    for_row(a.width, [&](long i, auto part) {
      F32 score = load(logits + i, part);
      if (a.bias) score += load(a.bias + i, part);
      store(logits + i, exp_of(score - normaliser), part);
    });
    store(logits + target, exp_of(splat(target_score - normaliser)) - 1.f, Part{1});
  }
}
