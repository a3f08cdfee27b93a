// The clock of OpTimeMeasure as Python sees it: a timer, and one call on its way.
#pragma once

#include "describe.h"
#include "timer.h"

#include <ATen/core/grad_mode.h>

namespace timer {

inline std::optional<c10::Device> device_among(PyObject* value) {
  std::optional<c10::Device> device;
  python::each_tensor(value, [&](const at::Tensor& tensor) {
    if (tensor.device().is_cpu()) return true;
    device = tensor.device();
    return false;
  });
  return device;
}

inline std::string as_string(PyObject* value) {
  Py_ssize_t length = 0;
  const char* letters = PyUnicode_AsUTF8AndSize(value, &length);
  if (letters == nullptr) throw python_error();
  return {letters, static_cast<size_t>(length)};
}

// What C++ cannot put into words is put into words by Python.
inline std::string described_by(const python::Reference& function, PyObject* first, PyObject* second = nullptr) {
  auto text = pybind11::reinterpret_steal<pybind11::object>(
      PyObject_CallFunctionObjArgs(function->get(), first, second, nullptr));
  if (!text) throw python_error();
  return as_string(text.ptr());
}

// One call on its way: begun before it runs, finished after, and in backward the one that its nodes belong to.
struct TimedCall {
  std::shared_ptr<Timer> timer;
  std::shared_ptr<Call> call;
  std::shared_ptr<Span> span;
  DeviceClock* clock = nullptr;
  bool is_guess = false;  // of the device: an op that makes its tensors

  void begin(PyObject* args, PyObject* kwargs) {
    call->inputs = text_of(
        call->site->inputs, [&](likeness::Numbers& numbers) { return likeness::of_call(args, kwargs, numbers); },
        [&](std::string& text) { return describe::call(args, kwargs, text); },
        [&] { return described_by(timer->describe_call, args, kwargs); });
    auto device = device_among(args);
    if (!device) device = device_among(kwargs);
    if (device) timer->latest = device;
    is_guess = !device;
    clock = timer->latest ? clock_of(*timer->latest) : nullptr;
    span = timer->begin(call, false, clock, is_guess);
  }

  // Will gradients flow?
  bool finish(PyObject* result) {
    span->finish();
    if (!is_guess) {
      timer->leave(span);
    } else {
      const auto device = device_among(result);
      if (!device || clock_of(*device) != span->clock) {
        span->without_events();
        clock = nullptr;
      }
    }
    bool flows = false;
    if (at::GradMode::is_enabled())
      python::each_tensor(result, [&](const at::Tensor& tensor) { return !(flows = tensor.requires_grad()); });
    span->is_last = !flows;
    call->outputs = text_of(
        call->site->outputs, [&](likeness::Numbers& numbers) { return likeness::of(result, numbers); },
        [&](std::string& text) { return describe::value(result, text); },
        [&] { return described_by(timer->describe, result); });
    timer->add(std::move(span));
    if (timer->is_time_to_read()) {
      const auto read_soon = timer->read_soon;  // the tool may stop meanwhile
      {
        pybind11::gil_scoped_release unlocked;  // the device may be waited for
        timer->ask(false);
      }
      auto answer = pybind11::reinterpret_steal<pybind11::object>(PyObject_CallNoArgs(read_soon->get()));
      if (!answer) throw python_error();
    }
    return flows;
  }

  // The text of the call before, where this one is like it.
  template <typename Liken, typename Describe, typename DescribeInPython>
  static Text text_of(Kept& last, const Liken& liken, const Describe& describe, const DescribeInPython& in_python) {
    static thread_local likeness::Numbers made_of;  // memory that is there already
    made_of.clear();
    const bool is_known = liken(made_of);
    if (is_known && made_of == last.made_of) return last.text;
    std::string text;
    const bool is_described = describe(text);
    if (!is_described) text = in_python();  // other threads may come here meanwhile
    last.made_of = is_known && is_described ? made_of : likeness::Numbers();
    return kept_as(last.text, text);
  }

  // The op raised.
  void give_up() {
    span->finish();
    if (!is_guess) timer->leave(span);
    span->without_events();
  }
};

// ---- for Python ------------------------------------------------------------------------------------------------------

struct TimerObject {
  PyObject_HEAD
  std::shared_ptr<Timer> timer;
};

struct SpanObject {
  PyObject_HEAD
  TimedCall timed;
};

inline PyTypeObject *timer_type = nullptr, *span_type = nullptr;

// begin(id, step, name, module, line, args, kwargs) -> Span
inline PyObject* begin(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7) {
    PyErr_SetString(PyExc_TypeError, "begin(id, step, name, module, line, args, kwargs)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  const auto& timer = reinterpret_cast<TimerObject*>(self)->timer;
  TimedCall timed{timer, timer->new_call()};
  timed.call->id = PyLong_AsLongLong(arguments[0]);
  timed.call->step = PyLong_AsLongLong(arguments[1]);
  timed.call->site =
      std::make_shared<Site>(Site{as_string(arguments[2]), as_string(arguments[3]), as_string(arguments[4])});
  timed.begin(arguments[5], arguments[6]);
  auto* made = PyObject_New(SpanObject, span_type);
  if (made == nullptr) return nullptr;
  new (&made->timed) TimedCall(std::move(timed));
  return reinterpret_cast<PyObject*>(made);
  END_HANDLE_TH_ERRORS
}

// finish(result) -> will gradients flow?
inline PyObject* finish(PyObject* self, PyObject* result) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(reinterpret_cast<SpanObject*>(self)->timed.finish(result));
  END_HANDLE_TH_ERRORS
}

// give_up(): the op raised
inline PyObject* give_up(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  reinterpret_cast<SpanObject*>(self)->timed.give_up();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

inline void take_in(Span& span, Book& book) {
  Stretch stretch{span.backward, span.is_last, span.inner > 0, span.thread};
  stretch.began = static_cast<double>(span.began) / 1e3;
  stretch.host = static_cast<double>(span.ended - span.began) / 1e6;
  stretch.moment = span.moment;
  stretch.elapsed = span.elapsed;
  stretch.device = nullptr;
  if (span.clock != nullptr) {
    stretch.device = &span.clock->name;
    stretch.stream = span.stream->id();
  }
  if (span.outer != nullptr) span.outer->inner += span.elapsed;
  span.outer = nullptr;
  stretch.own = std::max(span.elapsed - span.inner, 0.0);
  book.take_in(span.call, stretch);
}

// read(everything, most_waiting): puts into the book what the device was asked for, or everything. No more than
// `most_waiting` calls go on waiting for their gradients.
inline PyObject* read(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "read(everything, most_waiting)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  auto timer = reinterpret_cast<TimerObject*>(self)->timer;
  const bool everything = arguments[0] == Py_True;
  const size_t most_waiting = PyLong_AsSize_t(arguments[1]);
  {
    pybind11::gil_scoped_release unlocked;  // the device may be waited for, and there may be much to read
    if (everything) timer->ask(true);
    timer->read([&](Entry& entry) {
      if (entry.span != nullptr)
        take_in(*entry.span, timer->book);
      else
        timer->book.flowed(*entry.call, entry.inputs, entry.outputs);
    });
    timer->book.give_up_waiting(everything ? 0 : most_waiting);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// fetch() -> (rows, how many, lines of the trace, how many), since it was asked last. In bytes, as files have them: text
// would be made of them and they of it, while Python's lock is held.
inline PyObject* fetch(PyObject* self, PyObject*) {
  Book& book = reinterpret_cast<TimerObject*>(self)->timer->book;
  PyObject* fetched = Py_BuildValue("(y#Ly#L)", book.rows.data(), static_cast<Py_ssize_t>(book.rows.size()),
                                    static_cast<long long>(book.count_of_rows), book.lines.data(),
                                    static_cast<Py_ssize_t>(book.lines.size()),
                                    static_cast<long long>(book.count_of_lines));
  book.rows.clear();
  book.lines.clear();
  book.count_of_rows = book.count_of_lines = 0;
  return fetched;
}

// totals() -> {name: (calls, forward, backward, all in all, has inner)}
inline PyObject* totals(PyObject* self, PyObject*) {
  PyObject* found = PyDict_New();
  if (found == nullptr) return nullptr;
  for (const auto& [name, total] : reinterpret_cast<TimerObject*>(self)->timer->book.totals) {
    PyObject* sums = Py_BuildValue("(LdddO)", static_cast<long long>(total.calls), total.forward, total.backward,
                                   total.all_in_all, total.has_inner ? Py_True : Py_False);
    if (sums == nullptr || PyDict_SetItemString(found, name.c_str(), sums) != 0) {
      Py_XDECREF(sums);
      Py_DECREF(found);
      return nullptr;
    }
    Py_DECREF(sums);
  }
  return found;
}

inline PyObject* waiting(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(reinterpret_cast<TimerObject*>(self)->timer->book.waiting());
}

inline PyObject* unread(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(reinterpret_cast<TimerObject*>(self)->timer->unread());
}

inline PyObject* close(PyObject* self, PyObject*) {
  reinterpret_cast<TimerObject*>(self)->timer->close();
  Py_RETURN_NONE;
}

// Timer(trace, most_lines, describe_call, describe, read_soon, read_every, most_unread)
inline PyObject* make_timer(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *trace, *describe_call, *describe, *read_soon;
  long long most_lines, read_every;
  Py_ssize_t most_unread;
  if (!PyArg_ParseTuple(arguments, "OLOOOLn", &trace, &most_lines, &describe_call, &describe, &read_soon, &read_every,
                        &most_unread))
    return nullptr;
  PyObject* made = type->tp_alloc(type, 0);
  if (made != nullptr)
    new (&reinterpret_cast<TimerObject*>(made)->timer) std::shared_ptr<Timer>(std::make_shared<Timer>(
        python::hold(trace), most_lines, python::hold(describe_call), python::hold(describe),
        read_every > 0 ? python::hold(read_soon) : nullptr, read_every, static_cast<size_t>(most_unread)));
  return made;
}

inline void free_timer(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<TimerObject*>(self)->timer.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

inline void free_span(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<SpanObject*>(self)->timed.~TimedCall();
  PyObject_Free(self);
  Py_DECREF(type);
}

inline bool add_to(PyObject* module) {
  static PyMethodDef timer_methods[] = {
      {"begin", python::method(begin), METH_FASTCALL, "(id, step, name, module, line, args, kwargs) -> Span: before the op"},
      {"read", python::method(read), METH_FASTCALL, "(everything, most_waiting): writes down what the device has passed"},
      {"fetch", python::method(fetch), METH_NOARGS, "-> (rows, how many, lines of the trace, how many), since the last time"},
      {"totals", python::method(totals), METH_NOARGS, "-> {name: (calls, forward, backward, all in all, has inner)}"},
      {"waiting", python::method(waiting), METH_NOARGS, "how many calls wait for their gradients"},
      {"close", python::method(close), METH_NOARGS, "nobody listens any more"},
      {"unread", python::method(unread), METH_NOARGS, "how much there is to take"},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyMethodDef span_methods[] = {
      {"finish", python::method(finish), METH_O, "(result) -> whether gradients will flow: right after the op"},
      {"give_up", python::method(give_up), METH_NOARGS, "the op raised"},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot timer_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(make_timer)},
      {Py_tp_dealloc, reinterpret_cast<void*>(free_timer)},
      {Py_tp_methods, timer_methods},
      {0, nullptr},
  };
  static PyType_Slot span_slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(free_span)},
      {Py_tp_methods, span_methods},
      {0, nullptr},
  };
  static PyType_Spec timer_spec = {"op_tools_native.Timer", sizeof(TimerObject), 0, Py_TPFLAGS_DEFAULT, timer_slots};
  static PyType_Spec span_spec = {"op_tools_native.Span", sizeof(SpanObject), 0, Py_TPFLAGS_DEFAULT, span_slots};
  timer_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&timer_spec));
  span_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&span_spec));
  if (timer_type == nullptr || span_type == nullptr) return false;
  Py_INCREF(timer_type);
  Py_INCREF(span_type);
  return PyModule_AddObject(module, "Timer", reinterpret_cast<PyObject*>(timer_type)) == 0 &&
         PyModule_AddObject(module, "Span", reinterpret_cast<PyObject*>(span_type)) == 0;
}

}  // namespace timer
