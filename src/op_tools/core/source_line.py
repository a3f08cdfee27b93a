"""A line of the user's program that calls ops: its text, formatted once, and a frame that runs ops in its name.

torch's warnings, in C++ and in Python, name the frame that has called the op, and Python shows each once for a line. So
an op is called by a frame that has the file, the line and the globals of the user's.
"""

from __future__ import annotations

import linecache
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable

from op_tools.core import compiled_code

RunInLine = Callable[[Callable[..., Any], "tuple[Any, ...]", "dict[str, Any]"], Any]

_CODE = (lambda func, args, kwargs: func(*args, **kwargs)).__code__  # all in its first line


def _run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


class SourceLine:
    """`text` is empty until `format` was called. `run` calls an op in this line's name."""

    __slots__ = ("_number", "code", "run", "text")

    def __init__(self, code: CodeType | None, instruction: int) -> None:
        """While the line is running: its globals are found on the stack."""
        self.code = code  # None where it is unknown, or was read by another run
        self._number = 0 if code is None else _line_number(code, instruction)
        self.text = "<unknown>" if code is None else ""
        self.run: RunInLine = _run if code is None else _runner(code, self._number)

    def format(self) -> str:
        """`path/norm.py:26 manual_rms_norm: return weight * my_input`."""
        assert self.code is not None
        file, function = self.code.co_filename, compiled_code.users_name(self.code.co_name)
        text = f"{file}:{self._number} {function}: {linecache.getline(file, self._number).strip()}"
        self.text = text.encode(errors="backslashreplace").decode()  # a path may hold bytes that are no characters
        return self.text


def _runner(code: CodeType, number: int) -> RunInLine:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        return _run
    place = {"co_filename": code.co_filename, "co_firstlineno": number, "co_name": code.co_name}
    return FunctionType(_CODE.replace(**place), frame.f_globals)  # type: ignore[arg-type]


def _line_number(code: CodeType, instruction: int) -> int:
    number = code.co_firstlineno
    for start, end, line in _lines_of(code):
        if start <= instruction < end and line is not None:
            number = line
    return number


def _lines_of(code: CodeType) -> list[tuple[int, int, int | None]]:
    if hasattr(code, "co_lines"):
        return list(code.co_lines())
    import dis  # Python 3.9

    starts = list(dis.findlinestarts(code))
    ends = [offset for offset, _ in starts[1:]] + [len(code.co_code)]
    return [(offset, end, line) for (offset, line), end in zip(starts, ends)]
