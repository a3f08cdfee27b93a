#pragma once
// torch.distributed on the device: device memory is host memory, so gloo does the work on aliases, without a copy.
// PyTorch dispatches every collective (c10d::allreduce_, …) by the device of its tensors; here it goes on to the CPU's.
#ifdef DITORCH_DISTRIBUTED
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

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
  void synchronize() override { host_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return host_->wait(timeout); }
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

inline void collective(const OperatorHandle& op, Stack* stack) {
  const bool flat = ignores_shape(op.operator_name().name);
  std::vector<Tensor> tensors;
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); i++) {
    let_aliases_in((*stack)[i]);
    for_each_tensor((*stack)[i], [&](const Tensor& tensor) {
      if (on_device(tensor)) wait_for_current_stream(tensor.device().index());
      tensors.push_back(tensor);
      return flat && tensor.is_contiguous() ? tensor.view({-1}) : tensor;
    });
  }

  run_on_host(op, op, Signature(op.schema()), stack);

  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); i++) {
    IValue& result = (*stack)[i];
    if (result.isTensorList()) tensors = result.toTensorVector();
    if (!result.isCustomClass()) continue;
    auto work = result.toCustomClass<c10d::Work>();
    if (recorded_calls != 0) work->wait();  // the next call of the graph may need it
    result = c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<DeviceWork>(std::move(work), tensors));
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
    library->impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&collective>());
    for_sparse->impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&sparse_collective>());
  }
}

}  // namespace ditorch_sim
#else
namespace ditorch_sim {
inline void register_collectives() {}  // a torch without torch.distributed
}  // namespace ditorch_sim
#endif
