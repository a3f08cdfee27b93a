// Serializes arguments to JSON: the same text as op_tools.timing.signature makes.
#pragma once

#include "python.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace signature {

constexpr Py_ssize_t longest_list = 2;  // of tensors; an optimizer's call has hundreds
constexpr Py_ssize_t longest_list_of_values = 64;

// Letters on their way into a text: a text that grows letter by letter costs several times as much.
class Letters {
 public:
  explicit Letters(std::string& text) : text_(text) {}
  Letters(const Letters&) = delete;
  Letters& operator=(const Letters&) = delete;
  ~Letters() {
    text_.append(buffer_, count_);
  }

  template <size_t length>
  void add(const char (&letters)[length]) {
    add(letters, length - 1);
  }

  void add(const char* letters, size_t length) {
    make_room(length);
    std::memcpy(buffer_ + count_, letters, length);
    count_ += length;
  }

  void add(int64_t number) {
    make_room(20);
    count_ = static_cast<size_t>(std::to_chars(buffer_ + count_, buffer_ + sizeof buffer_, number).ptr - buffer_);
  }

 private:
  void make_room(size_t length) {
    if (count_ + length <= sizeof buffer_) return;
    text_.append(buffer_, count_);
    count_ = 0;
  }

  std::string& text_;
  size_t count_ = 0;
  char buffer_[192];
};

inline void numbers(c10::IntArrayRef values, Letters& letters) {
  letters.add("[");
  for (size_t index = 0; index < values.size(); ++index) {
    if (index) letters.add(", ");
    letters.add(values[index]);
  }
  letters.add("]");
}

inline const char* name_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float: return "float32";
    case c10::ScalarType::Double: return "float64";
    case c10::ScalarType::Half: return "float16";
    case c10::ScalarType::BFloat16: return "bfloat16";
    case c10::ScalarType::Long: return "int64";
    case c10::ScalarType::Int: return "int32";
    case c10::ScalarType::Short: return "int16";
    case c10::ScalarType::Char: return "int8";
    case c10::ScalarType::Byte: return "uint8";
    case c10::ScalarType::Bool: return "bool";
    case c10::ScalarType::ComplexFloat: return "complex64";
    case c10::ScalarType::ComplexDouble: return "complex128";
    default: return nullptr;
  }
}

// A name for its dtype, and sizes and strides that are numbers.
inline bool is_plain(const at::Tensor& value) {
  return value.defined() && name_of(value.scalar_type()) != nullptr && value.layout() == c10::kStrided &&
         !value.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !value.is_nested();
}

inline void plain_tensor(const char* dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::string& text) {
  Letters letters(text);
  letters.add("{\"shape\": ");
  numbers(sizes, letters);
  letters.add(", \"stride\": ");
  numbers(strides, letters);
  letters.add(", \"dtype\": \"");
  letters.add(dtype, std::strlen(dtype));
  letters.add("\"}");
}

// False where it takes Python to put it into words, here and below.
inline bool tensor(const at::Tensor& value, std::string& text) {
  if (!value.defined()) {
    text += "null";
    return true;
  }
  if (!is_plain(value)) return false;
  plain_tensor(name_of(value.scalar_type()), value.sizes(), value.strides(), text);
  return true;
}

inline bool quoted(PyObject* value, std::string& text) {
  Py_ssize_t length = 0;
  const char* letters = PyUnicode_AsUTF8AndSize(value, &length);
  if (letters == nullptr) {
    PyErr_Clear();
    return false;
  }
  for (Py_ssize_t index = 0; index < length; ++index)
    if (static_cast<unsigned char>(letters[index]) < 0x20 || letters[index] == '"' || letters[index] == '\\' || letters[index] == 0x7f)
      return false;
  text += '"';
  text.append(letters, static_cast<size_t>(length));
  text += '"';
  return true;
}

inline bool number(PyObject* value, std::string& text) {
  const double number = PyFloat_AS_DOUBLE(value);
  if (!std::isfinite(number)) return false;
  char* letters = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
  if (letters == nullptr) return false;
  text += letters;
  PyMem_Free(letters);
  return true;
}

bool value(PyObject* value, std::string& text);

// So many of them are described.
inline Py_ssize_t longest_of(PyObject* values, bool whole) {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(values);
  if (whole) return count;
  return count > 0 && python::is_tensor(PySequence_Fast_GET_ITEM(values, 0)) ? longest_list : longest_list_of_values;
}

inline bool list(PyObject* values, std::string& text, bool whole = true) {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(values), longest = longest_of(values, whole);
  text += '[';
  for (Py_ssize_t index = 0; index < std::min(count, longest); ++index) {
    if (index) text += ", ";
    if (!value(PySequence_Fast_GET_ITEM(values, index), text)) return false;
  }
  if (count > longest) text += ", \"\u2026 " + std::to_string(count) + " in all\"";
  text += ']';
  return true;
}

inline bool named(PyObject* values, std::string& text) {
  if (!PyDict_Check(values)) return false;
  PyObject *key, *part;
  Py_ssize_t position = 0;
  text += '{';
  bool is_first = true;
  while (PyDict_Next(values, &position, &key, &part)) {
    if (!is_first) text += ", ";
    is_first = false;
    if (!PyUnicode_Check(key) || !quoted(key, text)) return false;
    text += ": ";
    if (!value(part, text)) return false;
  }
  text += '}';
  return true;
}

inline bool value(PyObject* value, std::string& text) {
  if (python::is_tensor(value)) return tensor(THPVariable_Unpack(value), text);
  if (value == Py_None) {
    text += "null";
  } else if (PyBool_Check(value)) {
    text += value == Py_True ? "true" : "false";
  } else if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return false;
    text += std::to_string(number);
  } else if (PyFloat_CheckExact(value)) {
    return number(value, text);
  } else if (PyUnicode_CheckExact(value)) {
    return quoted(value, text);
  } else if (PyList_Check(value) || PyTuple_Check(value)) {
    return list(value, text, false);
  } else {
    return false;
  }
  return true;
}

inline bool call(PyObject* args, PyObject* kwargs, std::string& text) {
  text = "{\"args\": ";
  if (!list(args, text)) return false;
  text += ", \"kwargs\": ";
  if (!named(kwargs, text)) return false;
  text += '}';
  return true;
}

}  // namespace signature
