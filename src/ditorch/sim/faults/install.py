"""Puts faults into PyTorch's dispatcher, and takes them out again."""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import threading
import warnings
from collections.abc import Iterable
from typing import Any, Callable

import torch

from ditorch.errors import FaultError
from ditorch.sim.faults.call import KernelCall, is_undisturbed
from ditorch.sim.faults.grammar import Fault, parse

Op = torch._ops.OpOverload

_MAX_NAMES = 10  # in a message
_lock = threading.RLock()
_broken: dict[tuple[str, str], BrokenKernel] = {}  # by operator and dispatch key


class Injection:
    """Faults in force. Use as a context manager, or call `remove()`."""

    def __init__(self, faults: list[Fault], device_type: str) -> None:
        self.faults = faults
        self.device_type = device_type
        self._active = [InstalledFault(fault) for fault in faults]
        self._installed: list[tuple[BrokenKernel, InstalledFault]] = []
        key = _dispatch_key(device_type)
        targets = [_overloads(fault, key) for fault in faults]  # all are found before any is broken
        with _lock:
            for installed, ops in zip(self._active, targets):
                for op in ops:
                    kernel = _broken.get((op.name(), key)) or BrokenKernel(op, key, device_type)
                    kernel.faults.append(installed)
                    self._installed.append((kernel, installed))

    @property
    def struck(self) -> dict[str, int]:
        """How often each fault has struck, by its text; still known when it is removed."""
        return {installed.fault.text: installed.struck for installed in self._active}

    @property
    def effective(self) -> dict[str, int]:
        """How often that changed a result: a zero that is scaled or negated is as right as before."""
        return {installed.fault.text: installed.struck - installed.without_effect for installed in self._active}

    def remove(self) -> None:
        """The kernels are healthy again. Calling it twice does nothing."""
        with _lock:
            for kernel, installed in self._installed:
                kernel.faults.remove(installed)
                kernel.repair_if_healthy()
            self._installed = []

    def __enter__(self) -> Injection:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def inject(faults: str, device: str | None = None) -> Injection:
    """Breaks kernels of `device`, the accelerator in use unless told, until the result is removed or its block left."""
    return Injection(parse(faults), device or _current_device_type(faults))


def active() -> list[str]:
    """The texts of all faults in force."""
    with _lock:
        return list(dict.fromkeys(i.fault.text for kernel in _broken.values() for i in kernel.faults))


class InstalledFault:
    """A fault in force: how often its kernels were called, how often it struck, and what it remembers."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.calls = 0
        self.struck = 0
        self.without_effect = 0  # of these: a scaled zero, a negated one
        self.memory: dict[Any, torch.Tensor] = {}
        self._thread = threading.local()
        self._lock = threading.Lock()

    def apply(
        self, op: Op, device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]
    ) -> Any:
        """Calls the kernel by `run`, as it is or broken."""
        # A kernel may call another variant of itself (sum calls sum.dim_IntList): it is broken once, not twice.
        if getattr(self._thread, "inside", False) or self.fault.phase not in (None, _phase()):
            return run(*args, **kwargs)
        with self._lock:
            number = self.calls
            self.calls += 1
            if not self.fault.hits(number):
                return run(*args, **kwargs)
            self.struck += 1
        call = KernelCall(
            op,
            device_type,
            args,
            kwargs,
            run,
            value=self.fault.value,
            share=self.fault.share,
            seed=self.fault.seed + number,
            memory=self.memory,
        )
        self._thread.inside = True
        try:
            return self.fault.kind.behave(call)
        finally:
            self._thread.inside = False
            with self._lock:
                self.without_effect += call.made_no_difference is True


_KNOWS_OVERRIDE = "allow_override" in inspect.signature(torch.library.Library.impl).parameters


class BrokenKernel:
    """One operator's kernel at one dispatch key, replaced by one that applies faults around the original."""

    def __init__(self, op: Op, key: str, device_type: str) -> None:
        self.op = op
        self.key = key
        self.device_type = device_type
        self.faults: list[InstalledFault] = []
        get_kernel = getattr(torch.library, "get_kernel", None)  # torch 2.11 has it, 2.6 does not
        self._original = get_kernel(op, key) if get_kernel else None
        self._expects_tensor = [str(argument.type) == "Tensor" for argument in op._schema.arguments]
        self._library: torch.library.Library | None = None
        self._register()
        _broken[op.name(), key] = self

    def repair_if_healthy(self) -> None:
        if not self.faults:
            self._unregister()
            _broken.pop((self.op.name(), self.key), None)

    def _register(self) -> None:
        self._library = torch.library.Library(self.op.namespace, "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is overridden is what we are here for
            name = self.op.name().partition("::")[2]
            # some of the simulator's kernels are Python, and releases before 2.12 refuse to replace those
            options = {"allow_override": True} if _KNOWS_OVERRIDE else {}
            if not options:
                torch.library._impls.discard(f"{self.op.namespace}/{name}/{self.key}")
            self._library.impl(name, self._run, self.key, with_keyset=True, **options)

    def _unregister(self) -> None:
        assert self._library is not None
        self._library._destroy()
        self._library = None

    def _run(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run_original(keys, *args, **kwargs)

        if is_undisturbed():
            return run(*args, **kwargs)
        recorder = _recorder(self.device_type)
        if recorder is not None:
            return recorder(self.op, *self._with_tensors(args), **kwargs)
        for installed in self.faults:
            run = self._wrapped(installed, run)
        return run(*args, **kwargs)

    def _wrapped(self, installed: InstalledFault, run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: installed.apply(self.op, self.device_type, args, kwargs, run)

    def _run_original(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        args = self._with_tensors(args)
        if self._original is not None:
            return self._original.call_boxed(keys, *args, **kwargs)
        # Older torch cannot name a kernel that was replaced: put it back for the length of the call.
        with _lock:
            self._unregister()
            try:
                return self.op.redispatch(keys, *args, **kwargs)
            finally:
                self._register()

    def _with_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """PyTorch hands a Python kernel `x * 2.0` with the plain number 2.0; the original wants a tensor."""
        first = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
        return tuple(
            _number_as_tensor(arg, first) if isinstance(arg, (int, float, complex)) and expects_tensor else arg
            for arg, expects_tensor in zip(args, self._expects_tensor)
        )


def _number_as_tensor(number: Any, beside: torch.Tensor | None) -> torch.Tensor:
    """A scalar tensor that promotes like the number: it never widens the dtype of the tensor beside it."""
    if beside is None:
        return torch.tensor(number)
    dtype = torch.result_type(beside, number)
    if beside.dim() > 0 and beside.is_floating_point() and isinstance(number, float):
        dtype = torch.float64  # as precise as the number, and a scalar does not widen a tensor with dimensions
    return torch.tensor(number, dtype=dtype)


# ---- what there is to break --------------------------------------------------------------------------------------


def _overloads(fault: Fault, key: str) -> list[Op]:
    """The operators a fault names, as far as the device has kernels for them."""
    candidates = _named(fault.kernels)
    if not candidates:
        raise FaultError(f"The fault '{fault.text}' names no operator of PyTorch; {_suggestion(fault.kernels)}")
    if fault.kind.names:
        candidates = [op for op in candidates if op._schema.name in fault.kind.names]
        if not candidates:
            known = [name.replace("::", ".") for name in fault.kind.names]
            shown = ", ".join(known[:_MAX_NAMES]) + (" and others" if len(known) > _MAX_NAMES else "")
            raise FaultError(f"The fault '{fault.text}' cannot be: {fault.kind.name} is known for {shown}.")
    with_kernel = [op for op in candidates if _has_kernel(op, key)]
    if all(op._overloadname.endswith("out") for op in with_kernel) and not fault.kernels.endswith("out"):
        raise FaultError(
            f"The fault '{fault.text}' finds no kernel to break: PyTorch splits {fault.kernels} into other operators "
            f"before {key} sees it. Break one of those, such as aten.addmm for linear or aten._softmax for softmax."
        )
    if fault.kind.changes_values:
        with_kernel = [op for op in with_kernel if not _is_view(op)]
        if not with_kernel:
            raise FaultError(f"The fault '{fault.text}' cannot be: {fault.kernels} is a view and computes nothing.")
    if fault.kind.applies_to is not None:
        with_kernel = [op for op in with_kernel if fault.kind.applies_to(op, fault.value)]
        if not with_kernel:
            raise FaultError(
                f"The fault '{fault.text}' cannot be: {fault.kernels} has no such argument ({fault.kind.help})."
            )
    return with_kernel


def _named(pattern: str) -> list[Op]:
    namespace_name, _, rest = pattern.partition(".")
    name, _, overload = rest.partition(".")
    namespace = getattr(torch.ops, namespace_name)
    names: Iterable[str]
    if any(character in name for character in "*?["):
        names = fnmatch.filter(_operator_names(namespace_name), name)
    else:
        names = [name] if overload else [name, f"{name}_"]  # a kernel and its in-place form are one
    packets = [getattr(namespace, each) for each in names if hasattr(namespace, each)]
    return [
        getattr(packet, each)
        for packet in packets
        for each in packet.overloads()
        if not overload or fnmatch.fnmatchcase(each, overload)
    ]


def _operator_names(namespace: str) -> list[str]:
    get_names = getattr(torch._C, "_dispatch_get_all_op_names", None)
    if get_names is None:
        return list(dir(getattr(torch.ops, namespace)))
    full = (name.partition(".")[0] for name in get_names() if name.startswith(f"{namespace}::"))
    return sorted({name.partition("::")[2] for name in full})


def _suggestion(pattern: str) -> str:
    namespace, _, rest = pattern.partition(".")
    close = difflib.get_close_matches(rest.partition(".")[0], _operator_names(namespace), n=3)
    return f"did you mean {' or '.join(f'{namespace}.{name}' for name in close)}?" if close else "see torch.ops.aten."


def _has_kernel(op: Op, key: str) -> bool:
    keys = torch._C.DispatchKey.__members__
    names = (key, "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    try:
        return any(op.has_kernel_for_dispatch_key(keys[name]) for name in names if name in keys)
    except RuntimeError:  # TorchScript has operators that the dispatcher does not know
        return False


def _is_view(op: Op) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in op._schema.arguments)


# ---- devices and phases ------------------------------------------------------------------------------------------

_KEYS = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "hpu": "HPU"}


def _dispatch_key(device_type: str) -> str:
    return _KEYS.get(device_type, "PrivateUse1")


def _current_device_type(faults: str) -> str:
    from ditorch import sim

    if sim.started_as():
        return str(sim.started_as())
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and newer
    if accelerator is not None and accelerator.is_available():
        return str(accelerator.current_accelerator().type)
    if torch.cuda.is_available():
        return "cuda"
    raise FaultError(
        f"There is no accelerator whose kernels '{faults}' could break: start the simulated one first "
        "(ditorch.sim.start()), or name a device (inject(…, device='cpu'))."
    )


def _recorder(device_type: str) -> Callable[..., Any] | None:
    """Where a call goes that is captured in a graph of the simulated accelerator: replays are to be broken, too."""
    from ditorch import sim

    if sim.started_as() != device_type:
        return None
    from ditorch.sim import graphs

    return graphs.record if graphs.must_record() else None


def _phase() -> str:
    task = getattr(torch._C, "_current_graph_task_id", None)
    return "backward" if task is not None and task() != -1 else "forward"
