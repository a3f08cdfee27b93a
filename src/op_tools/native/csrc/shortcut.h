// The whole way of an op call that OpTimeMeasure alone watches: what op_tools.route does, without a frame of Python's.
//
// Calls that are unusual in any way go the other way, which is Python's.
#pragma once

#include "python.h"

#include "span.h"
#include "gradients.h"
#include "where.h"

#include <ATen/TracerMode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <tuple>
#include <unordered_map>

namespace shortcut {

using Object = pybind11::object;

inline Object borrowed(PyObject* object) {
  return pybind11::reinterpret_borrow<Object>(object);
}

inline Object stolen(PyObject* object) {
  if (object == nullptr) throw python_error();
  return pybind11::reinterpret_steal<Object>(object);
}

// What Python knows about the surroundings of a call; all of it changes while the program runs.
struct Surroundings {
  Object plain_classes;         // {class of tensors: whether it is only a name}
  Object questions;             // functions without arguments: True is unusual
  Object files, calls_forward;  // see frames.h
  Object paths;                 // of modules that are known; see where.py
  Object pretended;             // not empty: the place in the program is another one
  Object words;                 // (code, instruction, module) -> (line, path, what runs ops there); see where.py
  Object ids, steps;            // the next forward_id; steps.current
};

inline bool is_usual(c10::Device device, const Surroundings& around) {
  if (PyList_GET_SIZE(around.pretended.ptr()) != 0 || at::tracer::impl::is_dispatch_enabled() ||
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      c10::impl::TorchDispatchModeTLS::stack_len() != 0)
    return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(around.questions.ptr());
  // no graph can be captured on a device's default stream; to ask the driver takes more than a microsecond
  if (count == 0 || c10::impl::VirtualGuardImpl(device.type()).getStream(device).id() == 0) return true;
  for (Py_ssize_t index = 0; index < count; ++index)
    if (stolen(PyObject_CallNoArgs(PyTuple_GET_ITEM(around.questions.ptr(), index))).ptr() == Py_True) return false;
  return true;
}

enum class Found { nothing, device, unusual };

// As op_tools.core.route.place_of: one tensor on an accelerator is enough, and tells which it is.
inline Found look_at(PyObject* value, const Surroundings& around, c10::Device& device) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (python::is_tensor(value)) {
    if (type != THPVariableClass && PyDict_GetItem(around.plain_classes.ptr(), type) != Py_True) return Found::unusual;
    device = THPVariable_Unpack(value).device();
    return device.is_cpu() ? Found::nothing : device.is_meta() ? Found::unusual : Found::device;
  }
  if (!PyList_Check(value) && !PyTuple_Check(value)) return Found::nothing;
  for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(value); ++index) {
    const auto found = look_at(PySequence_Fast_GET_ITEM(value, index), around, device);
    if (found != Found::nothing) return found;
  }
  return Found::nothing;
}

inline bool is_on_device(PyObject* args, PyObject* kwargs, const Surroundings& around, c10::Device& device) {
  auto found = look_at(args, around, device);
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (found == Found::nothing && PyDict_Next(kwargs, &position, &key, &value)) found = look_at(value, around, device);
  return found == Found::device;
}

// The places that one op is called from, as text.
class Sites {
 public:
  struct Known {
    Object code, module;  // that one is held, of this one is known whether it is still there
    std::shared_ptr<const timer::Site> site;
    Object run;  // (func, args, kwargs): calls an op there
  };

  Known find(const std::string& name, const where::Place& place, const Surroundings& around) {
    const Py_ssize_t count_of_paths = PyDict_Size(around.paths.ptr());
    if (count_of_paths != count_of_paths_ || known_.size() > most) known_.clear();  // paths may have changed
    count_of_paths_ = count_of_paths;
    const Key key{place.code.ptr(), place.module.ptr(), place.instruction};
    const auto found = known_.find(key);
    // another module may lie where one was
    if (found != known_.end() && (place.module.is_none() || is_alive(found->second.module))) return found->second;
    // other threads may come here while Python looks for words
    const auto words = stolen(PyObject_CallFunction(around.words.ptr(), "OlO", place.code.ptr(), place.instruction,
                                                    place.module.ptr()));
    auto module = place.module.is_none() ? Object() : stolen(PyWeakref_NewRef(place.module.ptr(), nullptr));
    auto site = std::make_shared<timer::Site>(timer::Site{name, timer::as_string(PyTuple_GET_ITEM(words.ptr(), 1)),
                                                          timer::as_string(PyTuple_GET_ITEM(words.ptr(), 0))});
    Known known{place.code, std::move(module), std::move(site), borrowed(PyTuple_GET_ITEM(words.ptr(), 2))};
    known_[key] = known;
    return known;
  }

 private:
  static constexpr size_t most = 1000;

  using Key = std::tuple<PyObject*, PyObject*, long>;
  struct Hash {
    size_t operator()(const Key& key) const {
      const auto [code, module, instruction] = key;
      return (reinterpret_cast<size_t>(code) >> 4) * 31 + (reinterpret_cast<size_t>(module) >> 4) * 17 +
             static_cast<size_t>(instruction);
    }
  };

  static bool is_alive(const Object& reference) {
    return !stolen(PyObject_CallNoArgs(reference.ptr())).is_none();
  }

  std::unordered_map<Key, Known, Hash> known_;
  Py_ssize_t count_of_paths_ = 0;
};

// One call, between its beginning and its end.
struct OnTheWay {
  timer::Span span;
  gradients::Inputs inputs;
  uint64_t since = 0;
  bool wants_gradients = false;
  Object run;  // calls the op as if the user's line did
};

// The calls of one op.
struct Shortcut {
  std::shared_ptr<timer::Timer> timer;
  std::string name;
  Object report;  // (error): our own failure, which must not end the user's run
  Object otherwise;
  Surroundings around;
  Sites sites;

  // False where the call must go the other way.
  bool begin(PyObject* args, PyObject* kwargs, OnTheWay& call) {
    where::Place place;
    c10::Device device = c10::kCPU;
    if (!is_on_device(args, kwargs, around, device) || !is_usual(device, around) ||
        !where::find(around.files.ptr(), around.calls_forward.ptr(), place))
      return false;
    static PyObject* const current = PyUnicode_InternFromString("current");
    auto told = timer->new_call();
    auto known = sites.find(name, place, around);
    told->site = std::move(known.site);
    call.run = std::move(known.run);
    told->step = PyLong_AsLongLong(stolen(PyObject_GetAttr(around.steps.ptr(), current)).ptr());
    told->id = PyLong_AsLongLong(stolen(PyIter_Next(around.ids.ptr())).ptr());
    if (at::GradMode::is_enabled()) {
      const bool among_args = gradients::note(args, call.inputs);
      call.wants_gradients = gradients::note(kwargs, call.inputs) || among_args;
      call.since = at::sequence_number::peek();
    }
    call.span.timer = timer;
    call.span.call = std::move(told);
    call.span.begin(args, kwargs);
    return true;
  }

  static void end(OnTheWay& call, PyObject* result) {
    auto& span = call.span;
    if (span.finish(result, at::GradMode::is_enabled()) && call.wants_gradients)
      gradients::watch(call.inputs, call.since, result, nullptr, false, {{span.timer, span.call, span.clock}});
  }

  // Hands the error that is set to whoever reports it.
  bool report_error() const {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject* answer = PyObject_CallOneArg(report.ptr(), value == nullptr ? Py_None : value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    Py_XDECREF(answer);
    return answer != nullptr;
  }

  // Runs something of our own; false where it failed, with the error set.
  template <typename Work>
  static bool try_to(const Work& work) {
    const auto tried = [&]() -> PyObject* {
      HANDLE_TH_ERRORS
      work();
      return Py_None;
      END_HANDLE_TH_ERRORS
    };
    return tried() != nullptr;
  }

  PyObject* call(PyObject* func, PyObject* args, PyObject* kwargs) {
    OnTheWay call;
    bool is_begun = false;
    if (!try_to([&] { is_begun = begin(args, kwargs, call); }))
      return report_error() ? PyObject_Call(func, args, kwargs) : nullptr;
    if (!is_begun) return otherwise.inc_ref().ptr();
    PyObject* result = PyObject_CallFunctionObjArgs(call.run.ptr(), func, args, kwargs, nullptr);
    if (result == nullptr) {
      PyObject *type, *value, *traceback;
      PyErr_Fetch(&type, &value, &traceback);
      if (!try_to([&] { call.span.give_up(); })) PyErr_Clear();
      PyErr_Restore(type, value, traceback);
      return nullptr;
    }
    if (!try_to([&] { end(call, result); }) && !report_error()) {
      Py_DECREF(result);
      return nullptr;
    }
    return result;
  }
};

// ---- for Python ------------------------------------------------------------------------------------------------------

using ShortcutObject = python::Object<Shortcut>;

// Shortcut(timer, name, report, otherwise, surroundings)
inline PyObject* make(PyTypeObject*, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *timer, *report, *otherwise, *parts[9];
  const char* name;
  if (!PyArg_ParseTuple(arguments, "OsOO(OOOOOOOOO)", &timer, &name, &report, &otherwise, &parts[0], &parts[1],
                        &parts[2], &parts[3], &parts[4], &parts[5], &parts[6], &parts[7], &parts[8]))
    return nullptr;
  Surroundings around{borrowed(parts[0]), borrowed(parts[1]), borrowed(parts[2]), borrowed(parts[3]),
                      borrowed(parts[4]), borrowed(parts[5]), borrowed(parts[6]), borrowed(parts[7]),
                      borrowed(parts[8])};
  return ShortcutObject::make({pybind11::cast<std::shared_ptr<timer::Timer>>(pybind11::handle(timer)), name,
                               borrowed(report), borrowed(otherwise), std::move(around), {}});
  END_HANDLE_TH_ERRORS
}

inline PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 || !PyTuple_Check(arguments[1]) || !PyDict_Check(arguments[2])) {
    PyErr_SetString(PyExc_TypeError, "call(func, args, kwargs)");
    return nullptr;
  }
  // the tool may stop in the middle of a call
  const auto held = borrowed(self);
  return ShortcutObject::of(self).call(arguments[0], arguments[1], arguments[2]);
}

inline bool add_to(PyObject* module) {
  static PyMethodDef methods[] = {
      {"call", python::method(call), METH_FASTCALL,
       "(func, args, kwargs) -> what func returns; or `otherwise` where nothing was done"},
      {nullptr, nullptr, 0, nullptr},
  };
  return ShortcutObject::add_to(module, "op_tools_native.Shortcut", methods, make);
}

}  // namespace shortcut
