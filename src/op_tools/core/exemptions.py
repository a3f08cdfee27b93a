"""Functions of torch that do not meet our mode while tools watch: see optimizers.py and fast_paths.py."""

from __future__ import annotations

import threading

from op_tools.core import fast_paths, optimizers
from op_tools.core.modes import Replacement

_originals: list[Replacement] = []
_watching: set[int] = set()
_lock = threading.Lock()


def begin(session: object, mode_class: type) -> None:
    """They do not meet modes of this class, as long as a session wants it."""
    with _lock:
        _watching.add(id(session))
        if _originals:
            return
        for owner, name, function in (*optimizers.replacements(mode_class), *fast_paths.replacements(mode_class)):
            _originals.append((owner, name, vars(owner)[name]))
            setattr(owner, name, function)


def end(session: object) -> None:
    """Undoes `begin`; the last one puts everything back as it was."""
    with _lock:
        _watching.discard(id(session))
        while _originals and not _watching:
            setattr(*_originals.pop())
