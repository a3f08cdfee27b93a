"""The check that a test leaves nothing behind can fail."""

from __future__ import annotations

import os
import threading

import torch
from torch.overrides import TorchFunctionMode

from ditorch.sim import faults

from .leaks import changes, snapshot


class PassingMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def changed(before):
    return set(changes(before, snapshot()))


def test_what_is_left_behind_is_seen(monkeypatch):
    before = snapshot()
    assert changed(before) == set()
    monkeypatch.setitem(os.environ, "DITORCH_TEST_LEAK", "1")
    assert changed(before) == {"environment"}
    monkeypatch.undo()
    monkeypatch.setattr(torch, "add", lambda *_: None)
    assert changed(before) == {"attribute torch.add"}
    monkeypatch.undo()
    with PassingMode():
        assert changed(before) == {"function modes"}
    with faults.inject("aten.exp: zero"):
        assert changed(before) == {"faults"}
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert any(key.startswith("hooks") for key in changed(before))
    handle.remove()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert changed(before) == {"threads"}
    stop.set()
    thread.join()
    assert changed(before) == set()
