#include "launch.h"

#include <initializer_list>

#include "kernels/cross_entropy.cuh"
#include "kernels/gated.cuh"
#include "kernels/norm.cuh"
#include "kernels/rotary.cuh"
#include "kernels/softmax.cuh"

#ifndef DSMM_CPU_SHIM
#define DSMM_LAUNCH(KERNEL, GRID, BLOCK, SHARED, STREAM, ...) \
  KERNEL<<<GRID, BLOCK, SHARED, static_cast<cudaStream_t>(STREAM)>>>(__VA_ARGS__)
#endif

namespace dsmm::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr int64_t kRowsToShare = 512;  // of cross_entropy, from which on a block has four of them

// Whether rows can be read in packs of 16 bytes.
template <class T>
bool takes_packs(int64_t width, std::initializer_list<const void*> pointers) {
  bool aligned = width * sizeof(T) % 16 == 0;
  for (const void* pointer : pointers) aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  return aligned;
}

dim3 row_grid(int64_t rows, int warps) { return dim3(static_cast<unsigned>((rows + warps - 1) / warps)); }

// Lanes of blocks (32, kSumWarps) to N columns each; `slices` of the rows.
dim3 columns_grid(int64_t width, int columns_of_lane, int64_t slices) {
  const int64_t block_columns = kWarp * columns_of_lane;
  return dim3(static_cast<unsigned>((width + block_columns - 1) / block_columns),
              static_cast<unsigned>(slices));
}

// Of the rows of an elementwise kernel: each lane works on a few of them with the bias that it has read.
int64_t row_slices(int64_t rows, int64_t rows_of_lane = 4) {
  const int64_t slices = (rows + kSumWarps * rows_of_lane - 1) / (kSumWarps * rows_of_lane);
  return slices < 65535 ? slices : 65535;
}

template <int N, int P> struct RowShape {
  static constexpr int kPack = N, kPacks = P;
};

// launch(RowShape, warps of a block, bytes of shared memory) for rows that registers hold, in packs and up
// to 1024 wide, and for others.
template <class T, class Launch>
void with_row_shape(int64_t width, bool takes_packs, Launch launch) {
  constexpr int N = 16 / sizeof(T), kQuarter = 8 / N;  // packs of a lane for each 256 columns
  const int quarters = takes_packs && width <= 1024 ? static_cast<int>((width + 255) / 256) : 0;
  auto in_shared_memory = [&](auto shape) {
    const int64_t lane_columns = kWarp * decltype(shape)::kPack;
    const int64_t row_floats = (width + lane_columns - 1) / lane_columns * lane_columns;
    const int64_t fitting = kMaxWidth / row_floats;
    const int warps = static_cast<int>(fitting < kWarpsPerBlock ? fitting : kWarpsPerBlock);
    launch(shape, warps, warps * row_floats * sizeof(float));
  };
  if (quarters == 1)
    launch(RowShape<N, kQuarter>{}, kWarpsPerBlock, size_t{0});
  else if (quarters == 2)
    launch(RowShape<N, 2 * kQuarter>{}, kWarpsPerBlock, size_t{0});
  else if (quarters == 3)
    launch(RowShape<N, 3 * kQuarter>{}, kWarpsPerBlock, size_t{0});
  else if (quarters == 4)
    launch(RowShape<N, 4 * kQuarter>{}, kWarpsPerBlock, size_t{0});
  else if (takes_packs)
    in_shared_memory(RowShape<N, 0>{});
  else
    in_shared_memory(RowShape<1, 0>{});
}

}  // namespace

#ifdef DSMM_CPU_SHIM
bool has_code_for(int) { return true; }
static int processors() { return 2; }
#else
bool has_code(int64_t major, int64_t minor) {
  constexpr int architectures[] = {__CUDA_ARCH_LIST__};  // 750 for sm_75, in ascending order
  int64_t newest = 0;
  for (const int64_t architecture : architectures) {
    newest = architecture / 10;
    if (newest / 10 == major && newest % 10 <= minor) return true;
  }
  return DSMM_HAS_PTX && newest <= 10 * major + minor;  // the driver compiles it
}

bool has_code_for(int device) {
  int major = 0, minor = 0;
  if (device < 0) return true;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return has_code(major, minor);
}

static int processors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}
#endif

int64_t sum_slices(int64_t rows, int64_t width) {
  const int64_t most = (width <= 256 ? 4 : 2) * processors(), wanted = (rows + kSumWarps - 1) / kSumWarps;
  return wanted < most ? wanted : most;
}

// The grid of a norm, in blocks of so many warps. Rows in registers (P > 0) are shared out among as many warps
// as with sums, few enough that some rows are read while others are written; other rows have a warp each.
static dim3 norm_grid(int64_t rows, int64_t width, int P, int warps) {
  return P ? dim3(static_cast<unsigned>(sum_slices(rows, width) * kSumWarps / warps)) : row_grid(rows, warps);
}

// KERNEL<T, N, P> for the rows' width and the pointers, in GRID, which may use `P` and `warps`.
#define DSMM_LAUNCH_ROWS(KERNEL, GRID, ...)                                                           \
  do {                                                                                                \
    with_row_shape<T>(a.width, takes_packs<T>(a.width, {__VA_ARGS__}),                                \
                      [&](auto shape, int warps, size_t shared) {                                     \
                        constexpr int P = decltype(shape)::kPacks;                                    \
                        DSMM_LAUNCH((KERNEL<T, decltype(shape)::kPack, P>), GRID, dim3(kWarp, warps), \
                                    shared, stream, a, rows);                                         \
                      });                                                                             \
    return static_cast<int>(cudaGetLastError());                                                      \
  } while (0)

template <class T> int norm_forward(const NormForward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(norm_forward, norm_grid(rows, a.width, P, warps), a.x, a.residual, a.weight, a.bias, a.out,
                   a.total);
}

template <class T>
int norm_backward(const NormBackward<T>& a, int64_t rows, int64_t slices, float* partial, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kWarp, kSumWarps);
  const bool packs =
      takes_packs<T>(a.width, {a.grad, a.grad_sum, a.total, a.weight, a.grad_x, a.grad_residual});
  with_row_shape<T>(a.width, packs, [&](auto shape, int warps, size_t) {
    using Shape = decltype(shape);
    constexpr int P = Shape::kPacks;
    if constexpr (P > 0) {
      if (partial) {
        DSMM_LAUNCH((norm_backward_with_sums<T, N, P>), dim3(static_cast<unsigned>(slices)), block, 0, stream,
                    a, rows, partial);
        return;
      }
    }
    DSMM_LAUNCH((norm_backward<T, Shape::kPack, P>), norm_grid(rows, a.width, P, warps), dim3(kWarp, warps),
                0, stream, a, rows);
    if (partial)
      DSMM_LAUNCH((norm_parameter_sums<T, Shape::kPack>), columns_grid(a.width, Shape::kPack, slices), block,
                  0, stream, a, rows, partial);
  });
  return static_cast<int>(cudaGetLastError());
}

template <class T> int gelu_forward(const GeluForward<T>& a, int64_t rows, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kWarp, kSumWarps);
  const int64_t slices = row_slices(rows, kRowsAhead);
  if (takes_packs<T>(a.width, {a.x, a.bias, a.out}))
    DSMM_LAUNCH((gelu_forward<T, N>), columns_grid(a.width, N, slices), block, 0, stream, a, rows);
  else
    DSMM_LAUNCH((gelu_forward<T, 1>), columns_grid(a.width, 1, slices), block, 0, stream, a, rows);
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int gelu_backward(const GeluBackward<T>& a, int64_t rows, int64_t slices, float* partial, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kWarp, kSumWarps);
  const bool packs = takes_packs<T>(a.width, {a.grad, a.x, a.bias, a.grad_x});
  const dim3 grid = columns_grid(a.width, packs ? N : 1, partial ? slices : row_slices(rows));
  if (packs && partial)
    DSMM_LAUNCH((gelu_backward<T, N, true>), grid, block, 0, stream, a, rows, partial);
  else if (packs)
    DSMM_LAUNCH((gelu_backward<T, N, false>), grid, block, 0, stream, a, rows, partial);
  else if (partial)
    DSMM_LAUNCH((gelu_backward<T, 1, true>), grid, block, 0, stream, a, rows, partial);
  else
    DSMM_LAUNCH((gelu_backward<T, 1, false>), grid, block, 0, stream, a, rows, partial);
  return static_cast<int>(cudaGetLastError());
}

template <int A> struct ActivationNumber {
  static constexpr int kNumber = A;
};

// launch(ActivationNumber)
template <class Launch> void with_activation(Activation activation, Launch launch) {
  if (activation == Activation::gelu)
    launch(ActivationNumber<(int)Activation::gelu>{});
  else if (activation == Activation::gelu_tanh)
    launch(ActivationNumber<(int)Activation::gelu_tanh>{});
  else
    launch(ActivationNumber<(int)Activation::silu>{});
}

template <class T> int gated_forward(const Gated<T>& a, T* out, int64_t rows, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kWarp, kSumWarps);
  const bool packs = takes_packs<T>(a.width, {a.x, out});
  const dim3 grid = columns_grid(a.width, packs ? N : 1, row_slices(rows));
  with_activation(a.activation, [&](auto activation) {
    constexpr int A = decltype(activation)::kNumber;
    if (packs)
      DSMM_LAUNCH((gated_forward<T, N, A>), grid, block, 0, stream, a, out, rows);
    else
      DSMM_LAUNCH((gated_forward<T, 1, A>), grid, block, 0, stream, a, out, rows);
  });
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int gated_backward(const Gated<T>& a, const T* grad, T* grad_x, int64_t rows, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kWarp, kSumWarps);
  const bool packs = takes_packs<T>(a.width, {a.x, grad, grad_x});
  const dim3 grid = columns_grid(a.width, packs ? N : 1, row_slices(rows));
  with_activation(a.activation, [&](auto activation) {
    constexpr int A = decltype(activation)::kNumber;
    if (packs)
      DSMM_LAUNCH((gated_backward<T, N, A>), grid, block, 0, stream, a, grad, grad_x, rows);
    else
      DSMM_LAUNCH((gated_backward<T, 1, A>), grid, block, 0, stream, a, grad, grad_x, rows);
  });
  return static_cast<int>(cudaGetLastError());
}

template <class T> int rotary(const Rotary<T>& a, int64_t rows, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kWarp, kSumWarps);
  const bool packs = a.half % N == 0 && takes_packs<T>(a.width, {a.x, a.table, a.out});
  const dim3 grid = columns_grid(a.width, packs ? N : 1, row_slices(rows));
  if (packs)
    DSMM_LAUNCH((rotary<T, N>), grid, block, 0, stream, a, rows);
  else
    DSMM_LAUNCH((rotary<T, 1>), grid, block, 0, stream, a, rows);
  return static_cast<int>(cudaGetLastError());
}

template <class T> int softmax_forward(const SoftmaxForward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(softmax_forward, row_grid(rows, warps), a.scores, a.out, a.probs);
}

template <class T> int softmax_backward(const SoftmaxBackward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_ROWS(softmax_backward, row_grid(rows, warps), a.grad, a.probs, a.grad_scores);
}

template <class T> int cross_entropy(const CrossEntropy<T>& a, int64_t rows, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kCrossEntropyThreads);
  // Few rows rather have a block each, so that all of the device works.
  const int rows_of_block = rows < kRowsToShare ? 1 : 4;
  const dim3 grid(static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block));
  const bool packs = takes_packs<T>(a.width, {a.logits, a.bias});
  if (packs && rows_of_block == 4)
    DSMM_LAUNCH((cross_entropy<T, N, 4>), grid, block, 0, stream, a, rows);
  else if (packs)
    DSMM_LAUNCH((cross_entropy<T, N, 1>), grid, block, 0, stream, a, rows);
  else if (rows_of_block == 4)
    DSMM_LAUNCH((cross_entropy<T, 1, 4>), grid, block, 0, stream, a, rows);
  else
    DSMM_LAUNCH((cross_entropy<T, 1, 1>), grid, block, 0, stream, a, rows);
  return static_cast<int>(cudaGetLastError());
}

template <class T> int dropout(const DropoutRows<T>& a, int64_t rows, void* stream) {
  const dim3 grid = row_grid(rows, kWarpsPerBlock), block(kWarp, kWarpsPerBlock);
  if (takes_packs<T>(a.width, {a.x, a.out}))
    DSMM_LAUNCH((dropout_rows<T, 16 / sizeof(T)>), grid, block, 0, stream, a, rows);
  else
    DSMM_LAUNCH((dropout_rows<T, 1>), grid, block, 0, stream, a, rows);
  return static_cast<int>(cudaGetLastError());
}

#define DSMM_INSTANTIATE(T)                                                            \
  template int norm_forward(const NormForward<T>&, int64_t, void*);                    \
  template int norm_backward(const NormBackward<T>&, int64_t, int64_t, float*, void*); \
  template int gelu_forward(const GeluForward<T>&, int64_t, void*);                    \
  template int gelu_backward(const GeluBackward<T>&, int64_t, int64_t, float*, void*); \
  template int gated_forward(const Gated<T>&, T*, int64_t, void*);                     \
  template int gated_backward(const Gated<T>&, const T*, T*, int64_t, void*);          \
  template int rotary(const Rotary<T>&, int64_t, void*);                               \
  template int softmax_forward(const SoftmaxForward<T>&, int64_t, void*);              \
  template int softmax_backward(const SoftmaxBackward<T>&, int64_t, void*);            \
  template int cross_entropy(const CrossEntropy<T>&, int64_t, void*);                  \
  template int dropout(const DropoutRows<T>&, int64_t, void*);
DSMM_INSTANTIATE(float)
DSMM_INSTANTIATE(fp16)
DSMM_INSTANTIATE(bf16)

}  // namespace dsmm::cuda
