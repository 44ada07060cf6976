// dropout(softmax(scale * q k^T)) v of whole heads, and its gradient. What has a number for each pair of
// a query and a key exists for a block of queries only, and the backward pass computes it again. At 512
// keys of width 64 all that a head takes stays in 1.3 MB of cache. Inside all is float.

// Sizes of one head in scratch memory: matrices padded to whole tiles and vectors.
struct HeadSizes {
  long block;                 // queries at a time, whole tiles
  long query_rows, key_rows;  // padded for the left and the result of a product
  long width_pitch;
  long key_pitch;  // odd in vectors, so that rows do not share the same sets of L1

  DSMM_INLINE HeadSizes(long queries, long keys, long width) {
    constexpr long kMostQueries = 60;
    const long blocks = (queries + kMostQueries - 1) / kMostQueries;
    block = round_up((queries + blocks - 1) / blocks, kTileRows);
    query_rows = blocks * block;
    key_rows = round_up(keys, kTileRows);
    width_pitch = round_up(width, kLanes);
    key_pitch = (round_up(key_rows, kLanes) / kLanes | 1) * kLanes;
  }
};

// Hands out pieces of scratch memory.
struct Scratch {
  float* next;
  DSMM_INLINE float* take(long rows, long pitch) {
    float* piece = next;
    next += rows * pitch;
    return piece;
  }
};

// Rows of `width` elements, `pitch` apart -> packed floats, padded with zeros.
template <class T>
DSMM_INLINE void pack_rows(const T* from, long pitch, long rows, long width, float* to, long to_pitch) {
  for (long r = 0; r < rows; ++r)
    for_row(width, [&](long i, auto part) {
      store(to + r * to_pitch + i, load(from + r * pitch + i, part), Whole{});
    });
}

// The transpose of packed rows; columns beyond them become zeros up to a whole vector.
DSMM_INLINE void transpose(const float* from, long from_pitch, long rows, long width, float* to,
                           long to_pitch) {
  for (long first = 0; first < rows; first += kLanes) {
    const long lanes = first + kLanes < rows ? kLanes : rows - first;
    for (long i = 0; i < width; ++i) {
      F32 column = {};
      for (long r = 0; r < lanes; ++r) column[r] = from[(first + r) * from_pitch + i];
      store(to + i * to_pitch + first, column, Whole{});
    }
  }
}

template <class T>
DSMM_INLINE void unpack_rows(const float* from, long from_pitch, long rows, long width, T* to, long pitch) {
  for (long r = 0; r < rows; ++r)
    for_row(width, [&](long i, auto part) {
      store(to + r * pitch + i, load(from + r * from_pitch + i, Whole{}), part);
    });
}

template <class T>
DSMM_INLINE void zero_rows(T* to, long pitch, long rows, long width) {
  for (long r = 0; r < rows; ++r) clear(to + r * pitch, 0, width);
}

// Head h of the batch: how many keys it has, and where it begins in each matrix.
struct Head {
  int32_t keys;
  int64_t query_start, key_start, out_start;

  template <class T>
  DSMM_INLINE Head(const Attention<T>& a, int64_t h) : keys(num_keys(a.lengths, h, a.heads, a.keys)) {
    auto start = [&](int64_t rows, int64_t pitch) {
      return h / a.heads * rows * pitch + h % a.heads * a.width;
    };
    query_start = start(a.queries, a.query_pitch);
    key_start = start(a.keys, a.key_pitch);
    out_start = start(a.queries, a.out_pitch);
  }
};

// The dropout of a matrix whose first row is this one's `row`.
DSMM_INLINE Dropout dropout_from(Dropout dropout, int64_t row) {
  if (dropout.keys) dropout.keys += row;
  return dropout;
}

template <class T>
DSMM_KERNEL void attention_forward(const Attention<T>& a, T* all_out, int64_t begin, int64_t end,
                                   float* scratch) {
  for (int64_t h = begin; h < end; ++h) {
    const auto [keys, query_start, key_start, out_start] = Head(a, h);
    T* out = all_out + out_start;
    if (!keys) {
      zero_rows(out, a.out_pitch, a.queries, a.width);
      continue;
    }
    const HeadSizes n(a.queries, keys, a.width);
    Scratch memory{scratch};
    float* row = memory.take(1, n.key_pitch);
    float* q = memory.take(n.query_rows, n.width_pitch);
    float* k_t = memory.take(a.width, n.key_pitch);
    float* v = memory.take(keys, n.width_pitch);
    float* probs = memory.take(n.block, n.key_pitch);
    float* context = memory.take(n.block, n.width_pitch);
    pack_rows(a.k + key_start, a.key_pitch, keys, a.width, v, n.width_pitch);
    transpose(v, n.width_pitch, keys, a.width, k_t, n.key_pitch);
    pack_rows(a.v + key_start, a.key_pitch, keys, a.width, v, n.width_pitch);
    pack_rows(a.q + query_start, a.query_pitch, a.queries, a.width, q, n.width_pitch);
    for (int64_t first = 0; first < a.queries; first += n.block) {
      const int64_t rows = first + n.block < a.queries ? n.block : a.queries - first;
      const Dropout dropout = dropout_from(a.dropout, h * a.queries + first);
      multiply({q + first * n.width_pitch, n.width_pitch, 1}, {k_t, n.key_pitch}, {probs, n.key_pitch}, rows,
               keys, a.width);
      softmax_forward(
          SoftmaxForward<float>{probs, &keys, probs, nullptr, dropout, n.key_pitch, rows, a.scale}, 0, rows,
          row);
      multiply({probs, n.key_pitch, 1}, {v, n.width_pitch}, {context, n.width_pitch}, rows, a.width, keys);
      unpack_rows(context, n.width_pitch, rows, a.width, out + first * a.out_pitch, a.out_pitch);
    }
  }
}

template <class T>
DSMM_KERNEL void attention_backward(const Attention<T>& a, const AttentionGradients<T>& gradients,
                                    int64_t begin, int64_t end, float* scratch) {
  for (int64_t h = begin; h < end; ++h) {
    const auto [keys, query_start, key_start, out_start] = Head(a, h);
    const T* grad_out = gradients.out + out_start;
    T* grad_q = gradients.q + query_start;
    T *grad_k = gradients.k + key_start, *grad_v = gradients.v + key_start;
    zero_rows(grad_k + keys * a.key_pitch, a.key_pitch, a.keys - keys, a.width);
    zero_rows(grad_v + keys * a.key_pitch, a.key_pitch, a.keys - keys, a.width);
    if (!keys) {
      zero_rows(grad_q, a.query_pitch, a.queries, a.width);
      continue;
    }
    const HeadSizes n(a.queries, keys, a.width);
    Scratch memory{scratch};
    float* row = memory.take(1, n.key_pitch);
    float* q = memory.take(n.query_rows, n.width_pitch);
    float* g = memory.take(n.query_rows, n.width_pitch);
    float* k = memory.take(keys, n.width_pitch);
    float* k_t = memory.take(a.width, n.key_pitch);
    float* v_t = memory.take(a.width, n.key_pitch);
    float* sum_k = memory.take(n.key_rows, n.width_pitch);
    float* sum_v = memory.take(n.key_rows, n.width_pitch);
    float* probs = memory.take(n.block, n.key_pitch);
    float* dropped = memory.take(n.block, n.key_pitch);
    float* grad = memory.take(n.block, n.key_pitch);
    float* grad_query = memory.take(n.block, n.width_pitch);
    pack_rows(a.v + key_start, a.key_pitch, keys, a.width, k, n.width_pitch);
    transpose(k, n.width_pitch, keys, a.width, v_t, n.key_pitch);
    pack_rows(a.k + key_start, a.key_pitch, keys, a.width, k, n.width_pitch);
    transpose(k, n.width_pitch, keys, a.width, k_t, n.key_pitch);
    pack_rows(a.q + query_start, a.query_pitch, a.queries, a.width, q, n.width_pitch);
    pack_rows(grad_out, a.out_pitch, a.queries, a.width, g, n.width_pitch);
    for (int64_t first = 0; first < a.queries; first += n.block) {
      const int64_t rows = first + n.block < a.queries ? n.block : a.queries - first;
      const float *q_rows = q + first * n.width_pitch, *g_rows = g + first * n.width_pitch;
      const Dropout dropout = dropout_from(a.dropout, h * a.queries + first);
      multiply({q_rows, n.width_pitch, 1}, {k_t, n.key_pitch}, {probs, n.key_pitch}, rows, keys, a.width);
      softmax_forward(SoftmaxForward<float>{probs, &keys, dropped, dropout.keys ? probs : nullptr, dropout,
                                            n.key_pitch, rows, a.scale},
                      0, rows, row);
      multiply({g_rows, n.width_pitch, 1}, {v_t, n.key_pitch}, {grad, n.key_pitch}, rows, keys, a.width);
      softmax_backward(SoftmaxBackward<float>{grad, dropout.keys ? probs : dropped, &keys, grad, dropout,
                                              n.key_pitch, rows, a.scale},
                       0, rows);
      multiply({grad, n.key_pitch, 1}, {k, n.width_pitch}, {grad_query, n.width_pitch}, rows, a.width, keys);
      unpack_rows(grad_query, n.width_pitch, rows, a.width, grad_q + first * a.query_pitch, a.query_pitch);
      multiply({grad, 1, n.key_pitch}, {q_rows, n.width_pitch}, {sum_k, n.width_pitch}, keys, a.width, rows,
               first > 0);
      multiply({dropped, 1, n.key_pitch}, {g_rows, n.width_pitch}, {sum_v, n.width_pitch}, keys, a.width,
               rows, first > 0);
    }
    unpack_rows(sum_k, n.width_pitch, keys, a.width, grad_k, a.key_pitch);
    unpack_rows(sum_v, n.width_pitch, keys, a.width, grad_v, a.key_pitch);
  }
}

// Floats of scratch memory that a head needs at most.
inline int64_t attention_scratch(int64_t queries, int64_t keys, int64_t width) {
  const HeadSizes n(queries, keys, width);
  return n.key_pitch * (1 + 2 * width + 3 * n.block) +
         n.width_pitch * (2 * n.query_rows + keys + 2 * n.key_rows + n.block);
}
