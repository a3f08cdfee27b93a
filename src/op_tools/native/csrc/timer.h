// The clock of OpTimeMeasure: when each op and each of its autograd nodes began and ended, on the host and on the device.
//
// A span is one stretch of time: a call's forward, or nodes of its backward that run one after the other. Those of
// backward come and go without Python. Whoever reads them gets the ones that the device has passed.
#pragma once

#include "python.h"

#include "book.h"
#include "describe.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace timer {

constexpr double longest_since_base = 1000.0;  // ms; events tell time in 32 bits, which is 60 ns at one second
constexpr double drift = 100.0;                // microseconds between the two clocks; asking takes a few
constexpr size_t deepest = 200;                // calls inside calls; checkpointing leaves some behind when it stops

inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using Event = std::unique_ptr<c10::Event>;

// The events of one device. They are used again and again: making one costs more than recording it.
class DeviceClock {
 public:
  explicit DeviceClock(c10::Device device) : name(device.str()), device_(device), guard_(device.type()) {
    // a device with nothing to do gets there at once: that ties its time to the host's
    base_ = record(stream());
    base_->synchronize();
    moment_of_base_ = static_cast<double>(now()) / 1e3;
    Event first = record(stream()), second = record(stream());
    second->synchronize();
    first->elapsedTime(*second);  // throws where the device's events tell no time
    free_.push_back(std::move(first));
    free_.push_back(std::move(second));
  }

  c10::Stream stream() const {
    return guard_.getStream(device_);
  }

  Event record(const c10::Stream& stream) {
    Event event;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        event = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (event == nullptr) event = std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(stream);
    return event;
  }

  void give_back(Event event) {
    if (event == nullptr) return;
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(event));
  }

  // Milliseconds between two events that the device has passed, and the host's time at the first in microseconds. The
  // device cannot have begun before the host asked it to: that shows when the two clocks have drifted apart.
  std::pair<double, double> read(Event start, Event end, double not_before, bool wants_moment) {
    const double elapsed = start->elapsedTime(*end);
    if (!wants_moment) {
      give_back(std::move(start));
      give_back(std::move(end));
      return {elapsed, not_before};
    }
    const double since = base_->elapsedTime(*start);
    double moment = moment_of_base_ + since * 1e3;
    if (moment < not_before - drift) {
      moment_of_base_ += not_before - moment;
      moment = not_before;
    }
    if (since > longest_since_base) {
      std::swap(start, base_);
      moment_of_base_ = moment;
    }
    give_back(std::move(start));
    give_back(std::move(end));
    return {elapsed, moment};
  }

  const std::string name;

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::mutex mutex_;
  std::vector<Event> free_;
  Event base_;
  double moment_of_base_ = 0;
};

// Where there is none, the host's time has to do.
inline DeviceClock* clock_of(c10::Device device) {
  static std::mutex mutex;
  static auto& clocks = *new std::map<std::pair<int, int>, std::unique_ptr<DeviceClock>>;  // until the very end
  std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_pair(static_cast<int>(device.type()), static_cast<int>(device.index()));
  auto found = clocks.find(key);
  if (found == clocks.end()) {
    std::unique_ptr<DeviceClock> clock;
    try {
      clock = std::make_unique<DeviceClock>(device);
    } catch (const std::exception&) {  // a backend may refuse in any way
    }
    found = clocks.emplace(key, std::move(clock)).first;
  }
  return found->second.get();
}

struct Span {
  std::shared_ptr<Call> call;
  bool backward = false;
  bool is_last = false;         // nothing more will come for its call
  std::shared_ptr<Span> outer;  // that of the call which this one is inside of
  double inner = 0;             // ms of the calls inside this one
  uint64_t thread = 0;
  int64_t began = 0, ended = 0;
  DeviceClock* clock = nullptr;
  std::optional<c10::Stream> stream;
  Event start, end;

  void begin(DeviceClock* on) {
    clock = on;
    if (clock != nullptr) {
      stream = clock->stream();
      start = clock->record(*stream);
    }
    began = now();
  }

  // To be called right after the op; again, after its next node.
  void finish() {
    ended = now();
    if (clock == nullptr) return;
    if (end != nullptr)
      end->record(clock->stream());
    else
      end = clock->record(clock->stream());
  }

  void without_events() {
    if (clock == nullptr) return;
    clock->give_back(std::move(start));
    clock->give_back(std::move(end));
    clock = nullptr;
  }
};

// A span that has ended, or the gradients of a call that have flowed.
struct Entry {
  std::shared_ptr<Span> span;
  std::shared_ptr<Call> call;
  std::string inputs, outputs;
};

// What one thread is in the middle of.
struct Thread {
  std::vector<std::shared_ptr<Span>> running;  // calls inside calls, the innermost last
  std::shared_ptr<Span> ended;  // in backward: the op may have another node, which would be the next to run
};

class Timer {
 public:
  // Nobody listens any more; hooks on graphs that are still there do nothing.
  void close() {
    is_closed_ = true;
  }

  std::shared_ptr<Span> begin(std::shared_ptr<Call> call, bool backward, DeviceClock* clock, bool may_vanish) {
    auto span = std::make_shared<Span>();
    span->call = std::move(call);
    span->backward = backward;
    span->thread = static_cast<uint64_t>(pthread_self());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Thread& thread = threads_[span->thread];
      hand_over(thread);
      if (thread.running.size() > deepest) thread.running.clear();
      if (!thread.running.empty()) span->outer = thread.running.back();
      if (!may_vanish) thread.running.push_back(span);
    }
    span->begin(clock);
    return span;
  }

  // Whatever is above it on the stack was given up in the middle: an error went through it.
  void leave(const std::shared_ptr<Span>& span) {
    std::lock_guard<std::mutex> lock(mutex_);
    leave(threads_[span->thread], span);
  }

  void add(std::shared_ptr<Span> span) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back({std::move(span), nullptr, {}, {}});
  }

  void node_begins(const std::shared_ptr<Call>& call, DeviceClock* clock) {
    if (is_closed_) return;
    const auto identity = static_cast<uint64_t>(pthread_self());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Thread& thread = threads_[identity];
      if (thread.ended != nullptr && thread.ended->call == call) {
        // the op's next node follows its last one: one span for both
        thread.running.push_back(std::move(thread.ended));
        thread.ended = nullptr;
        return;
      }
    }
    begin(call, true, clock, false);
  }

  void node_ends(const std::shared_ptr<Call>& call) {
    if (is_closed_) return;
    const auto identity = static_cast<uint64_t>(pthread_self());
    std::shared_ptr<Span> span;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& running = threads_[identity].running;
      for (auto found = running.rbegin(); found != running.rend() && span == nullptr; ++found)
        if ((*found)->call == call && (*found)->backward) span = *found;
    }
    if (span == nullptr) return;
    span->finish();
    std::lock_guard<std::mutex> lock(mutex_);
    Thread& thread = threads_[identity];
    leave(thread, span);
    thread.ended = std::move(span);
  }

  void flowed(const std::shared_ptr<Call>& call, std::string inputs, std::string outputs) {
    if (is_closed_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [identity, thread] : threads_)
      if (thread.ended != nullptr && thread.ended->call == call) hand_over(thread);
    entries_.push_back({nullptr, call, std::move(inputs), std::move(outputs)});
  }

  size_t unread() {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_.size();
  }

  // The older half of what there is, or everything. Nothing where the device has not passed it, unless `wait`.
  std::vector<Entry> take(bool everything, bool wait) {
    std::vector<Entry> taken;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (everything)
        for (auto& [identity, thread] : threads_) hand_over(thread);
      const size_t count = everything ? entries_.size() : entries_.size() / 2;
      taken.insert(taken.end(), std::make_move_iterator(entries_.begin()),
                   std::make_move_iterator(entries_.begin() + static_cast<std::ptrdiff_t>(count)));
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(count));
    }
    if (passed(taken, wait)) return taken;
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.insert(entries_.begin(), std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end()));
    return {};
  }

  Timer(python::Reference trace, int64_t most_lines, python::Reference describe_call, python::Reference describe)
      : book(std::move(trace), most_lines), describe_call(std::move(describe_call)), describe(std::move(describe)) {}

  Book book;
  const python::Reference describe_call, describe;  // in Python, for what C++ cannot put into words
  std::optional<c10::Device> latest;  // an op that makes its tensors: they will be where the last ones were

 private:
  void hand_over(Thread& thread) {
    if (thread.ended != nullptr) entries_.push_back({std::move(thread.ended), nullptr, {}, {}});
    thread.ended = nullptr;
  }

  void leave(Thread& thread, const std::shared_ptr<Span>& span) {
    hand_over(thread);
    auto& running = thread.running;
    while (!running.empty()) {
      const bool found = running.back() == span;
      running.pop_back();
      if (found) break;
    }
  }

  // A stream's last event tells of those before it.
  static bool passed(const std::vector<Entry>& entries, bool wait) {
    std::map<std::pair<DeviceClock*, c10::StreamId>, c10::Event*> last;
    for (const auto& entry : entries)
      if (entry.span != nullptr && entry.span->clock != nullptr)
        last[{entry.span->clock, entry.span->stream->id()}] = entry.span->end.get();
    for (const auto& [key, event] : last) {
      if (wait)
        event->synchronize();
      else if (!event->query())
        return false;
    }
    return true;
  }

  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, Thread> threads_;
  std::deque<Entry> entries_;
};

// ---- for Python ------------------------------------------------------------------------------------------------------

struct TimerObject {
  PyObject_HEAD
  std::shared_ptr<Timer> timer;
};

// One call on its way: made before it runs, finished after, and in backward the one that its nodes belong to.
struct SpanObject {
  PyObject_HEAD
  std::shared_ptr<Timer> timer;
  std::shared_ptr<Span> span;
  std::shared_ptr<Call> call;
  DeviceClock* clock;
  bool is_guess;
};

inline PyTypeObject* span_type = nullptr;

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

// begin(id, step, name, module, line, args, kwargs) -> Span
inline PyObject* begin(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7) {
    PyErr_SetString(PyExc_TypeError, "begin(id, step, name, module, line, args, kwargs)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  auto& timer = reinterpret_cast<TimerObject*>(self)->timer;
  PyObject *args = arguments[5], *kwargs = arguments[6];
  auto call = std::make_shared<Call>();
  call->id = PyLong_AsLongLong(arguments[0]);
  call->step = PyLong_AsLongLong(arguments[1]);
  call->name = as_string(arguments[2]);
  call->module = as_string(arguments[3]);
  call->line = as_string(arguments[4]);
  if (!describe::call(args, kwargs, call->inputs)) call->inputs = described_by(timer->describe_call, args, kwargs);
  auto device = device_among(args);
  if (!device) device = device_among(kwargs);
  if (device) timer->latest = device;
  auto* made = PyObject_New(SpanObject, span_type);
  if (made == nullptr) return nullptr;
  new (&made->timer) std::shared_ptr<Timer>(timer);
  new (&made->span) std::shared_ptr<Span>();
  new (&made->call) std::shared_ptr<Call>(std::move(call));
  made->is_guess = !device;
  made->clock = timer->latest ? clock_of(*timer->latest) : nullptr;
  made->span = timer->begin(made->call, false, made->clock, made->is_guess);
  return reinterpret_cast<PyObject*>(made);
  END_HANDLE_TH_ERRORS
}

// finish(result) -> will gradients flow?
inline PyObject* finish(PyObject* self, PyObject* result) {
  HANDLE_TH_ERRORS
  auto* object = reinterpret_cast<SpanObject*>(self);
  auto& span = object->span;
  span->finish();
  if (!object->is_guess) {
    object->timer->leave(span);
  } else {
    const auto device = device_among(result);
    if (!device || clock_of(*device) != span->clock) {
      span->without_events();
      object->clock = nullptr;
    }
  }
  bool flows = false;
  if (at::GradMode::is_enabled())
    python::each_tensor(result, [&](const at::Tensor& tensor) { return !(flows = tensor.requires_grad()); });
  span->is_last = !flows;
  if (!describe::value(result, object->call->outputs)) object->call->outputs = described_by(object->timer->describe, result);
  if (flows) object->timer->book.wait_for(object->call);
  object->timer->add(std::move(span));
  return PyBool_FromLong(flows);
  END_HANDLE_TH_ERRORS
}

// give_up(): the op raised
inline PyObject* give_up(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto* object = reinterpret_cast<SpanObject*>(self);
  object->span->finish();
  if (!object->is_guess) object->timer->leave(object->span);
  object->span->without_events();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

inline void read_span(Span& span, Book& book) {
  Stretch read{span.backward, span.is_last, span.inner > 0, span.thread};
  read.began = read.moment = static_cast<double>(span.began) / 1e3;
  read.host = read.elapsed = static_cast<double>(span.ended - span.began) / 1e6;
  read.device = nullptr;
  if (span.clock != nullptr) {
    read.device = &span.clock->name;
    read.stream = span.stream->id();
    std::tie(read.elapsed, read.moment) =
        span.clock->read(std::move(span.start), std::move(span.end), read.began, book.wants_trace());
  }
  if (span.outer != nullptr) span.outer->inner += read.elapsed;
  span.outer = nullptr;
  read.own = std::max(read.elapsed - span.inner, 0.0);
  book.take_in(*span.call, read);
}

// read(everything, most_unread, most_waiting): takes in the older half of what there is, where the device has passed it;
// or everything. A device that is behind by more than `most_unread` is waited for; no more than `most_waiting` calls go
// on waiting for their gradients.
inline PyObject* read(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "read(everything, most_unread, most_waiting)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  auto timer = reinterpret_cast<TimerObject*>(self)->timer;
  const bool all = arguments[0] == Py_True;
  const size_t most_unread = PyLong_AsSize_t(arguments[1]), most_waiting = PyLong_AsSize_t(arguments[2]);
  {
    pybind11::gil_scoped_release unlocked;  // the device may be waited for, and there may be much to read
    auto entries = timer->take(all, all || timer->unread() >= most_unread);
    for (auto& entry : entries) {
      if (entry.span != nullptr)
        read_span(*entry.span, timer->book);
      else
        timer->book.flowed(*entry.call, entry.inputs, entry.outputs);
    }
    timer->book.give_up_waiting(all ? 0 : most_waiting);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// fetch() -> (rows, how many, lines of the trace, how many), since it was asked last
inline PyObject* fetch(PyObject* self, PyObject*) {
  Book& book = reinterpret_cast<TimerObject*>(self)->timer->book;
  PyObject* fetched = Py_BuildValue("(s#Ls#L)", book.rows.data(), static_cast<Py_ssize_t>(book.rows.size()),
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

// Timer(trace, most_lines, describe_call, describe)
inline PyObject* make_timer(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *trace, *describe_call, *describe;
  long long most_lines;
  if (!PyArg_ParseTuple(arguments, "OLOO", &trace, &most_lines, &describe_call, &describe)) return nullptr;
  PyObject* made = type->tp_alloc(type, 0);
  if (made != nullptr)
    new (&reinterpret_cast<TimerObject*>(made)->timer) std::shared_ptr<Timer>(std::make_shared<Timer>(
        python::hold(trace), most_lines, python::hold(describe_call), python::hold(describe)));
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
  auto* object = reinterpret_cast<SpanObject*>(self);
  object->span.~shared_ptr();
  object->call.~shared_ptr();
  object->timer.~shared_ptr();
  PyObject_Free(self);
  Py_DECREF(type);
}

template <typename Function>
PyCFunction method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

inline bool add_to(PyObject* module) {
  static PyMethodDef timer_methods[] = {
      {"begin", method(begin), METH_FASTCALL, "(id, step, name, module, line, args, kwargs) -> Span: before the op"},
      {"read", method(read), METH_FASTCALL, "(everything, most_unread, most_waiting): takes in what the device has passed"},
      {"fetch", method(fetch), METH_NOARGS, "-> (rows, how many, lines of the trace, how many), since the last time"},
      {"totals", method(totals), METH_NOARGS, "-> {name: (calls, forward, backward, all in all, has inner)}"},
      {"waiting", method(waiting), METH_NOARGS, "how many calls wait for their gradients"},
      {"close", method(close), METH_NOARGS, "nobody listens any more"},
      {"unread", method(unread), METH_NOARGS, "how much there is to take"},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyMethodDef span_methods[] = {
      {"finish", method(finish), METH_O, "(result) -> whether gradients will flow: right after the op"},
      {"give_up", method(give_up), METH_NOARGS, "the op raised"},
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
  PyObject* type = PyType_FromSpec(&timer_spec);
  span_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&span_spec));
  if (type == nullptr || span_type == nullptr) return false;
  Py_INCREF(span_type);
  return PyModule_AddObject(module, "Timer", type) == 0 &&
         PyModule_AddObject(module, "Span", reinterpret_cast<PyObject*>(span_type)) == 0;
}

}  // namespace timer
