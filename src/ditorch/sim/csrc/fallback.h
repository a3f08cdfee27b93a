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
  c10::SmallVector<int, 4> owned;     // arguments that need memory of their own: the written ones, said to be or not
  int generator = -1;                 // the argument that takes a random number generator
  bool may_grow = false;              // the kernel may give written arguments new memory: out= and resize_
  bool takes_host_tensors = false;    // the few operators whose arguments may lie on the CPU
  bool takes_host_indices = false;    // the few whose lists of indices may
  int learning_rate = -1;             // the argument of a fused optimizer that may, whatever its shape
  bool asks_for_gradients = false;    // the kernel computes more where an argument requires a gradient
  bool product = false;               // DITORCH_SIM_16BIT concerns it
  bool mixes_dtypes = false;          // takes 16-bit and float32 tensors at once
  bool is_wide = false;               // the kernel has no 16-bit dtype, and says so in words of its own

  explicit Signature(const c10::FunctionSchema& schema) {
    static const std::unordered_set<std::string> indexed{
        "aten::index",        "aten::index_put",         "aten::index_put_",
        "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_index_put_impl_",
        "aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate"};
    static const std::unordered_set<std::string> mixed{
        "aten::_pin_memory",  "aten::is_pinned",         "aten::set_",
        "aten::copy_",        "aten::fill_",
        "aten::copy_sparse_to_sparse_",  // of sparse and nested tensors
        "aten::_nested_view_from_buffer", "aten::_nested_view_from_buffer_copy", "aten::_nested_from_padded"};
    takes_host_tensors = mixed.count(schema.name()) != 0;
    takes_host_indices = indexed.count(schema.name()) != 0;
    asks_for_gradients = schema.name() == "aten::_sparse_mm_reduce_impl";
    product = is_product(schema.name());
    is_wide = schema.name().rfind("aten::_fft_", 0) == 0;
    mixes_dtypes = is_wide || is_attention(schema.name());
    const auto& arguments = schema.arguments();
    const auto writes = [](const c10::Argument& a) { return a.alias_info() && a.alias_info()->isWrite(); };
    for (size_t i = 0; i < arguments.size(); i++) {
      if (writes(arguments[i])) {
        written.push_back(i);
        may_grow |= arguments[i].kwarg_only() || schema.name().find("resize") != std::string::npos;
      }
      if (arguments[i].type()->str().find("Generator") != std::string::npos) generator = i;
      if (schema.overload_name().find("tensor_lr") == 0 && arguments[i].name() == "lr") learning_rate = i;
    }
    static const std::unordered_set<std::string> silent{"aten::native_batch_norm", "aten::rrelu_with_noise"};
    for (size_t i = 0; i < arguments.size(); i++)
      if (writes(arguments[i]) || silent.count(schema.name())) owned.push_back(i);
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
  bool add(const Tensor& tensor, bool may_be_on_host = false) {
    if (!tensor.defined()) return false;
    const auto device = tensor.device();
    if (device.type() == kSim) {
      if (index_ >= 0 && index_ != device.index()) mixed(Device(kSim, index_), device);
      index_ = device.index();
      return true;
    }
    if (device.type() != c10::DeviceType::CPU) mixed(Device(kSim, std::max<int>(index_, 0)), device);
    has_host_tensor_ |= tensor.dim() > 0 && !may_be_on_host;
    return false;
  }
  void prefer(Device device) {
    if (device.type() == kSim) preferred_ = device.index();
    wants_host_ = device.type() == c10::DeviceType::CPU;
  }
  bool wants_host() const { return wants_host_; }  // results are asked for on the CPU

  DeviceIndex index() const { return index_ >= 0 ? index_ : preferred_ >= 0 ? preferred_ : current_device; }
  void reject_host_tensors() const {
    if (has_host_tensor_) mixed(Device(kSim, index()), Device(c10::DeviceType::CPU));
  }
  // A scalar of the CPU's may be read, and not written.
  void reject_host_result(const IValue& written) const {
    if (index_ >= 0 && written.isTensor() && written.toTensor().defined() && written.toTensor().is_cpu())
      mixed(Device(kSim, index_), Device(c10::DeviceType::CPU));
  }

 private:
  [[noreturn]] void mixed(Device one, Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ",
                other, "! (in ", op_.operator_name(), ")");
  }
  const OperatorHandle& op_;
  DeviceIndex index_ = -1, preferred_ = -1;
  bool has_host_tensor_ = false, wants_host_ = false;
};

// Runs the CPU kernel of `kernel` on aliases of the arguments on the stack; `called` is what the user called. `key` says
// which: for dense tensors unless told otherwise.
inline void run_on_host(const OperatorHandle& called, const OperatorHandle& kernel, const Signature& signature, Stack* stack,
                        DispatchKey key = DispatchKey::CPU) {
  if (!kernel.hasComputedKernelForDispatchKey(key)) not_implemented(called);
  check_health();

  // Below autograd, and no autocast of the CPU's: the device's own has had its turn.
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  Aliases aliases(signature.may_grow);
  CallDevice device(called);

  const size_t first = stack->size() - kernel.schema().arguments().size();
  c10::SmallVector<IValue, 4> written;
  for (int i : signature.written) written.push_back((*stack)[first + i]);
  if (C10_UNLIKELY(shared_blocks().any()))
    for (int i : signature.owned)
      for_each_tensor((*stack)[first + i], [](const Tensor& tensor) { return own_memory(tensor), tensor; });

  bool narrow = false;  // a tensor of a 16-bit dtype is among the arguments
  for (size_t i = first; i < stack->size(); i++) {
    IValue& argument = (*stack)[i];
    if (argument.isDevice()) {
      device.prefer(argument.toDevice());
      if (argument.toDevice().type() == kSim) argument = Device(c10::DeviceType::CPU);
    } else if (argument.isGenerator()) {
      argument = host_generator(argument.toGenerator());
    } else if (argument.isStorage()) {
      const auto storage = argument.toStorage();
      if (storage.device().type() == kSim) argument = host_of(storage);
    } else {
      const bool may_be_on_host =
          (signature.takes_host_indices && argument.isList()) || static_cast<int>(i - first) == signature.learning_rate;
      for_each_tensor(argument, [&](const Tensor& tensor) {
        narrow |= is_narrow(tensor.scalar_type());
        if (!device.add(tensor, may_be_on_host)) return tensor;
        const auto alias = aliases.to_host(tensor);
        if (C10_UNLIKELY(signature.asks_for_gradients)) alias.set_requires_grad(tensor.requires_grad());
        return alias;
      });
    }
  }
  if (!signature.takes_host_tensors) {
    device.reject_host_tensors();
    for (const auto& result : written) device.reject_host_result(result);
  } else if (key != DispatchKey::CPU) {  // a copy of a sparse tensor
    wait_for_current_stream(device.index());
  }
  if (signature.generator >= 0) {
    IValue& generator = (*stack)[first + signature.generator];
    if (generator.isNone()) generator = host_generator(default_generator(device.index()));
  }

  const auto run_wide = [&](bool strict) {
    InFloat32 call(stack, first, strict);
    kernel.redispatchBoxed(DispatchKeySet(key), stack);
    call.finish(stack, signature.returned.size(), signature.written);
  };
  if (C10_LIKELY(!narrow)) {
    kernel.redispatchBoxed(DispatchKeySet(key), stack);
  } else if (signature.is_wide || (signature.product && products_in_float32)) {
    run_wide(!signature.mixes_dtypes);
  } else {
    const c10::SmallVector<IValue, 12> arguments(stack->begin() + first, stack->end());
    try {
      kernel.redispatchBoxed(DispatchKeySet(key), stack);
    } catch (const c10::NotImplementedError&) {  // for this dtype
      const auto refusal = std::current_exception();
      stack->resize(first);
      stack->insert(stack->end(), arguments.begin(), arguments.end());
      try {
        run_wide(/*strict=*/false);
      } catch (const c10::NotImplementedError&) {
        std::rethrow_exception(refusal);
      }
    }
  }

  if (!signature.written.empty()) aliases.write_back();
  const size_t first_result = stack->size() - signature.returned.size();
  for (size_t i = 0; i < signature.returned.size(); i++) {
    IValue& result = (*stack)[first_result + i];
    if (signature.returned[i] >= 0) {
      for (size_t w = 0; w < written.size(); w++)
        if (signature.written[w] == signature.returned[i]) result = written[w];
    } else if (!device.wants_host()) {
      for_each_tensor(result, [&](const Tensor& tensor) { return aliases.to_device(tensor, device.index()); });
    }
  }
}

// ---- kernels of the device -----------------------------------------------------------------------------------------

// Records a kernel's call if its stream is captured; false if not. Every kernel asks this first.
inline bool record(const OperatorHandle& op, Stack* stack);           // graph.h
inline void tell_if_it_waits(const OperatorHandle& op, Stack* stack);  // graph.h
inline bool is_recorded(const OperatorHandle& op, Stack* stack) {
  if (tells_of_waiting()) tell_if_it_waits(op, stack);
  return any_capture() && record(op, stack);
}

template <void (*kernel)(const OperatorHandle&, Stack*)>
void recorded(const OperatorHandle& op, Stack* stack) {
  if (!is_recorded(op, stack)) kernel(op, stack);
}

inline OperatorHandle find_operator(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

// A kernel with C++ arguments.
template <class Result, class... Arguments>
void register_recorded(torch::Library& aten, const char* name, Result (*kernel)(Arguments...)) {
  const auto op = find_operator(std::string("aten::") + name);
  aten.impl(name, [op, kernel](Arguments... arguments) -> Result {
    if (any_capture()) {
      auto stack = c10::impl::boxArgs<Arguments...>(arguments...);
      if (record(op, &stack)) return c10::impl::PopResult<Result>::call(stack);
    }
    return kernel(std::forward<Arguments>(arguments)...);
  });
}

// One operator's kernel on the device: its schema is read once, when it is registered.
class HostKernel final : public c10::OperatorKernel {
 public:
  HostKernel(const c10::FunctionSchema& schema, DispatchKey key) : signature_(schema), key_(key) {}
  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
    if (key_ == DispatchKey::CPU && is_recorded(op, stack)) return;
    run_on_host(op, op, signature_, stack, key_);
  }

 private:
  Signature signature_;
  DispatchKey key_;
};

// Every operator with a CPU kernel of its own gets that kernel, also where a composite one would stand in the
// fallback's way: fewer steps per call, and results equal to the CPU's.
inline void register_host_kernels(torch::Library& library, KeyPair keys) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(keys.host) || op->hasKernelForDispatchKey(keys.device)) continue;
    const auto full_name = c10::toString(name);
    library.impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(op->schema(), keys.host)));
  }
}

// A composite operator that asks which device it is on, and knows no others: the device gets the CPU's.
inline void register_host_kernel(torch::Library& library, const char* name, const char* overload) {
  const auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, overload});
  if (!op) return;  // in a release to come
  if (!op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) return;  // made of operators that know the device
  const auto full_name = c10::toString(op->operator_name());
  library.impl(full_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(op->schema(), DispatchKey::CPU)));
}

// For operators that come into being later (other libraries' custom ops); without a CPU kernel they are refused.
template <DispatchKey key>
void late_operator(const OperatorHandle& op, Stack* stack) {
  if (key == DispatchKey::CPU && is_recorded(op, stack)) return;
  run_on_host(op, op, Signature(op.schema()), stack, key);
}

}  // namespace ditorch_sim
