#pragma once
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#if TORCH_RELEASE < 208
#include <ATen/core/GeneratorForPrivateuseone.h>
#endif

namespace ditorch_sim {

// ---- devices, streams and events -----------------------------------------------------------------------------------

struct Event {
  Nanoseconds time = 0;            // on the simulated clock
  bool timed = false;              // may be asked for it
  std::weak_ptr<Capture> capture;  // or a place in a graph that is being captured
  Capture::Known known;

  CapturePtr captured() const {
    auto found = capture.lock();
    return found && capture_of(found->device, found->stream) == found ? found : nullptr;
  }
};

// A stream that waits for a captured one is captured from then on.
inline void wait_in_capture(const Event& event, DeviceIndex device, StreamId stream) {
  const auto theirs = event.captured(), ours = capture_of(device, stream);
  if (!theirs && !ours) return;
  if (!theirs) refuse(*ours, "waiting for an event from outside", kIsolation);
  if (ours && ours != theirs) refuse(*ours, "waiting for an event of another capture", kMerge);
  if (stream == 0) refuse(*theirs, "letting the default stream wait for a captured stream", kDefaultStream);
  theirs->wait(stream, event.known);
  if (ours) return;
  {
    std::lock_guard<std::mutex> lock(captured_streams().mutex);
    captured_streams().captures[{device, stream}] = theirs;
  }
}

inline void check_not_captured(const Event& event, const char* what) {
  if (!any_capture()) return;
  if (auto capture = event.captured()) refuse(*capture, what, kCapturedEvent);
}

inline void synchronize(DeviceIndex device) {
  check_device(device);
  check_device_may_wait(device, "torch.cuda.synchronize()");
  Clock::wait_until(device_clock().busy_until(device));
  check_health_after_waiting();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }

  Device getDevice() const override { return Device(kSim, current_device); }
  void setDevice(Device device) const override {
    set_current_device(index_or_current(device));
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) current_device = device.index();
  }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }

  Stream getStream(Device device) const noexcept override {
    const auto index = index_or_current(device);
    return Stream(Stream::UNSAFE, Device(kSim, index), current_stream[index]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, Device(kSim, index_or_current(device)));
  }
  Stream getNewStream(Device device, int priority) const override {
    return Stream(Stream::UNSAFE, Device(kSim, index_or_current(device)), new_stream(priority));
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const noexcept override {
    const Stream before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const Stream& stream) const override {
    check_stream_may_wait(stream.device_index(), stream.id(), "stream.query()");
    check_health_after_waiting();
    return device_clock().busy_until(stream.device_index(), stream.id()) <= now();
  }
  bool isStreamCapturing(const Stream& stream) const {  // of torch 2.13 on, so no `override`
    return capture_of(stream.device_index(), stream.id()) != nullptr;
  }
  void synchronizeStream(const Stream& stream) const override {
    check_stream_may_wait(stream.device_index(), stream.id(), "stream.synchronize()");
    Clock::wait_until(device_clock().busy_until(stream.device_index(), stream.id()));
    check_health_after_waiting();
  }
#if TORCH_RELEASE >= 206
  void synchronizeDevice(const DeviceIndex device) const override {
    synchronize(device < 0 ? current_device : device);
  }
#endif

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag flag) const override {
    check_health();
    if (!*event) *event = new Event;
    auto& ours = *static_cast<Event*>(*event);
    ours.timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    ours.time = std::max(now(), device_clock().busy_until(stream.device_index(), stream.id()));
    const auto capture = capture_of(stream.device_index(), stream.id());
    ours.capture = capture;
    if (capture) ours.known = capture->known_to(stream.id());
  }
  void block(void* event, const Stream& stream) const override {
    if (event && any_capture()) wait_in_capture(*static_cast<Event*>(event), stream.device_index(), stream.id());
    if (event) device_clock().hold_until(stream.device_index(), stream.id(), static_cast<Event*>(event)->time);
  }
  bool queryEvent(void* event) const override {
    if (event) check_not_captured(*static_cast<Event*>(event), "event.query()");
    check_health_after_waiting();
    return !event || static_cast<Event*>(event)->time <= now();
  }
  void synchronizeEvent(void* event) const override {
    if (event) check_not_captured(*static_cast<Event*>(event), "event.synchronize()");
    if (event) Clock::wait_until(static_cast<Event*>(event)->time);
    check_health_after_waiting();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    const auto &from = *static_cast<Event*>(start), &to = *static_cast<Event*>(end);
    TORCH_CHECK(from.timed && to.timed, "Both events must be created with argument 'enable_timing=True'.");
    return (to.time - from.time) / 1e6;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

inline c10::Storage memory_of(const c10::DataPtr& data) {
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context())->host : c10::Storage();
}

// A storage got other memory: each replay copies, too.
inline void record_move(const c10::Storage& from, const c10::Storage& to, DeviceIndex device) {
  const auto capture = current_capture(device);
  const size_t bytes = capture && from && to ? std::min(from.nbytes(), to.nbytes()) : 0;
  if (bytes == 0) return;
  Node node{"resize", current_stream[device]};
  node.run = [from, to, bytes] { std::memcpy(to.mutable_data(), from.data(), bytes); };
  node.written = {to};
  capture->add(std::move(node));
}

// ---- hooks ---------------------------------------------------------------------------------------------------------
// No `override` here: which of these are virtual differs between releases.
C10_DIAGNOSTIC_PUSH_AND_IGNORED_IF_DEFINED("-Wsuggest-override")
C10_DIAGNOSTIC_PUSH_AND_IGNORED_IF_DEFINED("-Winconsistent-missing-override")

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const { return true; }
  bool isAvailable() const { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const { return true; }
  void init() const {}
  void initPrivateUse1() const {}

  DeviceIndex deviceCount() const { return device_count(); }
  DeviceIndex getCurrentDevice() const { return current_device; }
  void setCurrentDevice(DeviceIndex index) const { set_current_device(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const {
    const auto before = current_device;
    setCurrentDevice(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const {
    return index < 0 || index >= device_count() ? current_device : exchangeDevice(index);
  }

  at::Allocator* getPinnedMemoryAllocator() const { return pinned_memory(); }
  bool isPinnedPtr(const void* address) const { return pinned_memory()->contains(address); }
  Device getDeviceFromPtr(void*) const { return Device(kSim, current_device); }

  const at::Generator& getDefaultGenerator(DeviceIndex index) { return default_generator(index); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index = -1) const { return new_generator(index); }

  // storage.resize_(), which FSDP uses to free and restore its parameters
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const {
    storage.mutable_data();  // a lazy clone becomes a plain storage
    const auto device = storage.device().index();
    auto fresh = allocate_on(bytes, device);
    if (const size_t kept = std::min<size_t>(bytes, storage.nbytes())) {
      std::memcpy(fresh.get(), storage.data(), kept);
      record_move(memory_of(storage.data_ptr()), memory_of(fresh), device);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

C10_DIAGNOSTIC_POP()
C10_DIAGNOSTIC_POP()

#if TORCH_RELEASE < 208
inline at::_GeneratorRegister register_generator(new_generator);
#endif

}  // namespace ditorch_sim
