"""From a captured call to a folder with a script, its data and the text of a bug report."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.errors import CaptureError
from op_tools.output import messages
from op_tools.reproduce import script
from op_tools.reproduce.case import Case, Verdict, judged, load, recorded_device
from op_tools.reproduce.shrinking import Shrinker
from op_tools.storage import files

SCHEMA = "ditorch.reproduce/1"
SCRIPT, REPORT = "reproduce.py", "report.md"


@dataclass
class Reproduced:
    """What was written, and whether the device is wrong in it."""

    capture: str
    op: str
    device: str
    is_wrong: bool
    ratios: dict[str, float]
    files: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)  # of shrinking
    tries: int = 0
    elements: int = 0

    def as_json(self) -> dict[str, Any]:
        """docs/compare.md describes it."""
        ratios = {name: ratio if ratio < float("inf") else "inf" for name, ratio in self.ratios.items()}
        facts = {"op": self.op, "device": self.device, "wrong": self.is_wrong, "times_too_far": ratios}
        made = {"files": self.files, "shrunk": self.steps, "tries": self.tries, "elements": self.elements}
        return {"schema": SCHEMA, "capture": self.capture, **facts, **made, "exit_code": 1 if self.is_wrong else 0}


def reproduce(capture: Path, out: Path, device: str | None, shrinks: bool, trusted: tuple[str, ...] = ()) -> Reproduced:
    """`device`: where to run it now; None where there is none, and what was recorded must do."""
    case, recorded = load(capture, trusted)
    if shrinks and device is None:
        raise CaptureError(f"{capture} cannot be made smaller here: the op has to run on the device, and there is none")
    got = _on_device(case, device) if device is not None else recorded
    if not got:
        raise CaptureError(
            f"{capture} cannot be reproduced: no result was captured, and there is no device to run it on"
        )
    verdict, again = judged(case, got), ""
    if not verdict.is_wrong and device is not None and judged(case, recorded).is_wrong:
        again = "right when it is run again: the fault comes and goes, and what was recorded is kept"
        got, verdict, shrinks = recorded, judged(case, recorded), False
    result = Reproduced(str(capture), case.name, device or recorded_device(capture), verdict.is_wrong, verdict.ratios)
    if again:
        result.steps.append(again)
    if shrinks and device is not None and verdict.is_wrong:
        shrinker = Shrinker(lambda one: judged(one, one.run(device)).is_wrong, result.steps.append)
        case = shrinker.shrink(case)
        result.tries, got = shrinker.tries, case.run(device)
        verdict = judged(case, got)
        result.ratios = verdict.ratios
    result.elements = sum(base.tensor.numel() for base in case.bases())
    _write(out, case, got, verdict, result)
    return result


def _on_device(case: Case, device: str) -> dict[str, Tensor]:
    try:
        return case.run(device)
    except Exception as error:  # noqa: BLE001  whatever the op raises
        raise CaptureError(f"{case.name} cannot be run on {device}: {messages.in_short(error)}") from None


def _write(out: Path, case: Case, got: dict[str, Tensor], verdict: Verdict, result: Reproduced) -> None:
    text, data = script.source(case, got, result.device)
    report = _report(case, verdict, result, text if not data else "")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if data:
            torch.save(data, out / script.DATA)
            result.files.append(str(out / script.DATA))
        for name, content in ((SCRIPT, text), (REPORT, report)):
            files.put(str(out / name), [content.encode(errors="replace")])
            result.files.insert(0, str(out / name))
    except OSError as error:
        raise CaptureError(f"{out} cannot be written ({error.strerror}): give another folder (--out)") from None


def _report(case: Case, verdict: Verdict, result: Reproduced, text: str) -> str:
    """Markdown, for whoever can mend the kernel."""
    shapes = ", ".join(f"{tuple(view.shape)} {str(view.dtype)[6:]}" for base in case.bases() for view in base.views)
    wrong = [
        f"- {name}: {ratio:.3g} times further off than allowed" for name, ratio in verdict.ratios.items() if ratio > 1
    ]
    lines = [
        f"# {case.name} gives wrong results on {result.device}",
        "",
        f"Inputs: {shapes or 'none'}{f', under autocast to {case.autocast}' if case.autocast else ''}.",
        "Expected: the op in float64 on the CPU. Allowed: six times the error of the CPU in the same dtype.",
        "",
        "Got:",
        "",
        *(wrong or ["- nothing that is wrong"]),
        "",
        "| | |",
        "| --- | --- |",
        f"| device | {result.device}{_device_name(result.device)} |",
        f"| torch | {torch.__version__} |",
        f"| Python | {platform.python_version()} |",
        f"| platform | {platform.platform()} |",
        "",
        f"`python {SCRIPT}` shows it: it needs torch only, and exits with 1 while the fault is there.",
    ]
    return "\n".join([*lines, *(["", "```python", text.rstrip("\n"), "```"] if text else []), ""])


def _device_name(device: str) -> str:
    module = getattr(torch, device.partition(":")[0], None)
    name = getattr(module, "get_device_name", None)
    try:
        return f" ({name()})" if name is not None else ""
    except Exception:  # noqa: BLE001  each backend has its own way to fail
        return ""
