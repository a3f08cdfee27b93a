"""A tool that only notes what the core hands it."""

from __future__ import annotations

import threading
from typing import Any

from op_tools.core.tool import Tool


class Recorder(Tool):
    hook = "RecorderHook"
    prefix = "RECORDER"
    watches_gradients = True

    def started(self) -> None:
        self.calls: list[Any] = []
        self.threads: set[int] = set()
        self.failures: list[Any] = []
        self.backward: list[Any] = []

    def before(self, call):
        self.threads.add(threading.get_ident())
        return call.id

    def after(self, call, state):
        assert state == call.id
        self.calls.append(call)
        return call.id

    def failed(self, call, state):
        self.failures.append((call.name, call.error))

    def flowed(self, call, state, gradients):
        assert state == call.id
        self.backward.append((call, gradients))

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def gradients_of(self, name: str):
        return [gradients for call, gradients in self.backward if call.name == name]


class RecorderOfForward(Recorder):
    watches_gradients = False
