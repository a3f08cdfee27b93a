"""One call to be reproduced: its op and arguments, on the CPU."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.errors import CaptureError
from op_tools.replay import replay
from op_tools.reproduce import check
from op_tools.storage import store
from op_tools.storage.encoding import ForeignDevice
from op_tools.values import trees

_TAKE_A_DEVICE = ("torch.Tensor.to",)  # by its name, as an argument by position


@dataclass(frozen=True)
class Case:
    """`gradients`: what flows into the results in backward, one for each tensor among them."""

    name: str
    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: list[Tensor | None]
    autocast: torch.dtype | None
    where: str
    module: str

    def with_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Case:
        return replace(self, args=args, kwargs=kwargs)

    def bases(self) -> list[Base]:
        """The memory of the arguments: tensors that share some are views of one base."""
        found: dict[Any, Base] = {}
        for tensor in trees.tensors((self.args, self.kwargs)):
            key = (
                tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.numel() else id(tensor)
            )
            found.setdefault((key, tensor.dtype), Base()).views.append(tensor)
        for base in found.values():
            base.settle()
        return list(found.values())

    def run(self, device: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        bases = self.bases()

        def arguments(place: Callable[[Tensor], Tensor], device: str, dtype: torch.dtype | None) -> Any:
            placed = {
                id(view): base.view(one, view) for base in bases for one in [place(base.tensor)] for view in base.views
            }
            values = trees.map_tensors(lambda tensor: placed[id(tensor)], (self.args, self.kwargs))
            return map_plain(lambda value: _there(value, device, dtype), values)

        if device != "cpu" and dtype is None:
            return check.run_on_device(self.op, arguments, self.gradients, self.autocast, device)
        return check.run(self.op, arguments, self.gradients, self.autocast, device, dtype)


@dataclass
class Base:
    """A tensor of its own memory, and what the call is given of it."""

    views: list[Tensor] = field(default_factory=list)
    is_flat: bool = False

    def settle(self) -> None:
        first = self.views[0].detach()
        self.is_flat = len(self.views) > 1 or not _is_dense(first)
        self.requires_grad = any(view.requires_grad for view in self.views)
        if self.is_flat:
            length = first.untyped_storage().nbytes() // first.element_size()
            first = first.as_strided((length,), (1,), 0)
        self.tensor = first.clone().requires_grad_(self.requires_grad)

    def view(self, base: Tensor, view: Tensor) -> Tensor:
        return base.as_strided(view.shape, view.stride(), view.storage_offset()) if self.is_flat else base


def _is_dense(tensor: Tensor) -> bool:
    """Whether a copy of it has its strides."""
    return tensor.layout is not torch.strided or torch.empty_like(tensor).stride() == tensor.stride()


def map_plain(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with `function` applied to all that is no list, tuple or dictionary."""
    if isinstance(value, dict):
        return {key: map_plain(function, part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_plain(function, part) for part in value)
    return function(value)


def _there(value: Any, device: str, dtype: torch.dtype | None) -> Any:
    """A device or a floating-point dtype among the arguments is that of this run."""
    if isinstance(value, (torch.device, ForeignDevice)):
        return torch.device(device)
    if isinstance(value, torch.dtype) and dtype is not None:
        return dtype if value.is_floating_point else torch.complex128 if value.is_complex else value
    return value


def load(folder: Path, trusted: tuple[str, ...] = ()) -> tuple[Case, dict[str, Tensor]]:
    """A captured call, and what its device gave, by the names that `run` has. A CaptureError where it is unusable."""
    capture = replay.load(folder, trusted)
    given = list(capture.grad_outputs)
    autocast = None if capture.autocast is None else capture.autocast.dtype
    place = (capture.where.line(), capture.where.module)
    named = capture.kwargs.get("device")
    kwargs = {**capture.kwargs, "device": ForeignDevice(named)} if isinstance(named, str) else capture.kwargs
    args = tuple(_as_device(value) for value in capture.args) if capture.name in _TAKE_A_DEVICE else capture.args
    case = Case(capture.name, capture.func, args, kwargs, given, autocast, *place)
    if not callable(case.op) or inspect.isclass(case.op):
        raise CaptureError(f"{folder} cannot be reproduced: {case.name} is no function")
    return case, _recorded(case, folder)


def _as_device(value: Any) -> Any:
    return ForeignDevice(value) if isinstance(value, str) else value


def recorded_device(folder: Path) -> str:
    """Where the call was captured, such as npu:0."""
    values = store.load_note(folder).get("values")
    devices = [str(value.get("device", "cpu")) for value in values or () if isinstance(value, dict)]
    return next((device for device in devices if device not in ("cpu", "meta")), "the device")


def _recorded(case: Case, folder: Path) -> dict[str, Tensor]:
    saved = store.load(folder)
    found: dict[str, Tensor] = {}
    if saved.output is not None:
        outputs = list(trees.tensors(saved.output.args[0]))
        found.update((f"result {number}", tensor.detach()) for number, tensor in enumerate(outputs))
    bases = case.bases()
    if saved.grad_inputs is not None and all(len(base.views) == 1 for base in bases):
        order = list(trees.tensors((case.args, case.kwargs)))
        gradients = dict(zip(map(id, order), saved.grad_inputs.args))
        leaves = [base.views[0] for base in bases if base.requires_grad]
        for number, leaf in enumerate(leaves):
            gradient = gradients.get(id(leaf))
            if gradient is not None:
                found[f"gradient {number}"] = gradient.detach()
    return found


@dataclass(frozen=True)
class Excess:
    """How many times too far each value is, and the worst of them."""

    ratios: dict[str, float]

    @property
    def is_wrong(self) -> bool:
        return any(ratio > 1 for ratio in self.ratios.values())


def judged(case: Case, got: dict[str, Tensor]) -> Excess:
    """`got`: what the device gave."""
    want, near = case.run("cpu", torch.float64), case.run("cpu")
    names = [name for name in got if name in want and name in near]
    return Excess({name: check.times_too_far(got[name], near[name], want[name]) for name in names})
