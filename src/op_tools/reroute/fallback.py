"""OpFallback: runs chosen ops on the CPU and brings the results back to the device.

    +-----------------------+------------------+--------------------------------------+---------------------------+
    |          op           | calls on the CPU |               because                |           first           |
    +-----------------------+------------------+--------------------------------------+---------------------------+
    | torch.linalg.cholesky |        12        | NotImplementedError: Could not run … | model.py:41 whiten: x = … |
    +-----------------------+------------------+--------------------------------------+---------------------------+

The gradients of such an op are computed on the CPU, too. Random ops draw from the CPU's generator; where they are given
a generator of the device, the CPU's numbers follow from that one's state. Ops that compute nothing stay on the device
(ops/catalogue.py lists them): a view must be a view of the device's tensor, and a copy to another device is what it
says. What the CPU does not have in half precision is computed in float32 there; what it does not have at all stays on
the device, with a message.
"""

from __future__ import annotations

import re
from typing import Any, Callable

import torch
from torch.autograd import forward_ad

from op_tools import settings
from op_tools.core.call import OpCall
from op_tools.core.modes import dispatch_modes, unseen_by_modes
from op_tools.core.tool import Tool
from op_tools.core.where import Where
from op_tools.device import failure
from op_tools.ops import catalogue
from op_tools.ops.cast_tables import DEFAULT_CASTS
from op_tools.ops.catalogue import Trait
from op_tools.output import messages, tables
from op_tools.output.results import Results
from op_tools.reroute.cast_call import cast_call
from op_tools.reroute.cpu_call import CpuCall, DeviceCall
from op_tools.values import trees
from op_tools.values.tensors import version_of

Proceed = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

# besides NotImplementedError: how backends say that they lack an op, or a dtype of it
_MISSING = re.compile(
    "not (?:currently |yet )?(?:implemented|supported)|unsupported(?! operation:)|does(?:n't| not) support"
)


class OpFallback(Tool[None, None]):
    """Runs ops on the CPU. `auto`: only those that the device does not have (OP_FALLBACK_AUTO)."""

    hook = "OpFallbackHook"
    prefix = "OP_FALLBACK"
    feature = "fallback"
    changes = True
    runs_again = True

    def __init__(self, *, auto: bool | None = None, **common: Any) -> None:
        super().__init__(**common)
        self._auto_argument = auto
        self._auto = False
        # what was found missing on either side, by op and dtypes; for the device, with what it said
        self._not_on_device: dict[Any, str] = {}
        self._not_on_cpu: set[Any] = set()
        self._fallen: dict[str, _Fallen] = {}

    def started(self) -> None:
        self._auto = settings.argument("auto", self._auto_argument, settings.FALLBACK_AUTO)
        self._not_on_device, self._not_on_cpu, self._fallen = {}, set(), {}
        self.selection.leave_alone("OpFallback", _reason_to_stay)

    def collected(self) -> Results:
        """The ops that ran on the CPU, the most frequent first."""
        ranked = sorted(self._fallen.items(), key=lambda entry: -entry[1].calls)
        rows = [(name, fallen.calls, fallen.because, fallen.where.line()) for name, fallen in ranked]
        return Results("OpFallback", ("op", "calls", "because", "where"), rows, sum(row[1] for row in rows))

    def stopped(self) -> None:
        if self._fallen and self.verbose >= 1:
            rows = [tuple(map(str, row.values())) for row in self.results]
            messages.say(f"\n{tables.table(('op', 'calls on the CPU', 'because', 'first'), rows)}\n")

    def run(self, call: OpCall, proceed: Proceed, args: Args, kwargs: Kwargs) -> Any:
        if not self._auto:
            return self._on_cpu(call, proceed, args, kwargs, "", None)
        key = _key(call, args, kwargs)
        because = self._not_on_device.get(key)
        if because is not None:
            return self._on_cpu(call, proceed, args, kwargs, because, None)
        before = _versions(args, kwargs)
        try:
            return proceed(*args, **kwargs)
        except RuntimeError as error:
            # An op that is missing is refused before it does anything. One that is made of several ops may have got
            # half-way: what it wrote by then has counted up versions, and then it must not be run once more.
            if not is_missing(error) or before is None or _versions(args, kwargs) != before:
                raise
            because = self._not_on_device[key] = messages.in_short(error)
            return self._on_cpu(call, proceed, args, kwargs, because, error)

    def _on_cpu(
        self, call: OpCall, proceed: Proceed, args: Args, kwargs: Kwargs, because: str, device_error: Exception | None
    ) -> Any:
        cpu_call = _apart(self._prepared, call, args, kwargs)
        if cpu_call is not None:
            inputs = _input_rows(call.name, args, kwargs, cpu_call) if self.verbose >= 2 else []
            result, missing = _attempt(cpu_call, cpu_call.run, proceed)
            if missing is not None:
                result, missing = self._in_float32(call, cpu_call, proceed, missing)
            if missing is None:
                self._note(call, because)
                copied_back = _apart(cpu_call.finish, result)
                if self.verbose >= 2:
                    _show(call, inputs, copied_back, result)
                return copied_back
            self._not_on_cpu.add(_key(call, args, kwargs))
            text = f"{call.name} stays on the device, it does not run on the CPU: {messages.in_short(missing)}"
            messages.complain_once("not on CPU", call.name, text=text)
        if device_error is not None:
            raise device_error
        return proceed(*args, **kwargs)

    def _prepared(self, call: OpCall, args: Args, kwargs: Kwargs) -> CpuCall | None:
        """The call with its arguments on the CPU; None where it is to run as it is."""
        if self._not_on_cpu and _key(call, args, kwargs) in self._not_on_cpu:
            return None
        if forward_ad._current_level >= 0:
            messages.say_once("forward", text="OpFallback leaves ops alone while forward-mode gradients are computed")
            return None
        try:
            arguments = DeviceCall(call.name, call.func, args, kwargs)
            device = arguments.result_device()
            return None if device is None else CpuCall(arguments, device)
        except Exception as error:  # noqa: BLE001  the op itself must not be lost
            if not failure.is_noticed(error):
                text = f"OpFallback could not bring {call.name} to the CPU: {messages.in_short(error)}"
                messages.complain_once("fallback", call.name, text=text)
            return None

    def _in_float32(
        self, call: OpCall, cpu_call: CpuCall, proceed: Proceed, missing: Exception
    ) -> tuple[Any, Exception | None]:
        """Once more, without half precision."""
        cast = _apart(cast_call, call.name, cpu_call.args, cpu_call.kwargs, DEFAULT_CASTS, False)
        if cast is None:
            return None, missing
        result, missing_again = _attempt(cpu_call, cast.run, proceed)
        if missing_again is None:
            result = _apart(cast.finish, result, call.func, cast.new_kind())
        return result, missing_again

    def _note(self, call: OpCall, because: str) -> None:
        fallen = self._fallen.get(call.name)
        if fallen is None:
            fallen = self._fallen[call.name] = _Fallen(call.where, because)
            if because and self.verbose >= 1:
                messages.say_once("missing", call.name, text=f"{call.name} runs on the CPU: {because}")
        fallen.calls += 1


class _Fallen:
    """What the summary says about one op."""

    __slots__ = ("because", "calls", "where")

    def __init__(self, where: Where, because: str) -> None:
        self.calls = 0
        self.where = where
        self.because = because


def is_missing(error: Exception) -> bool:
    """Whether a device says that it does not have an op, or not for this dtype."""
    if isinstance(error, NotImplementedError):
        return True
    return isinstance(error, RuntimeError) and _MISSING.search(str(error)) is not None


def _attempt(cpu_call: CpuCall, run: Callable[[Proceed], Any], proceed: Proceed) -> tuple[Any, Exception | None]:
    """The result; or the error, where the CPU does not have the op and nothing has been done yet."""
    try:
        return run(proceed), None
    except Exception as error:
        # a third party's kernel for the device finds many words for that
        if not cpu_call.unchanged() or not (is_missing(error) or not cpu_call.is_of_torch):
            raise
        return None, error


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What we do ourselves is no op of the user's."""
    if dispatch_modes():
        return unseen_by_modes(function, *arguments)
    with torch._C.DisableTorchFunction():
        return function(*arguments)


def _versions(args: Args, kwargs: Kwargs) -> list[int | None] | None:
    """How often each tensor was written to; None where some do not count it."""
    versions = [version_of(tensor) for tensor in trees.tensors((args, kwargs))]
    return None if None in versions else versions


def _key(call: OpCall, args: Args, kwargs: Kwargs) -> Any:
    return call.name, frozenset(tensor.dtype for tensor in trees.tensors((args, kwargs)))


def _reason_to_stay(name: str, spelt_out: bool) -> str | None:
    if catalogue.has(name, Trait.ALWAYS_VIEW):
        return "a view has to be one of the tensor on the device"
    return "it computes nothing" if catalogue.has(name, Trait.NO_ARITHMETIC) else None


def _input_rows(name: str, args: Args, kwargs: Kwargs, cpu_call: CpuCall) -> list[tuple[str, ...]]:
    rows = tables.argument_rows(name, "input(device)", trees.arguments(args, kwargs))
    return rows + tables.argument_rows(name, "input(cpu)", trees.arguments(cpu_call.args, cpu_call.kwargs))


def _show(call: OpCall, inputs: list[tuple[str, ...]], copied_back: Any, on_cpu: Any) -> None:
    rows = inputs + tables.argument_rows(call.name, "output(device)", trees.results(copied_back))
    rows += tables.argument_rows(call.name, "output(cpu)", trees.results(on_cpu))
    messages.say(f"\n\n\n{tables.heading(call)}\n{tables.table(tables.ARGUMENT_COLUMNS, rows)}\n")
