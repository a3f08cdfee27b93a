"""One call of a broken kernel, as a kind of fault sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class _Undisturbed(threading.local):
    depth = 0


_undisturbed = _Undisturbed()


def is_undisturbed() -> bool:
    """Whether this thread is doing a fault's own arithmetic, for which every kernel is healthy."""
    return _undisturbed.depth > 0


class KernelCall:
    """The call, the way to run it as it should be, and what a fault needs to make it wrong."""

    def __init__(
        self,
        op: torch._ops.OpOverload,
        device_type: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        *,
        value: Any,
        share: Any,
        seed: int,
        memory: dict[Any, Tensor],
    ) -> None:
        self.op = op
        self.device_type = device_type
        self.args = args
        self.kwargs = kwargs
        self._run = run
        self.value = value
        self._share = share
        self.made_no_difference: bool | None = None  # None: not known
        self._memory = memory
        self._generator = torch.Generator().manual_seed(seed)  # its own: the program's numbers stay as they are

    def run(self) -> Any:
        """The kernel as it should be."""
        return self._run(*self.args, **self.kwargs)

    def run_with(self, changed: dict[str, Any]) -> Any:
        """The kernel with other values for some of its arguments, by the names in its schema."""
        names = [argument.name for argument in self.op._schema.arguments]
        args = [changed.get(name, value) for name, value in zip(names, self.args)]
        kwargs = {**self.kwargs, **{name: value for name, value in changed.items() if name not in names[: len(args)]}}
        return self._run(*args, **kwargs)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """For the fault's own arithmetic: kernels called in here are healthy, below autograd and without autocast.

        Autocast is passed by, not switched off: the end of a region would empty its cache.
        """
        _undisturbed.depth += 1
        try:
            with torch._C._DisableAutocast(), torch._C._AutoDispatchBelowAutograd():
                yield
        finally:
            _undisturbed.depth -= 1

    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as the schema has them, defaults filled in."""
        values = {}
        for position, argument in enumerate(self.op._schema.arguments):
            if position < len(self.args):
                values[argument.name] = self.args[position]
            else:
                values[argument.name] = self.kwargs.get(argument.name, argument.default_value)
        return values

    def results(self, result: Any) -> list[Tensor]:
        """The tensors the kernel wrote: what it returns, or for one that returns nothing, what it changes."""
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if tensors or self.op._schema.returns:
            return tensors
        given = self.arguments()
        written = [given[a.name] for a in self.op._schema.arguments if a.alias_info and a.alias_info.is_write]
        return [leaf for leaf in pytree.tree_leaves(written) if isinstance(leaf, Tensor)]

    def overwrite(self, tensor: Tensor, wrong: Tensor) -> None:
        """Puts wrong values into a result, all of them or the share that the fault asks for."""
        if self._share is not None:
            wrong = torch.where(self._chosen(tensor), wrong, tensor)
        self.made_no_difference = bool(self.made_no_difference) and torch.equal(wrong, tensor)
        tensor.copy_(wrong)

    def _chosen(self, tensor: Tensor) -> Tensor:
        if self._share == "one":
            chosen = torch.zeros(tensor.numel(), dtype=torch.bool)
            chosen[int(torch.randint(tensor.numel(), (), generator=self._generator))] = True
            return chosen.view(tensor.shape).to(tensor.device)
        return torch.lt(self.random_like(tensor), self._share)

    def random_like(self, tensor: Tensor) -> Tensor:
        """Uniform numbers between 0 and 1 in the tensor's shape."""
        dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        return torch.rand(tensor.shape, generator=self._generator, dtype=dtype).to(tensor.device)

    def remember(self, tensor: Tensor) -> None:
        self._memory[tensor.shape, tensor.dtype] = tensor

    def remembered(self, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
        return self._memory.get((shape, dtype))

    def fail_on_device(self) -> None:
        """A device-side assert, on a real device a real one: final, and heard of when the host waits for the device."""
        from ditorch import sim

        if self.device_type == sim.started_as():
            torch.ops.ditorch_sim.fail()
        else:
            torch._assert_async(torch.zeros(1, device=self.device_type))

    def spend_device_time(self, seconds: float) -> None:
        """Occupies the device's current stream; where a device offers no way to, the host waits instead."""
        sleep = getattr(torch.get_device_module(self.device_type), "_sleep", None)
        if sleep is None:
            time.sleep(seconds)
        elif self.device_type == "cuda":
            sleep(round(seconds * _cuda_cycles_per_second()))
        else:
            sleep(round(seconds * 1e9))


_measured_cycles: list[float] = []


def _cuda_cycles_per_second() -> float:
    """How fast torch.cuda._sleep counts, measured once."""
    if not _measured_cycles:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(10_000_000)  # wakes the device up
        begin.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        end.synchronize()
        _measured_cycles.append(10_000_000 / (begin.elapsed_time(end) / 1e3))
    return _measured_cycles[0]
