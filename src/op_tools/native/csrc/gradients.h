// The gradients at the edge of one op call: what op_tools.core.gradients does, with hooks that need no Python.
//
// The nodes that an op made have sequence numbers from the time it ran; whatever they lead to beyond that is an input.
// The cast of a leaf, which autocast shares among ops, counts as the leaf. A view whose memory was written to has no node
// until it is asked for one, which then takes the next number: only the program may ask.
#pragma once

#include "python.h"

#include "span.h"
#include "signature.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <c10/util/SmallVector.h>

#include <limits>
#include <typeinfo>
#include <unordered_set>

namespace gradients {

using torch::autograd::Node;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using NodePointer = std::decay_t<decltype(std::declval<Variable>().grad_fn())>;  // torch has had two kinds

constexpr uint64_t leafs_number = std::numeric_limits<uint64_t>::max();  // the sequence number of a leaf's node
constexpr size_t few = 32;
constexpr size_t largest_subgraph = 20'000;  // nodes of one op; an LSTM that the device unrolls has some hundreds

// Where one input's gradient goes: to the node that made it, or to the leaf itself.
struct Input {
  NodePointer node;
  uint32_t number = 0;
  const c10::TensorImpl* leaf = nullptr;
  at::Tensor view;  // that has no node before the op
};

// What times the nodes of the op.
struct Watch {
  std::shared_ptr<timer::Timer> timer;
  std::shared_ptr<timer::Call> call;
  timer::DeviceClock* clock;
};

// Most ops have few tensors and few nodes: these lists then need no memory of their own.
using Inputs = c10::SmallVector<Input, 4>;
using Watches = c10::SmallVector<Watch, 1>;
using Route = std::pair<uint32_t, uint32_t>;  // index among the gradients of a node, position among the op's tensors
using Routes = c10::SmallVector<Route, 2>;

// Gathers what the hooks of one op see, and hands it over when all of them have run or the pass is over.
class CallGradients : public std::enable_shared_from_this<CallGradients> {
 public:
  CallGradients(python::Reference listener, bool tells_nodes, Watches watches, size_t inputs, size_t outputs)
      : listener_(std::move(listener)),
        tells_nodes_(tells_nodes),
        watches_(std::move(watches)),
        inputs_(listener_ ? inputs : 0),
        outputs_(listener_ ? outputs : 0),
        versions_of_inputs_(inputs_.size()),
        versions_of_outputs_(outputs_.size()),
        grad_inputs_(watches_.empty() ? 0 : inputs),
        grad_outputs_(watches_.empty() ? 0 : outputs) {}

  size_t expected = 0;
  c10::SmallVector<std::pair<size_t, at::TensorOptions>, 2> casts;  // inputs that were cast, and what they are

  void node_begins() {
    if (tells_nodes_) {
      pybind11::gil_scoped_acquire lock;
      python::call_method(listener_->get(), "begins");
    }
    for (auto& watch : watches_) watch.timer->node_begins(watch.call, watch.clock);
  }

  void node_ends() {
    bool is_near = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_near = seen_ + 1 < expected;
    }
    for (auto watch = watches_.rbegin(); watch != watches_.rend(); ++watch) watch->timer->node_ends(watch->call, is_near);
    if (tells_nodes_) {
      pybind11::gil_scoped_acquire lock;
      python::call_method(listener_->get(), "ends");
    }
  }

  void node_ran(const Routes& routes, const Routes& arrivals, const variable_list& grad_inputs,
                const variable_list& grad_outputs) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (const auto& [index, position] : routes)
      if (index < grad_inputs.size() && grad_inputs[index].defined()) add(position, grad_inputs[index]);
    for (const auto& [number, slot] : arrivals) {
      if (number >= grad_outputs.size() || !grad_outputs[number].defined()) continue;
      if (listener_) {
        outputs_[slot] = kept(grad_outputs[number]);
        versions_of_outputs_[slot] = version_of(outputs_[slot]);
      }
      if (!watches_.empty()) note(grad_outputs[number], grad_outputs[number].scalar_type(), grad_outputs_[slot]);
    }
    if (++seen_ == expected) {
      hand_over(lock);
    } else if (!is_waiting_) {
      // parts of an op that are not needed for this pass never run
      is_waiting_ = true;
      torch::autograd::Engine::get_default_engine().queue_callback([record = shared_from_this()] { record->pass_is_over(); });
    }
  }

 private:
  void add(size_t position, const Variable& gradient) {
    if (listener_) {
      auto& so_far = inputs_[position];
      if (!so_far.defined()) {
        so_far = kept(gradient);
      } else {  // the same input twice: x * x
        ModesAside aside;
        so_far = so_far.detach() + gradient.detach();
      }
      versions_of_inputs_[position] = version_of(so_far);
    }
    if (watches_.empty()) return;
    auto dtype = gradient.scalar_type();
    for (const auto& [cast, options] : casts)
      if (cast == position) dtype = c10::typeMetaToScalarType(options.dtype());
    note(gradient, dtype, grad_inputs_[position]);
  }

  struct ModesAside {
    c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
  };

  // Until the op's other nodes have run. Autograd takes over a gradient that has no other reference, and copies it
  // otherwise: so another tensor with the same memory is held.
  Variable kept(const Variable& gradient) const {
    if (expected == 1) return gradient;
    ModesAside aside;
    return gradient.detach();
  }

  static void note(const Variable& gradient, at::ScalarType dtype, likeness::Gradient& numbers) {
    numbers.clear();
    likeness::of_tensor(gradient, dtype, numbers);
  }

  void pass_is_over() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_waiting_ = false;
    if (seen_) hand_over(lock);
  }

  // What was changed since it flowed, as by a hook on a parameter's gradient, is not what flowed.
  static void drop_changed(variable_list& tensors, const std::vector<int64_t>& versions) {
    for (size_t index = 0; index < tensors.size(); ++index)
      if (tensors[index].defined() && version_of(tensors[index]) != versions[index]) tensors[index] = Variable();
  }

  static int64_t version_of(const Variable& tensor) {
    return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
  }

  void hand_over(std::unique_lock<std::mutex>& lock) {
    drop_changed(inputs_, versions_of_inputs_);
    drop_changed(outputs_, versions_of_outputs_);
    variable_list inputs(inputs_.size()), outputs(outputs_.size());
    inputs.swap(inputs_);
    outputs.swap(outputs_);
    for (auto& watch : watches_) watch.timer->flowed(watch.call, grad_inputs_, grad_outputs_);
    for (auto& gradient : grad_inputs_) gradient.clear();
    for (auto& gradient : grad_outputs_) gradient.clear();
    seen_ = 0;
    lock.unlock();
    if (!listener_) return;
    at::NoGradGuard without_gradients;  // where gradients are to be differentiated again (create_graph)
    if (!casts.empty()) {
      ModesAside aside;
      for (const auto& [position, options] : casts)
        if (inputs[position].defined()) inputs[position] = inputs[position].to(options);
    }
    tell(inputs, outputs);
  }

  void tell(const variable_list& inputs, const variable_list& outputs) {
    pybind11::gil_scoped_acquire lock;
    auto as_list = [](const variable_list& tensors) {
      auto list = pybind11::reinterpret_steal<pybind11::object>(PyList_New(static_cast<Py_ssize_t>(tensors.size())));
      if (!list) throw python_error();
      for (size_t index = 0; index < tensors.size(); ++index) {
        PyObject* wrapped = THPVariable_Wrap(tensors[index]);
        if (wrapped == nullptr) throw python_error();
        PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(index), wrapped);
      }
      return list;
    };
    const auto first = as_list(inputs), second = as_list(outputs);
    python::call_method(listener_->get(), "received", first.ptr(), second.ptr());
  }

  const python::Reference listener_;  // none where only time is asked for
  const bool tells_nodes_;            // of each node
  Watches watches_;
  std::mutex mutex_;
  variable_list inputs_, outputs_;
  std::vector<int64_t> versions_of_inputs_, versions_of_outputs_;
  likeness::Gradients grad_inputs_, grad_outputs_;
  size_t seen_ = 0;
  bool is_waiting_ = false;
};

// Compiled autograd would trace hooks of Python's; ours have no place in its graphs. torch has had both signatures.
#define LEFT_OUT_OF_COMPILED_GRAPHS                                \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {} \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}

struct BeforeNode : torch::autograd::FunctionPreHook {
  explicit BeforeNode(std::shared_ptr<CallGradients> to) : record(std::move(to)) {}
  variable_list operator()(const variable_list& gradients) override {
    record->node_begins();
    return gradients;
  }
  LEFT_OUT_OF_COMPILED_GRAPHS
  std::shared_ptr<CallGradients> record;
};

struct AfterNode : torch::autograd::FunctionPostHook {
  AfterNode(std::shared_ptr<CallGradients> to, bool ends, Routes inputs, Routes outputs)
      : record(std::move(to)), is_timed(ends), routes(std::move(inputs)), arrivals(std::move(outputs)) {}
  variable_list operator()(const variable_list& grad_inputs, const variable_list& grad_outputs) override {
    if (is_timed) record->node_ends();
    record->node_ran(routes, arrivals, grad_inputs, grad_outputs);
    return grad_inputs;
  }
  LEFT_OUT_OF_COMPILED_GRAPHS
  std::shared_ptr<CallGradients> record;
  bool is_timed;
  Routes routes, arrivals;
};

struct Edges {
  Inputs inputs;
  uint64_t since;
};

using EdgesObject = python::Object<Edges>;

// Whether it is a view that gets its node when it is asked for.
inline bool has_no_node_yet(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta != nullptr && meta->has_bw_view() && !tensor.is_inference() && meta->get_attr_version() != tensor._version();
}

inline void note_node(const at::Tensor& tensor, Input& input) {
  input.node = tensor.grad_fn();
  if (input.node != nullptr)
    input.number = static_cast<uint32_t>(tensor.output_nr());
  else
    input.leaf = tensor.unsafeGetTensorImpl();
}

inline bool note(PyObject* values, Inputs& inputs) {
  bool wanted = false;
  python::each_tensor(values, [&](const at::Tensor& tensor) {
    Input input;
    if (tensor.requires_grad()) {
      wanted = true;
      if (has_no_node_yet(tensor))
        input.view = tensor;
      else
        note_node(tensor, input);
    }
    inputs.push_back(std::move(input));
    return true;
  });
  return wanted;
}

// edges_of_inputs(args, kwargs) -> Edges or None. Before the op runs: an in-place op gives its input a new node.
inline PyObject* of_inputs(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "edges_of_inputs(args, kwargs)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  Inputs inputs;
  const bool among_args = note(arguments[0], inputs);
  if (!(note(arguments[1], inputs) || among_args)) Py_RETURN_NONE;
  return EdgesObject::make({std::move(inputs), at::sequence_number::peek()});
  END_HANDLE_TH_ERRORS
}

// The nodes of one op and where their gradients go.
class Subgraph {
 public:
  Subgraph(const Inputs& inputs, uint64_t since, PyObject* result) : inputs_(inputs), since_(since) {
    python::each_tensor(result, [&](const at::Tensor& tensor) {
      const auto node = has_no_node_yet(tensor) ? NodePointer() : tensor.grad_fn();
      outputs_.emplace_back(node.get(), static_cast<size_t>(tensor.output_nr()));
      // not new: the result is an input itself, or a view that was there before
      if (node != nullptr && is_new(*node)) reach(node);
      return true;
    });
  }

  bool is_empty() const {
    return nodes_.empty();
  }

  size_t outputs() const {
    return outputs_.size();
  }

  void hook(const std::shared_ptr<CallGradients>& record, bool timed) {
    for (size_t found = 0; found < nodes_.size(); ++found) {
      const auto node = nodes_[found];
      Routes routes, arrivals;
      for (size_t index = 0; index < node->num_outputs(); ++index) {
        const auto& following = node->next_edge(index);
        if (!following.is_valid()) continue;
        auto position = position_of(following);
        if (position == inputs_.size()) position = position_of_cast(*following.function, *record);
        if (position < inputs_.size())
          routes.emplace_back(static_cast<uint32_t>(index), static_cast<uint32_t>(position));
        else if (nodes_.size() < largest_subgraph && is_new(*following.function))
          reach(following.function);
      }
      for (size_t slot = 0; slot < outputs_.size(); ++slot)
        if (outputs_[slot].first == node.get()) arrivals.emplace_back(static_cast<uint32_t>(outputs_[slot].second), static_cast<uint32_t>(slot));
      if (timed) node->add_pre_hook(std::make_unique<BeforeNode>(record));
      if (!timed && routes.empty() && arrivals.empty()) continue;
      ++record->expected;
      node->add_post_hook(std::make_unique<AfterNode>(record, timed, std::move(routes), std::move(arrivals)));
    }
  }

 private:
  bool is_new(const Node& node) const {
    return node.sequence_nr() >= since_ && node.sequence_nr() != leafs_number;
  }

  void reach(const NodePointer& node) {
    if (nodes_.size() < few) {
      for (const auto& known : nodes_)
        if (known == node) return;
    } else {
      if (known_.empty())
        for (const auto& known : nodes_) known_.insert(known.get());
      if (!known_.insert(node.get()).second) return;
    }
    nodes_.push_back(node);
  }

  size_t position_of(const torch::autograd::Edge& edge) const {
    const c10::TensorImpl* leaf = nullptr;
    if (edge.function->sequence_nr() == leafs_number && typeid(*edge.function) == typeid(torch::autograd::AccumulateGrad))
      leaf = static_cast<const torch::autograd::AccumulateGrad&>(*edge.function).variable.unsafeGetTensorImpl();
    size_t position = 0;
    for (; position < inputs_.size(); ++position) {
      const auto& input = inputs_[position];
      if (input.node != nullptr ? input.node == edge.function && input.number == edge.input_nr
                                : input.leaf != nullptr && input.leaf == leaf)
        break;
    }
    return position;
  }

  // Where this node casts a leaf to another dtype: the leaf's position.
  size_t position_of_cast(Node& node, CallGradients& record) const {
    if (node.num_outputs() != 1 || !node.next_edge(0).is_valid()) return inputs_.size();
    const auto& leaf = node.next_edge(0);
    if (leaf.function->sequence_nr() != leafs_number || node.name() != "ToCopyBackward0") return inputs_.size();
    const auto position = position_of(leaf);
    if (position < inputs_.size())
      record.casts.emplace_back(position, static_cast<const torch::autograd::AccumulateGrad&>(*leaf.function).variable.options());
    return position;
  }

  const Inputs& inputs_;
  const uint64_t since_;
  c10::SmallVector<std::pair<const Node*, size_t>, 4> outputs_;
  c10::SmallVector<NodePointer, 8> nodes_;
  std::unordered_set<const Node*> known_;  // of many
};

// Has what flows through the call that has just run recorded. False where there will be no backward pass.
inline bool watch(Inputs& inputs, uint64_t since, PyObject* result, python::Reference listener,
                  bool tells_nodes, Watches watches) {
  for (auto& input : inputs) {
    const at::Tensor view = std::move(input.view);
    if (view.defined() && !has_no_node_yet(view)) note_node(view, input);  // the op has asked for it
  }
  Subgraph subgraph(inputs, since, result);
  if (subgraph.is_empty()) return false;
  const bool timed = tells_nodes || !watches.empty();
  subgraph.hook(std::make_shared<CallGradients>(std::move(listener), tells_nodes, std::move(watches), inputs.size(),
                                         subgraph.outputs()),
                timed);
  return true;
}

// watch(result, listener or None, tells nodes, spans) -> False where there will be no backward pass
inline PyObject* watch_from_python(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "watch(result, listener, tells_nodes, spans)");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  Edges& edges = EdgesObject::of(self);
  Watches watches;
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(arguments[3]); ++index) {
    const auto& span = timer::SpanObject::of(PyTuple_GET_ITEM(arguments[3], index));
    watches.push_back({span.timer, span.call, span.clock});
  }
  auto listener = arguments[1] == Py_None ? nullptr : python::hold(arguments[1]);
  return PyBool_FromLong(watch(edges.inputs, edges.since, arguments[0], std::move(listener),
                               arguments[2] == Py_True, std::move(watches)));
  END_HANDLE_TH_ERRORS
}

inline bool add_to(PyObject* module) {
  static PyMethodDef methods[] = {
      {"watch", python::method(watch_from_python), METH_FASTCALL, "(result, listener, tells_nodes, spans) -> will gradients flow?"},
      {nullptr, nullptr, 0, nullptr},
  };
  return EdgesObject::add_to(module, "op_tools_native.Edges", methods);
}

}  // namespace gradients
