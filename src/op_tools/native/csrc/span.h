// The clock of OpTimeMeasure as Python sees it: a timer, and one call on its way.
#pragma once

#include "signature.h"
#include "timer.h"


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

// What C++ cannot describe, Python describes.
inline std::string described_by(const python::Reference& function, PyObject* first, PyObject* second = nullptr) {
  auto text = pybind11::reinterpret_steal<pybind11::object>(
      PyObject_CallFunctionObjArgs(function->get(), first, second, nullptr));
  if (!text) throw python_error();
  return as_string(text.ptr());
}

// One call on its way: begun before it runs, finished after, and in backward the one that its nodes belong to.
struct Span {
  std::shared_ptr<Timer> timer;
  std::shared_ptr<Call> call;
  std::shared_ptr<Stretch> stretch;
  DeviceClock* clock = nullptr;
  bool is_guess = false;  // of the device: an op that makes its tensors

  void begin(PyObject* args, PyObject* kwargs) {
    call->inputs = text_of(
        call->site->inputs, [&](likeness::Numbers& numbers) { return likeness::of_call(args, kwargs, numbers); },
        [&](std::string& text) { return signature::call(args, kwargs, text); },
        [&] { return described_by(timer->describe_call, args, kwargs); });
    auto device = device_among(args);
    if (!device) device = device_among(kwargs);
    if (device) timer->latest = device;
    is_guess = !device;
    clock = timer->latest ? clock_of(*timer->latest) : nullptr;
    stretch = timer->begin(call, false, clock, is_guess);
  }

  // Of a call that autograd may have recorded: will gradients flow?
  bool finish(PyObject* result, bool is_recorded) {
    stretch->finish();
    if (!is_guess) {
      timer->leave(stretch);
    } else {
      const auto device = device_among(result);
      if (!device || clock_of(*device) != stretch->clock) {
        stretch->without_events();
        clock = nullptr;
      }
    }
    bool flows = false;
    if (is_recorded)
      python::each_tensor(result, [&](const at::Tensor& tensor) { return !(flows = tensor.requires_grad()); });
    stretch->is_last = !flows;
    call->outputs = text_of(
        call->site->outputs, [&](likeness::Numbers& numbers) { return likeness::of(result, numbers); },
        [&](std::string& text) { return signature::value(result, text); },
        [&] { return described_by(timer->describe, result); });
    timer->add(std::move(stretch));
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
    stretch->finish();
    if (!is_guess) timer->leave(stretch);
    stretch->without_events();
  }
};

// ---- for Python ------------------------------------------------------------------------------------------------------

using SpanObject = python::Object<Span>;

// finish(result, is recorded) -> will gradients flow?
inline PyObject* finish(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "finish(result, is_recorded)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  return PyBool_FromLong(SpanObject::of(self).finish(arguments[0], arguments[1] == Py_True));
  END_HANDLE_TH_ERRORS
}

// give_up(): the op raised
inline PyObject* give_up(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  SpanObject::of(self).give_up();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

inline pybind11::object begin(const std::shared_ptr<Timer>& timer, int64_t id, int64_t step, pybind11::handle name,
                              pybind11::handle module, pybind11::handle line, pybind11::handle args,
                              pybind11::handle kwargs) {
  Span span{timer, timer->new_call()};
  span.call->id = id;
  span.call->step = step;
  span.call->site =
      std::make_shared<Site>(Site{as_string(name.ptr()), as_string(module.ptr()), as_string(line.ptr())});
  span.begin(args.ptr(), kwargs.ptr());
  return pybind11::reinterpret_steal<pybind11::object>(SpanObject::make(std::move(span)));
}

inline void take_in(Stretch& stretch, Book& book) {
  Measured measured{stretch.backward, stretch.is_last, stretch.inner > 0, stretch.thread};
  measured.began = static_cast<double>(stretch.began) / 1e3;
  measured.host = static_cast<double>(stretch.ended - stretch.began) / 1e6;
  measured.moment = stretch.moment;
  measured.elapsed = stretch.elapsed;
  measured.device = nullptr;
  if (stretch.clock != nullptr) {
    measured.device = &stretch.clock->name;
    measured.stream = stretch.stream->id();
  }
  if (stretch.outer != nullptr) stretch.outer->inner += stretch.elapsed;
  stretch.outer = nullptr;
  measured.own = std::max(stretch.elapsed - stretch.inner, 0.0);
  book.take_in(stretch.call, measured);
}

// Puts into the book what the device was asked for, or everything. No more than `most_waiting` calls go on waiting for
// their gradients.
inline void read(const std::shared_ptr<Timer>& timer, bool everything, size_t most_waiting) {
  pybind11::gil_scoped_release unlocked;  // the device may be waited for, and there may be much to read
  if (everything) timer->ask(true);
  timer->read([&](Entry& entry) {
    if (entry.stretch != nullptr)
      take_in(*entry.stretch, timer->book);
    else
      timer->book.flowed(*entry.call, entry.inputs, entry.outputs);
  });
  timer->book.give_up_waiting(everything ? 0 : most_waiting);
}

// In bytes, as files have them: text would be made of them and they of it, while the GIL is held.
inline pybind11::tuple fetch(Timer& timer) {
  Book& book = timer.book;
  auto fetched = pybind11::make_tuple(pybind11::bytes(book.rows), book.count_of_rows, pybind11::bytes(book.lines),
                                      book.count_of_lines);
  book.rows.clear();
  book.lines.clear();
  book.count_of_rows = book.count_of_lines = 0;
  return fetched;
}

inline pybind11::dict totals(const Timer& timer) {
  pybind11::dict found;
  for (const auto& [name, total] : timer.book.totals)
    found[pybind11::str(name)] =
        pybind11::make_tuple(total.calls, total.forward, total.backward, total.all_in_all, total.has_inner);
  return found;
}

inline pybind11::list in_words(const Calls& calls) {
  pybind11::list words;
  for (const auto& [id, site] : calls) words.append(pybind11::make_tuple(id, site->name, site->line));
  return words;
}

inline pybind11::tuple progress(Timer& timer) {
  const auto [passed, unread] = timer.progress();
  return pybind11::make_tuple(in_words(passed), in_words(unread));
}

inline std::shared_ptr<Timer> make_timer(pybind11::handle trace, int64_t most_lines, pybind11::handle describe_call,
                                         pybind11::handle describe, pybind11::handle read_soon, int64_t read_every,
                                         size_t most_unread) {
  return std::make_shared<Timer>(python::hold(trace.ptr()), most_lines, python::hold(describe_call.ptr()),
                                 python::hold(describe.ptr()),
                                 read_every > 0 ? python::hold(read_soon.ptr()) : nullptr, read_every, most_unread);
}

inline bool add_to(PyObject* module) {
  static PyMethodDef span_methods[] = {
      {"finish", python::method(finish), METH_FASTCALL, "(result, is_recorded) -> whether gradients will flow: right after the op"},
      {"give_up", python::method(give_up), METH_NOARGS, "the op raised"},
      {nullptr, nullptr, 0, nullptr},
  };
  pybind11::class_<Timer, std::shared_ptr<Timer>>(module, "Timer", pybind11::module_local())
      .def(pybind11::init(&make_timer),
           "(trace, most_lines, describe_call, describe, read_soon, read_every, most_unread)")
      .def("begin", &begin, "(id, step, name, module, line, args, kwargs) -> Span: before the op")
      .def("read", &read, "(everything, most_waiting): writes down what the device has passed")
      .def("fetch", &fetch, "-> (rows, how many, lines of the trace, how many), since the last time")
      .def("totals", &totals, "-> {name: (calls, forward, backward, all in all, has inner)}")
      .def("waiting", [](const Timer& timer) { return timer.book.waiting(); }, "how many calls wait for their gradients")
      .def("progress", &progress, "-> the last calls that the device has passed, and those that it may not have")
      .def("unread", &Timer::unread, "how much there is to take")
      .def("close", &Timer::close, "hooks on graphs that are still there do nothing from now on");
  return SpanObject::add_to(module, "op_tools_native.Span", span_methods);
}

}  // namespace timer
