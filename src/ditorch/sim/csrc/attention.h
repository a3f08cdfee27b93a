#pragma once
// Fused attention as chips have it: PyTorch asks the device which kernel to take. Where the CPU would take its flash
// kernel so does the device, which keeps the two equal to the last bit; everything else is composed from other kernels.
#if TORCH_RELEASE >= 206
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>

namespace ditorch_sim {

// at::SDPBackend, whose header needs all of ATen
constexpr int64_t kMathAttention = 0, kFlashAttention = 1, kDeviceAttention = 4;

inline std::optional<Tensor> host_alias_of(const std::optional<Tensor>& tensor) {
  return tensor && tensor->defined() ? std::optional<Tensor>(host_alias(*tensor)) : std::nullopt;
}

// A tensor that only stands for another (DTensor, or FakeTensor inside torch.compile) has no memory to look at.
inline bool is_stand_in(const Tensor& tensor) { return tensor.key_set().has(DispatchKey::Python); }

inline int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
                                double dropout, bool causal, std::optional<double> scale, bool grouped) {
  // A mask that wants a gradient gets none from the flash kernel, and one on the CPU is an error that others report.
  const bool mask_fits = !mask || !mask->defined() || (on_device(*mask) && !mask->requires_grad());
  if (!mask_fits || is_stand_in(query) || !on_device(query) || !on_device(key) || !on_device(value) || query.layout() != c10::kStrided)
    return kMathAttention;
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t choice = at::_ops::_fused_sdp_choice::call(host_alias(query), host_alias(key), host_alias(value),
                                                           host_alias_of(mask), dropout, causal, scale, grouped);
  return choice == kFlashAttention ? kDeviceAttention : kMathAttention;
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
    bool causal, bool, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Aliases aliases;
  const auto device = query.device().index();
  auto [output, logsumexp] = at::_ops::_scaled_dot_product_flash_attention_for_cpu::call(
      aliases.to_host(query), aliases.to_host(key), aliases.to_host(value), dropout, causal, host_alias_of(mask), scale);
  return {aliases.to_device(output, device), aliases.to_device(logsumexp, device), {}, {}, query.size(2), key.size(2), {}, {}, {}};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
    std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt,
    c10::SymInt, double dropout, bool causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Aliases aliases;
  const auto device = query.device().index();
  auto [for_query, for_key, for_value] = at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward::call(
      aliases.to_host(gradient), aliases.to_host(query), aliases.to_host(key), aliases.to_host(value),
      aliases.to_host(output), aliases.to_host(logsumexp), dropout, causal,
      mask.defined() ? host_alias_of(mask) : std::nullopt, scale);
  return {aliases.to_device(for_query, device), aliases.to_device(for_key, device), aliases.to_device(for_value, device), {}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace ditorch_sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &ditorch_sim::choose_attention)
}  // namespace at::native
#endif
