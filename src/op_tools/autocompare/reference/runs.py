"""The runs that a call is compared with: in higher precision, in the device's own dtype, and more for a closer look.

A run here disturbs nothing: gradients, autocast, random numbers and modes stay as they are. Warnings of a second run
help no user; `silence` keeps them away. How a call is run is decided in ways.py.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments, Convert
from op_tools.autocompare.judging import limits
from op_tools.autocompare.judging.limits import Precision
from op_tools.autocompare.judging.measures import dense, same_bits
from op_tools.autocompare.observed import CannotCompare, InputGradients, ObservedCall, Part
from op_tools.autocompare.reference import graph_thread, roots, shield, stand_ins
from op_tools.autocompare.reference.ways import (
    ROUNDED_ONCE,
    SINGLE,
    Dtypes,
    Function,
    Way,
    Ways,
    adapted,
    rounded_terms,
    stand_in,
    ways_with,
)
from op_tools.ops import autocast_policy, silent_writes
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees
from op_tools.values.tensors import tensors_in, versions_of


class References:
    """Makes the references of calls: on the CPU; or, `on_device`, on the same device in higher precision.

    The op's error in the device's own dtype is unknown then: `slack` widens the limits.
    """

    def __init__(self, cast_table: Callable[[str], Dtypes | None], on_device: bool = False, slack: float = 1.0) -> None:
        self.on_device = on_device
        self._find_ways = ways_with(cast_table, on_device)
        self._slack = slack

    def of(
        self,
        call: ObservedCall,
        grad_outputs: Sequence[Tensor | None] | None = None,
        with_graph: bool = False,
        first_look: bool = False,
    ) -> Reference:
        """CannotCompare where there is none."""
        device = None
        if self.on_device:  # some have no float64
            for tensor in call.given.tensors:
                if not tensor.is_cpu:
                    device = tensor.device
                    break
        chosen = None if call.chosen is None else call.dtype_of_autocast()
        is_tf32 = call.is_tf32 and chosen in (None, torch.float32)  # autocast to 16 bits leaves no room for it
        ways = self._find_ways(call.name, call.autocast, chosen, is_tf32, device)
        return Reference(call, ways, grad_outputs, self._slack, with_graph, first_look)


class Reference:
    """A call's runs elsewhere: `expected` in higher precision, `same` in the device's own dtype (None where there is
    none).

    For a `first_look` there is none: it is needed only for what does not pass then. `with_graph`: gradients are asked
    for later.
    """

    def __init__(
        self,
        observed: ObservedCall,
        ways: Ways,
        grad_outputs: Sequence[Tensor | None] | None = None,
        slack: float = 1.0,
        with_graph: bool = False,
        first_look: bool = False,
    ) -> None:
        self.name = observed.name
        self.ways = ways
        self.is_exact = _is_exact(observed, ways)
        self.observed = observed
        self.grad_outputs = grad_outputs
        self._has_graph = with_graph or grad_outputs is not None
        self._slack = slack
        self._is_first_look = first_look
        self._others: list[tuple[Rerun, InputGradients]] | None = None
        self._other_ways: list[tuple[Function | None, Way]] = []
        self.same: Rerun | None = None
        self.same_gradients: InputGradients = None
        self.expected: Rerun
        self.gradients: InputGradients
        only_own = self.is_exact and grad_outputs is None and not (first_look and with_graph)
        reason = "" if first_look and not (only_own or ways.on_device) else self._run_in_own_dtype()
        if only_own and self.same is not None:
            self.expected, self.gradients = self.same, self.same_gradients
        else:
            self._run_in_higher_precision(reason)

    @property
    def casts(self) -> Dtypes:
        """Which dtypes of the arguments were replaced by which."""
        if self.expected is self.same:
            return {}
        higher = self.ways.higher.dtypes
        floats = {tensor.dtype for tensor in self.observed.given.tensors if tensor.dtype in higher}
        return {dtype: higher[dtype] for dtype in floats}

    def _run_in_own_dtype(self) -> str:
        """Takes the first way that goes, and keeps the others for later; returns why the last one did not go."""
        reason, ways = "", self.ways.own
        for number, (function, way) in enumerate(ways):
            try:
                self.same, self.same_gradients = self.run_by(way, function)
                self._other_ways = ways[number + 1 :]
                return ""
            except Exception as error:  # noqa: BLE001  whatever the CPU cannot do
                reason = _one_line(error)
        return reason

    def _run_in_higher_precision(self, reason: str) -> None:
        try:
            self.expected, self.gradients = self.run_by(self.ways.higher)
        except Exception as error:  # noqa: BLE001  see above
            if self._run_instead(error):
                return
            if self.same is None and not self._run_in_single():
                raise CannotCompare(reason or _one_line(error)) from None
            if self.same is not None:
                self.expected, self.gradients = self.same, self.same_gradients

    def _run_instead(self, error: Exception) -> bool:
        """Another function that gives the same, where the op's own lacks a dtype. False where there is none."""
        for function in stand_ins.instead_of(self.name, self.observed.function, error):
            with contextlib.suppress(Exception):  # a call of another form
                self.expected, self.gradients = self.run_by(self.ways.higher, function)
                return True
        return False

    def _run_in_single(self) -> bool:
        """On a device that has no kernel for float64: float32 is higher than 16 bits. False where that does not go."""
        way = Way("float32", SINGLE, self.ways.higher.device)
        if self.ways.on_device and any(tensor.dtype in SINGLE for tensor in self.observed.given.tensors):
            with contextlib.suppress(Exception):  # whatever the device cannot do
                self.expected, self.gradients = self.run_by(way)
                return True
        return False

    def run_by(
        self, way: Way, function: Function | None = None, given: Arguments | None = None
    ) -> tuple[Rerun, InputGradients]:
        observed = self.observed
        function = stand_in(self.name) or function or observed.function
        with shield.random_numbers_kept() if self.ways.is_unknown else shield.NOTHING:
            again = run(function, given or observed.given, way, self._has_graph, observed.changed)
            return again, None if self.grad_outputs is None else again.gradients(self.grad_outputs)

    def run_changed(
        self, change: Convert, of_number: Callable[[float], float] | None = None
    ) -> tuple[Rerun, InputGradients]:
        """The call in higher precision, with something done to its tensors before, or also to its plain numbers."""
        given = None if of_number is None else self.observed.given.with_numbers(of_number)
        return self.run_by(self.ways.higher.then(change), given=given)

    def run_backward(self, grad_outputs: Sequence[Tensor | None]) -> bool:
        """The gradients of runs that were made with a graph. False where they cannot be had so."""
        try:
            self.gradients = self.expected.gradients(grad_outputs)
            if self.same is self.expected:
                self.same_gradients = self.gradients
            elif self.same is not None:
                self.same_gradients = self.same.gradients(grad_outputs)
        except Exception:  # noqa: BLE001  then they are run anew, and say why that fails
            return False
        self.grad_outputs = grad_outputs
        self._others = None  # which have no gradients
        return True

    def other_values(self, part: Part, dtype: torch.dtype) -> Iterator[Tensor]:
        """A value of this dtype as the CPU makes it in other ways that are just as right.

        Autocast leaves a choice, though none in 16 bits where the device's result is in float32; and a gradient that is
        to be differentiated again may come by another formula, with roundings between its parts (silu, mish).
        """
        if self._others is None:
            self._others = []
            if self.same is not None and self.grad_outputs is not None and not self.ways.on_device:
                with contextlib.suppress(Exception):  # not every formula can be differentiated
                    again = run(self.observed.function, self.observed.given, self.same.way, True, self.observed.changed)
                    with_graph = functools.partial(again.gradients, self.grad_outputs, create_graph=True)
                    self._others.append((again, graph_thread.run_there(with_graph)))
            for function, way in self._other_ways if self.ways.chosen is not None else ():
                with contextlib.suppress(Exception):  # the CPU may lack a kernel for it: one way less to be right
                    self._others.append(self.run_by(way, function))
        for again, gradients in self._others:
            value = part.of(again, gradients)
            if isinstance(value, Tensor):
                is_coarser = value.dtype in limits.IN_16_BITS and dtype is torch.float32
                if part.role == "gradient" or not is_coarser:
                    yield dense(value)

    @functools.cached_property
    def changed(self) -> set[int]:
        """The leaves among the arguments that the call is meant to change."""
        if not self.observed.changed:
            return set()
        arguments, before = self.expected.arguments, self.observed.given.leaves
        silently = silent_writes.silently_written(self.name, self.observed.function, arguments.args, arguments.kwargs)
        written = {id(tensor) for tensor in (*self.expected.written, *trees.tensors(silently))}
        # an unknown op may write without counting, and below autograd versions are not counted
        look = self.ways.is_unknown or not written
        return {
            index
            for index, value in enumerate(arguments.leaves)
            if isinstance(value, Tensor) and (id(value) in written or (look and self._differs(before[index], value)))
        }

    def _differs(self, before: Tensor, after: Tensor) -> bool:
        if before.is_floating_point() or before.is_complex():
            before = self.expected.way.convert(before.detach()).to(after.dtype)
        return not same_bits(before.detach(), after.detach())

    def precision(self, got: Tensor, same: Tensor | None, role: str) -> Precision:
        """That of a result or a gradient, or the lower one that autocast has computed it in."""
        ways, computed_in = self.ways, self.ways.chosen
        if same is not None:
            computed_in = self.observed.computed_in(same)
        elif _LOSS.search(self.name) and self.observed.given.tensors:
            # functions of others: of scores in 16 bits the logarithm may be, too, though the loss is float32
            computed_in = self.observed.given.tensors[0].dtype
        elif ways.on_device and self.observed.autocast is not None and Trait.MULTIPLIES in ways.traits:
            computed_in = self.observed.autocast  # autocast looks at the products inside
        if role == "gradient" and Trait.ROUGH in ways.traits and self.observed.given.tensors:
            computed_in = self.observed.given.tensors[0].dtype  # cuDNN keeps sums in the dtype of the data
        is_by_element = False
        if same is not None or (self._is_first_look and not ways.on_device):
            # sums over what was broadcast have the errors of their terms
            results = self.expected.results
            size = results[0].numel() if results and isinstance(results[0], Tensor) else 0
            is_by_element = bool(results) and got.numel() >= size
        is_relative = role != "gradient" and Trait.RELATIVE in ways.traits and "alpha" not in self.observed.given.kwargs
        facts = (is_by_element, is_relative, ways.is_tf32, ways.on_device, self._slack_of_roundings())
        if ways.chosen is not None and role == "output" and got.dtype is torch.float32:
            terms = rounded_terms(self.observed)  # that the CPU's sum of them happens to be right says nothing
            if terms is not None:
                return limits.precision_of_mean(self.observed.given.tensors[0].dtype, terms, got.numel())
        precision = limits.precision_for(self.name, got.dtype, computed_in, *facts)
        has_products = Trait.LOGITS in ways.traits and Trait.MATRIX in ways.traits
        if has_products and self.observed.is_tf32 and precision.name != "tf32":
            return limits.with_tf32_inside(precision)  # attention in 16 bits has products in float32
        return precision

    def _slack_of_roundings(self) -> float:
        """The CPU's run in float32 is rounded once: where it lacks kernels for the dtype, it is unknown how often an op
        that is made of others rounds."""
        is_rounded_once = self.same is not None and self.same.way.name == ROUNDED_ONCE
        if is_rounded_once and not self.ways.traits & (Trait.POINTWISE | Trait.EXACT):
            return max(self._slack, limits.DEVICE_ALONE_SLACK)
        return self._slack


_LOSS = re.compile(r"(_loss|cross_entropy)(_with_logits)?$")


def _is_exact(call: ObservedCall, ways: Ways) -> bool:
    """Whether there is no rounding, by the op and by what it is given."""
    base = normalized(call.name).base
    if base in ("abs", "absolute", "sgn"):  # of complex numbers: a root, a quotient
        return ways.is_exact and not any(tensor.is_complex() for tensor in call.given.tensors)
    # an embedding that does not renormalize its rows copies them
    return ways.is_exact or (not ways.on_device and not call.changed and base == "embedding")


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


# ---- one run ---------------------------------------------------------------------------------------------------------


class Rerun:
    """A call that has run again: its result, and its arguments as they are now."""

    __slots__ = ("_leaves", "_nodes", "arguments", "result", "results", "way", "written")

    def __init__(
        self,
        way: Way,
        arguments: Arguments,
        result: Any,
        leaves: list[Tensor | None],
        written: list[Tensor],
        nodes: Any = None,
    ) -> None:
        self.way = way
        self.arguments = arguments
        self.result = result
        self.results = [result] if isinstance(result, Tensor) else [value for _, value in trees.leaves(result)]
        self.written = written  # the arguments that the call has worked in place on
        self._leaves = leaves  # one for each tensor among the arguments; None where no gradient is wanted
        self._nodes = nodes  # of the leaves, held

    def gradients(self, grad_outputs: Sequence[Tensor | None], create_graph: bool = False) -> list[Tensor | None]:
        """The gradient of every input; that of a tensor given twice is at its first place. `create_graph`: as they are
        computed where they are differentiated again."""
        outputs, given, way = [], [], self.way
        results = self.results if isinstance(self.result, Tensor) else tensors_in(self.results)
        for output, gradient in zip(results, grad_outputs):
            if gradient is not None and output.requires_grad:
                arrived = gradient.detach() if gradient.requires_grad else gradient
                if way.change is not None:
                    arrived = way.change(arrived)
                elif arrived.dtype in way.dtypes:
                    arrived = arrived.to(way.dtypes[arrived.dtype])
                outputs.append(output)
                given.append(arrived if arrived.dtype is output.dtype else arrived.to(output.dtype))
        wanted = {id(leaf): leaf for leaf in self._leaves if leaf is not None}
        if not outputs or not wanted:
            return [None] * len(self._leaves)
        with _undisturbed(way.autocast, graph=False), shield.NOTHING if way.around is None else way.around():
            found = roots.gradients(outputs, given, tuple(wanted.values()), create_graph)
        by_leaf = dict(zip(wanted, found))
        return [by_leaf.pop(id(leaf), None) for leaf in self._leaves]


def run(function: Function, given: Arguments, way: Way, graph: bool = False, changes_inputs: bool = False) -> Rerun:
    """Runs a call again. `graph`: for gradients, too. `changes_inputs`: it works in place on some of its arguments."""
    work = functools.partial(_run, function, given, way, graph, changes_inputs)
    return graph_thread.run_there(work, () if way.device == "cpu" else given.tensors) if graph else work()


def _run(function: Function, given: Arguments, way: Way, graph: bool, changes_inputs: bool) -> Rerun:
    needs_shield = _needs_shield(way.autocast, graph)
    kept = given.plain_numbers() if way.keeps_numbers else frozenset()
    leaves: list[Tensor | None]
    if graph and changes_inputs:  # it is handed copies that belong to the graph
        copied: dict[int, Tensor] = {}
        with _undisturbed(None, True):
            lent = given.moved_tensors(way.dtypes, way.change, way.device, True, True, copied, kept)
        leaves = [copied.get(id(tensor)) for tensor in given.tensors]
    else:
        lent = given.moved_tensors(way.dtypes, way.change, way.device, graph, changes_inputs, {}, kept)
        leaves = [tensor if tensor.requires_grad else None for tensor in lent]
    arguments = given.with_tensors(lent)
    args, kwargs = arguments.args, arguments.kwargs
    if given.may_name_others:
        args = adapted(args, way, None)
        kwargs = kwargs and {key: adapted(value, way, key) for key, value in kwargs.items()}
    versions = versions_of(lent)
    undisturbed = shield.shielded(way.autocast, graph) if needs_shield else torch.set_grad_enabled(graph)
    around = shield.NOTHING if way.around is None else way.around()
    with undisturbed, shield.default_device(way.device), around:
        result = function(*args, **kwargs)
        nodes = roots.nodes_of([leaf for leaf in leaves if leaf is not None]) if graph else None
    now = versions_of(lent)
    written = [] if now == versions else [one for one, new, old in zip(lent, now, versions) if new != old]
    if written and not changes_inputs:
        raise RuntimeError("it changes its arguments on the CPU, which it does not on the device")
    if args is not arguments.args or kwargs is not arguments.kwargs:
        arguments = Arguments(args, kwargs)
    return Rerun(way, arguments, result, leaves, written, nodes)


# ---- leaving everything as it was ------------------------------------------------------------------------------------


def _undisturbed(autocast: torch.dtype | None, graph: bool) -> contextlib.AbstractContextManager[Any]:
    if _needs_shield(autocast, graph):
        return shield.shielded(autocast, graph)
    return shield.NOTHING if torch.is_grad_enabled() is graph else torch.set_grad_enabled(graph)


def _needs_shield(autocast: torch.dtype | None, graph: bool) -> bool:
    """Whether there is anything to keep away but the mode of gradients."""
    return (
        autocast is not None
        or (autocast_policy.is_any_enabled() and autocast_policy.active_dtype("cpu") is not None)
        or (graph and (shield.top_hooks(True) is not None or shield.is_below_autograd()))
        or torch.is_anomaly_enabled()
    )


def silence() -> None:
    """From now on warnings that are raised from this file are not shown. Said twice, it is one entry in the list."""
    warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
