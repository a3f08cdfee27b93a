#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace ditorch_sim {

// The numbers that a replayed node draws: those of its capture, counted from where the generators were when it began.
struct ReplayedDraws {
  const Node* node = nullptr;
  size_t next = 0;
  std::map<const RandomState*, uint64_t> began;
};
inline thread_local ReplayedDraws* replayed_draws = nullptr;
inline thread_local Node* recorded_node = nullptr;  // whose kernel runs now, for the first time

// A stream of random numbers named by a seed and an offset, as chips have it (and as DTensor wants to set it): every
// kernel that draws gets the CPU's generator, seeded from the two, and moves the offset on. At offset 0 the numbers are
// those of the CPU with the same seed.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(DeviceIndex device, RandomStatePtr state = std::make_shared<RandomState>())
      : c10::GeneratorImpl(Device(kSim, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(at::detail::createCPUGenerator()),
        state_(std::move(state)) {}

  const at::Generator& next() {
    if (C10_UNLIKELY(replayed_draws != nullptr)) return replay();
    if (any_capture())
      if (const auto capture = current_capture(device_.index())) return record(*capture);
    const auto offset = state_->offset;
    state_->offset += kStep;
    return seeded(state_->seed, offset);
  }

  static c10::DeviceType device_type() { return kSim; }
  const RandomStatePtr& state() const { return state_; }

  void set_current_seed(uint64_t seed) override {
    if (is_captured()) {
      TORCH_CHECK(seed == state_->seed, "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if "
                  "new seed is the same as the original seed.");
      return;
    }
    state_->seed = seed;
    state_->offset = 0;
  }
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override {
    check_not_captured("seed");
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_->seed;
  }
  void set_offset(uint64_t offset) override {
    check_not_captured("set_offset");
    state_->offset = offset;
  }
  uint64_t get_offset() const override {
    check_not_captured("get_offset");
    return state_->offset;
  }

  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device_type() == c10::DeviceType::CPU && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                    state.numel() == sizeof(State) && state.is_contiguous(),
                "RNG state must be a CPU tensor of 16 bytes, a seed and an offset");
    State values;
    std::memcpy(&values, state.data(), sizeof(State));
    set_current_seed(values.seed);
    (is_captured() ? state_->in_graph : state_->offset) = values.offset;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const State values{state_->seed, is_captured() ? state_->in_graph : state_->offset};
    auto state = at::detail::empty_cpu({sizeof(State)}, c10::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    std::memcpy(state.mutable_data_ptr(), &values, sizeof(State));
    return state.getIntrusivePtr();
  }
  // Two generators with one state, which a graph can know.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
    const auto* ours = dynamic_cast<const Generator*>(other.get());
    TORCH_CHECK(ours != nullptr, "Expected a generator of the device");
    state_ = ours->state_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const {
    return c10::make_intrusive<Generator>(device_.index(), state_);
  }
  Generator* clone_impl() const override {
    check_not_captured("clone");
    return new Generator(device_.index(), std::make_shared<RandomState>(*state_));
  }

 private:
  struct State {
    uint64_t seed, offset;
  };
  static constexpr uint64_t kStep = 4;  // what one kernel draws, at least: chips count in fours

  static uint64_t mixed(uint64_t seed, uint64_t offset) {  // splitmix64
    uint64_t value = seed + offset * 0x9E3779B97F4A7C15ull;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
  }
  const at::Generator& seeded(uint64_t seed, uint64_t offset) {
    host_.set_current_seed(offset ? mixed(seed, offset) : seed);
    return host_;
  }

  const at::Generator& record(const Capture& capture) {
    TORCH_CHECK(capture.knows(state_.get()), "RNG op during graph capture but generator is not registered with the "
                "capturing graph. Call graph.register_generator_state() before capture_begin().");
    if (recorded_node) recorded_node->draws.emplace_back(state_, state_->in_graph);
    const auto offset = state_->offset + state_->in_graph;
    state_->in_graph += kStep;
    return seeded(state_->seed, offset);
  }
  const at::Generator& replay() {
    auto& draws = *replayed_draws;
    TORCH_CHECK(draws.next < draws.node->draws.size(), draws.node->name, " draws other random numbers than in its capture");
    const auto& [state, in_graph] = draws.node->draws[draws.next++];
    return seeded(state->seed, draws.began.at(state.get()) + in_graph);
  }
  bool is_captured() const { return current_capture(device_.index()) != nullptr; }
  void check_not_captured(const char* what) const {
    TORCH_CHECK(!is_captured(), "Cannot call CUDAGeneratorImpl::", what, " during CUDA graph capture. If you need this "
                "call to be captured, please file an issue.");
  }

  at::Generator host_;
  RandomStatePtr state_;
};

inline const at::Generator& default_generator(DeviceIndex device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>;
    for (int index = 0; index < kMaxDevices; index++) all->push_back(at::make_generator<Generator>(DeviceIndex(index)));
    return all;
  }();
  return generators->at(device < 0 ? current_device : device);
}

inline at::Generator new_generator(DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current_device : device);
}

// The CPU generator for the next kernel that draws.
inline const at::Generator& host_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kSim, "Expected a '", c10::get_privateuse1_backend(true),
              "' device type for generator but found '", generator.device().type(), "'");
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->next();
}

}  // namespace ditorch_sim
