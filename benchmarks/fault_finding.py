"""Does OpAutoCompare name the guilty op, and nothing else? Single faults in models and ops, one at a time.

    python benchmarks/fault_finding.py [--device sim] [--only GPT] [--every 4] [--jobs 2] [--json FILE]
    python benchmarks/fault_finding.py --device cuda --tf32 on --every 0    healthy runs alone, tf32 allowed

Each fault breaks one kernel of the device (docs/faults.md) for one training step, or for one call of a single op. The
call that used the broken kernel must be blamed, in the pass that used it. Two rules stand side by side: the contract's
allclose, and the calibrated verdict. Healthy runs of the same models, each with other weights and data, count false
alarms. At the end: the smallest wrong factor that is found, for each dtype.

Exit code 1 if a goal is missed: 99 % of the faults found by the verdict, no false alarm on the simulated accelerator.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import functools
import io
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["DITORCH_DISABLE_MOCK"] = "1"  # nothing here is written for CUDA

from benchmarks import models

MEASURES = ("max_abs_diff", "max_relative_diff", "cosine_distance", "max_ulp", "mean_ulp", "rmse_ratio", "severity")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# ---- what is broken ----------------------------------------------------------------------------------------------

ANY = ("scale=1.01", "tail=0.25", "negate", "nan@one", "tail=1")
ONLY_FLOAT32 = ("scale=1.001", "round=bfloat16", "scale=1.5@one")
ONLY_16_BITS = ("scale=8@one",)  # the element that is hit may be a small one
ACCUMULATING = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_overrideable", "sum", "mean")
# kernel: faults that fit it alone
SPECIAL = {
    "addmm": ("drop=self",),
    "convolution": ("drop=bias",),
    "convolution_overrideable": ("drop=bias",),
    "native_layer_norm": ("epsilon=1000", "drop=bias"),
    "native_batch_norm": ("epsilon=1000", "drop=bias"),
    "_fused_rms_norm": ("epsilon=1000",),
    "rsqrt": (),
    "embedding": ("index=1",),
    "embedding_dense_backward": ("index=1",),
    "nll_loss_forward": ("index=1",),
    "nll_loss_backward": ("index=1",),
    "sub": ("swap",),
    "div": ("swap",),
    "tanh_backward": ("swap",),
    "sigmoid_backward": ("swap",),
    "gelu_backward": ("swap",),
}
# They compute nothing, or nothing that a comparison could be made with.
NOT_BROKEN = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "ones_like", "zeros_like", "zeros",
    "ones", "detach", "copy_", "_to_copy", "clone", "fill_", "zero_", "full", "full_like", "arange",
    "_local_scalar_dense", "new_zeros", "scalar_tensor", "is_same_size", "resize_", "lift_fresh", "contiguous",
    "rand", "randn", "uniform_", "normal_", "bernoulli_", "native_dropout", "to", "new_full", "new_ones", "equal",
    "is_nonzero", "set", "_cudnn_rnn_flatten_weight",
)  # fmt: skip


class Kernels(TorchDispatchMode):
    """Notes which kernels a step uses, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[tuple[str, str], None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        phase = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
        name = func._schema.name.partition("::")[2]
        if func.namespace == "aten" and not func.is_view and name not in NOT_BROKEN:
            self.used[name.rstrip("_") if not name.startswith("_") else name, phase] = None
        return func(*args, **(kwargs or {}))


def faults_for(kernels: list[tuple[str, str]], dtype: str) -> Iterator[tuple[str, str, str]]:
    """(kernel, phase, fault in the grammar of ditorch.sim.faults)."""
    for kernel, phase in kernels:
        kinds = [*ANY, *SPECIAL.get(kernel, ())]
        if dtype == "float32":
            kinds += ONLY_FLOAT32
            if kernel in ACCUMULATING:
                kinds.append("accumulate=bfloat16")
        else:
            kinds += ONLY_16_BITS
        for kind in kinds:
            yield kernel, phase, f"aten.{kernel}: {kind}, phase={phase}"


# ---- what uses it ------------------------------------------------------------------------------------------------


TRAINING_STEPS = 150


class ModelWork:
    """A training step of a model, without its optimizer: forward and backward from the same weights each time."""

    def __init__(self, name: str, dtype: str, device: str) -> None:
        self.name, self._device = name, device
        make, data = models.SMALL[name]
        torch.manual_seed(0)
        self._model = make()
        for parameter in self._model.parameters():  # biases begin at zero and norms at one: nobody would miss them
            if parameter.dim() == 1:
                parameter.data += 0.2 * torch.randn(parameter.shape)
        self._model.to(device=device, dtype=DTYPES[dtype])
        self._dtype, self._first_data = DTYPES[dtype], data()
        self._set_data(self._first_data)
        self._weights = [parameter.detach().clone() for parameter in self._model.parameters()]

    def _set_data(self, data: list[torch.Tensor]) -> None:
        self._data = [part.to(self._device, self._dtype if part.is_floating_point() else None) for part in data]

    def vary(self, number: int) -> None:
        """Other weights and data, so that a healthy step is not the last one again; 0: as at first.

        Some are those of a model that has been trained until it is certain, on the data that it knows.
        """
        generator = torch.Generator().manual_seed(number)
        is_certain = number % 5 == 4
        spread = 0.01 if is_certain else 0.3 if number else 0.0
        weights = self._certain_weights() if is_certain else self._weights
        with torch.no_grad():
            for parameter, first in zip(self._model.parameters(), weights):
                factors = 1 + spread * torch.randn(first.shape, generator=generator)
                parameter.copy_(first * factors.to(first))
        known = is_certain or not number
        self._set_data([part if known else _varied(part, generator) for part in self._first_data])

    @functools.cache  # noqa: B019  there are few of them
    def _certain_weights(self) -> list[torch.Tensor]:
        """After some training, with weights in float32."""
        self.vary(0)
        weights = [first.detach().float().clone().requires_grad_() for first in self._weights]
        optimizer = torch.optim.Adam(weights, lr=1e-2)
        for _ in range(TRAINING_STEPS):
            self()
            for parameter, weight in zip(self._model.parameters(), weights):
                weight.grad = None if parameter.grad is None else parameter.grad.float()
            optimizer.step()
            with torch.no_grad():
                for parameter, weight in zip(self._model.parameters(), weights):
                    parameter.copy_(weight)
        return [weight.detach().to(self._dtype) for weight in weights]

    def __call__(self) -> list[torch.Tensor]:
        """The loss and the gradients."""
        self._model.zero_grad()
        loss = self._model.loss(*self._data)
        loss.backward()
        gradients = [parameter.grad for parameter in self._model.parameters()]
        return [part for part in (loss, *gradients) if part is not None]

    def exact(self) -> list[torch.Tensor]:
        """Whether a fault matters to a model, its loss and gradients tell by themselves."""
        return []


def changed_by(fault: str, work: Any) -> str:
    """What a fault does to all that leaves the work: `nothing` (a kernel's result may be thrown away), a `rounding`,
    which is a few units in the last place of a few numbers or makes errors no larger, or `something`."""
    from ditorch.sim import faults

    healthy = [part.detach().cpu() for part in work()]
    with faults.inject(fault):
        changed = [part.detach().cpu() for part in work()]
    exact = work.exact() or [None] * len(healthy)
    pairs = [three for three in zip(healthy, changed, exact) if not three[0].equal(three[1])]
    if not pairs:
        return "nothing"
    return "rounding" if all(_is_rounding(*three) for three in pairs) else "something"


def _varied(data: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if data.is_floating_point():
        return torch.randn(data.shape, generator=generator)
    return torch.randint(int(data.max()) + 1, data.shape, generator=generator)


class OpWork:
    """One op of torch's own op_db on some of its samples, forward and backward."""

    def __init__(self, op: Any, samples: list[Any], device: str) -> None:
        self.name = op.name
        self._op, self._device = op, device
        self._samples = [((sample.input, *sample.args), sample.kwargs) for sample in samples]

    def __call__(self) -> list[torch.Tensor]:
        """Its results and gradients."""
        return [part for sample in self._samples for part in self._run(*sample, self._moved)]

    def exact(self) -> list[torch.Tensor]:
        """The same in float64 on the CPU; empty where that does not go."""
        try:
            return [part for sample in self._samples for part in self._run(*sample, self._in_higher_precision)]
        except (RuntimeError, NotImplementedError):
            return []

    def _run(self, args: Any, kwargs: Any, moved: Callable[[Any], Any]) -> list[torch.Tensor]:
        from torch.utils import _pytree as pytree

        args, kwargs = pytree.tree_map(moved, (args, kwargs))
        torch.manual_seed(0)
        result = self._op.op(*args, **kwargs)
        outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
        if outputs:
            generator = torch.Generator().manual_seed(1)
            gradients = [torch.randn(x.shape, generator=generator).to(x) for x in outputs]
            torch.autograd.backward(outputs, gradients)
        made = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        given = [x.grad for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        return [x for x in (*made, *given) if x is not None]

    def vary(self, number: int) -> None:
        """The op's sample stays what it is."""

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(self._device).requires_grad_(value.requires_grad)
        return torch.device(self._device) if isinstance(value, torch.device) or value == "cpu" else value

    def _in_higher_precision(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)


SAMPLES = 4  # of each op
# nobody can tell whether fewer numbers than this, each off by so many units of its last place, are wrong or rounded
ROUNDED_NUMBERS, ROUNDING_UNITS = 8, 4
# nor is there anything to find where the errors, the largest and the root of their mean square, are as good as those of
# the healthy kernel
NO_LARGER = 1.1

# Ops of op_db with kernels of their own, beside those that the models use.
SINGLE_OPS = (
    "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "pow", "mul", "div", "sub", "atan2",
    "cumsum", "logsumexp", "prod", "var", "std", "norm", "matmul", "bmm", "baddbmm", "addmv", "outer", "softmax",
    "log_softmax", "nn.functional.softplus", "nn.functional.elu", "nn.functional.silu", "nn.functional.mish",
    "nn.functional.leaky_relu", "nn.functional.hardswish", "nn.functional.group_norm", "nn.functional.layer_norm",
    "nn.functional.batch_norm", "nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv_transpose2d",
    "nn.functional.avg_pool2d", "nn.functional.max_pool2d", "nn.functional.adaptive_avg_pool2d",
    "nn.functional.interpolate", "nn.functional.linear", "nn.functional.embedding", "nn.functional.cross_entropy",
    "nn.functional.mse_loss", "nn.functional.kl_div", "nn.functional.smooth_l1_loss",
    "nn.functional.scaled_dot_product_attention", "nn.functional.normalize", "nn.functional.gelu",
    "nn.functional.pad", "gather", "scatter_add", "index_add", "index_select", "take_along_dim", "masked_fill",
    "where", "roll", "flip", "tril", "cat", "stack", "lerp", "addcmul", "addcdiv", "clamp", "maximum", "fmod",
    "remainder", "hypot", "linalg.inv", "linalg.cholesky", "cdist", "einsum", "trace", "kron", "cross",
)  # fmt: skip


def op_works(dtype: str, device: str) -> Iterator[OpWork]:
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = dict.fromkeys(SINGLE_OPS)
    for op in op_db:
        if op.name not in wanted or op.variant_test_name or not op.supports_dtype(DTYPES[dtype], "cpu"):
            continue
        gradient = op.supports_autograd and DTYPES[dtype] in op.supported_backward_dtypes("cpu")
        samples = itertools.islice(op.sample_inputs("cpu", DTYPES[dtype], requires_grad=gradient), 12)
        plain = [sample for sample in samples if _can_be_compared(op, sample)]
        if plain:  # the largest say the most
            yield OpWork(op, sorted(plain, key=_size)[-SAMPLES:], device)


def _is_rounding(healthy: torch.Tensor, changed: torch.Tensor, exact: torch.Tensor | None) -> bool:
    if not healthy.is_floating_point() or healthy.shape != changed.shape:
        return False
    if exact is not None and exact.shape == healthy.shape:
        usual, errors = (one.double() - exact for one in (healthy, changed))
        measures = (lambda one: one.abs().max(), lambda one: one.square().mean())
        if all(bool(measure(errors) <= NO_LARGER * measure(usual)) for measure in measures):
            return True
    unit = torch.finfo(healthy.dtype).eps * healthy.double().abs()
    distance = (healthy.double() - changed.double()).abs()
    return bool((distance <= ROUNDING_UNITS * unit).all()) and int((distance > 0).sum()) < ROUNDED_NUMBERS


def _can_be_compared(op: Any, sample: Any) -> bool:
    from op_tools.autocompare.arguments import Arguments
    from op_tools.autocompare.judging import random_ops
    from op_tools.autocompare.observed import ObservedCall

    given = Arguments((sample.input, *sample.args), sample.kwargs)
    if random_ops.is_random(ObservedCall(f"torch.{op.name}", op.op, given, None, None)):
        return False  # attention with dropout
    return isinstance(sample.input, torch.Tensor) or bool(sample.args)


def _size(sample: Any) -> int:
    return sample.input.numel() if isinstance(sample.input, torch.Tensor) else 0


# ---- one run -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Who used the broken kernel, and who was blamed by which rule. A call is its id and its pass."""

    used: set[tuple[int, str]] = field(default_factory=set)
    guilty: set[int] = field(default_factory=set)
    blamed: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    places: dict[int, tuple[str, str]] = field(default_factory=dict)  # line and module of those that used it
    calls: int = 0
    values: int = 0
    alarms: dict[str, list[str]] = field(default_factory=dict)


def observed(work: Callable[[], object], injected: Any, reference: str, spares: bool = True) -> Outcome:
    """Runs the work once under OpAutoCompare, with a second tool that notes which calls the fault has struck.

    `spares`: what the tool itself runs on the device uses healthy kernels. On a real chip it would not. Beside the CPU
    it runs nothing there but calls with dropout inside once more, which are what is compared: these meet the fault.
    """
    import op_tools

    struck = (lambda: sum(injected.effective.values())) if injected is not None else (lambda: 0)
    healthy = functools.partial(spared, injected if spares and reference != "cpu" else None)
    outcome = Outcome(blamed={"allclose": set(), "verdict": set()}, alarms={"allclose": [], "verdict": []})

    class Compare(op_tools.OpAutoCompare):
        """With `spares`, the device as reference is a healthy one: it cannot see what higher precision shares."""

        def before(self, call: Any) -> Any:
            with healthy():
                return super().before(call)

        def after(self, call: Any, state: Any) -> Any:
            with healthy():
                return super().after(call, state)

        def flowed(self, call: Any, state: Any, gradients: Any) -> None:
            with healthy():
                super().flowed(call, state, gradients)

        def stopped(self) -> None:
            with healthy():
                super().stopped()

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        with Compare(verbose=0, out=folder, reference=reference), truth(outcome, struck):
            work()
        for path in Path(folder).glob("op_autocompare_result/*.csv"):
            with open(path, newline="") as file:
                for row in csv.DictReader(file):
                    _take(row, outcome)
    return outcome


def truth(outcome: Outcome, struck: Callable[[], int]) -> Any:
    """A tool that notes which calls a fault has struck."""
    from op_tools.core.tool import Tool

    class Truth(Tool):
        hook, prefix = "TruthHook", "TRUTH"
        innermost = watches_gradients = times_gradients = True

        def before(self, call: Any) -> int:
            return struck()

        def after(self, call: Any, before: int) -> list[int]:
            outcome.calls += 1
            if struck() > before:
                # what forward has computed wrong and kept, backward uses
                self._used(call, "forward", "backward")
            return [0]

        def begins(self, call: Any, state: list[int]) -> None:
            state[0] = struck()

        def ends(self, call: Any, state: list[int]) -> None:
            if struck() > state[0]:
                self._used(call, "backward")

        def _used(self, call: Any, *phases: str) -> None:
            outcome.used.update((call.id, phase) for phase in phases)
            outcome.guilty.add(call.id)
            outcome.places[call.id] = (call.where.line(), call.where.module)

    return Truth(verbose=0)


@contextlib.contextmanager
def spared(injected: Any) -> Iterator[None]:
    """In this block the kernels are healthy, in every thread: the reference's backward pass has one of its own."""
    installed = [one for one in ([] if injected is None else injected._active) if "apply" not in vars(one)]
    for one in installed:
        one.apply = lambda op, device_type, args, kwargs, run: run(*args, **kwargs)
    try:
        yield
    finally:
        for one in installed:
            del one.apply


def _take(row: dict[str, str], outcome: Outcome) -> None:
    outcome.values += 1
    name, _, what = row["name"].partition(" ")
    call = (int(row["forward_id"]), "backward" if what.startswith("grad") else "forward")
    for rule, is_blamed in (("allclose", row["allclose"] != "True"), ("verdict", row["verdict"] == "wrong")):
        if is_blamed:
            outcome.blamed[rule].add(call)
            numbers = ", ".join(f"{column} {row[column]}" for column in MEASURES if row[column])
            outcome.alarms[rule].append(f"{name} {what}: {row['reason'] or 'not close'} ({numbers}; {row['where']})")


# ---- a batch of runs, in a process of its own --------------------------------------------------------------------


@dataclass
class Fault:
    """What came of one fault."""

    work: str
    dtype: str
    kernel: str
    phase: str
    text: str
    used: int
    found: dict[str, bool]
    right: dict[str, int]  # blamed calls that used the kernel
    wrong: dict[str, int]  # blamed calls that did not
    seconds: float


@dataclass
class Batch:
    """Everything about one model in one dtype, or single ops in one dtype."""

    work: str
    dtype: str
    faults: list[Fault] = field(default_factory=list)
    healthy_calls: int = 0
    healthy_values: int = 0
    alarms: dict[str, list[str]] = field(default_factory=lambda: {"allclose": [], "verdict": []})
    limits: dict[str, float] = field(default_factory=dict)
    roundings: int = 0  # faults that only round a few numbers otherwise, and are not counted
    seconds: float = 0.0


def run_batch(job: tuple[str, str, argparse.Namespace]) -> Batch:
    name, dtype, options = job
    device, reference = options.device, options.reference
    torch.set_num_threads(1)
    if options.tf32 != "default":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32 == "on"
    warnings.simplefilter("ignore")
    _start(device)
    begin = time.perf_counter()
    batch = Batch(name, dtype)
    works = list(op_works(dtype, device)) if name == "ops" else [ModelWork(name, dtype, device)]
    with contextlib.redirect_stderr(io.StringIO()):
        for index, work in enumerate(works):
            if not _works(work):
                continue
            for number in range(options.healthy_steps if name != "ops" else 1):
                if time.perf_counter() - begin > options.healthy_seconds:
                    break
                work.vary(number)
                _healthy(batch, work, reference)
            if not options.every:
                continue
            work.vary(0)
            kernels = _kernels_of(work)
            # of the many combinations some, and others for each dtype and op
            planned = list(faults_for(kernels, dtype))
            step = options.every * 4 if name == "ops" else options.every
            planned = planned[(index + list(DTYPES).index(dtype) + options.offset) % step :: step]
            for kernel, phase, text in planned:
                work.vary(0)  # a fault may have struck the weights themselves
                _broken(batch, work, dtype, kernel, phase, text, reference)
        if name == "GPT" and options.every and not options.no_limits:
            batch.limits = _limits(works[0], reference)
    batch.seconds = time.perf_counter() - begin
    return batch


def _start(device: str) -> None:
    if device == "sim":
        from ditorch import sim

        sim.start()


def _works(work: Callable[[], object]) -> bool:
    try:
        work()
    except (RuntimeError, NotImplementedError):
        return False  # the device does not have it
    return True


def _healthy(batch: Batch, work: Callable[[], object], reference: str) -> None:
    outcome = observed(work, None, reference)
    batch.healthy_calls += outcome.calls
    batch.healthy_values += outcome.values
    for rule, alarms in outcome.alarms.items():
        batch.alarms[rule] += alarms


def _kernels_of(work: Callable[[], object]) -> list[tuple[str, str]]:
    with Kernels() as kernels:
        work()
    return list(kernels.used)


def _broken(batch: Batch, work: Any, dtype: str, kernel: str, phase: str, text: str, reference: str) -> None:
    from ditorch.errors import FaultError
    from ditorch.sim import faults

    begin = time.perf_counter()
    try:
        change = changed_by(text, work)
        batch.roundings += change == "rounding"
        if change != "something":
            return
        with faults.inject(text) as injected:
            outcome = observed(work, injected, reference)
    except (FaultError, IndexError):
        return  # the kernel has no such argument or is none; or what is broken raises, and needs no tool to be found
    if not outcome.used:
        return  # an op that no tool sees, such as the ones_like at the start of backward
    right = {rule: len({call for call, _ in outcome.used & blamed}) for rule, blamed in outcome.blamed.items()}
    batch.faults.append(
        Fault(
            work.name,
            dtype,
            kernel,
            phase,
            text,
            len(outcome.guilty),
            {rule: count > 0 for rule, count in right.items()},
            right,
            {rule: len({call for call, _ in blamed - outcome.used}) for rule, blamed in outcome.blamed.items()},
            time.perf_counter() - begin,
        )
    )


def _limits(work: Callable[[], object], reference: str) -> dict[str, float]:
    """For some kernels of the GPT: the smallest wrong factor that is blamed, of 10 %, 3 %, 1 %, 0.3 % …"""
    from ditorch.sim import faults

    found = {}
    for kernel, phase in (
        ("addmm", "forward"),
        ("mm", "backward"),
        ("native_layer_norm", "forward"),
        ("native_layer_norm_backward", "backward"),
        ("gelu", "forward"),
        ("embedding_dense_backward", "backward"),
    ):
        for exponent, mantissa in itertools.product(range(1, 8), (1, 0.3)):
            share = mantissa * 10.0**-exponent
            with faults.inject(f"aten.{kernel}: scale={1 + share:.12g}, phase={phase}") as injected:
                outcome = observed(work, injected, reference)
            if not outcome.used & outcome.blamed["verdict"]:
                break
            found[f"{kernel} {phase}"] = share
    return found


# ---- the report --------------------------------------------------------------------------------------------------


def table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(
            column, justify="left" if column in ("work", "rule", "kernel", "fault", "chip", "reference") else "right"
        )
    for row in rows:
        shown.add_row(*map(str, row))
    Console(width=140).print(shown)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def report(batches: list[Batch], options: argparse.Namespace) -> None:
    rows = []
    for batch in batches:
        for rule in ("allclose", "verdict"):
            right = sum(fault.right[rule] for fault in batch.faults)
            blamed = right + sum(fault.wrong[rule] for fault in batch.faults)
            rows.append(
                (
                    batch.work,
                    batch.dtype,
                    rule,
                    len(batch.faults),
                    share(sum(fault.found[rule] for fault in batch.faults), len(batch.faults)),
                    share(right, sum(fault.used for fault in batch.faults)),
                    share(right, blamed),
                    f"{batch.healthy_calls:,}",
                    len(batch.alarms[rule]),
                    f"{batch.seconds:.0f} s" if rule == "verdict" else "",
                )
            )
    columns = (
        "work", "dtype", "rule", "faults", "found", "calls found", "precision", "healthy calls", "false alarms", "time",
    )  # fmt: skip
    table("Single faults, one at a time", columns, rows)
    missed = [
        (fault.work, fault.dtype, fault.kernel, fault.text.partition(": ")[2])
        for batch in batches
        for fault in batch.faults
        if not fault.found["verdict"]
    ]
    if missed:
        table("Not found by the verdict", ("work", "dtype", "kernel", "fault"), missed)
    for batch in batches:
        for alarm, times in collections.Counter(batch.alarms["verdict"]).most_common(options.alarms):
            print(f"false alarm in {batch.work}, {batch.dtype} ({times} times): {alarm}")
    limits = {batch.dtype: batch.limits for batch in batches if batch.limits}
    if limits:
        kernels = dict.fromkeys(kernel for found in limits.values() for kernel in found)
        rows = [
            (kernel, *(f"{100 * found[kernel]:g} %" if kernel in found else "–" for found in limits.values()))
            for kernel in kernels
        ]
        table("Smallest wrong factor found (GPT)", ("kernel", *limits), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim")
    parser.add_argument("--only", nargs="*", default=[*models.SMALL, "ops"], help="models, or ops")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--reference", default="cpu")
    parser.add_argument("--healthy-steps", type=int, default=50)
    parser.add_argument("--healthy-seconds", type=float, default=1e9, help="no more healthy steps after so long")
    parser.add_argument("--no-limits", action="store_true", help="the smallest factors found are not asked for")
    parser.add_argument("--every", type=int, default=4, help="of all faults, every so many; 1: all, an hour; 0: none")
    parser.add_argument("--offset", type=int, default=0, help="others of them: limits were set with 0 in view")
    parser.add_argument("--tf32", choices=("default", "on", "off"), default="default", help="CUDA's matrix units")
    parser.add_argument("--alarms", type=int, default=20, help="false alarms that are listed, for each work and dtype")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jobs = [(name, dtype, options) for name in options.only for dtype in options.dtypes]
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, maxtasksperchild=1) as pool:
        batches = pool.map(run_batch, jobs, chunksize=1) if options.jobs > 1 else [run_batch(job) for job in jobs]
    report(batches, options)
    if options.json:
        options.json.write_text(json.dumps([asdict(batch) for batch in batches], indent=1))
    found = [fault.found["verdict"] for batch in batches for fault in batch.faults]
    alarms = sum(len(batch.alarms["verdict"]) for batch in batches)
    calls = sum(batch.healthy_calls for batch in batches)
    recall = sum(found) / max(len(found), 1)
    roundings = sum(batch.roundings for batch in batches)
    if roundings:
        print(
            f"not counted: {roundings} faults that change fewer than {ROUNDED_NUMBERS} numbers, by at most "
            f"{ROUNDING_UNITS} units in the last place, or whose errors are at most {NO_LARGER} times the healthy ones"
        )
    print(f"{len(found)} faults, {100 * recall:.2f} % found; {alarms} false alarms in {calls:,} healthy calls")
    sys.exit(recall < 0.99 or (options.device == "sim" and alarms > 0))


if __name__ == "__main__":
    main()
