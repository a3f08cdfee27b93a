"""The entries of the op matrix: what torch's wheel lists of ops, python references, modules and optimizers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch

from ditorch_conformance.ops import samples
from ditorch_conformance.ops.recipe import DTYPES, is_chosen
from ditorch_conformance.ops.samples import Call
from ditorch_conformance.results import full_name

# nvrtc compiles their source at run time: CUDA's alone, and no op of torch's
_LEFT_OUT = ("jiterator",)
_FLOATS = ("float64", "float32", "bfloat16", "float16")


class Entry:
    """One op, module or optimizer."""

    def __init__(self, name: str, dtypes: list[str], calls: Callable[[torch.dtype], Iterator[Call]]) -> None:
        self.name = name
        self.dtypes = dtypes
        self._calls = calls

    def calls(self, dtype: str) -> Iterator[Call]:
        return self._calls(getattr(torch, dtype))


def entries(patterns: list[str], on_cpu: bool) -> dict[str, Entry]:
    """All that are chosen, by name. `on_cpu`: only with the dtypes that torch promises there."""
    sources = (_ops, _modules, _optimizers, _references)  # references go through other entries' kernels: they come last
    found = (entry for source in sources for entry in source(on_cpu))
    return {entry.name: entry for entry in found if is_chosen(entry.name, patterns)}


def _ops(on_cpu: bool) -> Iterator[Entry]:
    from torch.testing._internal.common_methods_invocations import op_db

    return _of(op_db, on_cpu)


def _references(on_cpu: bool) -> Iterator[Entry]:
    from torch.testing._internal.common_methods_invocations import python_ref_db

    return _of(python_ref_db, on_cpu)


def _of(ops: Iterable[Any], on_cpu: bool) -> Iterator[Entry]:
    for op in ops:
        if not op.name.startswith(_LEFT_OUT):
            promised = op.supported_dtypes("cpu") if on_cpu else _promised(op)
            yield Entry(full_name(op), _names(promised), functools.partial(samples.of_op, op))


def _promised(op: Any) -> set[torch.dtype]:
    return {*op.supported_dtypes("cpu"), *op.supported_dtypes("cuda")}


def _modules(_: bool) -> Iterator[Entry]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        # the list has only what torch tests; modules are used in 16 bits
        dtypes = [*_FLOATS] if torch.float32 in info.dtypes else _names(info.dtypes)
        yield Entry(f"nn.{info.module_cls.__name__}", dtypes, functools.partial(samples.of_module, info))


def _optimizers(_: bool) -> Iterator[Entry]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        yield Entry(f"optim.{info.name}", [*_FLOATS], functools.partial(samples.of_optimizer, info))


def _names(dtypes: Any) -> list[str]:
    known = {str(dtype).partition(".")[2] for dtype in dtypes}
    return [name for name in DTYPES if name in known]
