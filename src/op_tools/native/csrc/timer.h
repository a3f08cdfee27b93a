// The clock of OpTimeMeasure: when each op and each of its autograd nodes began and ended, on the host and on the device.
//
// A span is one stretch of time: a call's forward, or nodes of its backward that run one after the other. Those of
// backward come and go without Python. Whoever reads them gets the ones that the device has passed.
#pragma once

#include "python.h"

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
  std::pair<double, double> read(Event start, Event end, double not_before) {
    const double elapsed = start->elapsedTime(*end), since = base_->elapsedTime(*start);
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
  python::Reference timing;  // the call that it belongs to
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
  python::Reference timing;
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

  std::shared_ptr<Span> begin(python::Reference timing, bool backward, DeviceClock* clock, bool may_vanish) {
    auto span = std::make_shared<Span>();
    span->timing = std::move(timing);
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

  void node_begins(const python::Reference& timing, DeviceClock* clock) {
    if (is_closed_) return;
    const auto identity = static_cast<uint64_t>(pthread_self());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Thread& thread = threads_[identity];
      if (thread.ended != nullptr && thread.ended->timing == timing) {
        // the op's next node follows its last one: one span for both
        thread.running.push_back(std::move(thread.ended));
        thread.ended = nullptr;
        return;
      }
    }
    begin(timing, true, clock, false);
  }

  void node_ends(const python::Reference& timing) {
    if (is_closed_) return;
    const auto identity = static_cast<uint64_t>(pthread_self());
    std::shared_ptr<Span> span;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& running = threads_[identity].running;
      for (auto found = running.rbegin(); found != running.rend() && span == nullptr; ++found)
        if ((*found)->timing == timing && (*found)->backward) span = *found;
    }
    if (span == nullptr) return;
    span->finish();
    std::lock_guard<std::mutex> lock(mutex_);
    Thread& thread = threads_[identity];
    leave(thread, span);
    thread.ended = std::move(span);
  }

  void flowed(const python::Reference& timing, std::string inputs, std::string outputs) {
    if (is_closed_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [identity, thread] : threads_)
      if (thread.ended != nullptr && thread.ended->timing == timing) hand_over(thread);
    entries_.push_back({nullptr, timing, std::move(inputs), std::move(outputs)});
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
  python::Reference timing;
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

// begin(timing, args, kwargs) -> Span
inline PyObject* begin(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "begin(timing, args, kwargs)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  auto& timer = reinterpret_cast<TimerObject*>(self)->timer;
  auto device = device_among(arguments[1]);
  if (!device) device = device_among(arguments[2]);
  auto* made = PyObject_New(SpanObject, span_type);
  if (made == nullptr) return nullptr;
  new (&made->timer) std::shared_ptr<Timer>(timer);
  new (&made->span) std::shared_ptr<Span>();
  new (&made->timing) python::Reference(python::hold(arguments[0]));
  made->is_guess = !device;
  if (device) timer->latest = device;
  made->clock = timer->latest ? clock_of(*timer->latest) : nullptr;
  made->span = timer->begin(made->timing, false, made->clock, made->is_guess);
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

// (timing, backward, is last, thread, began µs, host ms, device or None, stream, elapsed ms, moment µs, own ms, has inner)
inline PyObject* read_span(Span& span) {
  const double host = static_cast<double>(span.ended - span.began) / 1e6;
  const double began = static_cast<double>(span.began) / 1e3;
  double elapsed = host, moment = began;
  long long stream = 0;
  const char* device = nullptr;  // None
  if (span.clock != nullptr) {
    device = span.clock->name.c_str();
    stream = span.stream->id();
    std::tie(elapsed, moment) = span.clock->read(std::move(span.start), std::move(span.end), began);
  }
  if (span.outer != nullptr) span.outer->inner += elapsed;
  const double own = std::max(elapsed - span.inner, 0.0);
  return Py_BuildValue("(OOOKddzLdddO)", span.timing->get(), span.backward ? Py_True : Py_False,
                       span.is_last ? Py_True : Py_False, static_cast<unsigned long long>(span.thread), began, host,
                       device, stream, elapsed, moment, own, span.inner > 0 ? Py_True : Py_False);
}

// take(everything, wait) -> spans, and (timing, inputs, outputs) for gradients that have flowed
inline PyObject* take(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "take(everything, wait)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  std::vector<Entry> entries;
  auto timer = reinterpret_cast<TimerObject*>(self)->timer;
  {
    pybind11::gil_scoped_release unlocked;  // the device may be waited for
    entries = timer->take(arguments[0] == Py_True, arguments[1] == Py_True);
  }
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(entries.size()));
  if (list == nullptr) return nullptr;
  for (size_t index = 0; index < entries.size(); ++index) {
    auto& entry = entries[index];
    PyObject* item = entry.span != nullptr ? read_span(*entry.span)
                                           : Py_BuildValue("(ONN)", entry.timing->get(), python::text(entry.inputs),
                                                           python::text(entry.outputs));
    if (item == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(index), item);
  }
  return list;
  END_HANDLE_TH_ERRORS
}

inline PyObject* unread(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(reinterpret_cast<TimerObject*>(self)->timer->unread());
}

inline PyObject* close(PyObject* self, PyObject*) {
  reinterpret_cast<TimerObject*>(self)->timer->close();
  Py_RETURN_NONE;
}

inline PyObject* make_timer(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* made = type->tp_alloc(type, 0);
  if (made != nullptr) new (&reinterpret_cast<TimerObject*>(made)->timer) std::shared_ptr<Timer>(std::make_shared<Timer>());
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
  object->timing.~shared_ptr();
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
      {"begin", method(begin), METH_FASTCALL, "(timing, args, kwargs) -> Span: right before the op"},
      {"take", method(take), METH_FASTCALL, "(everything, wait) -> what the device has passed"},
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
