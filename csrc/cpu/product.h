// Products of small matrices that lie in a cache: what attention multiplies. Row-major; the result is of
// floats.

// What a product takes at once of a row on its left and of a column on its right: a float, or, on machines
// that multiply them so, two elements of bf16, the first in the lower half.
struct Pair {
  uint32_t bits;
};
template <class Cell> struct Cells;
template <> struct Cells<float> {
  using Element = float;
  using Vector = F32;
  static constexpr long kElements = 1;
};
template <> struct Cells<Pair> {
  using Element = bf16;
  using Vector = U32;
  static constexpr long kElements = 2;
};
template <class Cell> using ElementOf = typename Cells<Cell>::Element;
template <class Cell> constexpr bool kIsPair = Cells<Cell>::kElements == 2;

// Of a number of elements.
template <class Cell> DSMM_INLINE long cells_of(long elements) {
  return (elements + Cells<Cell>::kElements - 1) / Cells<Cell>::kElements;
}

// The cell of the products of a T in memory.
template <class T> struct ProductOf {
  using Cell = float;
};
#ifdef DSMM_BF16_PRODUCTS
template <> struct ProductOf<bf16> {
  using Cell = Pair;
};
#endif

DSMM_INLINE F32 splat_cell(const float* cell) { return splat(*cell); }
DSMM_INLINE F32 add_product(F32 sum, F32 left, F32 right) { return sum + left * right; }
#ifdef DSMM_BF16_PRODUCTS
DSMM_INLINE U32 splat_cell(const Pair* cell) { return splat(cell->bits); }
DSMM_INLINE F32 add_product(F32 sum, U32 left, U32 right) {
  return (F32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
}
#endif

// The tile of the result that stays in registers while products are added up: kTileRows rows of kTileVectors.
// 24 of AVX-512's 32 registers, 12 of the 16 of AVX2, leave room for a row of the right matrix.
constexpr long kTileRows = kLanes == 4 ? 4 : 6;
constexpr long kTileVectors = kLanes == 16 ? 4 : 2;
// Rows of the right matrix at a time, so that those of a tile stay in L1.
constexpr long kDepthBlock = 128;

// A left matrix: cell (r, k) is at[r * row + k * column], so that it may be transposed.
template <class Cell> struct Left {
  const Cell* at;
  long row, column;
};
template <class Cell> struct Right {
  const Cell* at;
  long pitch;
};
struct Result {
  float* at;
  long pitch;
};

DSMM_INLINE long round_up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

template <long kVectors, class Cell>
DSMM_INLINE void multiply_tile(Left<Cell> a, Right<Cell> b, Result c, long depth, bool adds) {
  using Vector = typename Cells<Cell>::Vector;
  F32 sums[kTileRows][kVectors] = {};
  if (adds) {
#pragma GCC unroll 8
    for (long r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (long i = 0; i < kVectors; ++i) sums[r][i] = load(c.at + r * c.pitch + i * kLanes, Whole{});
  }
  for (long k = 0; k < depth; ++k) {
    Vector right[kVectors];
#pragma GCC unroll 8
    for (long i = 0; i < kVectors; ++i) right[i] = load_raw<Vector>(b.at + k * b.pitch + i * kLanes, Whole{});
#pragma GCC unroll 8
    for (long r = 0; r < kTileRows; ++r) {
      const Vector left = splat_cell(a.at + r * a.row + k * a.column);
#pragma GCC unroll 8
      for (long i = 0; i < kVectors; ++i) sums[r][i] = add_product(sums[r][i], left, right[i]);
    }
  }
#pragma GCC unroll 8
  for (long r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
    for (long i = 0; i < kVectors; ++i) store(c.at + r * c.pitch + i * kLanes, sums[r][i], Whole{});
}

// As many columns as a tile has, or as are left.
template <long kVectors, class Cell>
DSMM_INLINE void multiply_tile_of(long vectors, Left<Cell> a, Right<Cell> b, Result c, long depth,
                                  bool adds) {
  if (vectors >= kVectors)
    multiply_tile<kVectors>(a, b, c, depth, adds);
  else if constexpr (kVectors > 1)
    multiply_tile_of<kVectors - 1>(vectors, a, b, c, depth, adds);
}

// c = a b, or c += a b; depth > 0, in cells. a and c have room for whole tiles of rows, b and c for whole
// vectors of columns.
template <class Cell>
DSMM_KERNEL void multiply(Left<Cell> a, Right<Cell> b, Result c, long rows, long columns, long depth,
                          bool adds = false) {
  for (long k = 0; k < depth; k += kDepthBlock, adds = true) {
    const long steps = k + kDepthBlock < depth ? kDepthBlock : depth - k;
    for (long column = 0; column < columns; column += kTileVectors * kLanes) {
      const long vectors = (columns - column + kLanes - 1) / kLanes;
      for (long r = 0; r < rows; r += kTileRows) {
        const Left<Cell> left{a.at + r * a.row + k * a.column, a.row, a.column};
        const Right<Cell> right{b.at + k * b.pitch + column, b.pitch};
        const Result result{c.at + r * c.pitch + column, c.pitch};
        multiply_tile_of<kTileVectors>(vectors, left, right, result, steps, adds);
      }
    }
  }
}
