// The digest of a tensor that lies in order in the host's memory, in one pass over it: what device/digest.py computes
// in several, and device/digest.cu on CUDA, by the same rules.
//
// Strips (digest_layout.h) are gone over eight at a time. Of each place in them the elements are summed up with the weights
// of their strips first, and then with the weight of the place: in the precision of the elements, and the rest in double. Where that tells that there are NaN, infinities, or numbers whose squares do not fit, the strips are
// gone over again in double, without these.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "digest_layout.h"

namespace digest {

constexpr int kStrips = 8;  // at a time

#define OP_TOOLS_INLINE inline __attribute__((always_inline))
#define OP_TOOLS_UNROLL _Pragma("GCC unroll 16")

struct Digest {
  double sum = 0, square = 0;
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  double sketch[kSketch] = {};
  uint64_t nan = 0, infinite = 0, bits = 0, bits_by_place = 0;
};

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

// ---- strips ---------------------------------------------------------------------------------------------------------

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

// So many elements, with zeros behind them.
template <typename Of>
OP_TOOLS_INLINE typename Of::Raws beginning(const typename Of::Raw* elements, int64_t count) {
  if (count >= Of::count) return load<typename Of::Raws>(elements);
  typename Of::Raws raw = {};
  std::memcpy(&raw, elements, count * sizeof(typename Of::Raw));
  return raw;
}

// Strips of one length: of several rows, at the same place of them; or, where the last dimension is cut and there are few
// rows, of one row. What they differ in is in `weights` and `ramp`, what they have in common in `common`.
template <typename Raw>
struct Strips {
  int count = 0;
  int64_t length = 0;
  const Raw* elements[kStrips];
  int64_t starts[kStrips];  // in the tensor
  Complex weights[kNumbers][kStrips];
  double ramp[kStrips];      // the rows or columns in which they begin, over how many there are
  Complex common[kNumbers];  // the weights of the last dimension where they begin; or of all others
  double common_ramp = 0;    // where in the last dimension they begin; or the row
};

template <typename Of>
struct Sums {
  using Values = typename Of::Values;
  Values weighted[2 * kNumbers] = {}, sum = {}, ramp = {};
};

// What is known of some places of all strips together; double.
struct Totals {
  double lines[kTables] = {}, sum = 0, square = 0, ramp = 0;
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
};

template <typename Of>
OP_TOOLS_INLINE void add_ends(typename Of::Values smallest, typename Of::Values largest, Totals& totals) {
  for (int lane = 0; lane < Of::count; ++lane) {
    totals.smallest = std::min<double>(totals.smallest, smallest[lane]);
    totals.largest = std::max<double>(totals.largest, largest[lane]);
  }
}

// The sums of one place over all strips, with the weights of these.
template <typename Of>
OP_TOOLS_INLINE void over_strips(const Strips<typename Of::Raw>& strips, int64_t place,
                                 const typename Of::Value (&weights)[kStrips][2 * kNumbers + 1], Sums<Of>& sums,
                                 typename Of::Values& square, typename Of::Values& smallest,
                                 typename Of::Values& largest) {
  const int64_t left = strips.length - place;
  for (int strip = 0; strip < strips.count; ++strip) {
    const auto value = Of::value(beginning<Of>(strips.elements[strip] + place, left));
    OP_TOOLS_UNROLL
    for (int line = 0; line < 2 * kNumbers; ++line) sums.weighted[line] += value * weights[strip][line];
    sums.sum += value;
    sums.ramp += value * weights[strip][2 * kNumbers];
    square += value * value;
    if (left >= Of::count) {
      smallest = value < smallest ? value : smallest;
      largest = value > largest ? value : largest;
    } else {
      for (int64_t lane = 0; lane < left; ++lane) {
        smallest[lane] = std::min(smallest[lane], value[lane]);
        largest[lane] = std::max(largest[lane], value[lane]);
      }
    }
  }
}

template <typename Of>
OP_TOOLS_INLINE void turn_by(typename Of::Values real, typename Of::Values imaginary, const typename Of::Value* tables,
                             int64_t padded, int line, typename Of::Values (&lines)[kTables]) {
  const auto weight = load<typename Of::Values>(tables + line * padded);
  const auto other_weight = load<typename Of::Values>(tables + (line + 1) * padded);
  lines[line] += real * weight - imaginary * other_weight;
  lines[line + 1] += real * other_weight + imaginary * weight;
}

template <typename Of>
OP_TOOLS_INLINE void with_tables(const Sums<Of>& sums, const typename Of::Value* tables, int64_t padded,
                                 typename Of::Values (&lines)[kTables]) {
  using Values = typename Of::Values;
  OP_TOOLS_UNROLL
  for (int number = 0; number < kNumbers; ++number) {
    const Values real = sums.weighted[2 * number], imaginary = sums.weighted[2 * number + 1];
    turn_by<Of>(real, imaginary, tables, padded, kWeights + 2 * number, lines);
    if (number < kProfiles) {
      turn_by<Of>(real, imaginary, tables, padded, kOfOthers + 2 * number, lines);
      const int line = kOfLast + 2 * number;
      lines[line] += sums.sum * load<Values>(tables + line * padded);
      lines[line + 1] += sums.sum * load<Values>(tables + (line + 1) * padded);
    }
  }
  lines[kColumn] += sums.sum * load<Values>(tables + kColumn * padded);
  lines[kRow] += sums.sum * load<Values>(tables + kRow * padded);
}

// Of one strip whose own weights are all 1, some lines of the tables: so few that their sums stay in registers.
template <typename Of, int first, int count>
OP_TOOLS_INLINE void alone(const typename Of::Raw* elements, int64_t begin, int64_t end, const typename Of::Value* tables,
                           int64_t padded, double* lines) {
  typename Of::Values sums[count] = {};
  for (int64_t place = begin; place < end; place += Of::count) {
    const auto value = Of::value(beginning<Of>(elements + place, end - place));
    const auto* weights = tables + place + first * padded;
    OP_TOOLS_UNROLL
    for (int line = 0; line < count; ++line) sums[line] += value * load<typename Of::Values>(weights + line * padded);
  }
  for (int line = 0; line < count; ++line) lines[first + line] += total(sums[line]);
}

// The same: their sum, square and ends.
template <typename Of>
OP_TOOLS_INLINE void plainly(const typename Of::Raw* elements, int64_t length, Totals& totals) {
  using Values = typename Of::Values;
  Values smallest = Values{} + std::numeric_limits<typename Of::Value>::infinity(), largest = -smallest;
  Values sum = {}, square = {};
  int64_t place = 0;
  for (; place + Of::count <= length; place += Of::count) {
    const auto value = Of::value(load<typename Of::Raws>(elements + place));
    sum += value;
    square += value * value;
    smallest = value < smallest ? value : smallest;
    largest = value > largest ? value : largest;
  }
  if (place < length) {
    const auto value = Of::value(beginning<Of>(elements + place, length - place));
    sum += value;
    square += value * value;
    for (int64_t lane = 0; lane < length - place; ++lane) {
      smallest[lane] = std::min(smallest[lane], value[lane]);
      largest[lane] = std::max(largest[lane], value[lane]);
    }
  }
  totals.sum = total(sum);
  totals.square = total(square);
  add_ends<Of>(smallest, largest, totals);
}

template <typename Of>
OP_TOOLS_INLINE Totals totals_of_one(const typename Of::Raw* elements, int64_t length, const typename Of::Value* tables,
                                     int64_t padded) {
  constexpr int third = kTables / 3;
  Totals totals;
  plainly<Of>(elements, length, totals);
  alone<Of, 0, third>(elements, 0, length, tables, padded, totals.lines);
  alone<Of, third, third>(elements, 0, length, tables, padded, totals.lines);
  alone<Of, 2 * third, kTables - 2 * third>(elements, 0, length, tables, padded, totals.lines);
  return totals;
}

template <typename Of>
OP_TOOLS_INLINE Totals totals_of(const Strips<typename Of::Raw>& strips, const typename Of::Value* tables, int64_t padded) {
  using Value = typename Of::Value;
  using Values = typename Of::Values;
  Value weights[kStrips][2 * kNumbers + 1];
  bool is_plain = strips.count == 1;
  for (int strip = 0; strip < strips.count; ++strip) {
    for (int number = 0; number < kNumbers; ++number) {
      weights[strip][2 * number] = static_cast<Value>(strips.weights[number][strip].real);
      weights[strip][2 * number + 1] = static_cast<Value>(strips.weights[number][strip].imaginary);
      is_plain = is_plain && strips.weights[number][strip].real == 1;
    }
    weights[strip][2 * kNumbers] = static_cast<Value>(strips.ramp[strip]);
  }
  if (is_plain) {
    Totals totals = totals_of_one<Of>(strips.elements[0], strips.length, tables, padded);
    totals.ramp = strips.ramp[0] * totals.sum;
    return totals;
  }
  Totals totals;
  Values smallest = Values{} + std::numeric_limits<Value>::infinity(), largest = -smallest;
  Values lines[kTables] = {}, sum = {}, square = {}, ramp = {};
  for (int64_t place = 0; place < strips.length; place += Of::count) {
    Sums<Of> sums;
    over_strips<Of>(strips, place, weights, sums, square, smallest, largest);
    sum += sums.sum;
    ramp += sums.ramp;
    with_tables<Of>(sums, tables + place, padded, lines);
  }
  for (int line = 0; line < kTables; ++line) totals.lines[line] = total(lines[line]);
  totals.sum = total(sum);
  totals.square = total(square);
  totals.ramp = total(ramp);
  add_ends<Of>(smallest, largest, totals);
  return totals;
}

// Adds up the bits of each element, and the same times its place in the tensor.
template <typename Of>
OP_TOOLS_INLINE void add_bits(const typename Of::Raw* elements, int64_t length, int64_t start, Digest& digest) {
  using Words = typename Of::Words;
  constexpr bool is_wide = sizeof(typename Of::Value) == 8;
  Words low = {}, low_sums = {}, high = {}, high_sums = {};
  int64_t times = 0;
  for (int64_t place = 0; place < length; place += Of::count, ++times) {
    const auto raw = beginning<Of>(elements + place, length - place);
    const Words words = Of::bits(raw, Of::value(raw));
    low += is_wide ? words ^ (words >> 31) : words & 0xFFFFFFFFu;  // sums are cut off, which must not hide a sign
    low_sums += low;
    if (!is_wide) high += words >> 32, high_sums += high;
  }
  constexpr int each = is_wide ? 1 : 2;  // elements in a word
  for (int word = 0; word < Of::count / each; ++word)
    for (int half = 0; half < each; ++half) {
      const uint64_t bits = half ? high[word] : low[word], sums = half ? high_sums[word] : low_sums[word];
      digest.bits += bits;
      // the sums have the last one once, the one before it twice, and so on
      digest.bits_by_place += bits * static_cast<uint64_t>(start + each * word + half) +
                              (bits * static_cast<uint64_t>(times) - sums) * Of::count;
    }
}

// ---- one tensor ----------------------------------------------------------------------------------------------------

OP_TOOLS_INLINE void add_turned(Digest& digest, int line, Complex found, Complex by) {
  found = found * by;
  digest.sketch[line] += found.real;
  digest.sketch[line + 1] += found.imaginary;
}

template <typename Raw>
OP_TOOLS_INLINE void add(Digest& digest, const Totals& totals, const Strips<Raw>& strips, bool is_one_row) {
  digest.sum += totals.sum;
  digest.square += totals.square;
  digest.smallest = std::min(digest.smallest, totals.smallest);
  digest.largest = std::max(digest.largest, totals.largest);
  for (int number = 0; number < kNumbers; ++number) {
    const int line = kWeights + 2 * number, last = kOfLast + 2 * number, others = kOfOthers + 2 * number;
    const Complex all = {totals.lines[line], totals.lines[line + 1]}, &common = strips.common[number];
    add_turned(digest, line, all, common);
    if (number >= kProfiles) continue;
    if (is_one_row) {
      add_turned(digest, last, all, {});
      add_turned(digest, others, {totals.sum, 0}, common);
    } else {
      add_turned(digest, last, {totals.lines[last], totals.lines[last + 1]}, common);
      add_turned(digest, others, {totals.lines[others], totals.lines[others + 1]}, {});
    }
  }
  const double common = strips.common_ramp * totals.sum;
  digest.sketch[kColumn] += totals.lines[kColumn] + (is_one_row ? totals.ramp : common);
  digest.sketch[kRow] += totals.lines[kRow] + (is_one_row ? common : totals.ramp);
}

// Bounds between which the squares of floats lose nothing. A NaN is outside of them.
inline bool is_easy(const Totals& totals) {
  return (totals.square > 1e-32 && totals.square < 1e36) ||
         (totals.square == 0 && totals.smallest == 0 && totals.largest == 0);
}

// The same of the finite elements, in double; the others are counted.
template <typename Of, int size>
OP_TOOLS_INLINE Totals difficult(const Strips<typename Of::Raw>& strips, Layout& layout, Digest& digest) {
  using Wide = Lanes<double, double, size>;
  thread_local std::vector<double> numbers;
  numbers.resize(strips.count * strips.length + Of::count);
  Strips<double> cleaned;
  cleaned.count = strips.count;
  cleaned.length = strips.length;
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  for (int strip = 0; strip < strips.count; ++strip) {
    double* to = numbers.data() + strip * strips.length;
    cleaned.elements[strip] = to;
    cleaned.ramp[strip] = strips.ramp[strip];
    for (int number = 0; number < kNumbers; ++number) cleaned.weights[number][strip] = strips.weights[number][strip];
    for (int64_t place = 0; place < strips.length; place += Of::count) {
      const int64_t left = std::min<int64_t>(Of::count, strips.length - place);
      const auto values = Of::value(beginning<Of>(strips.elements[strip] + place, left));
      for (int64_t lane = 0; lane < left; ++lane) {
        const double value = values[lane];
        const bool is_finite = value - value == 0;
        digest.nan += value != value;
        digest.infinite += !is_finite && value == value;
        smallest = is_finite && value < smallest ? value : smallest;
        largest = is_finite && value > largest ? value : largest;
        to[place + lane] = is_finite ? value : 0;
      }
    }
  }
  Totals totals = totals_of<Wide>(cleaned, layout.tables<double>(), layout.padded());
  totals.smallest = smallest;
  totals.largest = largest;
  return totals;
}

template <typename Of, int size>
OP_TOOLS_INLINE void finish(Strips<typename Of::Raw>& strips, Layout& layout, Digest& digest, bool is_one_row) {
  if (!strips.count) return;
  Totals totals = totals_of<Of>(strips, layout.tables<typename Of::Value>(), layout.padded());
  if (!is_easy(totals)) totals = difficult<Of, size>(strips, layout, digest);
  add(digest, totals, strips, is_one_row);
  for (int strip = 0; strip < strips.count; ++strip)
    add_bits<Of>(strips.elements[strip], strips.length, strips.starts[strip], digest);
  strips.count = 0;
}

template <typename Of, int size>
class Walk {
 public:
  Walk(const void* data, Layout& layout) : elements_(static_cast<const typename Of::Raw*>(data)), layout_(layout) {
    for (int number = 0; number < kNumbers; ++number) next_[number] = at_angle(layout.angle_of_next(number));
  }

  OP_TOOLS_INLINE Digest all() {
    const int64_t cuts = layout_.cuts(), rows = layout_.outer_count();
    if (layout_.cuts_last && rows < kStrips) {
      for (int64_t row = 0; row < rows; ++row) {
        at_row(row);
        for (int number = 0; number < kNumbers; ++number) strips_.common[number] = of_row_[number];
        strips_.common_ramp = layout_.row_of(row * layout_.columns);
        for (int64_t part = 0; part < cuts; ++part) add(row, part, true);
        finish<Of, size>(strips_, layout_, digest_, true);
      }
      return digest_;
    }
    // where the last dimension is cut, the first part of all rows comes first
    for (int64_t first = 0; first < (layout_.cuts_last ? cuts : 1); ++first) {
      if (layout_.cuts_last) {
        for (int number = 0; number < kNumbers; ++number)
          strips_.common[number] = at_angle(layout_.angle_of_cut(number, first));
        strips_.common_ramp = layout_.column_of(first * layout_.cut_size);
      }
      for (int64_t row = 0; row < rows; ++row) {
        at_row(row);
        if (layout_.cuts_last)
          add(row, first, false);
        else
          for (int64_t part = 0; part < cuts; ++part) add(row, part, false);
      }
      finish<Of, size>(strips_, layout_, digest_, false);
    }
    return digest_;
  }

 private:
  OP_TOOLS_INLINE void at_row(int64_t row) {
    const bool is_new = row % layout_.in_a_row() == 0;
    for (int number = 0; number < kNumbers; ++number)
      of_row_[number] = is_new ? at_angle(layout_.angle_of_outer(number, row)) : of_row_[number] * next_[number];
  }

  OP_TOOLS_INLINE void add(int64_t row, int64_t part, bool is_one_row) {
    const int64_t offset = part * layout_.cut_size, start = row * layout_.outer_stride + offset;
    const int64_t length = layout_.cut ? std::min(layout_.width, layout_.cut - offset) : layout_.width;
    if (strips_.count == kStrips || (strips_.count && strips_.length != length))
      finish<Of, size>(strips_, layout_, digest_, is_one_row);
    const int at = strips_.count++;
    strips_.length = length;
    strips_.elements[at] = elements_ + start;
    strips_.starts[at] = start;
    strips_.ramp[at] = is_one_row ? layout_.column_of(start) : layout_.row_of(start);
    const bool is_turned = part > 0 && (is_one_row || !layout_.cuts_last);
    for (int number = 0; number < kNumbers; ++number) {
      const Complex of_row = is_one_row ? Complex{} : of_row_[number];
      strips_.weights[number][at] = is_turned ? of_row * at_angle(layout_.angle_of_cut(number, part)) : of_row;
    }
  }

  const typename Of::Raw* elements_;
  Layout& layout_;
  Complex next_[kNumbers], of_row_[kNumbers];
  Strips<typename Of::Raw> strips_;
  Digest digest_;
};

// As lines() of digest.py has it: elements, NaN, infinities, checksum, min, max, mean, std, norm, sketch.
inline void write(const Digest& digest, int64_t length, int64_t* line) {
  const double finite = static_cast<double>(length - static_cast<int64_t>(digest.nan + digest.infinite));
  const double mean = digest.sum / finite, variance = digest.square / finite - mean * mean;
  const bool is_even = digest.smallest == digest.largest;
  double numbers[5 + kSketch] = {digest.smallest, digest.largest, mean, variance > 0 && !is_even ? std::sqrt(variance) : 0,
                                 std::sqrt(digest.square)};
  if (finite == 0) std::fill_n(numbers, 5, std::numeric_limits<double>::quiet_NaN());
  std::copy_n(digest.sketch, kSketch, numbers + 5);
  const uint64_t checksum = digest.bits * 0x1E3779B97F4A7C15u + digest.bits_by_place * 0x3F58476D1CE4E5B9u;
  const uint64_t counts[4] = {static_cast<uint64_t>(length), digest.nan, digest.infinite, checksum};
  std::memcpy(line, counts, sizeof counts);
  std::memcpy(line + 4, numbers, sizeof numbers);
}

// In registers of 16 bytes, which every processor has; or of 32, where this one has them.
template <typename Kind>
void narrow(const void* data, Layout& layout, int64_t* line) {
  write(Walk<typename Kind::template Of<16>, 16>(data, layout).all(), layout.length, line);
}

#if defined(__x86_64__)
template <typename Kind>
__attribute__((target("avx2,fma"))) void wide(const void* data, Layout& layout, int64_t* line) {
  write(Walk<typename Kind::template Of<32>, 32>(data, layout).all(), layout.length, line);
}

template <typename Kind>
void of(const void* data, Layout& layout, int64_t* line) {
  static const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  (has_wide ? wide<Kind> : narrow<Kind>)(data, layout, line);
}
#else
template <typename Kind>
void of(const void* data, Layout& layout, int64_t* line) {
  narrow<Kind>(data, layout, line);
}
#endif

#undef OP_TOOLS_INLINE
#undef OP_TOOLS_UNROLL

}  // namespace digest
