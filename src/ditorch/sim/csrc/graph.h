#pragma once
// CUDA graphs. While a stream is captured, every call of a kernel of the device is recorded: the operator, its arguments
// as they lie in memory, and where its results lie. It also runs, to find out what the results look like; when the
// capture ends, memory is as if it had not. A replay runs the same kernels on the same memory.
#include <ATen/ops/clone_ops.h>

#include <cstdio>
#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define DITORCH_ACCELERATOR_GRAPH
#endif

namespace ditorch_sim {

// ---- recording -----------------------------------------------------------------------------------------------------

inline bool has_memory(const Tensor& tensor) {  // not so inside torch.compile, where tensors only stand for others
  return on_device(tensor) && tensor.unsafeGetTensorImpl()->has_storage() && tensor.storage().device_type() == kSim;
}

// The device that a call is for, or -1.
inline DeviceIndex device_of(Stack& stack, size_t first) {
  DeviceIndex device = -1;
  for (size_t i = first; i < stack.size(); i++) {
    if (stack[i].isDevice() && stack[i].toDevice().type() == kSim) device = index_or_current(stack[i].toDevice());
    IValue argument = stack[i];
    for_each_tensor(argument, [&](const Tensor& tensor) {
      if (has_memory(tensor)) device = tensor.device().index();
      return tensor;
    });
    if (device >= 0) return device;
  }
  return device;
}

// The same memory under a tensor of the graph's own: what the program does to its tensor later is none of the graph's
// business. Storages are kept apart as they are.
class Frozen {
 public:
  Tensor tensor(const Tensor& tensor) {
    const auto host = host_of(tensor.storage());
    auto& storage = storages_[host.unsafeGetStorageImpl()];
    if (!storage) {
      const auto device = tensor.device();
      c10::DataPtr data(host.mutable_data(), new Block{host, 0, device.index()}, &free_block, device);
      storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), host.nbytes(),
                                                                   std::move(data), device_memory(), /*resizable=*/true));
    }
    return wrap(storage, DispatchKey::PrivateUse1, tensor);
  }

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
};

// A host tensor among the arguments: a number, which a kernel is given by value.
inline Tensor baked(const Tensor& tensor) {
  auto copy = at::_ops::clone::call(tensor, std::nullopt);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

// What a call is to the recorder.
struct CallTraits {
  bool copies, collective, allocates, resizes, needs_values;
  Signature signature;

  explicit CallTraits(const OperatorHandle& op) : signature(op.schema()) {
    const auto& name = op.schema().name();
    copies = name == "aten::_copy_from" || name == "aten::_copy_from_and_resize";
    collective = name.rfind("c10d::", 0) == 0;
    allocates = name.rfind("aten::empty", 0) == 0 || name == "aten::record_stream" || op.hasTag(at::Tag::inplace_view);
    resizes = allocates && name.find("resize") != std::string::npos;
    // SyncBatchNorm's running statistics are written, and its schemas do not say so
    for (size_t i = 0; i < op.schema().arguments().size(); i++)
      if (op.schema().arguments()[i].name().rfind("running_", 0) == 0) signature.owned.push_back(i);
    // item() says so itself
    needs_values = (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape)) &&
                   name != "aten::_local_scalar_dense";
  }
  bool writes(size_t argument) const {
    if (collective) return true;  // their schemas do not say
    if (copies && argument == 1) return true;
    const auto& owned = signature.owned;
    return std::find(owned.begin(), owned.end(), argument) != owned.end();
  }
};

// Why a call waits for the device on CUDA, mostly to learn how many results there are; nothing if it does not wait. A mask
// on the CPU is counted there, and what is left of it may be copied while the host goes on, but not into a capture.
inline const char* why_it_waits(const OperatorHandle& op, const CallTraits& traits, c10::ArrayRef<IValue> arguments,
                                bool captured) {
  const auto& names = op.schema().arguments();
  if (!traits.signature.takes_host_indices) {
    for (size_t i = 0; i < arguments.size(); i++)
      if (names[i].name() == "output_size" && !arguments[i].isNone()) return nullptr;
    return traits.needs_values ? "whose result depends on the values in its arguments" : nullptr;
  }
  bool mask = false, host_mask = false, host_index = false;
  IValue indices = arguments[1];
  for_each_tensor(indices, [&](const Tensor& index) {
    const bool is_mask = index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    mask |= is_mask && !index.is_cpu();
    host_mask |= is_mask && index.is_cpu();
    host_index |= !is_mask && index.is_cpu();
    return index;
  });
  if (host_index || (host_mask && captured)) return "with indices on the CPU";
  const bool fills = arguments.size() > 3 && arguments[2].isTensor() && arguments[2].toTensor().numel() == 1 && !arguments[3].toBool();
  return mask && !fills ? "with a mask as index, which must be counted first" : nullptr;
}

inline void tell_if_it_waits(const OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto arguments = c10::ArrayRef<IValue>(*stack).slice(stack->size() - count, count);
  const char* why = why_it_waits(op, CallTraits(op), arguments, /*captured=*/false);
  if (why) tell_of_waiting(c10::str(op.schema().name(), ", ", why).c_str());
}

inline std::vector<Tensor> tensors_in(const Stack& stack, size_t first) {
  std::vector<Tensor> found;
  for (size_t i = first; i < stack.size(); i++) {
    IValue value = stack[i];
    for_each_tensor(value, [&](const Tensor& tensor) {
      found.push_back(tensor);
      return tensor;
    });
  }
  return found;
}

inline void overwrite(const c10::Storage& target, const c10::Storage& source, const std::string& name) {
  TORCH_CHECK(target.nbytes() == source.nbytes(), name, " gave a result of another size than in the capture of its graph");
  if (target.nbytes()) std::memcpy(target.mutable_data(), source.data(), target.nbytes());
}

inline void run_kernel(const OperatorHandle& op, Stack* stack) {
  RecordedCall inside;
  op.redispatchBoxed(DispatchKeySet(DispatchKey::PrivateUse1), stack);
}

inline void record_call(const CapturePtr& capture, DeviceIndex device, const OperatorHandle& op, const CallTraits& traits, Stack* stack) {
  capture->check_valid();
  at::AutoDispatchBelowADInplaceOrView below;
  const size_t count = op.schema().arguments().size(), first = stack->size() - count;
  std::vector<IValue> arguments(stack->begin() + first, stack->end());
  if (const char* why = why_it_waits(op, traits, arguments, true))
    refuse(*capture, c10::str(op.schema().name(), ", ", why, ","));
  Frozen frozen;
  Node node{op.schema().name(), current_stream[device]};

  const auto freeze = [&](const Tensor& tensor) {
    if (has_memory(tensor)) return frozen.tensor(tensor);
    return traits.copies ? wrap(tensor.storage(), DispatchKey::CPU, tensor) : baked(tensor);
  };
  std::vector<Tensor> given;
  std::vector<IValue> kept(count);
  std::vector<c10::Storage> before_writing;
  {
    RecordedCall inside;
    for (size_t i = 0; i < count; i++) {
      kept[i] = arguments[i];
      for_each_tensor(kept[i], [&](const Tensor& tensor) {
        given.push_back(tensor);
        if (!traits.writes(i)) return freeze(tensor);
        before_writing.push_back(has_memory(tensor) ? host_of(tensor.storage()) : tensor.storage());
        capture->will_write(before_writing.back());
        return tensor;
      });
    }
  }

  const auto memory = [&] { return traits.resizes ? memory_of(given[0].storage().data_ptr()) : c10::Storage(); };
  const auto before = memory();
  recorded_node = &node;
  try {
    run_kernel(op, stack);
  } catch (...) {
    recorded_node = nullptr;
    throw;
  }
  recorded_node = nullptr;
  if (traits.allocates) {
    const auto after = memory();
    if (!after.is_alias_of(before)) record_move(before, after, device);
    return;
  }

  RecordedCall inside;
  size_t written = 0;
  for (size_t i = 0; i < count; i++)  // as the kernel left them: it may have given them other memory
    if (traits.writes(i)) for_each_tensor(kept[i], [&](const Tensor& tensor) {
      const auto& before = before_writing[written++];
      if (has_memory(tensor)) {
        node.written.push_back(host_of(tensor.storage()));
        if (!node.written.back().is_alias_of(before)) record_move(before, node.written.back(), device);  // of a lazy clone
      }
      return freeze(tensor);
    });
  std::vector<c10::Storage> results;  // where each result lies, if not in an argument
  for (const Tensor& result : tensors_in(*stack, stack->size() - op.schema().returns().size())) {
    if (on_device(result) && !has_memory(result)) refuse(*capture, c10::str(op.schema().name(), ", whose result is not dense,"));
    const bool fresh = has_memory(result) && std::none_of(given.begin(), given.end(), [&](const Tensor& tensor) {
      return tensor.unsafeGetTensorImpl()->has_storage() && tensor.storage().is_alias_of(result.storage());
    });
    results.push_back(fresh ? frozen.tensor(result).storage() : c10::Storage());
    if (fresh) node.written.push_back(host_of(result.storage()));
  }
  if (node.written.empty() && !traits.copies) return;  // a view

  node.run = [op, kept = std::move(kept), results = std::move(results)] {
    Stack stack(kept);
    run_kernel(op, &stack);
    const auto again = tensors_in(stack, stack.size() - op.schema().returns().size());
    TORCH_CHECK(again.size() == results.size(), op.schema().name(), " gave other results than in the capture of its graph");
    for (size_t i = 0; i < results.size(); i++)
      if (results[i]) overwrite(results[i], again[i].storage(), op.schema().name());
  };
  capture->add(std::move(node));
}

inline bool record(const OperatorHandle& op, Stack* stack) {
  if (recorded_calls != 0) return false;
  const auto found = device_of(*stack, stack->size() - op.schema().arguments().size());
  const auto device = found < 0 ? current_device : found;
  const auto capture = current_capture(device);
  if (capture) record_call(capture, device, op, CallTraits(op), stack);
  return capture != nullptr;
}

inline void recorder(const OperatorHandle& op, Stack* stack) {
  if (!record(op, stack)) op.redispatchBoxed(DispatchKeySet(DispatchKey::PrivateUse1), stack);
}

// Done for the first capture. Each of PyTorch's operators by name: at a key without a kernel of their own, some take one
// that is composed of others.
inline void register_recorder() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* others = new torch::Library(torch::Library::IMPL, "_", kRecorder, __FILE__, __LINE__);
    others->fallback(torch::CppFunction::makeFromBoxedFunction<&recorder>());
    static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kRecorder, __FILE__, __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames())
      if (name.name.rfind("aten::", 0) == 0 && dispatcher.findSchema(name))
        aten->impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&recorder>());
  });
}

// ---- replaying -----------------------------------------------------------------------------------------------------

inline void replay_nodes(const Recording& recording) {
  // Below autograd and autocast, and seen by no mode, as the device's own queue.
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                           DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot}));
  ReplayedDraws draws;
  for (const auto& [state, count] : recording.random) {
    draws.began[state.get()] = state->offset;
    state->offset += count;
  }
  auto* const outer = replayed_draws;
  replayed_draws = &draws;
  try {
    for (const Node& node : recording.nodes) {
      draws.node = &node;
      draws.next = 0;
      node.run();
    }
  } catch (...) {
    replayed_draws = outer;
    throw;
  }
  replayed_draws = outer;
}

// Of a replay that only finds out what the memory then looks like.
class RestoredOffsets {
 public:
  explicit RestoredOffsets(const Recording& recording) {
    for (const auto& [state, count] : recording.random) offsets_.emplace_back(state, state->offset);
  }
  ~RestoredOffsets() {
    for (const auto& [state, offset] : offsets_) state->offset = offset;
  }

 private:
  std::vector<std::pair<RandomStatePtr, uint64_t>> offsets_;
};

// ---- graphs --------------------------------------------------------------------------------------------------------

using PoolId = std::pair<int64_t, int64_t>;  // (n, 0) made by a graph, (0, n) by graph_pool_handle()

inline int64_t new_pool_number() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

inline std::shared_ptr<Pool> pool_of(PoolId id) {
  static std::mutex mutex;
  static auto* pools = new std::map<PoolId, std::weak_ptr<Pool>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto pool = (*pools)[id].lock();
  if (!pool) (*pools)[id] = pool = std::make_shared<Pool>();
  return pool;
}

class Graph {
 public:
  explicit Graph(bool keep) : keep_(keep) {}
  ~Graph() { reset(); }

  void register_generator(const at::Generator& generator) {
    TORCH_CHECK(generator.device().type() == kSim, "Expected a generator of the device, not of ", generator.device().type());
    random_.push_back(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->state());
  }

  void capture_begin(PoolId pool, const std::string& mode) {
    TORCH_CHECK(!recording_, "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance.");
    const auto device = current_device;
    const auto stream = current_stream[device];
    TORCH_CHECK(stream != 0, "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "
                "replay them on the default stream.)");
    if (auto other = capture_of(device, stream)) refuse(*other, "beginning another capture on the same stream");
    register_recorder();
    pool_id_ = pool.first || pool.second ? pool : PoolId{new_pool_number(), 0};
    pool_ = pool_of(pool_id_);
    pool_->add_graph();
    capture_ = std::make_shared<Capture>(device, stream, mode_named(mode), pool_);
    random_.push_back(static_cast<Generator*>(default_generator(device).unsafeGetGeneratorImpl())->state());
    for (const auto& state : random_) {
      if (capture_->knows(state.get())) continue;
      capture_->recording->random.emplace_back(state, 0);
      state->in_graph = 0;
    }
    {
      std::lock_guard<std::mutex> lock(captured_streams().mutex);
      captured_streams().captures[{device, stream}] = capture_;
      captures_under_way++;
    }
  }

  void capture_end() {
    TORCH_CHECK(capture_, "capture_end() called before capture_begin().");
    TORCH_CHECK(current_device == capture_->device && current_stream[current_device] == capture_->stream,
                "Capture must end on the same stream it began on.");
    if (capture_->mode != Capture::Mode::relaxed && capture_->thread != std::this_thread::get_id())
      raise(kWrongThread, "capture_end() in another thread than capture_begin()");
    const auto capture = stop();
    try {
      capture->check_valid();
      if (!capture->is_joined())
        raise(kUnjoined, "a stream that was forked from the captured one must be waited for before the capture ends");
    } catch (...) {
      pool_->remove_graph();
      pool_.reset();
      throw;
    }
    recording_ = capture->recording;
  }

  int64_t length() const { return recording_ ? recording_->nodes.size() : 0; }

  void instantiate() const {
    TORCH_CHECK(recording_, "capture_end() must have been called before calling instantiate");
    TORCH_CHECK(keep_, "instantiate() is intended to be called by the user only when keep_graph=true");
  }

  void replay() const {
    TORCH_CHECK(recording_, "Called CUDAGraph::replay without a preceding successful capture.");
    const auto recording = recording_;
    if (const auto outer = current_capture(current_device)) {  // a graph inside a graph
      outer->check_valid();
      Node node{"graph", current_stream[current_device]};
      for (const Node& inner : recording->nodes)
        for (const auto& host : inner.written) {
          outer->will_write(host);
          node.written.push_back(host);
        }
      node.run = [recording] { replay_nodes(*recording); };
      {
        RecordedCall inside;
        const RestoredOffsets offsets(*recording);
        replay_nodes(*recording);
      }
      outer->add(std::move(node));
      return;
    }
    replay_nodes(*recording);
  }

  void reset() {
    if (capture_) stop();
    recording_.reset();
    random_.clear();
    if (pool_) pool_->remove_graph();
    pool_.reset();
  }

  PoolId pool() const {
    TORCH_CHECK(recording_, "Called CUDAGraph::pool() without a preceding successful capture.");
    return pool_id_;
  }

  static void enable_debug_mode() { debug_ = true; }
  // False if debugging was not enabled.
  bool debug_dump(const std::string& path) const {
    if (!debug_ && !keep_) return false;
    TORCH_CHECK(recording_, "there is no captured graph to dump");
    std::string text = "digraph graph_of_kernels {\n";
    for (size_t i = 0; i < recording_->nodes.size(); i++) {
      const auto& node = recording_->nodes[i];
      const auto number = std::to_string(i);
      text += "  node" + number + " [label=\"" + number + " " + node.name + " (stream " + std::to_string(node.stream) + ")\"];\n";
      for (const auto earlier : node.after) text += "  node" + std::to_string(earlier) + " -> node" + number + ";\n";
    }
    std::FILE* file = std::fopen(path.c_str(), "w");
    TORCH_CHECK(file, "cannot write the graph to ", path, ": ", std::strerror(errno));
    std::fputs((text + "}\n").c_str(), file);
    std::fclose(file);
    return true;
  }

 private:
  static Capture::Mode mode_named(const std::string& name) {
    if (name == "global" || name == "default") return Capture::Mode::global;
    if (name == "thread_local") return Capture::Mode::thread_local_only;
    TORCH_CHECK(name == "relaxed", "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ", name);
    return Capture::Mode::relaxed;
  }

  // Ends the capture, well or not: all is as it was before.
  CapturePtr stop() {
    const auto capture = std::move(capture_);
    capture_.reset();
    {
      std::lock_guard<std::mutex> lock(captured_streams().mutex);
      auto& captures = captured_streams().captures;
      for (auto entry = captures.begin(); entry != captures.end();)
        entry = entry->second == capture ? captures.erase(entry) : std::next(entry);
      captures_under_way--;
    }
    for (auto& [state, count] : capture->recording->random) count = state->in_graph;
    capture->restore();
    return capture;
  }

  inline static std::atomic<bool> debug_{false};
  const bool keep_;
  PoolId pool_id_;
  std::shared_ptr<Pool> pool_;
  CapturePtr capture_;
  std::shared_ptr<Recording> recording_;
  std::vector<RandomStatePtr> random_;
};

// torch.accelerator.Graph, of newer releases. No `override`: a release that wants other functions goes without.
#ifdef DITORCH_ACCELERATOR_GRAPH
class AcceleratorGraph : public at::GraphImplInterface {
 public:
  explicit AcceleratorGraph(const at::GraphImplArgs& options) : graph_(options.keep_graph) {}
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
    using Mode = at::GraphCaptureMode;
    const char* name = mode == Mode::ThreadLocal ? "thread_local" : mode == Mode::Relaxed ? "relaxed" : "global";
    graph_.capture_begin({pool.first, pool.second}, name);
  }
  void capture_end() { graph_.capture_end(); }
  void instantiate() { graph_.instantiate(); }
  void replay() { graph_.replay(); }
  void reset() { graph_.reset(); }
  c10::MempoolId_t pool() const { return {graph_.pool().first, graph_.pool().second}; }
  void enable_debug_mode() { Graph::enable_debug_mode(); }
  void debug_dump(const std::string& path) { graph_.debug_dump(path); }

 private:
  Graph graph_;
};

template <class Implementation>
void register_graphs_by_name() {
  if constexpr (!std::is_abstract_v<Implementation>)
    at::GraphImplRegistry()->Register(c10::DeviceTypeName(kSim, /*lower_case=*/false), [](at::GraphImplArgs options) {
      return std::unique_ptr<at::GraphImplInterface>(new Implementation(options));
    });
}
#endif

// Once the device has its name, by which PyTorch looks.
inline void register_accelerator_graph() {
#ifdef DITORCH_ACCELERATOR_GRAPH
  register_graphs_by_name<AcceleratorGraph>();
#endif
}

// ---- Python's way in: graphs by number -----------------------------------------------------------------------------

class Graphs {
 public:
  int64_t add(bool keep) {
    std::lock_guard<std::mutex> lock(mutex_);
    graphs_[++last_] = std::make_shared<Graph>(keep);
    return last_;
  }
  std::shared_ptr<Graph> get(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    return graphs_.at(number);
  }
  void remove(int64_t number) {
    std::shared_ptr<Graph> last;  // dies outside the lock
    std::lock_guard<std::mutex> lock(mutex_);
    last.swap(graphs_[number]);
    graphs_.erase(number);
  }

 private:
  std::mutex mutex_;
  int64_t last_ = 0;
  std::map<int64_t, std::shared_ptr<Graph>> graphs_;
};
inline Graphs& graphs() {
  static auto* all = new Graphs;
  return *all;
}

inline void queue_sleep(int64_t nanoseconds) {
  const auto queue = [nanoseconds] { device_clock().queue(current_device, current_stream[current_device], nanoseconds); };
  const auto capture = current_capture(current_device);
  if (!capture) return queue();
  if (recorded_calls) return;  // a slow kernel, which sleeps in each replay
  Node node{"sleep", current_stream[current_device]};
  node.run = queue;
  capture->add(std::move(node));
}

TORCH_LIBRARY_FRAGMENT(ditorch_sim, m) {
  m.def("register_accelerator_graph() -> ()", &register_accelerator_graph);
  m.def("is_capturing() -> bool", []() -> bool { return current_capture(current_device) != nullptr; });
  m.def("must_record() -> bool", []() -> bool { return recorded_calls == 0 && current_capture(current_device); });
  m.def("captures_under_way() -> int", [] { return reinterpret_cast<int64_t>(&captures_under_way); });  // where it stands
  m.def("graph_pool_handle() -> (int, int)", [] { return std::make_tuple(int64_t(0), new_pool_number()); });
  m.def("graph_new(bool keep) -> int", [](bool keep) -> int64_t { return graphs().add(keep); });
  m.def("graph_delete(int graph) -> ()", [](int64_t graph) { graphs().remove(graph); });
  m.def("graph_register_generator(int graph, Generator? generator) -> ()",
        [](int64_t graph, at::Generator generator) { graphs().get(graph)->register_generator(generator); });
  m.def("graph_capture_begin(int graph, int first, int second, str mode) -> ()",
        [](int64_t graph, int64_t first, int64_t second, std::string mode) {
          graphs().get(graph)->capture_begin({first, second}, mode);
        });
  m.def("graph_capture_end(int graph) -> ()", [](int64_t graph) { graphs().get(graph)->capture_end(); });
  m.def("graph_length(int graph) -> int", [](int64_t graph) -> int64_t { return graphs().get(graph)->length(); });
  m.def("graph_instantiate(int graph) -> ()", [](int64_t graph) { graphs().get(graph)->instantiate(); });
  m.def("graph_replay(int graph) -> ()", [](int64_t graph) { graphs().get(graph)->replay(); });
  m.def("graph_reset(int graph) -> ()", [](int64_t graph) { graphs().get(graph)->reset(); });
  m.def("graph_pool(int graph) -> (int, int)", [](int64_t graph) {
    const auto pool = graphs().get(graph)->pool();
    return std::make_tuple(pool.first, pool.second);
  });
  m.def("graph_enable_debug_mode() -> ()", [] { Graph::enable_debug_mode(); });
  m.def("graph_debug_dump(int graph, str path) -> bool",
        [](int64_t graph, std::string path) -> bool { return graphs().get(graph)->debug_dump(path); });
}

}  // namespace ditorch_sim
