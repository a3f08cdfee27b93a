#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <string>
#include <vector>

namespace ditorch_sim {

// Which of the machine's simulated devices this process sees: all, or those that CUDA_VISIBLE_DEVICES names, in its
// order. As with CUDA, the variable counts until the first use of a device, also where the program sets it itself.

constexpr int kMaxDevices = 64;
constexpr int kDefaultDevices = 2;

// Only under the redirect, whose programs were written for CUDA; a device that goes by its own name has no such variable.
inline std::atomic<bool> obeys_cuda_visible_devices{false};

inline std::string device_uuid(int device) {
  char text[37];
  std::snprintf(text, sizeof text, "d170c400-51ed-4000-8000-%012x", device);
  return text;
}

// An entry of the list: a number, or the beginning of "GPU-" and a device's UUID. Negative: no device.
inline int named_device(const std::string& entry, int devices) {
  if (entry.rfind("GPU-", 0) == 0) {
    int found = -1;
    for (int device = 0; device < devices; device++) {
      if (("GPU-" + device_uuid(device)).rfind(entry, 0) != 0) continue;
      if (found >= 0) return -1;  // it could be any of several
      found = device;
    }
    return found;
  }
  char* end = nullptr;
  const long number = std::strtol(entry.c_str(), &end, 10);
  return end == entry.c_str() || number > kMaxDevices ? -1 : int(number);
}

inline std::vector<std::string> list_entries(const std::string& list) {
  std::vector<std::string> entries;
  for (size_t start = 0; start <= list.size();) {
    const size_t comma = std::min(list.find(',', start), list.size());
    const size_t first = std::min(list.find_first_not_of(" \t", start), comma);
    entries.push_back(list.substr(first, comma - first));
    start = comma + 1;
  }
  return entries;
}

// The machine's devices in the order in which the environment shows them now.
inline std::vector<int> devices_in_environment() {
  const char* count = std::getenv("DITORCH_SIM_DEVICES");  // checked by the Python side
  const char* list = obeys_cuda_visible_devices ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  const bool counted = count && *count;
  const int devices = counted ? std::clamp(std::atoi(count), 1, kMaxDevices) : kDefaultDevices;
  std::vector<int> visible;
  if (!list) {
    for (int device = 0; device < devices; device++) visible.push_back(device);
    return visible;
  }
  for (const auto& entry : list_entries(list)) {
    // where nobody said how many there are, there are as many as the program was told of
    const int device = named_device(entry, devices);
    if (device < 0 || device >= (counted ? devices : kMaxDevices)) break;  // CUDA ignores the rest
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};  // CUDA then shows none
    visible.push_back(device);
  }
  return visible;
}

inline std::atomic<bool> device_is_used{false};

inline const std::vector<int>& devices_at_first_use() {
  static const auto* devices = new std::vector<int>(devices_in_environment());
  return *devices;
}

// From the first use on, the devices stay what they are.
inline void use_device() {
  if (device_is_used.load(std::memory_order_relaxed)) return;
  devices_at_first_use();
  device_is_used = true;
}

inline std::vector<int> visible_devices() { return device_is_used ? devices_at_first_use() : devices_in_environment(); }

inline int device_count() {
  return device_is_used ? int(devices_at_first_use().size()) : int(devices_in_environment().size());
}

}  // namespace ditorch_sim
