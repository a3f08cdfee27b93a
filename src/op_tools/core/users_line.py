"""Runs an op as if the user's line had called it: warnings that it raises name that line, not one of ours.

torch's warnings, in C++ and in Python, name the frame that has called the op, and Python shows each once for a line. So
a frame stands there that has the file, the line and the globals of the user's.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable

from op_tools.core.where import MAX_LINES, Where, of_helper

Run = Callable[[Callable[..., Any], "tuple[Any, ...]", "dict[str, Any]"], Any]

# by the id of a code object and the instruction: that code object, and what runs ops there
_known: dict[tuple[int, int], tuple[CodeType, Run]] = {}


def _run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


_plain: Run = _run
_CODE = (lambda func, args, kwargs: func(*args, **kwargs)).__code__  # all in its first line


def runs_at(where: Where) -> Run:
    """What runs ops for this place, where the user's code is running now."""
    code = where.code
    if code is None:
        return _plain
    key = (id(code), where.instruction)
    known = _known.get(key)
    if known is not None and known[0] is code:
        return known[1]
    if len(_known) >= MAX_LINES:
        _known.clear()
    run = _made(where, code)
    _known[key] = (code, run)
    return run


def _made(where: Where, code: CodeType) -> Run:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        return _plain
    lines = {"co_filename": code.co_filename, "co_firstlineno": where.line_number(), "co_name": code.co_name}
    return FunctionType(_CODE.replace(**lines), frame.f_globals)  # type: ignore[arg-type]


def for_helper(code: CodeType, instruction: int, module: Any) -> tuple[str, str, Run]:
    """A place that the C++ helper has found, in words, with its module, and what runs ops there."""
    where = of_helper(code, instruction, module)
    return where.line(), where.module, runs_at(where)
