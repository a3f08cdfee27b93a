"""A collective under way whose result still needs a last touch: a division, a cast back."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any, Callable

import torch


class FinishedWork:
    """Work of torch.distributed's that is finished off, once, when it is waited for."""

    def __init__(self, work: Any, finish: Callable[[], object], result: torch.Tensor) -> None:
        self._work = work
        self._finish = finish
        self._result = result
        self._is_finished = False
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._work.wait(*([timeout] if timeout else []))
        self._finish_once()
        return True

    def get_future(self) -> Any:
        def finish(done: Any) -> Any:  # runs where the collective was completed, which must not wait for itself
            done.value()  # raises what the collective has raised
            self._finish_once()
            return self.result()

        return self._work.get_future().then(finish)

    def result(self) -> list[torch.Tensor]:
        return [self._result]

    def _finish_once(self) -> None:
        with self._lock:
            if not self._is_finished:
                self._is_finished = True
                self._finish()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def finished(work: Any, finish: Callable[[], object], result: torch.Tensor) -> Any:
    """What a collective returns: work that finishes it off, or None where it is done."""
    if work is not None:
        return FinishedWork(work, finish, result)
    finish()
    return None
