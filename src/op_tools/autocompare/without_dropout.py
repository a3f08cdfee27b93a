"""Calls with dropout inside of them, attention and recurrent layers: which numbers they dropped cannot be seen.

So the device runs such a call once more, with a graph of its own, which is made in the thread of graphs; that is what
is compared, forward and backward. Where kernels of their own draw its masks, these are seen (drawn_masks.py), and the
reference drops the same. Where fused ones do, it drops nothing: attention is asked to drop one number in 10^30, and
takes the same kernels then. The random numbers that are drawn for that are given back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare import drawn_masks
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.checkpointed import CheckpointedCall
from op_tools.autocompare.judging import random_ops
from op_tools.autocompare.reference import graph_thread, roots, shield
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.modes import with_modes_aside
from op_tools.ops import autocast_policy
from op_tools.ops.autocast_policy import Autocast
from op_tools.values.tensors import tensors_in

_RATE_ALMOST_NEVER = 1e-30


class SecondRun:
    """The call with known dropout, or none, which has run again. `kept`: what a strategy keeps of it until gradients
    flow."""

    __slots__ = ("_leaves", "_nodes", "_outputs", "_rate", "call", "checkpointed", "kept")

    def __init__(self, call: OpCall) -> None:
        leaves: dict[int, Tensor] = {}

        def as_leaf(tensor: Tensor) -> Tensor:
            leaves[id(tensor)] = tensor.detach().requires_grad_(tensor.requires_grad)
            return leaves[id(tensor)]

        given = Arguments(call.args, call.kwargs).mapped(as_leaf)
        self._rate = random_ops.rate_of(call.name, call.args, call.kwargs)
        self.call = call.with_arguments(*random_ops.with_rate(call.name, given.args, given.kwargs, 0.0))
        self._leaves = given.tensors
        self.checkpointed: CheckpointedCall | None = None
        self.kept: Any = None

    def run(self, graph: bool, takes_masks: bool) -> bool:
        """Runs it on the device, for gradients, too, if asked for. True where it has dropped what masks say, which the
        call's function drops from now on; False where it has dropped nothing."""
        call = self.call
        devices = [tensor.device for tensor in self._leaves]  # the CPU's where it is the device
        device = next((device for device in devices if device.type != "cpu"), devices[0])
        module = torch.get_device_module(device) if hasattr(torch, "get_device_module") else None
        module = module if hasattr(module, "get_rng_state") else None
        taken = drawn_masks.Taken()
        if takes_masks and module is not None:
            call.result = self._run(self._rate, graph, module, device, taken)
        if taken.is_all:
            as_drawn = functools.partial(random_ops.with_rate, call.name, rate=self._rate)
            call.func = drawn_masks.WithMasks(call.func, as_drawn, taken.masks)
        elif random_ops.is_attention(call.name) and module is not None:
            call.result = self._run(_RATE_ALMOST_NEVER, graph, module, device)
        else:
            call.result = self._run(0.0, graph, None, device)
        self._outputs = tensors_in((call.result,))
        return taken.is_all

    def _run(
        self, rate: float, graph: bool, module: Any, device: torch.device, taken: drawn_masks.Taken | None = None
    ) -> Any:
        """`module`: whose random numbers it draws, which are given back."""
        call = self.call
        args, kwargs = random_ops.with_rate(call.name, call.args, call.kwargs, rate)

        def run() -> Any:
            with (
                shield.shielded(None, graph),
                _as_autocast(call.autocast),
                _numbers_given_back(module, device),
                shield.NOTHING if taken is None else taken,
            ):
                return call.func(*args, **kwargs)

        if not graph:
            return run()
        wanted = [leaf for leaf in self._leaves if leaf.requires_grad]
        result, self._nodes = graph_thread.run_there(lambda: (run(), roots.nodes_of(wanted)), self._leaves)
        return result

    def gradients(self, arrived: Sequence[Tensor | None]) -> Gradients:
        """What flows out of it where these gradients arrive."""
        pairs = [(one, gradient) for one, gradient in zip(self._outputs, arrived) if gradient is not None]
        pairs = [(one, gradient.detach()) for one, gradient in pairs if one.requires_grad]
        wanted = {id(leaf): leaf for leaf in self._leaves if leaf.requires_grad}
        outputs, given = zip(*pairs) if pairs else ((), ())
        found: Sequence[Tensor | None] = (None,) * len(wanted)
        if outputs and wanted:
            found = with_modes_aside(_gradients_of, outputs, tuple(wanted.values()), given)
        by_leaf = dict(zip(wanted, found))
        self._outputs = []
        return Gradients([by_leaf.pop(id(leaf), None) for leaf in self._leaves], list(arrived))


def _gradients_of(outputs: Any, leaves: Any, arrived: Any) -> Sequence[Tensor | None]:
    with shield.shielded(None, graph=False):
        return roots.gradients(outputs, arrived, leaves)


def _as_autocast(found: Autocast | None) -> contextlib.AbstractContextManager[None]:
    """That of the program: each thread has its own. What it makes of our leaves is not kept for the program."""
    if found is None:
        return shield.NOTHING
    return autocast_policy.autocast(found.device_type, dtype=found.dtype, cache_enabled=False)


@contextlib.contextmanager
def _numbers_given_back(module: Any, device: torch.device) -> Iterator[None]:
    """The device's generator goes on where it was."""
    if module is None:
        yield
        return
    state = module.get_rng_state(device)
    try:
        yield
    finally:
        module.set_rng_state(state, device)
