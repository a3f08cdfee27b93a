// What the tables of arguments tell of each value: what op_tools.show does in Python.
#pragma once

#include "python.h"

#include <torch/csrc/Size.h>

#include <algorithm>
#include <vector>

namespace rows {

// Gathers addresses and numbers among nested arguments, and as bytes all else that their rows tell.
class Rows {
 public:
  std::string key;
  PyObject* pointers = PyList_New(0);
  PyObject* numbers = PyList_New(0);

  // False where Python has to do it, here and below.
  bool add(PyObject* value) {
    if (python::is_tensor(value)) return add_tensor(THPVariable_Unpack(value));
    if (value == Py_None || value == Py_True || value == Py_False) return put(value == Py_None ? 'n' : value == Py_True ? 'y' : 'z');
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value))
      return put(PyLong_CheckExact(value) ? 'i' : 'f') && PyList_Append(numbers, value) == 0;
    if ((PyList_Check(value) || PyTuple_Check(value)) && Py_TYPE(value) != &THPSizeType) {
      const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
      put('l') && put(Py_TYPE(value)) && put(count);
      for (Py_ssize_t index = 0; index < count; ++index)
        if (!add(PySequence_Fast_GET_ITEM(value, index))) return false;
      return true;
    }
    if (PyDict_Check(value)) return add_named(value);
    return add_text(value);
  }

 private:
  template <typename Value>
  bool put(Value value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
    return true;
  }

  bool add_tensor(const at::Tensor& tensor) {
    const auto* implementation = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || tensor.layout() != c10::kStrided || implementation->has_symbolic_sizes_strides() ||
        !implementation->has_storage())
      return false;
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    put('t') && put(static_cast<int8_t>(tensor.scalar_type())) && put(tensor.requires_grad());
    put(static_cast<int16_t>(tensor.device().type())) && put(static_cast<int16_t>(tensor.device().index()));
    put(sizes.size());
    key.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
    key.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
    PyObject* pointer = PyLong_FromUnsignedLongLong(reinterpret_cast<uint64_t>(tensor.const_data_ptr()));
    const bool is_added = pointer != nullptr && PyList_Append(pointers, pointer) == 0;
    Py_XDECREF(pointer);
    return is_added;
  }

  bool add_named(PyObject* values) {
    PyObject *name, *part;
    Py_ssize_t position = 0;
    put('d') && put(PyDict_GET_SIZE(values));
    while (PyDict_Next(values, &position, &name, &part))
      if (!add_text(name) || !add(part)) return false;
    return true;
  }

  bool add_text(PyObject* value) {
    PyObject* text = PyObject_Str(value);
    Py_ssize_t length = 0;
    const char* letters = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &length);
    if (letters != nullptr) {
      put(PyUnicode_CheckExact(value) ? 's' : 'o') && put(length);
      key.append(letters, static_cast<size_t>(length));
    }
    Py_XDECREF(text);
    return letters != nullptr;
  }
};

// row_key(args, kwargs) -> (key, pointers, numbers), or None
inline PyObject* row_key(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "row_key(args, kwargs)");
    return nullptr;
  }
  Rows found;
  if (found.add(arguments[0]) && found.add(arguments[1])) {
    PyObject* key = PyBytes_FromStringAndSize(found.key.data(), static_cast<Py_ssize_t>(found.key.size()));
    return Py_BuildValue("(NNN)", key, found.pointers, found.numbers);
  }
  Py_XDECREF(found.pointers);
  Py_XDECREF(found.numbers);
  PyErr_Clear();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// The addresses among `pointers` and what stands in `numbers`, one after the other, as text. False after an error.
template <typename Take>
bool each_text(PyObject* pointers, PyObject* numbers, const Take& take) {
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(pointers); ++index) {
    const uint64_t pointer = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(pointers, index));
    if (PyErr_Occurred()) return false;
    take(std::to_string(pointer));
  }
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(numbers); ++index) {
    PyObject* text = PyObject_Str(PyList_GET_ITEM(numbers, index));
    Py_ssize_t length = 0;
    const char* letters = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &length);
    if (letters != nullptr) take(std::string(letters, static_cast<size_t>(length)));
    Py_XDECREF(text);
    if (letters == nullptr) return false;
  }
  return true;
}

// row_widths(pointers, numbers) -> how many letters each takes, as bytes
inline PyObject* row_widths(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2 || !PyList_Check(arguments[0]) || !PyList_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "row_widths(pointers, numbers)");
    return nullptr;
  }
  std::string widths;
  if (!each_text(arguments[0], arguments[1], [&](const std::string& text) {
        widths.push_back(static_cast<char>(std::min<size_t>(text.size(), 255)));
      }))
    return nullptr;
  return PyBytes_FromStringAndSize(widths.data(), static_cast<Py_ssize_t>(widths.size()));
  END_HANDLE_TH_ERRORS
}

// row_fill(texts, order, pointers, numbers) -> the texts with these between them, in this order
inline PyObject* row_fill(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 4 || !PyList_Check(arguments[0]) || !PyTuple_Check(arguments[1]) || !PyList_Check(arguments[2]) ||
      !PyList_Check(arguments[3])) {
    PyErr_SetString(PyExc_TypeError, "row_fill(texts, order, pointers, numbers)");
    return nullptr;
  }
  std::vector<std::string> values;
  if (!each_text(arguments[2], arguments[3], [&](std::string text) { values.push_back(std::move(text)); }))
    return nullptr;
  std::string filled;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(arguments[0]); ++index) {
    if (index > 0) {
      const size_t which = PyLong_AsSize_t(PyTuple_GetItem(arguments[1], index - 1));
      if (PyErr_Occurred()) return nullptr;
      filled += values.at(which);
    }
    Py_ssize_t length = 0;
    const char* letters = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(arguments[0], index), &length);
    if (letters == nullptr) return nullptr;
    filled.append(letters, static_cast<size_t>(length));
  }
  return python::text(filled);
  END_HANDLE_TH_ERRORS
}

}  // namespace rows
