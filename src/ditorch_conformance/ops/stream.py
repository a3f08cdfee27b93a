"""The stream of calls that reach the device's kernels: which ones an op is made of, which raised, which left it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ditorch_conformance.ops import fallbacks
from op_tools.values import trees

_NO_KERNELS = ("profiler::", "prim::", "ditorch_")


class Stream(TorchDispatchMode):
    """Notes every kernel that is called. `raising`: the first one that did not come back.

    `falls_back`: those that computed on the CPU.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: dict[str, None] = {}
        self.falls_back: dict[str, None] = {}
        self.raising = ""
        self._watch = ExitStack()

    def __enter__(self) -> Stream:
        self._watch.enter_context(fallbacks.watched(self.falls_back))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._watch.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:  # noted, and raised again
            self.raising = self.raising or name
            raise
        if not name.startswith(_NO_KERNELS):
            self.kernels[name] = None
            if fallbacks.by_table(name, trees.tensors((args, kwargs, result))):
                self.falls_back[name] = None
        return result
