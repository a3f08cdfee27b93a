"""Which ops a tool applies to: lists of names and patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, Callable, Union

from op_tools.errors import SettingError
from op_tools.ops.lookup import reason_for_no_op
from op_tools.ops.names import normalized, op_name
from op_tools.output import messages

Ops = Union[str, Callable[..., Any], Iterable[Union[str, Callable[..., Any]]]]

MAX_NAMES_KNOWN = 10_000


class Selection:
    """Names that are meant, and names that are not. The second list wins; without the first, every op is meant."""

    def __init__(self, ops: list[str] | None, skip: list[str], source: str) -> None:
        self._source = source  # of both lists, for messages
        self._only = None if ops is None else _Names(ops, source)
        self._skip = _Names(skip, source)
        self._reason: Callable[[str, bool], str | None] = lambda name, is_spelt_out: None
        self._tool = ""

    def leave_alone(self, tool: str, reason: Callable[[str, bool], str | None]) -> None:
        """Leaves out ops for which `reason`, told the name and whether the list spells it out, gives a reason."""
        self._tool, self._reason = tool, reason

    def __contains__(self, name: str) -> bool:
        if not self._is_meant(name):
            return False
        is_spelt_out = self.spells_out(name)
        reason = self._reason(name, is_spelt_out)
        if reason is not None and is_spelt_out:
            messages.say_once("alone", self._tool, name, text=f"{self._tool} leaves {name} alone: {reason}")
        return reason is None

    def _is_meant(self, name: str) -> bool:
        return (self._only is None or name in self._only) and name not in self._skip

    def names(self, name: str) -> bool:
        """True where the list itself means this op, not only because there is no list."""
        return self._only is not None and self._is_meant(name)

    def spells_out(self, name: str) -> bool:
        """True where the list holds this very name, not only a pattern that matches it."""
        return self.names(name) and self._only is not None and self._only.holds(name)

    def unmatched(self) -> list[str]:
        """Entries of the list that no op had until now: misspelt, or never called."""
        return [] if self._only is None else self._only.unmatched()

    def meant_instead(self, entry: str) -> str:
        """The op that was called and is the entry's by another name: torch.conv2d is torch.nn.functional.conv2d."""
        base = normalized(entry).base
        called = [] if self._only is None else sorted(self._only.others)
        return next((name for name in called if normalized(name).base == base), "")

    def doubts(self) -> list[str]:
        """What is wrong with the lists by the looks of them, before any op was called."""
        if self._only is not None and not self._only.unmatched():
            return [f"its list of ops is empty ({self._source}) and selects nothing; leave it unset to select every op"]
        entries = [*self._skip.unmatched(), *(self._only.unmatched() if self._only is not None else ())]
        found = [(entry, reason_for_no_op(entry)) for entry in entries]
        return [f"no op is called {entry} ({self._source}){reason}" for entry, reason in found if reason is not None]


class _Names:
    """Full names, and regular expressions that must match the whole name."""

    def __init__(self, entries: list[str], source: str) -> None:
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._matched: set[str] = set()
        self.others: set[str] = set()  # what was asked for, and is not meant
        for entry in entries:
            try:
                self._patterns[entry] = re.compile(entry)
            except re.error as error:
                raise SettingError(
                    f"{source}: {entry!r} is neither a name nor a regular expression ({error}). Write full names of "
                    "ops, such as torch.Tensor.add, or patterns that match the whole name, with commas between them"
                ) from None

    def __contains__(self, name: str) -> bool:
        matching = [entry for entry, pattern in self._patterns.items() if entry == name or pattern.fullmatch(name)]
        self._matched.update(matching)
        if not matching and len(self.others) < MAX_NAMES_KNOWN:
            self.others.add(name)
        return bool(matching)

    def holds(self, name: str) -> bool:
        return name in self._patterns

    def unmatched(self) -> list[str]:
        return [entry for entry in self._patterns if entry not in self._matched]


def selection(prefix: str, ops: Ops | None, skip: Ops | None, shares: bool = True) -> Selection:
    """From the arguments of a tool; what is not given comes from `{prefix}_LIST` and `{prefix}_DISABLE_LIST`.

    `shares`: where these are unset, OP_TOOLS_LIST and OP_TOOLS_DISABLE_LIST stand in for them.
    """
    names = [f"{prefix}_LIST", f"{prefix}_DISABLE_LIST"]
    if shares:
        names = [_set_one(name, name.replace(prefix, "OP_TOOLS", 1)) for name in names]
    only = _from_environment(names[0]) if ops is None else _from_argument(ops)
    unwanted = _from_environment(names[1]) if skip is None else _from_argument(skip)
    return Selection(only, unwanted or [], " or ".join(names))


def _set_one(own: str, shared: str) -> str:
    """The variable that counts: the tool's own unless only the shared one is set."""
    return shared if own not in os.environ and shared in os.environ else own


def _from_environment(variable: str) -> list[str] | None:
    text = os.environ.get(variable)
    return None if text is None else split(text)


def _from_argument(ops: Ops) -> list[str]:
    if isinstance(ops, str):
        return split(ops)
    if callable(ops):
        return [op_name(ops)]
    if not isinstance(ops, Iterable) or isinstance(ops, bytes):
        raise SettingError(f"{ops!r} is no list of ops: give full names, such as 'torch.Tensor.add', or functions")
    names = []
    for op in ops:
        if not isinstance(op, str) and not callable(op):
            raise SettingError(
                f"{op!r} is no op: give its full name, such as 'torch.Tensor.add', or the function itself"
            )
        names.append(op if isinstance(op, str) else op_name(op))
    return names


def split(text: str) -> list[str]:
    """The entries of a list in a variable. A comma inside brackets belongs to a pattern, such as `a{1,2}`."""
    entries, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            entries.append(text[start:position])
            start = position + 1
    entries.append(text[start:])
    return [entry.strip() for entry in entries if entry.strip()]
