"""Runs one call on the device, or says what kept it from running and whose fault that is."""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from ditorch_conformance.ops.moving import moved
from ditorch_conformance.ops.samples import Call
from ditorch_conformance.ops.stream import Stream
from ditorch_conformance.results import HARNESS, REDIRECT, SKIPPED, UNSUPPORTED
from op_tools.values import trees

_FALLING_BACK = re.compile(r"fall(s|ing)?[ -]?back|run on (the )?CPU", re.IGNORECASE)
_MAX_REASON = 1000
_SEED = 7


class Finding(NamedTuple):
    """What one check of one call came to. `raising`: the kernel that raised; `info`: the kind of exception."""

    check: str
    status: str
    reason: str = ""
    raising: str = ""
    info: str = ""
    where: str = ""


class NotRun(Exception):  # noqa: N818 - it is what happened, and not an error of ours
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.reason)
        self.finding = finding


@dataclass
class Outcome:
    """A call that has run."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    gradients: list[Tensor | None] = field(default_factory=list)  # one for each tensor among the arguments
    arrived: list[Tensor | None] = field(default_factory=list)  # one for each tensor among the results
    warned: str = ""  # by a device that goes to the CPU and says so


class Device:
    """Runs calls on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def run(self, call: Call, check: str, with_gradients: bool = False) -> Outcome:
        """NotRun where it raises."""
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcome = _run(call, self.device, with_gradients)
            said = (str(one.message) for one in caught)
            outcome.warned = next((text for text in said if _FALLING_BACK.search(text)), "")
            return outcome
        except Exception as error:  # noqa: BLE001 - whatever the device raises is what is told
            self._check_alive()
            raise NotRun(self._finding(call, check, error, with_gradients)) from None

    def observed(self, call: Call, with_gradients: bool, stream: Stream) -> Outcome:
        """The same with a note of every kernel; whatever it raises is raised."""
        return _run(call, self.device, with_gradients, stream)

    def _finding(self, call: Call, check: str, error: Exception, with_gradients: bool) -> Finding:
        on_host = _error_of(lambda: _run(call, torch.device("cpu"), with_gradients))
        if on_host is not None:
            return Finding(check, SKIPPED, f"fails on the CPU, too: {words(on_host)}")
        stream = Stream()
        _error_of(lambda: _run(call, self.device, with_gradients, stream))
        self._check_alive()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename.partition('site-packages/')[2] or frame.filename.rpartition('/')[2]}:{frame.name}"
        return Finding(check, _whose(error), words(error), stream.raising, type(error).__name__, where)

    def _check_alive(self) -> None:
        """A device that has failed for good fails every later case: the process ends, which costs only this one."""
        try:
            float(torch.ones(1).to(self.device).cpu())
        except Exception as error:  # noqa: BLE001 - each vendor has errors of its own
            raise SystemExit(f"the device no longer works: {error}") from None


def _run(call: Call, device: torch.device, with_gradients: bool, stream: Stream | None = None) -> Outcome:
    """`stream` notes the kernels of the call and of its gradients, and nothing of their preparation."""
    args, kwargs = moved(call, device)
    torch.manual_seed(_SEED)
    with torch.set_grad_enabled(with_gradients), stream or contextlib.nullcontext():
        outcome = Outcome(args, kwargs, call.function(*args, **kwargs))
    if with_gradients:
        _run_backward(outcome, stream)
    synchronize(device)
    return outcome


def _run_backward(outcome: Outcome, stream: Stream | None) -> None:
    given = [*trees.tensors(outcome.args), *trees.tensors(outcome.kwargs)]
    results = [*trees.tensors(outcome.result)]
    outputs = [one for one in results if one.requires_grad]
    wanted = {id(one): one for one in given if one.requires_grad}
    if not outputs or not wanted:
        return
    arriving = [_random_like(one, number) for number, one in enumerate(outputs)]
    with stream or contextlib.nullcontext():
        found = torch.autograd.grad(outputs, list(wanted.values()), arriving, allow_unused=True)
    by_input = dict(zip(wanted, found))
    outcome.gradients = [by_input.pop(id(one), None) for one in given]
    left = iter(arriving)
    outcome.arrived = [next(left) if one.requires_grad else None for one in results]


def _random_like(tensor: Tensor, number: int) -> Tensor:
    """Made on the CPU: the device may have no random numbers."""
    generator = torch.Generator().manual_seed(number)
    dtype = torch.complex64 if tensor.is_complex() else torch.float32
    made = torch.randn(tensor.shape, generator=generator, dtype=dtype).to(tensor.dtype)
    return made.to(tensor.device)


def gradient_of(call: Call, outcome: Outcome) -> Call:
    """The call whose results are the gradients of this one, which has run; what arrives is its last argument."""
    function = call.function

    def gradients(*args: Any, **kwargs: Any) -> list[Tensor | None]:
        given, arriving = args[:-1], args[-1]
        with torch.enable_grad():
            result = function(*given, **kwargs)
            outputs = [one for one in trees.tensors(result) if one.requires_grad]
            wanted = [one for one in (*trees.tensors(given), *trees.tensors(kwargs)) if one.requires_grad]
            return list(torch.autograd.grad(outputs, wanted, arriving, create_graph=True, allow_unused=True))

    arriving = [one.detach().cpu().requires_grad_() for one in outcome.arrived if one is not None]
    # no op that anybody has described: gradients are sums of products of whatever the op computes
    made = Call(f"gradient of {call.name}", gradients, (*call.args, arriving), call.kwargs, has_gradient=True)
    made.stays_on_host = call.stays_on_host
    return made


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def _error_of(run: Callable[[], Any]) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
    except Exception as error:  # noqa: BLE001 - it is the answer
        return error
    return None


def _whose(error: Exception) -> str:
    """Who is to blame for what a device raised and the CPU did not."""
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return HARNESS
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    is_ours = type(error).__module__.startswith("ditorch.") or "/ditorch/redirect/" in raised_in
    return REDIRECT if is_ours else UNSUPPORTED


def words(error: Exception) -> str:
    """The exception without torch's pages on dispatch keys."""
    text = str(error).partition(" This could be because")[0]
    return f"{type(error).__name__}: {' '.join(text.split())}"[:_MAX_REASON]
