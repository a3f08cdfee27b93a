#pragma once
// Linear algebra that chips have and the CPU has not, or has otherwise.
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/lu_unpack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace ditorch_sim {

// torch.linalg.svd(driver=) names an algorithm of cuSOLVER's, which the CPU refuses.
inline void linalg_svd(const OperatorHandle& op, Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  (*stack)[first + 3] = IValue();  // (matrix, full_matrices, compute_uv, driver, …)
  run_on_host(op, op, Signature(op.schema()), stack);
}

// ---- LU without pivoting ---------------------------------------------------------------------------------------------

struct Factors {
  Tensor packed, pivots, info;
};

// Of matrices on the host. As LAPACK's getrf, a column below a zero stays as it is, and `info` has the first such column.
inline Factors factorized_without_pivoting(const Tensor& matrices) {
  auto packed = matrices.clone();
  const int64_t rows = packed.size(-2), columns = packed.size(-1), count = std::min(rows, columns);
  const auto batch = packed.sizes().slice(0, packed.dim() - 2);
  auto info = at::zeros(batch, matrices.options().dtype(at::kInt));
  for (int64_t k = 0; k < count; k++) {
    const auto pivot = packed.select(-2, k).select(-1, k).unsqueeze(-1).clone();
    const auto zero = pivot.eq(0);
    info.masked_fill_(zero.squeeze(-1).logical_and(info.eq(0)), k + 1);
    auto below = packed.select(-1, k).narrow(-1, k + 1, rows - k - 1);
    below.div_(at::where(zero, at::ones_like(pivot), pivot));
    const auto right = packed.select(-2, k).narrow(-1, k + 1, columns - k - 1);
    packed.narrow(-2, k + 1, rows - k - 1).narrow(-1, k + 1, columns - k - 1).sub_(below.unsqueeze(-1).mul(right.unsqueeze(-2)));
  }
  c10::SmallVector<int64_t, 5> shape(batch.begin(), batch.end());
  shape.push_back(count);
  return {packed, at::arange(1, count + 1, info.options()).expand(shape).contiguous(), info};
}

inline void write_result(Stack* stack, size_t place, const Tensor& result) {
  auto out = (*stack)[place].toTensor();
  at::_ops::resize_::call(out, result.sym_sizes(), std::nullopt);
  out.copy_(result);
}

// linalg_lu_factor_ex(A, pivot, check_errors) and linalg_lu(A, pivot), and both with out=.
template <bool unpacked>
void lu(const OperatorHandle& op, Stack* stack) {
  const size_t arguments = op.schema().arguments().size(), first = stack->size() - arguments;
  if ((*stack)[first + 1].toBool()) return run_on_host(op, op, Signature(op.schema()), stack);
  const Tensor matrices = (*stack)[first].toTensor();
  TORCH_CHECK(matrices.dim() >= 2, op.schema().name(), ": Expected a tensor with 2 or more dimensions");
  TORCH_CHECK(at::isFloatingType(matrices.scalar_type()) || at::isComplexType(matrices.scalar_type()), op.schema().name(),
              ": Expected a floating point or complex tensor as input. Got ", toString(matrices.scalar_type()));
  at::AutoDispatchBelowADInplaceOrView guard;
  Aliases aliases;
  const auto factors = factorized_without_pivoting(aliases.to_host(matrices));
  std::array<Tensor, 3> results{factors.packed, factors.pivots, factors.info};
  if (unpacked) {
    std::tie(results[0], results[1], results[2]) = at::lu_unpack(factors.packed, factors.pivots, /*unpack_data=*/true, /*unpack_pivots=*/false);
  } else if ((*stack)[first + 2].toBool()) {
    at::_linalg_check_errors(factors.info, "torch.linalg.lu_factor_ex", matrices.dim() == 2);
  }
  const bool has_out = op.schema().overload_name() == "out";
  for (size_t i = 0; i < results.size(); i++) {
    const size_t out = first + arguments - results.size() + i;
    if (has_out) write_result(stack, out, results[i]);
    const IValue result = has_out ? (*stack)[out] : IValue(aliases.to_device(results[i], matrices.device().index()));
    torch::jit::push(*stack, result);
  }
  stack->erase(stack->begin() + first, stack->begin() + first + arguments);
}

// ---- products --------------------------------------------------------------------------------------------------------

// The CPU's fused product computes gelu itself, chips its approximation by tanh.
inline void addmm_activation(const OperatorHandle& op, Stack* stack) {
  const size_t arguments = op.schema().arguments().size(), first = stack->size() - arguments;
  if (!(*stack)[first + 5].toBool()) return run_on_host(op, op, Signature(op.schema()), stack);  // (…, beta, alpha, use_gelu)
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto product = at::addmm((*stack)[first].toTensor(), (*stack)[first + 1].toTensor(), (*stack)[first + 2].toTensor(),
                                 (*stack)[first + 3].toScalar(), (*stack)[first + 4].toScalar());
  auto result = at::gelu(product, "tanh");
  if (op.schema().overload_name() == "out") {
    write_result(stack, first + 6, result);
    result = (*stack)[first + 6].toTensor();
  }
  torch::jit::drop(*stack, arguments);
  torch::jit::push(*stack, result);
}

// ---- optimizers ------------------------------------------------------------------------------------------------------

// The CPU's kernel leaves parameters in 16 bits as they were and reads their momenta as if they were float32
// (pytorch#191763): float32 throughout, and rounded in the end, as chips do it.
inline void fused_sgd(const OperatorHandle& op, Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  std::vector<std::pair<Tensor, Tensor>> rounded;
  at::AutoDispatchBelowADInplaceOrView guard;
  for (size_t place = first; place < first + 3; place++) {  // parameters, gradients, momenta
    c10::List<Tensor> wide;
    for (const Tensor& one : (*stack)[place].toTensorVector()) {
      if (is_narrow(one.scalar_type())) rounded.emplace_back(one, one.to(at::kFloat));
      wide.push_back(is_narrow(one.scalar_type()) ? rounded.back().second : one);
    }
    (*stack)[place] = wide;
  }
  run_on_host(op, op, Signature(op.schema()), stack);
  for (const auto& [given, result] : rounded) given.copy_(result);
}

}  // namespace ditorch_sim
