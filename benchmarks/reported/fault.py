"""What a reported fault is: a kernel, the way in which it goes wrong, and a small program in which that shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ditorch.sim.faults import Fault, Injection
from ditorch.sim.faults.call import KernelCall
from ditorch.sim.faults.kinds import Kind

FLOAT32 = (torch.float32,)
BFLOAT16 = (torch.bfloat16,)
FLOAT16 = (torch.float16,)
BOTH = (torch.float32, torch.bfloat16)

Wrong = Any  # a tensor, None where the result is right, or a sequence of these for several results
Program = Callable[["Data"], Any]


class Broken:
    """One call of a broken kernel: what it was given, what it should give, and ways to run it otherwise."""

    def __init__(self, call: KernelCall, given: dict[str, Any], right: list[Tensor]) -> None:
        self._call = call
        self._given = given  # as it was before the call, also where the call writes
        self.right = right
        self.memory = call._memory  # what earlier calls have left

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def rerun(self, /, **changed: Any) -> Any:
        """The healthy kernel with other values for some arguments; what was given is not written to."""
        given = {**self._given, **changed}
        written = {a.name for a in self._call.op._schema.arguments if a.alias_info and a.alias_info.is_write}
        written |= {"running_mean", "running_var"}  # which batch norm changes without saying so
        fresh = {name: pytree.tree_map(_copy, value) for name, value in given.items() if name in written}
        return self._call.run_with({**given, **fresh})

    def unwritten(self) -> None:
        """Puts back what the call has written over, memory beside its tensors included."""
        for name, real in self._call.arguments().items():
            before = self._given[name]
            if isinstance(real, Tensor) and before is not real:
                _memory_of(real).copy_(_memory_of(before))

    def real(self, name: str) -> Tensor:
        """The tensor itself and not the copy of what it held: a fault may write beside it."""
        tensor: Tensor = self._call.arguments()[name]
        return tensor


@dataclass(frozen=True)
class ReportedFault:
    """A fault that somebody has met. `hidden` says why no comparison of calls can find it; None: it can be found."""

    name: str
    family: str
    reports: tuple[str, ...]  # as owner/repository#number
    kernels: str  # in the grammar of ditorch.sim.faults
    what: str
    wrong: Callable[[Broken], Wrong]
    program: Program
    dtypes: tuple[torch.dtype, ...]
    phase: str | None
    hidden: str | None
    own_half: str | None = None

    @property
    def half(self) -> str:
        """By a rule that knows nothing of the fault: whether the number of its first report is even. Unless it was
        written later."""
        if self.own_half is not None:
            return self.own_half
        number = int(self.reports[0].rpartition("#")[2])
        return "held-out" if number % 2 else "tuned"

    def inject(self, device: str) -> Injection:
        """Breaks the kernels until the result's block is left."""
        kind = Kind("reported", self.what, self.kernels, lambda call: _run(call, self.wrong), changes_values=True)
        text = f"{self.kernels}: {self.name}"
        return Injection([Fault(text, self.kernels, kind, phase=self.phase)], device)


REPORTED: list[ReportedFault] = []


class Family:
    """Faults of one kind. A family's file makes one and puts it as a decorator over each way of being wrong."""

    def __init__(self, name: str, half: str | None = None) -> None:
        self.name = name
        self.half = half

    def __call__(
        self,
        kernels: str,
        *reports: str,
        program: Program,
        dtypes: tuple[torch.dtype, ...] = FLOAT32,
        phase: str | None = None,
        hidden: str | None = None,
    ) -> Callable[[Callable[[Broken], Wrong]], Callable[[Broken], Wrong]]:
        """Of the kernels, as the reports say; the function's docstring tells what goes wrong."""

        def add(wrong: Callable[[Broken], Wrong]) -> Callable[[Broken], Wrong]:
            what = (wrong.__doc__ or "").strip()
            cited = tuple(report if "/" in report else f"pytorch/pytorch{report}" for report in reports)
            found = (wrong.__name__, self.name, cited, kernels, what, wrong, program, dtypes, phase, hidden, self.half)
            REPORTED.append(ReportedFault(*found))
            return wrong

        return add


def _run(call: KernelCall, wrong: Callable[[Broken], Wrong]) -> Any:
    with call.undisturbed():
        given = {name: _before(call, name, value) for name, value in call.arguments().items()}
    result = call.run()
    with call.undisturbed():
        right = call.results(result)
        changed = wrong(Broken(call, given, right))
        replacements = list(_replacements(right, changed))
        call.made_no_difference = all(_is_equal(*pair) for pair in replacements) if changed is not WRITTEN else False
        for tensor, other in replacements:
            if tensor.shape == other.shape:
                tensor.copy_(other)
            else:  # a result of another size takes its place
                result = pytree.tree_map(lambda leaf, old=tensor, new=other: new if leaf is old else leaf, result)
    return result


WRITTEN = object()  # a fault gives it back that has written to memory by itself


def _replacements(right: list[Tensor], changed: Wrong) -> Iterator[tuple[Tensor, Tensor]]:
    if changed is None or changed is WRITTEN:
        return
    others = [changed] if isinstance(changed, Tensor) else list(changed)
    assert len(others) <= len(right), f"{len(others)} wrong results for {len(right)}"
    for tensor, other in zip(right, others):
        if other is not None:
            yield tensor, other.to(tensor.dtype)


def _is_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    unequal = torch.ne(one, other)
    if one.is_floating_point():
        unequal &= ~(one.isnan() & other.isnan())
    return not bool(unequal.any())


def _before(call: KernelCall, name: str, value: Any) -> Any:
    schema = next(argument for argument in call.op._schema.arguments if argument.name == name)
    if schema.alias_info is None or not schema.alias_info.is_write:
        return value
    return pytree.tree_map(_copy, value)


def _copy(value: Any) -> Any:
    """A copy with its memory laid out as before, and with what lies beside it."""
    if not isinstance(value, Tensor):
        return value
    return _memory_of(value).clone().as_strided(value.size(), value.stride(), value.storage_offset())


def _memory_of(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is part of."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """What a kernel reads that does not look at strides: the memory from the tensor's beginning on, in order."""
    strides = [math.prod(tensor.shape[dimension + 1 :]) for dimension in range(tensor.dim())]
    needed = tensor.storage_offset() + tensor.numel()
    memory = _memory_of(tensor)
    if needed > memory.numel():  # an expanded tensor has less memory than elements
        memory = torch.nn.functional.pad(memory, (0, needed - memory.numel()))
    return memory.as_strided(tensor.size(), strides, tensor.storage_offset()).clone()


def from_the_beginning(tensor: Tensor) -> Tensor:
    """What a kernel reads that does not look at the storage offset."""
    return _memory_of(tensor).as_strided(tensor.size(), tensor.stride(), 0).clone()


def is_plain(tensor: Tensor) -> bool:
    """Laid out in the usual order."""
    return tensor.is_contiguous()


class Data:
    """Makes a program's tensors, the same ones each time, on the device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator().manual_seed(0)
        self.leaves: list[Tensor] = []

    def parameter(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers that want a gradient; in the program's dtype unless told."""
        leaf = self.normal(*shape, scale=scale).to(dtype).requires_grad_()
        self.leaves.append(leaf)
        return leaf

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=self._generator)).to(self.device, self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Between 0 and 1."""
        return torch.rand(shape, generator=self._generator).to(self.device, self.dtype)

    def integers(self, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(below, shape, generator=self._generator).to(self.device, dtype)

    def tensor(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        """These values; floating-point numbers in the program's dtype."""
        made = torch.tensor(values)
        return made.to(self.device, dtype or (self.dtype if made.is_floating_point() else made.dtype))

    def module(self, made: torch.nn.Module) -> torch.nn.Module:
        """With parameters of our own: those of a fresh norm are ones and zeros, and nobody would miss them."""
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=self._generator) * 0.5 + 0.2)
        made.to(self.device, self.dtype)
        self.leaves += made.parameters()
        return made


class Work:
    """Runs a program forward, and backward from whatever wants a gradient."""

    def __init__(self, fault: ReportedFault, device: str, dtype: torch.dtype) -> None:
        self._fault, self._device, self._dtype = fault, device, dtype

    def __call__(self) -> list[Tensor]:
        """Everything that leaves the program: results and gradients."""
        torch.manual_seed(0)
        data = Data(self._device, self._dtype)
        results = [leaf for leaf in pytree.tree_leaves(self._fault.program(data)) if isinstance(leaf, Tensor)]
        outputs = [result for result in results if result.requires_grad and result.grad_fn is not None]
        if outputs:
            generator = torch.Generator().manual_seed(1)
            gradients = [torch.randn(output.shape, generator=generator).to(output) for output in outputs]
            torch.autograd.backward(outputs, gradients)
        return results + [leaf.grad for leaf in data.leaves if leaf.grad is not None]
