// Launches one of the kernels as launch.cu does, without torch, and compares what comes out with a reference in
// double:
//   driver rows width [option …]     compiled with -DDTYPE=fp16 and -DKERNEL_norm_forward and so on
// Rows may be any number for `stream`, which moves `width` packs of 16 bytes: the most that memory gives.
#include "launch_templates.cu"  // launch.cu without its instances (simulate.py)

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace dsmm;
using T = DTYPE;

double value(float x) { return x; }
double value(fp16 x) { return __half2float(__half(__half_raw{x.bits})); }
double value(bf16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}
template <class U> U nearest(double x) {
  const float narrow = (float)x;
  if constexpr (std::is_same_v<U, fp16>) return {__half_raw(__float2half(narrow)).x};
  else if constexpr (std::is_same_v<U, bf16>) {
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  } else return narrow;
}

template <class U> struct Array {  // on the host and on the device
  std::vector<U> host;
  U* device = nullptr;
  explicit Array(size_t n) : host(n) { cudaMalloc((void**)&device, (n + 1) * sizeof(U)); }
  // Uniform around `mean`.
  Array(size_t n, double mean, double spread) : Array(n) {
    static uint64_t state = 1;
    for (U& x : host) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      x = nearest<U>(mean + spread * (int32_t)(state >> 32) / 2147483648.0);
    }
    push();
  }
  void push() { cudaMemcpy(device, host.data(), host.size() * sizeof(U), cudaMemcpyHostToDevice); }
  void pull() { cudaMemcpy(host.data(), device, host.size() * sizeof(U), cudaMemcpyDeviceToHost); }
  double operator[](size_t i) const { return value(host[i]); }
};
using Matrix = Array<T>;
using Vector = Array<float>;

// Of one rounding to a T, and of what fp32 and the approximate exponential lose before it.
constexpr double kRounding = std::is_same_v<T, fp16> ? 6e-4 : std::is_same_v<T, bf16> ? 4.5e-3 : 1e-5;
long long num_compared = 0, num_wrong = 0;
double worst = 0;  // error, of what is allowed
void check(double got, double wanted, double absolute, double relative = kRounding) {
  const double error = std::fabs(got - wanted) / (absolute + relative * std::fabs(wanted));
  ++num_compared;
  if (!(error <= 1) && ++num_wrong <= 8) std::printf("WRONG at %lld: %g, not %g\n", num_compared, got, wanted);
  if (!(error <= worst)) worst = error;
}
// Sums of columns that a kernel leaves in slices.
void check_sums(Vector& partial, const std::vector<double>& sums, const std::vector<double>& magnitudes) {
  partial.pull();
  for (size_t i = 0; i < sums.size(); ++i) {
    double got = 0;
    for (size_t at = i; at < partial.host.size(); at += sums.size()) got += partial[at];
    check(got, sums[i], 1e-5 * magnitudes[i] + 1e-6);
  }
}

constexpr double kDropped = 0.1;
const uint32_t kThreshold = (uint32_t)(kDropped * 4294967296.0);
struct Keys : Array<int32_t> {
  explicit Keys(size_t rows) : Array(rows) {
    for (size_t r = 0; r < rows; ++r) host[r] = (int32_t)(r * 2654435761u + 17u);
    push();
  }
  Dropout dropout() const { return {device, kThreshold, (float)(1 / (1 - kDropped))}; }
  double kept(int64_t row, int64_t column) const {  // 0 or the scale
    uint32_t x = (uint32_t)host[row] + (uint32_t)(column + 1) * 0x9E3779B9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (x ^ x >> 16) >= kThreshold ? 1 / (1 - kDropped) : 0;
  }
};
double cdf(double x) { return .5 * std::erfc(-x / std::sqrt(2.)); }
double density(double x) { return std::exp(-x * x / 2) * 0.3989422804014327; }

// Four packs of each matrix that is read are under way at once.
template <int R, int W> __global__ void __launch_bounds__(256) stream(uint4* memory, int64_t packs) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += 4 * stride) {
    uint4 held[4][R];
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int m = 0; m < R; ++m)
        if (i + k * stride < packs) held[k][m] = memory[m * packs + i + k * stride];
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int m = 0; m < W; ++m) {
        uint4 word = held[k][m % R];
#pragma unroll
        for (int other = 0; other < R; ++other) word.x ^= held[k][other].y;
        if (i + k * stride < packs) memory[(R + m) * packs + i + k * stride] = word;
      }
  }
}

int run(const int64_t rows, const int64_t width, [[maybe_unused]] bool (*is)(const char*)) {
  [[maybe_unused]] const int64_t all = rows * width;
#ifdef KERNEL_stream
  Array<uint4> memory(width * 5);
  const unsigned blocks = (unsigned)((width + 1023) / 1024);
  if (is("1:1")) stream<1, 1><<<blocks, 256>>>(memory.device, width);
  if (is("1:2")) stream<1, 2><<<blocks, 256>>>(memory.device, width);
  if (is("2:1")) stream<2, 1><<<blocks, 256>>>(memory.device, width);
  if (is("2:2")) stream<2, 2><<<blocks, 256>>>(memory.device, width);
  if (is("3:1")) stream<3, 1><<<blocks, 256>>>(memory.device, width);
  if (is("3:2")) stream<3, 2><<<blocks, 256>>>(memory.device, width);
  return (int)cudaGetLastError();
#endif
#ifdef KERNEL_norm_forward
  const bool rms = is("rms");  // of residual + x, without dropout and bias
  Matrix x(all, 0, 2), residual(all, 0, 2), out(all), total(all);
  Vector weight(width, 1, .5), bias(width, 0, .5), mean(rows), rstd(rows);
  const Keys keys(rows);
  const int launched = cuda::norm_forward<T>(
      {x.device, residual.device, weight.device, rms ? nullptr : bias.device, out.device, total.device, mean.device,
       rstd.device, rms ? Dropout{} : keys.dropout(), width, 1e-5f, rms, false},
      rows, nullptr);
  out.pull(), total.pull(), mean.pull(), rstd.pull();
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) {
      check(total[i], residual[i] + (rms ? 1 : keys.kept(r, i % width)) * x[i], 1e-6);
      sum += total[i];
    }
    const double center = rms ? 0 : sum / width;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) squares += (total[i] - center) * (total[i] - center);
    const double scale = 1 / std::sqrt(squares / width + 1e-5);
    check(mean[r], center, 1e-5, 1e-5), check(rstd[r], scale, 0, 1e-5);
    for (int64_t i = 0; i < width; ++i)
      check(out[r * width + i], (total[r * width + i] - center) * scale * weight[i] + (rms ? 0 : bias[i]), 1e-5);
  }
  return launched;
#endif
#ifdef KERNEL_norm_backward
  const bool rms = is("rms");  // with a gradient of the sum, without dropout
  Matrix grad(all, 0, 1), grad_sum(all, 0, 1), total(all, 0, 2), grad_x(all), grad_residual(all);
  Vector weight(width, 1, .5), mean(rows), rstd(rows);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) sum += total[i], squares += total[i] * total[i];
    mean.host[r] = rms ? 0 : (float)(sum / width);
    rstd.host[r] = (float)(1 / std::sqrt(squares / width - mean[r] * mean[r] + 1e-5));
  }
  mean.push(), rstd.push();
  const Keys keys(rows);
  const int64_t slices = is("frozen") ? 0 : cuda::sum_slices(rows, width);
  Vector partial(slices * 2 * width);
  const int launched = cuda::norm_backward<T>(
      {grad.device, rms ? grad_sum.device : nullptr, total.device, weight.device, mean.device, rstd.device,
       rms ? nullptr : grad_x.device, grad_residual.device, rms ? Dropout{} : keys.dropout(), width, rms},
      rows, slices, slices ? partial.device : nullptr, nullptr);
  grad_x.pull(), grad_residual.pull();
  std::vector<double> sums(2 * width), magnitudes(2 * width), normalised(width);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, with = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double g = grad[r * width + i], n = normalised[i] = (total[r * width + i] - mean[r]) * rstd[r];
      sum += g * weight[i], with += g * weight[i] * n;
      sums[i] += g * n, sums[width + i] += g;
      magnitudes[i] += std::fabs(g * n), magnitudes[width + i] += std::fabs(g);
    }
    if (rms) sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * width + i;
      const double wanted = (grad[at] * weight[i] - sum / width - normalised[i] * with / width) * rstd[r] +
                            (rms ? grad_sum[at] : 0);
      check(grad_residual[at], wanted, 1e-5);
      if (!rms) check(grad_x[at], wanted * keys.kept(r, i), 1e-5);
    }
  }
  if (slices) check_sums(partial, sums, magnitudes);
  return launched;
#endif
#if defined(KERNEL_softmax_forward) || defined(KERNEL_softmax_backward)
  constexpr int64_t kRowsOfSample = 64;
  Array<int32_t> lengths(rows / kRowsOfSample + 1);
  for (size_t b = 0; b < lengths.host.size(); ++b)
    lengths.host[b] = (int32_t)(is("padded") ? width / 4 + (b * 97) % (width - width / 4) : width);
  lengths.push();
  const Keys keys(rows);
  Matrix scores(all, 0, 8), probs(all), out(all);
  const float scale = .125f;
  std::vector<double> exact(all);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    const int64_t first = r * width, end = first + lengths.host[r / kRowsOfSample];
    for (int64_t i = first; i < end; ++i) sum += exact[i] = std::exp(scale * scores[i]);
    for (int64_t i = first; i < end; ++i) exact[i] /= sum;
  }
#ifdef KERNEL_softmax_forward
  const int launched = cuda::softmax_forward<T>({scores.device, lengths.device, out.device, probs.device, keys.dropout(),
                                                 width, kRowsOfSample, scale},
                                                rows, nullptr);
  out.pull(), probs.pull();
  for (int64_t i = 0; i < all; ++i) {
    check(probs[i], exact[i], 1e-7);
    check(out[i], keys.kept(i / width, i % width) * probs[i], 1e-7);
  }
#else
  Matrix grad(all, 0, 1);
  for (int64_t i = 0; i < all; ++i) probs.host[i] = nearest<T>(exact[i]);
  probs.push();
  const int launched = cuda::softmax_backward<T>(
      {grad.device, probs.device, lengths.device, out.device, keys.dropout(), width, kRowsOfSample, scale}, rows,
      nullptr);
  out.pull();
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += keys.kept(r, i) * grad[r * width + i] * probs[r * width + i];
    for (int64_t i = 0; i < width; ++i)
      check(out[r * width + i],
            scale * probs[r * width + i] * (keys.kept(r, i) * grad[r * width + i] - sum), 1e-7);
  }
#endif
  return launched;
#endif
#if defined(KERNEL_gelu_forward) || defined(KERNEL_gelu_backward)
  Matrix x(all, 0, 3), out(all);
  Vector bias(width, 0, 1);
#ifdef KERNEL_gelu_forward
  const int launched = cuda::gelu_forward<T>({x.device, bias.device, out.device, width}, rows, nullptr);
  out.pull();
  for (int64_t i = 0; i < all; ++i) {
    const double v = x[i] + bias[i % width];
    check(out[i], v * cdf(v), 2e-6);
  }
#else
  Matrix grad(all, 0, 1);
  const int64_t slices = is("frozen") ? 0 : cuda::sum_slices(rows, width);
  Vector partial(slices * width);
  const int launched = cuda::gelu_backward<T>({grad.device, x.device, bias.device, out.device, width}, rows, slices,
                                              slices ? partial.device : nullptr, nullptr);
  out.pull();
  std::vector<double> sums(width), magnitudes(width);
  for (int64_t i = 0; i < all; ++i) {
    const double v = x[i] + bias[i % width], wanted = grad[i] * (cdf(v) + v * density(v));
    check(out[i], wanted, 2e-6);
    sums[i % width] += wanted, magnitudes[i % width] += std::fabs(wanted);
  }
  if (slices) check_sums(partial, sums, magnitudes);
#endif
  return launched;
#endif
#if defined(KERNEL_gated_forward) || defined(KERNEL_gated_backward)
  const Activation activation =
      is("silu") ? Activation::silu : is("gelu_tanh") ? Activation::gelu_tanh : Activation::gelu;
  auto share = [&](double v) {  // of the activation in its argument
    if (activation == Activation::gelu) return cdf(v);
    const double u = activation == Activation::silu ? v : 1.5957691216057308 * (v + .044715 * v * v * v);
    return 1 / (1 + std::exp(-u));
  };
  Matrix x(2 * all, 0, 3);
#ifdef KERNEL_gated_forward
  Matrix out(all);
  const int launched = cuda::gated_forward<T>({x.device, width, activation}, out.device, rows, nullptr);
  out.pull();
  for (int64_t i = 0; i < all; ++i) {
    const int64_t at = i / width * 2 * width + i % width;
    check(out[i], x[at] * share(x[at]) * x[at + width], 3e-6);
  }
#else
  Matrix grad(all, 0, 1), grad_x(2 * all);
  const int launched =
      cuda::gated_backward<T>({x.device, width, activation}, grad.device, grad_x.device, rows, nullptr);
  grad_x.pull();
  for (int64_t i = 0; i < all; ++i) {
    const int64_t at = i / width * 2 * width + i % width;
    const double v = x[at], step = 1e-4;
    check(grad_x[at + width], grad[i] * v * share(v), 3e-6);
    const double slope = ((v + step) * share(v + step) - (v - step) * share(v - step)) / (2 * step);
    check(grad_x[at], grad[i] * x[at + width] * slope, 4e-6);
  }
#endif
  return launched;
#endif
#ifdef KERNEL_rotary
  const int64_t half = 32, heads = width / (2 * half), period = 128;
  Matrix x(all, 0, 2), out(all);
  Vector table(period * 2 * half, 0, 1);
  const int launched =
      cuda::rotary<T>({x.device, table.device, nullptr, out.device, width, heads, half, period, period, 1.f}, rows,
                      nullptr);
  out.pull();
  for (int64_t i = 0; i < all; ++i) {
    const int64_t in_head = i % width % (2 * half), place = i / width % period * 2 * half;
    const double cosine = table[place + in_head % half], sine = table[place + half + in_head % half];
    check(out[i], in_head < half ? x[i] * cosine - x[i + half] * sine : x[i] * cosine + x[i - half] * sine, 1e-6);
  }
  return launched;
#endif
#ifdef KERNEL_cross_entropy
  Matrix logits(all, 0, 6);
  Vector bias(width, 0, 1), losses(rows);
  Array<int64_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets.host[r] = r % 7 == 3 ? kIgnored : r * 7919 % width;
  targets.push();
  const Matrix before = logits;
  const CrossEntropy<T> a{logits.device, bias.device, targets.device, losses.device, width, true};
  int launched = 0;
  if (is("4")) {  // as many rows as launch.cu gives a block where there are enough
    cuda::cross_entropy<T, 16 / sizeof(T), 4><<<(unsigned)(rows + 3) / 4, cuda::kCrossEntropyThreads>>>(a, rows);
    launched = (int)cudaGetLastError();
  } else {
    launched = cuda::cross_entropy<T>(a, rows, nullptr);
  }
  logits.pull(), losses.pull();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t target = targets.host[r];
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += std::exp(before[r * width + i] + bias[i]);
    check(losses[r], target < 0 ? 0 : std::log(sum) - before[r * width + target] - bias[target], 1e-4, 1e-5);
    for (int64_t i = 0; i < width; ++i) {
      const double prob = std::exp(before[r * width + i] + bias[i]) / sum;
      check(logits[r * width + i], target < 0 ? 0 : prob - (i == target), 1e-7);
    }
  }
  return launched;
#endif
#ifdef KERNEL_dropout
  Matrix x(all, 0, 3), out(all);
  const Keys keys(rows);
  const int launched = cuda::dropout<T>({x.device, out.device, keys.dropout(), width}, rows, nullptr);
  out.pull();
  for (int64_t i = 0; i < all; ++i) check(out[i], keys.kept(i / width, i % width) * x[i], 1e-7);
  return launched;
#endif
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  static char** options = arguments + 3;
  const int launched = run(std::atoll(arguments[1]), std::atoll(arguments[2]), [](const char* name) {
    for (char** option = options; *option; ++option)
      if (!std::strcmp(*option, name)) return true;
    return false;
  });
  cudaDeviceSynchronize();
  std::printf("RESULT launch %d compared %lld wrong %lld worst %.3f\n", launched, num_compared, num_wrong, worst);
  return launched || num_wrong;
}
