"""What a call was given: its tensors, all of its values, what the tables call them, and copies with other tensors.

The same kinds of arguments come again and again, mostly with the tensors side by side. Where those are is found once
for each row of types (`_Form`); arguments with tensors deeper inside are walked through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.device import host_copies
from op_tools.values import trees
from op_tools.values.tensors import TENSORS, dtype_of, tensors_in

Convert = Callable[[Tensor], Tensor]

_MIN_LONG_LIST = 9  # tensors
_MAX_FORMS = 10_000
_MAX_CACHED_NAMES = 32  # of one call: lists of numbers may have any length
# a list of these alone, such as a shape or an index, holds nothing that a run elsewhere would replace
_NUMBERS = frozenset((int, float, bool, complex, type(None), slice, type(...)))


class _Form:
    """Where the tensors are among arguments of certain types."""

    __slots__ = ("_gradient_names", "_names", "lists", "named", "named_lists", "names_others", "places")

    def __init__(self, kinds: Sequence[type], named: dict[str, type]) -> None:
        self.places = [place for place, kind in enumerate(kinds) if issubclass(kind, Tensor)]
        self.lists = [place for place, kind in enumerate(kinds) if _is_nested(kind)]
        self.named = [name for name, kind in named.items() if issubclass(kind, Tensor)]
        self.named_lists = [name for name, kind in named.items() if _is_nested(kind)]
        # a dtype, or what may be a device
        self.names_others = "device" in named or any(
            issubclass(kind, (torch.dtype, torch.device, str)) for kind in (*kinds, *named.values())
        )
        self._names: dict[tuple[str, str, int], list[str]] = {}
        self._gradient_names: dict[str, list[str]] = {}

    def names(self, op: str, role: str, count: int) -> list[str]:
        """What the leaves of such arguments are called, `count` of them without those that are given by name."""
        key = (op, role, count)
        known = self._names.get(key)
        if known is None:
            labels = [*numbered(role, count), *(f"{role} {name}" for name in self.named)]
            known = [f"{op} {label}" for label in labels]
            if count <= _MAX_CACHED_NAMES:
                self._names[key] = known
        return known

    def gradient_names(self, op: str, count: int) -> list[str]:
        """The names of the tensors' gradients, where there are no lists."""
        known = self._gradient_names.get(op)
        if known is None:
            names = self.names(op, "grad", count)
            known = self._gradient_names[op] = [*(names[place] for place in self.places), *names[count:]]
        return known


_forms: dict[tuple[Any, ...], _Form] = {}


def _form_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Form | None:
    """None where there may be tensors inside of lists: such arguments are walked through."""
    key: tuple[Any, ...] = tuple(map(type, args))
    if kwargs:
        key = (*key, *kwargs, *map(type, kwargs.values()))
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= _MAX_FORMS:
            _forms.clear()
        form = _forms[key] = _Form(key[: len(args)], {name: type(value) for name, value in kwargs.items()})
    for place in form.lists:
        if not _holds_numbers(args[place]):
            return None
    for name in form.named_lists:
        if not _holds_numbers(kwargs[name]):
            return None
    return form


def _is_nested(kind: type) -> bool:
    return issubclass(kind, (list, tuple, dict)) and not issubclass(kind, torch.Size)


def _holds_numbers(value: Any) -> bool:
    return _NUMBERS.issuperset(map(type, value)) and not isinstance(value, dict)


class Arguments:
    """What a call was given. The same tensor given twice is one tensor here, too."""

    __slots__ = ("_form", "_leaves", "args", "kwargs", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        form = self._form = _form_of(args, kwargs)
        self._leaves: list[Any] | None = None
        # in order; one given twice is there twice
        if form is None:
            self.tensors = tensors_in(args) + tensors_in(kwargs.values())
        else:
            self.tensors = [args[place] for place in form.places]
            if form.named:
                self.tensors += [kwargs[name] for name in form.named]

    @property
    def leaves(self) -> list[Any]:
        """Every positional value, and the tensors among those that were given by name."""
        found, form = self._leaves, self._form
        if found is None:
            if form is None:
                found = [value for _, value in trees.leaves(self.args)]
                found += trees.tensors(self.kwargs)
            else:
                found = self._positional(form)
                if form.named:
                    found += [self.kwargs[name] for name in form.named]
            self._leaves = found
        return found

    def _positional(self, form: _Form) -> list[Any]:
        if not form.lists:
            return [*self.args]
        found: list[Any] = []
        for place, value in enumerate(self.args):
            found += value if place in form.lists else (value,)
        return found

    @property
    def are_flat(self) -> bool:
        """Whether there are surely no tensors inside of lists."""
        return self._form is not None

    def long_lists(self) -> list[range]:
        """Where the leaves of lists with many tensors of one dtype are, as optimizers have them."""
        if self._form is not None:
            return []
        found, start = [], 0
        for value in self.args:
            count = sum(1 for _ in trees.leaves(value))
            if is_long_list(value):
                found.append(range(start, start + count))
            start += count
        return found

    def labels(self, role: str) -> list[str]:
        """What the leaves are called: `input[0]`, `input` where there is only one, `input weight` for one by name."""
        found = numbered(role, sum(1 for _ in trees.leaves(self.args)))
        found += [f"{role}{path}" for path, value in trees.leaves(self.kwargs) if isinstance(value, Tensor)]
        return found

    def names(self, op: str, role: str) -> list[str]:
        """The same behind the name of the op, as the tables have it."""
        form = self._form
        if form is None:
            return [f"{op} {label}" for label in self.labels(role)]
        return form.names(op, role, len(self.leaves) - len(form.named))

    def gradient_names(self, op: str) -> list[str]:
        """A gradient is called after its input: that of `input[1]` is `grad[1]`. One for each of the tensors."""
        form = self._form
        if form is not None and not form.lists:
            return form.gradient_names(op, len(self.args))
        return [name for name, value in zip(self.names(op, "grad"), self.leaves) if isinstance(value, Tensor)]

    def with_tensors(self, tensors: list[Tensor]) -> Arguments:
        """The same arguments with other tensors: one for each of `self.tensors`."""
        form, made = self._form, Arguments.__new__(Arguments)
        made._form, made._leaves, made.tensors = form, None, tensors
        if form is None:
            left = iter(tensors)
            made.args = trees.map_tensors(lambda _: next(left), self.args)
            made.kwargs = trees.map_tensors(lambda _: next(left), self.kwargs)
            return made
        args, left = [*self.args], iter(tensors)
        for place in form.places:
            args[place] = next(left)
        made.args = tuple(args)
        made.kwargs = {**self.kwargs, **dict(zip(form.named, left))} if form.named else self.kwargs
        return made

    def with_numbers(self, function: Callable[[float], float]) -> Arguments:
        """The same arguments with other Python numbers, where these are not whole."""

        def changed(value: Any) -> Any:
            if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
                return trees.rebuilt(value, [changed(part) for part in value])
            return function(value) if isinstance(value, float) else value

        return Arguments(changed(self.args), {name: changed(value) for name, value in self.kwargs.items()})

    def mapped(self, function: Convert) -> Arguments:
        """The same arguments with every distinct tensor replaced."""
        made = {id(tensor): tensor for tensor in self.tensors}
        made = {key: function(tensor) for key, tensor in made.items()}
        return self.with_tensors([made[id(tensor)] for tensor in self.tensors])

    def moved_tensors(
        self,
        dtypes: Mapping[torch.dtype, torch.dtype],
        change: Convert | None,
        device: str | None,
        graph: bool,
        changes_inputs: bool,
        copied: dict[int, Tensor],
        kept: frozenset[int] = frozenset(),
    ) -> list[Tensor]:
        """The tensors as another run is given them: cast, or changed, and on this device.

        `copied`: leaves of which the call is given copies. `kept`: tensors, by id, that are neither cast nor changed.
        """
        made: dict[int, Tensor] = {}
        for tensor in self.tensors:
            if id(tensor) in made:
                continue
            moved = tensor.detach()
            is_number = moved.is_floating_point() or moved.is_complex()
            if is_number and id(tensor) not in kept:
                if change is not None:
                    moved = change(moved)
                elif moved.dtype in dtypes:
                    moved = moved.to(dtypes[moved.dtype])
            if device is not None:
                moved = moved.to(device)
            if changes_inputs and (moved.layout is not torch.strided or moved.data_ptr() == tensor.data_ptr()):
                moved = moved.clone()
            if graph and is_number and tensor.requires_grad:
                moved.requires_grad_()
                if changes_inputs:
                    copied[id(tensor)] = moved
                    moved = moved.clone()
            made[id(tensor)] = moved
        return [made[id(tensor)] for tensor in self.tensors]

    def plain_numbers(self) -> frozenset[int]:
        """Tensors, by id, without dimensions that stand alone or in a list of nothing else: a count of steps, a scale.

        A parameter without dimensions stands among others, which it must have the dtype of.
        """
        found: set[int] = set()
        for value in (*self.args, *self.kwargs.values()):
            tensors = tensors_in((value,))
            if not any(tensor.dim() for tensor in tensors):
                found.update(map(id, tensors))
        return frozenset(found)

    def copied(self) -> Arguments:
        """On the host, as they are now."""
        return self.with_tensors(host_copies.copies_of(self.tensors))

    def copied_with(self, result: Any, copy: Callable[[list[Tensor]], list[Tensor]]) -> tuple[Arguments, Any]:
        """Copies of the arguments and of what the call returned, which may be one of its arguments."""
        given = self.tensors
        copies = copy(given + ([result] if isinstance(result, Tensor) else tensors_in((result,))))
        left = iter(copies[len(given) :])
        result = next(left) if isinstance(result, Tensor) else trees.map_tensors(lambda _: next(left), result)
        return self.with_tensors(copies[: len(given)]), result

    @property
    def may_name_others(self) -> bool:
        """Whether there may be dtypes and devices among them, which a run elsewhere must replace."""
        return self._form is None or self._form.names_others


def is_long_list(value: Any) -> bool:
    """Many tensors of one dtype, which are better looked at together."""
    if not isinstance(value, (list, tuple)) or len(value) < _MIN_LONG_LIST or not isinstance(value[0], Tensor):
        return False
    if not TENSORS.issuperset(map(type, value)) and not all(isinstance(part, Tensor) for part in value):
        return False
    return len(set(map(dtype_of, value))) == 1


def numbered(name: str, count: int) -> list[str]:
    """One name for each of several things; a single one needs no number."""
    return [name] if count == 1 else [f"{name}[{index}]" for index in range(count)]
