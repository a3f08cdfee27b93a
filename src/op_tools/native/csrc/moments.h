// A few numbers of each of many tensors in the host's memory, in one pass over each: what device/moments.py computes in several,
// and device/moments.cu on CUDA. An operator of torch's for the CPU, as in digests_host.h and for the same reason.
#pragma once

#include "python.h"

#include "digest.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <vector>

namespace moments {

constexpr int64_t kNumbers = 6;   // sum, square, largest, nonzero, nonfinite, bits
constexpr int64_t kBlock = 4096;  // elements that are summed up in their own precision
constexpr int kBytes = 32;        // of a register

template <typename Whole>
struct Moments {
  double sum = 0, square = 0;
  Whole largest = 0;  // its bits, which are in the order of sizes: infinity above numbers, NaN above it
  uint64_t nonzero = 0, nonfinite = 0;
};

// The sum of the elements' bits, taken as whole numbers with a sign.
template <typename Raw>
inline uint64_t sum_of_bits(const void* data, int64_t length) {
  const auto* elements = static_cast<const Raw*>(data);
  int64_t sum = 0;
  for (int64_t place = 0; place < length; ++place) sum += elements[place];
  return static_cast<uint64_t>(sum);
}

// `Whole`: unsigned, as wide as the values; `infinite`: the bits of an infinity.
template <typename Of, typename Whole>
inline void add_block(const typename Of::Raw* elements, int64_t length, Whole infinite, Moments<Whole>& found) {
  using Values = typename Of::Values;
  typedef Whole Wholes __attribute__((vector_size(kBytes)));
  Values sum = {}, square = {};
  Wholes largest = {}, nonzero = {}, nonfinite = {};
  for (int64_t place = 0; place < length; place += Of::count) {
    const auto value = Of::value(digest::beginning<Of>(elements + place, length - place));
    const auto size = reinterpret_cast<Wholes>(value) << 1 >> 1;  // without the sign, bits have the order of the values
    sum += value;
    square += value * value;
    largest = size > largest ? size : largest;
    nonzero -= reinterpret_cast<Wholes>(size != 0);  // what is true is -1
    nonfinite -= reinterpret_cast<Wholes>(size >= infinite);
  }
  found.sum += digest::total(sum);
  found.square += digest::total(square);
  for (int lane = 0; lane < Of::count; ++lane) {
    found.largest = std::max<Whole>(found.largest, largest[lane]);
    found.nonzero += nonzero[lane];
    found.nonfinite += nonfinite[lane];
  }
}

template <typename Kind, typename Raw, typename Whole>
void of(const void* data, int64_t length, Whole infinite, int64_t* line) {
  using Of = typename Kind::template Of<kBytes>;
  Moments<Whole> found;
  for (int64_t place = 0; place < length; place += kBlock)
    add_block<Of, Whole>(static_cast<const typename Of::Raw*>(data) + place, std::min(kBlock, length - place), infinite, found);
  typename Of::Value size;
  std::memcpy(&size, &found.largest, sizeof size);
  float largest = static_cast<float>(size);
  if (std::isinf(largest) && std::isfinite(size)) largest = std::numeric_limits<float>::max();
  uint32_t bits;
  std::memcpy(&bits, &largest, sizeof bits);
  std::memcpy(line, &found.sum, sizeof found.sum);
  std::memcpy(line + 1, &found.square, sizeof found.square);
  line[2] = bits;
  line[3] = static_cast<int64_t>(found.nonzero);
  line[4] = static_cast<int64_t>(found.nonfinite);
  line[5] = static_cast<int64_t>(sum_of_bits<Raw>(data, length));
}

inline void one(const at::Tensor& tensor, int64_t* line) {
  const auto ordered = tensor.expect_contiguous();
  const void* data = ordered->const_data_ptr();
  const int64_t length = ordered->numel();
  constexpr uint32_t infinite = 0x7F800000u;
  switch (ordered->scalar_type()) {
    case at::kFloat: return of<digest::Plain<float, float>, int32_t>(data, length, infinite, line);
    case at::kBFloat16: return of<digest::BFloat16, int16_t>(data, length, infinite, line);
    case at::kHalf: return of<digest::Float16, int16_t>(data, length, infinite, line);
    case at::kDouble: return of<digest::Plain<double, double>, int64_t>(data, length, uint64_t{0x7FF0000000000000u}, line);
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "there are no moments of ", ordered->scalar_type());
  }
}

inline void on_cpu(at::TensorList tensors, at::Tensor lines) {
  TORCH_CHECK(lines.scalar_type() == at::kLong && lines.dim() == 2 && lines.size(1) == kNumbers && lines.is_contiguous() &&
              static_cast<int64_t>(tensors.size()) <= lines.size(0), "there is no room for the moments");
  auto* line = lines.mutable_data_ptr<int64_t>();
  for (const at::Tensor& tensor : tensors) {
    one(tensor, line);
    line += kNumbers;
  }
}

// moments(tensors, lines): writes a line for each tensor
inline PyObject* moments(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  using Function = void(at::TensorList, at::Tensor);
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("op_tools::moments", "").typed<Function>();
  TORCH_CHECK_TYPE(count == 2 && python::is_tensor(arguments[1]), "moments(tensors, lines)");
  const auto tensors = python::tensors_of(arguments[0], "moments(tensors, lines)");
  const at::Tensor lines = THPVariable_Unpack(arguments[1]);
  {
    pybind11::gil_scoped_release no_gil;
    at::AutoDispatchBelowADInplaceOrView below;
    handle.call(tensors, lines);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// As in digests_host.h.
inline bool add_to(PyObject* module) {
  static PyMethodDef functions[] = {{"moments", python::method(moments), METH_FASTCALL,
                                     "(tensors, lines): writes a few numbers of tensors of one device into lines of it"},
                                    {nullptr, nullptr, 0, nullptr}};
  try {
    static torch::Library library(torch::Library::FRAGMENT, "op_tools", std::nullopt, __FILE__, __LINE__);
    library.def("moments(Tensor[] tensors, Tensor(a!) lines) -> ()");
    library.impl("moments", torch::dispatch(c10::DispatchKey::CPU, on_cpu));
  } catch (const std::exception&) {  // its name is taken
    return true;
  }
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace moments
