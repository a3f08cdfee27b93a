"""Where a call in compiled code comes from: torch.compile keeps the user's line and module of each node of a graph.

Ops of a graph that runs op by op (aot_eager) are called by generated Python, or by fx's interpreter: both are traced
back to the node. Inductor's generated code calls the kernels of libraries: Inductor has a map of its lines.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, Callable, NamedTuple

from torch import fx

_GRAPH_FILE = "<eval_with_key>"  # how fx names the code that it generates, with a number
RUNS_NODE = fx.Interpreter.run_node.__code__  # its local `n` is the node
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)\n(?: {4}(?P<code>.*))?')
# L['self'].layers[0].attn, L['self']._modules['layers']._modules['0'], getattr(L['self'].layers, '0'), L__self___head
_ROOT = re.compile(r"(?:[LG]\['\w+'\]|self|L__self___?)\.?")
_MEMBER = re.compile(r"\._modules\['([^']+)'\]|\['?([^'\]]+)'?\]")


IsOwn = Callable[[str], bool]  # whether a file is torch's or ours, and no user's

# GraphModules that were compiled themselves, by the file of their code
_graph_modules: weakref.WeakValueDictionary[str, fx.GraphModule] = weakref.WeakValueDictionary()

BACKWARD_MARK = "  (its backward)"

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep  # Dynamo compiles it along when a tool is on

# Dynamo continues a function after a break in a function of its own
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")


class Origin(NamedTuple):
    """What a piece of compiled code was made from. `path`: of the module, from the one that was compiled."""

    file: str
    line: int
    function: str
    code: str
    path: str = ""
    module_class: str = ""
    is_backward: bool = False

    def text(self) -> str:
        """`path/norm.py:26 manual_rms_norm: return weight * my_input`, with a mark for the backward pass."""
        mark = BACKWARD_MARK if self.is_backward else ""
        return f"{self.file}:{self.line} {self.function}: {self.code}{mark}"


def is_generated(file: str) -> bool:
    """Whether it is the code of a graph."""
    return file.startswith(_GRAPH_FILE)


def runs(code: CodeType) -> bool:
    """Whether this is compiled code, or what interprets a graph."""
    return code is RUNS_NODE or code.co_filename.startswith(_GRAPH_FILE) or code.co_filename in _line_maps()


def may_run(file: str) -> bool:
    """Whether a file has such code."""
    return file == RUNS_NODE.co_filename or file.startswith(_GRAPH_FILE) or file in _line_maps()


def origin(frame: FrameType, is_own: IsOwn) -> Origin | None:
    """Of what a frame of generated code is doing now; None where torch does not tell."""
    file = frame.f_code.co_filename
    if frame.f_code is RUNS_NODE:
        found = of_node(frame.f_locals.get("n"), is_own)
    elif file.startswith(_GRAPH_FILE):
        found = of_node(_node_in(frame), is_own)
    else:
        found = of_generated_line(file, frame.f_lineno, is_own)
    if found is None or not found.file.startswith(_GRAPH_FILE):
        return found
    return _of_inner_graph(found, frame, is_own)


def _of_inner_graph(place: Origin, frame: FrameType, is_own: IsOwn) -> Origin | None:
    """What was compiled is itself the code of a graph, such as an exported program: it has nodes of its own."""
    above: FrameType | None = frame
    while above is not None:
        running = above.f_locals.get("self") if above.f_code.co_filename == place.file else None
        if isinstance(running, fx.GraphModule):
            _graph_modules[place.file] = running
        above = above.f_back
    module = _graph_modules.get(place.file)  # none is running in backward
    found = None if module is None else of_node(_node_at(module, place.file, place.line), is_own)
    return None if found is None else found._replace(is_backward=place.is_backward)


def of_node(node: Any, is_own: IsOwn) -> Origin | None:
    """Of a node of a graph: the user's line, and the module whose forward it was in."""
    if not isinstance(node, fx.Node):
        return None
    found = of_stack(node.meta.get("stack_trace") or "", is_own)
    if found is None:
        return None
    modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path, kind = "", ""
    if modules:
        entry = list(modules.values())[-1]
        path, kind = _plain_path(str(entry[0])), str(getattr(entry[1], "__name__", entry[1])).rpartition(".")[2]
    return found._replace(path=path, module_class=kind, is_backward=_is_backward(node))


def of_generated_line(file: str, line: int, is_own: IsOwn) -> Origin | None:
    """Of a line of Inductor's generated code."""
    map_of_file = _line_maps().get(file)
    if not map_of_file:
        return None
    lines, stacks = map_of_file
    known = [stack for start, stack in zip(lines, stacks) if start <= line and stack]
    place = of_stack(str(known[-1]), is_own) if known else None
    return None if place is None else where_it_is_now(place)


def of_stack(text: str, is_own: IsOwn) -> Origin | None:
    """The innermost frame of a formatted stack that is the user's own; torch's, if there is no other."""
    frames = [frame for frame in _FRAME.finditer(text) if not frame["file"].startswith(_OURS)]
    users = [frame for frame in frames if not is_own(frame["file"])]
    if not frames:
        return None
    frame = (users or frames)[-1]
    return Origin(frame["file"], int(frame["line"]), users_name(frame["function"]), (frame["code"] or "").strip())


def where_it_is_now(place: Origin) -> Origin:
    """A graph that comes from Inductor's cache names the lines of the run that compiled it.

    They may have moved; or another program has compiled the same graph, whose copy of a file is not the one here.
    """
    loaded = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    if place.file not in loaded:
        name = os.path.basename(place.file)
        copies = [file for file in loaded if os.path.basename(file) == name and place.code in _lines_of(file)]
        if copies:  # the one in folders of the same names
            place = place._replace(file=max(copies, key=lambda file: _common_end(file, place.file)))
    lines = _lines_of(place.file)
    if place.code not in lines or lines[place.line - 1 : place.line] == [place.code]:
        return place
    numbers = [number for number, line in enumerate(lines, 1) if line == place.code]
    return place._replace(line=min(numbers, key=lambda number: abs(number - place.line)))


def _common_end(one: str, other: str) -> int:
    """How many names of folders are the same, from the end."""
    pairs = zip(reversed(one.split(os.sep)), reversed(other.split(os.sep)))
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _lines_of(file: str) -> list[str]:
    return [line.strip() for line in linecache.getlines(file)]


def users_name(function: str) -> str:
    """What the user calls a function that Dynamo has cut into parts."""
    resumed = _RESUMED.fullmatch(function)
    return resumed[1] if resumed else function


def _line_maps() -> dict[str, Any]:
    """Inductor's maps from lines of generated files to stacks; empty where Inductor was never used."""
    module = sys.modules.get("torch._inductor.codecache")
    return getattr(getattr(module, "PyCodeCache", None), "linemaps", {})


def _node_in(frame: FrameType) -> fx.Node | None:
    """The node that a GraphModule's generated `forward` has come to."""
    module = frame.f_locals.get("self")
    return _node_at(module, frame.f_code.co_filename, frame.f_lineno) if isinstance(module, fx.GraphModule) else None


def _node_at(module: Any, file: str, line: int) -> fx.Node | None:
    """The node of a line of a GraphModule's code."""
    nodes = list(module.graph.nodes)
    numbers, start = getattr(module, "_lineno_map", None), getattr(module, "_prologue_start", None)
    if numbers is not None and start is not None:
        number = numbers.get(line - start)
        return nodes[number] if number is not None and number < len(nodes) else None
    # older releases have no map: a line begins with the name of its node
    names = {node.name: node for node in nodes}
    return names.get(linecache.getline(file, line).partition("=")[0].strip())


def _plain_path(path: str) -> str:
    attribute = re.fullmatch(r"getattr\((.*), '(\w+)'\)", path)
    while attribute:
        path = f"{attribute[1]}.{attribute[2]}"
        attribute = re.fullmatch(r"getattr\((.*), '(\w+)'\)", path)
    root = _ROOT.match(path)
    inside = path[root.end() :] if root else path
    path = _MEMBER.sub(lambda member: f".{member[1] or member[2]}", f".{inside}").strip(".")
    path = path.rpartition("cell_contents")[2].strip(".")  # a function's closure has it
    # torch.compile puts a module of its own around the user's
    return ".".join(step for step in path.split(".") if step != "_orig_mod")


def _is_backward(node: fx.Node) -> bool:
    """AOTAutograd's backward graphs take tangents."""
    return any(other.op == "placeholder" and other.name.startswith("tangents") for other in node.graph.nodes)
