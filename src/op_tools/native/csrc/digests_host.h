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

inline void digest_one(const at::Tensor& tensor, const Walk& walk, int64_t* line, const int64_t* known) {
  const auto ordered = tensor.expect_contiguous();
  const void* data = ordered->const_data_ptr();
  TORCH_CHECK(ordered->numel() == walk.numel, "that is the walk of another tensor");
  switch (ordered->scalar_type()) {
    case at::kFloat: return of<Plain<float>>(data, walk, line, known);
    case at::kBFloat16: return of<BFloat16>(data, walk, line, known);
    case at::kHalf: return of<Float16>(data, walk, line, known);
    case at::kDouble: return of<Plain<double>>(data, walk, line, known);
    case at::kLong: return of<Plain<int64_t>>(data, walk, line, known);
    case at::kInt: return of<Plain<int32_t>>(data, walk, line, known);
    case at::kShort: return of<Plain<int16_t>>(data, walk, line, known);
    case at::kChar: return of<Plain<int8_t>>(data, walk, line, known);
    case at::kByte:
    case at::kBool: return of<Plain<uint8_t>>(data, walk, line, known);
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "there is no digest of ", ordered->scalar_type());
  }
}

inline void digest_on_cpu(at::TensorList tensors, at::IntArrayRef walks, at::IntArrayRef known, at::Tensor lines,
                          int64_t first) {
  TORCH_CHECK(lines.scalar_type() == at::kLong && lines.dim() == 2 && lines.size(1) == kLine && lines.is_contiguous() &&
                  first >= 0 && first + static_cast<int64_t>(tensors.size()) <= lines.size(0) &&
                  walks.size() == tensors.size() && known.size() == tensors.size(),
              "there is no room for the digests");
  auto* all = lines.mutable_data_ptr<int64_t>();
  for (size_t number = 0; number < tensors.size(); ++number) {
    const Walk walk(reinterpret_cast<const int64_t*>(walks[number]));
    const int64_t* earlier = known[number] >= 0 && known[number] < first ? all + known[number] * kLine : nullptr;
    digest_one(tensors[number], walk, all + (first + static_cast<int64_t>(number)) * kLine, earlier);
  }
}

inline int64_t address_on_cpu(const at::Tensor& tensor) {
  return reinterpret_cast<int64_t>(tensor.const_data_ptr());
}

// digest(tensors, walks, known, lines, first): writes a line for each tensor, beginning at the first
inline PyObject* digest(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  using Function = void(at::TensorList, at::IntArrayRef, at::IntArrayRef, at::Tensor, int64_t);
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("op_tools::digest", "").typed<Function>();
  TORCH_CHECK_TYPE(count == 5 && PyList_Check(arguments[0]) && python::is_tensor(arguments[3]),
                   "digest(tensors, walks, known, lines, first)");
  std::vector<at::Tensor> tensors;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(arguments[0]); ++index) {
    PyObject* value = PyList_GET_ITEM(arguments[0], index);
    TORCH_CHECK_TYPE(python::is_tensor(value), "these are no tensors");
    tensors.push_back(THPVariable_Unpack(value));
  }
  const auto walks = pybind11::handle(arguments[1]).cast<std::vector<int64_t>>();
  const auto known = pybind11::handle(arguments[2]).cast<std::vector<int64_t>>();
  const at::Tensor lines = THPVariable_Unpack(arguments[3]);
  const auto first = pybind11::handle(arguments[4]).cast<int64_t>();
  {
    pybind11::gil_scoped_release no_lock;
    at::AutoDispatchBelowADInplaceOrView below;
    handle.call(tensors, walks, known, lines, first);
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
       "(tensors, addresses of their walks, lines that may know them, lines, first): writes lines"},
      {"address", address, METH_O, "tensor -> where `digest` finds its elements"},
      {nullptr, nullptr, 0, nullptr}};
  try {
    static torch::Library library(torch::Library::FRAGMENT, "op_tools", std::nullopt, __FILE__, __LINE__);
    library.def("digest(Tensor[] tensors, int[] walks, int[] known, Tensor(a!) lines, int first) -> ()");
    library.def("address(Tensor tensor) -> int");
    library.impl("digest", torch::dispatch(c10::DispatchKey::CPU, digest_on_cpu));
    library.impl("address", torch::dispatch(c10::DispatchKey::CPU, address_on_cpu));
  } catch (const std::exception&) {  // somebody else has taken their names
    return true;
  }
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace digest
