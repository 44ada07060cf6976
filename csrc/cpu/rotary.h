// The first `heads` heads of each row turned: (a, b) of a plane becomes (a cos - b sin, b cos + a sin).

template <class T>
DSMM_KERNEL void rotary(const Rotary<T>& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t place = a.positions ? a.positions[r % a.period] : r % a.period;
    const float *cosines = a.table + place * 2 * a.half, *sines = cosines + a.half;
    const int64_t turned = 2 * a.half * a.heads;
    for (const T *x = a.x + r * a.width, *last = x + turned; x < last; x += 2 * a.half) {
      T* out = a.out + (x - a.x);
      for_row(a.half, [&](long i, auto part) {
        const F32 first = load(x + i, part), second = load(x + a.half + i, part);
        const F32 cosine = load(cosines + i, part), sine = load(sines + i, part) * a.direction;
        store(out + i, first * cosine - second * sine, part);
        store(out + a.half + i, second * cosine + first * sine, part);
      });
    }
    const int64_t rest = r * a.width + turned;
    __builtin_memcpy(a.out + rest, a.x + rest, (a.width - turned) * sizeof(T));
  }
}
