// Dropout bits in registers; the same bits as ds_minimodel/ops/dropout.py.

DSMM_INLINE U32 hash_of(U32 x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// The dropout of one row: of(v, i) drops from the vector v that starts at column i.
struct RowDropout {
  U32 counters;  // row key + (column + 1) * golden, for the first columns
  uint32_t threshold;
  float scale;
  bool active;

  DSMM_INLINE F32 of(F32 value, long column) const {
    if (!active) return value;
    U32 bits = hash_of(counters + (uint32_t)column * 0x9E3779B9u);
    return bits >= threshold ? value * scale : F32{};
  }

  // Of the part of the row that begins at `column`.
  DSMM_INLINE RowDropout from(long column) const {
    return {counters + (uint32_t)column * 0x9E3779B9u, threshold, scale, active};
  }
};

DSMM_INLINE RowDropout row_dropout(const Dropout& dropout, long row) {
  if (!dropout.keys) return {U32{}, 0, 1.f, false};
  U32 columns = (U32)lane_numbers() + 1u;
  return {(uint32_t)dropout.keys[row] + columns * 0x9E3779B9u, dropout.threshold, dropout.scale, true};
}

template <class T>
DSMM_KERNEL void dropout_rows(const DropoutRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = a.x + r * a.width;
    T* out = a.out + r * a.width;
    const RowDropout drop = row_dropout(a.dropout, r);
    for_row(a.width, [&](long i, auto part) { store(out + i, drop.of(load(x + i, part), i), part); });
  }
}
