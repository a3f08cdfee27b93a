"""What differs before the first op: what `ditorch run` wrote of both runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from op_tools.compare_runs.findings import Before
from op_tools.compare_runs.reading import Run

_ENVIRONMENT = ("python", "torch", "platform", "world_size")
_NOT_TOLD = (
    "OP_",
    "DITORCH_RUN",
    "DITORCH_CONTROL",
    "DITORCH_MESSAGES",
    "DITORCH_PROGRESS",
    "PYTHONPATH",
    "RANK",
    "LOCAL_",
    "GROUP_",
    "TORCHELASTIC_RUN_ID",
    "MASTER_PORT",
    "SLURM_",
)
_MAX_NAMED = 20


def differences(a: Run, b: Run) -> list[Before]:
    """Nothing where a run has no manifest: OpCapture alone writes none."""
    return list(_of_manifests(a.manifest(), b.manifest()))


def _of_manifests(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Before]:
    if not a or not b:
        return
    for name in _ENVIRONMENT:
        if a.get(name) != b.get(name):
            yield Before("environment", name, a.get(name), b.get(name))
    for name in ("backend", "name", "driver"):
        one, other = _part(a, "device").get(name), _part(b, "device").get(name)
        if one != other:
            yield Before("environment", f"device {name}", one, other)
    for group, label in (("packages", "package"), ("variables", "variable")):
        for name in _differing(_part(a, group), _part(b, group))[:_MAX_NAMED]:
            if group == "packages" or not name.startswith(_NOT_TOLD):
                yield Before("environment", f"{label} {name}", _part(a, group).get(name), _part(b, group).get(name))
    if a.get("command") != b.get("command"):
        yield Before("code", "command", a.get("command"), b.get("command"))
    files = _part(a, "files"), _part(b, "files")
    for name in sorted({*files[0]} & {*files[1]}):  # other names are in the command
        if files[0][name] != files[1][name]:
            yield Before("code", name, files[0][name], files[1][name])
    for name in ("commit", "has_changes"):
        one, other = _part(a, "git").get(name), _part(b, "git").get(name)
        if one != other:
            yield Before("code", f"git {name}", one, other)
    seeds = [sorted({str(seed) for seed in _part(one, "seeds").values()}) for one in (a, b)]  # of all ranks
    if seeds[0] != seeds[1]:
        yield Before("seeds", "torch.initial_seed()", seeds[0], seeds[1])


def _part(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found = manifest.get(name)
    return found if isinstance(found, dict) else {}


def _differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
