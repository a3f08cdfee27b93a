// The book of times: what op_tools.timing.ledger does in Python. Rows, lines of the trace, and sums, as text.
#pragma once

#include "python.h"

#include "likeness.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <map>
#include <unordered_map>

namespace timer {

// As it stands in a table: in quotes where it must be.
inline std::string as_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string cell = "\"";
  size_t begin = 0;
  for (size_t quote; (quote = text.find('"', begin)) != std::string::npos; begin = quote + 1)
    cell.append(text, begin, quote + 1 - begin) += '"';
  cell.append(text, begin) += '"';
  return cell;
}

inline std::string in_quotes(const std::string& text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  }
  return quoted + '"';
}

// What an op was called with, or what flowed through it.
class Description {
 public:
  explicit Description(std::string text) : text_(std::move(text)) {}

  bool is(const std::string& text) const {
    return text_ == text;
  }

  // For the book: only one thread at a time asks for it.
  const std::string& cell() const {
    if (cell_.empty()) cell_ = as_cell(text_);
    return cell_;
  }

 private:
  const std::string text_;
  mutable std::string cell_;
};

using Text = std::shared_ptr<const Description>;

inline Text kept_as(Text& last, const std::string& text) {
  if (last == nullptr || !last->is(text)) last = std::make_shared<const Description>(text);
  return last;
}

// A text, and what it was made of; that is empty where it is not known.
struct Kept {
  Text text;
  likeness::Numbers made_of;
};

inline Text kept_as(Kept& last, const likeness::Gradients& gradients) {
  static thread_local likeness::Numbers made_of;  // memory that is there already
  made_of.clear();
  likeness::of_gradients(gradients, made_of);
  if (made_of != last.made_of) {
    last.text = std::make_shared<const Description>(likeness::in_words(gradients));
    last.made_of = made_of;
  }
  return last.text;
}

struct Total;

// What the book writes of every call at one place, formatted once.
struct Phrases {
  Phrases(const std::string& name, const std::string& module, const std::string& line, Total& its_total)
      : begin_of_row(as_cell(name) + ','),
        end_of_row(',' + as_cell(module) + ',' + as_cell(line) + "\r\n"),
        forward("{\"name\":" + in_quotes(name) + ",\"cat\":\"forward\",\"ph\":\"X\","),
        backward("{\"name\":" + in_quotes(name) + ",\"cat\":\"backward\",\"ph\":\"X\","),
        end_of_line(",\"module\":" + in_quotes(module) + "}}"),
        total(its_total) {}

  const std::string begin_of_row, end_of_row;      // of the table
  const std::string forward, backward, end_of_line;  // of the trace
  Total& total;
};

// An op at one place in the program. Mostly the descriptions of one call there are those of the next.
struct Site {
  const std::string name, module, line;
  mutable Kept inputs, outputs;            // of the call that was there last, under the GIL
  mutable Kept grad_inputs, grad_outputs;  // likewise, under the timer's
  mutable std::unique_ptr<const Phrases> phrases;  // the book's, once it has written of it
};

// One call, and its times as they become known, in ms. A second backward pass makes a second row, without the forward.
struct Call {
  int64_t id = 0, step = 0;
  std::shared_ptr<const Site> site;
  Text inputs, outputs;
  double forward = -1, forward_host = -1, backward = -1, backward_host = -1;  // none yet
  bool is_written = false;

  void begin_row() {
    forward = forward_host = backward = backward_host = -1;
    is_written = false;
  }
};

// The sums of all calls of one op. What ops inside it took is theirs, not its own.
struct Total {
  int64_t calls = 0;
  double forward = 0, backward = 0, all_in_all = 0;
  bool has_inner = false;
};

// One stretch of time that has been read, in ms, and when it began in microseconds, on the host and on the device.
struct Measured {
  bool backward, is_last, has_inner;
  uint64_t thread;
  double began, host, moment, elapsed, own;
  const std::string* device;  // none where it has no events
  int64_t stream;
};

// One thread at a time takes in, with the GIL or without.
class Book {
 public:
  // `trace` tells the tracks of threads and streams; it has room for `most_lines`.
  Book(python::Reference trace, int64_t most_lines) : trace_(std::move(trace)), lines_left_(most_lines) {}

  bool wants_trace() const {
    return lines_left_ > 0;
  }

  void take_in(const std::shared_ptr<Call>& of, const Measured& measured) {
    Call& call = *of;
    if (call.is_written) call.begin_row();
    if (wants_trace()) draw(call, measured);
    Total& total = phrases_of(*call.site).total;
    total.has_inner |= measured.has_inner;
    total.all_in_all += measured.elapsed;
    if (measured.backward) {
      total.backward += measured.own;
      call.backward = std::max(call.backward, 0.0) + measured.elapsed;
      call.backward_host = std::max(call.backward_host, 0.0) + measured.host;
    } else {
      total.forward += measured.own;
      ++total.calls;
      call.forward = measured.elapsed;
      call.forward_host = measured.host;
      if (measured.is_last)
        write(call, nullptr, nullptr);
      else
        waiting_.emplace(call.id, of);
    }
  }

  void flowed(Call& call, const Text& inputs, const Text& outputs) {
    waiting_.erase(call.id);
    write(call, inputs, outputs);
  }

  // The gradients of some calls never flow: only so many can wait, the oldest are given up.
  void give_up_waiting(size_t most) {
    while (waiting_.size() > most) {
      write(*waiting_.begin()->second, nullptr, nullptr);
      waiting_.erase(waiting_.begin());
    }
  }

  size_t waiting() const {
    return waiting_.size();
  }

  std::map<std::string, Total> totals;
  std::string rows, lines;  // since they were fetched
  int64_t count_of_rows = 0, count_of_lines = 0;

 private:
  const Phrases& phrases_of(const Site& site) {
    if (site.phrases == nullptr)
      site.phrases = std::make_unique<const Phrases>(site.name, site.module, site.line, totals[site.name]);
    return *site.phrases;
  }

  static void add_number(std::string& text, int64_t number) {
    char letters[24];
    text.append(letters, static_cast<size_t>(std::to_chars(letters, letters + sizeof letters, number).ptr - letters));
  }

  static void add_decimal(std::string& text, const char* format, double value) {
    char letters[400];  // the largest number has 309 digits before its point
    text.append(letters, static_cast<size_t>(std::snprintf(letters, sizeof letters, format, value)));
  }

  static void add_time(std::string& text, double elapsed) {
    if (!(elapsed < 0)) add_decimal(text, "%.8f", elapsed);
  }

  static void add_moment(std::string& text, double microseconds) {
    if (!(microseconds < 0)) add_decimal(text, "%.3f", microseconds);
  }

  void write(Call& call, const Text& grad_inputs, const Text& grad_outputs) {
    const Phrases& phrases = phrases_of(*call.site);
    rows += phrases.begin_of_row;
    add_number(rows, call.id);
    rows += ',';
    add_time(rows, call.forward);
    rows += ',';
    add_time(rows, call.backward);
    rows += ",ms";
    const Text* const texts[] = {&call.inputs, &call.outputs, &grad_inputs, &grad_outputs};
    for (const Text* text : texts) {
      rows += ',';
      if (*text != nullptr) rows += (*text)->cell();
    }
    rows += ',';
    add_time(rows, call.forward_host);
    rows += ',';
    add_time(rows, call.backward_host);
    rows += ',';
    add_number(rows, call.step);
    rows += phrases.end_of_row;
    ++count_of_rows;
    call.is_written = true;
  }

  void draw(const Call& call, const Measured& measured) {
    draw_one(call, measured.backward, track_of_thread(measured.thread), measured.began, measured.host);
    if (measured.device != nullptr)
      draw_one(call, measured.backward, track_of_stream(*measured.device, measured.stream), measured.moment, measured.elapsed);
  }

  void draw_one(const Call& call, bool backward, const std::string& track, double start, double duration) {
    const Phrases& phrases = phrases_of(*call.site);
    if (!lines.empty()) lines += ",\n";
    lines += backward ? phrases.backward : phrases.forward;
    lines += track;
    lines += ",\"ts\":";
    add_moment(lines, start);
    lines += ",\"dur\":";
    add_moment(lines, duration * 1e3);
    lines += ",\"args\":{\"forward_id\":";
    add_number(lines, call.id);
    lines += phrases.end_of_line;
    ++count_of_lines;
    --lines_left_;
  }

  const std::string& track_of_thread(uint64_t identity) {
    auto& track = threads_[identity];
    if (track.empty()) {
      pybind11::gil_scoped_acquire locked;
      track = ask(PyObject_CallMethod(trace_->get(), "thread", "K", static_cast<unsigned long long>(identity)));
    }
    return track;
  }

  const std::string& track_of_stream(const std::string& device, int64_t stream) {
    auto& track = streams_[{&device, stream}];
    if (track.empty()) {
      pybind11::gil_scoped_acquire locked;
      track = ask(PyObject_CallMethod(trace_->get(), "stream", "sL", device.c_str(), static_cast<long long>(stream)));
    }
    return track;
  }

  static std::string ask(PyObject* answer) {
    if (answer == nullptr) throw python_error();
    const char* letters = PyUnicode_AsUTF8(answer);
    std::string text = letters == nullptr ? "" : letters;
    Py_DECREF(answer);
    return text;
  }

  const python::Reference trace_;
  std::atomic<int64_t> lines_left_;  // asked by others
  std::map<int64_t, std::shared_ptr<Call>> waiting_;  // for their gradients, the oldest first
  std::unordered_map<uint64_t, std::string> threads_;
  std::map<std::pair<const std::string*, int64_t>, std::string> streams_;  // a device has its name at one place
};

}  // namespace timer
