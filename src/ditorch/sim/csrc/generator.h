#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace ditorch_sim {

// A CPU generator dressed as the device's: kernels are the CPU's, so they need the one inside.
struct Generator final : c10::GeneratorImpl {
  at::Generator host;

  explicit Generator(DeviceIndex device, at::Generator host = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(Device(kSim, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(host)) {}

  static c10::DeviceType device_type() { return kSim; }
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(device_.index(), host.clone()); }
};

inline const at::Generator& default_generator(DeviceIndex device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>;
    for (int index = 0; index < device_count(); index++) all->push_back(at::make_generator<Generator>(DeviceIndex(index)));
    return all;
  }();
  return generators->at(device < 0 ? current_device : device);
}

inline at::Generator new_generator(DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current_device : device);
}

inline const at::Generator& host_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kSim, "Expected a '", c10::get_privateuse1_backend(true),
              "' device type for generator but found '", generator.device().type(), "'");
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->host;
}

}  // namespace ditorch_sim
