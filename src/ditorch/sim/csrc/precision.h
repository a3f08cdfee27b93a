#pragma once
// DITORCH_SIM_16BIT=float32: products and convolutions of 16-bit numbers are computed in float32 and rounded once, as chips
// do. Without it they are the CPU's own, to the last bit, whose 16-bit kernels are slow.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/resize_ops.h>

#include <unordered_set>

namespace ditorch_sim {

using torch::jit::Stack;

inline std::atomic<bool> products_in_float32{false};  // the Python side sets it

inline bool is_product(const std::string& name) {
  static const std::unordered_set<std::string> products{
      "aten::mm",      "aten::bmm",      "aten::addmm",  "aten::addmm_",  "aten::baddbmm", "aten::baddbmm_", "aten::addbmm",
      "aten::addbmm_", "aten::mv",       "aten::addmv",  "aten::addmv_",  "aten::dot",     "aten::vdot",     "aten::linear",
      "aten::addr",    "aten::addr_",    "aten::matmul", "aten::_addmm_activation",
      "aten::convolution", "aten::convolution_backward",
      "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};
  return products.count(name) != 0;
}

inline bool is_16_bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// One call whose 16-bit arguments are float32 while the kernel runs.
class InFloat32 {
 public:
  // `arguments` are CPU tensors. They stay as they are where they are not all of one 16-bit dtype: an error, or none of
  // our business.
  InFloat32(Stack* stack, size_t first) {
    bool mixed = false;
    for (size_t i = first; i < stack->size(); i++) {
      const auto& argument = (*stack)[i];
      if (!argument.isTensor() || !argument.toTensor().defined()) continue;
      const auto dtype = argument.toTensor().scalar_type();
      if (!at::isFloatingType(dtype)) continue;
      mixed |= dtype_ != at::ScalarType::Undefined && dtype != dtype_;
      dtype_ = dtype;
    }
    active_ = !mixed && dtype_ != at::ScalarType::Undefined && is_16_bit(dtype_);
    if (!active_) return;
    for (size_t i = first; i < stack->size(); i++) {
      auto& argument = (*stack)[i];
      if (!argument.isTensor() || !argument.toTensor().defined() || argument.toTensor().scalar_type() != dtype_) continue;
      narrow_.emplace_back(i - first, argument.toTensor());
      argument = argument.toTensor().to(at::kFloat);
      wide_.push_back(argument.toTensor());
    }
  }

  // Rounds what the kernel wrote and returned. `written` are the arguments that it writes to.
  template <class Written>
  void finish(Stack* stack, size_t results, const Written& written) {
    if (!active_) return;
    for (size_t n = 0; n < narrow_.size(); n++) {
      if (std::find(written.begin(), written.end(), int(narrow_[n].first)) == written.end()) continue;
      const auto& target = narrow_[n].second;
      if (target.sizes() != wide_[n].sizes()) at::_ops::resize_::call(target, wide_[n].sym_sizes(), std::nullopt);
      target.copy_(wide_[n]);
    }
    for (size_t i = stack->size() - results; i < stack->size(); i++) {
      auto& result = (*stack)[i];
      if (result.isTensor() && result.toTensor().defined() && result.toTensor().scalar_type() == at::kFloat)
        result = result.toTensor().to(dtype_);
    }
  }

 private:
  at::ScalarType dtype_ = at::ScalarType::Undefined;
  bool active_ = false;
  c10::SmallVector<std::pair<size_t, Tensor>, 4> narrow_;
  c10::SmallVector<Tensor, 4> wide_;
};

}  // namespace ditorch_sim
