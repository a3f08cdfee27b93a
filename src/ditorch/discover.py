"""Finds the accelerator to use: the one that DITORCH_BACKEND names, else the one that is there, else the simulated.

Backends are the built-in ones (`ditorch.backends`) and those of other packages, found by the entry-point group
`ditorch.backends`. A package's backend takes the place of a built-in one of the same name.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import sys
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Callable

import ditorch
from ditorch.backend import Backend
from ditorch.backends import ACCELERATORS, BUILT_IN
from ditorch.backends.sim import SIM
from ditorch.errors import BackendError
from ditorch.settings import BACKEND

GROUP = "ditorch.backends"


@dataclass(frozen=True)
class Finding:
    """What became of one backend on this machine."""

    name: str
    backend: Backend | None  # None: its plug-in could not even be loaded
    reason: str | None  # why it cannot be used; None: it can
    failed: bool = False  # it raised, which is not the same as being absent

    @property
    def title(self) -> str:
        return self.backend.title if self.backend else "plug-in"


def choose() -> Backend:
    """The backend to use; it has been started."""
    wanted = BACKEND.get()
    chosen = _named(wanted) if wanted else _only_one()
    chosen.start()
    return chosen


def survey(probe: Callable[[str], Finding] | None = None) -> list[Finding]:
    """Every backend, built-in or not: whether it can be used on this machine, and why not."""
    return _survey([*_entry_points(), *BUILT_IN], probe or probed)


def _only_one() -> Backend:
    accelerators = [backend.name for backend in ACCELERATORS]
    plug_ins = [name for name in _entry_points() if name not in BUILT_IN]
    findings = _survey([*plug_ins, *accelerators], probed)
    for finding in findings:
        if finding.failed:
            print(f"ditorch: {finding.name} ({finding.title}) is passed over: {finding.reason}", file=sys.stderr)
    available = [finding.backend for finding in findings if finding.backend and finding.reason is None]
    if len(available) > 1:
        names = " and ".join(f"{backend.name} ({backend.title})" for backend in available)
        raise BackendError(
            f"There is more than one accelerator here: {names}. "
            f"Choose one, such as DITORCH_BACKEND={available[0].name}."
        )
    return available[0] if available else SIM


def _named(name: str) -> Backend:
    known = [*BUILT_IN, *(plug_in for plug_in in _entry_points() if plug_in not in BUILT_IN)]
    if name not in known:
        also_known = _also_known(known)
        close = difflib.get_close_matches(name.lower(), also_known, n=1)
        hint = f" Did you mean {also_known[close[0]]}?" if close else ""
        raise BackendError(
            f"DITORCH_BACKEND={name}: there is no such backend.{hint} There are {', '.join(sorted(known))}."
        )
    finding = probed(name)
    if finding.reason is not None or finding.backend is None:
        raise BackendError(f"DITORCH_BACKEND={name}: {finding.title} cannot be used here, because {finding.reason}.")
    return finding.backend


def _also_known(known: list[str]) -> dict[str, str]:
    """What people may call a backend by mistake: its own name, its device type, its package."""
    names = {name: name for name in known}
    for backend in BUILT_IN.values():
        for name in (backend.device_type, *backend.modules):
            names.setdefault(name, backend.name)
    return names


def _survey(names: list[str], probe: Callable[[str], Finding]) -> list[Finding]:
    findings = [probe(name) for name in dict.fromkeys(names)]
    return [_without_borrowed_cuda(finding, findings) for finding in findings]


def _without_borrowed_cuda(finding: Finding, findings: list[Finding]) -> Finding:
    """Where another chip has been put in the place of torch.cuda, that chip is there, and CUDA is not."""
    if finding.name != "cuda" or finding.reason is not None:
        return finding
    active = ditorch._backend
    if active and active.device_type != "cuda":
        return replace(finding, reason=f"torch.cuda stands for {active.name} here, by ditorch")
    for other in findings:
        if other.name != "cuda" and other.backend and other.reason is None and other.backend.migration_active():
            return replace(finding, reason=f"torch.cuda stands for {other.name} here, by {other.backend.migration()}")
    return finding


def probed(name: str) -> Finding:
    """Whether one backend can be used here."""
    backend: Backend | None = None
    try:
        backend = _load(name)
        return Finding(name, backend, backend.unavailable())
    except BackendError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - a vendor's package may raise anything; it becomes the reason
        reason = f"{'its probe' if backend else 'loading its plug-in'} raised {type(error).__name__}: {error}"
    return Finding(name, backend, _one_line(reason), failed=True)


def _load(name: str) -> Backend:
    entry_points = _entry_points().get(name, [])
    if len(entry_points) > 1:
        values = " and ".join(entry_point.value for entry_point in entry_points)
        raise BackendError(f"two packages bring a backend named {name}, {values}; uninstall one of them")
    if not entry_points:
        return BUILT_IN[name]
    backend = entry_points[0].load()
    if not isinstance(backend, Backend):
        raise BackendError(
            f"its entry point {entry_points[0].value} is a {type(backend).__name__}; it must be a ditorch Backend"
        )
    if backend.name != name:
        raise BackendError(
            f"its entry point {entry_points[0].value} is the backend {backend.name}; the names must be the same"
        )
    return backend


def _entry_points() -> dict[str, list[EntryPoint]]:
    """The plug-ins of other packages by name; nothing of theirs is imported by looking."""
    if sys.version_info >= (3, 10):
        found = list(importlib.metadata.entry_points(group=GROUP))
    else:
        found = list(importlib.metadata.entry_points().get(GROUP, ()))
    plug_ins: dict[str, list[EntryPoint]] = {}
    for entry_point in found:
        same = plug_ins.setdefault(entry_point.name, [])
        if entry_point.value not in [other.value for other in same]:  # one package may be on the path twice
            same.append(entry_point)
    return plug_ins


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
