"""Where in the user's program an op is called: the source line, and the nn.Module whose forward it is in.

Both are asked for at every call, so only a code object, an instruction and a module are noted there. They are formatted
when they are read.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Callable

import torch
from torch.autograd.function import FunctionCtx
from torch.fx import GraphModule
from torch.nn import Module

from op_tools.core import compiled_code
from op_tools.core.compiled_code import Origin
from op_tools.core.source_line import RunInLine, SourceLine

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_OWN_FOLDERS = (
    os.path.dirname(torch.__file__) + os.sep,
    *(
        os.path.join(_PACKAGES, *part) + os.sep
        for part in (
            ("op_tools",),
            ("ditorch_shared",),  # dynamo.py stands between torch and our modes in older releases
            ("ditorch", "autoload"),
            ("ditorch", "redirect"),
            ("ditorch", "sim"),
        )
    ),
)
# copy.deepcopy, functools and their like call torch in the user's name; what is installed may lie below
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
# of plain files; those of compiled code are not in it, for the C++ helper leaves it to us where it meets one
_is_users_file: dict[str, bool] = {}
# the function that runs a module's forward; its local `self` is the module
_CALLS_FORWARD = Module._call_impl.__code__

_lines: dict[tuple[int, int], SourceLine] = {}  # by the id of its code object and the instruction
_MAX_LINES = 20_000

# by the id of a code object of torch.compile's and the instruction: that code object, and what it was made from
_origins: dict[tuple[int, int], tuple[CodeType, Origin | None]] = {}

# id of a module: the module, and its path from the outermost module that was running when it was first seen
_paths: dict[int, tuple[weakref.ref[Module], str]] = {}


# by autograd's context of a call of compiled code: the module that was running, and the line that called
_forwards: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Module] | None, str]] = weakref.WeakKeyDictionary()


class Where:
    """A place in the user's program; cheap to make, formatted on demand.

    `module` is the path of the nn.Module whose forward this is in, such as `layers.3.self_attn.q_proj`; "" if in none.
    `stack` is the whole Python stack, where OP_TOOLS_PRINT_STACK asks for it.
    """

    __slots__ = ("module", "source", "stack")

    def __init__(self, code: CodeType | None, instruction: int, module: str, stack: str | None) -> None:
        source = _lines.get((id(code), instruction))
        # another code object may have the id of one that is gone
        self.source = source if source is not None and source.code is code else _new_line(code, instruction)
        self.module = module
        self.stack = stack

    def line(self) -> str:
        """`path/norm.py:26 manual_rms_norm: return weight * my_input`."""
        return self.source.text or self.source.format()


def _new_line(code: CodeType | None, instruction: int) -> SourceLine:
    if len(_lines) >= _MAX_LINES:
        _lines.clear()
    made = _lines[id(code), instruction] = SourceLine(code, instruction)
    return made


class RecordedWhere(Where):
    """A place that was formatted earlier, by the run that a capture comes from."""

    __slots__ = ("_line",)

    def __init__(self, line: str, path: str) -> None:
        super().__init__(None, 0, path, None)
        self._line = line

    def line(self) -> str:
        return self._line


NOWHERE = Where(None, 0, "", None)
_pretended: list[Where] = []


@contextmanager
def pretended(where: Where) -> Iterator[None]:
    """While a captured call is run again, its place is the one in the user's program, not ours."""
    _pretended.append(where)
    try:
        yield
    finally:
        _pretended.pop()


_find_frame: Callable[[dict[str, bool], CodeType], tuple[CodeType, int, Any] | None] | None = None  # the C++ helper's


def choose_way(helper: Any) -> None:
    """With the C++ helper, or without (None)."""
    global _find_frame
    _find_frame = None if helper is None else helper.find_frame


def for_helper() -> tuple[Any, ...]:
    """What the C++ helper needs to find a place, and to name it."""
    return _is_users_file, _CALLS_FORWARD, _paths, _pretended, _named


def _named(code: CodeType, instruction: int, module: Any) -> tuple[str, str, RunInLine]:
    """A place that the helper has found: its line, its module, and what runs ops there."""
    found = Where(code, instruction, "" if module is None else _path_of_module(module), None)
    return found.line(), found.module, found.source.run


def here(with_stack: bool = False) -> Where:
    """The user's code that is running: the first frame that is neither torch's nor ours."""
    if _pretended:
        return _pretended[-1]
    if _find_frame is not None and not with_stack:
        found = _find_frame(_is_users_file, _CALLS_FORWARD)
        if found is not None:
            code, instruction, module = found
            return Where(code, instruction, "" if module is None else _path_of_module(module), None)
    frame: FrameType | None = sys._getframe()  # with our own frames: the C++ helper must know their files, too
    files = _is_users_file
    module = None
    users: FrameType | None = None
    generated: FrameType | None = None  # compiled code of which torch tells nothing
    in_library: FrameType | None = None  # Python's own code: all there is where a thread's function is torch's
    in_torch: Where | None = None  # compiled code of a function of torch's own, such as an optimizer's
    while frame is not None and (users is None or module is None):
        code = frame.f_code
        if code is _CALLS_FORWARD:
            running = frame.f_locals.get("self")
            if module is None and not (generated is not None and _is_generated(running)):
                module = running  # the innermost
        elif users is None:
            is_users = files.get(code.co_filename)
            if is_users is None:
                is_users = _is_users(code.co_filename)
                if compiled_code.runs(code):
                    compiled = _in_compiled_code(frame, with_stack)
                    if compiled is not None and not is_own(compiled.line().partition(":")[0]):
                        return compiled
                    forward = of_forward(frame) if generated is None else None
                    if forward is not None:
                        return forward
                    in_torch = in_torch or compiled
                    is_users = False
                    generated = generated or frame
            users = frame if is_users else None
            if in_library is None and code.co_filename.startswith(_LIBRARY):
                in_library = frame
        frame = frame.f_back
    if users is None and in_torch is not None:
        return in_torch
    users = users or generated or in_library
    if users is None:  # such as saved tensors that come back from the host
        return of_forward(sys._getframe()) or NOWHERE
    stack = "".join(traceback.format_stack(users)) if with_stack else None
    return Where(users.f_code, users.f_lasti, "" if module is None else _path_of_module(module), stack)


def _is_generated(module: Any) -> bool:
    """Whether it is a graph, or what torch.compile puts around one."""
    return isinstance(getattr(module, "_orig_mod", module), GraphModule)


def is_own(file: str) -> bool:
    """Whether a file is torch's, Python's or ours."""
    if file.startswith(_LIBRARY):
        return not any(name in file for name in _INSTALLED) or file.startswith(_OWN_FOLDERS)
    return file.startswith(_OWN_FOLDERS)


def _is_users(file: str) -> bool:
    """Whether a file is the user's; remembered, but for those of compiled code."""
    is_users = not is_own(file)
    if not compiled_code.may_run(file):
        _is_users_file[file] = is_users
    return is_users


def _in_compiled_code(frame: FrameType, with_stack: bool) -> Where | None:
    """The user's code that a frame of compiled code stands for; None where torch does not tell."""
    key = (id(frame.f_code), frame.f_lasti)
    known = _origins.get(key)
    if known is None or known[0] is not frame.f_code or frame.f_code is compiled_code.RUNS_NODE:
        if len(_origins) >= _MAX_LINES:
            _origins.clear()
        known = _origins[key] = (frame.f_code, compiled_code.origin(frame, is_own))
    origin = known[1]
    if origin is None:
        return None
    found = RecordedWhere(origin.text(), _module_of(origin, frame))
    found.stack = "".join(traceback.format_stack(frame)) if with_stack else None
    return found


def _module_of(origin: Origin, frame: FrameType) -> str:
    """The module that a node was in. What is running tells which one of those that share a graph it is."""
    running, _ = _running(frame)
    if running is None:
        return origin.path or origin.module_class
    if not origin.path:
        return _path_of_module(running)
    try:
        part = running.get_submodule(origin.path)
    except AttributeError:
        return origin.path
    return _path_of_module(part) if type(part).__name__ == origin.module_class else origin.path


def of_forward(frame: FrameType) -> Where | None:
    """In the backward pass of compiled code: the line that has called it, and the module that was running."""
    module, line = _running(frame)
    if not line:
        return None
    return RecordedWhere(line + compiled_code.BACKWARD_MARK, "" if module is None else _path_of_module(module))


def _running(frame: FrameType | None) -> tuple[Module | None, str]:
    """The module that runs compiled code; in its backward pass the one of its forward, with the line that called that.

    Both passes have autograd's context of the call on the stack: what is known in forward is kept beside it.
    """
    context, module, above = None, None, frame
    while above is not None and module is None:
        code = above.f_code
        if code is _CALLS_FORWARD:
            running = above.f_locals.get("self")
            module = None if isinstance(running, GraphModule) else running
        elif context is None and code.co_argcount and code.co_varnames[0] == "ctx":
            context = above.f_locals["ctx"]
            if not isinstance(context, FunctionCtx):
                context = None
            elif "backward" in code.co_name:
                known, line = _forwards.get(context, (None, ""))
                return (None if known is None else known()), line
        above = above.f_back
    found = module if isinstance(module, Module) else None
    if context is not None and context not in _forwards:
        if found is not None:
            _path_of_module(found)  # while the modules around it can be seen
        _forwards[context] = (None if found is None else weakref.ref(found)), _line_of_user(frame)
    return found, ""


def _line_of_user(frame: FrameType | None) -> str:
    while frame is not None:
        code = frame.f_code
        if code is not _CALLS_FORWARD and not compiled_code.runs(code) and _is_users(code.co_filename):
            return Where(code, frame.f_lasti, "", None).line()
        frame = frame.f_back
    return ""


def _path_of_module(module: Any) -> str:
    known = _paths.get(id(module))
    if known is not None and known[0]() is module:
        return known[1]
    root = module
    above: FrameType | None = sys._getframe()
    while above is not None:
        if above.f_code is _CALLS_FORWARD:
            root = above.f_locals.get("self", root)
        above = above.f_back
    if not isinstance(root, Module) or not isinstance(module, Module):
        return ""
    for name, part in root.named_modules():
        # torch.compile puts a module of its own around the user's
        plain = ".".join(step for step in name.split(".") if step != "_orig_mod")
        _paths[id(part)] = (weakref.ref(part), plain or type(part).__name__)
    # a module that its parent does not list, such as one kept in a plain list
    if id(module) not in _paths or _paths[id(module)][0]() is not module:
        _paths[id(module)] = (weakref.ref(module), type(module).__name__)
    return _paths[id(module)][1]
