#pragma once
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
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

// ---- devices -------------------------------------------------------------------------------------------------------

inline thread_local DeviceIndex current_device = 0;
inline thread_local StreamId current_stream[kMaxDevices] = {0};

// Numbers in messages go through std::to_string: where the compiler links its own copy of libstdc++ into this library,
// formatting a number by a stream of PyTorch's copy ends the process.
inline void check_device(DeviceIndex index) {
  const int count = device_count();
  if (C10_LIKELY(index >= 0 && index < count)) return;
  const char* list = obeys_cuda_visible_devices ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  TORCH_CHECK(count > 0, "no simulated device is visible: CUDA_VISIBLE_DEVICES='", std::string(list ? list : ""), "' hides all of them");
  TORCH_CHECK(false, "invalid device ordinal ", std::to_string(index), ": there are ", std::to_string(count),
              " simulated devices (", list ? "CUDA_VISIBLE_DEVICES, " : "", "DITORCH_SIM_DEVICES)");
}

inline void set_current_device(DeviceIndex index) {
  check_device(index);
  use_device();
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

// ---- failure -------------------------------------------------------------------------------------------------------
// As CUDA's: what a kernel does wrong on the device (an assert, an illegal address) is heard of when the host waits for
// the device next. From then on every call fails.

enum class Health { good, failed_unnoticed, failed };
inline std::atomic<Health> device_health{Health::good};

[[noreturn]] inline void raise_failure() {
  device_health = Health::failed;
  TORCH_CHECK(false, c10::get_privateuse1_backend(true),
              " error: device-side assert triggered (injected fault). Errors of a device may be reported at some later call.");
}
// Before something is asked of the device.
inline void check_health() {
  if (C10_UNLIKELY(device_health.load(std::memory_order_relaxed) == Health::failed)) raise_failure();
}
// Where the host has waited for it.
inline void check_health_after_waiting() {
  if (C10_UNLIKELY(device_health.load(std::memory_order_relaxed) != Health::good)) raise_failure();
}

// torch.cuda.set_sync_debug_mode: 1 warns where the host waits for the device, 2 refuses.
inline std::atomic<int64_t> sync_debug_mode{0};
inline bool tells_of_waiting() { return C10_UNLIKELY(sync_debug_mode.load(std::memory_order_relaxed) != 0); }
inline void tell_of_waiting(const char* what) {
  if (!tells_of_waiting()) return;
  TORCH_CHECK(sync_debug_mode < 2, "called a synchronizing CUDA operation: ", what);
  TORCH_WARN("called a synchronizing CUDA operation: ", what);
}

// What a blocking copy to or from the host does first.
inline void wait_for_current_stream(DeviceIndex device) {
  check_health_after_waiting();
  auto& clock = device_clock();
  if (!clock.idle()) Clock::wait_until(clock.busy_until(device, current_stream[device]));
}

// Whether every stream is idle and no device has failed.
inline bool is_at_rest() {
  return device_clock().idle() && device_health.load(std::memory_order_relaxed) == Health::good;
}

// ---- streams -------------------------------------------------------------------------------------------------------

// As CUDA's: 0 is the lowest, what is beyond the range is brought into it. Remembered, and obeyed by nobody: kernels
// run at once.
constexpr int kHighestPriority = -3;

class StreamPriorities {
 public:
  void set(StreamId stream, int priority) {
    if (priority >= 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    priorities_[stream] = std::max(priority, kHighestPriority);
  }
  int get(StreamId stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = priorities_.find(stream);
    return found == priorities_.end() ? 0 : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<StreamId, int> priorities_;
};

inline StreamPriorities& stream_priorities() {
  static auto* priorities = new StreamPriorities;
  return *priorities;
}

inline StreamId new_stream(int priority) {
  static std::atomic<StreamId> last{0};
  const StreamId stream = ++last;
  stream_priorities().set(stream, priority);
  return stream;
}

}  // namespace ditorch_sim
