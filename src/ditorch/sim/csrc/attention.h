#pragma once
// Fused attention as chips have it: PyTorch asks the device which kernel to take. Where the CPU would take its flash
// kernel so does the device, which keeps the two equal to the last bit; everything else is composed from other kernels.
#if TORCH_RELEASE >= 206
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace ditorch_sim {

// at::SDPBackend, whose header needs all of ATen
constexpr int64_t kMathAttention = 0, kFlashAttention = 1, kEfficientAttention = 2, kCudnnAttention = 3, kDeviceAttention = 4;

// DITORCH_SIM_16BIT=float32 concerns attention, too.
inline at::ScalarType attention_dtype(const Tensor& query) {
  const bool wide = products_in_float32 && is_narrow(query.scalar_type());
  return wide ? wide_dtype(query.scalar_type()) : query.scalar_type();
}

inline std::optional<Tensor> mask_on_host(const std::optional<Tensor>& mask, at::ScalarType dtype) {
  if (!mask || !mask->defined()) return std::nullopt;
  const auto host = host_alias(*mask);
  return is_narrow(host.scalar_type()) ? host.to(dtype) : host;
}

// Inside torch.compile tensors only stand for others (FakeTensor, FunctionalTensor), and the graph takes kernels that it
// knows. A DTensor's own tensors come here again.
inline bool is_traced(const Tensor& tensor) {
  if (!tensor.key_set().has(DispatchKey::Python)) return false;
  using Modes = c10::impl::TorchDispatchModeTLS;
  using Mode = c10::impl::TorchDispatchModeKey;
  return Modes::get_mode(Mode::FAKE) || Modes::get_mode(Mode::PROXY) || Modes::get_mode(Mode::FUNCTIONAL) ||
         tensor.storage().device_type() != kSim || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// DTensor needs the shapes of a kernel's results before it runs; releases before 2.7 do not know them.
inline bool can_be_wrapped() {
  static const bool known = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("aten::_scaled_dot_product_fused_attention_overrideable", "")
                                .hasKernelForDispatchKey(DispatchKey::Meta);
  return known;
}

// A host tensor of the same shape, without memory: all that the choice looks at.
inline Tensor shape_on_host(const Tensor& tensor) {
  static const c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, Device(c10::DeviceType::CPU)));
  return wrap(nothing, DispatchKey::CPU, tensor);
}

// Where a program has switched the composed kernel off (sdpa_kernel) it means one of CUDA's fused kernels. The CPU's flash
// kernel does what it can; ditorch/sim/attention.py the rest, under the name that was asked for.
inline int64_t choose_fused_attention(const Tensor& query, const Tensor& value, bool mask_fits, double dropout) {
  const auto& context = at::globalContext();
  const bool flash_fits = mask_fits && dropout == 0 && query.dim() == 4 && query.size(3) == value.size(3) && query.numel() > 0;
  if (context.userEnabledFlashSDP() && flash_fits) return kDeviceAttention;
  if (context.userEnabledCuDNNSDP() && !context.userEnabledMemEfficientSDP() && mask_fits) return kCudnnAttention;
  return kEfficientAttention;
}

inline int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
                                double dropout, bool causal, std::optional<double> scale, bool grouped) {
  // A mask that wants a gradient gets none from the flash kernel, and one on the CPU is an error that others report.
  const bool has_mask = mask && mask->defined();
  const bool mask_fits = !has_mask || (on_device(*mask) && !mask->requires_grad());
  const bool on_host = (has_mask && !on_device(*mask)) || !on_device(query) || !on_device(key) || !on_device(value);
  if (on_host || query.layout() != c10::kStrided || query.is_nested() || is_traced(query) ||
      (query.key_set().has(DispatchKey::Python) && !can_be_wrapped()))
    return kMathAttention;
  const auto& context = at::globalContext();
  if (!context.userEnabledMathSDP() &&
      (context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP()))
    return choose_fused_attention(query, value, mask_fits, dropout);
  if (!mask_fits) return kMathAttention;
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t choice = at::_ops::_fused_sdp_choice::call(
      shape_on_host(query), shape_on_host(key), shape_on_host(value),
      has_mask ? std::optional<Tensor>(shape_on_host(*mask)) : std::nullopt, dropout, causal, scale, grouped);
  return choice == kFlashAttention ? kDeviceAttention : kMathAttention;
}

inline Tensor zeros_of(const Tensor& tensor) { return at::_ops::zeros_like::call(tensor, {}, {}, {}, {}, {}); }

inline std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
    bool causal, bool, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView guard;
  if (query.numel() == 0)  // a process that got no head or no batch; the CPU's kernel divides by their number
    return {zeros_of(query), zeros_of(query).sum(-1), {}, {}, query.size(2), key.size(2), {}, {}, {}};
  Aliases aliases;
  const auto device = query.device().index();
  const auto dtype = attention_dtype(query);
  auto [output, logsumexp] = at::_ops::_scaled_dot_product_flash_attention_for_cpu::call(
      aliases.to_host(query).to(dtype), aliases.to_host(key).to(dtype), aliases.to_host(value).to(dtype), dropout, causal,
      mask_on_host(mask, dtype), scale);
  return {aliases.to_device(output.to(query.scalar_type()), device), aliases.to_device(logsumexp, device), {}, {}, query.size(2), key.size(2), {}, {}, {}};
}

// PyTorch expects a gradient of this kernel to be laid out like its input, and lets DTensor plan with it.
inline Tensor laid_out_like(const Tensor& input, const Tensor& gradient) {
  if (gradient.strides() == input.strides() && gradient.scalar_type() == input.scalar_type()) return gradient;
  const auto result = at::_ops::empty_like::call(input, {}, {}, {}, {}, {});
  return result.copy_(gradient);
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
    std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt,
    c10::SymInt, double dropout, bool causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  if (!gradient.defined()) return {};  // nothing that depends on the output was differentiated
  at::AutoDispatchBelowADInplaceOrView guard;
  if (query.numel() == 0) return {zeros_of(query), zeros_of(key), zeros_of(value), {}};
  Aliases aliases;
  const auto device = query.device().index();
  const auto host_query = aliases.to_host(query), host_key = aliases.to_host(key), host_value = aliases.to_host(value);
  const auto dtype = attention_dtype(query);
  auto [for_query, for_key, for_value] = at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward::call(
      aliases.to_host(gradient).to(dtype), host_query.to(dtype), host_key.to(dtype), host_value.to(dtype),
      aliases.to_host(output).to(dtype), aliases.to_host(logsumexp), dropout, causal, mask_on_host(mask, dtype), scale);
  return {aliases.to_device(laid_out_like(host_query, for_query), device),
          aliases.to_device(laid_out_like(host_key, for_key), device),
          aliases.to_device(laid_out_like(host_value, for_value), device), {}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_recorded(m, "_scaled_dot_product_fused_attention_overrideable", attention);
  register_recorded(m, "_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace ditorch_sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &ditorch_sim::choose_attention)
}  // namespace at::native
#endif
