// dropout(softmax(scale * q k^T)) v of whole heads, and its gradient. What has a number for each pair of
// a query and a key exists for a block of queries and the keys that these see, and the backward pass computes
// it again. At 512 keys of width 64 all that a head takes stays in 1.3 MB of cache. Scores and sums are
// floats; the products are those of product.h.

// Queries at a time: their scores stay in cache. Fewer where they see few keys, or most would be others'.
constexpr long kMostQueries = 60, kQueriesOfNarrow = 30, kNarrowWindow = 256;

// Sizes of one head in scratch memory: matrices padded to whole tiles and vectors.
struct HeadSizes {
  long block;                 // queries at a time, whole tiles
  long query_rows, sum_rows;  // padded for the left and the result of a product, which may begin at any key
  long width_pitch;
  long key_pitch;  // odd in vectors, so that rows do not share the same sets of L1

  template <class T> DSMM_INLINE HeadSizes(const Attention<T>& a, long keys) {
    const long most = a.positions && a.before + a.after < kNarrowWindow ? kQueriesOfNarrow : kMostQueries;
    const long blocks = (a.queries + most - 1) / most;
    block = round_up((a.queries + blocks - 1) / blocks, kTileRows);
    query_rows = blocks * block;
    sum_rows = keys + kTileRows;
    width_pitch = round_up(a.width, kLanes);
    key_pitch = (round_up(keys + kTileRows, kLanes) / kLanes | 1) * kLanes;
  }
};

// Hands out pieces of scratch memory.
struct Scratch {
  float* next;
  template <class Cell = float> DSMM_INLINE Cell* take(long rows, long pitch) {
    float* piece = next;
    next += rows * pitch;
    return reinterpret_cast<Cell*>(piece);
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

// Rows of pairs, for the left of a product.
DSMM_INLINE void pack_rows(const bf16* from, long pitch, long rows, long width, Pair* to, long to_pitch) {
  for (long r = 0; r < rows; ++r) {
    bf16* row = reinterpret_cast<bf16*>(to + r * to_pitch);
    __builtin_memcpy(row, from + r * pitch, width * sizeof(bf16));
    if (width % 2) row[width] = {0};
  }
}

// For the right of a product, or for the left of one with the transpose: each pair is of two rows.
DSMM_INLINE void pack_columns(const bf16* from, long pitch, long rows, long width, Pair* to, long to_pitch) {
  for (long r = 0; r < rows; r += 2)
    for_row(width, [&](long i, auto part) {
      U32 pair = widen_bits(load_raw<U16>(from + r * pitch + i, part));
      if (r + 1 < rows) pair |= widen_bits(load_raw<U16>(from + (r + 1) * pitch + i, part)) << 16;
      store_raw(to + r / 2 * to_pitch + i, pair, Whole{});
    });
}
template <class T>
DSMM_INLINE void pack_columns(const T* from, long pitch, long rows, long width, float* to, long to_pitch) {
  pack_rows(from, pitch, rows, width, to, to_pitch);
}

// The transpose of packed rows; columns beyond them become zeros up to a whole vector.
template <class Cell>
DSMM_INLINE void transpose(const Cell* from, long from_pitch, long rows, long cells, Cell* to,
                           long to_pitch) {
  for (long first = 0; first < rows; first += kLanes) {
    const long lanes = first + kLanes < rows ? kLanes : rows - first;
    for (long i = 0; i < cells; ++i) {
      U32 column = {};
      for (long r = 0; r < lanes; ++r) {
        uint32_t bits;
        __builtin_memcpy(&bits, from + (first + r) * from_pitch + i, sizeof bits);
        column[r] = bits;
      }
      store_raw(to + i * to_pitch + first, column, Whole{});
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

// Keys [begin, end).
struct Range {
  long begin, end;
  DSMM_INLINE long size() const { return end - begin; }
};

// Of the keys of a sample: those that a query sees.
template <class T>
DSMM_INLINE Range seen_by(const Attention<T>& a, int64_t sample, int64_t query, long keys) {
  if (!a.positions) return {0, keys};
  const int64_t place = a.positions[sample * a.positions_pitch + query];
  const long begin = place > a.before ? place - a.before : 0;
  const long end = place + a.after < keys ? place + a.after + 1 : keys;
  return begin < end ? Range{begin, end} : Range{0, 0};
}

// Those that any of a block's queries sees, from the start of a vector on.
template <class T>
DSMM_INLINE Range seen_by_block(const Attention<T>& a, int64_t sample, int64_t first, int64_t rows,
                                long keys) {
  if (!a.positions) return {0, keys};
  Range all{keys, 0};
  for (int64_t r = 0; r < rows; ++r) {
    const Range seen = seen_by(a, sample, first + r, keys);
    if (!seen.size()) continue;
    all.begin = seen.begin < all.begin ? seen.begin : all.begin;
    all.end = seen.end > all.end ? seen.end : all.end;
  }
  return all.begin < all.end ? Range{all.begin / kLanes * kLanes, all.end} : Range{0, 0};
}

// A head of the keys: its sample, how many keys that has, where it begins, and the first head of its queries.
struct KeyHead {
  int64_t sample;
  int32_t keys;
  int64_t key_start, first_head;

  template <class T>
  DSMM_INLINE KeyHead(const Attention<T>& a, int64_t number)
      : sample(number / a.key_heads),
        keys(num_keys(a.lengths, number, a.key_heads, a.keys)),
        key_start(sample * a.keys * a.key_pitch + number % a.key_heads * a.width),
        first_head(number % a.key_heads * (a.heads / a.key_heads)) {}
};

// A block of the queries of a head: its rows, the keys that they see, and the dropout of their probabilities.
struct QueryBlock {
  int64_t sample, first, rows, first_row;
  Range keys;

  template <class T>
  DSMM_INLINE QueryBlock(const Attention<T>& a, const KeyHead& head, int64_t h, int64_t first_, long block)
      : sample(head.sample),
        first(first_),
        rows(first + block < a.queries ? block : a.queries - first),
        first_row((sample * a.heads + h) * a.queries + first),
        keys(seen_by_block(a, sample, first, rows, head.keys)) {}

  // body(row, first of its keys in the block, number of its keys, dropout) for each row.
  template <class T, class Body>
  DSMM_INLINE void for_rows(const Attention<T>& a, long num_keys, Body body) const {
    for (int64_t r = 0; r < rows; ++r) {
      const Range seen = seen_by(a, sample, first + r, num_keys);
      const RowDropout drop = row_dropout(a.dropout, first_row + r).from(seen.begin);
      body(r, seen.size() ? seen.begin - keys.begin : 0, seen.size(), drop);
    }
  }
};

// Zeros around a row's own keys, as far as a product of whole tiles reads.
template <class T> DSMM_INLINE void clear_around(T* row, long begin, long size, long columns) {
  clear(row, 0, begin);
  clear(row, begin + size, round_up(columns, kTileRows));
}

template <class T>
DSMM_KERNEL void attention_forward(const Attention<T>& a, T* all_out, int64_t begin, int64_t end,
                                   float* scratch) {
  using Cell = typename ProductOf<T>::Cell;
  using Element = ElementOf<Cell>;
  constexpr long kElements = Cells<Cell>::kElements;
  const long width_cells = cells_of<Cell>(a.width);
  for (int64_t number = begin; number < end; ++number) {
    const KeyHead head(a, number);
    const HeadSizes n(a, head.keys);
    Scratch memory{scratch};
    float* row = memory.take(1, n.key_pitch);
    Cell* q = memory.take<Cell>(n.query_rows, n.width_pitch);
    Cell* k_t = memory.take<Cell>(a.width, n.key_pitch);
    Cell* v = memory.take<Cell>(head.keys, n.width_pitch);
    float* scores = memory.take(n.block, n.key_pitch);
    Element* probs = kIsPair<Cell> ? memory.take<Element>(n.block, n.key_pitch)  // rows of key_pitch elements
                                   : reinterpret_cast<Element*>(scores);
    float* context = memory.take(n.block, n.width_pitch);
    pack_rows(a.k + head.key_start, a.key_pitch, head.keys, a.width, v, n.width_pitch);
    transpose(v, n.width_pitch, head.keys, width_cells, k_t, n.key_pitch);
    pack_columns(a.v + head.key_start, a.key_pitch, head.keys, a.width, v, n.width_pitch);
    for (int64_t h = head.first_head; h < head.first_head + a.heads / a.key_heads; ++h) {
      const T* queries = a.q + head.sample * a.queries * a.query_pitch + h * a.width;
      T* out = all_out + head.sample * a.queries * a.out_pitch + h * a.width;
      pack_rows(queries, a.query_pitch, a.queries, a.width, q, n.width_pitch);
      for (int64_t first = 0; first < a.queries; first += n.block) {
        const QueryBlock block(a, head, h, first, n.block);
        const long columns = block.keys.size(), first_column = block.keys.begin;
        T* out_rows = out + first * a.out_pitch;
        if (!columns) {
          zero_rows(out_rows, a.out_pitch, block.rows, a.width);
          continue;
        }
        multiply<Cell>({q + first * n.width_pitch, n.width_pitch, 1}, {k_t + first_column, n.key_pitch},
                       {scores, n.key_pitch}, block.rows, columns, width_cells);
        block.for_rows(a, head.keys, [&](long r, long first_key, long keys, const RowDropout& drop) {
          Element* own = probs + r * n.key_pitch;
          softmax_row<float, Element>(scores + r * n.key_pitch + first_key, own + first_key, nullptr, keys,
                                      a.scale, drop, row);
          clear_around(own, first_key, keys, columns);
        });
        multiply<Cell>({reinterpret_cast<const Cell*>(probs), n.key_pitch / kElements, 1},
                       {v + first_column / kElements * n.width_pitch, n.width_pitch},
                       {context, n.width_pitch}, block.rows, a.width, cells_of<Cell>(columns));
        unpack_rows(context, n.width_pitch, block.rows, a.width, out_rows, a.out_pitch);
      }
    }
  }
}

template <class T>
DSMM_KERNEL void attention_backward(const Attention<T>& a, const AttentionGradients<T>& gradients,
                                    int64_t begin, int64_t end, float* scratch) {
  using Cell = typename ProductOf<T>::Cell;
  using Element = ElementOf<Cell>;
  constexpr bool kPairs = kIsPair<Cell>;
  constexpr long kElements = Cells<Cell>::kElements;
  const long width_cells = cells_of<Cell>(a.width);
  for (int64_t number = begin; number < end; ++number) {
    const KeyHead head(a, number);
    const HeadSizes n(a, head.keys);
    T *grad_k = gradients.k + head.key_start, *grad_v = gradients.v + head.key_start;
    zero_rows(grad_k + head.keys * a.key_pitch, a.key_pitch, a.keys - head.keys, a.width);
    zero_rows(grad_v + head.keys * a.key_pitch, a.key_pitch, a.keys - head.keys, a.width);
    Scratch memory{scratch};
    float* row = memory.take(1, n.key_pitch);
    Cell* q = memory.take<Cell>(n.query_rows, n.width_pitch);
    Cell* g = memory.take<Cell>(n.query_rows, n.width_pitch);
    Cell* k = memory.take<Cell>(head.keys, n.width_pitch);
    Cell* k_t = memory.take<Cell>(a.width, n.key_pitch);
    Cell* v_t = memory.take<Cell>(a.width, n.key_pitch);
    float* sum_k = memory.take(n.sum_rows, n.width_pitch);
    float* sum_v = memory.take(n.sum_rows, n.width_pitch);
    float* scores = memory.take(n.block, n.key_pitch);
    float* grad = memory.take(n.block, n.key_pitch);
    Element* dropped =
        memory.take<Element>(n.block, n.key_pitch);      // rows of key_pitch elements, as the others
    Element* kept = reinterpret_cast<Element*>(scores);  // before dropout
    Element* grad_scores = reinterpret_cast<Element*>(grad);
    float* grad_query = memory.take(n.block, n.width_pitch);
    // For products that go over the queries: of floats the same, of pairs of rows packed anew.
    Cell *q_columns = q, *g_columns = g;
    Cell *grad_columns = reinterpret_cast<Cell*>(grad_scores),
         *dropped_columns = reinterpret_cast<Cell*>(dropped);
    if constexpr (kPairs) {
      kept = memory.take<Element>(n.block, n.key_pitch);
      grad_scores = memory.take<Element>(n.block, n.key_pitch);
      q_columns = memory.take<Cell>(n.query_rows, n.width_pitch);
      g_columns = memory.take<Cell>(n.query_rows, n.width_pitch);
      grad_columns = memory.take<Cell>(n.block, n.key_pitch);
      dropped_columns = memory.take<Cell>(n.block, n.key_pitch);
    }
    pack_rows(a.v + head.key_start, a.key_pitch, head.keys, a.width, k, n.width_pitch);
    transpose(k, n.width_pitch, head.keys, width_cells, v_t, n.key_pitch);
    pack_rows(a.k + head.key_start, a.key_pitch, head.keys, a.width, k, n.width_pitch);
    transpose(k, n.width_pitch, head.keys, width_cells, k_t, n.key_pitch);
    if constexpr (kPairs)
      pack_columns(a.k + head.key_start, a.key_pitch, head.keys, a.width, k, n.width_pitch);
    clear(sum_k, 0, n.sum_rows * n.width_pitch);
    clear(sum_v, 0, n.sum_rows * n.width_pitch);
    for (int64_t h = head.first_head; h < head.first_head + a.heads / a.key_heads; ++h) {
      const int64_t query_start = head.sample * a.queries * a.query_pitch + h * a.width;
      const T* queries = a.q + query_start;
      const T* grad_out = gradients.out + head.sample * a.queries * a.out_pitch + h * a.width;
      T* grad_q = gradients.q + query_start;
      pack_rows(queries, a.query_pitch, a.queries, a.width, q, n.width_pitch);
      pack_rows(grad_out, a.out_pitch, a.queries, a.width, g, n.width_pitch);
      if constexpr (kPairs) {
        pack_columns(queries, a.query_pitch, a.queries, a.width, q_columns, n.width_pitch);
        pack_columns(grad_out, a.out_pitch, a.queries, a.width, g_columns, n.width_pitch);
      }
      for (int64_t first = 0; first < a.queries; first += n.block) {
        const QueryBlock block(a, head, h, first, n.block);
        const long columns = block.keys.size(), first_column = block.keys.begin;
        T* grad_rows = grad_q + first * a.query_pitch;
        if (!columns) {
          zero_rows(grad_rows, a.query_pitch, block.rows, a.width);
          continue;
        }
        const long at = first * n.width_pitch, at_columns = first / kElements * n.width_pitch;
        multiply<Cell>({q + at, n.width_pitch, 1}, {k_t + first_column, n.key_pitch}, {scores, n.key_pitch},
                       block.rows, columns, width_cells);
        multiply<Cell>({g + at, n.width_pitch, 1}, {v_t + first_column, n.key_pitch}, {grad, n.key_pitch},
                       block.rows, columns, width_cells);
        block.for_rows(a, head.keys, [&](long r, long first_key, long keys, const RowDropout& drop) {
          const long own = r * n.key_pitch, key = own + first_key;
          softmax_row<float, Element>(scores + key, dropped + key, a.dropout.keys ? kept + key : nullptr,
                                      keys, a.scale, drop, row);
          softmax_backward_row<float, Element>(grad + key, (a.dropout.keys ? kept : dropped) + key,
                                               grad_scores + key, keys, a.scale, drop);
          clear_around(dropped + own, first_key, keys, columns);
          clear_around(grad_scores + own, first_key, keys, columns);
        });
        multiply<Cell>({reinterpret_cast<const Cell*>(grad_scores), n.key_pitch / kElements, 1},
                       {k + first_column / kElements * n.width_pitch, n.width_pitch},
                       {grad_query, n.width_pitch}, block.rows, a.width, cells_of<Cell>(columns));
        unpack_rows(grad_query, n.width_pitch, block.rows, a.width, grad_rows, a.query_pitch);
        if constexpr (kPairs) {
          const long padded = round_up(columns, kTileRows);
          pack_columns(grad_scores, n.key_pitch, block.rows, padded, grad_columns, n.key_pitch);
          pack_columns(dropped, n.key_pitch, block.rows, padded, dropped_columns, n.key_pitch);
        }
        const long depth = cells_of<Cell>(block.rows);
        multiply<Cell>({grad_columns, 1, n.key_pitch}, {q_columns + at_columns, n.width_pitch},
                       {sum_k + first_column * n.width_pitch, n.width_pitch}, columns, a.width, depth, true);
        multiply<Cell>({dropped_columns, 1, n.key_pitch}, {g_columns + at_columns, n.width_pitch},
                       {sum_v + first_column * n.width_pitch, n.width_pitch}, columns, a.width, depth, true);
      }
    }
    unpack_rows(sum_k, n.width_pitch, head.keys, a.width, grad_k, a.key_pitch);
    unpack_rows(sum_v, n.width_pitch, head.keys, a.width, grad_v, a.key_pitch);
  }
}

// Floats of scratch memory that a head of keys needs at most.
template <class T> int64_t attention_scratch(const Attention<T>& a) {
  const HeadSizes n(a, a.keys);
  const long of_pairs = kIsPair<typename ProductOf<T>::Cell> ? 1 : 0;
  return n.key_pitch * (1 + 2 * a.width + (3 + 4 * of_pairs) * n.block) +
         n.width_pitch * ((2 + 2 * of_pairs) * n.query_rows + a.keys + 2 * n.sum_rows + n.block);
}
