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
constexpr int64_t kWarpColumns = 1024;  // that the registers of a warp hold

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

// A row of packs of N, P of them in the registers of a lane (0: none). B: its block's, not a warp's.
template <int N, int P, bool B = false> struct RowShape {
  static constexpr int kPack = N, kPacks = P;
  [[maybe_unused]] static constexpr bool kOfBlock = B;
};

// launch(RowShape) for rows that registers hold, in packs and up to 1024 wide; else otherwise().
template <class T, class Launch, class Otherwise>
void with_row_in_registers(int64_t width, bool takes_packs, Launch launch, Otherwise otherwise) {
  constexpr int N = 16 / sizeof(T), kQuarter = 8 / N;  // packs of a lane for each 256 columns
  switch (takes_packs && width <= kWarpColumns ? (width + 255) / 256 : 0) {
    case 1: return launch(RowShape<N, kQuarter>{});
    case 2: return launch(RowShape<N, 2 * kQuarter>{});
    case 3: return launch(RowShape<N, 3 * kQuarter>{});
    case 4: return launch(RowShape<N, 4 * kQuarter>{});
    default: return otherwise();
  }
}

// launch(shape, warps of a block, bytes of shared memory) for rows that the shared memory of their warps holds.
template <class Shape, class Launch> void in_shared_memory(int64_t width, Shape shape, Launch launch) {
  constexpr int64_t kLaneColumns = kWarp * Shape::kPack;
  const int64_t row_floats = (width + kLaneColumns - 1) / kLaneColumns * kLaneColumns;
  const int64_t fitting = kMaxWidth / row_floats;
  const int warps = static_cast<int>(fitting < kWarpsPerBlock ? fitting : kWarpsPerBlock);
  launch(shape, warps, warps * row_floats * sizeof(float));
}

}  // namespace

#ifdef DSMM_CPU_SHIM
bool has_code_for(int) { return true; }
const char* error_text(int) { return "none in the shim"; }
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

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

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

// launch(shape, grid, warps of a block, bytes of shared memory) for the rows of a norm. Those in the registers of a
// warp are shared out among as many warps as with sums, few enough that some rows are read while others are written;
// wider ones have a block each, and those that take no packs a warp.
template <class T, class Launch>
static void with_norm_shape(int64_t rows, int64_t width, bool packs, bool shares_memory, Launch launch) {
  constexpr int N = 16 / sizeof(T);
  auto on_warps = [&](auto shape) {
    const int64_t blocks = sum_slices(rows, width) * kSumWarps / kWarpsPerBlock;
    launch(shape, dim3(static_cast<unsigned>(blocks)), kWarpsPerBlock, size_t{0});
  };
  with_row_in_registers<T>(width, packs, on_warps, [&] {
    if (packs && width <= kMaxWidth)
      return launch(RowShape<N, kWarpColumns / (kWarp * N), true>{}, dim3(static_cast<unsigned>(rows)),
                    static_cast<int>((width + kWarpColumns - 1) / kWarpColumns), size_t{0});
    auto of_rows = [&](auto shape, int warps, size_t shared) { launch(shape, row_grid(rows, warps), warps, shared); };
    if (!shares_memory) return of_rows(RowShape<1, 0>{}, kWarpsPerBlock, 0);
    in_shared_memory(width, RowShape<1, 0>{}, of_rows);
  });
}

template <class T> int norm_forward(const NormForward<T>& a, int64_t rows, void* stream) {
  const bool packs = takes_packs<T>(a.width, {a.x, a.residual, a.weight, a.bias, a.out, a.total});
  with_norm_shape<T>(rows, a.width, packs, true, [&](auto shape, dim3 grid, int warps, size_t shared) {
    using S = decltype(shape);
    DSMM_LAUNCH((norm_forward<T, S::kPack, S::kPacks, S::kOfBlock>), grid, dim3(kWarp, warps), shared, stream, a,
                rows);
  });
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int norm_backward(const NormBackward<T>& a, int64_t rows, int64_t slices, float* partial, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kWarp, kSumWarps);
  const bool packs =
      takes_packs<T>(a.width, {a.grad, a.grad_sum, a.total, a.weight, a.grad_x, a.grad_residual});
  with_norm_shape<T>(rows, a.width, packs, false, [&](auto shape, dim3 grid, int warps, size_t) {
    using S = decltype(shape);
    if constexpr (S::kPacks > 0 && !S::kOfBlock) {
      if (partial) {
        DSMM_LAUNCH((norm_backward_with_sums<T, N, S::kPacks>), dim3(static_cast<unsigned>(slices)), block, 0,
                    stream, a, rows, partial);
        return;
      }
    }
    DSMM_LAUNCH((norm_backward<T, S::kPack, S::kPacks, S::kOfBlock>), grid, dim3(kWarp, warps), 0, stream, a,
                rows);
    if (partial)
      DSMM_LAUNCH((norm_parameter_sums<T, S::kPack>), columns_grid(a.width, S::kPack, slices), block, 0, stream,
                  a, rows, partial);
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

// KERNEL<T, N, P> for the rows of a softmax: a warp has one, in registers or in shared memory.
#define DSMM_LAUNCH_SOFTMAX(KERNEL, ...)                                                                \
  do {                                                                                                  \
    const bool packs = takes_packs<T>(a.width, {__VA_ARGS__});                                          \
    auto launch = [&](auto shape, int warps, size_t shared) {                                           \
      using S = decltype(shape);                                                                        \
      DSMM_LAUNCH((KERNEL<T, S::kPack, S::kPacks>), row_grid(rows, warps), dim3(kWarp, warps), shared,  \
                  stream, a, rows);                                                                     \
    };                                                                                                  \
    with_row_in_registers<T>(                                                                           \
        a.width, packs, [&](auto shape) { launch(shape, kWarpsPerBlock, size_t{0}); },                  \
        [&] {                                                                                           \
          packs ? in_shared_memory(a.width, RowShape<16 / sizeof(T), 0>{}, launch)                      \
                : in_shared_memory(a.width, RowShape<1, 0>{}, launch);                                  \
        });                                                                                             \
    return static_cast<int>(cudaGetLastError());                                                     \
  } while (0)

template <class T> int softmax_forward(const SoftmaxForward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_SOFTMAX(softmax_forward, a.scores, a.out, a.probs);
}

template <class T> int softmax_backward(const SoftmaxBackward<T>& a, int64_t rows, void* stream) {
  DSMM_LAUNCH_SOFTMAX(softmax_backward, a.grad, a.probs, a.grad_scores);
}

template <class T> int cross_entropy(const CrossEntropy<T>& a, int64_t rows, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 block(kCrossEntropyThreads);
  // Rows share a block, four in one, where there are enough for the two blocks of each processor.
  const int rows_of_block = rows < 4 * 2 * processors() ? 1 : 4;
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
