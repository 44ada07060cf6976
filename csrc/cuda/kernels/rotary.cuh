// The first `heads` heads of each row turned: (a, b) of a plane becomes (a cos - b sin, b cos + a sin).
#pragma once
#include "sums.cuh"

namespace dsmm::cuda {

// Rows that a lane reads before it works on the first of them.
constexpr int kTurnedAhead = 2;

// A lane reads its columns, and those beside them in the same planes, which another lane of the warp reads
// too.
template <class T, int N> __global__ void rotary(Rotary<T> a, int64_t rows) {
  const Columns<N> columns;
  if (columns.first >= a.width) return;
  const bool turns = columns.first < 2 * a.half * a.heads;
  const int in_head = (int)(columns.first % (2 * a.half)), half = (int)a.half;
  const bool is_second = in_head >= half;
  const int64_t other = !turns ? columns.first : columns.first + (is_second ? -half : half);
  const float sign = is_second ? a.direction : -a.direction;
  const float* cosines = a.table + (is_second ? in_head - half : in_head);
  for (int64_t row = columns.first_row; row < rows; row += kTurnedAhead * columns.stride) {
    Pack<T, N> packs[kTurnedAhead], others[kTurnedAhead];
#pragma unroll
    for (int r = 0; r < kTurnedAhead; ++r)
      if (row + r * columns.stride < rows) {
        const T* x = a.x + (row + r * columns.stride) * a.width;
        packs[r] = load_pack<N>(x + columns.first);
        others[r] = load_pack<N>(x + other);
      }
#pragma unroll
    for (int r = 0; r < kTurnedAhead; ++r)
      if (row + r * columns.stride < rows) {
        const int64_t at = row + r * columns.stride;
        Floats<N> values = widen(packs[r]);
        if (turns) {
          const int64_t place = a.positions ? a.positions[at % a.period] : at % a.period;
          // A position outside the table makes the row nan: to refuse it, the host would have to wait.
          const bool is_known = place >= 0 && place < a.known;
          const float* of_place = cosines + (is_known ? place : 0) * 2 * half;
          const Floats<N> cosine = load<N>(of_place), sine = load<N>(of_place + half),
                          beside = widen(others[r]);
#pragma unroll
          for (int k = 0; k < N; ++k)
            values.lanes[k] = is_known ? values.lanes[k] * cosine.lanes[k] + sign * beside.lanes[k] * sine.lanes[k]
                                       : __int_as_float(0x7fc00000);
        }
        store(a.out + at * a.width + columns.first, values);
      }
  }
}

}  // namespace dsmm::cuda
