"""A kernel's call that can be run several times, in other ways, before its result is handed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ditorch.sim.faults.call import KernelCall

Results = list[Any]  # what a kernel returns or writes, one after the other

# They write into these arguments, and their schema does not say so.
_SILENTLY_WRITTEN = {"aten::native_batch_norm": ("running_mean", "running_var")}


class Work:
    """The call, with its arguments left as they are: what it writes, it writes into copies."""

    def __init__(self, call: KernelCall) -> None:
        self.given = call.arguments()
        self._call = call
        schema = call.op._schema
        self._written = [one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write]
        self._copied = (*self._written, *_SILENTLY_WRITTEN.get(schema.name, ()))

    @property
    def is_plain(self) -> bool:
        """Whether all tensors are dense."""
        return all(leaf.layout is torch.strided for leaf in pytree.tree_leaves(self.given) if isinstance(leaf, Tensor))

    def run(self, changed: dict[str, Any]) -> Results:
        """The kernel's results with other values for some of its arguments."""
        copies = {name: _copied(changed.get(name, self.given[name])) for name in self._copied}
        result = self._call.run_with({**changed, **copies})
        return pytree.tree_leaves([copies[name] for name in self._written] if self._written else result)

    def converted(self, dtypes: Mapping[torch.dtype, torch.dtype]) -> dict[str, Any]:
        """The arguments in other dtypes."""

        def convert(value: Any) -> Any:
            if isinstance(value, torch.dtype):
                return dtypes.get(value, value)
            return value.to(dtypes[value.dtype]) if isinstance(value, Tensor) and value.dtype in dtypes else value

        return {name: pytree.tree_map(convert, value) for name, value in self.given.items()}

    def handed_over(self, made: Results) -> Any:
        """As the kernel hands its results over: in its dtypes, and where it writes. What was not made is its own."""
        call = self._call
        if self._written:
            targets = pytree.tree_leaves([self.given[name] for name in self._written])
            call.made_no_difference = all(_are_equal(*pair) for pair in zip(targets, made))
            for target, value in zip(targets, made):
                if isinstance(target, Tensor):
                    _write(target, value)
            returned = [self.given[name] for name in self._written][: len(call.op._schema.returns)]
            return returned[0] if len(returned) == 1 else tuple(returned) or None
        healthy, form = pytree.tree_flatten(call.run_with({name: _copied(self.given[name]) for name in self._copied}))
        made = [*made, *healthy[len(made) :]]
        rounded = [_like(own, value) for own, value in zip(healthy, made)]
        call.made_no_difference = all(_are_equal(*pair) for pair in zip(healthy, rounded))
        return pytree.tree_unflatten(rounded, form)


def _copied(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, value)


def _write(target: Tensor, value: Tensor) -> None:
    if target.shape != value.shape:
        target.resize_(value.shape)
    target.copy_(value)


def _like(own: Any, value: Any) -> Any:
    """With the dtype and the layout in memory that the kernel's own result has."""
    if not isinstance(own, Tensor) or not isinstance(value, Tensor):
        return own
    if own.shape != value.shape:
        raise RuntimeError(f"a kernel of another make gives {tuple(value.shape)} instead of {tuple(own.shape)}")
    return torch.empty_like(own).copy_(value)


def _are_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return True
    return one.shape == other.shape and bool(torch.eq(one, other.to(one.dtype)).logical_or(one.isnan()).all())
