#pragma once
#include <torch/library.h>

// From ATen/autocast_mode.h, which includes all of ATen.
namespace at::autocast {
TORCH_API Tensor cached_cast(at::ScalarType to, const Tensor& tensor, c10::DeviceType device);
TORCH_API at::ScalarType get_autocast_dtype(c10::DeviceType device);
}  // namespace at::autocast

namespace ditorch_sim {

template <class Change>
void for_each_argument(const OperatorHandle& op, Stack* stack, Change change) {
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); i++) for_each_tensor((*stack)[i], change);
}

inline void call_in(at::ScalarType dtype, const OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(DispatchKey::AutocastPrivateUse1);
  for_each_argument(op, stack, [&](const Tensor& tensor) { return at::autocast::cached_cast(dtype, tensor, kSim); });
  op.callBoxed(stack);
}

inline void in_low_precision(const OperatorHandle& op, Stack* stack) {
  call_in(at::autocast::get_autocast_dtype(kSim), op, stack);
}
inline void in_float32(const OperatorHandle& op, Stack* stack) { call_in(at::kFloat, op, stack); }
inline void in_widest(const OperatorHandle& op, Stack* stack) {
  auto widest = at::autocast::get_autocast_dtype(kSim);
  for_each_argument(op, stack, [&](const Tensor& tensor) {
    if (tensor.scalar_type() == at::kFloat) widest = at::kFloat;
    return tensor;
  });
  call_in(widest, op, stack);
}
inline void refuse(const OperatorHandle& op, Stack*) {
  TORCH_CHECK(false, op.operator_name(), " is unsafe to autocast: its gradient overflows in float16. Use "
              "binary_cross_entropy_with_logits, or leave autocast around it.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// PyTorch's own CUDA policies.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  // An operator that this release does not know is left out: registering it would end the process.
  const auto all = [&](auto make, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const auto dot = std::string(name).find('.');
      const c10::OperatorName full{"aten::" + std::string(name).substr(0, dot),
                                   dot == std::string::npos ? "" : std::string(name).substr(dot + 1)};
      if (c10::Dispatcher::singleton().findSchema(full)) m.impl(name, make());
    }
  };
  all([] { return torch::CppFunction::makeFromBoxedFunction<&in_low_precision>(); },
      {"_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
       "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
       "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
       "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
       "scaled_dot_product_attention"});
  all([] { return torch::CppFunction::makeFromBoxedFunction<&in_float32>(); },
      {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
       "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
       "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
       "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
       "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
       "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
       "pdist", "cdist", "renorm", "logsumexp", "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod",
       "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
       "norm.Scalar", "norm.ScalarOpt_dim"});
  all([] { return torch::CppFunction::makeFromBoxedFunction<&in_widest>(); },
      {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
       "scatter_add"});
  all([] { return torch::CppFunction::makeFromBoxedFunction<&refuse>(); }, {"binary_cross_entropy"});
}

}  // namespace ditorch_sim
