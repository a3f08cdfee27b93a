"""Rooms import only downwards, and no modules import each other; lazy imports and those for types count, too."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import op_tools

ROOT = Path(op_tools.__file__).parent
# from the bottom to the top; rooms of one line do not import each other
LAYERS = (
    {"errors"},
    {"settings"},
    {"values"},
    {"output"},
    {"native"},
    {"ops"},
    {"device"},
    {"storage"},
    {"core"},
    {
        "autocompare",
        "capture",
        "timing",
        "overflow",
        "reroute",
        "observe",
        "monitor",
        "losses",
        "perturbation",
        "watch",
    },
    {"replay"},
    {"compare_runs", "export", "reproduce"},
    {"run", "run_op_from_data", "process_monitor", "public"},
    {"__init__"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def modules():
    """Every module of op_tools and its file."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(["op_tools", *(part for part in parts if part != "__init__")])] = file
    return found


def imports(source, known):
    """What a module imports of op_tools, anywhere in its source: the module and the line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names = [f"{module}.{alias.name}" if f"{module}.{alias.name}" in known else module for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "op_tools":
                yield name, node.lineno


def graph():
    known = modules()
    return {module: list(imports(file.read_text(encoding="utf-8"), known)) for module, file in known.items()}


def room(module):
    return module.split(".")[1] if "." in module else "__init__"


def is_downwards(source, target):
    return room(source) == room(target) or LEVEL[room(source)] > LEVEL[room(target)]


def test_every_room_has_its_layer():
    assert {room(module) for module in modules()} == set(LEVEL)


def test_rooms_import_only_downwards():
    upwards = [
        f"{source} line {line} imports {target}"
        for source, targets in graph().items()
        for target, line in targets
        if not is_downwards(source, target)
    ]
    assert not upwards, "\n".join(upwards)


def circle(edges):
    """The modules of a circle of imports; nothing where there is none."""
    done: set[str] = set()

    def visit(module, path):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target, _ in edges.get(module, ()):
            found = visit(target, [*path, module])
            if found:
                return found
        done.add(module)
        return []

    return next(filter(None, (visit(module, []) for module in edges)), [])


def test_no_module_imports_itself_in_a_circle():
    found = circle(graph())
    assert not found, " imports ".join(found)


def test_lazy_imports_and_those_for_types_are_seen():
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from op_tools.core.tool import Tool\n"
        "def later():\n    import op_tools.observe\n    from op_tools.output import tables\n"
    )
    known = ("op_tools.core.tool", "op_tools.output.tables")
    found = [("op_tools.core.tool", 3), ("op_tools.observe", 5), ("op_tools.output.tables", 6)]
    assert sorted(imports(source, known)) == found
    assert not is_downwards("op_tools.ops.names", "op_tools.core.tool")
    assert not is_downwards("op_tools.capture.tool", "op_tools.timing.tool")
    assert circle({"a": [("b", 1)], "b": [("c", 1)], "c": [("b", 1)]}) == ["b", "c", "b"]


def test_no_module_has_a_name_of_the_standard_library():
    """`python op_tools/run_op_from_data.py` puts the folder first on the path of every import."""
    names = {path.stem for path in ROOT.iterdir() if not path.name.startswith("__")}
    assert not names & set(getattr(sys, "stdlib_module_names", ()))
