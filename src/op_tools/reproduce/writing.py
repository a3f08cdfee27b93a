"""From a captured call to a folder with a script, its data and the text of a bug report."""

from __future__ import annotations

import itertools
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.errors import CaptureError
from op_tools.output import messages
from op_tools.reproduce import check, script
from op_tools.reproduce.case import Case, Excess, judged, load, recorded_device
from op_tools.reproduce.shrinking import Shrinker
from op_tools.storage import files, store

SCHEMA = "ditorch.reproduce/1"
SCRIPT, REPORT = "reproduce.py", "report.md"
_MAX_NAMED = 3
_OTHER_NUMBERS = 0.01  # further apart than sums are that add up in another order


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


def reproduce(
    capture: Path,
    out: Path,
    device: str | None,
    shrinks: bool,
    trusted: tuple[str, ...] = (),
    driver: str | None = None,
) -> Reproduced:
    """`device`: where to run it now; None where there is none, and what was recorded must do. `driver`: its version."""
    capture = _the_capture(capture)
    case, recorded = load(capture, trusted)
    if shrinks and device is None:
        raise CaptureError(f"{capture} cannot be made smaller here: the op has to run on the device, and there is none")
    got = _on_device(case, device) if device is not None else recorded
    if not got:
        raise CaptureError(
            f"{capture} cannot be reproduced: no result was captured, and there is no device to run it on"
        )
    if _is_random(case):
        raise CaptureError(
            f"{case.name} cannot be reproduced: it draws random numbers, so its results are others each time, "
            "also on the CPU"
        )
    excess, again = judged(case, got), ""
    if not excess.is_wrong and device is not None and judged(case, recorded).is_wrong:
        again = "right when it is run again: the fault comes and goes, and what was recorded is kept"
        got, excess, shrinks = recorded, judged(case, recorded), False
    result = Reproduced(str(capture), case.name, device or recorded_device(capture), excess.is_wrong, excess.ratios)
    if again:
        result.steps.append(again)
    if shrinks and device is not None and excess.is_wrong:
        shrinker = Shrinker(lambda one: judged(one, one.run(device)).is_wrong, result.steps.append)
        small = shrinker.shrink(case)
        result.tries, again_got = shrinker.tries, small.run(device)
        if judged(small, again_got).is_wrong:
            case, got, excess = small, again_got, judged(small, again_got)
            result.ratios = excess.ratios
        else:
            result.steps = ["not made smaller: the fault comes and goes"]
    result.elements = sum(base.tensor.numel() for base in case.bases())
    machine = _machine_of(capture) if device is None else {}
    _write(out, case, got, excess, result, machine or _this_machine(device, driver))
    return result


def _the_capture(folder: Path) -> Path:
    """The folder itself, or the only capture below it."""
    if not folder.is_dir() or (folder / "input.pth").exists():
        return folder
    found = list(itertools.islice(store.find_captures(folder), _MAX_NAMED + 1))
    if len(found) > 1:
        named = "".join(f"\n  {one}" for one in found[:_MAX_NAMED])
        raise CaptureError(f"{folder} holds several captured calls: name one of them, such as{named}")
    return found[0] if found else folder


def _is_random(case: Case) -> bool:
    first, second = case.run("cpu"), case.run("cpu")
    return any(check.error(first[name], second[name])[1] > _OTHER_NUMBERS for name in first.keys() & second.keys())


def _on_device(case: Case, device: str) -> dict[str, Tensor]:
    try:
        return case.run(device)
    except Exception as error:  # noqa: BLE001  whatever the op raises
        raise CaptureError(f"{case.name} cannot be run on {device}: {messages.in_short(error)}") from None


def _write(
    out: Path, case: Case, got: dict[str, Tensor], excess: Excess, result: Reproduced, machine: dict[str, str]
) -> None:
    text, data = script.source(case, got, result.device)
    report = _report(case, got, excess, result, machine, text if not data else "")
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


def _report(
    case: Case,
    got: dict[str, Tensor],
    excess: Excess,
    result: Reproduced,
    machine: dict[str, str],
    text: str,
) -> str:
    """Markdown, for whoever can mend the kernel."""
    shapes = ", ".join(f"{tuple(view.shape)} {str(view.dtype)[6:]}" for base in case.bases() for view in base.views)
    lines = [
        f"# {case.name} gives {'wrong' if result.is_wrong else 'right'} results on {result.device}",
        "",
        f"Inputs: {shapes or 'none'}{f', under autocast to {case.autocast}' if case.autocast else ''}.",
        "Expected: the op in float64 on the CPU. Allowed: six times the error of the CPU in the same dtype.",
        "",
        *_values(case, got, excess),
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in machine.items() if value),
        "",
        f"`python {SCRIPT}` shows it: it needs torch only, and exits with 1 while the fault is there.",
    ]
    return "\n".join([*lines, *(["", "```python", text.rstrip("\n"), "```"] if text else []), ""])


def _values(case: Case, got: dict[str, Tensor], excess: Excess) -> Iterator[str]:
    """What is wrong, what was expected, and what came instead, from the first element that is off."""
    wrong = {name: ratio for name, ratio in excess.ratios.items() if ratio > 1}
    if not wrong:
        yield "Nothing is wrong."
        return
    want = case.run("cpu", torch.float64)
    yield "| wrong | times further off than allowed | first element | expected | got |"
    yield "| --- | --- | --- | --- | --- |"
    for name, ratio in wrong.items():
        yield f"| {name} | {ratio:.3g} | {' | '.join(_first_wrong(got[name], want[name]))} |"


def _first_wrong(got: Tensor, want: Tensor) -> tuple[str, str, str]:
    """Where the difference is at least half of the largest one."""
    if got.shape != want.shape:
        return "shape", str(tuple(want.shape)), str(tuple(got.shape))
    apart = torch.nan_to_num(check.difference(got, want).abs(), nan=math.inf).flatten()
    number = int((apart >= apart.max() / 2).nonzero()[0])
    place: list[int] = []
    rest = number
    for size in reversed(want.shape):
        place.insert(0, rest % size)
        rest //= size
    style = "" if want.dtype is torch.bool else ".9g"
    return str(place), f"{want.flatten()[number].item():{style}}", f"{got.flatten()[number].item():{style}}"


def _this_machine(device: str | None, driver: str | None) -> dict[str, str]:
    return {
        "device": f"{device}{_device_name(device)}" if device else "",
        "driver": driver or "",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
    }


def _machine_of(capture: Path) -> dict[str, str]:
    """Of the run that captured it, where `ditorch run` wrote its manifest above."""
    for folder in capture.absolute().parents:
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            device = manifest.get("device") or {}
            named = {"device": device.get("name") or device.get("backend"), "driver": device.get("driver")}
            others = {"torch": manifest["torch"], "Python": manifest["python"], "platform": manifest["platform"]}
            return {name: str(value or "") for name, value in {**named, **others}.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return {}


def _device_name(device: str) -> str:
    module = getattr(torch, device.partition(":")[0], None)
    name = getattr(module, "get_device_name", None)
    try:
        return f" ({name()})" if name is not None else ""
    except Exception:  # noqa: BLE001  each backend has its own way to fail
        return ""
