// Many tensors at once: what op_tools.tensors asks of each in Python.
#pragma once

#include "python.h"

#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <vector>

namespace lists {

// Whether its memory is there, and can be looked at together with that of `first`.
inline bool is_plain(const at::Tensor& tensor, const at::Tensor& first) {
  const auto* implementation = tensor.unsafeGetTensorImpl();
  return tensor.defined() && tensor.layout() == c10::kStrided && implementation->has_storage() &&
         !implementation->has_symbolic_sizes_strides() && !tensor.is_inference() &&
         tensor.scalar_type() == first.scalar_type() && tensor.device() == first.device() && !tensor.is_cpu() &&
         tensor.numel() > 0 && implementation->unsafe_storage().nbytes() > 0;
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

// places_of(tensors, piece) -> (pointer and 4 * length + kind for each, first block of each, how many blocks), or None:
// the table of reductions/largest.cu
inline PyObject* places_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  PyObject* tensors = count == 2 ? arguments[0] : nullptr;
  if (tensors == nullptr || !PyList_Check(tensors)) {
    PyErr_SetString(PyExc_TypeError, "places_of(tensors, piece)");
    return nullptr;
  }
  const uint64_t piece = PyLong_AsUnsignedLongLong(arguments[1]);
  if (PyErr_Occurred()) return nullptr;
  std::vector<uint64_t> items;
  std::vector<uint32_t> first_blocks;
  uint32_t blocks = 0;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(tensors); ++index) {
    PyObject* value = PyList_GET_ITEM(tensors, index);
    if (!python::is_tensor(value)) Py_RETURN_NONE;
    const at::Tensor& tensor = THPVariable_Unpack(value);
    const auto* implementation = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || tensor.layout() != c10::kStrided || !implementation->has_storage() ||
        implementation->has_symbolic_sizes_strides() || !tensor.is_non_overlapping_and_dense())
      Py_RETURN_NONE;
    uint64_t kind = 0;
    switch (tensor.scalar_type()) {
      case at::kFloat: kind = 0; break;
      case at::kBFloat16: kind = 1; break;
      case at::kHalf: kind = 2; break;
      case at::kDouble: kind = 3; break;
      default: Py_RETURN_NONE;
    }
    const auto address = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
    if (address == 0) Py_RETURN_NONE;
    const auto length = static_cast<uint64_t>(tensor.numel());
    items.push_back(address);
    items.push_back(4 * length + kind);
    first_blocks.push_back(blocks);
    blocks += static_cast<uint32_t>(std::max<uint64_t>(1, (length + piece - 1) / piece));
  }
  return Py_BuildValue("(y#y#I)", items.data(), static_cast<Py_ssize_t>(items.size() * sizeof(uint64_t)),
                       first_blocks.data(), static_cast<Py_ssize_t>(first_blocks.size() * sizeof(uint32_t)), blocks);
  END_HANDLE_TH_ERRORS
}

}  // namespace lists
