// How a tensor that lies in order is gone over for its digest: in strips of at most 512 elements, which are whole rows, or
// several, or parts of one; and the weights of the places in a strip. device/digest.py defines the weights. Strips are so
// short that the weights of their places stay in the processor's cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace digest {

constexpr int kNumbers = 4, kProfiles = 2;
constexpr int kSketch = 2 * kNumbers + 4 * kProfiles + 2;
constexpr int kLine = 4 + 5 + kSketch;  // numbers of a digest
constexpr int64_t kPeriod = 16;         // places of the last dimension after which its weights repeat but for a turn
constexpr int64_t kMostOfStrip = 512;   // elements
constexpr int64_t kPadding = 16;        // of the tables: a register may be read behind their end

struct Complex {
  double real = 1, imaginary = 0;

  Complex operator*(const Complex& other) const {
    return {real * other.real - imaginary * other.imaginary, real * other.imaginary + imaginary * other.real};
  }
};

// An angle is a number of 2**-32 turns.
inline Complex at_angle(uint32_t angle) {
  const double radians = angle * (6.283185307179586476925 / 4294967296.0);
  return {std::cos(radians), std::sin(radians)};
}

inline uint32_t hashed(uint32_t place, uint32_t seed) {
  uint32_t hash = place * 0x9E3779B1u + seed * 0x85EBCA6Bu;
  hash = (hash ^ (hash >> 16)) * 0x7FEB352Du;
  hash = (hash ^ (hash >> 15)) * 0x846CA68Bu;
  return hash ^ (hash >> 16);
}

// By how much a weight turns from one place to the next; of the last dimension, which is 0, with each kPeriod.
inline uint32_t turn(int number, int64_t dimension) {
  constexpr uint32_t turns[kNumbers] = {1332921573u, 471529187u, 160596103u, 56294617u};
  return turns[number] + static_cast<uint32_t>(dimension) * (turns[number] / 10);
}

inline uint32_t angle_of_column(int number, int64_t place) {
  return hashed(static_cast<uint32_t>(place % kPeriod), 100 + number) +
         static_cast<uint32_t>(place / kPeriod) * turn(number, 0);
}

// Lines of the tables of a strip: real and imaginary parts of the weights of all dimensions for each number; of the last
// dimension alone, and of the others alone, for the profiles; where the column and the row stand, for the moments.
enum { kWeights = 0, kOfLast = 2 * kNumbers, kOfOthers = kOfLast + 2 * kProfiles, kColumn = kOfOthers + 2 * kProfiles, kRow };
constexpr int kTables = kRow + 1;

class Layout {
 public:
  int64_t length = 1, columns = 1, rows = 1;  // of the tensor
  int64_t width = 1;                          // elements of a strip
  int64_t cut = 0, cut_size = 1;              // elements of the dimension that is cut into strips; of one strip, if any
  bool cuts_last = false;                     // that dimension is the last one
  std::vector<int64_t> outer;                 // sizes of the dimensions before it
  int64_t outer_stride = 1;                   // elements of one of them

  explicit Layout(const std::vector<int64_t>& shape) : shape_(shape) {
    for (const int64_t size : shape) length *= size;
    columns = shape.empty() ? 1 : shape.back();
    rows = columns ? length / columns : 0;
    auto left = static_cast<int64_t>(shape.size());
    while (left > 0 && width * shape[left - 1] <= kMostOfStrip) width *= shape[--left];
    outer_stride = width;
    if (left > 0 && 2 * width <= kMostOfStrip) {
      const int64_t at_once = kMostOfStrip / width;
      --left;
      cuts_last = left + 1 == static_cast<int64_t>(shape.size());
      cut = shape[left] * width;
      outer_stride = cut;
      cut_dimension_ = static_cast<int64_t>(shape.size()) - 1 - left;
      cut_places_ = at_once;
      width *= at_once;
      cut_size = width;
    }
    outer.assign(shape.begin(), shape.begin() + left);
    first_inner_ = left;
  }

  int64_t cuts() const { return cut ? (cut + cut_size - 1) / cut_size : 1; }
  int64_t outer_count() const { return length ? length / outer_stride : 0; }
  int64_t padded() const { return width + kPadding; }

  double column_of(int64_t start) const { return (start % columns - 0.5 * (columns - 1)) / columns; }
  double row_of(int64_t start) const { return (start / columns - 0.5 * (rows - 1)) / rows; }

  // Of a part of the dimension that is cut.
  uint32_t angle_of_cut(int number, int64_t part) const {
    const int64_t places = cuts_last ? cut_places_ / kPeriod : cut_places_;
    return cut ? static_cast<uint32_t>(part * places) * turn(number, cut_dimension_) : 0;
  }

  uint32_t angle_of_outer(int number, int64_t place) const {
    uint32_t angle = 0;
    for (auto at = static_cast<int64_t>(outer.size()) - 1; at >= 0; place /= outer[at], --at)
      angle += static_cast<uint32_t>(place % outer[at]) * turn(number, dimension(at));
    return angle;
  }

  // Of the next place in the last of the outer dimensions, and how many places that has.
  uint32_t angle_of_next(int number) const {
    return outer.empty() ? 0 : turn(number, dimension(static_cast<int64_t>(outer.size()) - 1));
  }
  int64_t in_a_row() const { return outer.empty() ? 1 : outer.back(); }

  // kTables lines of padded() each.
  template <typename Value>
  const Value* tables() {
    std::vector<Value>& made = tables_of(Value());
    std::lock_guard<std::mutex> guard(mutex_);
    if (made.empty()) {
      made.assign(kTables * padded(), 0);
      for (int64_t place = 0; place < std::min(width, length); ++place) fill(made.data() + place, place);
    }
    return made.data();
  }

 private:
  int64_t dimension(int64_t at) const { return static_cast<int64_t>(shape_.size()) - 1 - at; }
  std::vector<float>& tables_of(float) { return narrow_; }
  std::vector<double>& tables_of(double) { return wide_; }

  template <typename Value>
  void fill(Value* tables, int64_t place) const {
    const int64_t column = cuts_last ? place : place % columns, row = cuts_last ? 0 : place / columns;
    for (int number = 0; number < kNumbers; ++number) {
      const uint32_t of_column = angle_of_column(number, column);
      uint32_t of_row = 0;
      int64_t rest = row;
      for (auto at = static_cast<int64_t>(shape_.size()) - 2; at >= first_inner_ && rest; rest /= shape_[at], --at)
        of_row += static_cast<uint32_t>(rest % shape_[at]) * turn(number, dimension(at));
      put(tables, kWeights + 2 * number, of_column + of_row);
      if (number < kProfiles) put(tables, kOfLast + 2 * number, of_column), put(tables, kOfOthers + 2 * number, of_row);
    }
    tables[kColumn * padded()] = static_cast<Value>((column - (cuts_last ? 0 : 0.5 * (columns - 1))) / columns);
    tables[kRow * padded()] = static_cast<Value>(static_cast<double>(row) / rows);
  }

  template <typename Value>
  void put(Value* tables, int line, uint32_t angle) const {
    const Complex weight = at_angle(angle);
    tables[line * padded()] = static_cast<Value>(weight.real);
    tables[(line + 1) * padded()] = static_cast<Value>(weight.imaginary);
  }

  std::vector<int64_t> shape_;
  int64_t first_inner_ = 0, cut_dimension_ = 0, cut_places_ = 1;
  std::vector<float> narrow_;
  std::vector<double> wide_;
  std::mutex mutex_;
};

// Made once for each shape. When there are very many, all are forgotten.
inline std::shared_ptr<Layout> layout_of(const std::vector<int64_t>& shape) {
  static std::mutex mutex;
  static std::map<std::vector<int64_t>, std::shared_ptr<Layout>> known;
  static int64_t held = 0;
  std::lock_guard<std::mutex> guard(mutex);
  auto& found = known[shape];
  if (!found) {
    auto made = std::make_shared<Layout>(shape);
    held += kTables * made->padded();
    if (held > (int64_t{1} << 24)) known.clear(), held = kTables * made->padded();
    return known[shape] = made;
  }
  return found;
}

}  // namespace digest
