"""Writes a case as a script: readable, with its numbers in it where they fit, else in a file beside it."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import torch
from torch import Tensor

from op_tools.errors import CaptureError
from op_tools.reproduce import check
from op_tools.reproduce.case import Base, Case
from op_tools.storage.encoding import ForeignDevice

MAX_LITERALS = 128  # numbers of a tensor that are written out
DATA = "reproduce.pt"
_HELPERS = (check.tensors_in, check.run, check.run_on_device, check.difference, check.error, check.times_too_far)

_HEAD = '''"""{name} is wrong on {device}. Needs torch only.

    python reproduce.py [DEVICE]

It runs the op on DEVICE and in float64 on the CPU, prints both and how far they are apart, and exits with 1 while the
fault is there. Where this machine has no such device, what {device} gave when it was recorded is compared instead.
{origin}
"""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path
from typing import Any, Callable

import torch
from torch import inf, nan

MAX_TIMES_USUAL_ERROR = {factor}  # how many times larger than the CPU's own error in this dtype the device's may be
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "{type}"
AUTOCAST = {autocast}
{load}
{tensors}


def arguments(place, device, dtype):
    """`place` puts a tensor on the device; `dtype` is float64 for the right result."""
{body}


def op(*args, **kwargs):
    return {call}(*args, **kwargs)


'''

_TAIL = '''

def on_device():
    """What the device gives now, and in words where that comes from."""
    with contextlib.suppress(ImportError):  # a chip whose package torch does not load by itself
        import ditorch
    try:
        torch.empty(1, device=DEVICE)
    except Exception as reason:
        return RECORDED, f"as recorded on {device} ({{DEVICE}} cannot be used here: {{str(reason).splitlines()[0]}})"
    return run_on_device(op, arguments, GRADIENTS, AUTOCAST, DEVICE), f"on {{DEVICE}}, now"


def main():
    got, origin = on_device()
    near = run(op, arguments, GRADIENTS, AUTOCAST, "cpu")
    want = run(op, arguments, GRADIENTS, AUTOCAST, "cpu", torch.float64)
    torch.set_printoptions(threshold=40, edgeitems=3, precision=7)
    print(f"{name}, torch {{torch.__version__}}: {{origin}}")
    wrong = []
    for name in got:
        if name not in want or name not in near:
            continue
        ratio = times_too_far(got[name], near[name], want[name])
        (largest, norm), (own_largest, own_norm) = error(got[name], want[name]), error(near[name], want[name])
        print(f"\\n{{name}}\\n  got        {{got[name]}}\\n  expected   {{want[name]}}")
        if got[name].shape == want[name].shape:
            print(f"  difference {{difference(got[name], want[name])}}")
        own = f"of the CPU in the same dtype {{own_largest:.3g}}, {{own_norm:.3g}}"
        print(f"  error: largest {{largest:.3g}}, norm {{norm:.3g}}; {{own}}")
        if ratio > 1:
            wrong.append(name)
            print(f"  WRONG: {{ratio:.3g}} times further off than allowed")
    print(f"\\n{{'wrong: ' + ', '.join(wrong) if wrong else 'all right'}}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
'''


def source(case: Case, recorded: dict[str, Tensor], device: str) -> tuple[str, dict[str, Tensor]]:
    """The script, and the tensors that go into the file beside it."""
    writer = _Writer(case)
    gradients = [None if one is None else writer.tensor(f"gradient_{n}", one) for n, one in enumerate(case.gradients)]
    noted = {name: writer.tensor(f"recorded_{name.replace(' ', '_')}", one) for name, one in recorded.items()}
    lines = [*writer.lines, f"GRADIENTS = [{', '.join(str(one) for one in gradients)}]  # of the results, in backward"]
    lines.append(f"RECORDED = {{{', '.join(f'{name!r}: {one}' for name, one in noted.items())}}}")
    origin = f"\nCaptured at {case.where}{f' in {case.module}' if case.module else ''}.\n" if case.where else ""
    head = _HEAD.format(
        name=case.name,
        device=device,
        origin=origin.replace('"""', "'''").replace("\\", "/").rstrip("\n") + "\n" if origin else "",
        factor=check.MAX_TIMES_USUAL_ERROR,
        type=device if device != "the device" else "cuda",
        autocast=case.autocast,
        load=f'DATA = torch.load(Path(__file__).with_name("{DATA}"), weights_only=True)' if writer.data else "",
        tensors="\n".join(lines),
        body=textwrap.indent(writer.body(), "    "),
        call=_call(case.name),
    )
    helpers = "\n\n".join(inspect.getsource(one) for one in _HELPERS)
    tail = _TAIL.format(device=device, name=case.name)
    return head + helpers + tail, writer.data


def _call(name: str) -> str:
    """The expression that finds the op."""
    if name.startswith("torch."):
        return name
    namespace = name.replace("::", ".").partition(".")[0]
    if hasattr(torch.ops, namespace) and name.isascii():
        return f"torch.ops.{name.replace('::', '.')}"
    raise CaptureError(f"{name} is no op of torch: a script that needs torch only cannot call it")


class _Writer:
    """Gathers the tensors of a script, as literals or for the file."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.lines: list[str] = []
        self.data: dict[str, Tensor] = {}
        self._views: dict[int, str] = {}
        self._placed: list[str] = []
        for number, base in enumerate(case.bases()):
            self._add_base(f"x{number}", base)

    def _add_base(self, name: str, base: Base) -> None:
        whole = self.tensor(name.upper(), base.tensor.detach(), base.requires_grad)
        self._placed.append(f"{name} = place({whole})")
        for view in base.views:
            strided = f".as_strided({tuple(view.shape)}, {view.stride()}, {view.storage_offset()})"
            self._views[id(view)] = name + (strided if base.is_flat else "")

    def tensor(self, name: str, tensor: Tensor, requires_grad: bool = False) -> str:
        """Puts it down under this name, and gives the name."""
        needs = ".requires_grad_()" if requires_grad else ""
        dtype, shape = str(tensor.dtype), tuple(tensor.shape)
        is_plain = tensor.layout is torch.strided and tensor.is_contiguous() and not _has_complex_infinity(tensor)
        if tensor.numel() <= MAX_LITERALS and is_plain:
            literal = _literal(tensor)
            self.lines.append(f"{name} = torch.tensor({literal}, dtype={dtype}){_shaped(tensor)}{needs}")
        else:
            self.data[name] = tensor.detach().clone(memory_format=torch.preserve_format)
            self.lines.append(f'{name} = DATA["{name}"]{needs}  # {shape}, {dtype}, strides {_strides(tensor)}')
        return name

    def body(self) -> str:
        args = ", ".join(self._expression(value) for value in self._case.args)
        args += "," if len(self._case.args) == 1 else ""
        kwargs = ", ".join(f"{key!r}: {self._expression(value)}" for key, value in self._case.kwargs.items())
        return "\n".join([*self._placed, f"return ({args}), {{{kwargs}}}"])

    def _expression(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._views[id(value)]
        if isinstance(value, (torch.device, ForeignDevice)):
            return "torch.device(device)"
        if isinstance(value, torch.dtype):
            exact = "dtype" if value.is_floating_point else "dtype and torch.complex128" if value.is_complex else ""
            return f"({exact} or {value})" if exact else str(value)
        if isinstance(value, torch.Size):
            return f"torch.Size({list(value)})"
        if isinstance(value, (torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self._expression, value))}]"
        if isinstance(value, tuple):
            return f"({', '.join(map(self._expression, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self._expression(one)}' for key, one in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({', '.join(self._expression(one) for one in (value.start, value.stop, value.step))})"
        if value is None or isinstance(value, (bool, int, float, complex, str, range)) or value is Ellipsis:
            return "..." if value is Ellipsis else repr(value)
        raise CaptureError(f"an argument cannot be written into a script: {value!r}")


def _literal(tensor: Tensor) -> str:
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    values = tensor.detach().to(torch.float64) if tensor.is_floating_point() else tensor.detach()
    return repr(values.tolist()) if tensor.numel() or tensor.dim() == 1 else "[]"


def _has_complex_infinity(tensor: Tensor) -> bool:
    """Python has no literal for it."""
    return tensor.is_complex() and not bool(tensor.isfinite().all())


def _shaped(tensor: Tensor) -> str:
    return "" if tensor.numel() or tensor.dim() == 1 else f".reshape({tuple(tensor.shape)})"


def _strides(tensor: Tensor) -> str:
    return str(tensor.stride()) if tensor.layout is torch.strided else str(tensor.layout)
