// Python's objects, for code that runs with and without the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN  // lengths in Py_BuildValue
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace python {

// An object that any thread may let go, also one of autograd's that does not hold the GIL.
class Held {
 public:
  explicit Held(PyObject* object) : object_(object) {
    Py_XINCREF(object);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (object_ == nullptr || !Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire gil;
    Py_DECREF(object_);
  }
  PyObject* get() const {
    return object_;
  }

 private:
  PyObject* object_;
};

using Reference = std::shared_ptr<Held>;

inline Reference hold(PyObject* object) {
  return std::make_shared<Held>(object);
}

inline bool is_tensor(PyObject* value) {
  return PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

// Calls `visit` for every tensor inside lists, tuples and dictionaries, in order; it returns false to go no further.
template <typename Visit>
bool each_tensor(PyObject* value, const Visit& visit) {
  if (is_tensor(value)) return visit(THPVariable_Unpack(value));
  if (PyList_Check(value) || PyTuple_Check(value)) {
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(value); ++index)
      if (!each_tensor(PySequence_Fast_GET_ITEM(value, index), visit)) return false;
  } else if (PyDict_Check(value)) {
    PyObject *key, *part;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &part))
      if (!each_tensor(part, visit)) return false;
  }
  return true;
}

// The tensors of a list; whatever else is in it is a TypeError that shows how the function is called.
inline std::vector<at::Tensor> tensors_of(PyObject* list, const char* signature) {
  TORCH_CHECK_TYPE(PyList_Check(list), signature);
  std::vector<at::Tensor> tensors;
  tensors.reserve(static_cast<size_t>(PyList_GET_SIZE(list)));
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(list); ++index) {
    PyObject* value = PyList_GET_ITEM(list, index);
    TORCH_CHECK_TYPE(is_tensor(value), signature);
    tensors.push_back(THPVariable_Unpack(value));
  }
  return tensors;
}

// As a table of methods wants it.
template <typename Function>
PyCFunction method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// An object of Python's that holds a value of ours, for what is asked at every call; pybind11 makes the others.
template <typename Value>
struct Object {
  PyObject_HEAD
  Value value;

  static inline PyTypeObject* type = nullptr;

  static Value& of(PyObject* self) {
    return reinterpret_cast<Object*>(self)->value;
  }

  static PyObject* make(Value value) {
    PyObject* made = type->tp_alloc(type, 0);
    if (made != nullptr) new (&of(made)) Value(std::move(value));
    return made;
  }

  static void release(PyObject* self) {
    PyTypeObject* its_type = Py_TYPE(self);
    of(self).~Value();
    its_type->tp_free(self);
    Py_DECREF(its_type);
  }

  // `name`: with that of the module before it.
  static bool add_to(PyObject* module, const char* name, PyMethodDef* methods, newfunc make_new = nullptr) {
    PyType_Slot slots[] = {
        {Py_tp_dealloc, reinterpret_cast<void*>(release)},
        {Py_tp_methods, methods},
        {make_new == nullptr ? 0 : Py_tp_new, reinterpret_cast<void*>(make_new)},
        {0, nullptr},
    };
    PyType_Spec spec = {name, sizeof(Object), 0, Py_TPFLAGS_DEFAULT, slots};
    type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (type == nullptr) return false;
    Py_INCREF(type);
    return PyModule_AddObject(module, std::strrchr(name, '.') + 1, reinterpret_cast<PyObject*>(type)) == 0;
  }
};

inline PyObject* text(const std::string& value) {
  return PyUnicode_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size()));
}

// What the tools themselves compute is seen by no function mode.
class FunctionModesAside {
 public:
  FunctionModesAside() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~FunctionModesAside() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(before_);
  }

 private:
  at::impl::TorchFunctionDisabledState before_;
};

// Calls a method in a thread of autograd's. What it raises goes on to whoever called backward().
inline void call_method(PyObject* object, const char* name, PyObject* first = nullptr, PyObject* second = nullptr) {
  FunctionModesAside aside;
  PyObject* result = first == nullptr ? PyObject_CallMethod(object, name, nullptr)
                                      : PyObject_CallMethod(object, name, "OO", first, second);
  if (result == nullptr) throw python_error();
  Py_DECREF(result);
}

}  // namespace python
