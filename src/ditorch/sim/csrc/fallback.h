#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <unordered_set>

namespace ditorch_sim {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// What an operator's schema says that a call needs to know.
struct Signature {
  c10::SmallVector<int, 4> written;   // arguments the kernel writes to
  c10::SmallVector<int, 4> returned;  // for each result the written argument it is, or -1
  int generator = -1;                 // the argument that takes a random number generator
  bool may_grow = false;              // the kernel may give written arguments new memory: out= and resize_
  bool takes_host_tensors = false;    // the few operators whose indices may lie on the CPU

  explicit Signature(const c10::FunctionSchema& schema) {
    static const std::unordered_set<std::string> mixed{
        "aten::index",        "aten::index_put",         "aten::index_put_",
        "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_index_put_impl_",
        "aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate",
        "aten::_pin_memory",  "aten::is_pinned",         "aten::set_"};
    takes_host_tensors = mixed.count(schema.name()) != 0;
    const auto& arguments = schema.arguments();
    const auto writes = [](const c10::Argument& a) { return a.alias_info() && a.alias_info()->isWrite(); };
    for (size_t i = 0; i < arguments.size(); i++) {
      if (writes(arguments[i])) {
        written.push_back(i);
        may_grow |= arguments[i].kwarg_only() || schema.name().find("resize") != std::string::npos;
      }
      if (arguments[i].type()->str().find("Generator") != std::string::npos) generator = i;
    }
    for (const auto& result : schema.returns()) {
      int source = -1;
      for (int i : written)
        if (writes(result) && *arguments[i].alias_info() == *result.alias_info()) source = i;
      returned.push_back(source);
    }
  }
};

[[noreturn]] inline void not_implemented(const OperatorHandle& op) {
  C10_THROW_ERROR(NotImplementedError,
                  c10::str("Could not run '", op.operator_name(), "' on device '", c10::get_privateuse1_backend(true),
                           "': the simulated accelerator has no kernel for it, because the CPU has none."));
}

// The devices of one call's tensors: all on one simulated device, with CPU scalars allowed among them.
class CallDevice {
 public:
  explicit CallDevice(const OperatorHandle& op) : op_(op) {}

  // True for a device tensor, which the kernel must see through an alias.
  bool add(const Tensor& tensor) {
    if (!tensor.defined()) return false;
    const auto device = tensor.device();
    if (device.type() == kSim) {
      if (index_ >= 0 && index_ != device.index()) mixed(Device(kSim, index_), device);
      index_ = device.index();
      return true;
    }
    if (device.type() != c10::DeviceType::CPU) mixed(Device(kSim, std::max<int>(index_, 0)), device);
    has_host_tensor_ |= tensor.dim() > 0;
    return false;
  }
  void prefer(Device device) { preferred_ = device.index(); }

  DeviceIndex index() const { return index_ >= 0 ? index_ : preferred_ >= 0 ? preferred_ : current_device; }
  void reject_host_tensors() const {
    if (has_host_tensor_) mixed(Device(kSim, index()), Device(c10::DeviceType::CPU));
  }

 private:
  [[noreturn]] void mixed(Device one, Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ",
                other, "! (in ", op_.operator_name(), ")");
  }
  const OperatorHandle& op_;
  DeviceIndex index_ = -1, preferred_ = -1;
  bool has_host_tensor_ = false;
};

// Runs the CPU kernel of `kernel` on aliases of the arguments on the stack; `called` is what the user called.
inline void run_on_host(const OperatorHandle& called, const OperatorHandle& kernel, const Signature& signature, Stack* stack) {
  if (!kernel.hasComputedKernelForDispatchKey(DispatchKey::CPU)) not_implemented(called);

  // Below autograd, and no autocast of the CPU's: the device's own has had its turn.
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  Aliases aliases(signature.may_grow);
  CallDevice device(called);

  const size_t first = stack->size() - kernel.schema().arguments().size();
  c10::SmallVector<IValue, 4> written;
  for (int i : signature.written) written.push_back((*stack)[first + i]);

  for (size_t i = first; i < stack->size(); i++) {
    IValue& argument = (*stack)[i];
    if (argument.isDevice()) {
      if (argument.toDevice().type() != kSim) continue;
      device.prefer(argument.toDevice());
      argument = Device(c10::DeviceType::CPU);
    } else if (argument.isGenerator()) {
      argument = host_generator(argument.toGenerator());
    } else if (argument.isStorage()) {
      const auto storage = argument.toStorage();
      if (storage.device().type() == kSim) argument = host_of(storage);
    } else {
      for_each_tensor(argument, [&](const Tensor& tensor) { return device.add(tensor) ? aliases.to_host(tensor) : tensor; });
    }
  }
  if (!signature.takes_host_tensors) device.reject_host_tensors();
  if (signature.generator >= 0) {
    IValue& generator = (*stack)[first + signature.generator];
    if (generator.isNone()) generator = host_generator(default_generator(device.index()));
  }

  kernel.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);

  if (!signature.written.empty()) aliases.write_back();
  const size_t first_result = stack->size() - signature.returned.size();
  for (size_t i = 0; i < signature.returned.size(); i++) {
    IValue& result = (*stack)[first_result + i];
    if (signature.returned[i] >= 0) {
      for (size_t w = 0; w < written.size(); w++)
        if (signature.written[w] == signature.returned[i]) result = written[w];
    } else {
      for_each_tensor(result, [&](const Tensor& tensor) { return aliases.to_device(tensor, device.index()); });
    }
  }
}

// One operator's kernel on the device: its schema is read once, when it is registered.
class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(const c10::FunctionSchema& schema) : signature_(schema) {}
  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) { run_on_host(op, op, signature_, stack); }

 private:
  Signature signature_;
};

// For operators that come into being later (other libraries' custom ops); without a CPU kernel they are refused.
inline void late_operator(const OperatorHandle& op, Stack* stack) {
  run_on_host(op, op, Signature(op.schema()), stack);
}

}  // namespace ditorch_sim
