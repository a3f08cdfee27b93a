#pragma once
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/resize_ops.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>

namespace ditorch_sim {

// ---- memory --------------------------------------------------------------------------------------------------------

inline void check_layout(std::optional<at::Layout> layout, std::optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided,
                              "the simulated accelerator has no tensors of layout ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "Only dense CPU tensors can be pinned");
}

// Uninitialized memory is filled with NaN, or the largest number, where deterministic algorithms are asked for.
inline Tensor filled_if_deterministic(Tensor tensor) {
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
    auto alias = host_alias(tensor);
    at::native::fill_empty_deterministic_(alias);
  }
  return tensor;
}

inline Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                    std::optional<Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  check_layout(layout, pinned);
  c10::DeviceGuard guard(c10::device_or_default(device));
  return filled_if_deterministic(at::detail::empty_generic(
      size, device_memory(), DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format));
}

inline Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout> layout, std::optional<Device> device, std::optional<bool> pinned) {
  check_layout(layout, pinned);
  c10::DeviceGuard guard(c10::device_or_default(device));
  return filled_if_deterministic(at::detail::empty_strided_generic(
      size, stride, device_memory(), DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype)));
}

inline Tensor lazy_clone(const Tensor& tensor) {
  make_shareable(*tensor.storage().unsafeGetStorageImpl());
  auto storage = c10::impl::cow::lazy_clone_storage(*tensor.storage().unsafeGetStorageImpl());
  TORCH_CHECK(storage, "memory that was lent to the simulated accelerator cannot be cloned lazily: use clone()");
  return wrap(c10::Storage(std::move(storage)), DispatchKey::PrivateUse1, tensor);
}

// A captured copy reads or writes the host's memory anew in each replay, which CUDA can do with pinned memory only.
inline void check_captured_copy(const Tensor& from, const Tensor& to, bool non_blocking) {
  const auto& [device, host] = on_device(from) ? std::tie(from, to) : std::tie(to, from);
  const auto capture = current_capture(device.device().index());
  if (!capture) return;
  TORCH_CHECK(pinned_memory()->contains(host.const_data_ptr()),
              "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
              "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True.");
  if (!non_blocking) refuse(*capture, "a copy between host and device without non_blocking=True");
}

// Every copy to, from and on the device. Between device and host it waits for the stream, unless asked not to and the
// host's side is pinned, as on a real chip.
inline Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (any_capture() && on_device(from) != on_device(to)) check_captured_copy(from, to, non_blocking);
  check_health();
  if (!non_blocking && on_device(from) != on_device(to)) tell_of_waiting("a copy between host and device");
  if (on_device(from) != on_device(to) && (non_blocking || !is_at_rest())) {
    const auto& [device, host] = on_device(from) ? std::tie(from, to) : std::tie(to, from);
    if (!non_blocking || !pinned_memory()->used_by_stream(host.const_data_ptr()))
      wait_for_current_stream(device.device().index());
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  own_memory(to);
  auto target = on_device(to) ? host_alias(to) : to;
  at::_ops::copy_::call(target, on_device(from) ? host_alias(from) : from, false);
  return to;
}

inline Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::_ops::resize_::call(to, c10::fromIntArrayRefSlow(from.sizes()), std::nullopt);
  return copy_from(from, to, false);
}

inline at::Scalar item(const Tensor& tensor) {
  const auto device = tensor.device().index();
  check_stream_may_wait(device, current_stream[device], "tensor.item(), or another way to a value on the host,");
  tell_of_waiting("tensor.item(), or another way to a value on the host");
  wait_for_current_stream(device);
  return at::native::_local_scalar_dense_cpu(host_alias(tensor));
}

// module.to(device) then keeps its Parameter objects, so that tied weights stay tied, as on CUDA.
inline bool has_compatible_shallow_copy_type(const Tensor& one, const Tensor& other) {
  const auto dense = [](const Tensor& t) {
    return t.layout() == c10::kStrided && (t.is_cpu() || on_device(t)) && t.unsafeGetTensorImpl()->has_storage();
  };
  return dense(one) && dense(other);
}

#if TORCH_RELEASE < 206
// Newer releases ask the hooks instead.
inline bool is_pinned(const Tensor& tensor, std::optional<Device>) { return pinned_memory()->contains(tensor.const_data_ptr()); }

inline Tensor pin_memory(const Tensor& tensor, std::optional<Device>) {
  const auto shape = at::_ops::empty_like::call(tensor, {}, {}, {}, {}, {});
  const auto memory = at::detail::empty_generic({tensor.numel()}, pinned_memory(), DispatchKeySet(DispatchKey::CPU),
                                                tensor.scalar_type(), std::nullopt);
  const auto pinned = wrap(memory.storage(), DispatchKey::CPU, shape);
  return pinned.copy_(tensor);
}
#endif

inline void record_stream(Tensor&, Stream) {}  // memory is never reused behind a stream's back

// ---- views ---------------------------------------------------------------------------------------------------------

inline Tensor view(const Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}
inline Tensor as_strided(const Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  const auto start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}
inline Tensor reshape_alias(const Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
inline Tensor& set_storage_view(Tensor& tensor, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, std::move(storage), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}
inline Tensor& set_storage(Tensor& tensor, c10::Storage storage) { return at::native::set_(tensor, std::move(storage)); }
inline Tensor& set_tensor(Tensor& tensor, const Tensor& source) { return at::native::set_tensor_(tensor, source); }
inline Tensor& set_nothing(Tensor& tensor) {
  c10::DeviceGuard guard(tensor.device());  // memory is made on the current one
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, device_memory(), /*resizable=*/true);
  return at::native::set_storage_cpu_(tensor, std::move(none), 0, {0}, {});
}

// ---- arithmetic that no composite and no plain fallback gets right ---------------------------------------------------

// The CPU's kernel takes no generator and would draw from the CPU's own.
inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Aliases aliases;
  const auto device = input.device().index();
  const auto host = aliases.to_host(input);
  auto mask = at::_ops::empty_like::call(host, c10::kBool, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  const double keep = train.value_or(true) ? 1 - p : 1;
  at::_ops::bernoulli__float::call(mask, keep, host_generator(default_generator(device)));
  auto output = at::_ops::mul_Scalar::call(at::_ops::mul_Tensor::call(host, mask), keep == 0 ? 0 : 1 / keep);
  return {aliases.to_device(output, device), aliases.to_device(mask, device)};
}

// The CPU counts floating-point numbers only, chips whole ones, too.
inline void histc(const OperatorHandle& op, Stack* stack) {
  static const Signature signature(op.schema());
  const Tensor input = torch::jit::peek(*stack, 0, 4).toTensor();
  if (!at::isIntegralType(input.scalar_type(), /*includeBool=*/false)) return run_on_host(op, op, signature, stack);
  const int64_t bins = torch::jit::peek(*stack, 1, 4).toInt();
  int64_t low = torch::jit::peek(*stack, 2, 4).toScalar().toLong(), high = torch::jit::peek(*stack, 3, 4).toScalar().toLong();
  TORCH_CHECK(bins > 0, "bins must be > 0");
  TORCH_CHECK(low <= high, "max must be larger than min");
  torch::jit::drop(*stack, 4);
  at::AutoDispatchBelowADInplaceOrView guard;
  Aliases aliases;
  const auto numbers = aliases.to_host(input).reshape({-1}).to(at::kLong);
  if (low == high && numbers.numel() > 0) {
    low = numbers.min().item<int64_t>();
    high = numbers.max().item<int64_t>();
  }
  if (low == high) low--, high++;
  const auto inside = numbers.masked_select(numbers.ge(low).logical_and(numbers.le(high)));
  const auto bin = inside.sub(low).mul(bins).floor_divide(high - low).clamp_max(bins - 1);
  const auto counts = bin.bincount({}, bins).to(input.scalar_type());
  torch::jit::push(*stack, aliases.to_device(counts, input.device().index()));
}

// The CPU adds up complex numbers, but does not leave out those that are NaN; chips do.
inline void nansum(const OperatorHandle& op, Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const Tensor input = (*stack)[first].toTensor();
  if (!input.is_complex()) return run_on_host(op, op, Signature(op.schema()), stack);
  const auto sum = c10::Dispatcher::singleton().findSchemaOrThrow(
      "aten::sum", op.schema().overload_name() == "out" ? "IntList_out" : "dim_IntList");
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    (*stack)[first] = input.masked_fill(input.isnan(), 0);
  }
  run_on_host(op, sum, Signature(sum.schema()), stack);
}

// Convolutions reach a PrivateUse1 device under these two names of their own.
inline void convolution(const OperatorHandle& op, Stack* stack) {
  static const auto kernel = find_operator("aten::convolution");
  static const Signature signature(kernel.schema());
  run_on_host(op, kernel, signature, stack);
}
inline void convolution_backward(const OperatorHandle& op, Stack* stack) {
  static const auto kernel = find_operator("aten::convolution_backward");
  static const Signature signature(kernel.schema());
  // (grad, input, weight, stride, padding, dilation, transposed, output_padding, groups, mask): the CPU's operator
  // wants the bias' size after the weight.
  const size_t first = stack->size() - 10;
  const Tensor weight = (*stack)[first + 2].toTensor();
  const bool transposed = (*stack)[first + 6].toBool();
  const int64_t groups = (*stack)[first + 8].toInt();
  const int64_t bias_size = transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(stack->begin() + first + 3, IValue(c10::List<int64_t>({bias_size})));
  run_on_host(op, kernel, signature, stack);
}

// A number on the device is written to places of a tensor on the host, as CUDA's kernel does: the host waits for it.
inline void index_put(const OperatorHandle& op, Stack* stack) {
  static const Signature signature(op.schema());
  const size_t first = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[first].toTensor(), values = (*stack)[first + 2].toTensor();
  bool all_on_host = self.is_cpu();
  for_each_tensor((*stack)[first + 1], [&](const Tensor& index) { return all_on_host &= !on_device(index), index; });
  if (!all_on_host || values.dim() > 0) return run_on_host(op, op, signature, stack);
  at::AutoDispatchBelowADInplaceOrView guard;
  (*stack)[first + 2] = values.cpu();
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
}

// ---- registration --------------------------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  register_recorded(m, "_copy_from", copy_from);
  register_recorded(m, "_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("record_stream", record_stream);
#if TORCH_RELEASE < 206
  m.impl("is_pinned", is_pinned);
  m.impl("_pin_memory", pin_memory);
#endif
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Storage_storage_offset", set_storage_view);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  register_recorded(m, "native_dropout", native_dropout);
  for (const char* name : {"_linalg_svd", "_linalg_svd.U"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recorded<&linalg_svd>>());
  for (const char* name : {"linalg_lu_factor_ex", "linalg_lu_factor_ex.out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recorded<&lu<false>>>());
  for (const char* name : {"linalg_lu", "linalg_lu.out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recorded<&lu<true>>>());
  for (const char* name : {"_addmm_activation", "_addmm_activation.out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recorded<&addmm_activation>>());
  for (const char* name : {"_fused_sgd_", "_fused_sgd_.tensor_lr"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recorded<&fused_sgd>>());
  register_norms(m);
  m.impl("_index_put_impl_", torch::CppFunction::makeFromBoxedFunction<&recorded<&index_put>>());
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&recorded<&convolution>>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&recorded<&convolution_backward>>());
  register_recorded(m, "_lazy_clone", lazy_clone);
  m.impl("histc", torch::CppFunction::makeFromBoxedFunction<&recorded<&histc>>());
  for (const char* name : {"nansum", "nansum.out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recorded<&nansum>>());
  register_host_kernel(m, "mode", "values");
  for (const char* overload : {"", "periodic", "beta"}) register_host_kernel(m, "kaiser_window", overload);
  for (const auto* name : {"Tensor", "out"}) register_host_kernel(m, "ldexp", name);  // since 2.11
  register_host_kernel(m, "ldexp_", "");
  register_host_kernels(m, kDense);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&late_operator<DispatchKey::CPU>>());
}

TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) {
  // Custom operators without a gradient formula; newer releases bring this fallback along.
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(DispatchKey::AutogradPrivateUse1))
    m.fallback(torch::CppFunction::makeFallthrough());
}
#if TORCH_RELEASE < 207
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}
#endif

// A lazily conjugated or negated source goes straight to _copy_from, or resolve_conj -> clone -> _copy_from recurses.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace ditorch_sim
