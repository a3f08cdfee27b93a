#pragma once
// Layer norm in 16 bits: chips keep its mean and deviation in float32, the CPU only where weight and bias are float32.
#include <ATen/ops/ones.h>

namespace ditorch_sim {

inline bool is_given(const IValue& tensor) { return tensor.isTensor() && tensor.toTensor().defined(); }

// In place of the arguments from `place` on: weight and bias in float32. A weight of ones is made where there is none.
inline void widen_weights(Stack* stack, size_t place, const Tensor& input, c10::IntArrayRef shape) {
  for (const size_t i : {place, place + 1})
    if (is_given((*stack)[i])) (*stack)[i] = (*stack)[i].toTensor().to(at::kFloat);
  if (!is_given((*stack)[place])) (*stack)[place] = at::ones(shape, input.options().dtype(at::kFloat));
}

inline void layer_norm(const OperatorHandle& op, Stack* stack) {
  static const Signature signature(op.schema());
  const size_t first = stack->size() - 5;  // (input, normalized_shape, weight, bias, eps)
  const Tensor input = (*stack)[first].toTensor();
  if (is_narrow(input.scalar_type())) {
    at::AutoDispatchBelowADInplaceOrView guard;
    widen_weights(stack, first + 2, input, (*stack)[first + 1].toIntVector());
  }
  run_on_host(op, op, signature, stack);
}

inline void layer_norm_backward(const OperatorHandle& op, Stack* stack) {
  static const Signature signature(op.schema());
  const size_t first = stack->size() - 8;  // (grad, input, normalized_shape, mean, rstd, weight, bias, mask)
  const Tensor input = (*stack)[first + 1].toTensor(), mean = (*stack)[first + 3].toTensor();
  if (!is_narrow(input.scalar_type()) || mean.scalar_type() != at::kFloat) return run_on_host(op, op, signature, stack);
  const std::array<IValue, 2> given{(*stack)[first + 5], (*stack)[first + 6]};
  at::AutoDispatchBelowADInplaceOrView guard;
  widen_weights(stack, first + 5, input, (*stack)[first + 2].toIntVector());
  run_on_host(op, op, signature, stack);
  for (size_t i = 0; i < given.size(); i++) {
    IValue& gradient = (*stack)[first + 1 + i];
    if (is_given(given[i]) && is_given(gradient))
      gradient = gradient.toTensor().to(given[i].toTensor().scalar_type());
  }
}

}  // namespace ditorch_sim
