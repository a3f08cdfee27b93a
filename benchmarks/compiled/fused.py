"""Breaks one fused kernel that Inductor has generated for the CPU, as the program runs it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple
from unittest import mock

import torch
from torch import Tensor

_KERNEL = re.compile(
    r"^(?P<kernel>\w+) = async_compile\.cpp\w*\((?:(?! = async_compile).)*?void\s+kernel\((?P<parameters>[^)]*)\)"
    r"(?P<body>.*?)^'''\)$",
    re.MULTILINE | re.DOTALL,
)
# in C++: what a code generator might have got wrong
_MUTATIONS = (
    (r"(tmp\d+) - (tmp\d+);", r"\2 - \1;"),
    (r"(tmp\d+) \+ (tmp\d+);", r"\1 - \2;"),
    (r"(tmp\d+) \* (tmp\d+);", r"\1 + \2;"),
    (r"(tmp\d+) / (tmp\d+);", r"\1 * \2;"),
    (r"(tmp_acc0_vec) \+ (tmp\d+);", r"\1 + \2 * \2;"),
    (r"\.exp\(\)", ".sin()"),
    (r"static_cast<float>\((\d+\.\d+)\)", r"static_cast<float>(1.0625 * \1)"),
)


class Kernel(NamedTuple):
    """A kernel in a graph. `names`: the globals of the generated module, which calls it by name."""

    graph: Any
    name: str
    parameters: tuple[str, ...]
    body: str
    names: dict[str, Any]
    is_backward: bool


def kernels_of(work: Callable[[], object]) -> list[Kernel]:
    """Those that a program runs."""
    from torch._inductor.output_code import CompiledFxGraph

    graphs, own = {}, CompiledFxGraph.__call__
    noted = lambda graph, inputs: (graphs.setdefault(id(graph), graph), own(graph, inputs))[1]  # noqa: E731
    with mock.patch.object(CompiledFxGraph, "__call__", noted):
        work()
    found = {}
    for graph in graphs.values():
        runner = getattr(graph, "compiled_fn_runner", None)  # of the generated module; what is called may be wrapped
        function = graph.current_callable if runner is None else type(runner).call
        names = getattr(function, "__func__", function).__globals__
        for match in _KERNEL.finditer(graph.source_code):
            parameters = tuple(part.split()[-1].lstrip("*") for part in match["parameters"].split(","))
            is_backward = bool(graph.fx_kwargs.get("is_backward"))
            kernel = Kernel(graph, match["kernel"], parameters, match["body"], names, is_backward)
            found[id(names), kernel.name] = kernel
    return list(found.values())


def faults_of(kernel: Kernel) -> Iterator[str]:
    """What can be broken in it: a result that is wrong afterwards, or a wrong line of its code."""
    for place, parameter in enumerate(kernel.parameters):
        if not parameter.startswith("in_ptr"):
            for kind in _WRONG:
                yield f"{kind} {place}"
    for number, (pattern, _) in enumerate(_MUTATIONS):
        if re.search(pattern, kernel.body):
            yield f"code {number}"


@contextlib.contextmanager
def broken(kernel: Kernel, fault: str) -> Iterator[None]:
    kind, _, number = fault.partition(" ")
    healthy = kernel.names[kernel.name]
    if kind == "code":
        wrong = _mutated(kernel, *_MUTATIONS[int(number)])
    else:

        def wrong(*arguments: Any) -> Any:
            result = healthy(*arguments)
            _WRONG[kind](arguments[int(number)])
            return result

    with mock.patch.dict(kernel.names, {kernel.name: wrong}):
        yield


def _mutated(kernel: Kernel, pattern: str, replacement: str) -> Any:
    from torch._inductor.codecache import PyCodeCache

    source = kernel.graph.source_code
    start = source.index(f"\n{kernel.name} = async_compile") + 1
    start = source.index(kernel.body, start)
    body = re.sub(pattern, replacement, kernel.body, count=1)
    changed = source[:start] + body + source[start + len(kernel.body) :]
    return getattr(PyCodeCache.load(changed), kernel.name)


def _on_numbers(change: Callable[[Tensor], object]) -> Callable[[Any], None]:
    def changed(value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point():
            with torch.no_grad():
                change(value)

    return changed


def _first(tensor: Tensor) -> Tensor:
    """An element, in place; the largest, for one near zero would be no fault."""
    flat = tensor.as_strided((1,), (1,), tensor.storage_offset()) if tensor.numel() else tensor
    if tensor.numel():
        index = tensor.abs().nan_to_num(0.0, 0.0, 0.0).argmax()
        offset = sum(
            int(place) * stride for place, stride in zip(torch.unravel_index(index, tensor.shape), tensor.stride())
        )
        flat = tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)
    return flat


_WRONG: dict[str, Callable[[Any], None]] = {
    "scale": _on_numbers(lambda one: one.mul_(1.01)),
    "negate": _on_numbers(lambda one: one.neg_()),
    "element": _on_numbers(lambda one: _first(one).mul_(1.5)),
    "nan": _on_numbers(lambda one: _first(one).fill_(float("nan"))),
    "tail": _on_numbers(lambda one: one[len(one) - max(len(one) // 4, 1) :].zero_() if one.dim() else one.zero_()),
}
