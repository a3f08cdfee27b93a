#pragma once
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/resize_ops.h>
#include <ATen/ops/to_ops.h>

namespace ditorch_sim {

// The 16-bit types that chips have a kernel for and the CPU does not. Found by comparing the dtypes that torch's own
// op_db lists for CUDA and for the CPU.
inline bool cpu_lacks(const std::string& name, at::ScalarType type) {
  static const std::unordered_set<std::string> any{
      "aten::avg_pool3d",                "aten::avg_pool3d_backward",
      "aten::_upsample_bilinear2d_aa",   "aten::_upsample_bilinear2d_aa_backward",
      "aten::_upsample_bicubic2d_aa",    "aten::_upsample_bicubic2d_aa_backward",
      "aten::multi_margin_loss",         "aten::multi_margin_loss_backward",
      "aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_backward"};
  static const std::unordered_set<std::string> half{
      "aten::rrelu_with_noise", "aten::rrelu_with_noise_", "aten::rrelu_with_noise_backward", "aten::polygamma"};
  if (type == at::kHalf) return any.count(name) || half.count(name);
  return type == at::kBFloat16 && any.count(name);
}

// Such an operator: computed in float32 and rounded once, as chips do.
class WiderKernel final : public c10::OperatorKernel {
 public:
  explicit WiderKernel(const c10::FunctionSchema& schema) : signature_(schema), name_(schema.name()) {}

  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const size_t first = stack->size() - op.schema().arguments().size();
    c10::SmallVector<Tensor, 4> narrow, wide;
    for (int i : signature_.written) narrow.push_back((*stack)[first + i].toTensor());
    std::optional<at::ScalarType> type;
    for (size_t i = first; i < stack->size(); i++) {
      for_each_tensor((*stack)[i], [&](const Tensor& tensor) {
        if (!on_device(tensor) || !cpu_lacks(name_, tensor.scalar_type())) return tensor;
        type = tensor.scalar_type();
        return converted(tensor, at::kFloat);
      });
    }
    for (int i : signature_.written) wide.push_back((*stack)[first + i].toTensor());

    run_on_host(op, op, signature_, stack);
    if (!type) return;

    for (size_t i = 0; i < narrow.size(); i++) {
      if (narrow[i].is_same(wide[i])) continue;
      if (narrow[i].sizes() != wide[i].sizes())
        at::_ops::resize_::call(narrow[i], c10::fromIntArrayRefSlow(wide[i].sizes()), std::nullopt);
      at::_ops::copy_::call(narrow[i], wide[i], false);
    }
    const size_t first_result = stack->size() - signature_.returned.size();
    for (size_t i = 0; i < signature_.returned.size(); i++) {
      IValue& result = (*stack)[first_result + i];
      if (signature_.returned[i] < 0) {
        for_each_tensor(result, [&](const Tensor& t) { return t.scalar_type() == at::kFloat ? converted(t, *type) : t; });
      } else {
        for (size_t w = 0; w < narrow.size(); w++)
          if (signature_.written[w] == signature_.returned[i]) result = narrow[w];
      }
    }
  }

 private:
  static Tensor converted(const Tensor& tensor, at::ScalarType type) {
    return at::_ops::to_dtype::call(tensor, type, false, false, std::nullopt);
  }
  Signature signature_;
  std::string name_;
};

}  // namespace ditorch_sim
