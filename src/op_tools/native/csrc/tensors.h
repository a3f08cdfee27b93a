// Many tensors at once: what op_tools.values.tensors asks of each in Python.
#pragma once

#include "places.h"

#include <torch/csrc/DynamicTypes.h>

namespace tensors {

// Whether its memory is there, and can be looked at together with that of `first`.
inline bool is_plain(const at::Tensor& tensor, const at::Tensor& first) {
  return places::is_there(tensor) && !tensor.is_inference() && tensor.scalar_type() == first.scalar_type() &&
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

}  // namespace tensors
