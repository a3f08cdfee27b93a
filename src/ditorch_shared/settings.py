"""Environment variables as data: name, default, parser and meaning. Each package lists its own in its settings.py."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable, ClassVar, Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Setting(Generic[Value]):
    """One environment variable. It is read when it is asked for, not at import."""

    name: str
    default: Value
    parse: Callable[[str], Value]
    help: str

    error: ClassVar[type[ValueError]] = ValueError  # a package has its own

    def get(self) -> Value:
        """The value in the environment, or the default where the variable is unset or empty."""
        text = os.environ.get(self.name, "").strip()
        return parsed(self.name, text, self.parse, self.help, self.error) if text else self.default


def parsed(name: str, text: str, parser: Callable[[str], Value], help: str, error: type[ValueError]) -> Value:
    """`text` as a value; where that fails, the error says which variable, why, and what it means."""
    try:
        return parser(text)
    except ValueError as reason:
        raise error(f"{name}={text!r} cannot be used: {reason}. It means: {help}") from None


def meant(name: str, readable: Iterable[str]) -> str | None:
    """The variable that an unknown name is probably meant to be."""
    close = difflib.get_close_matches(name, sorted(readable), n=1, cutoff=0.85)
    return close[0] if close else None


def switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("it must be 0 or 1")
    return text == "1"


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def number_of_bytes(text: str, may_be_zero: bool = True) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.lower())
    if not match or not (may_be_zero or float(match[1])):
        raise ValueError("it must be a number of bytes, such as 8000000, 512MB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])
