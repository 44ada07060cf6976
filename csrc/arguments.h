// What the kernels of every device take: plain structs of pointers to row-major matrices.
#pragma once
#ifdef __CUDACC_RTC__  // NVRTC has no standard headers
using int32_t = int;
using uint32_t = unsigned int;
using uint16_t = unsigned short;
using int64_t = long long;
#else
#include <cstdint>
#endif

namespace dsmm {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};  // CUDA only

// Dropout of rows (ds_minimodel/ops/dropout.py). keys == nullptr: no dropout.
struct Dropout {
  const int32_t* keys;  // one for each row
  uint32_t threshold;   // an element is kept if its hash is at least this
  float scale;          // 1 / (1 - p)
};

template <class T> struct NormForward {
  const T *x, *residual;       // residual may be nullptr
  const float *weight, *bias;  // bias may be nullptr
  T *out, *total;              // total: residual + dropout(x), nullptr where that is x itself
  float *mean, *rstd;
  Dropout dropout;
  int64_t width;
  float eps;
  bool rms;  // by the root of the mean square, without a mean
  // Write total past the caches: it is read in the backward pass only. Rows must be whole vectors,
  // and total aligned to them.
  bool streams_total;
  bool narrow;  // CUDA: weight and bias are of T
};

template <class T> struct NormBackward {
  const T *grad, *grad_sum, *total;  // grad_sum: of the sum itself, may be nullptr
  const float *weight, *mean, *rstd;
  T *grad_x, *grad_residual;  // either may be nullptr
  Dropout dropout;
  int64_t width;
  bool rms, narrow;
};

template <class T> struct GeluForward {
  const T* x;
  const float* bias;
  T* out;
  int64_t width;
  bool narrow;
};

template <class T> struct GeluBackward {
  const T *grad, *x;
  const float* bias;
  T* grad_x;
  int64_t width;
  bool narrow;
};

enum class Activation : int64_t {
  gelu,
  gelu_tanh,
  silu
};  // ACTIVATIONS of ops/gated.py; a test compares the two

template <class T> struct Gated {
  const T* x;     // rows of 2 * width: what is activated, and what multiplies it
  int64_t width;  // of the result
  Activation activation;
};

template <class T> struct Rotary {
  const T* x;
  const float* table;        // of each position `half` cosines, then as many sines
  const int64_t* positions;  // of each row, nullptr: 0, 1, 2 …; they begin again after `period` rows
  T* out;
  int64_t width, heads, half, period, known;  // known: positions that the table has
  float direction;  // -1 turns back
};

template <class T> struct SoftmaxForward {
  const T* scores;
  const int32_t* lengths;  // keys of each sample, nullptr: all
  T *out, *probs;          // probs: before dropout, nullptr where not wanted
  Dropout dropout;
  int64_t width, rows_per_sample;
  float scale;
};

template <class T> struct SoftmaxBackward {
  const T *grad, *probs;
  const int32_t* lengths;
  T* grad_scores;
  Dropout dropout;
  int64_t width, rows_per_sample;
  float scale;
};

template <class T> struct CrossEntropy {
  T* logits;  // without bias; becomes d loss / d logits if needs_grad
  const float* bias;       // nullptr: none
  const int64_t* targets;  // kIgnored: the row counts nothing
  float* losses;
  int64_t width;
  bool needs_grad, narrow;
};
constexpr int64_t kIgnored = -100;  // IGNORED of common/vocabulary.py; a test compares the two

// Heads side by side in the rows of B samples: row r of head h of a sample starts at r * pitch + h * width;
// so do the results and gradients. heads / key_heads of the queries' in a row share one of the keys'. CPU
// only.
template <class T> struct Attention {
  const T *q, *k, *v;
  int64_t query_pitch, key_pitch, out_pitch;
  int64_t heads, key_heads, queries, keys, width;
  const int32_t* lengths;    // keys of each sample, nullptr: all
  const int64_t* positions;  // of the queries, nullptr: they see all keys
  int64_t positions_pitch;   // between samples
  int64_t before, after;     // keys that a query sees beside the one at its position
  Dropout dropout;           // keys: one for each head and query
  float scale;
};

template <class T> struct AttentionGradients {
  const T* out;
  T *q, *k, *v;
};

template <class T> struct DropoutRows {
  const T* x;
  T* out;
  Dropout dropout;
  int64_t width;
};

}  // namespace dsmm
