"""Which steps and ranks a tool looks at."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from op_tools import settings
from op_tools.errors import SettingError


def numbers(name: str, given: Any, setting: settings.Setting[Container[int] | None]) -> Container[int] | None:
    """A selection of steps or ranks, from the argument or its variable. The argument may have the variable's form."""
    if given is None:
        return setting.get()
    if isinstance(given, str):
        return settings.parse(name, given, setting.parse, setting.help)
    is_usable = hasattr(given, "__contains__")
    if isinstance(given, (list, tuple, set, frozenset)):
        is_usable = all(isinstance(number, int) for number in given)
    if not is_usable:
        raise SettingError(
            f"{name}={given!r} cannot be used: give numbers and ranges such as '0,10-12', a range, or a set of numbers"
        )
    chosen: Container[int] = given
    return chosen
