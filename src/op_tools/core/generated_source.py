"""What the source that Inductor has generated tells: its kernels, what each computes, and which memory it takes again.

Triton's kernels stand under comments with the names of the graph's values. C++ has no such comments: there the buffers
are followed, from the call that writes one to the graph's result that it becomes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence

_KERNEL = re.compile(r"^(?P<kernel>\w+) = async_compile\.", re.MULTILINE)
_RETURNS = re.compile(r"^#   return (?P<names>.*)$", re.MULTILINE)
_COMPUTES = re.compile(r"^#   %(?P<name>\w+) .*?= call_function\[", re.MULTILINE)
_REUSES = re.compile(r"^(?P<line>.*)(?:#|//) reuse$", re.MULTILINE)
_PARAMETERS = re.compile(
    r"^(?P<kernel>\w+) = async_compile\.cpp\w*\((?:(?! = async_compile).)*?void\s+kernel\((?P<all>[^)]*)\)",
    re.MULTILINE | re.DOTALL,
)


def kernels_of(
    source: str, outputs: Sequence[str] = (), written: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """By the name of a value: the kernels that compute it, as far as the source tells.

    `outputs`: the graph's values that the source returns. `written`: by value, the input that it is written into.
    """
    return {**_behind_results(source, outputs, written or {}), **_in_comments(source)}


def overwritten(source: str, inputs: Sequence[str]) -> set[int]:
    """The places of inputs whose memory the generated source takes for a result: activations, in backward."""
    names = {name for line in _REUSES.finditer(source) for name in re.findall(r"\w+", line["line"])}
    return {place for place, name in enumerate(inputs) if name in names}


def _in_comments(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    start = 0
    for match in _KERNEL.finditer(source):
        comments = source[start : match.start()]
        names = {name["name"] for name in _COMPUTES.finditer(comments)}
        for returned in _RETURNS.finditer(comments):
            names.update(name.strip().lstrip("%") for name in returned["names"].split(","))
        found.update((name, [match["kernel"]]) for name in names)
        start = match.end()
    return found


def _behind_results(source: str, outputs: Sequence[str], written: Mapping[str, str]) -> dict[str, list[str]]:
    """Of C++: all kernels between a result and what a tool sees before it."""
    parameters = {
        match["kernel"]: [part.split()[-1].lstrip("*") for part in match["all"].split(",") if part.strip()]
        for match in _PARAMETERS.finditer(source)
    }
    functions = _functions(source) if parameters else {}
    body = _without_blocks(functions.pop("call").body) if "call" in functions else []
    returned = [_first_buffer(element) for element in _elements(body[-1])] if body else []
    if len(returned) != len(outputs):
        return {}
    inside = {
        name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in parameters}
        for name, function in functions.items()
    }
    flow = _Flow(parameters, inside, {*returned, *written.values()})
    for statement in body:
        flow.follow(statement)
    order = list(parameters)
    return {
        value: sorted(flow.made[buffer], key=order.index)
        for value, buffer in (*zip(outputs, returned), *written.items())
        if value and flow.made.get(buffer)
    }


class _Flow:
    """Follows buffers through the calls of kernels, and of functions with kernels `inside`: branches, loops.

    `known`: those that a tool sees; what reads one begins there.
    """

    def __init__(self, parameters: Mapping[str, list[str]], inside: Mapping[str, set[str]], known: set[str]) -> None:
        self.made: dict[str, set[str]] = {}  # by buffer: the kernels that it comes from
        self._bases: dict[str, str] = {}  # by buffer: the one that it is a part of
        self._parameters, self._inside, self._known = parameters, inside, known

    def follow(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            # another name for the same memory, a part of it, or the result of a library's kernel
            name, read = statement.targets[0].id, _buffers(statement.value)
            self.made[name] = self._behind(read) | self.made.get(name, set()) | self._called(statement.value)
            if _is_view(statement.value):
                self._bases[name] = read[0]
        elif isinstance(statement, ast.Delete):  # what is left of it is taken for something else
            gone = {target.id for target in statement.targets if isinstance(target, ast.Name)}
            self._bases = {name: base for name, base in self._bases.items() if base not in gone}
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._call(statement.value)

    def _call(self, call: ast.Call) -> None:
        kernel = call.func.id if isinstance(call.func, ast.Name) else ""
        given = [_first_buffer(argument) for argument in call.args]
        if kernel in self._parameters:
            pairs = list(zip(self._parameters[kernel], given))
            made = {kernel, *self._behind(name for parameter, name in pairs if parameter.startswith("in_ptr"))}
            made.update(*(self.made.get(name, ()) for parameter, name in pairs if parameter.startswith("in_out_ptr")))
            changed = [name for parameter, name in pairs if not parameter.startswith("in_ptr")]
        else:
            outs = [_first_buffer(keyword.value) for keyword in call.keywords if keyword.arg == "out"]
            changed = outs or given[:1]  # without `out`, it works in place
            made = self._behind(_buffers(call)).union(*(self.made.get(name, ()) for name in changed if not outs))
        self.made.update(dict.fromkeys(changed, made))
        for name in changed:  # as the parts of a `cat` are
            base = self._bases.get(name)
            if base is not None:
                self.made[base] = self.made.get(base, set()) | made

    def _called(self, expression: ast.expr) -> set[str]:
        name = expression.func.id if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) else ""
        return self._inside.get(name, set())

    def _behind(self, buffers: Iterable[str]) -> set[str]:
        return set().union(*(self.made.get(name, ()) for name in buffers if name not in self._known))


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    """`call`, which calls the kernels, and the functions that it calls."""
    try:
        module = ast.parse(source)
    except SyntaxError:
        return {}
    return {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}


def _without_blocks(body: list[ast.stmt]) -> list[ast.stmt]:
    """`with` chooses a device, `if` a branch of torch.cond: both are followed."""
    found: list[ast.stmt] = []
    for one in body:
        blocks = [getattr(one, name, []) for name in ("body", "orelse")]
        found += _without_blocks([*blocks[0], *blocks[1]]) if any(blocks) else [one]
    return found


def _elements(statement: ast.stmt) -> list[ast.expr]:
    is_tuple = isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple)
    return statement.value.elts if is_tuple else []  # type: ignore[attr-defined]


def _is_view(expression: ast.expr) -> bool:
    is_call = isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name)
    return isinstance(expression, ast.Name) or (is_call and expression.func.id == "reinterpret_tensor")  # type: ignore[attr-defined]


def _first_buffer(expression: ast.expr) -> str:
    return next(iter(_buffers(expression)), "")


def _buffers(expression: ast.AST) -> list[str]:
    """The names in it, in order, but for those of functions."""
    if isinstance(expression, ast.Name):
        return [expression.id]
    if isinstance(expression, ast.Call):  # a method's object is a buffer: buf0.data_ptr()
        parts = [*([expression.func] if isinstance(expression.func, ast.Attribute) else []), *expression.args]
        parts += [keyword.value for keyword in expression.keywords]
    else:
        parts = list(ast.iter_child_nodes(expression))  # type: ignore[arg-type]
    return [name for part in parts for name in _buffers(part)]
