// The clock of OpTimeMeasure: when each op and each of its autograd nodes began and ended, on the host and on the device.
//
// A stretch is one piece of time: a call's forward, or nodes of its backward that run one after the other. Those of
// backward come and go without Python. Whoever reads them gets the ones that the device has passed.
#pragma once

#include "python.h"

#include "ledger.h"

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
    between(*first, *second);  // throws where the device's events tell no time
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
    const double elapsed = between(*start, *end);
    if (!wants_moment) {
      give_back(std::move(start));
      give_back(std::move(end));
      return {elapsed, not_before};
    }
    const double since = between(*base_, *start);
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
  // Of events that the device is known to have passed: Event::elapsedTime asks the driver for that first, of both.
  double between(const c10::Event& first, const c10::Event& second) const {
    return guard_.elapsedTime(first.eventId(), second.eventId(), first.device_index());
  }

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

struct Stretch {
  std::shared_ptr<Call> call;
  bool backward = false;
  bool is_last = false;         // nothing more will come for its call
  std::shared_ptr<Stretch> outer;  // that of the call which this one is inside of
  double inner = 0;             // ms of the calls inside this one
  uint64_t thread = 0;
  int64_t began = 0, ended = 0;
  DeviceClock* clock = nullptr;
  std::optional<c10::Stream> stream;
  Event start, end;
  bool end_is_due = false;      // the end has not been put into the device's queue yet
  double elapsed = 0, moment = 0;  // on the device, once it was asked: ms, and microseconds

  void begin(DeviceClock* on) {
    clock = on;
    if (clock != nullptr) {
      stream = clock->stream();
      start = clock->record(*stream);
    }
    began = now();
  }

  // To be called right after the op; again, after its next node. Where that one `is_near`, the device is told of the
  // end only after it, or when it turns out that something else comes first.
  void finish(bool is_near = false) {
    ended = now();
    end_is_due = is_near && clock != nullptr;
    if (clock != nullptr && !is_near) mark_end(clock->stream());
  }

  void settle() {
    if (end_is_due) mark_end(*stream);
    end_is_due = false;
  }

  // The device has passed it.
  void ask(bool wants_moment) {
    moment = static_cast<double>(began) / 1e3;
    elapsed = static_cast<double>(ended - began) / 1e6;
    if (clock != nullptr)
      std::tie(elapsed, moment) = clock->read(std::move(start), std::move(end), moment, wants_moment);
  }

  void without_events() {
    if (clock == nullptr) return;
    clock->give_back(std::move(start));
    clock->give_back(std::move(end));
    clock = nullptr;
  }

 private:
  void mark_end(const c10::Stream& on) {
    if (end != nullptr)
      end->record(on);
    else
      end = clock->record(on);
  }
};

// A stretch that has ended, or the gradients of a call that have flowed.
struct Entry {
  std::shared_ptr<Stretch> stretch;
  std::shared_ptr<Call> call;
  Text inputs, outputs;
};

// A call that the device was asked for.
struct Asked {
  int64_t id;
  std::shared_ptr<const Site> site;
};
using Calls = std::vector<Asked>;

// Things that are used again. They are made by threads that train and let go by the one that writes: malloc would have
// to take them back from there, against its lock.
template <typename Kind>
class Pool {
 public:
  std::shared_ptr<Kind> take() {
    if (spare_.empty()) return std::make_shared<Kind>();
    auto taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }

  // Where there is no other reference.
  void give_back(std::shared_ptr<Kind> used) {
    if (used.use_count() != 1 || spare_.size() >= most) return;
    std::atomic_thread_fence(std::memory_order_acquire);  // others may have just let it go
    *used = Kind();
    spare_.push_back(std::move(used));
  }

  void give_back(Pool& other) {
    for (auto& used : other.spare_)
      if (spare_.size() < most) spare_.push_back(std::move(used));
    other.spare_.clear();
  }

 private:
  static constexpr size_t most = 4096;  // some are read late
  std::vector<std::shared_ptr<Kind>> spare_;
};

// What one thread is in the middle of.
struct Thread {
  std::vector<std::shared_ptr<Stretch>> running;  // calls inside calls, the innermost last
  std::shared_ptr<Stretch> ended;  // in backward: the op may have another node, which would be the next to run
};

class Timer {
 public:
  // Closed: hooks on graphs that are still there do nothing.
  void close() {
    is_closed_ = true;
    read_soon = nullptr;
  }

  std::shared_ptr<Call> new_call() {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_.take();
  }

  std::shared_ptr<Stretch> begin(std::shared_ptr<Call> call, bool backward, DeviceClock* clock, bool may_vanish) {
    const auto identity = static_cast<uint64_t>(pthread_self());
    std::shared_ptr<Stretch> stretch;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stretch = enter(threads_[identity], identity, std::move(call), backward, may_vanish);
    }
    stretch->begin(clock);
    return stretch;
  }

  // Whatever is above it on the stack was given up in the middle: an error went through it.
  void leave(const std::shared_ptr<Stretch>& stretch) {
    std::lock_guard<std::mutex> lock(mutex_);
    leave(threads_[stretch->thread], stretch);
  }

  void add(std::shared_ptr<Stretch> stretch) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back({std::move(stretch), nullptr, {}, {}});
  }

  void node_begins(const std::shared_ptr<Call>& call, DeviceClock* clock) {
    if (is_closed_) return;
    const auto identity = static_cast<uint64_t>(pthread_self());
    std::shared_ptr<Stretch> stretch;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Thread& thread = threads_[identity];
      if (thread.ended != nullptr && thread.ended->call == call) {
        // the op's next node follows its last one: one stretch for both
        thread.running.push_back(std::move(thread.ended));
        thread.ended = nullptr;
        return;
      }
      stretch = enter(thread, identity, call, true, false);
    }
    stretch->begin(clock);
  }

  // `is_near`: its op has more nodes to come.
  void node_ends(const std::shared_ptr<Call>& call, bool is_near) {
    if (is_closed_) return;
    Thread* thread = nullptr;  // it stays where it is
    std::shared_ptr<Stretch> stretch;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      thread = &threads_[static_cast<uint64_t>(pthread_self())];
      auto& running = thread->running;
      for (auto found = running.rbegin(); found != running.rend() && stretch == nullptr; ++found)
        if ((*found)->call == call && (*found)->backward) stretch = *found;
    }
    if (stretch == nullptr) return;
    stretch->finish(is_near);
    std::lock_guard<std::mutex> lock(mutex_);
    leave(*thread, stretch);
    thread->ended = std::move(stretch);
  }

  void flowed(const std::shared_ptr<Call>& call, const likeness::Gradients& inputs, const likeness::Gradients& outputs) {
    if (is_closed_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [identity, thread] : threads_)
      if (thread.ended != nullptr && thread.ended->call == call) hand_over(thread);
    const Site& site = *call->site;
    entries_.push_back({nullptr, call, kept_as(site.grad_inputs, inputs), kept_as(site.grad_outputs, outputs)});
  }

  size_t unread() {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_.size();
  }

  // Asks the device for the times of the older half of what there is, where it has passed that; or of everything. A
  // device that is far behind is waited for. To be done by the thread that trains: another one that asks holds the
  // driver's lock against every launch.
  void ask(bool everything) {
    std::lock_guard<std::mutex> asking(asking_);
    auto entries = take(everything, everything || unread() >= most_unread_);
    const bool wants_moment = book.wants_trace();
    for (auto& entry : entries)
      if (entry.stretch != nullptr) entry.stretch->ask(wants_moment);
    std::lock_guard<std::mutex> lock(mutex_);
    remember_passed(entries);
    asked_.insert(asked_.end(), std::make_move_iterator(entries.begin()), std::make_move_iterator(entries.end()));
  }

  // For a device that has failed: the last calls that it is known to have passed, and those that it is not.
  std::pair<Calls, Calls> progress() {
    std::lock_guard<std::mutex> lock(mutex_);
    Calls unread;
    for (const auto& entry : entries_)
      if (is_call(entry)) unread.push_back(asked_of(entry));
    return {Calls(passed_.begin(), passed_.end()), std::move(unread)};
  }

  // Hands what has been asked for to `take_in`, one entry after the other.
  template <typename TakeIn>
  void read(const TakeIn& take_in) {
    std::vector<Entry> answers;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      answers.swap(asked_);
    }
    Pool<Stretch> stretches;
    Pool<Call> calls;
    for (auto& entry : answers) {
      take_in(entry);
      if (entry.stretch != nullptr) entry.call = std::move(entry.stretch->call);
      stretches.give_back(std::move(entry.stretch));
      calls.give_back(std::move(entry.call));
    }
    answers.clear();
    std::lock_guard<std::mutex> lock(mutex_);
    stretches_.give_back(stretches);
    calls_.give_back(calls);
    if (asked_.capacity() == 0) asked_.swap(answers);  // its memory
  }

  // `read_soon` is called now and then: when `read_every` more calls have been added. `most_unread` entries may wait.
  Timer(python::Reference trace, int64_t most_lines, python::Reference describe_call, python::Reference describe,
        python::Reference read_soon, int64_t read_every, size_t most_unread)
      : book(std::move(trace), most_lines),
        describe_call(std::move(describe_call)),
        describe(std::move(describe)),
        read_soon(std::move(read_soon)),
        read_every_(read_every),
        most_unread_(most_unread) {}

  bool is_time_to_read() {
    return read_soon != nullptr && ++count_of_calls_ % read_every_ == 0;
  }

  Book book;
  const python::Reference describe_call, describe;  // in Python, for what C++ cannot describe
  python::Reference read_soon;  // under the GIL
  std::optional<c10::Device> latest;  // an op that makes its tensors: they will be where the last ones were

 private:
  std::shared_ptr<Stretch> enter(Thread& thread, uint64_t identity, std::shared_ptr<Call> call, bool backward,
                              bool may_vanish) {
    auto stretch = stretches_.take();
    stretch->call = std::move(call);
    stretch->backward = backward;
    stretch->thread = identity;
    hand_over(thread);
    if (thread.running.size() > deepest) thread.running.clear();
    if (!thread.running.empty()) stretch->outer = thread.running.back();
    if (!may_vanish) thread.running.push_back(stretch);
    return stretch;
  }

  void hand_over(Thread& thread) {
    if (thread.ended == nullptr) return;
    thread.ended->settle();
    entries_.push_back({std::move(thread.ended), nullptr, {}, {}});
    thread.ended = nullptr;
  }

  void leave(Thread& thread, const std::shared_ptr<Stretch>& stretch) {
    hand_over(thread);
    auto& running = thread.running;
    while (!running.empty()) {
      const bool found = running.back() == stretch;
      running.pop_back();
      if (found) break;
    }
  }

  // Whether it is a call that a device was asked for.
  static bool is_call(const Entry& entry) {
    return entry.stretch != nullptr && !entry.stretch->backward && entry.stretch->clock != nullptr;
  }

  static Asked asked_of(const Entry& entry) {
    return {entry.stretch->call->id, entry.stretch->call->site};
  }

  void remember_passed(const std::vector<Entry>& entries) {
    Calls last;
    for (auto entry = entries.rbegin(); entry != entries.rend() && last.size() < most_remembered; ++entry)
      if (is_call(*entry)) last.push_back(asked_of(*entry));
    passed_.insert(passed_.end(), last.rbegin(), last.rend());
    while (passed_.size() > most_remembered) passed_.pop_front();
  }

  // A stream's last event tells of those before it.
  static bool passed(const std::vector<Entry>& entries, bool wait) {
    std::map<std::pair<DeviceClock*, c10::StreamId>, c10::Event*> last;
    for (const auto& entry : entries)
      if (entry.stretch != nullptr && entry.stretch->clock != nullptr)
        last[{entry.stretch->clock, entry.stretch->stream->id()}] = entry.stretch->end.get();
    for (const auto& [key, event] : last) {
      if (wait)
        event->synchronize();
      else if (!event->query())
        return false;
    }
    return true;
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
    try {
      if (passed(taken, wait)) return taken;
    } catch (...) {  // a device that has failed: which calls it had not passed is still to be told
      put_back(taken);
      throw;
    }
    put_back(taken);
    return {};
  }

  void put_back(std::vector<Entry>& taken) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.insert(entries_.begin(), std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end()));
  }

  static constexpr size_t most_remembered = 3;

  const int64_t read_every_;
  const size_t most_unread_;
  std::atomic<int64_t> count_of_calls_{0};
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, Thread> threads_;
  std::vector<Entry> entries_;
  std::vector<Entry> asked_;
  std::deque<Asked> passed_;
  Pool<Stretch> stretches_;
  Pool<Call> calls_;
  std::mutex asking_;  // one at a time, so that answers are in order
};

}  // namespace timer
