// Many tensors at once: what op_tools.tensors asks of each in Python.
#pragma once

#include "memory.h"

#include <torch/csrc/DynamicTypes.h>

namespace lists {

// Whether its memory is there, and can be looked at together with that of `first`.
inline bool is_plain(const at::Tensor& tensor, const at::Tensor& first) {
  return memory::is_there(tensor) && !tensor.is_inference() && tensor.scalar_type() == first.scalar_type() &&
         tensor.device() == first.device() && !tensor.is_cpu() && tensor.numel() > 0 &&
         tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() > 0;
}

// state_of(tensors) -> (versions, bytes, dtype), or None
inline PyObject* state_of(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  const bool is_list = PyList_Check(tensors) || PyTuple_Check(tensors);
  const Py_ssize_t count = is_list ? PySequence_Fast_GET_SIZE(tensors) : 0;
  if (count == 0 || !python::is_tensor(PySequence_Fast_GET_ITEM(tensors, 0))) Py_RETURN_NONE;
  const at::Tensor& first = THPVariable_Unpack(PySequence_Fast_GET_ITEM(tensors, 0));
  PyObject* versions = PyList_New(count);
  if (versions == nullptr) return nullptr;
  int64_t bytes = 0;
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyObject* value = PySequence_Fast_GET_ITEM(tensors, index);
    if (!python::is_tensor(value) || !is_plain(THPVariable_Unpack(value), first)) {
      Py_DECREF(versions);
      Py_RETURN_NONE;
    }
    const at::Tensor& tensor = THPVariable_Unpack(value);
    bytes += static_cast<int64_t>(tensor.nbytes());
    PyList_SET_ITEM(versions, index, PyLong_FromLongLong(static_cast<int64_t>(tensor._version())));
  }
  auto* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(first.scalar_type()));
  return Py_BuildValue("(NLO)", versions, static_cast<long long>(bytes), dtype);
  END_HANDLE_TH_ERRORS
}

// Versions and bytes of what a call is given.
class Inputs {
 public:
  explicit Inputs(PyObject* versions) : versions_(versions) {}

  int64_t bytes = 0;  // a parameter's are not counted: the program holds them anyway

  // False where Python has to look.
  bool add(PyObject* value) {
    const PyTypeObject* type = Py_TYPE(value);
    if (is(type, THPVariableClass)) return add_tensor(THPVariable_Unpack(value), true);
    if (is(type, ParameterClass)) return add_tensor(THPVariable_Unpack(value), false);
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
      for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(value); ++index)
        if (!add(PySequence_Fast_GET_ITEM(value, index))) return false;
      return true;
    }
    return !PyList_Check(value) && !PyTuple_Check(value) && !PyDict_Check(value) && !python::is_tensor(value);
  }

 private:
  PyObject* versions_;

  static bool is(const PyTypeObject* type, PyObject* other) {
    return type == reinterpret_cast<PyTypeObject*>(other);
  }

  bool add_tensor(const at::Tensor& tensor, bool counts) {
    if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.is_inference() ||
        tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
      return false;
    if (counts) bytes += static_cast<int64_t>(tensor.nbytes());
    PyObject* version = PyLong_FromLongLong(static_cast<int64_t>(tensor._version()));
    const bool is_added = version != nullptr && PyList_Append(versions_, version) == 0;
    Py_XDECREF(version);
    return is_added;
  }
};

// inputs_of(args, kwargs) -> (versions, bytes), or None
inline PyObject* inputs_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2 || !PyDict_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "inputs_of(args, kwargs)");
    return nullptr;
  }
  PyObject* versions = PyList_New(0);
  if (versions == nullptr) return nullptr;
  Inputs inputs(versions);
  bool is_done = inputs.add(arguments[0]);
  PyObject *name, *value;
  for (Py_ssize_t position = 0; is_done && PyDict_Next(arguments[1], &position, &name, &value);)
    is_done = inputs.add(value);
  if (is_done) return Py_BuildValue("(NL)", versions, static_cast<long long>(inputs.bytes));
  Py_DECREF(versions);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// are_these(weak references, tensors) -> whether they lead to these very tensors
inline PyObject* are_these(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyList_Check(arguments[0]) || !(PyList_Check(arguments[1]) || PyTuple_Check(arguments[1]))) {
    PyErr_SetString(PyExc_TypeError, "are_these(references, tensors)");
    return nullptr;
  }
  const Py_ssize_t length = PyList_GET_SIZE(arguments[0]);
  bool is_same = length == PySequence_Fast_GET_SIZE(arguments[1]);
  for (Py_ssize_t index = 0; is_same && index < length; ++index) {
    PyObject* reference = PyList_GET_ITEM(arguments[0], index);
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* tensor = nullptr;
    if (PyWeakref_GetRef(reference, &tensor) < 0) return nullptr;
    Py_XDECREF(tensor);  // who asks holds it, or it is another
#else
    PyObject* tensor = PyWeakref_GetObject(reference);
    if (tensor == nullptr) return nullptr;
#endif
    is_same = tensor == PySequence_Fast_GET_ITEM(arguments[1], index);
  }
  return PyBool_FromLong(is_same);
}

inline bool is_plain_gradient(PyObject* value) {
  return value == Py_None || (Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(THPVariableClass) &&
                              THPVariable_Unpack(value).defined());
}

// Adds an alias of a tensor to one list or two.
inline bool add_alias(PyObject* value, PyObject* made, PyObject* left) {
  PyObject* alias = THPVariable_Wrap(THPVariable_Unpack(value).detach());
  const bool is_added = alias != nullptr && PyList_Append(made, alias) == 0 &&
                        (left == nullptr || PyList_Append(left, alias) == 0);
  Py_XDECREF(alias);
  return is_added;
}

inline bool fill_aliases(PyObject* inputs, PyObject* outputs, PyObject* left, PyObject* made) {
  const Py_ssize_t arrived = PyList_GET_SIZE(outputs);
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(inputs); ++index) {
    PyObject* one = PyList_GET_ITEM(inputs, index);
    bool is_passed_on = one == Py_None;
    for (Py_ssize_t other = 0; !is_passed_on && other < arrived; ++other)
      is_passed_on = PyList_GET_ITEM(outputs, other) == one;
    if (is_passed_on ? PyList_Append(left, one) != 0 : !add_alias(one, made, left)) return false;
  }
  if (PyList_GET_SIZE(made) > 0) return true;
  for (Py_ssize_t index = 0; index < arrived; ++index) {
    PyObject* one = PyList_GET_ITEM(outputs, index);
    if (one != Py_None && !add_alias(one, made, nullptr)) return false;
  }
  return true;
}

// aliases_of(gradients of inputs, of outputs) -> (those of inputs, with aliases of what is new; what is new), or None
inline PyObject* aliases_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2 || !PyList_Check(arguments[0]) || !PyList_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "aliases_of(list, list)");
    return nullptr;
  }
  for (PyObject* gradients : {arguments[0], arguments[1]})
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(gradients); ++index)
      if (!is_plain_gradient(PyList_GET_ITEM(gradients, index))) Py_RETURN_NONE;
  const auto left = pybind11::list(), made = pybind11::list();
  if (!fill_aliases(arguments[0], arguments[1], left.ptr(), made.ptr())) return nullptr;
  return Py_BuildValue("(OO)", left.ptr(), made.ptr());
  END_HANDLE_TH_ERRORS
}

}  // namespace lists
