// What OpCapture's statistics ask of every tensor of every call: what op_tools.capture.notes does in Python.
#pragma once

#include "python.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace notes {

// Gathers the tensors among nested arguments, and as bytes all that a description of them tells.
class Noted {
 public:
  explicit Noted(PyObject* tensors) : tensors_(tensors) {}

  std::string key;
  std::string addresses;  // of the tensors' elements, where these lie in order; else 0

  // False where Python has to do it, here and below.
  bool add(PyObject* value) {
    if (python::is_tensor(value)) return add_tensor(value);
    if (PyList_Check(value) || PyTuple_Check(value)) {
      const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
      put('l');
      put(count);
      for (Py_ssize_t index = 0; index < count; ++index)
        if (!add(PySequence_Fast_GET_ITEM(value, index))) return false;
      return true;
    }
    if (PyDict_Check(value)) return add_named(value);
    put('v');
    return true;
  }

 private:
  PyObject* tensors_;

  template <typename Value>
  void put(Value value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  bool add_tensor(PyObject* value) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    const auto* implementation = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || tensor.layout() != c10::kStrided || implementation->has_symbolic_sizes_strides() ||
        !implementation->has_storage())
      return false;
    const auto sizes = tensor.sizes();
    put('t');
    put(static_cast<int8_t>(tensor.scalar_type()));
    put(static_cast<int16_t>(tensor.device().type()));
    put(static_cast<int16_t>(tensor.device().index()));
    put(tensor.requires_grad());
    put(sizes.size());
    key.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
    const bool is_plain = tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
    const uint64_t address = is_plain ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0;
    addresses.append(reinterpret_cast<const char*>(&address), sizeof address);
    return PyList_Append(tensors_, value) == 0;
  }

  bool add_named(PyObject* values) {
    PyObject *name, *part;
    Py_ssize_t position = 0;
    put('d');
    put(PyDict_GET_SIZE(values));
    while (PyDict_Next(values, &position, &name, &part)) {
      Py_ssize_t length = 0;
      const char* letters = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &length) : nullptr;
      if (letters == nullptr) return false;
      put(length);
      key.append(letters, static_cast<size_t>(length));
      if (!add(part)) return false;
    }
    return true;
  }
};

inline PyObject* bytes(const std::string& value) {
  return PyBytes_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size()));
}

// note(args, kwargs) -> (key, tensors, addresses), or None
inline PyObject* note(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "note(args, kwargs)");
    return nullptr;
  }
  PyObject* tensors = PyList_New(0);
  if (tensors == nullptr) return nullptr;
  Noted noted(tensors);
  bool is_done = false;
  try {
    is_done = noted.add(arguments[0]) && noted.add(arguments[1]);
  } catch (const std::exception&) {  // a tensor that is only a shell around others
  }
  if (!is_done) {
    Py_DECREF(tensors);
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  return Py_BuildValue("(NNN)", bytes(noted.key), tensors, bytes(noted.addresses));
}

// ---- tensors that are unchanged since they were noted ------------------------------------------------------------

// What capture.notes.UnchangedTensors does in Python.
class UnchangedTensors {
 public:
  void forget() {
    known_.clear();
  }

  // -> (their numbers, for each as int64: number, description, forward_id, number there), or None
  pybind11::object find(const pybind11::list& tensors) const {
    std::vector<int64_t> lines;
    for (size_t number = 0; !known_.empty() && number < tensors.size(); ++number) {
      const at::Tensor& tensor = tensor_in(tensors, number);
      const auto known = known_.find(tensor.unsafeGetTensorImpl());
      if (known == known_.end() || known->second.tensor.expired() || tensor.is_inference() ||
          known->second.version != tensor._version())
        continue;
      const Origin& origin = known->second.origin;
      lines.insert(lines.end(), {static_cast<int64_t>(number), origin.description, origin.forward_id, origin.number});
    }
    if (lines.empty()) return pybind11::none();
    pybind11::tuple numbers(lines.size() / 4);
    for (size_t index = 0; index < numbers.size(); ++index) numbers[index] = lines[4 * index];
    const auto* begin = reinterpret_cast<const char*>(lines.data());
    return pybind11::make_tuple(numbers, pybind11::bytes(begin, lines.size() * sizeof(int64_t)));
  }

  // `found`: what `find` gave; `changed`: how many of the first are about to be changed.
  void remember(const pybind11::list& tensors, const pybind11::object& found, int64_t description, int64_t forward_id,
                size_t changed) {
    std::unordered_map<int64_t, Origin> origins;
    if (!found.is_none()) {
      const std::string lines = found[pybind11::int_(1)].cast<pybind11::bytes>();
      const auto* numbers = reinterpret_cast<const int64_t*>(lines.data());
      for (size_t line = 0; line < lines.size() / 32; ++line, numbers += 4)
        origins[numbers[0]] = {numbers[1], numbers[2], numbers[3]};
    }
    for (size_t number = 0; number < tensors.size(); ++number) {
      const at::Tensor& tensor = tensor_in(tensors, number);
      if (tensor.is_inference()) continue;
      const auto place = static_cast<int64_t>(number);
      const auto known = origins.find(place);
      const Origin origin = known == origins.end() ? Origin{description, forward_id, place} : known->second;
      WeakTensor weak(tensor.getIntrusivePtr());
      known_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                              Unchanged{std::move(weak), static_cast<uint32_t>(tensor._version()), origin});
    }
    for (size_t number = 0; number < std::min(changed, tensors.size()); ++number)
      known_.erase(tensor_in(tensors, number).unsafeGetTensorImpl());
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Origin {
    int64_t description, forward_id, number;
  };

  struct Unchanged {
    WeakTensor tensor;
    uint32_t version;
    Origin origin;
  };

  std::unordered_map<const c10::TensorImpl*, Unchanged> known_;

  static const at::Tensor& tensor_in(const pybind11::list& tensors, size_t number) {
    return THPVariable_Unpack(PyList_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(number)));
  }
};

inline bool add_to(PyObject* module) {
  static PyMethodDef functions[] = {
      {"note", python::method(note), METH_FASTCALL, "(args, kwargs) -> (key, tensors, addresses), or None"},
      {nullptr, nullptr, 0, nullptr}};
  pybind11::class_<UnchangedTensors>(module, "UnchangedTensors", pybind11::module_local())
      .def(pybind11::init<>())
      .def("forget", &UnchangedTensors::forget)
      .def("find", &UnchangedTensors::find, "(tensors) -> (numbers, lines), or None")
      .def("remember", &UnchangedTensors::remember, "(tensors, what find gave, description, forward_id, changed)");
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace notes
