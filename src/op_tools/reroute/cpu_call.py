"""One op call on the CPU: its arguments are copied there, the op runs, and its results are copied back."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils import _device

from op_tools.ops import autocast_policy, catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.ops.silent_writes import silently_written
from op_tools.reroute.cast_call import on_meta
from op_tools.reroute.device_copies import CPU, DENSE, GAPS, blank_copy, copies_on, layout_of
from op_tools.reroute.stand_ins import StandIns
from op_tools.values import trees

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class DeviceCall:
    """The call as it was made: its arguments, looked through once."""

    __slots__ = ("args", "asked", "func", "kwargs", "name", "on_cpu", "on_device", "short")

    def __init__(self, name: str, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
        self.name = name
        self.short = normalized(name).form
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.asked = _asked_device(self.short, args, kwargs)
        on_device: dict[int, Tensor] = {}
        self.on_cpu: list[Tensor] = []
        for tensor in itertools.chain(trees.tensors(args), trees.tensors(kwargs)) if kwargs else trees.tensors(args):
            if tensor.is_cpu:
                self.on_cpu.append(tensor)
            elif not tensor.is_meta:
                on_device[id(tensor)] = tensor
        self.on_device = list(on_device.values())  # each once

    def result_device(self) -> torch.device | None:
        """Where the results belong of a call that can be run on the CPU; None for one that is to run as it is."""
        asked = self.asked
        if not self.on_device and (asked is None or asked.type == "cpu"):
            return _default_device(self.func) if asked is None else None
        if (asked is not None and asked.type == "meta") or any(tensor.is_nested for tensor in self.on_device):
            return None
        if asked is None:
            if catalogue.has(self.name, Trait.PERHAPS_VIEW | Trait.CONVERTS) and _is_view(
                self.func, self.args, self.kwargs
            ):
                return None
            # a list of numbers, some on the device: they are read one by one, and the result is on the CPU
            if self.short == "tensor" and not isinstance(self.args[0], Tensor):
                return None
        elif self.short in ("to", "type_as") and _asked_dtype(self.args, self.kwargs) in (None, self.args[0].dtype):
            return None
        return asked or self.on_device[0].device


class CpuCall:
    """One call on the CPU. `args` and `kwargs` are its arguments there."""

    def __init__(self, call: DeviceCall, result_device: torch.device) -> None:
        self._call = call
        self._result_device = result_device
        self._device_type = call.on_device[0].device.type if call.on_device else result_device.type
        self._stand_ins = StandIns(call.on_device, self._copies(call.on_device))
        self.args: Args = self._stand_ins.replace(call.args)
        self.kwargs: Kwargs = dict(self._stand_ins.replace(call.kwargs)) if call.kwargs else {}
        self._stay_on_cpu()
        self._use_cpu_generators()

    def run(self, proceed: Callable[..., Any]) -> Any:
        """The op's own result. Autocast is on or off as it is for the device."""
        active = autocast_policy.active_dtype(self._device_type)
        if active is not None:
            args, kwargs = self._as_autocast_has_them()
            with autocast_policy.autocast("cpu", dtype=active):
                return proceed(*args, **kwargs)
        if autocast_policy.active_dtype("cpu") is not None:
            with autocast_policy.autocast("cpu", enabled=False):
                return proceed(*self.args, **self.kwargs)
        return proceed(*self.args, **self.kwargs)

    def finish(self, result: Any) -> Any:
        """Writes back what the op wrote into its arguments, and copies its results back."""
        call = self._call
        self._stand_ins.write_back(silently_written(call.name, call.func, call.args, call.kwargs))
        for there, original in zip(self.args, call.args):
            if result is there and self._call.asked is None:  # also a list of tensors that the op has changed
                return original
        if self._result_device.type == "cpu":
            return result
        known: dict[int, Tensor] = {}
        new: dict[int, Tensor] = {}
        for tensor in trees.tensors(result):
            original = self._stand_ins.original_of(tensor)
            if original is not None and _is_at(original.device, self._result_device):
                known.setdefault(id(tensor), original)
            elif tensor.is_cpu:
                new[id(tensor)] = tensor
        for staying in self._staying_on_cpu(result):
            new.pop(id(staying), None)
        known.update(zip(new, self._copied_back(list(new.values()))))
        return trees.map_tensors(lambda tensor: known.get(id(tensor), tensor), result)

    @property
    def is_of_torch(self) -> bool:
        """False for ops and functions of third parties."""
        return bool(self._call.short)

    def unchanged(self) -> bool:
        """True where the op has written nothing yet, so that it can be run once more."""
        return not self._stand_ins.changed()

    # -- there --------------------------------------------------------------------------------------------------------

    def _copies(self, tensors: list[Tensor]) -> list[Tensor]:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():  # so that they count their versions
                return copies_on(tensors, CPU)
        if catalogue.has(self._call.name, Trait.OVERWRITES) and self._overwrites(tensors):
            return [blank_copy(tensors[0], CPU), *copies_on(tensors[1:], CPU)]
        return copies_on(tensors, CPU)

    def _overwrites(self, tensors: list[Tensor]) -> bool:
        """Whether the numbers in the first argument can be left behind."""
        first = self._call.args[0] if self._call.args else None
        if not tensors or first is not tensors[0] or layout_of(first) not in (DENSE, GAPS):
            return False
        if self._call.short.endswith("_") and first.requires_grad and torch.is_grad_enabled():
            return False  # its history is needed
        storage = first.untyped_storage()._cdata
        return all(
            layout_of(tensor) in (DENSE, GAPS) and tensor.untyped_storage()._cdata != storage for tensor in tensors[1:]
        )

    def _stay_on_cpu(self) -> None:
        """Whatever device the arguments ask for: the op runs on the CPU."""
        if self.kwargs.get("device") is not None or _default_device(self._call.func) is not None:
            self.kwargs["device"] = CPU
        if self._call.short == "to" and len(self.args) > 1 and _is_device(self.args[1]):
            self.args = (self.args[0], CPU, *self.args[2:])

    def _use_cpu_generators(self) -> None:
        """A CPU's generator for a device's, whose numbers follow from the state of that one; which then moves on."""
        generator = self.kwargs.get("generator")
        if isinstance(generator, torch.Generator) and generator.device.type != "cpu":
            self.kwargs["generator"] = _cpu_generator(generator)

    def _as_autocast_has_them(self) -> tuple[Args, Kwargs]:
        """The arguments in the dtype that the device's autocast gives them. The CPU's has a list of its own."""
        chosen = autocast_policy.chosen_dtype(self._call.name, self._device_type)
        if chosen is None or self.kwargs.get("out") is not None:
            return self.args, self.kwargs
        copies = {id(stand_in) for stand_in in self._stand_ins.stand_ins}

        def cast(tensor: Tensor) -> Tensor:
            is_cast = id(tensor) in copies and tensor.dtype in autocast_policy.ELIGIBLE
            return tensor.to(chosen) if is_cast else tensor

        return trees.map_tensors(cast, self.args), trees.map_tensors(cast, self.kwargs)

    # -- and back -----------------------------------------------------------------------------------------------------

    def _staying_on_cpu(self, result: Any) -> list[Tensor]:
        """Results that belong to the CPU: the user's own tensors, and those of a few ops."""
        staying = self._call.on_cpu if self._call.asked is None else []
        return [*staying, result[1]] if catalogue.has(self._call.name, Trait.SECOND_RESULT_ON_CPU) else staying

    def _copied_back(self, tensors: list[Tensor]) -> list[Tensor]:
        leaves = [tensor.requires_grad and tensor.is_leaf for tensor in tensors]  # torch.ones(3, requires_grad=True)
        sources = [tensor.detach() if leaf else tensor for tensor, leaf in zip(tensors, leaves)]
        return [
            copy.requires_grad_() if leaf else copy
            for copy, leaf in zip(copies_on(sources, self._result_device), leaves)
        ]


def _is_view(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> bool:
    """Whether the call returns what it was given, or a view of it; tried on tensors without data."""
    stand_ins: dict[int, Tensor] = {}

    def stand_in(tensor: Tensor) -> Tensor:
        return tensor if tensor.is_cpu else stand_ins.setdefault(id(tensor), on_meta(tensor))

    try:
        with torch.no_grad():
            result = func(*trees.map_tensors(stand_in, args), **trees.map_tensors(stand_in, kwargs))
        storages = {tensor.untyped_storage()._cdata for tensor in stand_ins.values()}
        return all(tensor.untyped_storage()._cdata in storages for tensor in trees.tensors(result))
    except Exception:  # noqa: BLE001  what needs data to decide is no view
        return False


def _asked_device(short: str, args: Args, kwargs: Kwargs) -> torch.device | None:
    """The device that the arguments ask for the results."""
    asked = kwargs.get("device")
    if short in ("to", "type_as"):
        other = args[1] if len(args) > 1 else kwargs.get("other")
        if isinstance(other, Tensor):
            return other.device
        if asked is None and _is_device(other):
            asked = other
    return None if asked is None else torch.device(asked)


def _asked_dtype(args: Args, kwargs: Kwargs) -> torch.dtype | None:
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, torch.dtype):
            return value
        if isinstance(value, Tensor):
            return value.dtype
    return None


def _is_device(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) or type(value) is int


def _is_at(device: torch.device, asked: torch.device) -> bool:
    return device.type == asked.type and (asked.index is None or device.index == asked.index)


def _default_device(func: Callable[..., Any]) -> torch.device | None:
    """Where a factory makes its tensor without being told; None for the CPU, and for ops that are no factories."""
    get_default = getattr(torch, "get_default_device", None)
    if get_default is None or func not in _device._device_constructors():
        return None
    device: torch.device = get_default()
    return None if device.type == "cpu" else device


def _cpu_generator(generator: torch.Generator) -> torch.Generator:
    """One for the CPU: with the same seed if the device's was just seeded, else with a seed made of its state."""
    seed = generator.initial_seed()
    state = generator.get_state()
    if not torch.equal(state, torch.Generator(generator.device).manual_seed(seed).get_state()):
        seed = int.from_bytes(hashlib.blake2b(bytes(state.tolist()), digest_size=7).digest(), "big")
    torch.rand(1, generator=generator, device=generator.device)
    return torch.Generator().manual_seed(seed)
