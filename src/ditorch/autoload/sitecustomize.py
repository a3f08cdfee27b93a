"""Gives ditorch to a program and its child processes, without an edit: Python runs this file when it starts.

`ditorch run` sets DITORCH_RUN=1 and puts this folder first on PYTHONPATH; children inherit both. Nothing is imported
and nothing printed until the process itself imports torch; right after that, ditorch is installed. A sitecustomize
that this one hides runs as well.

Limits: Python does not run this file with -I, -E or -S, nor in a child whose PYTHONPATH was replaced, or put behind a
folder with a sitecustomize of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))  # the folder that holds this ditorch


class _AfterTorch:
    """Finds torch as the finders behind it do, and installs ditorch once torch has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self not in sys.meta_path:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]  # only those, or two such hooks would call each other
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        if spec and hasattr(spec.loader, "exec_module"):
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            _install()
            _start_tools()
            # Not sooner: torch may be looked for without being imported, and an import that failed may be tried again.
            del loader.exec_module  # type: ignore[attr-defined]
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = execute_and_install  # type: ignore[attr-defined]


def _install() -> None:
    """Installs the ditorch that this file belongs to; its foreseen errors are one message, and the process ends."""
    if os.environ.get("DITORCH_DISABLE_MOCK", "").strip() == "1":
        return
    if "ditorch" in sys.modules:  # what imported it, and thereby torch, decides
        return
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("ditorch", [_ROOT])  # it need not be on this program's path
    assert spec
    assert spec.loader
    ditorch = sys.modules["ditorch"] = module_from_spec(spec)
    from ditorch.errors import DitorchError

    try:
        spec.loader.exec_module(ditorch)
        ditorch.install()
    except BaseException as error:
        del sys.modules["ditorch"]
        if not isinstance(error, DitorchError):
            raise
        print(f"ditorch: {error}", file=sys.stderr)
        sys.exit(1)


def _start_tools() -> None:
    """Starts the tools that OP_TOOLS names; without any, `ditorch attach` is waited for."""
    backend = getattr(sys.modules.get("ditorch"), "_backend", None)  # none where the redirect is switched off
    known = (backend.name if backend else "", backend.command if backend else None)
    if not os.environ.get("OP_TOOLS", "").strip():
        _wait_for_tools(*known)
        return
    from op_tools.errors import OpToolsError
    from op_tools.run.start import start

    try:
        start(*known)
    except OpToolsError as error:
        print(f"op_tools: {error}", file=sys.stderr)
        sys.exit(1)


def _wait_for_tools(backend: str, command: str | None) -> None:
    if not os.environ.get("DITORCH_CONTROL"):
        return
    from pathlib import Path

    from ditorch_shared import waiting

    run = Path(os.environ["DITORCH_CONTROL"])

    def take_over(*counted: Any) -> None:
        from op_tools.run.start import attach

        attach(run, backend, command, *counted)

    waiting.wait(run, take_over)


def _run_hidden_sitecustomize() -> None:
    """Runs the one that Python would have run, had this folder not come first."""
    own = sys.modules.pop(__name__)
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        sys.modules[__name__] = own
        if error.name != "sitecustomize":
            raise


def _start() -> None:
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    if os.environ.get("DITORCH_RUN") == "1":
        if "torch" in sys.modules:  # by a .pth file
            _install()
            _start_tools()
        else:
            sys.meta_path.insert(0, _AfterTorch())
    _run_hidden_sitecustomize()


if __name__ == "sitecustomize":
    _start()
