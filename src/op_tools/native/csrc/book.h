// The book of times: what op_tools.timing.ledger does in Python. Rows, lines of the trace, and sums, in words.
#pragma once

#include "python.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <unordered_map>

namespace timer {

using Text = std::shared_ptr<const std::string>;

// An op at one place in the program.
struct Site {
  const std::string name, module, line;
  mutable Text inputs, outputs;  // of the call that was there last, under Python's lock: mostly they are the same again
};

inline Text kept_as(Text& last, const std::string& text) {
  if (last == nullptr || *last != text) last = std::make_shared<const std::string>(text);
  return last;
}

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
struct Stretch {
  bool backward, is_last, has_inner;
  uint64_t thread;
  double began, host, moment, elapsed, own;
  const std::string* device;  // none where it has no events
  int64_t stream;
};

// One thread at a time takes in, with Python's lock or without.
class Book {
 public:
  // `trace` tells the tracks of threads and streams; it has room for `most_lines`.
  Book(python::Reference trace, int64_t most_lines) : trace_(std::move(trace)), lines_left_(most_lines) {}

  bool wants_trace() const {
    return lines_left_ > 0;
  }

  void take_in(const std::shared_ptr<Call>& of, const Stretch& stretch) {
    Call& call = *of;
    if (call.is_written) call.begin_row();
    if (wants_trace()) draw(call, stretch);
    Total& total = totals[call.site->name];
    total.has_inner |= stretch.has_inner;
    total.all_in_all += stretch.elapsed;
    if (stretch.backward) {
      total.backward += stretch.own;
      call.backward = std::max(call.backward, 0.0) + stretch.elapsed;
      call.backward_host = std::max(call.backward_host, 0.0) + stretch.host;
    } else {
      total.forward += stretch.own;
      ++total.calls;
      call.forward = stretch.elapsed;
      call.forward_host = stretch.host;
      if (stretch.is_last)
        write(call, "", "");
      else
        waiting_.emplace(call.id, of);
    }
  }

  void flowed(Call& call, const std::string& inputs, const std::string& outputs) {
    waiting_.erase(call.id);
    write(call, inputs, outputs);
  }

  // The gradients of some calls never flow: only so many can wait, the oldest are given up.
  void give_up_waiting(size_t most) {
    while (waiting_.size() > most) {
      write(*waiting_.begin()->second, "", "");
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
  static void add_time(std::string& text, double elapsed, const char* format = "%.8f") {
    if (elapsed < 0) return;
    char digits[64];
    text.append(digits, static_cast<size_t>(std::snprintf(digits, sizeof digits, format, elapsed)));
  }

  static void add_cell(std::string& text, const std::string& cell) {
    if (cell.find_first_of(",\"\r\n") == std::string::npos) {
      text += cell;
      return;
    }
    text += '"';
    for (const char letter : cell) text.append(letter == '"' ? 2 : 1, letter);
    text += '"';
  }

  static void add_quoted(std::string& text, const std::string& value) {
    text += '"';
    for (const char letter : value) {
      if (letter == '"' || letter == '\\') text += '\\';
      text += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
    }
    text += '"';
  }

  void write(Call& call, const std::string& grad_inputs, const std::string& grad_outputs) {
    add_cell(rows, call.site->name);
    rows += ',' + std::to_string(call.id) + ',';
    add_time(rows, call.forward);
    rows += ',';
    add_time(rows, call.backward);
    rows += ",ms";
    const std::string* cells[] = {call.inputs.get(), call.outputs.get(), &grad_inputs, &grad_outputs};
    for (const auto* cell : cells) {
      rows += ',';
      add_cell(rows, *cell);
    }
    rows += ',';
    add_time(rows, call.forward_host);
    rows += ',';
    add_time(rows, call.backward_host);
    rows += ',' + std::to_string(call.step) + ',';
    add_cell(rows, call.site->module);
    rows += ',';
    add_cell(rows, call.site->line);
    rows += "\r\n";
    ++count_of_rows;
    call.is_written = true;
  }

  void draw(const Call& call, const Stretch& stretch) {
    draw_one(call, stretch.backward, track_of_thread(stretch.thread), stretch.began, stretch.host);
    if (stretch.device != nullptr)
      draw_one(call, stretch.backward, track_of_stream(*stretch.device, stretch.stream), stretch.moment, stretch.elapsed);
  }

  void draw_one(const Call& call, bool backward, const std::string& track, double start, double duration) {
    if (!lines.empty()) lines += ",\n";
    lines += "{\"name\":";
    add_quoted(lines, call.site->name);
    lines += backward ? ",\"cat\":\"backward\",\"ph\":\"X\"," : ",\"cat\":\"forward\",\"ph\":\"X\",";
    lines += track;
    lines += ",\"ts\":";
    add_time(lines, start, "%.3f");
    lines += ",\"dur\":";
    add_time(lines, duration * 1e3, "%.3f");
    lines += ",\"args\":{\"forward_id\":" + std::to_string(call.id) + ",\"module\":";
    add_quoted(lines, call.site->module);
    lines += "}}";
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
    auto& track = streams_[{device, stream}];
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
  std::map<std::pair<std::string, int64_t>, std::string> streams_;
};

}  // namespace timer
