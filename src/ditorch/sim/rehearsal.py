"""Makes the simulated accelerator behave like a chip that a profile describes (DITORCH_SIM_PROFILE).

Kernels that the chip lacks raise what it raises; sums are kept as it keeps them; the device's clock takes its times.
For `ditorch rehearse` (DITORCH_REHEARSAL names a folder) a missing kernel is noted and runs all the same, so that one
run finds all of them; what was noted is written there when the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree as pytree

from ditorch.errors import FaultError
from ditorch.sim.chip_profile import ChipProfile
from ditorch.sim.faults.call import KernelCall
from ditorch.sim.faults.grammar import Fault
from ditorch.sim.faults.install import Injection, Op
from ditorch.sim.faults.kinds import Kind
from ditorch.sim.faults.low_precision import ACCUMULATING, MULTIPLYING, accumulate, cut_to_tf32

SCHEMA = "ditorch.rehearsal.process/1"
# They compute nothing, and PyTorch's own code calls them with what only C++ can hold
_LEFT_ALONE = (
    "empty",
    "set_",
    "resize",
    "record_stream",
    "is_pinned",
    "_pin_memory",
    "_has_compatible",
    "_reshape_alias",
)
_LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_PACKAGES = ("/torch/", "/ditorch/", "/op_tools/")


class Rehearsal:
    """A profile in force. `folder`: where what happened is written; without one, missing kernels raise."""

    def __init__(self, profile: ChipProfile, device_type: str, folder: Path | None) -> None:
        self._profile = profile
        self._folder = folder
        self._lock = threading.Lock()
        self._kernels: dict[tuple[str, str], dict[str, Any]] = {}
        self._steps: dict[int, int] = {}
        self._within = threading.local()
        what = f"the profile of {profile.chip}"
        kind = Kind("profile", "behaves as it says", "", self._behave, changes_values=False, applies_to=_concerns)
        self._injections = [Injection([Fault(what, "aten.*", kind)], device_type)]
        # by itself, so that it is met inside of a kernel that torch makes of others, too: ones_like calls fill_
        kind = Kind("missing", "is not there", "", self._meet, changes_values=False, applies_to=self._is_missing)
        with contextlib.suppress(FaultError):  # this torch has none of them
            self._injections.append(Injection([Fault(what, "aten.*", kind)], device_type))
        self._hook = register_optimizer_step_post_hook(self._count_step) if folder is not None else None
        if folder is not None:
            atexit.register(self._write)

    def remove(self) -> None:
        """The accelerator is itself again; nothing is written at the end of the process."""
        for injection in self._injections:
            injection.remove()
        if self._hook is not None:
            self._hook.remove()
            atexit.unregister(self._write)

    # ---- one call ----------------------------------------------------------------------------------------------------

    def _is_missing(self, op: Op, value: Any) -> bool:
        return _concerns(op, value) and bool(self._profile.facts(op.name()).get("missing"))

    def _meet(self, call: KernelCall) -> Any:
        """A kernel that is missing in a dtype at least."""
        name, dtypes = call.op.name(), _dtypes(call)
        missing = self._profile.missing(name, dtypes)
        if missing is not None:
            if self._folder is None:
                raise _error(missing, self._profile.chip)
            is_inside = getattr(self._within, "another", False)  # then that one is what is counted and timed
            self._note(name, dtypes[0] if dtypes else "", missing=missing, inside=is_inside)
        return call.run()

    def _behave(self, call: KernelCall) -> Any:
        self._within.another = True
        try:
            return self._measured(call)
        finally:
            self._within.another = False

    def _measured(self, call: KernelCall) -> Any:
        name, dtypes = call.op.name(), _dtypes(call)
        dtype = dtypes[0] if dtypes else ""
        result, drift = self._computed(call, name, dtype)
        seconds = None
        if not _is_view(call.op):
            seconds = self._profile.seconds(name, dtype, _work(call, result))
            if seconds:
                call.spend_device_time(seconds)
        if self._folder is not None:
            falls_back = self._profile.falls_back(name, dtypes)
            self._note(name, dtype, seconds=seconds, drift=drift, falls_back=falls_back, calls=1)
        return result

    def _computed(self, call: KernelCall, name: str, dtype: str) -> tuple[Any, float | None]:
        """The result as the chip computes it; and how much larger its errors are than those of a sound kernel."""
        kept = self._profile.accumulation(name, dtype)
        if kept in _LOW and call.op._schema.name in ACCUMULATING:
            behave, call.value = accumulate, _LOW[kept]
        elif kept == "tf32" and call.op._schema.name in MULTIPLYING:
            behave = cut_to_tf32
        else:
            return call.run(), None
        if self._folder is None or "out" in call.kwargs:
            return behave(call), None
        sound = call.run()
        made = behave(call)
        return made, _drift(call, made, sound)

    def _note(self, name: str, dtype: str, **what: Any) -> None:
        where = ""
        if (name, dtype) not in self._kernels:
            where = _users_line()
        with self._lock:
            known = self._kernels.setdefault(
                (name, dtype),
                {"kernel": name, "dtype": dtype, "calls": 0, "seconds": 0.0, "unknown": 0, "where": where},
            )
            known["calls"] += what.get("calls", 0) + what.get("inside", False)
            if what.get("missing"):
                known["missing"] = what["missing"]
            if what.get("falls_back"):
                known["falls_back"] = True
            if what.get("drift") is not None:
                known["drift"] = max(known.get("drift", 0.0), what["drift"])
            if what.get("calls"):
                known["seconds"] += what["seconds"] or 0.0
                known["unknown"] += what["seconds"] is None

    # ---- the whole run -----------------------------------------------------------------------------------------------

    def _count_step(self, optimizer: Any, *_: Any) -> None:
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1

    def _write(self) -> None:
        """Processes without a single kernel leave nothing."""
        if not self._kernels or self._folder is None:
            return
        told = {
            "schema": SCHEMA,
            "chip": self._profile.chip,
            "source": self._profile.source,
            "pid": os.getpid(),
            "rank": int(os.environ.get("RANK", "0") or 0),
            "program": sys.argv[:1],
            "steps": max(self._steps.values(), default=0),
            "kernels": list(self._kernels.values()),
        }
        path = self._folder / f"rehearsal_{os.getpid()}.json"
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(told), encoding="utf-8")
        temporary.replace(path)


def _concerns(op: Op, _: Any) -> bool:
    """Kernels that compute something, and views: a chip may lack those, too."""
    name = op.name().partition("::")[2]
    return not name.startswith(_LEFT_ALONE)


def _dtypes(call: KernelCall) -> list[str]:
    """Of the tensors that it computes with: whole numbers beside others are indices and masks."""
    tensors = [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
    found = {one.dtype: one.is_floating_point() or one.is_complex() for one in tensors}
    chosen = [dtype for dtype, is_number in found.items() if is_number] or list(found)
    return [str(dtype).partition(".")[2] for dtype in chosen]


def _is_view(op: Op) -> bool:
    return op._schema.name == "aten::_unsafe_view" or any(
        one.alias_info is not None and not one.alias_info.is_write for one in op._schema.arguments
    )


def _work(call: KernelCall, result: Any) -> dict[str, float]:
    """Bytes that a call reads and writes; and the operations of products."""
    tensors = [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs, result)) if isinstance(leaf, Tensor)]
    distinct = {id(one): one for one in tensors}.values()
    found = {"bytes": float(sum(one.numel() * one.element_size() for one in distinct if one.layout is torch.strided))}
    flops = _flops(call, result)
    return {**found, "flops": flops} if flops else found


def _flops(call: KernelCall, result: Any) -> float:
    from torch.utils.flop_counter import flop_registry

    name = call.op._schema.name.partition("::")[2]
    if name.startswith("_scaled_dot_product"):
        is_backward = name.endswith("_backward")
        query, key = (call.args[1], call.args[2]) if is_backward else (call.args[0], call.args[1])
        return float((10 if is_backward else 4) * query.numel() * key.shape[-2])
    counted = flop_registry.get(getattr(torch.ops.aten, name.removesuffix("_overrideable"), None))
    if counted is None:
        return 0.0
    try:
        return float(counted(*call.args, **call.kwargs, out_val=result))
    except Exception:  # noqa: BLE001 - a form of the call that torch does not count
        return 0.0


def _drift(call: KernelCall, made: Any, sound: Any) -> float | None:
    """How many times the error of a sound kernel, against float64: what OpAutoCompare calls rmse_ratio."""

    def double(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    with call.undisturbed():
        given = {name: pytree.tree_map(double, value) for name, value in call.arguments().items()}
        exact = call.run_with(given)
        if not all(isinstance(one, Tensor) for one in (made, sound, exact)):
            return None
        errors = [float((one.double() - exact).square().mean().sqrt()) for one in (made, sound)]
    return errors[0] / errors[1] if errors[1] > 0 else None


def _error(message: str, chip: str) -> Exception:
    """As the chip raises it."""
    kind, _, text = message.partition(": ")
    known = {"NotImplementedError": NotImplementedError, "RuntimeError": RuntimeError, "TypeError": TypeError}
    if kind in known:
        return known[kind](f"{text} (by the profile of {chip})")
    return RuntimeError(f"{message} (by the profile of {chip})")


def _users_line() -> str:
    """The innermost line of the program itself; of a backward pass there is none."""
    for frame in reversed(traceback.extract_stack()):
        if not any(part in frame.filename for part in _PACKAGES) and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}"
    return "backward"
