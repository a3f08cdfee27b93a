"""A call from before it runs until after: what nobody could tell afterwards."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare import lists, views
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.seen import Seen
from op_tools.core.call import OpCall
from op_tools.ops import autocast_policy, catalogue, silent_writes
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values.tensors import versions_of


class Underway:
    """A call from before it runs until after."""

    __slots__ = ("_is_fast", "_name", "_policy", "_versions", "before", "given", "live", "works_in_place")

    def __init__(self, call: OpCall) -> None:
        self.live = Arguments(call.args, call.kwargs)
        self.given: Arguments | None = None  # copies that the reference is given
        self.before: Arguments | None = None  # copies on the device, where those are elsewhere and the device looks
        self.works_in_place = _works_in_place(call)
        self._name = call.name
        # whether it has changed something need not be found out where it is known
        self._versions = [] if self.works_in_place else versions_of(self.live.tensors)
        self._policy = _policy(call.name, self.live.tensors)
        self._is_fast = _is_fast(call.name, self.live.tensors)

    def joined(self) -> lists.Joined | None:
        """The arguments of an optimizer's op on lists, as one tensor for each list; None for other calls."""
        if not catalogue.has(self._name, Trait.POINTWISE | Trait.EXACT) or torch.is_grad_enabled():
            return None
        with torch.no_grad():
            return lists.joined(self.live)

    def is_view(self, call: OpCall) -> bool:
        """After the call: true where it has only looked at its input's memory in another way, and rightly so."""
        if not catalogue.has(self._name, Trait.VIEW) or self.works_in_place or self._has_changed():
            return False
        return views.hands_out_memory(self.live, call.result) and views.looks_alike(call.func, self.live, call.result)

    def seen(self, call: OpCall, given: Arguments, device: str) -> Seen:
        """After the call. `device`: where its tensors are, if those given are copies."""
        # there are ops that write without counting, known ones and perhaps unknown ones
        changed = self.works_in_place or catalogue.of(self._name) is None or self._has_changed()
        seen = Seen(call.name, call.func, given, None, call.result, *self._policy, self._is_fast, changed, device)
        seen.before = given if self.before is None else self.before
        return seen

    def _has_changed(self) -> bool:
        now = versions_of(self.live.tensors)
        return None in now or now != self._versions  # None where nobody counts


def _works_in_place(call: OpCall) -> bool:
    """True where the name or an argument says so. Where the version of a tensor tells later, it is too late once."""
    kwargs = call.kwargs
    return (
        _is_called_in_place(call.name)
        or (bool(kwargs) and ("out" in kwargs or bool(kwargs.get("inplace"))))
        or bool(silent_writes.silently_written(call.name, call.func, call.args, kwargs))
    )


@functools.lru_cache(maxsize=10_000)
def _is_called_in_place(name: str) -> bool:
    short = normalized(name).form or name
    return short == "__setitem__" or (short.endswith("_") and not short.endswith("__"))


def _policy(name: str, tensors: Iterable[Tensor]) -> tuple[torch.dtype | None, torch.dtype | None]:
    """The dtype of autocast where it is on, and the one that it chooses for this op."""
    if not autocast_policy.is_any_enabled():
        return None, None
    for tensor in tensors:
        if not tensor.is_cpu:
            active = autocast_policy.active_dtype(tensor.device.type)
            if active is not None:
                return active, _chosen(name, active)
            break
    return None, None


@functools.lru_cache(maxsize=10_000)
def _chosen(name: str, active: torch.dtype) -> torch.dtype | None:
    return autocast_policy.dtype_by_policy(name, active)


def _is_fast(name: str, tensors: Iterable[Tensor]) -> bool:
    """True where the device may take tf32 for this call."""
    if torch.version.cuda is None or not catalogue.has(name, catalogue.ON_MATRIX_UNITS):
        return False
    if not any(tensor.dtype is torch.float32 and tensor.is_cuda for tensor in tensors):
        return False
    backends = [torch.backends.cuda.matmul] if catalogue.has(name, Trait.MATRIX) else []
    if catalogue.has(name, Trait.CONVOLUTION):
        cudnn: Any = torch.backends.cudnn
        backends += [cudnn, *(getattr(cudnn, part) for part in ("conv", "rnn") if hasattr(cudnn, part))]
    return any(_allows_tf32(backend) for backend in backends)


def _allows_tf32(backend: Any) -> bool:
    precision = getattr(backend, "fp32_precision", "none")  # torch 2.9
    if precision in ("ieee", "tf32"):
        return bool(precision == "tf32")
    try:
        return bool(getattr(backend, "allow_tf32", False))
    except RuntimeError:  # set in the new way, and for some ops only
        return True
