"""Cuts a graph that Inductor has compiled into regions: what lies between values that are known when it has run.

A compiled graph keeps its text (ATen ops, each with the user's line) and its generated source. Training graphs return
most of what they compute, for backward: so a region is about one fused kernel, with what it really read and wrote, and
it can be run again op by op, anywhere and in any precision.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from op_tools.core.compiled_code import Origin, is_generated, where_it_is_now
from op_tools.core.where import is_own

_PLACE = re.compile(r"# File: (?P<file>.*?):(?P<line>\d+) in (?P<function>.*?), code: ?(?P<code>.*)")
_IN_PLACE = re.compile(r"torch\.ops\.aten\.(?P<op>\w*[a-z0-9])_\.\w+$")  # copy_, or what needs no copy: index_put_
_DRAWS = re.compile(
    r"\b(?:prims\.inductor_(?:seeds?|random|randint|lookup_seed)|aten\.(?:rand|bernoulli|normal|native_dropout))"
)
_MOVES_ONLY = re.compile(
    r"aten\.(?:permute|view|_unsafe_view|reshape|unsqueeze|squeeze|expand|slice|select|t|alias|as_strided)\."
)
# kernels of libraries: generated code calls them one by one, and each is a call that the tools see anyway
_LIBRARY = re.compile(r"aten\.(?:mm|addmm|bmm|baddbmm|convolution|convolution_backward|_scaled_dot_product_\w+)\.")
_FLOATING = {"float16", "bfloat16", "float32", "float64"}


class UnreadableGraphError(Exception):
    """The text of a graph has something that is not understood: the graph is not looked into."""


class Step(NamedTuple):
    """One node of a graph: `name = op(…)`. `uses`: other nodes; `calls`: the graph's own functions."""

    name: str
    value: ast.expr
    uses: frozenset[str]
    calls: frozenset[str]
    text: str
    place: Origin | None


class GraphText(NamedTuple):
    """What the text of a graph says. An output that is no value of the graph, such as None, is "".

    `written`: values that are in an input's memory in the end, and that input: buffers, caches, an optimizer's state.
    `parts`: the functions that ops of higher order call (cond, scan, flex_attention), by name.
    """

    inputs: list[str]
    steps: list[Step]
    outputs: list[str]
    written: dict[str, str]
    parts: dict[str, ast.FunctionDef]


class Region:
    """A part of a graph that is run again op by op. `reads` and `writes` are names of the graph's values."""

    def __init__(
        self,
        steps: list[Step],
        reads: list[str],
        writes: list[str],
        kernels: list[str],
        label: str,
        parts: Mapping[str, ast.FunctionDef],
    ) -> None:
        self.reads, self.writes = reads, writes
        self.name = f"torch.compile.{kernels[0] if len(kernels) == 1 else f'{label}.{writes[-1]}'}"
        self.line = _line(steps, kernels)  # "" where the graph tells none of the user's
        self._parts = [part for name, part in parts.items() if any(name in step.calls for step in steps)]
        texts = [*(step.text for step in steps), *map(ast.unparse, self._parts)]
        self.draws = any(_DRAWS.search(text) for text in texts)
        self._steps = steps
        self._function: Callable[..., Any] | None = None

    def __call__(self, *values: Any) -> Any:
        """Runs its ops with these inputs: in float64 nothing is rounded to the graph's own dtypes."""
        if self.draws:
            raise NotImplementedError("it draws random numbers inside of compiled code")
        if self._function is None:
            self._function = _compiled(self._steps, self.reads, self.writes, self._parts)
        tensors = [value for value in values if isinstance(value, Tensor)]
        device = tensors[0].device if tensors else torch.device("cpu")
        floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        is_wide = torch.float64 in floating
        results = self._function(_as_double if is_wide else _as_it_is, device, *values)
        return results[0] if len(self.writes) == 1 else results


def _as_it_is(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _as_double(dtype: torch.dtype) -> torch.dtype:
    return torch.float64


def read(text: str) -> GraphText:
    """Reads the text of a graph: a module with one function, `forward`."""
    try:
        module = ast.parse(text.replace("class <lambda>(", "class GraphModule("))  # so it is called without gradients
    except SyntaxError as error:
        raise UnreadableGraphError(f"its text has {error.msg} in line {error.lineno}") from None
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    if len(classes) != 1:
        raise UnreadableGraphError(f"it has {len(classes)} modules")
    parts = {node.name: _as_function(node) for node in classes[0].body if isinstance(node, ast.ClassDef)}
    function = _forward(classes[0])
    inputs = [argument.arg for argument in function.args.args[1:]]
    places = _places(text)
    steps, outputs = [], None
    for node in function.body:
        if isinstance(node, ast.Return):
            outputs = _names(node.value)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not _is_none(node.value):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if not isinstance(target, ast.Name) or node.value is None:
                raise UnreadableGraphError(f"line {node.lineno} has no plain name")
            if target.id not in parts:
                used, value = _used(node.value), node.value
                uses, calls = used.difference(parts), used.intersection(parts)
                steps.append(Step(target.id, value, uses, calls, ast.unparse(value), places[node.lineno]))
    if outputs is None or any("self" in step.uses for step in steps):
        raise UnreadableGraphError("it has constants of its own")
    return GraphText(inputs, _in_order(steps), outputs, _written(steps, inputs), parts)


def _forward(module: ast.ClassDef) -> ast.FunctionDef:
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            return node
    raise UnreadableGraphError(f"{module.name} has no forward")


def _as_function(module: ast.ClassDef) -> ast.FunctionDef:
    """A module inside of a graph, as a function of its arguments."""
    inner = {node.name: _as_function(node) for node in module.body if isinstance(node, ast.ClassDef)}
    function = _forward(module)
    own = [
        node for node in function.body if not (isinstance(node, ast.Assign) and ast.unparse(node.value)[5:] in inner)
    ]
    if any(isinstance(name, ast.Name) and name.id == "self" for node in own for name in ast.walk(node)):
        raise UnreadableGraphError("it has constants of its own")
    function.name, function.args.args, function.body = module.name, function.args.args[1:], [*inner.values(), *own]
    return function


def _changed_by(step: Step) -> str:
    """The value that it writes into; "" where it makes a new one."""
    call = step.value
    return _first_argument(step) if isinstance(call, ast.Call) and _IN_PLACE.match(ast.unparse(call.func)) else ""


def _first_argument(step: Step) -> str:
    call = step.value
    first = call.args[0] if isinstance(call, ast.Call) and call.args else None
    return first.id if isinstance(first, ast.Name) else ""


def _in_order(steps: list[Step]) -> list[Step]:
    """What is read after it was written in place, also by way of a view, uses what wrote it."""
    roots: dict[str, str] = {}  # by name of a step: of which step it is a view, or itself
    writers: dict[str, str] = {}  # by root: the last step that wrote into it
    ordered = []
    for step in steps:
        wrote = [writers[roots[name]] for name in step.uses if roots.get(name) in writers]
        ordered.append(step._replace(uses=step.uses.union(wrote)))
        changed = _changed_by(step)
        base = changed or (_first_argument(step) if _MOVES_ONLY.search(step.text) else "")
        roots[step.name] = roots.get(base, step.name)
        if changed in roots:
            writers[roots[changed]] = step.name
    return ordered


def _roots_written(steps: list[Step]) -> set[str]:
    """The values that steps write into, also by way of a view."""
    roots: dict[str, str] = {}
    found = set()
    for step in steps:
        changed = _changed_by(step)
        base = changed or (_first_argument(step) if _MOVES_ONLY.search(step.text) else step.name)
        roots[step.name] = roots.get(base, base)
        if changed:
            found.add(roots[step.name])
    return found


def _written(steps: list[Step], inputs: list[str]) -> dict[str, str]:
    last: dict[str, str] = {}  # by input: one may be written several times
    for step in steps:
        place = _changed_by(step)
        if place in inputs:
            source = step.value.args[1] if ".copy_." in step.text else None  # type: ignore[attr-defined]
            last[place] = source.id if isinstance(source, ast.Name) else step.name
    return {value: name for name, value in last.items()}


def cut(graph: GraphText, kernels: Mapping[str, list[str]], label: str) -> list[Region]:
    """The regions of a graph, each as small as the values that are known allow. `kernels`: by name of a value."""
    by_name = {step.name: step for step in graph.steps}
    order = {step.name: place for place, step in enumerate(graph.steps)}
    outputs = sorted({name for name in (*graph.outputs, *graph.written) if name in by_name}, key=order.__getitem__)
    slices: list[tuple[list[str], set[str]]] = []  # outputs, and the steps that lead to them from what is known
    known = {*graph.inputs, *outputs}
    for output in outputs:
        steps = _slice(output, by_name, known)
        joined, apart = [output], []
        for others, theirs in slices:  # what two outputs have in common is computed once
            if any(not _MOVES_ONLY.search(by_name[name].text) for name in steps & theirs):
                joined, steps = others + joined, steps | theirs
            else:
                apart.append((others, theirs))
        slices = [*apart, (joined, steps)]
    regions = []
    for writes, names in slices:
        steps_of = [by_name[name] for name in sorted(names, key=order.__getitem__)]
        if not any(_is_fused(step, kernels) for step in steps_of):
            continue
        used = dict.fromkeys(name for step in steps_of for name in sorted(step.uses))
        reads = [name for name in used if name in known and name not in names]
        named = list(dict.fromkeys(kernel for step in steps_of for kernel in kernels.get(step.name, ())))
        regions.append(Region(steps_of, reads, writes, named, label, graph.parts))
    return regions


def _is_fused(step: Step, kernels: Mapping[str, list[str]]) -> bool:
    """Whether a kernel computes it that Inductor has generated."""
    is_call = _LIBRARY.search(step.text) or isinstance(step.value, ast.Subscript)
    return step.name in kernels or not (is_call or _MOVES_ONLY.search(step.text))


def _slice(output: str, by_name: dict[str, Step], known: set[str]) -> set[str]:
    """The steps from known values to this output."""
    found, waiting = {output}, list(by_name[output].uses)
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in known and name not in found:
            found.add(name)
            waiting.extend(by_name[name].uses)
    return found


def _compiled(
    steps: list[Step], reads: list[str], writes: list[str], parts: list[ast.FunctionDef]
) -> Callable[..., Any]:
    """A function of the values that are read; the dtypes and the device that the graph names are arguments.

    What it writes into them, it writes into copies: they are shown as they were given.
    """
    changed = _roots_written(steps) & set(reads)
    copies = [ast.parse(f"{name} = {name}.clone()").body[0] for name in sorted(changed)]
    body = [
        ast.Assign([ast.Name(step.name, ast.Store())], _Freed().visit(ast.parse(step.text, mode="eval").body))
        for step in steps
    ]
    returned = ast.Return(ast.Tuple([ast.Name(name, ast.Load()) for name in writes], ast.Load()))
    arguments = ast.arguments([], [ast.arg(name) for name in ("_dtype", "_device", *reads)], None, [], [], None, [])
    own = [_Freed().visit(ast.parse(ast.unparse(part)).body[0]) for part in parts]
    function = ast.FunctionDef("region", arguments, [*own, *copies, *body, returned], [])
    if hasattr(function, "type_params"):
        function.type_params = []
    module = ast.fix_missing_locations(ast.Module([function], []))
    names: dict[str, Any] = {"torch": torch, "inf": float("inf"), "nan": float("nan")}
    exec(compile(module, "<graph of torch.compile>", "exec"), names)  # noqa: S102  torch's own text, of this process
    return names["region"]  # type: ignore[no-any-return]


class _Freed(ast.NodeTransformer):
    """Frees an expression from the dtypes and the device that it was compiled for."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in _FLOATING:
            return ast.Call(ast.Name("_dtype", ast.Load()), [node], [])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "device":
            return ast.Name("_device", ast.Load())
        return node


def _line(steps: list[Step], kernels: list[str]) -> str:
    """The user's line that a region ends in, the others that are fused with it, and the kernels."""
    places = list(dict.fromkeys(step.place for step in steps if step.place is not None and _is_of_user(step.place)))
    if not places:
        return ""
    others = sorted({f"{place.file.rpartition('/')[2]}:{place.line}" for place in places[:-1]})
    notes = ([f"fused with {', '.join(others)}"] if others else []) + kernels
    return places[-1].text() + (f"  ({'; '.join(notes)})" if notes else "")


def _is_of_user(place: Origin) -> bool:
    return not (is_own(place.file) or is_generated(place.file))


def _places(text: str) -> dict[int, Origin | None]:
    """By the number of a line: the user's line that the comment above it names."""
    found: dict[int, Origin | None] = {}
    place: Origin | None = None
    for number, line in enumerate(text.splitlines(), 1):
        comment = line.strip()
        if comment.startswith("#"):
            match = _PLACE.match(comment)
            place = match and where_it_is_now(
                Origin(match["file"], int(match["line"]), match["function"], match["code"].strip())
            )
        found[number] = place
    return found


def _names(value: ast.expr | None) -> list[str]:
    elements: Iterable[ast.expr | None] = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    return [element.id if isinstance(element, ast.Name) else "" for element in elements]


def _used(value: ast.expr) -> frozenset[str]:
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return frozenset(names - {"torch", "device", "inf", "nan"})


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
