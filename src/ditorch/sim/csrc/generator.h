#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace ditorch_sim {

// A stream of random numbers named by a seed and an offset, as chips have it (and as DTensor wants to set it): every
// kernel that draws gets the CPU's generator, seeded from the two, and moves the offset on. At offset 0 the numbers are
// those of the CPU with the same seed.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(DeviceIndex device)
      : c10::GeneratorImpl(Device(kSim, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(at::detail::createCPUGenerator()) {}

  const at::Generator& next() {
    host_.set_current_seed(offset_ ? mixed(seed_, offset_) : seed_);
    offset_ += kStep;
    return host_;
  }

  static c10::DeviceType device_type() { return kSim; }
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }

  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device_type() == c10::DeviceType::CPU && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                    state.numel() == sizeof(State) && state.is_contiguous(),
                "RNG state must be a CPU tensor of 16 bytes, a seed and an offset");
    State values;
    std::memcpy(&values, state.data(), sizeof(State));
    seed_ = values.seed;
    offset_ = values.offset;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const State values{seed_, offset_};
    auto state = at::detail::empty_cpu({sizeof(State)}, c10::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    std::memcpy(state.mutable_data_ptr(), &values, sizeof(State));
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
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

  at::Generator host_;
  uint64_t seed_ = c10::default_rng_seed_val;  // as the CPU and CUDA begin
  uint64_t offset_ = 0;
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
