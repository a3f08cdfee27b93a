// The digest of a tensor that lies in order in the host's memory: what device/digest.py does, by the same walk.
//
// Elements of up to 32 bits are summed up in float. Where that tells of NaN, infinities, or numbers whose squares do not
// fit, it is done again in double, like that of wider elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#pragma GCC push_options
#pragma GCC optimize("O3", "associative-math", "no-signed-zeros", "no-trapping-math")
namespace digest {

constexpr int64_t kLanes = 1024;
constexpr int kCounts = 4, kSketch = 22, kColumns = 5 + kSketch, kProbe = kCounts + kColumns, kLine = kProbe + 1;
constexpr int kTogether = 4;  // chunks that are added at once
constexpr int64_t kSamples = 256;
constexpr uint32_t kHighWord = 0x9E3779B1u;

#define OP_TOOLS_INLINE inline __attribute__((always_inline))

// As Walk.packed has it.
struct Walk {
  int64_t numel, lanes, chunks, strips, is_down;
  const int64_t *lane_factors, *chunk_offsets, *chunk_counts, *chunk_factors, *strip_offsets, *strip_counts, *strip_factors;
  const double *columns, *lane_turns, *lane_places, *chunk_turns, *chunk_places, *strip_turns, *strip_places;

  explicit Walk(const int64_t* packed)
      : numel(packed[0]), lanes(packed[1]), chunks(packed[2]), strips(packed[3]), is_down(packed[4]) {
    const int64_t* next = packed + 5;
    const auto take = [&](auto*& table, int64_t count) {
      table = reinterpret_cast<std::remove_reference_t<decltype(table)>>(next);
      next += count * static_cast<int64_t>(sizeof *table / sizeof *next);
    };
    take(lane_factors, lanes), take(chunk_offsets, chunks), take(chunk_counts, chunks), take(chunk_factors, chunks);
    take(strip_offsets, strips), take(strip_counts, strips), take(strip_factors, strips);
    take(columns, 8 * lanes), take(lane_turns, 4 * lanes), take(lane_places, 2 * lanes);
    take(chunk_turns, 4 * chunks), take(chunk_places, chunks), take(strip_turns, 4 * strips), take(strip_places, strips);
  }
};

// ---- elements ------------------------------------------------------------------------------------------------------

template <typename To, typename From>
OP_TOOLS_INLINE To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <typename Element, int count>
struct VectorOf {
  typedef Element Type __attribute__((vector_size(count * sizeof(Element))));
};
template <typename Element, int count>
using Vector = typename VectorOf<Element, count>::Type;

// A register's worth of elements, of their bits, and of numbers that they are.
template <typename Raw_, typename Value_, int count_>
struct Some {
  static constexpr int count = count_;
  using Raw = Raw_;
  using Value = Value_;
  using Raws = Vector<Raw, count>;
  using Values = Vector<Value, count>;
  using Words = Vector<uint32_t, count>;
  static OP_TOOLS_INLINE Values value(Raws raws) { return __builtin_convertvector(raws, Values); }
  static OP_TOOLS_INLINE Words words(Raws raws) {
    if constexpr (sizeof(Raw) == 8) {
      const auto bits = bits_of<Vector<uint64_t, count>>(raws);
      return __builtin_convertvector(bits, Words) + __builtin_convertvector(bits >> 32, Words) * kHighWord;
    } else if constexpr (sizeof(Raw) == 4) {
      return bits_of<Words>(raws);
    } else {
      using Unsigned = std::conditional_t<sizeof(Raw) == 2, uint16_t, uint8_t>;
      const auto bits = bits_of<Vector<Unsigned, count>>(raws);
      return __builtin_convertvector(bits, Words);
    }
  }
};

template <typename Raw_>
struct Plain {
  using Raw = Raw_;
  static constexpr bool is_float = std::is_same_v<Raw, float>;
  template <typename Value, int count>
  using Of = Some<Raw, Value, count>;
};

struct BFloat16 {
  using Raw = uint16_t;
  static constexpr bool is_float = true;
  template <typename Value, int count>
  struct Of : Some<Raw, Value, count> {
    using Base = Some<Raw, Value, count>;
    static OP_TOOLS_INLINE typename Base::Values value(typename Base::Raws raws) {
      using Floats = Vector<float, count>;
      return __builtin_convertvector(bits_of<Floats>(Base::words(raws) << 16), typename Base::Values);
    }
  };
};

struct Float16 {
  using Raw = uint16_t;
  static constexpr bool is_float = true;
  template <typename Value, int count>
  struct Of : Some<Raw, Value, count> {
    using Base = Some<Raw, Value, count>;
    // The exponent is put right by a multiplication, or by a subtraction for the smallest.
    static OP_TOOLS_INLINE typename Base::Values value(typename Base::Raws raws) {
      using Floats = Vector<float, count>;
      using Words = typename Base::Words;
      const Words wide = Base::words(raws) << 16, rest = wide + wide;
      const Floats normal = bits_of<Floats>((rest >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
      const Floats tiny = bits_of<Floats>((rest >> 17) | (126u << 23)) - 0.5f;
      const Words size = rest < (1u << 27) ? bits_of<Words>(tiny) : bits_of<Words>(normal);
      return __builtin_convertvector(bits_of<Floats>((wide & 0x80000000u) | size), typename Base::Values);
    }
  };
};

// ---- sums ----------------------------------------------------------------------------------------------------------

struct Digest {
  double total = 0, square = 0, smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  std::complex<double> main[4] = {}, last[4] = {}, lead[2] = {};
  double moments[2] = {};
  uint64_t nan = 0, infinite = 0;
  uint32_t checksum = 0;
};

// By lanes, of one strip.
template <typename Value>
struct Lanes {
  static constexpr int64_t room = kLanes + 16;  // else all would share the same lines of the processor's cache
  Value turned[4][room], placed[room], sums[room], square[room], smallest[room], largest[room];
  uint32_t checksum[room];

  explicit Lanes(int64_t lanes) {
    for (auto* one : {turned[0], turned[1], turned[2], turned[3], placed, sums, square}) std::fill_n(one, lanes, 0);
    std::fill_n(smallest, lanes, std::numeric_limits<Value>::infinity());
    std::fill_n(largest, lanes, -std::numeric_limits<Value>::infinity());
    std::fill_n(checksum, lanes, 0);
  }
};

template <typename Loaded, typename Element>
OP_TOOLS_INLINE Loaded load(const Element* from) {
  Loaded loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

template <typename Stored, typename Element>
OP_TOOLS_INLINE void store(Element* to, Stored stored) {
  std::memcpy(to, &stored, sizeof stored);
}

// Chunks that are added at once, and what they count with.
template <typename Raw, typename Value>
struct Chunks {
  const Raw* elements[kTogether];
  Value weights[kTogether][5];
  uint32_t factors[kTogether];
};

// From one lane on, as many as fit into a register.
template <typename Of, int together, typename Value>
OP_TOOLS_INLINE void add_some(const Chunks<typename Of::Raw, Value>& chunks, int64_t lane, Lanes<Value>& lanes, Digest& digest) {
  using Values = typename Of::Values;
  constexpr bool is_exact = std::is_same_v<Value, double>;
  Values sums = load<Values>(lanes.sums + lane), square = load<Values>(lanes.square + lane), turned[4];
  Values placed = load<Values>(lanes.placed + lane);
  Values smallest = load<Values>(lanes.smallest + lane), largest = load<Values>(lanes.largest + lane);
  auto checksum = load<typename Of::Words>(lanes.checksum + lane);
  for (int which = 0; which < 4; ++which) turned[which] = load<Values>(lanes.turned[which] + lane);
#pragma GCC unroll 4
  for (int number = 0; number < together; ++number) {
    const auto raws = load<typename Of::Raws>(chunks.elements[number] + lane);
    const auto words = Of::words(raws);
    Values value = Of::value(raws);
    checksum += (words ^ words >> 15) * chunks.factors[number];
    if constexpr (is_exact) {
      const auto is_finite = value - value == 0, is_nan = value != value;
      for (int one = 0; one < Of::count; ++one) {
        digest.nan += is_nan[one] != 0;
        digest.infinite += is_nan[one] == 0 && is_finite[one] == 0;
      }
      smallest = (is_finite & (value < smallest)) ? value : smallest;
      largest = (is_finite & (value > largest)) ? value : largest;
      value = is_finite ? value : Values{};
    } else {
      smallest = value < smallest ? value : smallest;
      largest = value > largest ? value : largest;
    }
#pragma GCC unroll 4
    for (int which = 0; which < 4; ++which) turned[which] += value * chunks.weights[number][which];
    placed += value * chunks.weights[number][4];
    sums += value;
    square += value * value;
  }
  for (int which = 0; which < 4; ++which) store(lanes.turned[which] + lane, turned[which]);
  store(lanes.placed + lane, placed);
  store(lanes.sums + lane, sums);
  store(lanes.square + lane, square);
  store(lanes.smallest + lane, smallest);
  store(lanes.largest + lane, largest);
  store(lanes.checksum + lane, checksum);
}

// Chunks that have the same number of elements.
template <typename Kind, int size, int together, typename Value>
OP_TOOLS_INLINE void add(const typename Kind::Raw* data, const Walk& walk, int64_t chunk, int64_t count, Lanes<Value>& lanes,
                         Digest& digest) {
  Chunks<typename Kind::Raw, Value> chunks;
  for (int number = 0; number < together; ++number) {
    const double* turns = walk.chunk_turns + chunk + number;
    chunks.elements[number] = data + walk.chunk_offsets[chunk + number];
    chunks.factors[number] = static_cast<uint32_t>(walk.chunk_factors[chunk + number]);
    for (int which = 0; which < 4; ++which)
      chunks.weights[number][which] = static_cast<Value>(turns[which * walk.chunks]);
    chunks.weights[number][4] = static_cast<Value>(walk.chunk_places[chunk + number]);
  }
  constexpr int many = size / sizeof(Value);
  int64_t lane = 0;
  for (; lane + many <= count; lane += many)
    add_some<typename Kind::template Of<Value, many>, together>(chunks, lane, lanes, digest);
  for (; lane < count; ++lane) add_some<typename Kind::template Of<Value, 1>, together>(chunks, lane, lanes, digest);
}

// What the sums by lanes are in the sketch: `_sketch` of digest.py. Real and imaginary parts stand apart.
template <typename Value>
OP_TOOLS_INLINE void put_together(const Walk& walk, int64_t strip, const Lanes<Value>& lanes, Digest& digest) {
  using Complex = std::complex<double>;
  const int64_t count = walk.lanes;
  double total = 0, square = 0, first = 0, second = 0, placed = 0, main[8] = {}, last[8] = {}, lead[4] = {};
  Value smallest = std::numeric_limits<Value>::infinity(), largest = -smallest;
  uint32_t checksum = 0;
  for (int64_t lane = 0; lane < count; ++lane) {
    const double sum = lanes.sums[lane];
    total += sum, square += lanes.square[lane], placed += lanes.placed[lane];
    first += sum * walk.lane_places[lane], second += sum * walk.lane_places[count + lane];
    checksum += lanes.checksum[lane] * static_cast<uint32_t>(walk.lane_factors[lane]);
    smallest = lanes.smallest[lane] < smallest ? lanes.smallest[lane] : smallest;
    largest = lanes.largest[lane] > largest ? lanes.largest[lane] : largest;
  }
  for (int turn = 0; turn < 2; ++turn) {
    const double *real = walk.lane_turns + 2 * turn * count, *imaginary = real + count;
    for (int number = 2 * turn; number < 2 * turn + 2; ++number) {
      const double *column = walk.columns + 2 * number * count, *other = column + count;
      double main_real = 0, main_imaginary = 0, last_real = 0, last_imaginary = 0, lead_real = 0, lead_imaginary = 0;
      for (int64_t lane = 0; lane < count; ++lane) {
        const double one = lanes.turned[2 * turn][lane], two = lanes.turned[2 * turn + 1][lane], sum = lanes.sums[lane];
        const double by_real = one * real[lane] - two * imaginary[lane], by_imaginary = one * imaginary[lane] + two * real[lane];
        lead_real += by_real, lead_imaginary += by_imaginary;
        main_real += by_real * column[lane] - by_imaginary * other[lane];
        main_imaginary += by_real * other[lane] + by_imaginary * column[lane];
        last_real += sum * column[lane], last_imaginary += sum * other[lane];
      }
      lead[2 * turn] = lead_real, lead[2 * turn + 1] = lead_imaginary;
      main[2 * number] = main_real, main[2 * number + 1] = main_imaginary;
      last[2 * number] = last_real, last[2 * number + 1] = last_imaginary;
    }
  }
  const double place = walk.strip_places[strip];
  for (int number = 0; number < 4; ++number) {
    const int turn = number / 2;
    const Complex by(walk.strip_turns[2 * turn * walk.strips + strip], walk.strip_turns[(2 * turn + 1) * walk.strips + strip]);
    const Complex of_main(main[2 * number], main[2 * number + 1]), of_last(last[2 * number], last[2 * number + 1]);
    digest.main[number] += of_main * by;
    digest.last[number] += walk.is_down ? of_last * by : of_main;
    if (number % 2 == 0) digest.lead[turn] += walk.is_down ? Complex(lead[2 * turn], lead[2 * turn + 1]) : by * total;
  }
  digest.total += total;
  digest.square += square;
  digest.smallest = std::min<double>(digest.smallest, smallest);
  digest.largest = std::max<double>(digest.largest, largest);
  digest.moments[0] += walk.is_down ? first + place * total : placed + first;
  digest.moments[1] += walk.is_down ? placed + second : place * total;
  digest.checksum += checksum * static_cast<uint32_t>(walk.strip_factors[strip]);
}

template <typename Kind, typename Value, int size>
OP_TOOLS_INLINE Digest digest_of(const void* data, const Walk& walk) {
  constexpr int together = std::is_same_v<Value, float> ? kTogether : 1;
  Digest digest;
  for (int64_t strip = 0; strip < walk.strips; ++strip) {
    Lanes<Value> lanes(walk.lanes);
    const auto* elements = static_cast<const typename Kind::Raw*>(data) + walk.strip_offsets[strip];
    const int64_t most = walk.strip_counts[strip];
    for (int64_t chunk = 0; chunk < walk.chunks;) {
      const int64_t count = std::min(most, walk.chunk_counts[chunk]);
      int alike = 1;
      while (alike < together && chunk + alike < walk.chunks && std::min(most, walk.chunk_counts[chunk + alike]) == count)
        ++alike;
      if (alike == together) {
        add<Kind, size, together>(elements, walk, chunk, count, lanes, digest);
        chunk += together;
      } else {
        add<Kind, size, 1>(elements, walk, chunk++, count, lanes, digest);
      }
    }
    put_together(walk, strip, lanes, digest);
  }
  return digest;
}

// Bounds between which the squares of floats lose nothing. A NaN is outside of them.
inline bool is_easy(const Digest& digest) {
  return (digest.square > 1e-32 && digest.square < 1e36) ||
         (digest.square == 0 && digest.smallest == 0 && digest.largest == 0);
}

// ---- one tensor ----------------------------------------------------------------------------------------------------

// A sum of the bits of a few elements, which tells whether the others need to be looked at.
template <typename Kind>
int64_t probe(const void* data, int64_t numel) {
  using One = typename Kind::template Of<double, 1>;
  const auto* elements = static_cast<const typename Kind::Raw*>(data);
  const int64_t count = std::min(numel, kSamples);
  uint64_t sum = 0;
  for (int64_t sample = 0; sample < count; ++sample)
    sum += (One::words(load<typename One::Raws>(elements + sample * numel / count))[0] + 1ull) * (2 * sample + 1);
  return static_cast<int64_t>(sum);
}

// COUNTS and COLUMNS of digest.py.
inline void write(const Digest& digest, int64_t numel, int64_t* line) {
  const double finite = static_cast<double>(numel - static_cast<int64_t>(digest.nan + digest.infinite));
  const double mean = digest.total / finite, variance = digest.square / finite - mean * mean;
  const bool is_even = digest.smallest == digest.largest;
  double numbers[5] = {digest.smallest, digest.largest, mean, variance > 0 && !is_even ? std::sqrt(variance) : 0,
                       std::sqrt(digest.square)};
  if (finite == 0) std::fill_n(numbers, 5, std::numeric_limits<double>::quiet_NaN());
  const int64_t counts[] = {numel, static_cast<int64_t>(digest.nan), static_cast<int64_t>(digest.infinite), digest.checksum};
  std::memcpy(line, counts, sizeof counts);
  std::memcpy(line + kCounts, numbers, sizeof numbers);
  std::memcpy(line + kCounts + 5, digest.main, 8 * kSketch);
}
static_assert(offsetof(Digest, nan) - offsetof(Digest, main) == 8 * kSketch);

template <typename Kind, int size>
OP_TOOLS_INLINE void digest_or_not(const void* data, const Walk& walk, int64_t* line, const int64_t* known) {
  const int64_t found = probe<Kind>(data, walk.numel);
  if (known != nullptr && known[kProbe] == found && known[0] == walk.numel) {
    std::memcpy(line, known, 8 * kLine);
    return;
  }
  Digest digest;
  if constexpr (Kind::is_float) digest = digest_of<Kind, float, size>(data, walk);
  if (!Kind::is_float || !is_easy(digest)) digest = digest_of<Kind, double, size>(data, walk);
  write(digest, walk.numel, line);
  line[kProbe] = found;
}

// For registers of 16 bytes, which every processor has; or of 32, where this one has them. `known`: the line of the same
// tensor, which is taken again if the tensor looks unchanged.
template <typename Kind>
void narrow(const void* data, const Walk& walk, int64_t* line, const int64_t* known) {
  digest_or_not<Kind, 16>(data, walk, line, known);
}

#if defined(__x86_64__)
template <typename Kind>
__attribute__((target("avx2,fma"))) void wide(const void* data, const Walk& walk, int64_t* line, const int64_t* known) {
  digest_or_not<Kind, 32>(data, walk, line, known);
}

template <typename Kind>
void of(const void* data, const Walk& walk, int64_t* line, const int64_t* known) {
  static const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  (has_wide ? wide<Kind> : narrow<Kind>)(data, walk, line, known);
}
#else
template <typename Kind>
void of(const void* data, const Walk& walk, int64_t* line, const int64_t* known) {
  narrow<Kind>(data, walk, line, known);
}
#endif
#undef OP_TOOLS_INLINE

}  // namespace digest
#pragma GCC pop_options
