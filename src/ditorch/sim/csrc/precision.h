#pragma once
// 16-bit numbers computed with in float32 and rounded once, as chips do. For products, convolutions and attention where
// DITORCH_SIM_16BIT=float32 asks for it: the CPU's own 16-bit kernels are slow, but their bits are the CPU's. And for every
// kernel that the CPU does not have for a 16-bit dtype at all.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/resize_ops.h>

#include <unordered_set>

namespace ditorch_sim {

using torch::jit::Stack;

inline std::atomic<bool> products_in_float32{false};  // the Python side sets it

inline bool is_attention(const std::string& name) {
  return name.rfind("aten::_scaled_dot_product_flash_attention_for_cpu", 0) == 0;
}
inline bool is_product(const std::string& name) {
  static const std::unordered_set<std::string> products{
      "aten::mm",      "aten::bmm",   "aten::addmm",   "aten::addmm_",  "aten::baddbmm", "aten::baddbmm_",
      "aten::addbmm",  "aten::addbmm_", "aten::mv",    "aten::addmv",   "aten::addmv_",  "aten::addr",
      "aten::addr_",   "aten::dot",   "aten::vdot",    "aten::linear",  "aten::matmul",  "aten::_addmm_activation",
      "aten::convolution", "aten::convolution_backward"};
  return products.count(name) != 0 || is_attention(name);
}

// The dtype to compute in, or none for a dtype that is wide enough.
inline at::ScalarType wide_dtype(at::ScalarType dtype) {
  if (dtype == at::kHalf || dtype == at::kBFloat16) return at::kFloat;
  return dtype == at::kComplexHalf ? at::kComplexFloat : at::ScalarType::Undefined;
}
inline bool is_narrow(at::ScalarType dtype) { return wide_dtype(dtype) != at::ScalarType::Undefined; }

// One call whose 16-bit arguments are float32 while the kernel runs. They are CPU tensors.
class InFloat32 {
 public:
  // `strict`: leaves the arguments as they are where a 16-bit dtype meets another floating-point one, an error in most
  // kernels.
  InFloat32(Stack* stack, size_t first, bool strict) {
    each_argument(stack, first, [&](const Tensor& tensor, int) {
      const auto dtype = tensor.scalar_type();
      if (is_narrow(dtype)) (at::isComplexType(dtype) ? complex_ : real_) = dtype;
      return tensor;
    });
    const bool is_mixed = is_given(real_) && is_given(complex_);
    each_argument(stack, first, [&](const Tensor& tensor, int) {
      const auto dtype = tensor.scalar_type();
      meets_other_ |= (at::isFloatingType(dtype) || at::isComplexType(dtype)) && dtype != real_ && dtype != complex_;
      return tensor;
    });
    active_ = (is_given(real_) || is_given(complex_)) && !(strict && (meets_other_ || is_mixed));
    if (!active_) return;
    each_argument(stack, first, [&](const Tensor& tensor, int argument) {
      if (tensor.scalar_type() != real_ && tensor.scalar_type() != complex_) return tensor;
      changed_.push_back({argument, tensor, tensor.to(wide_dtype(tensor.scalar_type()))});
      return changed_.back().wide;
    });
  }
  bool active() const { return active_; }

  // Rounds what the kernel wrote and returned. `written` are the arguments that it writes to.
  template <class Written>
  void finish(Stack* stack, size_t results, const Written& written) {
    if (!active_) return;
    for (const auto& [argument, narrow, wide] : changed_) {
      if (std::find(written.begin(), written.end(), argument) == written.end()) continue;
      if (narrow.sizes() != wide.sizes()) at::_ops::resize_::call(narrow, wide.sym_sizes(), std::nullopt);
      narrow.copy_(wide);
    }
    each_argument(stack, stack->size() - results, [&](const Tensor& tensor, int) {
      const auto dtype = rounded(tensor.scalar_type());
      return is_given(dtype) ? tensor.to(dtype) : tensor;
    });
  }

 private:
  struct Changed {
    int argument;
    Tensor narrow, wide;
  };
  template <class Change>
  static void each_argument(Stack* stack, size_t first, Change change) {
    for (size_t i = first; i < stack->size(); i++)
      for_each_tensor((*stack)[i], [&](const Tensor& tensor) { return tensor.defined() ? change(tensor, int(i - first)) : tensor; });
  }

  static bool is_given(at::ScalarType dtype) { return dtype != at::ScalarType::Undefined; }
  // What a result of this dtype would be, had the kernel computed in 16 bits: also a complex one of real arguments, and
  // the other way round.
  at::ScalarType rounded(at::ScalarType wide) const {
    if (wide == at::kFloat) return is_given(real_) ? real_ : meets_other_ ? at::ScalarType::Undefined : at::kHalf;
    const bool has_complex = is_given(complex_) || (real_ == at::kHalf && !meets_other_);
    return wide == at::kComplexFloat && has_complex ? at::kComplexHalf : at::ScalarType::Undefined;
  }

  at::ScalarType real_ = at::ScalarType::Undefined, complex_ = at::ScalarType::Undefined;
  bool active_ = false, meets_other_ = false;
  c10::SmallVector<Changed, 4> changed_;
};

}  // namespace ditorch_sim
