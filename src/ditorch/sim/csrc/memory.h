#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <cstring>
#include <limits>
#include <map>

#if TORCH_RELEASE >= 209
#include <c10/core/CachingDeviceAllocator.h>
#endif

namespace ditorch_sim {

// ---- statistics and the limit --------------------------------------------------------------------------------------

struct MemoryStatistics {
  std::atomic<int64_t> current{0}, peak{0}, total{0}, allocations{0}, out_of_memory{0};
  std::atomic<int64_t> idle{0};  // no tensor's, but kept for graphs
};
inline MemoryStatistics memory_statistics[kMaxDevices];

// Bytes per device. The default is what the Python side sets it to, from DITORCH_SIM_MEMORY or the host's memory.
inline std::atomic<int64_t> memory_limit{std::numeric_limits<int64_t>::max()};

inline void check_memory(int64_t bytes, DeviceIndex device) {
  auto& statistics = memory_statistics[device];
  const int64_t used = statistics.current + statistics.idle;
  if (C10_LIKELY(used + bytes <= memory_limit)) return;
  statistics.out_of_memory++;
  TORCH_CHECK_WITH(OutOfMemoryError, false, c10::get_privateuse1_backend(true), " out of memory. Tried to allocate ",
                   std::to_string(bytes), " bytes. Device ", std::to_string(device), " has a capacity of ",
                   std::to_string(memory_limit), " bytes, of which ", std::to_string(used),
                   " are in use (simulated accelerator, DITORCH_SIM_MEMORY).");
}

// ---- device memory -------------------------------------------------------------------------------------------------
// A block of device memory is a CPU storage under another name: the device's DataPtr owns it and points into it.

struct Block {
  c10::Storage host;
  int64_t bytes;
  DeviceIndex device;
  std::shared_ptr<Pool> pool = nullptr;  // of the graph in whose capture it was allocated
};

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  auto& statistics = memory_statistics[block->device];
  statistics.current -= block->bytes;
  if (block->pool && block->pool->give_back(block->device, block->host)) statistics.idle += block->bytes;
  delete block;
}

// A lazy clone (torch._lazy_clone) shares memory until one side writes to it. PyTorch wants such memory to be its own
// context, so the block behind it is kept here, by address.
class SharedBlocks {
 public:
  void add(const void* data, Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[data] = block;
    used_ = true;
  }
  bool any() const { return used_.load(std::memory_order_relaxed); }  // there ever was one
  Block* find(const void* data) {
    if (!any()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(data);
    return found == blocks_.end() ? nullptr : found->second;
  }
  Block* take(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto node = blocks_.extract(data);
    return node.empty() ? nullptr : node.mapped();
  }

 private:
  std::atomic<bool> used_{false};
  std::mutex mutex_;
  std::map<const void*, Block*> blocks_;
};

inline SharedBlocks& shared_blocks() {
  static auto* blocks = new SharedBlocks;
  return *blocks;
}

inline void free_shared_block(void* data) {
  if (auto* block = shared_blocks().take(data)) free_block(block);
}

// Makes the memory of a storage its own context. Nothing else changes.
inline void make_shareable(c10::StorageImpl& storage) {
  auto& data = storage._mutable_data_ptr_no_checks();
  if (data.get_deleter() != &free_block) return;
  auto* block = static_cast<Block*>(data.release_context());
  void* address = block->host.mutable_data();
  const Device device(kSim, block->device);
  if (address) {
    shared_blocks().add(address, block);
  } else {
    free_block(block);
  }
  storage.set_data_ptr_noswap(c10::DataPtr(address, address, &free_shared_block, device));
}

inline void Pool::remove_graph() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--graphs_ > 0) return;
  for (const auto& [kind, storages] : idle_) memory_statistics[kind.first].idle -= kind.second * storages.size();
  idle_.clear();
}

// What is allocated in a capture: from the pool, where it has a block of this size.
inline c10::Storage captured_memory(Capture& capture, c10::Storage host, DeviceIndex device) {
  if (auto pooled = capture.pool->take(device, host.nbytes())) {
    memory_statistics[device].idle -= host.nbytes();
    std::memcpy(pooled.mutable_data(), host.data(), host.nbytes());
    host = std::move(pooled);
  }
  capture.made(host);
  return host;
}

inline c10::Storage host_storage(size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            c10::GetCPUAllocator(), /*resizable=*/true));
}

// Makes `host` the memory of a block on `device`, without a copy.
inline c10::DataPtr adopt_memory(c10::Storage host, DeviceIndex device) {
  if (C10_UNLIKELY(!device_is_used)) {
    check_device(device);  // there may be none
    use_device();
  }
  check_health();
  const int64_t bytes = host.nbytes();
  std::shared_ptr<Pool> pool;
  if (auto capture = current_capture(device)) {
    host = captured_memory(*capture, std::move(host), device);
    pool = capture->pool;
  } else if (recorded_calls == 0) {
    check_may_allocate(bytes);
  }
  check_memory(bytes, device);
  auto& statistics = memory_statistics[device];
  const int64_t current = statistics.current += bytes;
  int64_t peak = statistics.peak;
  while (current > peak && !statistics.peak.compare_exchange_weak(peak, current)) {
  }
  statistics.total += bytes;
  statistics.allocations++;
  void* data = host.mutable_data();
  return c10::DataPtr(data, new Block{std::move(host), bytes, device, std::move(pool)}, &free_block, Device(kSim, device));
}

inline c10::DataPtr allocate_on(size_t bytes, DeviceIndex device) {
  check_memory(bytes, device);  // before the host's memory is touched
  return adopt_memory(host_storage(bytes), device);
}

#if TORCH_RELEASE >= 209
using AllocatorBase = c10::DeviceAllocator;
#else
using AllocatorBase = c10::Allocator;
#endif

struct DeviceMemory final : AllocatorBase {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(bytes, current_device); }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

#if TORCH_RELEASE >= 209
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}  // nothing is cached
  void recordStream(const c10::DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    check_device(device);
    auto& ours = memory_statistics[device];
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      auto& all = (*bytes)[0];  // [0]: all pools together
      all.current = ours.current;
      all.peak = ours.peak;
      all.allocated = ours.total;
      all.freed = ours.total - ours.current;
    }
    stats.allocation[0].allocated = ours.allocations;
    stats.num_ooms = ours.out_of_memory;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    check_device(device);
    memory_statistics[device].total = memory_statistics[device].current.load();
    memory_statistics[device].allocations = 0;
    memory_statistics[device].out_of_memory = 0;
  }
  void resetPeakStats(DeviceIndex device) override {
    check_device(device);
    memory_statistics[device].peak = memory_statistics[device].current.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device)
#if TORCH_RELEASE >= 210
      override
#endif
  {
    check_device(device);
    return {size_t(memory_limit - memory_statistics[device].current), size_t(memory_limit.load())};
  }
#endif
};

inline DeviceMemory* device_memory() {
  static auto* allocator = new DeviceMemory;
  return allocator;
}

// ---- pinned host memory: plain host memory that remembers it was asked for as pinned ---------------------------------

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t length = std::max<size_t>(bytes, 1);
    void* data = c10::GetCPUAllocator()->raw_allocate(length);
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[static_cast<const char*>(data)] = {length, false};
    return c10::DataPtr(data, data, &release, Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool contains(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return find(address) != nullptr;
  }
  // An asynchronous copy of a stream uses this memory. False where it is not pinned.
  bool used_by_stream(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto* block = find(address);
    if (block) block->used = true;
    return block != nullptr;
  }

 private:
  struct Pinned {
    size_t length;
    bool used;  // by a stream
  };
  Pinned* find(const void* address) {
    auto after = blocks_.upper_bound(static_cast<const char*>(address));
    if (after == blocks_.begin()) return nullptr;
    --after;
    return static_cast<const char*>(address) < after->first + after->second.length ? &after->second : nullptr;
  }
  static void release(void* data) noexcept;
  std::mutex mutex_;
  std::map<const char*, Pinned> blocks_;
};

inline PinnedMemory* pinned_memory() {
  static auto* allocator = new PinnedMemory;
  return allocator;
}

// As PyTorch's allocator for CUDA: when memory that a stream has used is given back, an event tells when the stream is
// done with it. Where the device has failed that raises, in a destructor: the process ends ("terminate called").
inline void PinnedMemory::release(void* data) noexcept {
  bool used = false;
  {
    std::lock_guard<std::mutex> lock(pinned_memory()->mutex_);
    auto found = pinned_memory()->blocks_.find(static_cast<const char*>(data));
    if (found != pinned_memory()->blocks_.end()) {
      used = found->second.used;
      pinned_memory()->blocks_.erase(found);
    }
  }
  if (used) check_health();
  c10::GetCPUAllocator()->raw_deallocate(data);
}

}  // namespace ditorch_sim
