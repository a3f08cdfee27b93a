"""How far devices have got: the calls that were asked of them last, and the last one that is known to be good."""

from __future__ import annotations

import os
from collections import deque
from typing import Callable, NamedTuple, Protocol

_MAX_RECENT_CALLS = 256
_MAX_SHOWN_CALLS = 3


class HasLine(Protocol):
    """Where a call stands in the program."""

    def line(self) -> str: ...


class Line(NamedTuple):
    """One that is text already."""

    text: str

    def line(self) -> str:
        return self.text


Asked = tuple[int, str, HasLine]  # number, op and place of a call that a device need not have got to yet
recent: deque[Asked] = deque(maxlen=_MAX_RECENT_CALLS)
last: deque[int] = deque((0,), maxlen=1)  # the number of the last of them
proven: deque[int] = deque((0,), maxlen=1)  # the number of a call that the device has got through, with all before it

# who keeps count of calls by itself: the last that the device has passed, and those that it may not have
counted_elsewhere: list[Callable[[], tuple[list[Asked], list[Asked]]]] = []
os.register_at_fork(after_in_child=counted_elsewhere.clear)  # another thread of the parent's may hold their locks


def in_words(asked: Asked | None) -> list[str]:
    """Which calls are known to be good, and which are not. `asked`: one that the device has refused."""
    (last_good,) = proven
    calls = {call[0]: call for call in recent}
    for count in counted_elsewhere:
        passed, unread = count()
        calls.update((call[0], call) for call in passed + unread)
        last_good = max([last_good, *(number for number, _, _ in passed)])
    good = [calls[number] for number in sorted(calls) if number <= last_good][-_MAX_SHOWN_CALLS:]
    others = [calls[number] for number in sorted(calls) if number > last_good] + ([] if asked is None else [asked])
    lines = []
    if good:
        lines.append("known to be good, the last ones: " + "; ".join(map(_words, good)))
    if others:
        more = f", and {len(others) - 1:,} after it" if len(others) > 1 else ""
        lines.append(f"the first that is not known to be good: {_words(others[0])}{more}")
    return lines


def _words(asked: Asked) -> str:
    number, name, where = asked
    return f"{name} (forward_id {number}, {where.line()})"
