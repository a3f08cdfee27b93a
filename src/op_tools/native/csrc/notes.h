// What OpCapture's statistics ask of every tensor of every call: what op_tools.recording.notes does in Python.
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

struct Origin {
  int64_t description, forward_id, number;
};

struct Known {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  uint32_t version;
  Origin origin;
};

using Memory = std::unordered_map<const c10::TensorImpl*, Known>;

constexpr const char* kMemory = "op_tools.notes.Memory";

inline Memory* memory_of(PyObject* capsule) {
  return static_cast<Memory*>(PyCapsule_GetPointer(capsule, kMemory));
}

inline PyObject* new_memory(PyObject*, PyObject*) {
  return PyCapsule_New(new Memory, kMemory, [](PyObject* capsule) { delete memory_of(capsule); });
}

inline PyObject* forget(PyObject*, PyObject* capsule) {
  Memory* memory = memory_of(capsule);
  if (memory == nullptr) return nullptr;
  memory->clear();
  Py_RETURN_NONE;
}

// find(memory, tensors) -> (their numbers, for each as int64: number, description, forward_id, number there), or None
inline PyObject* find(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Memory* memory = count == 2 ? memory_of(arguments[0]) : nullptr;
  if (memory == nullptr || !PyList_Check(arguments[1])) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "find(memory, tensors)");
    return nullptr;
  }
  std::vector<int64_t> lines;
  for (Py_ssize_t number = 0; !memory->empty() && number < PyList_GET_SIZE(arguments[1]); ++number) {
    const at::Tensor& tensor = THPVariable_Unpack(PyList_GET_ITEM(arguments[1], number));
    const auto known = memory->find(tensor.unsafeGetTensorImpl());
    if (known == memory->end() || known->second.tensor.expired() || tensor.is_inference() ||
        known->second.version != tensor._version())
      continue;
    const Origin& origin = known->second.origin;
    lines.insert(lines.end(), {number, origin.description, origin.forward_id, origin.number});
  }
  if (lines.empty()) Py_RETURN_NONE;
  PyObject* numbers = PyTuple_New(static_cast<Py_ssize_t>(lines.size() / 4));
  for (size_t index = 0; index < lines.size() / 4; ++index)
    PyTuple_SET_ITEM(numbers, static_cast<Py_ssize_t>(index), PyLong_FromLongLong(lines[4 * index]));
  const auto* begin = reinterpret_cast<const char*>(lines.data());
  return Py_BuildValue("(NN)", numbers, bytes(std::string(begin, lines.size() * sizeof(int64_t))));
  END_HANDLE_TH_ERRORS
}

// remember(memory, tensors, what find gave or None, description, forward_id, how many of the first will be changed)
inline PyObject* remember(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Memory* memory = count == 6 ? memory_of(arguments[0]) : nullptr;
  if (memory == nullptr || !PyList_Check(arguments[1])) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "remember(memory, tensors, found, description, call, changed)");
    return nullptr;
  }
  const int64_t description = PyLong_AsLongLong(arguments[3]), forward_id = PyLong_AsLongLong(arguments[4]);
  const int64_t changed = PyLong_AsLongLong(arguments[5]);
  if (PyErr_Occurred()) return nullptr;
  std::unordered_map<int64_t, Origin> origins;
  if (arguments[2] != Py_None) {
    PyObject* lines = PyTuple_GetItem(arguments[2], 1);
    if (lines == nullptr || !PyBytes_Check(lines)) return nullptr;
    const auto* numbers = reinterpret_cast<const int64_t*>(PyBytes_AS_STRING(lines));
    for (Py_ssize_t line = 0; line < PyBytes_GET_SIZE(lines) / 32; ++line)
      origins[numbers[4 * line]] = {numbers[4 * line + 1], numbers[4 * line + 2], numbers[4 * line + 3]};
  }
  for (Py_ssize_t number = 0; number < PyList_GET_SIZE(arguments[1]); ++number) {
    const at::Tensor& tensor = THPVariable_Unpack(PyList_GET_ITEM(arguments[1], number));
    if (tensor.is_inference()) continue;
    const auto known = origins.find(number);
    const Origin origin = known == origins.end() ? Origin{description, forward_id, number} : known->second;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(tensor.getIntrusivePtr());
    memory->insert_or_assign(tensor.unsafeGetTensorImpl(),
                             Known{std::move(weak), static_cast<uint32_t>(tensor._version()), origin});
  }
  for (Py_ssize_t number = 0; number < std::min<int64_t>(changed, PyList_GET_SIZE(arguments[1])); ++number)
    memory->erase(THPVariable_Unpack(PyList_GET_ITEM(arguments[1], number)).unsafeGetTensorImpl());
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace notes

// For the module's table of functions.
#define NOTES_FUNCTIONS                                                                                        \
  {"note", python::method(notes::note), METH_FASTCALL, "(args, kwargs) -> (key, tensors, addresses), or None"},   \
      {"memory_of_tensors", notes::new_memory, METH_NOARGS, "() -> what the three below take"},                \
      {"forget_tensors", notes::forget, METH_O, "(memory)"},                                                   \
      {"find_tensors", python::method(notes::find), METH_FASTCALL, "(memory, tensors) -> (numbers, lines), or None"}, \
      {"remember_tensors", python::method(notes::remember), METH_FASTCALL,                                        \
       "(memory, tensors, what find_tensors gave, description, forward_id, changed)"},
