"""One call as it was observed on the device, with everything that a comparison needs, and the walk over its values.

The walk is the same for whoever compares: the full verdict (judging/judge.py) and the cheap check on the device
(prefilter/first_look.py).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional, Protocol

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments, is_long_list, numbered
from op_tools.autocompare.foreach_lists import Joined, apart
from op_tools.autocompare.shared_memory import NONE, Regions
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees
from op_tools.values.tensors import tensors_in

InputGradients = Optional[Sequence[Optional[Tensor]]]  # of a run; one for each tensor among the arguments


class AnyRun(Protocol):
    """A call that has run again."""

    arguments: Arguments  # as they are after it
    results: list[Any]


class AnyReference(Protocol):
    """What a call is compared with: see reference/runs.py."""

    @property
    def expected(self) -> AnyRun: ...
    @property
    def same(self) -> AnyRun | None: ...
    @property
    def gradients(self) -> InputGradients: ...
    @property
    def same_gradients(self) -> InputGradients: ...
    @property
    def changed(self) -> set[int]: ...


class CannotCompare(Exception):  # noqa: N818  it never reaches a user as an error
    """No reference could be had."""


class Part(NamedTuple):
    """Which part of a call a value is: an `input`, an `output`, a `gradient`; or several of them, end to end."""

    role: str
    places: tuple[int, ...]

    def of(self, run: AnyRun, gradients: InputGradients) -> Any:
        """This part of a run."""
        if self.role == "gradient":
            return None if gradients is None else gradients[self.places[0]]
        values = run.results if self.role == "output" else run.arguments.leaves
        if self.places[-1] >= len(values):
            return None
        if len(self.places) > 1:
            return end_to_end([values[place] for place in self.places])
        return values[self.places[0]]


class Value(NamedTuple):
    """One value of a call beside the reference's.

    An input that the call must leave alone has `before`, what it was. A list of tensors is one value: `members` are
    the single ones. A call that works in place returns an argument: then `alike` are the first and the last of the
    values that are the same.
    """

    name: str
    got: Any
    expected: Any
    same: Any  # in the run in the device's own dtype, if there is one
    part: Part
    is_unchanged: bool = False
    before: Any = None
    members: Sequence[Value] = ()
    alike: tuple[Value, Value] | None = None


@dataclass(eq=False)
class ObservedCall:
    """One call as it was observed on the device."""

    name: str
    function: Callable[..., Any]
    given: Arguments  # before the call
    kept: Arguments | None  # the arguments after the call; None where they are not looked at
    result: Any
    autocast: torch.dtype | None = None  # the dtype of autocast where it was on
    chosen: torch.dtype | None = None  # the dtype that autocast should have chosen for this op
    is_tf32: bool = False  # the device may have cut float32 down to tf32
    changed: bool = False  # the call may have worked in place on some of its arguments
    regions: Regions = field(default_factory=dict)  # where arguments lie that it may have changed, and that overlap
    device: torch.device | str | None = None  # where its tensors were, if these are copies
    given_on_device: Arguments | None = None  # `given` where `kept` is, if the reference is given copies elsewhere

    # ---- the walk ----------------------------------------------------------------------------------------------------

    def values(self, reference: AnyReference, joins_unchanged: bool = False) -> list[Value]:
        """Inputs, where they may have changed, and outputs.

        A long list of tensors is one value; of tensors that the call must leave alone only with `joins_unchanged`.
        """
        known: dict[int, Value] = {}  # by the id of a tensor: what the call has changed
        found = [] if self.kept is None else self._inputs(self.kept, reference, known, joins_unchanged)
        result, expected = self.result, reference.expected.results
        got = [result] if isinstance(result, Tensor) else [value for _, value in trees.leaves(result)]
        if not got and isinstance(self.given, Joined):
            return found  # what it returns is what it was given
        if len(got) != len(expected):
            raise CannotCompare(f"{len(got)} results on the device, {len(expected)} as reference")
        names = output_names(self.name, len(got))
        own = reference.same
        same = own.results if own is not None and len(own.results) == len(got) else (None,) * len(got)
        singles = []
        for place, (name, value) in enumerate(zip(names, got)):
            alike = known.get(id(value)) if known else None
            singles.append(
                Value(
                    name, value, expected[place], same[place], Part("output", (place,)),
                    alike=None if alike is None else (alike, alike),
                )
            )  # fmt: skip
        if isinstance(result, Tensor) or not is_long_list(result):
            return found + singles
        first, last = singles[0].alike, singles[-1].alike
        return [*found, _joined(singles, None if first is None or last is None else (first[0], last[0]))]

    def _inputs(
        self, kept: Arguments, reference: AnyReference, known: dict[int, Value], joins_unchanged: bool
    ) -> list[Value]:
        names = self.given.names(self.name, "input")
        before, after = (self.given_on_device or self.given).leaves, kept.leaves
        expected, own = reference.expected.arguments.leaves, reference.same
        same = (None,) * len(names) if own is None else own.arguments.leaves
        changed = reference.changed if self.changed else ()
        twins = self.twins(changed)
        singles = []
        for place, name in enumerate(names):
            right = twins.get(place, place)
            is_unchanged = right not in changed
            part = Part("input", (right,))
            value = Value(name, after[place], expected[right], same[right], part, is_unchanged, before[place])
            singles.append(value)
            if not is_unchanged:
                known[id(value.got)] = value
        if self.given.are_flat:
            return singles
        lists: list[Value] = []
        together: set[int] = set()
        for listed in self.given.long_lists():
            members = singles[listed.start : listed.stop]
            unchanged = sum(member.is_unchanged for member in members)
            if unchanged == 0 or (unchanged == len(members) and joins_unchanged):
                lists.append(_joined(members))
                together.update(listed)
        if not lists:
            return singles
        return [*lists, *(value for place, value in enumerate(singles) if place not in together)]

    def gradient_values(self, reference: AnyReference, gradients: Gradients) -> list[Value]:
        """The gradients that flowed out of the call's inputs."""
        names = self.given.gradient_names(self.name)
        expected, same = reference.gradients or (), reference.same_gradients
        found = []
        for place, (name, got, right) in enumerate(zip(names, gradients.inputs, expected)):
            if got is not None and right is not None:
                own = None if same is None else same[place]
                found.append(Value(name, got, right, own, Part("gradient", (place,))))
        return found

    # ---- tensors that lie in the same memory -------------------------------------------------------------------------

    @property
    def shared(self) -> Regions:
        """Memory of the arguments that may overlap; unknown for lists that were concatenated into one tensor."""
        return NONE if isinstance(self.given, Joined) else self.regions

    def twins(self, changed: Collection[int]) -> dict[int, int]:
        """The places of other tensors that lie exactly where one lies that was changed, and its place."""
        shared = self.shared
        if not shared:
            return {}
        first = {region: place for place, region in shared.items() if place in changed}
        return {place: first[one] for place, one in shared.items() if place not in changed and one in first}

    # ---- the same call in another form -------------------------------------------------------------------------------

    def bytes(self, are_copies: bool = True) -> int:
        """The memory that it takes. Parameters are there in any case, where they are not copied."""
        result = self.result
        given = [one for one in self.given.tensors if are_copies or not _is_parameter(one)]
        return bytes_taken(given + ([result] if isinstance(result, Tensor) else tensors_in((result,))))

    def depends_on_layout(self) -> bool:
        """True where a copy of the arguments that lies differently in memory means something else."""
        return normalized(self.name).base == "as_strided"

    def on_host(self) -> ObservedCall:
        """The same call with its tensors copied to the host."""
        kept, result = self.kept, self.result
        if kept is None or isinstance(kept, Joined):
            kept, result = None if kept is None else kept.copied(), host_copies.host_copy(result)
        else:
            kept, result = kept.copied_with(result, host_copies.copies_of)
        return ObservedCall(self.name, self.function, self.given.copied(), kept, result, *self.facts())

    def facts(self) -> tuple[torch.dtype | None, torch.dtype | None, bool, bool, Regions, torch.device | str | None]:
        """What is known of it beside its values."""
        return self.autocast, self.chosen, self.is_tf32, self.changed, self.regions, self.device

    def flat(self) -> ObservedCall | None:
        """A call on lists with each of them as one tensor, as they are now; None where that does not go."""
        given = self.given
        assert isinstance(given, Joined)
        with torch.no_grad():
            results = given.returns(self.result)
            after = given.now() if self.changed else None
        if results is None:
            return None
        return ObservedCall(self.name, self.function, given, after, results, *self.facts(), self.given_on_device)

    def with_lists(self, live: Arguments) -> ObservedCall:
        """A call on lists that cannot be taken as one tensor each, with the lists as they were, and as they are."""
        given = self.given
        assert isinstance(given, Joined)
        after = live if self.changed else None
        return ObservedCall(self.name, self.function, given.apart(), after, self.result, *self.facts())

    def whole(self) -> ObservedCall:
        """The same call, for which `flat` was made, with the lists as they were."""
        given, kept = self.given, self.kept
        assert isinstance(given, Joined)
        before = given.apart()
        after = kept.apart() if isinstance(kept, Joined) else None
        result = self.result
        if isinstance(result, list) and not result:
            result = None if after is None else list(after.args[0])
        elif isinstance(result, list):
            # a number may stand before the first list
            like = next(value for value in before.args if isinstance(value, (list, tuple)))
            result = apart(result[0], like)
        return ObservedCall(self.name, self.function, before, after, result, *self.facts())

    def for_backward(self) -> ObservedCall:
        """What must be kept of a call until its gradients come."""
        result = self.result
        # in the result can be seen what was drawn, and which factors were chosen, unless the program changes it
        if catalogue.has(self.name, Trait.RANDOM | Trait.CHOICE):
            on_host = self.given_on_device is not None
            result = host_copies.host_copy(result) if on_host else trees.map_tensors(_apart, result)
        elif isinstance(result, Tensor):
            result = hollow(result.shape, result.dtype, "cpu", result.requires_grad)
        else:
            result = trees.map_tensors(hollow_like, result)
        facts = (self.autocast, self.chosen, self.is_tf32, self.changed, NONE, self.device)
        return ObservedCall(self.name, self.function, self.given, None, result, *facts)

    def dtype_of_autocast(self) -> torch.dtype | None:
        """The dtype that autocast ran the call in; None where it left the call alone, or it is unknown."""
        chosen = self.chosen
        gave = {tensor.dtype for tensor in trees.tensors(self.result) if tensor.is_floating_point()}
        return chosen if gave == {chosen} else None

    def computed_in(self, same: Tensor) -> torch.dtype | None:
        """The dtype of a value of the CPU's; None where it is no number. Of float32, the 16 bits that autocast chose
        where some of the call's results have them: that the CPU's roundings inside cancel out may be chance."""
        if not (same.is_floating_point() or same.is_complex()):
            return None
        gave = {tensor.dtype for tensor in trees.tensors(self.result) if tensor.is_floating_point()}
        is_mixed = self.chosen in (torch.float16, torch.bfloat16) and self.chosen in gave and len(gave) > 1
        return self.chosen if is_mixed and same.dtype is torch.float32 else same.dtype


def copied(gradients: Gradients, copy: Callable[[list[Tensor]], list[Tensor]]) -> Gradients:
    """The same gradients, copied by `copy`."""
    inputs, outputs = gradients.inputs, gradients.outputs
    copies = iter(copy([one for one in (*inputs, *outputs) if one is not None]))
    both = [None if one is None else next(copies) for one in (*inputs, *outputs)]
    return Gradients(both[: len(inputs)], both[len(inputs) :])


def _joined(values: list[Value], alike: tuple[Value, Value] | None = None) -> Value:
    """A list of tensors as one value, end to end."""
    first = values[0]
    name = range_of([value.name for value in values])
    got = end_to_end([value.got for value in values])
    part = Part(first.part.role, tuple(value.part.places[0] for value in values))
    if first.is_unchanged:
        before = end_to_end([value.before for value in values])
        return Value(name, got, first.expected, None, part, True, before, values)
    expected, same = end_to_end([value.expected for value in values]), end_to_end([value.same for value in values])
    return Value(name, got, expected, same, part, members=values, alike=alike)


def bytes_taken(tensors: Sequence[Tensor]) -> int:
    """The memory that they lie in, each piece once."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]  # others do not tell
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def end_to_end(tensors: Sequence[Any]) -> Any:
    """Several tensors as one; None where they are none."""
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        return None
    with torch.no_grad():
        return torch._utils._flatten_dense_tensors(tuple(tensors))


@functools.lru_cache(maxsize=1000)
def output_names(op: str, count: int) -> list[str]:
    """What the results of a call are called."""
    return numbered(f"{op} output", count)


def range_of(names: Sequence[str]) -> str:
    """`input[0..51]` for many names."""
    return f"{names[0][:-1]}..{names[-1].rpartition('[')[2]}"


def _is_parameter(tensor: Tensor) -> bool:
    """A view is none; to ask one whether it is a leaf may give it a node."""
    return tensor.requires_grad and not tensor._is_view() and tensor.is_leaf


def _apart(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_cpu else tensor.detach().clone().requires_grad_(tensor.requires_grad)


def hollow_like(tensor: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """A tensor like this one that takes no memory: what the gradient of a view needs to know of its input."""
    return hollow(tensor.shape, tensor.dtype, device, tensor.requires_grad)


@functools.lru_cache(maxsize=1000)
def hollow(shape: torch.Size, dtype: torch.dtype, device: torch.device | str, requires_grad: bool) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # it is kept for calls in other modes
        return torch.zeros((), dtype=dtype, device=device).expand(shape).requires_grad_(requires_grad)
