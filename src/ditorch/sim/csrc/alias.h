#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/clone_ops.h>

namespace ditorch_sim {

inline bool on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kSim; }

// The CPU storage behind a device storage. Lazy clones share it: who is going to write asks for `own_memory` first.
inline c10::Storage host_of(const c10::Storage& storage) {
  check_recorded(storage.device().index());
  const auto& data = storage.data_ptr();
  if (C10_LIKELY(data.get_deleter() == &free_block)) return static_cast<Block*>(data.get_context())->host;
  if (const auto* block = shared_blocks().find(data.get())) return block->host;
  // Memory that is not ours (a zero-byte storage, a blob lent by somebody): borrow it for this call.
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(const_cast<void*>(storage.data()), Device(c10::DeviceType::CPU)), nullptr, /*resizable=*/false));
}

// Makes a lazy clone that is to be written to a tensor of its own.
inline void own_memory(const Tensor& tensor) {
  if (!on_device(tensor) || !is_dense(tensor) || tensor.storage().data_ptr().get_deleter() == &free_block) return;
  c10::DeviceGuard guard(tensor.device());
  tensor.storage().mutable_data();
}

inline Tensor wrap(c10::Storage storage, DispatchKey key, const Tensor& like) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) result._set_conj(true);
  if (like.is_neg()) result._set_neg(true);
  return result;
}

inline Tensor dense_alias(const Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(is_dense(tensor), "the simulated accelerator has no tensors of layout ", tensor.layout());
  return wrap(host_of(tensor.storage()), DispatchKey::CPU, tensor);
}
inline Tensor host_alias(const Tensor& tensor) {
  return C10_LIKELY(is_dense(tensor)) ? dense_alias(tensor) : rebuilt(tensor, Device(c10::DeviceType::CPU), dense_alias);
}

// Replaces every tensor in an argument or result, also in (nested) lists, by what `change` makes of it.
template <class Change>
void for_each_tensor(c10::IValue& value, Change change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const c10::IValue& item : value.toListRef())
      list.push_back(item.isTensor() ? std::optional<Tensor>(change(item.toTensor())) : std::nullopt);
    value = std::move(list);
  } else if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::ListType) {
    auto lists = value.toList();
    for (size_t i = 0; i < lists.size(); i++) {
      c10::IValue inner = lists.get(i);
      for_each_tensor(inner, change);
      lists.set(i, inner);
    }
  }
}

// The device tensors of one operator call and their CPU aliases.
class Aliases {
 public:
  // `may_grow`: the kernel may give its arguments new memory. It then gets the old one on loan, so that nothing has
  // changed if there is no room for the new.
  explicit Aliases(bool may_grow = false) : may_grow_(may_grow) {}

  Tensor to_host(const Tensor& tensor) {
    if (C10_LIKELY(is_dense(tensor))) return dense_to_host(tensor);
    auto alias = rebuilt(tensor, Device(c10::DeviceType::CPU), [&](const Tensor& part) { return dense_to_host(part); });
    composed_.emplace_back(tensor, alias);
    return alias;
  }

  // A kernel's result as a device tensor: a view of an argument stays one, fresh memory is adopted, nothing is copied.
  Tensor to_device(const Tensor& result, DeviceIndex device) {
    if (!result.defined() || !result.is_cpu()) return result;
    if (result._is_zerotensor()) return to_device(at::_ops::clone::call(result, std::nullopt), device);  // has no memory
    if (C10_LIKELY(is_dense(result)))
      return wrap(device_storage(result.storage(), device), DispatchKey::PrivateUse1, result);
    return rebuilt(result, Device(kSim, device), [&](const Tensor& part) { return to_device(part, device); });
  }

  // A kernel that writes its arguments may also resize or restride them, and give them new memory.
  void write_back() {
    for (const auto& [tensor, alias] : pairs_) {
      const auto &to = tensor.storage(), &from = alias.storage();
      if (to.data() != from.data() || to.nbytes() != from.nbytes()) {
        to.unsafeGetStorageImpl()->set_data_ptr_noswap(adopt_memory(from, tensor.device().index()));
        to.unsafeGetStorageImpl()->set_nbytes(from.nbytes());
      }
      if (tensor.sizes() != alias.sizes() || tensor.strides() != alias.strides() ||
          tensor.storage_offset() != alias.storage_offset())
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      // linalg_lu_solve.out marks its result as conjugated instead of conjugating it
      if (tensor.is_conj() != alias.is_conj()) tensor._set_conj(alias.is_conj());
      if (tensor.is_neg() != alias.is_neg()) tensor._set_neg(alias.is_neg());
    }
    for (const auto& [tensor, alias] : composed_) {
      const auto device = tensor.device().index();
      assign_parts(tensor, alias, [&](const Tensor& part) { return to_device(part, device); });
    }
  }

 private:
  Tensor dense_to_host(const Tensor& tensor) {
    auto alias = C10_UNLIKELY(may_grow_) ? wrap(lent(tensor.storage()), DispatchKey::CPU, tensor) : dense_alias(tensor);
    pairs_.emplace_back(tensor, alias);
    return alias;
  }

  c10::Storage lent(const c10::Storage& storage) {
    for (const auto& [tensor, alias] : pairs_)  // one alias per storage: kernels look for overlaps by storage
      if (tensor.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return alias.storage();
    const auto host = host_of(storage);
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), host.nbytes(),
        c10::DataPtr(host.mutable_data(), Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(), /*resizable=*/true));
  }

  c10::Storage device_storage(const c10::Storage& host, DeviceIndex device) {
    const auto* wanted = host.unsafeGetStorageImpl();
    for (const auto& [tensor, alias] : pairs_)
      if (alias.storage().unsafeGetStorageImpl() == wanted) return tensor.storage();
    for (const auto& [seen, storage] : adopted_)  // several results may share one storage
      if (seen == wanted) return storage;
    c10::Storage fresh(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), host.nbytes(),
                                                             adopt_memory(host, device), device_memory(),
                                                             /*resizable=*/true));
    adopted_.emplace_back(wanted, fresh);
    return fresh;
  }

  bool may_grow_;
  c10::SmallVector<std::pair<Tensor, Tensor>, 8> pairs_;     // dense tensors, also those that others are made of
  c10::SmallVector<std::pair<Tensor, Tensor>, 1> composed_;  // sparse and nested tensors
  c10::SmallVector<std::pair<const c10::StorageImpl*, c10::Storage>, 4> adopted_;
};

}  // namespace ditorch_sim
