#pragma once
// Tensors that are made of dense ones: sparse (COO and compressed) and nested. Each is taken apart and put together again
// from parts on another device; what it is besides its parts stays.
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace ditorch_sim {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

// The device's dispatch keys and the CPU's that do the work.
struct KeyPair {
  DispatchKey device, host;
};
constexpr KeyPair kDense{DispatchKey::PrivateUse1, DispatchKey::CPU};
constexpr KeyPair kSparse{DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU};
constexpr KeyPair kCompressed{DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU};
constexpr KeyPair kNested{DispatchKey::NestedTensorPrivateUse1, DispatchKey::NestedTensorCPU};

inline DispatchKey key_of(KeyPair keys, Device device) { return device.type() == kSim ? keys.device : keys.host; }

inline bool is_compressed(c10::Layout layout) {
  return layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr || layout == c10::kSparseBsc;
}
inline bool is_dense(const Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_nested() && tensor.unsafeGetTensorImpl()->has_storage();
}

template <class Impl>
Impl* impl_of(const Tensor& tensor) {
  return static_cast<Impl*>(tensor.unsafeGetTensorImpl());
}

// Gives `to` the parts of `from`, after `change`. A nested tensor's one part is its memory, which never changes hands.
template <class Change>
void assign_parts(const Tensor& to, const Tensor& from, Change change) {
  if (from.layout() == c10::kSparse) {
    auto *target = impl_of<at::SparseTensorImpl>(to), *source = impl_of<at::SparseTensorImpl>(from);
    target->raw_resize_(source->sparse_dim(), source->dense_dim(), source->sizes());
    target->set_indices_and_values_unsafe(change(source->indices()), change(source->values()));
    target->set_coalesced(source->coalesced());
  } else if (is_compressed(from.layout())) {
    auto *target = impl_of<at::SparseCsrTensorImpl>(to), *source = impl_of<at::SparseCsrTensorImpl>(from);
    target->set_layout(source->layout_impl());
    target->set_member_tensors(change(source->compressed_indices()), change(source->plain_indices()),
                               change(source->values()), source->sizes());
  }
}

// The same tensor made of other parts, on `device`.
template <class Change>
Tensor rebuilt(const Tensor& whole, Device device, Change change) {
  if (whole.is_nested()) {
    const auto* nested = impl_of<at::native::NestedTensorImpl>(whole);
    return at::detail::make_tensor<at::native::NestedTensorImpl>(
        change(nested->get_unsafe_storage_as_tensor()), nested->get_nested_sizes(), nested->get_nested_strides(),
        nested->get_storage_offsets());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(whole.layout() == c10::kSparse || is_compressed(whole.layout()),
                              "the simulated accelerator has no tensors of layout ", whole.layout());
  c10::DeviceGuard guard(device);
  Tensor result = whole.layout() == c10::kSparse
      ? at::detail::make_tensor<at::SparseTensorImpl>(DispatchKeySet(key_of(kSparse, device)), whole.dtype())
      : at::detail::make_tensor<at::SparseCsrTensorImpl>(DispatchKeySet(key_of(kCompressed, device)), device,
                                                         whole.layout(), whole.dtype());
  assign_parts(result, whole, change);
  return result;
}

}  // namespace ditorch_sim
