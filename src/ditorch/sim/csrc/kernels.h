#pragma once
#include <ATen/EmptyTensor.h>
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

namespace ditorch_sim {

// ---- memory --------------------------------------------------------------------------------------------------------

inline void check_layout(std::optional<at::Layout> layout, std::optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided,
                              "the simulated accelerator has strided tensors only, not ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "Only dense CPU tensors can be pinned");
}

inline Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                    std::optional<Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  check_layout(layout, pinned);
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, device_memory(), DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout> layout, std::optional<Device> device, std::optional<bool> pinned) {
  check_layout(layout, pinned);
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, device_memory(), DispatchKeySet(DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// Every copy to, from and on the device. Between device and host it waits for the stream, unless asked not to and the
// host's side is pinned, as on a real chip.
inline Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (!device_clock().idle() && on_device(from) != on_device(to)) {
    const auto& [device, host] = on_device(from) ? std::tie(from, to) : std::tie(to, from);
    if (!non_blocking || !pinned_memory()->contains(host.const_data_ptr())) wait_for_current_stream(device.device().index());
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  auto target = on_device(to) ? host_alias(to) : to;
  at::_ops::copy_::call(target, on_device(from) ? host_alias(from) : from, false);
  return to;
}

inline Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::_ops::resize_::call(to, c10::fromIntArrayRefSlow(from.sizes()), std::nullopt);
  return copy_from(from, to, false);
}

inline at::Scalar item(const Tensor& tensor) {
  wait_for_current_stream(tensor.device().index());
  return at::native::_local_scalar_dense_cpu(host_alias(tensor));
}

// module.to(device) then keeps its Parameter objects, so that tied weights stay tied, as on CUDA.
inline bool has_compatible_shallow_copy_type(const Tensor& one, const Tensor& other) {
  const auto dense = [](const Tensor& t) {
    return t.layout() == c10::kStrided && (t.is_cpu() || on_device(t)) && t.unsafeGetTensorImpl()->has_storage();
  };
  return dense(one) && dense(other);
}

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

inline OperatorHandle find_operator(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

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

// torch.linalg.svd(driver=) names an algorithm of cuSOLVER's, which the CPU refuses.
inline void linalg_svd(const OperatorHandle& op, Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  (*stack)[first + 3] = IValue();  // (matrix, full_matrices, compute_uv, driver, …)
  run_on_host(op, op, Signature(op.schema()), stack);
}

// ---- registration --------------------------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("record_stream", record_stream);
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Storage_storage_offset", set_storage_view);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("native_dropout", native_dropout);
  m.impl("_linalg_svd", torch::CppFunction::makeFromBoxedFunction<&linalg_svd>());
  m.impl("_linalg_svd.U", torch::CppFunction::makeFromBoxedFunction<&linalg_svd>());
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());

  // Every operator with a CPU kernel of its own gets that kernel, also where a composite one would stand in the
  // fallback's way: fewer steps per call, and results equal to the CPU's.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::CPU) || op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) continue;
    const auto full_name = c10::toString(name);
    m.impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(op->schema())));
  }
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&late_operator>()); }

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
