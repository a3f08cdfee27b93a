#pragma once
// Memory, streams and events under the numbers by which others know them: other processes, and programs that hand a
// stream or an event on as CUDA's handle.

namespace ditorch_sim {

// The Python side has moved the CPU storage behind a device tensor into memory that processes share: the device's
// storage goes where that is now. False where the memory is somebody else's, lent to the device.
inline bool follow_host(const Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto& data = storage->mutable_data_ptr();
  if (data.get_deleter() != &free_block) return false;
  const auto device = data.device();
  auto* block = static_cast<Block*>(data.get_context());
  data.release_context();
  storage->set_data_ptr_noswap(c10::DataPtr(block->host.mutable_data(), block, &free_block, device));
  return true;
}

// A tensor of the device on the memory of a CPU tensor, whose storage it keeps alive.
inline Tensor adopt_host(const Tensor& host, int64_t device) {
  check_device(device);
  return Aliases().to_device(host, device);
}

// Moments on the clock, which all processes of a machine read alike.
inline int64_t event_time(int64_t event) { return event ? reinterpret_cast<Event*>(event)->time : 0; }
inline void set_event_time(int64_t event, int64_t time) {
  TORCH_CHECK_VALUE(event, "the event was never recorded");
  reinterpret_cast<Event*>(event)->time = time;
}

}  // namespace ditorch_sim
