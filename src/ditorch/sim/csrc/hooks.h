#pragma once
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#if TORCH_RELEASE < 208
#include <ATen/core/GeneratorForPrivateuseone.h>
#endif

namespace ditorch_sim {

// ---- devices, streams and events -----------------------------------------------------------------------------------

struct Event {
  Nanoseconds time;  // on the simulated clock
};

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
    return device_clock().busy_until(stream.device_index(), stream.id()) <= now();
  }
  void synchronizeStream(const Stream& stream) const override {
    Clock::wait_until(device_clock().busy_until(stream.device_index(), stream.id()));
  }
#if TORCH_RELEASE >= 206
  void synchronizeDevice(const DeviceIndex device) const override {
    Clock::wait_until(device_clock().busy_until(device < 0 ? current_device : device));
  }
#endif

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    static_cast<Event*>(*event)->time = std::max(now(), device_clock().busy_until(stream.device_index(), stream.id()));
  }
  void block(void* event, const Stream& stream) const override {
    if (event) device_clock().hold_until(stream.device_index(), stream.id(), static_cast<Event*>(event)->time);
  }
  bool queryEvent(void* event) const override { return !event || static_cast<Event*>(event)->time <= now(); }
  void synchronizeEvent(void* event) const override {
    if (event) Clock::wait_until(static_cast<Event*>(event)->time);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    return (static_cast<Event*>(end)->time - static_cast<Event*>(start)->time) / 1e6;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

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
    auto fresh = allocate_on(bytes, storage.device().index());
    if (const size_t kept = std::min<size_t>(bytes, storage.nbytes())) std::memcpy(fresh.get(), storage.data(), kept);
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
