#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace ditorch_sim {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using c10::StreamId;

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;

// ---- devices -------------------------------------------------------------------------------------------------------

// The Python side has checked the variable already; a stray value here only falls back to the default.
inline int device_count() {
  static const int count = [] {
    const char* text = std::getenv("DITORCH_SIM_DEVICES");
    const int wanted = text ? std::atoi(text) : 2;
    return std::clamp(wanted, 1, kMaxDevices);
  }();
  return count;
}

inline thread_local DeviceIndex current_device = 0;
inline thread_local StreamId current_stream[kMaxDevices] = {0};

// Numbers in messages go through std::to_string: where the compiler links its own copy of libstdc++ into this library,
// formatting a number by a stream of PyTorch's copy ends the process.
inline void check_device(DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "invalid device ordinal ", std::to_string(index), ": there are ",
              std::to_string(device_count()), " simulated devices (DITORCH_SIM_DEVICES)");
}

// Whether the program has used the device yet. A device mesh chooses each process its device, but only until then.
inline std::atomic<bool> device_is_used{false};

inline void set_current_device(DeviceIndex index) {
  check_device(index);
  device_is_used.store(true, std::memory_order_relaxed);
  current_device = index;
}

inline DeviceIndex index_or_current(Device device) {
  return device.has_index() ? device.index() : current_device;
}

// ---- the clock -----------------------------------------------------------------------------------------------------
// Kernels run on the host, at once; device time that only exists on paper (a slow kernel) is queued on a stream: the
// host goes on, while events, copies to the host and synchronize() wait until the stream's queue has run out.

using Nanoseconds = int64_t;

inline Nanoseconds now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Clock {
 public:
  // Off until something is queued, so that a plain run pays for one relaxed load.
  bool idle() const { return !used_.load(std::memory_order_relaxed); }

  void queue(DeviceIndex device, StreamId stream, Nanoseconds duration) {
    used_ = true;
    std::lock_guard<std::mutex> lock(mutex_);
    auto& end = busy_until_[{device, stream}];
    end = std::max(end, now()) + duration;
  }

  // What `stream` does next starts no earlier than `time`.
  void hold_until(DeviceIndex device, StreamId stream, Nanoseconds time) {
    if (idle()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    auto& end = busy_until_[{device, stream}];
    end = std::max(end, time);
  }

  Nanoseconds busy_until(DeviceIndex device, StreamId stream) {
    if (idle()) return 0;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = busy_until_.find({device, stream});
    return found == busy_until_.end() ? 0 : found->second;
  }

  Nanoseconds busy_until(DeviceIndex device) {
    if (idle()) return 0;
    std::lock_guard<std::mutex> lock(mutex_);
    Nanoseconds latest = 0;
    for (auto& [queue, end] : busy_until_)
      if (queue.first == device) latest = std::max(latest, end);
    return latest;
  }

  static void wait_until(Nanoseconds time) {
    const Nanoseconds left = time - now();
    if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  }

 private:
  std::atomic<bool> used_{false};
  std::mutex mutex_;
  std::map<std::pair<DeviceIndex, StreamId>, Nanoseconds> busy_until_;
};

inline Clock& device_clock() {
  static auto* clock = new Clock;  // never destroyed: device threads may outlive static destructors
  return *clock;
}

// What a blocking copy to or from the host does first.
inline void wait_for_current_stream(DeviceIndex device) {
  auto& clock = device_clock();
  if (!clock.idle()) Clock::wait_until(clock.busy_until(device, current_stream[device]));
}

inline StreamId new_stream_id() {
  static std::atomic<StreamId> last{0};
  return ++last;
}

}  // namespace ditorch_sim
