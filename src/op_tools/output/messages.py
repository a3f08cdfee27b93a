"""What the tools say, by OP_TOOLS_VERBOSE: 0 errors only; 1 what was found, and summaries; 2 every call."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TextIO

from ditorch_shared import messages as kept
from op_tools import settings

_said: set[tuple[str, ...]] = set()
not_seen: list[str] = []  # what the tools did not look at: for the record of a run
_lock = threading.Lock()


def say(text: str) -> None:
    """Prints in one piece, so that lines of several threads do not mix."""
    say_lines(text + "\n")


def say_lines(text: str) -> None:
    """What has the end of its last line already."""
    try:
        _write(sys.stdout, text)
    except (OSError, ValueError, AttributeError) as error:  # a closed pipe, a full disk, no terminal
        complain_once("say", text=f"what the tools say cannot be printed ({error}); training goes on")


def complain(text: str) -> None:
    """An error of a tool: it is shown at every verbosity, and training goes on."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        _write(sys.stderr, f"op_tools: {text}\n")


def _write(stream: TextIO, text: str) -> None:
    """Characters that the stream's encoding does not have are written as \\u2026: none is worth a summary."""
    kept.keep(text)
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        encoding = stream.encoding or error.encoding
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def in_short(error: BaseException) -> str:
    """An error in one line of at most 100 characters."""
    text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return text if len(text) <= 100 else f"{text[:99]}…"


def say_once(*key: str, text: str) -> None:
    """Says something about `key` the first time only; silent at verbosity 0."""
    if _first_time(key) and settings.VERBOSE.get() >= 1:
        say(text)


def say_not_seen_once(*key: str, text: str) -> None:
    """The same for what the tools do not look at, which the record of a run tells as well."""
    if _first_time(key):
        not_seen.append(text)
        if settings.VERBOSE.get() >= 1:
            say(text)


def complain_once(*key: str, text: str) -> None:
    """Complains about `key` the first time only."""
    if _first_time(key):
        complain(text)


def _first_time(key: tuple[str, ...]) -> bool:
    with _lock:
        if key in _said:
            return False
        _said.add(key)
        return True


def forget() -> None:
    """Everything may be said again; the tests begin with it."""
    with _lock:
        _said.clear()
        not_seen.clear()
