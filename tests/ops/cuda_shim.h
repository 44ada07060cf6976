// Runs CUDA kernels on the CPU, for tests of their arithmetic: every CUDA thread is a fiber, blocks run
// one after another. Included before the sources, with -DDSMM_CPU_SHIM. DSMM_SHIM_ORDER=reverse runs
// the threads of a block backwards, so that a missing barrier shows. It models neither the weak memory
// order, nor bank conflicts, nor occupancy.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // one block at a time
#define DSMM_DYNAMIC_SHARED(TYPE, NAME) TYPE* NAME = reinterpret_cast<TYPE*>(shim::dynamic_shared.data())
#define DSMM_LAUNCH(KERNEL, GRID, BLOCK, SHARED, STREAM, ...) \
  shim::launch(GRID, BLOCK, SHARED, [=] { KERNEL(__VA_ARGS__); })

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace shim {

constexpr size_t kStackBytes = 64 << 10;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  dim3 thread;
  unsigned linear = 0;
  bool done = false;
};

// A meeting point: wait() returns once all `live` threads of the group have come.
struct Barrier {
  unsigned live = 0, arrived = 0, generation = 0;
  void release_if_full() {
    if (live && arrived == live) arrived = 0, ++generation;
  }
};

inline std::vector<char> dynamic_shared;
inline std::vector<Fiber> fibers;
inline std::vector<Barrier> warps;
inline std::vector<float> exchanged;
inline Barrier block;
inline dim3 block_index, block_size, grid_size;
inline ucontext_t scheduler;
inline Fiber* current = nullptr;
inline bool progress = false;
inline std::function<void()> body;

inline void wait(Barrier& barrier) {
  progress = true;
  const unsigned generation = barrier.generation;
  ++barrier.arrived;
  barrier.release_if_full();
  while (barrier.generation == generation) swapcontext(&current->context, &scheduler);
  progress = true;
}

inline void run_fiber() {
  body();
  Fiber* self = current;
  self->done = progress = true;
  Barrier& warp = warps[self->linear / 32];
  for (Barrier* barrier : {&warp, &block}) --barrier->live, barrier->release_if_full();
  swapcontext(&self->context, &scheduler);
}

inline void run_block(bool reverse) {
  const unsigned threads = fibers.size();
  block = {threads, 0, 0};
  warps.assign((threads + 31) / 32, {});
  exchanged.assign(threads, NAN);
  std::fill(dynamic_shared.begin(), dynamic_shared.end(), '\xff');  // shared memory starts as nan
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    ++warps[i / 32].live;
    fiber.linear = i;
    fiber.thread = dim3(i % block_size.x, i / block_size.x);
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, run_fiber, 0);
  }
  while (block.live) {
    progress = false;
    for (unsigned i = 0; i < threads; ++i) {
      current = &fibers[reverse ? threads - 1 - i : i];
      if (!current->done) swapcontext(&scheduler, &current->context);
    }
    if (!progress) std::fprintf(stderr, "shim: the threads of a block wait for each other\n"), std::abort();
  }
}

inline void launch(dim3 grid, dim3 block_dim, size_t shared_bytes, std::function<void()> kernel) {
  const char* order = std::getenv("DSMM_SHIM_ORDER");
  block_size = block_dim;
  grid_size = grid;
  body = std::move(kernel);
  dynamic_shared.resize(shared_bytes);
  fibers = std::vector<Fiber>(block_dim.x * block_dim.y);
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      block_index = dim3(x, y);
      run_block(order && std::strcmp(order, "reverse") == 0);
    }
}

}  // namespace shim

#define threadIdx (shim::current->thread)
#define blockIdx (shim::block_index)
#define blockDim (shim::block_size)
#define gridDim (shim::grid_size)

inline void __syncthreads() { shim::wait(shim::block); }

inline float __shfl_xor_sync(unsigned, float value, int step) {
  const unsigned self = shim::current->linear;
  shim::exchanged[self] = value;
  shim::wait(shim::warps[self / 32]);
  const float other = shim::exchanged[self ^ step];
  shim::wait(shim::warps[self / 32]);  // before the next exchange overwrites it
  return other;
}

template <class To, class From> inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline float __int_as_float(int bits) { return bits_as<float>(bits); }
inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }

using __half = _Float16;
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half __float2half_rn(float x) { return static_cast<__half>(x); }
inline unsigned short __half_as_ushort(__half x) { return bits_as<unsigned short>(x); }
inline __half __ushort_as_half(unsigned short bits) { return bits_as<__half>(bits); }

inline void store_words(void* to, unsigned a, unsigned b, unsigned c, unsigned d) {
  const unsigned words[] = {a, b, c, d};
  std::memcpy(to, words, sizeof words);
}

inline float power_of_2(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.f / x; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline int cudaGetLastError() { return 0; }
