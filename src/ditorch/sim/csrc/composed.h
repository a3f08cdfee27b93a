#pragma once
// Operators of sparse and nested tensors. Nearly all are the CPU's, run on aliases; here are those that only look at
// what a tensor is made of, and whose results are parts of it, or lie on the CPU.
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/values_native.h>

namespace ditorch_sim {

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_indices", at::native::_indices_sparse);
  m.impl("_values", at::native::_values_sparse);
  m.impl("indices", at::native::indices_sparse);
  m.impl("values", at::native::values_sparse);
  register_host_kernels(m, kSparse);
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&late_operator<DispatchKey::SparseCPU>>());
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("crow_indices", at::native::crow_indices_sparse_csr);
  m.impl("col_indices", at::native::col_indices_sparse_csr);
  m.impl("ccol_indices", at::native::ccol_indices_sparse_csr);
  m.impl("row_indices", at::native::row_indices_sparse_csr);
  m.impl("values", at::native::values_sparse_csr);
  register_host_kernels(m, kCompressed);
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&late_operator<DispatchKey::SparseCsrCPU>>());
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  // shapes lie on the CPU, whatever the device
  m.impl("_nested_tensor_size", at::native::_nested_tensor_size);
  m.impl("_nested_tensor_strides", at::native::_nested_tensor_strides);
  m.impl("_nested_tensor_storage_offsets", at::native::_nested_tensor_storage_offsets);
  m.impl("_to_copy", at::native::_to_copy_nested);
  m.impl("copy_", at::native::copy_nested_);
  register_host_kernels(m, kNested);
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&late_operator<DispatchKey::NestedTensorCPU>>());
}

}  // namespace ditorch_sim
