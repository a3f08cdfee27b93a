// Times in figures: the very text that printf's "%.8f" and "%.3f" make of them.
//
// std::to_chars does that, too, but its symbols are younger than the C++ library of many a Python, and older compilers
// have none.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace decimals {

constexpr uint64_t power_of_ten(int exponent) {
  return exponent == 0 ? 1 : 10 * power_of_ten(exponent - 1);
}

// How many units of the last digit: exact, and where that is half way between two numbers, the even one.
inline uint64_t units(double value, uint64_t per_one) {
  constexpr int bits_of_mantissa = 52, bias = 1075;
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const int shift = bias - static_cast<int>(bits >> bits_of_mantissa);
  if (shift > 100) return 0;  // far less than half a unit, and all numbers that are too small for a leading one
  constexpr uint64_t leading_one = uint64_t{1} << bits_of_mantissa;
  const auto scaled = static_cast<unsigned __int128>((bits & (leading_one - 1)) | leading_one) * per_one;
  const auto one = static_cast<unsigned __int128>(1) << shift;
  const auto rest = scaled & (one - 1);
  const auto whole = static_cast<uint64_t>(scaled >> shift);
  return whole + (rest > one / 2 || (rest == one / 2 && whole % 2 == 1) ? 1 : 0);
}

// With `digits` after the point.
template <int digits>
void add(std::string& text, double value) {
  constexpr uint64_t per_one = power_of_ten(digits);
  constexpr double limit = 1e18 / per_one;  // units that 64 bits can count, and a mantissa that is shifted down
  if (!(value > 0 && value < limit)) {
    char letters[400];  // the largest number has 309 digits before its point
    text.append(letters, static_cast<size_t>(std::snprintf(letters, sizeof letters, "%.*f", digits, value)));
    return;
  }
  char letters[24];
  char* const end = letters + sizeof letters;
  char* begin = end;
  uint64_t left = units(value, per_one);
  for (int digit = 0; digit < digits; ++digit, left /= 10) *--begin = static_cast<char>('0' + left % 10);
  *--begin = '.';
  do {
    *--begin = static_cast<char>('0' + left % 10);
    left /= 10;
  } while (left != 0);
  text.append(begin, static_cast<size_t>(end - begin));
}

}  // namespace decimals
