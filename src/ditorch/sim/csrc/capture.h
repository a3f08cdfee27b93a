#pragma once
// Captures under way: which streams are being captured, and what may not be done meanwhile. graph.h records and replays.
#include <c10/core/DispatchKey.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace ditorch_sim {

// A key that no device uses: kernels in Python send a call there that is to be recorded (ditorch/sim/graphs.py). It is
// never in the way of calls: torch.compile takes another way of calls for another program.
constexpr auto kRecorder = c10::DispatchKey::CustomRNGKeyId;

// ---- errors: CUDA's numbers and words ------------------------------------------------------------------------------

struct CaptureFault {
  int code;
  const char* text;
};
constexpr CaptureFault kNotPermitted{900, "operation not permitted when stream is capturing"};
constexpr CaptureFault kInvalidated{901, "operation failed due to a previous error during capture"};
constexpr CaptureFault kMerge{902, "operation would result in a merge of separate capture sequences"};
constexpr CaptureFault kUnjoined{904, "capturing stream has unjoined work"};
constexpr CaptureFault kIsolation{905, "dependency created on uncaptured work in another stream"};
constexpr CaptureFault kDefaultStream{906, "operation would make the legacy stream depend on a capturing blocking stream"};
constexpr CaptureFault kCapturedEvent{907, "operation not permitted on an event last recorded in a capturing stream"};
constexpr CaptureFault kWrongThread{908, "attempt to terminate a thread-local capture sequence from another thread"};

[[noreturn]] inline void raise(const CaptureFault& fault, const std::string& what) {
  const auto message = c10::str("CUDA error: ", fault.text, "\n(simulated accelerator) ", what);
#if TORCH_RELEASE >= 209
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, fault.code, message);
#else
  TORCH_CHECK(false, message);
#endif
}

// ---- what is recorded ----------------------------------------------------------------------------------------------

// A state of a random number generator. While a graph is captured that knows it, it counts from 0: a replay adds that
// to where the generator then is.
struct RandomState {
  uint64_t seed = c10::default_rng_seed_val;  // as the CPU and CUDA begin
  uint64_t offset = 0;
  uint64_t in_graph = 0;
};
using RandomStatePtr = std::shared_ptr<RandomState>;

struct Node {
  std::string name;
  StreamId stream;
  std::vector<int64_t> after;  // the nodes that it waits for
  std::function<void()> run;
  std::vector<c10::Storage> written;                         // host memory
  std::vector<std::pair<RandomStatePtr, uint64_t>> draws;  // which numbers its kernel drew, from the graph's first on
};

struct Recording {
  std::vector<Node> nodes;
  std::vector<std::pair<RandomStatePtr, uint64_t>> random;  // the states that the graph knows, and how many numbers it draws
};

// Memory of graphs: what its tensors free is reused only by captures with the same pool.
class Pool {
 public:
  c10::Storage take(DeviceIndex device, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = idle_.find({device, bytes});
    if (found == idle_.end() || found->second.empty()) return {};
    auto storage = std::move(found->second.back());
    found->second.pop_back();
    return storage;
  }
  // True if it was kept.
  bool give_back(DeviceIndex device, const c10::Storage& storage) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (graphs_ == 0 || storage.nbytes() == 0) return false;
    idle_[{device, storage.nbytes()}].push_back(storage);
    return true;
  }
  void add_graph() {
    std::lock_guard<std::mutex> lock(mutex_);
    graphs_++;
  }
  void remove_graph();  // the last one frees what is idle

 private:
  std::mutex mutex_;
  int graphs_ = 0;
  std::map<std::pair<DeviceIndex, size_t>, std::vector<c10::Storage>> idle_;
};

// ---- one capture ---------------------------------------------------------------------------------------------------

class Capture {
 public:
  enum class Mode { global, thread_local_only, relaxed };

  Capture(DeviceIndex device, StreamId stream, Mode mode, std::shared_ptr<Pool> pool)
      : device(device), stream(stream), mode(mode), thread(std::this_thread::get_id()), pool(std::move(pool)) {
    known_[stream];
  }

  const DeviceIndex device;
  const StreamId stream;
  const Mode mode;
  const std::thread::id thread;
  const std::shared_ptr<Pool> pool;
  const std::shared_ptr<Recording> recording = std::make_shared<Recording>();

  // ---- validity
  void invalidate(const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (why_invalid_.empty()) why_invalid_ = why;
  }
  void check_valid() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!why_invalid_.empty()) raise(kInvalidated, c10::str("The capture became invalid earlier: ", why_invalid_));
  }

  // ---- streams: for each the last node of every stream that its next node comes after
  using Known = std::map<StreamId, int64_t>;
  Known known_to(StreamId stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    return known_[stream];
  }
  void wait(StreamId stream, const Known& others) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& mine = known_[stream];
    for (const auto& [other, node] : others) mine[other] = std::max(node, mine.count(other) ? mine[other] : -1);
  }
  bool is_joined() {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto& mine = known_[stream];
    for (const auto& [other, node] : last_)
      if (other != stream && (!mine.count(other) || mine.at(other) < node)) return false;
    return true;
  }
  void add(Node node) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& mine = known_[node.stream];
    for (const auto& known : mine) node.after.push_back(known.second);
    mine[node.stream] = last_[node.stream] = recording->nodes.size();
    recording->nodes.push_back(std::move(node));
  }

  // ---- memory: a capture leaves all as it was, because no kernel has run yet
  void made(const c10::Storage& host) {
    std::lock_guard<std::mutex> lock(mutex_);
    made_.emplace(host.unsafeGetStorageImpl(), host);
  }
  void will_write(const c10::Storage& host) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto* key = host.unsafeGetStorageImpl();
    if (!host.nbytes() || made_.count(key) || saved_.count(key)) return;
    const auto* begin = static_cast<const char*>(host.data());
    saved_.emplace(key, std::make_pair(host, std::vector<char>(begin, begin + host.nbytes())));
  }
  void restore() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [key, saved] : saved_) std::memcpy(saved.first.mutable_data(), saved.second.data(), saved.second.size());
    for (auto& [key, host] : made_)
      if (host.nbytes()) std::memset(host.mutable_data(), 0, host.nbytes());
    saved_.clear();
    made_.clear();
  }

  // ---- random numbers
  bool knows(const RandomState* state) const {
    for (const auto& known : recording->random)
      if (known.first.get() == state) return true;
    return false;
  }

 private:
  std::mutex mutex_;
  std::string why_invalid_;
  std::map<StreamId, Known> known_;
  std::map<StreamId, int64_t> last_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> made_;
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::Storage, std::vector<char>>> saved_;
};
using CapturePtr = std::shared_ptr<Capture>;

// ---- the captures of this process ----------------------------------------------------------------------------------

inline std::atomic<int> captures_under_way{0};  // a plain run pays for one relaxed load
inline bool any_capture() { return C10_UNLIKELY(captures_under_way.load(std::memory_order_relaxed) != 0); }

struct CapturedStreams {
  std::mutex mutex;
  std::map<std::pair<DeviceIndex, StreamId>, CapturePtr> captures;
};
inline CapturedStreams& captured_streams() {
  static auto* streams = new CapturedStreams;
  return *streams;
}

inline CapturePtr capture_of(DeviceIndex device, StreamId stream) {
  if (!any_capture()) return nullptr;
  std::lock_guard<std::mutex> lock(captured_streams().mutex);
  auto found = captured_streams().captures.find({device, stream});
  return found == captured_streams().captures.end() ? nullptr : found->second;
}
inline CapturePtr current_capture(DeviceIndex device) {
  return any_capture() ? capture_of(device, current_stream[device < 0 ? current_device : device]) : nullptr;
}

// ---- what may not be done ------------------------------------------------------------------------------------------

[[noreturn]] inline void refuse(Capture& capture, const std::string& what, const CaptureFault& fault = kNotPermitted) {
  const auto message = c10::str(what, " inside the capture of a CUDA graph. Move it out of the capture.");
  capture.invalidate(message);
  raise(fault, message);
}

inline void check_stream_may_wait(DeviceIndex device, StreamId stream, const char* what) {
  if (auto capture = capture_of(device, stream)) refuse(*capture, what);
}
inline void check_device_may_wait(DeviceIndex device, const char* what) {
  if (!any_capture()) return;
  CapturePtr found;
  {
    std::lock_guard<std::mutex> lock(captured_streams().mutex);
    for (const auto& [place, capture] : captured_streams().captures)
      if (place.first == device) found = capture;
  }
  if (found) refuse(*found, what);
}

// CUDA takes large memory from the driver, which a capture forbids to others according to its mode: torch.cuda.graph has
// emptied the cache. Small tensors share blocks that are there already.
inline void check_may_allocate(size_t bytes) {
  constexpr size_t kSmall = 1 << 20;
  if (!any_capture() || bytes <= kSmall) return;
  CapturePtr hurt;
  {
    std::lock_guard<std::mutex> lock(captured_streams().mutex);
    for (const auto& [place, capture] : captured_streams().captures)
      if (capture->mode == Capture::Mode::global ||
          (capture->mode == Capture::Mode::thread_local_only && capture->thread == std::this_thread::get_id()))
        hurt = capture;
  }
  if (hurt) refuse(*hurt, c10::str("allocating ", std::to_string(bytes), " bytes on a stream that is not captured,"));
}

// How many recorded calls this thread is in: the kernels inside them are not recorded again.
inline thread_local int recorded_calls = 0;
struct RecordedCall {
  RecordedCall() { recorded_calls++; }
  ~RecordedCall() { recorded_calls--; }
};

// The net under the recorder: memory that is touched unrecorded would be missing in each replay.
inline void check_recorded(DeviceIndex device) {
  if (!any_capture() || recorded_calls != 0) return;
  if (auto capture = current_capture(device)) refuse(*capture, "a kernel that the simulated accelerator cannot record");
}

}  // namespace ditorch_sim
