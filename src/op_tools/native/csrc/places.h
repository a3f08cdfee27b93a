// Where tensors lie: what op_tools.autocompare.places asks of them in Python.
#pragma once

#include "python.h"

#include <algorithm>
#include <vector>

namespace places {

// It has an address, and sizes and strides that are numbers.
inline bool is_there(const at::Tensor& tensor) {
  const auto* implementation = tensor.unsafeGetTensorImpl();
  return tensor.defined() && tensor.layout() == c10::kStrided && implementation->has_storage() &&
         !implementation->has_symbolic_sizes_strides() && !tensor.is_nested();
}

// Its numbers can be looked at as they are.
inline bool is_plain(const at::Tensor& tensor) {
  return is_there(tensor) && !tensor.is_complex() && !tensor.is_neg();
}

inline uint64_t address_of(const at::Tensor& tensor) {
  return reinterpret_cast<uint64_t>(tensor.const_data_ptr());
}

inline bool has_numbers(const at::Tensor& tensor) {
  return tensor.numel() > 0 && !tensor._is_zerotensor();
}

// beside(got, expected) -> (elements, bytes, address of each, whether both are in order), or None
inline PyObject* beside(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2 || !python::is_tensor(arguments[0]) || !python::is_tensor(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "beside(got, expected)");
    return nullptr;
  }
  const at::Tensor& got = THPVariable_Unpack(arguments[0]);
  const at::Tensor& expected = THPVariable_Unpack(arguments[1]);
  if (!is_plain(got) || !is_plain(expected) || got.device() != expected.device() || got.sizes() != expected.sizes())
    Py_RETURN_NONE;
  const bool are_in_order = got.is_contiguous() && expected.is_contiguous();
  const bool lie_alike = are_in_order || (got.strides() == expected.strides() && got.is_non_overlapping_and_dense());
  const bool can_be_read = lie_alike && has_numbers(got) && has_numbers(expected);
  return Py_BuildValue("(LLKKO)", static_cast<long long>(got.numel()),
                       static_cast<long long>(got.nbytes() + expected.nbytes()),
                       static_cast<unsigned long long>(can_be_read ? address_of(got) : 0),
                       static_cast<unsigned long long>(can_be_read ? address_of(expected) : 0),
                       are_in_order ? Py_True : Py_False);
  END_HANDLE_TH_ERRORS
}

// bytes_taken(tensors) -> the memory that they lie in, each piece once; None where one has none that can be told
inline PyObject* bytes_taken(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  if (!PyList_Check(tensors)) {
    PyErr_SetString(PyExc_TypeError, "bytes_taken(tensors)");
    return nullptr;
  }
  std::vector<const c10::StorageImpl*> pieces;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(tensors); ++index) {
    PyObject* value = PyList_GET_ITEM(tensors, index);
    if (!python::is_tensor(value)) Py_RETURN_NONE;
    const auto* implementation = THPVariable_Unpack(value).unsafeGetTensorImpl();
    if (!implementation->has_storage()) Py_RETURN_NONE;
    pieces.push_back(implementation->unsafe_storage().unsafeGetStorageImpl());
  }
  std::sort(pieces.begin(), pieces.end());
  pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
  size_t bytes = 0;
  for (const auto* piece : pieces) bytes += piece->nbytes();
  return PyLong_FromSize_t(bytes);
  END_HANDLE_TH_ERRORS
}

}  // namespace places
