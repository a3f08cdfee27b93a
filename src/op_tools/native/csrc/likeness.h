// What a description is made of, in numbers: calls that are alike in these have one text (signature.h), which takes
// several times as long to make.
#pragma once

#include "signature.h"

#include <c10/util/SmallVector.h>

namespace likeness {

using Numbers = c10::SmallVector<int64_t, 32>;  // of most calls, in place
using Some = c10::SmallVectorImpl<int64_t>;     // of any length

enum Kind : int64_t { nothing, yes, no, whole_number, real_number, letters, list, names, tensor };

// Of one thing, with a number that says more: so no two things begin alike and go on differently.
inline void add(Some& numbers, Kind kind, int64_t more = 0) {
  numbers.push_back(kind + (more << 4));
}

inline void add(Some& numbers, const char* text, Py_ssize_t length) {
  add(numbers, letters, length);
  const size_t begin = numbers.size();
  numbers.resize(begin + (static_cast<size_t>(length) + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (length != 0) std::memcpy(&numbers[begin], text, static_cast<size_t>(length));
}

// False where it is not known what its words are made of, here and below.
inline bool of_tensor(const at::Tensor& value, at::ScalarType dtype, Some& numbers) {
  if (!signature::is_plain(value)) return false;
  const auto sizes = value.sizes(), strides = value.strides();
  add(numbers, tensor, static_cast<int64_t>(dtype) + (value.dim() << 8));
  numbers.append(sizes.begin(), sizes.end());
  numbers.append(strides.begin(), strides.end());
  return true;
}

inline bool of_letters(PyObject* value, Some& numbers) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &length);
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  add(numbers, text, length);
  return true;
}

bool of(PyObject* value, Some& numbers);

inline bool of_list(PyObject* values, Some& numbers, bool whole) {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(values), longest = signature::longest_of(values, whole);
  add(numbers, list, count);
  for (Py_ssize_t index = 0; index < std::min(count, longest); ++index)
    if (!of(PySequence_Fast_GET_ITEM(values, index), numbers)) return false;
  return true;
}

inline bool of_names(PyObject* values, Some& numbers) {
  if (!PyDict_Check(values)) return false;
  PyObject *key, *part;
  Py_ssize_t position = 0;
  add(numbers, names, PyDict_Size(values));
  while (PyDict_Next(values, &position, &key, &part))
    if (!PyUnicode_Check(key) || !of_letters(key, numbers) || !of(part, numbers)) return false;
  return true;
}

inline bool of(PyObject* value, Some& numbers) {
  if (python::is_tensor(value)) {
    const auto& unpacked = THPVariable_Unpack(value);
    return of_tensor(unpacked, unpacked.scalar_type(), numbers);
  }
  if (value == Py_None) {
    add(numbers, nothing);
  } else if (PyBool_Check(value)) {
    add(numbers, value == Py_True ? yes : no);
  } else if (PyLong_CheckExact(value)) {
    int overflow = 0;
    add(numbers, whole_number);
    numbers.push_back(PyLong_AsLongLongAndOverflow(value, &overflow));
    return !overflow;
  } else if (PyFloat_CheckExact(value)) {
    const double number = PyFloat_AS_DOUBLE(value);
    add(numbers, real_number);
    numbers.push_back(0);
    std::memcpy(&numbers.back(), &number, sizeof number);
  } else if (PyUnicode_CheckExact(value)) {
    return of_letters(value, numbers);
  } else if (PyList_Check(value) || PyTuple_Check(value)) {
    return of_list(value, numbers, false);
  } else {
    return false;
  }
  return true;
}

inline bool of_call(PyObject* args, PyObject* kwargs, Some& numbers) {
  return of_list(args, numbers, true) && of_names(kwargs, numbers);
}

// ---- gradients, as they flow -----------------------------------------------------------------------------------------

using Gradient = c10::SmallVector<int64_t, 7>;       // the numbers of a tensor, three dimensions in place; none: empty
using Gradients = c10::SmallVector<Gradient, 2>;

inline void of_gradients(const Gradients& gradients, Some& numbers) {
  add(numbers, list, static_cast<int64_t>(gradients.size()));
  for (const auto& gradient : gradients) {
    if (gradient.empty()) add(numbers, nothing);
    numbers.append(gradient.begin(), gradient.end());
  }
}

inline void describe_gradient(const Gradient& gradient, std::string& text) {
  if (gradient.empty()) {
    text += "null";
    return;
  }
  const auto dtype = static_cast<c10::ScalarType>((gradient[0] >> 4) & 0xff);
  const c10::IntArrayRef both(gradient.data() + 1, gradient.size() - 1);
  signature::plain_tensor(signature::name_of(dtype), both.slice(0, both.size() / 2), both.slice(both.size() / 2), text);
}

// In a list that is shortened like any other.
inline std::string in_words(const Gradients& gradients) {
  const bool of_tensors = !gradients.empty() && !gradients[0].empty();
  const size_t longest = of_tensors ? signature::longest_list : signature::longest_list_of_values;
  std::string text = "[";
  for (size_t index = 0; index < std::min<size_t>(gradients.size(), longest); ++index) {
    if (index) text += ", ";
    describe_gradient(gradients[index], text);
  }
  if (gradients.size() > longest) text += ", \"\u2026 " + std::to_string(gradients.size()) + " in all\"";
  return text + "]";
}

}  // namespace likeness
