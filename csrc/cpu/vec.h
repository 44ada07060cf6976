// A register of float lanes, written with the compiler's vector extensions, so that one source serves
// AVX-512, AVX2 and any other machine. Vectors larger than the machine's registers would go through
// memory. Included once for each instruction set (see isa_*.cpp), inside that set's own namespace;
// nothing from the standard library may come in here, or its inline functions would be compiled for one
// instruction set and run on another.
//
// float and bfloat16 in memory, float in registers. A row is walked in whole vectors and one part
// at its end: loads of a part fill the missing lanes with zeros, stores leave memory beyond it alone.

#define DSMM_INLINE inline __attribute__((always_inline))
#define DSMM_KERNEL __attribute__((flatten))  // everything that a kernel calls is inlined into it

#if defined(DSMM_AVX512)
constexpr long kLanes = 16;
#elif defined(DSMM_AVX2)
constexpr long kLanes = 8;
#else
constexpr long kLanes = 4;
#endif
typedef float F32 __attribute__((vector_size(4 * kLanes)));
typedef int32_t I32 __attribute__((vector_size(4 * kLanes)));
typedef uint32_t U32 __attribute__((vector_size(4 * kLanes)));
typedef uint16_t U16 __attribute__((vector_size(2 * kLanes)));

struct Whole {};
struct Part {
  long lanes;
};

DSMM_INLINE F32 splat(float value) { return value - F32{}; }
DSMM_INLINE U32 splat(uint32_t value) { return value - U32{}; }
DSMM_INLINE I32 lane_numbers() {
  I32 numbers{};
  for (int32_t lane = 0; lane < kLanes; ++lane) numbers[lane] = lane;
  return numbers;
}

template <class V, class T>
DSMM_INLINE V load_raw(const T* from, Whole) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class V, class T>
DSMM_INLINE void store_raw(T* to, V value, Whole) {
  __builtin_memcpy(to, &value, sizeof value);
}

// What the compiler does not find by itself, and the same for other machines.
#ifdef DSMM_AVX512
DSMM_INLINE U32 widen_bits(U16 halves) { return (U32)_mm512_cvtepu16_epi32((__m256i)halves); }
DSMM_INLINE U16 low_halves(U32 bits) { return (U16)_mm512_cvtepi32_epi16((__m512i)bits); }
DSMM_INLINE F32 larger(F32 a, F32 b) { return (F32)_mm512_max_ps((__m512)a, (__m512)b); }
DSMM_INLINE F32 reciprocal(F32 x) {  // 14 bits, then one step of Newton
  F32 r = (F32)_mm512_rcp14_ps((__m512)x);
  return r * (2.f - x * r);
}
DSMM_INLINE __mmask16 first(Part part) { return (__mmask16)((1u << part.lanes) - 1); }
template <class V>
DSMM_INLINE V load_raw(const float* from, Part part) {
  return (V)_mm512_maskz_loadu_ps(first(part), from);
}
template <class V>
DSMM_INLINE V load_raw(const bf16* from, Part part) {
  return (V)_mm256_maskz_loadu_epi16(first(part), from);
}
DSMM_INLINE void store_raw(float* to, F32 value, Part part) {
  _mm512_mask_storeu_ps(to, first(part), (__m512)value);
}
DSMM_INLINE void store_raw(bf16* to, U16 value, Part part) {
  _mm256_mask_storeu_epi16(to, first(part), (__m256i)value);
}
DSMM_INLINE void stream_raw(float* to, F32 value) { _mm512_stream_ps(to, (__m512)value); }
DSMM_INLINE void stream_raw(bf16* to, U16 value) { _mm256_stream_si256((__m256i*)to, (__m256i)value); }
DSMM_INLINE void end_stream() { _mm_sfence(); }
#else
#ifdef DSMM_AVX2
DSMM_INLINE U16 low_halves(U32 bits) {
  __m256i pairs = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);
  return (U16)_mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0b1000));
}
DSMM_INLINE F32 larger(F32 a, F32 b) { return (F32)_mm256_max_ps((__m256)a, (__m256)b); }
#else
DSMM_INLINE U16 low_halves(U32 bits) { return __builtin_convertvector(bits, U16); }
DSMM_INLINE F32 larger(F32 a, F32 b) { return a > b ? a : b; }
#endif
DSMM_INLINE U32 widen_bits(U16 halves) { return __builtin_convertvector(halves, U32); }
DSMM_INLINE F32 reciprocal(F32 x) { return 1.f / x; }
template <class V, class T>
DSMM_INLINE V load_raw(const T* from, Part part) {
  T lanes[kLanes] = {};
  for (long i = 0; i < part.lanes; ++i) lanes[i] = from[i];
  return load_raw<V>(lanes, Whole{});
}
template <class V, class T>
DSMM_INLINE void store_raw(T* to, V value, Part part) {
  T lanes[kLanes];
  store_raw(lanes, value, Whole{});
  for (long i = 0; i < part.lanes; ++i) to[i] = lanes[i];
}
template <class T, class V>
DSMM_INLINE void stream_raw(T* to, V value) {
  store_raw(to, value, Whole{});
}
DSMM_INLINE void end_stream() {}
#endif

DSMM_INLINE F32 widen(U16 halves) { return (F32)(widen_bits(halves) << 16); }

// Round to nearest even. A nan stays one: rounding could carry its payload into the sign.
DSMM_INLINE U16 narrow(F32 value) {
  U32 bits = (U32)value;
  bits += 0x7fff + ((bits >> 16) & 1);
  bits = value == value ? bits : splat(0x7fc00000u);
  return low_halves(bits >> 16);
}

template <class P> DSMM_INLINE F32 load(const float* from, P part) { return load_raw<F32>(from, part); }
template <class P> DSMM_INLINE F32 load(const bf16* from, P part) { return widen(load_raw<U16>(from, part)); }
template <class P> DSMM_INLINE void store(float* to, F32 value, P part) { store_raw(to, value, part); }
template <class P> DSMM_INLINE void store(bf16* to, F32 value, P part) { store_raw(to, narrow(value), part); }

// A store past the caches, for what is not read again soon; to must be aligned to a whole vector. Such
// stores are not ordered with others: end_stream() comes before another thread may be told of them.
DSMM_INLINE void stream(float* to, F32 value) { stream_raw(to, value); }
DSMM_INLINE void stream(bf16* to, F32 value) { stream_raw(to, narrow(value)); }

// What a value becomes when it is stored as T and read back.
template <class T> DSMM_INLINE F32 rounded(F32 value);
template <> DSMM_INLINE F32 rounded<float>(F32 value) { return value; }
template <> DSMM_INLINE F32 rounded<bf16>(F32 value) { return widen(narrow(value)); }

// value in the lanes of the part, `other` in those beyond it.
DSMM_INLINE F32 only(F32 value, Whole, float) { return value; }
DSMM_INLINE F32 only(F32 value, Part part, float other) {
  return lane_numbers() < (int32_t)part.lanes ? value : splat(other);
}

// body(i, part) for each vector of a row of n elements that starts at i.
template <class Body>
DSMM_INLINE void for_row(long n, Body body) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

typedef float F32x8 __attribute__((vector_size(32)));
typedef float F32x4 __attribute__((vector_size(16)));
template <class Half, class V, class Combine>
DSMM_INLINE Half combine_halves(const V& vector, Combine combine) {
  // Through memory, which the compiler sees through: GCC has __builtin_shufflevector from 12 on only.
  static_assert(sizeof(V) == 2 * sizeof(Half), "");
  Half low, high;
  __builtin_memcpy(&low, &vector, sizeof low);
  __builtin_memcpy(&high, reinterpret_cast<const char*>(&vector) + sizeof low, sizeof high);
  return combine(low, high);
}
template <class V, class Combine>
DSMM_INLINE float reduce(const V& vector, Combine combine) {
  if constexpr (sizeof(V) == 64) {
    return reduce(combine_halves<F32x8>(vector, combine), combine);
  } else if constexpr (sizeof(V) == 32) {
    return reduce(combine_halves<F32x4>(vector, combine), combine);
  } else {
    return combine(combine(vector[0], vector[2]), combine(vector[1], vector[3]));
  }
}
DSMM_INLINE float sum_of(F32 v) {
  return reduce(v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}
DSMM_INLINE float largest_of(F32 v) {
  return reduce(v, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}

// The sum of body(i, part) over a row, in four chains, for one addition waits for the last.
template <class Body>
DSMM_INLINE float sum_row(long n, Body body) {
  F32 a = {}, b = {}, c = {}, d = {};
  long i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a += body(i, Whole{});
    b += body(i + kLanes, Whole{});
    c += body(i + 2 * kLanes, Whole{});
    d += body(i + 3 * kLanes, Whole{});
  }
  for (; i + kLanes <= n; i += kLanes) a += body(i, Whole{});
  if (i < n) a += body(i, Part{n - i});
  return sum_of((a + b) + (c + d));
}

// exp of x <= 88 to about 1 ulp (Cephes expf). Below -87.3 the result stays at the smallest normal
// float. larger() returns its second argument where one is nan, so that a nan passes through.
DSMM_INLINE F32 exp_of(F32 x) {
  x = larger(splat(-87.3f), x);
  const F32 magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  F32 n = (x * 1.44269504088896341f + magic) - magic;
  F32 r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F32 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + (r + 1.f);
  I32 power = (__builtin_convertvector(n, I32) + 127) << 23;
  return p * (F32)power;
}

// Distribution function of the standard normal, through the rational erf of Eigen (absolute error
// 2e-7). Cheaper than normal_of where the density is not needed.
DSMM_INLINE F32 normal_cdf(F32 x) {
  constexpr float kSaturation = 3.832506856900711f;
  F32 a = x * 0.70710678118654752f;
  a = larger(splat(-kSaturation), a);
  a = -larger(splat(-kSaturation), -a);
  F32 s = a * a;
  F32 p = splat(2.2905065861350646e-4f);
  p = p * s + 3.4082910107109506e-3f;
  p = p * s + 5.0955695062380861e-2f;
  p = p * s + 1.8520832239976145e-1f;
  p = p * s + 1.128379143519084f;
  F32 q = splat(-1.1791602954361697e-7f);
  q = q * s + 2.3547966471313185e-5f;
  q = q * s + 1.0179625278914885e-3f;
  q = q * s + 1.4070470171167667e-2f;
  q = q * s + 1.1098505178285362e-1f;
  q = q * s + 4.9746925110067538e-1f;
  q = q * s + 1.f;
  return (0.5f * a) * p * reciprocal(q) + 0.5f;
}

struct Normal {
  F32 cdf, density_sqrt_2pi;
};

// Distribution function of the standard normal, through erfc of Abramowitz and Stegun 7.1.26
// (absolute error 1.5e-7), and exp(-x^2 / 2), which comes with it.
DSMM_INLINE Normal normal_of(F32 x) {
  F32 a = x * 0.70710678118654752f;
  F32 magnitude = (F32)((U32)a & 0x7fffffffu);
  F32 e = exp_of(-(a * a));
  F32 t = reciprocal(magnitude * 0.3275911f + 1.f);
  F32 p = splat(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  F32 upper_tail = (0.5f * p) * t * e;
  return {x < 0.f ? upper_tail : 1.f - upper_tail, e};
}
