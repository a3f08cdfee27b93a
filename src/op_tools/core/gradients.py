"""The gradients at the edge of one op call: what flows in at its outputs, and its share of each input's gradient.

An op may be many autograd nodes (`F.linear` on a 3-D input ends in a view). The nodes that it made have sequence
numbers from the time it ran; whatever they lead to beyond that is an input. Hooks on the nodes at that border see
exactly this op's contribution, and the graph stays as it was.

Autocast casts a weight once for all ops of its region. What flows into that cast is an op's own share; what comes out
of it is the sum of all: so the cast of a leaf counts as the leaf, and the share is cast as autograd would.

A view whose memory was written to has no node until it is asked for one, which then takes the next number: backward
would run in another order if we asked before the program does. The C++ helper can tell whether a view has one; here all
that may have none are asked after the op.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Callable, Optional, Protocol

import torch
from torch import Tensor

from op_tools.core.modes import with_modes_aside
from op_tools.values import trees

MAX_SUBGRAPH_NODES = 20_000  # of one op; an LSTM that the device unrolls has some hundreds
_sequence_number: Callable[[], int] | None = getattr(torch.autograd, "_get_sequence_nr", None)


class Gradients:
    """What flowed through one op call in one backward pass. None where nothing flowed."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: list[Tensor | None], outputs: list[Tensor | None]) -> None:
        self.inputs = inputs  # one for each tensor among the arguments, in order
        self.outputs = outputs  # one for each tensor among the results, in order


class GradientListener(Protocol):
    """Who hears of an op's backward pass. `begins` and `ends` enclose the work of each of its nodes."""

    def begins(self) -> None: ...

    def ends(self) -> None: ...

    def received(self, inputs: list[Tensor | None], outputs: list[Tensor | None]) -> None: ...


# for each tensor among the arguments: the node and the number of its output that made it (None for a leaf), the tensor;
# of a view that may have no node before the op, _LATER and its version
_Inputs = list[tuple[Optional[Any], int, Tensor]]
_LATER = object()


class Edges:
    """Where the gradient of each input of a call goes."""

    __slots__ = ("_inputs", "_since")

    def __init__(self, inputs: _Inputs) -> None:
        self._inputs = inputs
        self._since = sequence_number()

    def watch(self, result: Any, listener: Any, tells_nodes: bool, spans: tuple[Any, ...]) -> bool:
        """Lets `listener` hear of the backward pass of the call that has just run. False where there will be none.

        `tells_nodes`: of each node, too. `spans` are for the C++ helper, which times nodes by itself.
        """
        later = {id(tensor): version for node, version, tensor in self._inputs if node is _LATER}
        if later:
            made = [tensor for tensor in trees.tensors(result) if tensor.requires_grad]
            if all(later.get(id(tensor)) == tensor._version for tensor in made):  # nothing, or what it was given
                return False
            self._inputs = [_asked(*input) if input[0] is _LATER else input for input in self._inputs]
        return _watch(self._inputs, self._since, result, listener, tells_nodes)


def edges_in_python(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Edges | None:
    """Where each input's gradient goes. Asked for before the op runs: an in-place op gives its input a new node."""
    inputs: _Inputs = []
    wanted = _note_edges(args, inputs)
    if kwargs:
        wanted = _note_edges(kwargs.values(), inputs) or wanted
    return Edges(inputs) if wanted else None


# this, or what the C++ helper has, and the class of its spans
edges_of_inputs: Callable[[tuple[Any, ...], dict[str, Any]], Any] = edges_in_python
native_span: type = type(None)


def choose_way(helper: Any) -> None:
    """With the C++ helper, or without (None)."""
    global edges_of_inputs, native_span
    edges_of_inputs = edges_in_python if helper is None else helper.edges_of_inputs
    native_span = type(None) if helper is None else helper.Span


def _note_edges(values: Iterable[Any], edges: _Inputs) -> bool:
    wanted = False
    for value in values:
        if isinstance(value, Tensor):
            if value.requires_grad:
                wanted = True
                version = value._version if value._is_view() and not value.is_inference() else 0
                edges.append((_LATER, version, value) if version else _edge_of(value))
            else:
                edges.append((None, 0, value))
        elif isinstance(value, (list, tuple)):
            wanted = _note_edges(value, edges) or wanted
        elif isinstance(value, dict):
            wanted = _note_edges(value.values(), edges) or wanted
    return wanted


def _edge_of(tensor: Tensor) -> tuple[Any, int, Tensor]:
    node = tensor.grad_fn
    return node, 0 if node is None else tensor.output_nr, tensor


def _asked(_: Any, version: int, view: Tensor) -> tuple[Any, int, Tensor]:
    """After the op. Where it has written to the memory of the view, that has lost its node, or has another."""
    return _edge_of(view) if view._version == version else (None, 0, view)


def sequence_number() -> int:
    """Nodes that are made from now on have this sequence number or a higher one."""
    return _sequence_number() if _sequence_number is not None else -1


def _watch(edges: _Inputs, since: int, result: Any, listener: GradientListener, timed: bool) -> bool:
    if isinstance(result, Tensor):
        node = result.grad_fn
        if node is None:
            return False
        routes = _routes_of_one_node(node, edges)
        if routes is not None:
            if timed:
                node.register_prehook(partial(_one_node_begins, listener))
            ran = partial(_one_node_ran, listener, routes, len(edges), result.output_nr)
            node.register_hook(partial(with_modes_aside, ran))
            return True
    return _watch_subgraph(edges, since, result, listener, timed)


def _routes_of_one_node(node: Any, edges: _Inputs) -> list[tuple[int, int]] | None:
    """(index among the node's gradients, position among the inputs), where the op is this one node; else None."""
    routes = []
    for index, (following, number) in enumerate(node.next_functions):
        if following is None:
            continue
        leaf = getattr(following, "variable", None)
        for position, (known, known_number, tensor) in enumerate(edges):
            if known is node:
                return None  # the result is an input itself
            if (known is following and known_number == number) if known is not None else tensor is leaf:
                routes.append((index, position))
                break
        else:
            return None
    return routes


def _one_node_begins(listener: GradientListener, gradients: Any) -> None:
    listener.begins()


def _one_node_ran(
    listener: GradientListener,
    routes: list[tuple[int, int]],
    inputs: int,
    number: int,
    grad_inputs: tuple[Tensor | None, ...],
    grad_outputs: tuple[Tensor | None, ...],
) -> None:
    listener.ends()
    flowing: list[Tensor | None] = [None] * inputs
    for index, position in routes:
        gradient = grad_inputs[index]
        so_far = flowing[position]
        # x * x: the same input twice
        flowing[position] = gradient if so_far is None or gradient is None else so_far + gradient
    listener.received(flowing, [grad_outputs[number] if number < len(grad_outputs) else None])


def _watch_subgraph(edges: _Inputs, since: int, result: Any, listener: GradientListener, timed: bool) -> bool:
    outputs: list[tuple[Any, int]] = []
    nodes: list[Any] = []
    known: set[Any] = set()
    results = [result] if isinstance(result, Tensor) else list(trees.tensors(result))
    for tensor in results:
        node = tensor.grad_fn
        outputs.append((node, tensor.output_nr))
        if node is not None and node not in known:
            known.add(node)
            nodes.append(node)
    if not nodes:
        return False
    inputs: dict[tuple[Any, int], int] = {}
    leaves: dict[int, int] = {}
    for slot, (node, number, tensor) in enumerate(edges):
        if node is not None:
            inputs.setdefault((node, number), slot)
        elif tensor.requires_grad:
            leaves.setdefault(id(tensor), slot)
    # the result is an input itself, or a view that was there before: the op made no node
    nodes = [node for node in nodes if _is_new(node, since, inputs)]
    if not nodes:
        return False

    record = _CallGradients(listener, len(edges), len(outputs))
    found = 0
    while found < len(nodes):
        node = nodes[found]
        found += 1
        routes: list[tuple[int, int]] = []  # (index among the node's grad_inputs, position among the op's inputs)
        for index, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            position: int | None = inputs.get((following, number))
            if position is None and leaves:
                position = leaves.get(id(getattr(following, "variable", None)))
                if position is None and (leaf := _leaf_that_is_cast(following)) is not None:
                    position = leaves.get(id(leaf))
                    if position is not None:
                        record.casts[position] = (leaf.device, leaf.dtype)
            if position is not None:
                routes.append((index, position))
            elif following not in known and len(nodes) < MAX_SUBGRAPH_NODES and _is_new(following, since, inputs):
                known.add(following)
                nodes.append(following)
        arrivals = [(number, slot) for slot, (owner, number) in enumerate(outputs) if owner is node]
        if timed:
            node.register_prehook(record.before_node)
        if routes or arrivals or timed:
            record.expected += 1
            node.register_hook(record.after_node(routes, arrivals))
    return True


def _leaf_that_is_cast(node: Any) -> Tensor | None:
    """The leaf that this node casts to another dtype; None for other nodes."""
    following = node.next_functions
    if len(following) != 1 or following[0][0] is None or node.name() != "ToCopyBackward0":
        return None
    return getattr(following[0][0], "variable", None)


def _is_new(node: Any, since: int, inputs: dict[tuple[Any, int], int]) -> bool:
    if since < 0:  # this torch does not tell sequence numbers: stop at the inputs only
        return not any(node is input_node for input_node, _ in inputs) and not hasattr(node, "variable")
    number = node._sequence_nr()
    return bool(since <= number < 2**63)  # a leaf's node has the highest number there is


class _CallGradients:
    """Gathers what the hooks of one op see, and hands it over when all of them have run or the pass is over."""

    __slots__ = ("_inputs", "_listener", "_outputs", "_seen", "_sizes", "_waiting", "casts", "expected")

    def __init__(self, listener: GradientListener, inputs: int, outputs: int) -> None:
        self._listener = listener
        self._sizes = (inputs, outputs)
        self._inputs: list[_Kept] = [None] * inputs
        self._outputs: list[_Kept] = [None] * outputs
        self.expected = 0
        self.casts: dict[int, tuple[torch.device, torch.dtype]] = {}  # inputs that were cast, and what they are
        self._seen = 0
        self._waiting = False

    def before_node(self, gradients: Any) -> None:
        self._listener.begins()

    def after_node(
        self, routes: list[tuple[int, int]], arrivals: list[tuple[int, int]]
    ) -> Callable[[tuple[Tensor | None, ...], tuple[Tensor | None, ...]], None]:
        def ran(grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]) -> None:
            self._listener.ends()
            for index, position in routes:
                if index < len(grad_inputs):
                    self._add(position, grad_inputs[index])
            for number, slot in arrivals:
                if number < len(grad_outputs):
                    self._outputs[slot] = _kept(grad_outputs[number])
            self._seen += 1
            if self._seen == self.expected:
                self._hand_over()
            elif not self._waiting:
                # parts of an op that are not needed for this pass never run
                self._waiting = True
                torch.autograd.Variable._execution_engine.queue_callback(self._pass_is_over)

        return partial(with_modes_aside, ran)

    def _add(self, position: int, gradient: Tensor | None) -> None:
        if gradient is None:
            return
        so_far = self._inputs[position]
        self._inputs[position] = _kept(gradient if so_far is None else so_far[0] + gradient.detach())

    def _pass_is_over(self) -> None:
        self._waiting = False
        if self._seen:
            with_modes_aside(self._hand_over)

    def _hand_over(self) -> None:
        inputs, outputs = [_given(kept) for kept in self._inputs], [_given(kept) for kept in self._outputs]
        self._inputs, self._outputs, self._seen = [None] * self._sizes[0], [None] * self._sizes[1], 0
        for position, (device, dtype) in self.casts.items():
            gradient = inputs[position]
            if gradient is not None:
                inputs[position] = gradient.to(device, dtype)
        self._listener.received(inputs, outputs)


_Kept = Optional[tuple[Tensor, int]]


def _kept(gradient: Tensor | None) -> _Kept:
    """Until the op's other nodes have run. Autograd takes over a gradient that has no other reference, and copies it
    otherwise: so another tensor with the same memory is held."""
    return None if gradient is None else (gradient.detach(), 0 if gradient.is_inference() else gradient._version)


def _given(kept: _Kept) -> Tensor | None:
    """What was changed since it flowed, as by a hook on a parameter's gradient, is not what flowed."""
    if kept is None:
        return None
    gradient, version = kept
    return gradient if gradient.is_inference() or gradient._version == version else None
