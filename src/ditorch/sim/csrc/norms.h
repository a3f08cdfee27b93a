#pragma once
// Normalizations of 16-bit numbers. Chips keep the statistics of a layer norm in float32, the CPU only where weight and
// bias are float32; chips take running statistics of float32 with weights of 16 bits, the CPU refuses them.
#include <ATen/ops/ones.h>

namespace ditorch_sim {

inline bool is_given(const IValue& tensor) { return tensor.isTensor() && tensor.toTensor().defined(); }

// The CPU's kernel with weight and bias in float32, wherever the statistics are.
class NormKernel final : public c10::OperatorKernel {
 public:
  explicit NormKernel(const c10::FunctionSchema& schema) : signature_(schema), arguments_(schema.arguments().size()) {
    for (int i = 0; i < static_cast<int>(arguments_); i++) {
      const auto& name = schema.arguments()[i].name();
      if (name == "input") input_ = i;
      if (name == "normalized_shape") shape_ = i;
      if (name == "weight" || name == "bias") weights_.push_back(i);
      if (name == "mean" || name.rfind("running_", 0) == 0 || name.rfind("save_", 0) == 0) statistics_.push_back(i);
    }
    is_backward_ = input_ > 0;
  }

  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
    if (is_recorded(op, stack)) return;
    const size_t first = stack->size() - arguments_;
    const Tensor input = (*stack)[first + input_].toTensor();
    if (!is_narrow(input.scalar_type()) || !has_wide_statistics(*stack, first)) return run_on_host(op, op, signature_, stack);
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto dtype = widen_weights(*stack, first, input);
    run_on_host(op, op, signature_, stack);
    if (is_backward_ && is_narrow(dtype)) round_gradients(*stack, first + 1, dtype);
  }

 private:
  // What a forward layer norm makes is always wide.
  bool has_wide_statistics(const Stack& stack, size_t first) const {
    if (statistics_.empty()) return true;
    return std::any_of(statistics_.begin(), statistics_.end(), [&](int i) {
      const auto& one = stack[first + i];
      return is_given(one) && one.toTensor().scalar_type() == at::kFloat;
    });
  }

  // Returns the dtype that they had. A layer norm without a weight gets one: the CPU looks no further.
  at::ScalarType widen_weights(Stack& stack, size_t first, const Tensor& input) const {
    auto dtype = at::ScalarType::Undefined;
    for (int i : weights_) {
      auto& one = stack[first + i];
      if (!is_given(one)) continue;
      dtype = one.toTensor().scalar_type();
      one = one.toTensor().to(at::kFloat);
    }
    auto& weight = stack[first + weights_[0]];
    if (shape_ >= 0 && !is_given(weight))
      weight = at::ones(stack[first + shape_].toIntVector(), input.options().dtype(at::kFloat));
    return dtype;
  }

  static void round_gradients(Stack& stack, size_t place, at::ScalarType dtype) {
    for (size_t i = place; i < place + 2; i++)  // of weight and bias
      if (is_given(stack[i])) stack[i] = stack[i].toTensor().to(dtype);
  }

  Signature signature_;
  size_t arguments_;
  int input_ = 0, shape_ = -1;
  bool is_backward_ = false;
  c10::SmallVector<int, 2> weights_;
  c10::SmallVector<int, 4> statistics_;
};

inline void register_norms(torch::Library& library) {
  for (const char* name : {"native_layer_norm", "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward",
                           "_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_backward"}) {
    const auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, ""});
    if (op) library.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<NormKernel>(op->schema())));
  }
}

}  // namespace ditorch_sim
