// What the tables of arguments tell of each value: what op_tools.show does in Python.
#pragma once

#include "python.h"

#include <torch/csrc/Size.h>

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

}  // namespace rows
