// The digest of a tensor that lies in order in the host's memory, in one pass over it: what device/digest.py computes
// in several, and device/digest.cu on CUDA, by the same rules.
//
// A row is summed up in the precision of its elements, 512 at a time, and the rest in double. Where that tells that the
// row has NaN, infinities, or numbers in it whose squares do not fit, the row is gone over again, element by element.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace digest {

constexpr int64_t kNarrow = 512, kWide = 4096;  // elements in a row
constexpr int64_t kLarge = 65536;               // elements of a tensor from which its rows are wide
constexpr int kSketch = 4;
constexpr int kLine = 4 + 5 + kSketch;  // numbers of a digest

#define OP_TOOLS_INLINE inline __attribute__((always_inline))

struct Digest {
  double sum = 0, square = 0;
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  double sketch[kSketch] = {};
  uint64_t nan = 0, infinite = 0, bits = 0;
};

// ---- weights -------------------------------------------------------------------------------------------------------

inline uint32_t hashed(uint32_t place, uint32_t seed) {
  uint32_t hash = place * 0x9E3779B1u + seed * 0x85EBCA6Bu;
  hash = (hash ^ (hash >> 16)) * 0x7FEB352Du;
  hash = (hash ^ (hash >> 15)) * 0x846CA68Bu;
  return hash ^ (hash >> 16);
}

inline double weight(uint32_t place, uint32_t seed) {
  return ((hashed(place, seed) + 0.5) / 2147483648.0 - 1) * 1.7320508075688772;
}

// Of the places in a row.
template <typename Value>
const Value* weights() {
  struct Table {
    Value of[kWide];
    Table() {
      for (int64_t place = 0; place < kWide; ++place) of[place] = static_cast<Value>(weight(place, 0));
    }
  };
  static const Table table;
  return table.of;
}

// ---- elements ------------------------------------------------------------------------------------------------------

// A register's worth of elements, as they lie in memory and as the numbers that the rows of staging.py have.
template <typename Raw_, typename Value_, int size>
struct Lanes {
  using Raw = Raw_;
  using Value = Value_;
  static constexpr int count = size / sizeof(Value);
  typedef Raw Raws __attribute__((vector_size(count * sizeof(Raw))));
  typedef Value Values __attribute__((vector_size(size)));
  typedef uint64_t Words __attribute__((vector_size(size)));
  typedef uint32_t Halves __attribute__((vector_size(size)));

  static OP_TOOLS_INLINE Values value(Raws raw) {
    return __builtin_convertvector(raw, Values);
  }
  static OP_TOOLS_INLINE Words bits(Raws, Values value) {
    return reinterpret_cast<Words>(value);
  }
};

template <typename Raw, typename Value>
struct Plain {
  template <int size>
  using Of = Lanes<Raw, Value, size>;
};

struct Int64 {
  template <int size>
  struct Of : Lanes<int64_t, double, size> {
    using Base = Lanes<int64_t, double, size>;
    static OP_TOOLS_INLINE typename Base::Words bits(typename Base::Raws raw, typename Base::Values) {
      return reinterpret_cast<typename Base::Words>(raw);  // all of them, where a double has 53
    }
  };
};

struct BFloat16 {
  template <int size>
  struct Of : Lanes<uint16_t, float, size> {
    using Base = Lanes<uint16_t, float, size>;
    static OP_TOOLS_INLINE typename Base::Values value(typename Base::Raws raw) {
      return reinterpret_cast<typename Base::Values>(__builtin_convertvector(raw, typename Base::Halves) << 16);
    }
  };
};

struct Float16 {
  template <int size>
  struct Of : Lanes<uint16_t, float, size> {
    using Base = Lanes<uint16_t, float, size>;
    using Halves = typename Base::Halves;
    using Values = typename Base::Values;
    // The exponent is put right by a multiplication, which keeps what is in a NaN as the processor's instruction does.
    static OP_TOOLS_INLINE Values value(typename Base::Raws raw) {
      const Halves wide = __builtin_convertvector(raw, Halves) << 16, rest = wide + wide;
      const Values normal = reinterpret_cast<Values>((rest >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
      const Values tiny = reinterpret_cast<Values>((rest >> 17) | (126u << 23)) - 0.5f;
      const Halves is_tiny = reinterpret_cast<Halves>(rest < (1u << 27));
      const Halves chosen = (reinterpret_cast<Halves>(tiny) & is_tiny) | (reinterpret_cast<Halves>(normal) & ~is_tiny);
      return reinterpret_cast<Values>((wide & 0x80000000u) | chosen);
    }
  };
};

template <typename Vector>
OP_TOOLS_INLINE Vector load(const void* from) {
  Vector loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

// ---- one row -------------------------------------------------------------------------------------------------------

template <typename Of>
struct Sums {
  using Values = typename Of::Values;
  Values sum = {}, square = {}, projection = {};

  OP_TOOLS_INLINE void add(Values value, Values weight) {
    sum += value;
    square += value * value;
    projection += value * weight;
  }
};

template <typename Of>
struct Ends {
  using Values = typename Of::Values;
  Values smallest = Values{} + std::numeric_limits<typename Of::Value>::infinity(), largest = -smallest;
  typename Of::Words bits = {};

  OP_TOOLS_INLINE void add(typename Of::Raws raw, Values value) {
    smallest = value < smallest ? value : smallest;
    largest = value > largest ? value : largest;
    bits += Of::bits(raw, value);
  }
};

template <typename Words>
OP_TOOLS_INLINE uint64_t added(Words words) {
  uint64_t sum = 0;
  for (size_t word = 0; word < sizeof words / sizeof words[0]; ++word) sum += words[word];
  return sum;
}

template <typename Values>
OP_TOOLS_INLINE double total(Values values) {
  constexpr int count = sizeof(Values) / sizeof(values[0]);
  double even = values[0], odd = values[1];
  for (int lane = 2; lane < count; lane += 2) even += values[lane], odd += values[lane + 1];
  return even + odd;
}

struct Row {
  double sum = 0, square = 0, projection = 0;
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  uint64_t bits = 0;

  template <typename Of>
  OP_TOOLS_INLINE void add(const Ends<Of>& ends) {
    for (int lane = 0; lane < Of::count; ++lane) {
      smallest = std::min<double>(smallest, ends.smallest[lane]);
      largest = std::max<double>(largest, ends.largest[lane]);
    }
    bits += added(ends.bits);
  }

  // Bounds between which the squares of floats lose nothing. A NaN is outside of them.
  bool is_easy() const {
    return (square > 1e-32 && square < 1e36) || (square == 0 && smallest == 0 && largest == 0);
  }
};

// So many elements, with zeros behind them.
template <typename Of>
OP_TOOLS_INLINE typename Of::Raws beginning(const typename Of::Raw* elements, int64_t count) {
  if (count == Of::count) return load<typename Of::Raws>(elements);
  typename Of::Raws raw = {};
  std::memcpy(&raw, elements, count * sizeof(typename Of::Raw));
  return raw;
}

template <typename Of>
OP_TOOLS_INLINE Row row_of(const typename Of::Raw* elements, int64_t count, const typename Of::Value* weights) {
  using Raws = typename Of::Raws;
  using Values = typename Of::Values;
  constexpr int64_t lanes = Of::count;
  Row row;
  Ends<Of> ends, other_ends;  // two of each: an addition need not wait for the last one
  int64_t place = 0;
  while (count - place >= 2 * lanes) {
    Sums<Of> sums, other_sums;
    const int64_t end = std::min(count - 2 * lanes, place + kNarrow - 2 * lanes);
    for (; place <= end; place += 2 * lanes) {
      const Raws raw = load<Raws>(elements + place), other_raw = load<Raws>(elements + place + lanes);
      const Values value = Of::value(raw), other_value = Of::value(other_raw);
      sums.add(value, load<Values>(weights + place));
      other_sums.add(other_value, load<Values>(weights + place + lanes));
      ends.add(raw, value);
      other_ends.add(other_raw, other_value);
    }
    row.sum += total(sums.sum + other_sums.sum);
    row.square += total(sums.square + other_sums.square);
    row.projection += total(sums.projection + other_sums.projection);
  }
  for (; place < count; place += lanes) {
    const int64_t left = std::min(lanes, count - place);
    const Raws raw = beginning<Of>(elements + place, left);
    const Values value = Of::value(raw);
    ends.bits += Of::bits(raw, value);
    for (int64_t lane = 0; lane < left; ++lane) {
      const double one = value[lane];
      row.sum += one;
      row.square += one * one;
      row.projection += one * weights[place + lane];
      row.smallest = std::min(row.smallest, one);
      row.largest = std::max(row.largest, one);
    }
  }
  row.add(ends);
  row.add(other_ends);
  return row;
}

// The same of the finite elements, in double; the others are counted.
template <typename Of>
OP_TOOLS_INLINE Row difficult_row(const typename Of::Raw* elements, int64_t count, const typename Of::Value* weights,
                                  uint64_t bits, Digest& digest) {
  using Wide = Lanes<typename Of::Value, double, sizeof(typename Of::Values)>;
  using Few = typename Wide::Raws;
  using Words = typename Wide::Words;
  Sums<Wide> sums;
  Ends<Wide> ends;
  Words nan = {}, infinite = {}, numbers = {};
  for (int lane = 0; lane < Wide::count; ++lane) numbers[lane] = lane;
  for (int64_t place = 0; place < count; place += Of::count) {
    const int64_t left = std::min<int64_t>(Of::count, count - place);
    const typename Of::Values values = Of::value(beginning<Of>(elements + place, left));
    const auto* few = reinterpret_cast<const char*>(&values);
    for (int64_t first = 0; first < left; first += Wide::count, few += sizeof(Few)) {
      const auto value = Wide::value(load<Few>(few)), weight = Wide::value(load<Few>(weights + place + first));
      const Words is_finite = reinterpret_cast<Words>(value - value == 0), is_nan = reinterpret_cast<Words>(value != value);
      const Words is_inside = reinterpret_cast<Words>(numbers < static_cast<uint64_t>(left - first)) & is_finite;
      sums.add(reinterpret_cast<typename Wide::Values>(reinterpret_cast<Words>(value) & is_finite), weight);
      ends.smallest = (reinterpret_cast<Words>(value < ends.smallest) & is_inside) ? value : ends.smallest;
      ends.largest = (reinterpret_cast<Words>(value > ends.largest) & is_inside) ? value : ends.largest;
      nan -= is_nan;  // a true one is -1
      infinite -= ~is_finite & ~is_nan;
    }
  }
  digest.nan += added(nan);
  digest.infinite += added(infinite);
  Row row{total(sums.sum), total(sums.square), total(sums.projection)};
  row.add(ends);
  row.bits = bits;
  return row;
}

// ---- one tensor ----------------------------------------------------------------------------------------------------

template <typename Of>
OP_TOOLS_INLINE Digest digest_of(const void* data, int64_t length) {
  const auto* elements = static_cast<const typename Of::Raw*>(data);
  const auto* of_places = weights<typename Of::Value>();
  const int64_t width = length >= kLarge ? kWide : kNarrow;
  Digest digest;
  for (int64_t start = 0, number = 0; start < length; start += width, ++number) {
    const int64_t count = std::min(width, length - start);
    Row row = row_of<Of>(elements + start, count, of_places);
    if (!row.is_easy()) row = difficult_row<Of>(elements + start, count, of_places, row.bits, digest);
    digest.sum += row.sum;
    digest.square += row.square;
    digest.smallest = std::min(digest.smallest, row.smallest);
    digest.largest = std::max(digest.largest, row.largest);
    digest.bits += row.bits * (2 * static_cast<uint64_t>(hashed(number, 1 + kSketch)) + 1);
    for (int seed = 0; seed < kSketch; ++seed) digest.sketch[seed] += row.projection * weight(number, 1 + seed);
  }
  return digest;
}

// As finished() of digest.py has it: elements, NaN, infinities, bits, min, max, mean, std, norm, sketch.
inline void write(const Digest& digest, int64_t length, int64_t* line) {
  const double finite = static_cast<double>(length - static_cast<int64_t>(digest.nan + digest.infinite));
  const double mean = digest.sum / finite, variance = digest.square / finite - mean * mean;
  const bool is_even = digest.smallest == digest.largest;
  double numbers[5 + kSketch] = {digest.smallest, digest.largest, mean, variance > 0 && !is_even ? std::sqrt(variance) : 0,
                                 std::sqrt(digest.square)};
  if (finite == 0) std::fill_n(numbers, 5, std::numeric_limits<double>::quiet_NaN());
  std::copy_n(digest.sketch, kSketch, numbers + 5);
  const uint64_t counts[4] = {static_cast<uint64_t>(length), digest.nan, digest.infinite, digest.bits};
  std::memcpy(line, counts, sizeof counts);
  std::memcpy(line + 4, numbers, sizeof numbers);
}

// In registers of 16 bytes, which every processor has; or of 32, where this one has them.
template <typename Kind>
void narrow(const void* data, int64_t length, int64_t* line) {
  write(digest_of<typename Kind::template Of<16>>(data, length), length, line);
}

#if defined(__x86_64__)
template <typename Kind>
__attribute__((target("avx2,fma"))) void wide(const void* data, int64_t length, int64_t* line) {
  write(digest_of<typename Kind::template Of<32>>(data, length), length, line);
}

template <typename Kind>
void of(const void* data, int64_t length, int64_t* line) {
  static const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  (has_wide ? wide<Kind> : narrow<Kind>)(data, length, line);
}
#else
template <typename Kind>
void of(const void* data, int64_t length, int64_t* line) {
  narrow<Kind>(data, length, line);
}
#endif

#undef OP_TOOLS_INLINE

}  // namespace digest
