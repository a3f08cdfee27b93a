"""Examines the machine: which accelerators are there, why others are not, and whether the chosen one computes right.

`ditorch doctor` prints it. Nothing here prints. The health check is coarse on purpose: a dozen ops that every training
run needs, called wrong only where no common shortcut (TensorFloat-32, float16 convolutions) explains the error. The
exact look at a program's own ops is OpAutoCompare's.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional

import ditorch
from ditorch import discover
from ditorch.backend import Backend
from ditorch.backends import BUILT_IN
from ditorch.discover import Finding
from ditorch.errors import DitorchError
from ditorch.settings import DISABLE_MOCK
from ditorch.surroundings import Asked, Check, answered, answers_to, look_around, look_at_cpu

SCHEMA = "ditorch.doctor/1"

TOLERANCE = 3e-3  # of the largest value: half-precision products stay below, an error of 1 % does not
COMMAND_LINES = 12
COMMAND_SECONDS = 20


@dataclass(frozen=True)
class Device:
    name: str
    total_memory: int | None  # bytes; None: the device does not tell
    free_memory: int | None


@dataclass(frozen=True)
class Report:
    versions: dict[str, str]  # python, torch, ditorch, and the vendors' packages that are installed
    findings: list[Finding]
    backend: Backend | None  # the chosen one
    problem: str | None  # why none could be chosen
    devices: list[Device]
    collectives: str
    command: str | None  # the vendor's command and the first lines it prints
    checks: list[Check]  # kernels: forward and backward on the device, against the CPU in float64
    surroundings: list[Check]  # everything else that a program needs

    @property
    def healthy(self) -> bool:
        checks = (*self.checks, *self.surroundings)
        return self.problem is None and all(check.problem is None for check in checks)

    def as_json(self) -> dict[str, Any]:
        """What `ditorch doctor --json` prints; docs/backends.md describes it."""
        findings = [
            {
                "name": one.name,
                "title": one.title,
                "here": one.reason is None,
                "fails": one.failed,
                "reason": one.reason,
            }
            for one in self.findings
        ]
        return {
            "schema": SCHEMA,
            "healthy": self.healthy,
            "versions": self.versions,
            "backend": None if self.backend is None else self.backend.name,
            "device_type": None if self.backend is None else self.backend.device_type,
            "problem": self.problem,
            "backends": findings,
            "devices": [asdict(device) for device in self.devices],
            "collectives": self.collectives,
            "command": self.command,
            "checks": [check._asdict() for check in (*self.checks, *self.surroundings)],
        }


def examine() -> Report:
    """Everything about this machine; the chosen accelerator is started."""
    backend, problem = _chosen()
    surroundings = [look_at_cpu()]
    checks = check_health(backend.device_type) if backend else []
    surroundings += look_around(backend, ditorch._redirect is not None) if backend else []
    known: list[Device] = []
    if backend:
        listed = answered("devices", lambda: known.extend(devices(backend)), _ADVICE)
        surroundings += [listed] if listed.problem else []
    findings = discover.survey(_probed)  # last: it imports every vendor's package that is installed
    return Report(
        versions=_versions([finding.backend for finding in findings if finding.backend]),
        findings=findings,
        backend=backend,
        problem=problem,
        devices=known,
        collectives=collectives(backend) if backend else "",
        command=command_output(backend) if backend else None,
        checks=checks,
        surroundings=surroundings,
    )


_ADVICE = (
    "run the ops concerned on the CPU (op_tools.OpFallback) or in another dtype (OpDtypeCast), and tell the vendor"
)


def _chosen() -> tuple[Backend | None, str | None]:
    """The accelerator, or why there is none. A vendor's package that hangs when it is imported is a reason."""
    found: list[Backend] = []
    problems: list[str] = []

    def choose() -> None:
        try:
            found.append(ditorch._backend or (discover.choose() if DISABLE_MOCK.get() else ditorch.install()))
        except DitorchError as error:
            problems.append(str(error))

    check = answered("choosing an accelerator", choose)
    if check.problem:
        return None, f"{check.name.capitalize()} {check.problem}; {check.advice or 'the table above tells more'}."
    return (found[0], None) if found else (None, problems[0])


def _probed(name: str) -> Finding:
    """The same as discover's, within a time limit."""
    found: list[Finding] = []
    check = answered(f"looking for {name}", lambda: found.append(discover.probed(name)))
    return found[0] if found else Finding(name, BUILT_IN.get(name), f"looking for it {check.problem}", failed=True)


# ---- what is there -----------------------------------------------------------------------------------------------


def _versions(backends: Sequence[Backend]) -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ditorch": ditorch.__version__,
        "system": platform.platform(),
    }
    for backend in backends:
        version = _version(backend.module) if backend.module else None
        if backend.module and version:
            versions[backend.module] = version
    return versions


def _version(module: str) -> str | None:
    """The version of the package that a module comes from; None where it is not installed."""
    top = module.partition(".")[0]
    distributions = [top]
    if sys.version_info >= (3, 10):  # habana_frameworks comes from habana-torch-plugin
        distributions += importlib.metadata.packages_distributions().get(top, [])
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return getattr(sys.modules.get(module), "__version__", None)


def devices(backend: Backend) -> list[Device]:
    """The devices of a backend; what its module cannot tell is left out."""
    module = backend.device_module()
    count = module.device_count() if hasattr(module, "device_count") else 1
    return [_device(module, index) for index in range(count)]


def _device(module: Any, index: int) -> Device:
    properties = _ask(module, "get_device_properties", index)
    free, total = _ask(module, "mem_get_info", index) or (None, None)
    return Device(
        name=_ask(module, "get_device_name", index) or getattr(properties, "name", None) or f"device {index}",
        total_memory=total or getattr(properties, "total_memory", None),
        free_memory=free,
    )


def _ask(module: Any, question: str, index: int) -> Any:
    """A vendor's answer, or None where it has none: some modules lack the function, some raise in it."""
    try:
        return getattr(module, question)(index)
    except Exception:  # noqa: BLE001 - what is not told is shown as unknown; the checks below find what is broken
        return None


def collectives(backend: Backend) -> str:
    """Whether several processes can talk on this backend, in a few words."""
    name = backend.collectives
    if name is None:
        return f"{backend.title} has none"
    if not torch.distributed.is_available():
        return "this PyTorch is built without torch.distributed"
    told = getattr(torch.distributed, f"is_{name}_available", None)
    available = told() if told else name in torch.distributed.Backend.backend_list
    return f"{name} is available" if available else f"{name} is not available"


def command_output(backend: Backend) -> str | None:
    """The first lines of the vendor's own command; None where the vendor has none."""
    if backend.command is None:
        return None
    words = shlex.split(backend.command)
    if shutil.which(words[0]) is None:
        return f"{words[0]}: not found"
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{backend.command}: {error}"
    lines = done.stdout.strip().splitlines()
    code = f" (exit code {done.returncode})" if done.returncode else ""
    return "\n".join([f"{backend.command}{code}", *lines[:COMMAND_LINES]])


# ---- whether it computes right -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Op:
    name: str
    run: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]  # of the floating-point inputs; each gets a gradient


def _embedding(weight: Tensor) -> Tensor:
    return functional.embedding(torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]).to(weight.device), weight)


def _cross_entropy(logits: Tensor) -> Tensor:
    return functional.cross_entropy(logits, torch.tensor([2, 7, 1, 8]).to(logits.device))


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


_OPS = (
    _Op("mm", torch.mm, ((33, 65), (65, 17))),
    _Op("addmm", torch.addmm, ((17,), (33, 65), (65, 17))),
    _Op("linear", functional.linear, ((4, 33, 65), (17, 65), (17,))),
    _Op("softmax", lambda x: torch.softmax(x, -1), ((8, 65),)),
    _Op("layer_norm", lambda x, w, b: functional.layer_norm(x, (65,), w, b), ((8, 65), (65,), (65,))),
    _Op("gelu", functional.gelu, ((8, 65),)),
    _Op("embedding", _embedding, ((10, 33),)),
    _Op("conv2d", lambda x, w, b: functional.conv2d(x, w, b, padding=1), ((2, 3, 16, 16), (8, 3, 3, 3), (8,))),
    _Op("cross_entropy", _cross_entropy, ((4, 10),)),
    _Op("scaled_dot_product_attention", _attention, ((2, 4, 16, 32),) * 3),
    _Op("sum", lambda x: x.sum(0), ((8, 65),)),
    _Op("sort", lambda x: torch.sort(x, -1), ((8, 65),)),
    _Op("cumsum", lambda x: torch.cumsum(x, -1), ((8, 65),)),
)


def check_health(device: str) -> list[Check]:
    """A dozen ops on the device; an op that raises is a problem like one that computes wrong."""
    questions = [Asked(op.name, partial(_compare, op, device), _ADVICE) for op in _OPS]
    tie = "tie the weights again after module.to(device)"
    questions.append(Asked("module.to keeps tied weights", partial(_untied, device), tie))
    return answers_to(questions)


def _compare(op: _Op, device: str) -> str | None:
    random = torch.Generator("cpu").manual_seed(0)  # its own, so that the program's random numbers stay as they are
    inputs = [torch.randn(shape, generator=random) for shape in op.shapes]
    expected = _forward_and_backward(op, inputs, "cpu", torch.float64)
    got = _forward_and_backward(op, inputs, device, torch.float32)
    problems = [f"{part} {wrong}" for part in expected if (wrong := _difference(expected[part], got[part]))]
    return "; ".join(problems) or None


def _forward_and_backward(op: _Op, inputs: list[Tensor], device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs and gradients by name, on the CPU."""
    moved = [tensor.to(dtype).to(device).requires_grad_() for tensor in inputs]
    result = op.run(*moved)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    differentiable = [output for output in outputs if output.requires_grad]
    # not all ones: the gradient of softmax would be zero everywhere
    seeds = [
        torch.linspace(-1, 2, output.numel(), dtype=torch.float32).reshape(output.shape).to(dtype).to(device)
        for output in differentiable
    ]
    gradients = torch.autograd.grad(differentiable, moved, seeds)
    named = {"output" if len(outputs) == 1 else f"output {i}": tensor for i, tensor in enumerate(outputs)}
    named.update({f"gradient {i}": tensor for i, tensor in enumerate(gradients)})
    return {name: tensor.detach().cpu() for name, tensor in named.items()}


def _difference(expected: Tensor, got: Tensor) -> str | None:
    if got.shape != expected.shape:
        return f"has shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
    if not expected.is_floating_point():
        return None if torch.equal(expected, got) else "is not the CPU's"
    if not got.isfinite().all():
        return "is not finite"
    largest = float(expected.abs().max())
    error = float((got.double() - expected).abs().max()) / largest
    return f"is off by {error:.1%} of the largest value" if error > TOLERANCE else None


def _untied(device: str) -> str | None:
    # Where PyTorch cannot swap the tensor inside a parameter, each module gets a parameter of its own, and training
    # goes silently wrong.
    first, second = torch.nn.Module(), torch.nn.Module()
    first.weight = second.weight = torch.nn.Parameter(torch.ones(2))
    torch.nn.ModuleList([first, second]).to(device)
    return None if first.weight is second.weight else "two modules that shared a weight have one each afterwards"
