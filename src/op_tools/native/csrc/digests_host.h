// digest.h as operators of torch's for the CPU: so the dispatcher decides what a tensor of another device is to them, and
// when. A device that keeps its tensors in the host's memory hands them over as they are; any other has no such kernel.
#pragma once

#include "python.h"

#include "digest.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <vector>

namespace digest {

inline void digest_one(const at::Tensor& tensor, int64_t* line) {
  const auto ordered = tensor.expect_contiguous();
  const void* data = ordered->const_data_ptr();
  const auto layout = layout_of(ordered->sizes().vec());
  switch (ordered->scalar_type()) {
    case at::kFloat: return of<Plain<float, float>>(data, *layout, line);
    case at::kBFloat16: return of<BFloat16>(data, *layout, line);
    case at::kHalf: return of<Float16>(data, *layout, line);
    case at::kDouble: return of<Plain<double, double>>(data, *layout, line);
    case at::kLong: return of<Int64>(data, *layout, line);
    case at::kInt: return of<Plain<int32_t, double>>(data, *layout, line);
    case at::kShort: return of<Plain<int16_t, float>>(data, *layout, line);
    case at::kChar: return of<Plain<int8_t, float>>(data, *layout, line);
    case at::kByte:
    case at::kBool: return of<Plain<uint8_t, float>>(data, *layout, line);
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "there is no digest of ", ordered->scalar_type());
  }
}

inline void digest_on_cpu(at::TensorList tensors, at::Tensor lines, int64_t first) {
  TORCH_CHECK(lines.scalar_type() == at::kLong && lines.dim() == 2 && lines.size(1) == kLine && lines.is_contiguous() &&
              first >= 0 && first + static_cast<int64_t>(tensors.size()) <= lines.size(0),
              "there is no room for the digests");
  auto* line = lines.mutable_data_ptr<int64_t>() + first * kLine;
  for (const at::Tensor& tensor : tensors) {
    digest_one(tensor, line);
    line += kLine;
  }
}

inline int64_t address_on_cpu(const at::Tensor& tensor) {
  return reinterpret_cast<int64_t>(tensor.const_data_ptr());
}

// digest(tensors, lines, first): writes a line for each tensor, beginning at the first
inline PyObject* digest(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  using Function = void(at::TensorList, at::Tensor, int64_t);
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("op_tools::digest", "").typed<Function>();
  TORCH_CHECK_TYPE(count == 3 && python::is_tensor(arguments[1]), "digest(tensors, lines, first)");
  const int64_t first = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred()) return nullptr;
  const auto tensors = python::tensors_of(arguments[0], "digest(tensors, lines, first)");
  const at::Tensor lines = THPVariable_Unpack(arguments[1]);
  {
    pybind11::gil_scoped_release no_gil;
    at::AutoDispatchBelowADInplaceOrView below;
    handle.call(tensors, lines, first);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// address(tensor) -> where the kernels above find its elements
inline PyObject* address(PyObject*, PyObject* value) {
  HANDLE_TH_ERRORS
  using Function = int64_t(const at::Tensor&);
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("op_tools::address", "").typed<Function>();
  TORCH_CHECK_TYPE(python::is_tensor(value), "address(tensor)");
  at::AutoDispatchBelowADInplaceOrView below;
  return PyLong_FromLongLong(handle.call(THPVariable_Unpack(value)));
  END_HANDLE_TH_ERRORS
}

// Not by TORCH_LIBRARY, for what that throws ends the process. Where the operators cannot be had, the module goes without.
inline bool add_to(PyObject* module) {
  static PyMethodDef functions[] = {
      {"digest", python::method(digest), METH_FASTCALL,
       "(tensors, lines, first): writes the digests of tensors of one device into lines of it"},
      {"address", address, METH_O, "tensor -> where `digest` finds its elements"},
      {nullptr, nullptr, 0, nullptr}};
  try {
    static torch::Library library(torch::Library::FRAGMENT, "op_tools", std::nullopt, __FILE__, __LINE__);
    library.def("digest(Tensor[] tensors, Tensor(a!) lines, int first) -> ()");
    library.def("address(Tensor tensor) -> int");
    library.impl("digest", torch::dispatch(c10::DispatchKey::CPU, digest_on_cpu));
    library.impl("address", torch::dispatch(c10::DispatchKey::CPU, address_on_cpu));
  } catch (const std::exception&) {  // their names are taken
    return true;
  }
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace digest
