#pragma once
// torch.distributed on the device: device memory is host memory, so gloo does the work on aliases, without a copy.
// PyTorch dispatches every collective (c10d::allreduce_, …) by the device of its tensors; here it goes on to the CPU's.
#ifdef DITORCH_DISTRIBUTED
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <ATen/ops/cat_ops.h>

namespace ditorch_sim {

// Work under way; its future holds the device's tensors, which DistributedDataParallel reads from it.
class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> host, std::vector<Tensor> results)
      : host_(std::move(host)), results_(std::move(results)) {}

  bool isCompleted() override { return host_->isCompleted(); }
  bool isSuccess() const override { return host_->isSuccess(); }
  std::exception_ptr exception() const override { return host_->exception(); }
  int sourceRank() const override { return host_->sourceRank(); }
  std::vector<Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  // Once: each time, gloo's reduce_scatter copies its result to where it belongs.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    if (!waited_) waited_ = host_->wait(timeout);
    return waited_;
  }
  void abort() override { host_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return host_->getFuture()->then([results = results_](c10::ivalue::Future& done) {
      if (done.hasError()) std::rethrow_exception(done.exception_ptr());
      return IValue(results);
    }, c10::ListType::create(c10::TensorType::get()));
  }

 private:
  c10::intrusive_ptr<c10d::Work> host_;
  std::vector<Tensor> results_;
  std::atomic<bool> waited_{false};
};

// How DistributedDataParallel times its parts: by the host's clock, since kernels run when they are called.
class DeviceTimer final : public c10d::Timer {
 public:
  explicit DeviceTimer(Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to && *from <= *to ? std::optional<int64_t>(*to - *from) : std::nullopt;
  }
};

// A group made for the device alone has no backend for CPU tensors, which is what the aliases are: it gets the same one.
inline void let_aliases_in(const IValue& argument) {
  static const auto group_type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  if (!argument.isCustomClass() || *argument.type() != *group_type) return;
  const auto group = argument.toCustomClass<c10d::ProcessGroup>();
  for (const auto& device : group->getDeviceTypes())
    if (device.type() == c10::DeviceType::CPU) return;
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, group->getBackend(kSim));
}

// As on a chip, these look at the memory and not at its shape; gloo wants the first dimension to be divisible.
inline bool ignores_shape(const std::string& name) {
  return name == "c10d::_allgather_base_" || name == "c10d::_reduce_scatter_base_" ||
         name == "c10d::allgather_into_tensor_coalesced_" || name == "c10d::reduce_scatter_tensor_coalesced_";
}

// As on a chip, what only travels is bytes; gloo does not know the 8-bit floating-point types.
inline bool travels_as_bytes(const std::string& name, const Tensor& tensor) {
  return at::isFloat8Type(tensor.scalar_type()) && name.find("reduce") == std::string::npos;
}

inline c10::intrusive_ptr<c10d::ProcessGroup> group_of(const Stack& stack, size_t first) {
  static const auto group_type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  for (size_t i = first; i < stack.size(); i++)
    if (stack[i].isCustomClass() && *stack[i].type() == *group_type) return stack[i].toCustomClass<c10d::ProcessGroup>();
  TORCH_INTERNAL_ASSERT(false, "a collective without a process group");
}

// As NCCL, chips average by themselves; gloo does not in older releases. True if it was asked for: a sum takes its place.
inline bool sum_for_average(IValue& argument) {
  static const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ReduceOp>>();
  if (!argument.isCustomClass() || *argument.type() != *type) return false;
  if (!(*argument.toCustomClass<c10d::ReduceOp>() == c10d::ReduceOp::AVG)) return false;
  argument = c10::make_intrusive<c10d::ReduceOp>(c10d::ReduceOp::SUM);
  return true;
}

// Of whole numbers, the average is whole, too.
inline void divide(const Tensor& tensor, int64_t divisor) {
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) tensor.div_(divisor, "trunc");
  else tensor.div_(divisor);
}

inline void return_from(Stack* stack, size_t first, IValue tensors, c10::intrusive_ptr<c10d::Work> work) {
  work->wait();
  stack->resize(first);
  stack->emplace_back(std::move(tensors));
  stack->emplace_back(std::move(work));
}

// On a chip every process may give a part of another size; gloo's all_gather wants them alike: one broadcast each.
inline bool gather_of_different_sizes(Stack* stack, size_t first) {
  const IValue outputs = (*stack)[first];
  const auto parts = outputs.toListRef()[0].toTensorVector();
  const auto input = (*stack)[first + 1].toTensorVector()[0];
  const bool alike = std::all_of(parts.begin(), parts.end(), [&](const Tensor& part) { return part.sizes() == input.sizes(); });
  if (alike || !on_device(input)) return false;
  const auto group = group_of(*stack, first);
  TORCH_CHECK(parts.size() == static_cast<size_t>(group->getSize()) && parts[group->getRank()].sizes() == input.sizes(),
              "all_gather: the list needs one tensor per process, and the one of this process (", group->getRank(),
              ") the size of the input, ", input.sizes());
  parts[group->getRank()].copy_(input);
  c10::intrusive_ptr<c10d::Work> work;
  for (size_t rank = 0; rank < parts.size(); rank++) {
    std::vector<Tensor> part{parts[rank]};
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<int64_t>(rank);
    work = group->broadcast(part, options);
    work->wait();
  }
  return_from(stack, first, outputs, std::move(work));
  return true;
}

// The same for all_to_all, of which no process can tell whether all others have parts of one size.
inline bool exchange_of_different_sizes(Stack* stack, size_t first) {
  const IValue outputs = (*stack)[first];
  const auto received = outputs.toTensorVector(), sent = (*stack)[first + 1].toTensorVector();
  if (received.empty() || sent.empty() || !on_device(sent[0]) || !on_device(received[0])) return false;
  const auto flat = [](const std::vector<Tensor>& tensors, std::vector<int64_t>& sizes) {
    std::vector<Tensor> rows;
    for (const Tensor& tensor : tensors) {
      rows.push_back(tensor.reshape({-1}));
      sizes.push_back(tensor.numel());
    }
    return at::_ops::cat::call(rows, 0);
  };
  std::vector<int64_t> sizes_received, sizes_sent;
  auto whole_sent = flat(sent, sizes_sent), whole = flat(received, sizes_received);
  auto work = group_of(*stack, first)->alltoall_base(whole, whole_sent, sizes_received, sizes_sent);
  work->wait();
  int64_t from = 0;
  for (const Tensor& tensor : received) {
    tensor.copy_(whole.narrow(0, from, tensor.numel()).view(tensor.sizes()));
    from += tensor.numel();
  }
  return_from(stack, first, outputs, std::move(work));
  return true;
}

inline void collective(const OperatorHandle& op, Stack* stack) {
  const auto& name = op.operator_name().name;
  const size_t first = stack->size() - op.schema().arguments().size();
  if (name == "c10d::allgather_" && gather_of_different_sizes(stack, first)) return;
  if (name == "c10d::alltoall_" && exchange_of_different_sizes(stack, first)) return;

  // As with NCCL, a process that does not get the sum keeps its tensor as it is; gloo adds up in it.
  const bool keeps_own = name == "c10d::reduce_" && (*stack)[first + 3].toInt() != group_of(*stack, first)->getRank();
  const bool flat = ignores_shape(name);
  int64_t divisor = 1;
  std::vector<Tensor> tensors, outputs;
  std::optional<c10::ScalarType> dtype;
  for (size_t i = first; i < stack->size(); i++) {
    let_aliases_in((*stack)[i]);
    if (sum_for_average((*stack)[i])) divisor = group_of(*stack, first)->getSize();
    for_each_tensor((*stack)[i], [&](const Tensor& tensor) {
      if (on_device(tensor)) wait_for_current_stream(tensor.device().index());
      tensors.push_back(keeps_own ? tensor.clone() : tensor);
      const Tensor& ours = tensors.back();
      const Tensor shaped = flat && ours.is_contiguous() ? ours.view({-1}) : ours;
      if (!travels_as_bytes(name, tensor)) return shaped;
      dtype = tensor.scalar_type();
      return shaped.view(c10::ScalarType::Byte);
    });
    if (i == first) outputs = tensors;
  }

  run_on_host(op, op, Signature(op.schema()), stack);

  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); i++) {
    IValue& result = (*stack)[i];
    if (dtype) for_each_tensor(result, [&](const Tensor& tensor) { return tensor.view(*dtype); });
    if (result.isTensorList()) tensors = result.toTensorVector();
    if (!result.isCustomClass()) continue;
    auto work = c10::make_intrusive<DeviceWork>(result.toCustomClass<c10d::Work>(), tensors);
    if (divisor != 1 || recorded_calls != 0) work->wait();  // the next call of a graph may need it
    if (divisor != 1)
      for (const Tensor& output : outputs) divide(output, divisor);
    result = c10::intrusive_ptr<c10d::Work>(std::move(work));
  }
}

// A sparse tensor gets other parts, not other numbers in the same memory: gloo gives them to the alias when it is done, and
// they are handed on then. So this waits.
inline void sparse_collective(const OperatorHandle& op, Stack* stack) {
  if (!op.hasComputedKernelForDispatchKey(DispatchKey::SparseCPU)) not_implemented(op);
  Aliases aliases;
  std::vector<Tensor> tensors;
  IValue written;
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); i++) {
    IValue& argument = (*stack)[i];
    let_aliases_in(argument);
    if (argument.isTensorList()) written = argument;
    for_each_tensor(argument, [&](const Tensor& tensor) {
      if (!on_device(tensor)) return tensor;
      wait_for_current_stream(tensor.device().index());
      tensors.push_back(tensor);
      return aliases.to_host(tensor);
    });
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::SparseCPU), stack);
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); i++) {
    IValue& result = (*stack)[i];
    if (result.isTensorList()) result = written;
    if (!result.isCustomClass()) continue;
    auto work = result.toCustomClass<c10d::Work>();
    work->wait();
    aliases.write_back();
    result = c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<DeviceWork>(std::move(work), tensors));
  }
}

inline void register_collectives() {
  // PyTorch has kernels of its own there, which look for a backend that takes device tensors; replacing them is meant.
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static auto* library = new torch::Library(torch::Library::IMPL, "c10d", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto* for_sparse =
      new torch::Library(torch::Library::IMPL, "c10d", DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("c10d::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::CPU)) continue;
    const auto full_name = c10::toString(name);
    library->impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&recorded<&collective>>());
    for_sparse->impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&sparse_collective>());
  }
}

}  // namespace ditorch_sim

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, ditorch_sim::kSim, ditorch_sim::DeviceTimer)
}  // namespace c10d
#else
namespace ditorch_sim {
inline void register_collectives() {}  // a torch without torch.distributed
}  // namespace ditorch_sim
#endif
