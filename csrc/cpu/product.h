// Products of small matrices that lie in a cache: what attention multiplies. Row-major floats.

// The tile of the result that stays in registers while products are added up: kTileRows rows of kTileVectors.
// 24 of AVX-512's 32 registers, 12 of the 16 of AVX2, leave room for a row of the right matrix.
constexpr long kTileRows = kLanes == 4 ? 4 : 6;
constexpr long kTileVectors = kLanes == 16 ? 4 : 2;
// Rows of the right matrix at a time, so that those of a tile stay in L1.
constexpr long kDepthBlock = 128;

// A left matrix: element (r, k) is at[r * row + k * column], so that it may be transposed.
struct Left {
  const float* at;
  long row, column;
};
struct Right {
  const float* at;
  long pitch;
};
struct Result {
  float* at;
  long pitch;
};

DSMM_INLINE long round_up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

template <long kVectors>
DSMM_INLINE void multiply_tile(Left a, Right b, Result c, long depth, bool adds) {
  F32 sums[kTileRows][kVectors] = {};
  if (adds) {
#pragma GCC unroll 8
    for (long r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (long i = 0; i < kVectors; ++i) sums[r][i] = load(c.at + r * c.pitch + i * kLanes, Whole{});
  }
  for (long k = 0; k < depth; ++k) {
    F32 right[kVectors];
#pragma GCC unroll 8
    for (long i = 0; i < kVectors; ++i) right[i] = load(b.at + k * b.pitch + i * kLanes, Whole{});
#pragma GCC unroll 8
    for (long r = 0; r < kTileRows; ++r) {
      const F32 left = splat(a.at[r * a.row + k * a.column]);
#pragma GCC unroll 8
      for (long i = 0; i < kVectors; ++i) sums[r][i] += left * right[i];
    }
  }
#pragma GCC unroll 8
  for (long r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
    for (long i = 0; i < kVectors; ++i) store(c.at + r * c.pitch + i * kLanes, sums[r][i], Whole{});
}

// As many columns as a tile has, or as are left.
template <long kVectors>
DSMM_INLINE void multiply_tile_of(long vectors, Left a, Right b, Result c, long depth, bool adds) {
  if (vectors >= kVectors)
    multiply_tile<kVectors>(a, b, c, depth, adds);
  else if constexpr (kVectors > 1)
    multiply_tile_of<kVectors - 1>(vectors, a, b, c, depth, adds);
}

// c = a b, or c += a b; depth > 0. a and c have room for whole tiles of rows, b and c for whole vectors of
// columns.
DSMM_KERNEL void multiply(Left a, Right b, Result c, long rows, long columns, long depth, bool adds = false) {
  for (long k = 0; k < depth; k += kDepthBlock, adds = true) {
    const long steps = k + kDepthBlock < depth ? kDepthBlock : depth - k;
    for (long column = 0; column < columns; column += kTileVectors * kLanes) {
      const long vectors = (columns - column + kLanes - 1) / kLanes;
      for (long r = 0; r < rows; r += kTileRows) {
        const Left left{a.at + r * a.row + k * a.column, a.row, a.column};
        const Right right{b.at + k * b.pitch + column, b.pitch};
        const Result result{c.at + r * c.pitch + column, c.pitch};
        multiply_tile_of<kTileVectors>(vectors, left, right, result, steps, adds);
      }
    }
  }
}
