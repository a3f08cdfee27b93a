#pragma once
#include <ATen/ops/neg_ops.h>
#include <torch/library.h>

namespace ditorch_sim {

inline void register_backend() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetAllocator(kSim, device_memory());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    register_collectives();
  });
}

// PyTorch runs the backward pass of a device in that device's own thread, which may still be dropping the last graph
// (and want the GIL for it) when the interpreter shuts down: an abort. A thread takes up its next task only when
// it is done with the one before, so an empty backward pass on each device, with no Python object in it, flushes them.
inline void finish_backward_threads() {
  device_health = Health::good;  // nothing is computed any more
  for (int index = 0; index < device_count(); index++) {
    c10::DeviceGuard guard(Device(kSim, index));
    auto leaf = empty({}, at::kFloat, std::nullopt, Device(kSim, index), std::nullopt, std::nullopt);
    leaf.set_requires_grad(true);
    at::_ops::neg::call(leaf).backward();
  }
}

inline int64_t memory_statistic(int64_t device, std::string name) {
  check_device(device);
  const auto& statistics = memory_statistics[device];
  if (name == "current") return statistics.current;
  if (name == "peak") return statistics.peak;
  if (name == "reserved") return statistics.current + statistics.idle;
  if (name == "total") return statistics.total;
  if (name == "allocations") return statistics.allocations;
  if (name == "out_of_memory") return statistics.out_of_memory;
  TORCH_CHECK_VALUE(false, "no such memory statistic: ", name);
}

inline void seed(int64_t device, int64_t value) {
  check_device(device);
  auto generator = default_generator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(value);
}

TORCH_LIBRARY(ditorch_sim, m) {
  m.def("register_backend() -> ()", &register_backend);
  m.def("finish_backward_threads() -> ()", &finish_backward_threads);

  m.def("device_count() -> int", []() -> int64_t { return device_count(); });
  m.def("visible_devices() -> int[]", [] {
    const auto devices = visible_devices();
    return std::vector<int64_t>(devices.begin(), devices.end());
  });
  m.def("device_uuid(int device) -> str", [](int64_t device) { return device_uuid(device); });
  m.def("obey_cuda_visible_devices(bool obey) -> ()", [](bool obey) { obeys_cuda_visible_devices = obey; });
  m.def("is_used() -> bool", []() -> bool { return device_is_used; });
  m.def("current_device() -> int", []() -> int64_t {
    check_device(current_device);
    return current_device;
  });
  m.def("set_device(int device) -> ()", [](int64_t device) { set_current_device(device); });
  m.def("current_stream(int device) -> int", [](int64_t device) -> int64_t { return current_stream[device]; });
  m.def("set_stream(int device, int stream) -> ()", [](int64_t device, int64_t stream) {
    current_stream[device] = stream;
    set_current_device(device);
  });
  m.def("stream_priority(int stream) -> int", [](int64_t stream) -> int64_t { return stream_priorities().get(stream); });
  m.def("highest_stream_priority() -> int", []() -> int64_t { return kHighestPriority; });
  m.def("synchronize(int device) -> ()", [](int64_t device) {
    synchronize(device);
  });
  m.def("sleep(int nanoseconds) -> ()", &queue_sleep);
  m.def("sync_debug_mode() -> int", []() -> int64_t { return sync_debug_mode; });
  m.def("set_sync_debug_mode(int mode) -> ()", [](int64_t mode) { sync_debug_mode = mode; });
  m.def("fail() -> ()", [] { device_health = Health::failed_unnoticed; });

  m.def("seed(int device, int value) -> ()", &seed);
  m.def("default_generator(int device) -> Generator?", [](int64_t device) {
    check_device(device);
    return default_generator(device);
  });

  m.def("memory_statistic(int device, str name) -> int", &memory_statistic);
  m.def("reset_peak_memory(int device) -> ()", [](int64_t device) {
    check_device(device);
    memory_statistics[device].peak = memory_statistics[device].current.load();
  });
  m.def("memory_limit() -> int", []() -> int64_t { return memory_limit; });
  m.def("set_memory_limit(int bytes) -> ()", [](int64_t bytes) { memory_limit = bytes; });

  m.def("compute_products_in_float32(bool yes) -> ()", [](bool yes) { products_in_float32 = yes; });

  m.def("host_alias(Tensor(a) tensor) -> Tensor(a)");
  m.def("follow_host(Tensor tensor) -> bool");
  m.def("adopt_host(Tensor(a) host, int device) -> Tensor(a)");
  m.def("event_time(int event) -> int", &event_time);
  m.def("set_event_time(int event, int time) -> ()", &set_event_time);
}
TORCH_LIBRARY_IMPL(ditorch_sim, PrivateUse1, m) {
  m.impl("host_alias", host_alias);
  m.impl("follow_host", follow_host);
}
TORCH_LIBRARY_IMPL(ditorch_sim, CPU, m) { m.impl("adopt_host", adopt_host); }

// What takes no tensor is a question to the driver and not an op: dispatch modes of the program must not see it. One that
// draws for each rank in turn (LocalTensorMode) would put the generators back before each.
TORCH_LIBRARY_IMPL(ditorch_sim, Python, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("ditorch_sim::", 0) != 0) continue;
    const auto op = dispatcher.findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    const auto& arguments = op.schema().arguments();
    const auto is_tensor = [](const c10::Argument& argument) { return argument.type()->isSubtypeOf(*c10::TensorType::get()); };
    if (std::none_of(arguments.begin(), arguments.end(), is_tensor)) m.impl(name.name.c_str(), torch::CppFunction::makeFallthrough());
  }
}

}  // namespace ditorch_sim
