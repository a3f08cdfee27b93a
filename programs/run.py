"""Runs a program with ditorch on the device and without it elsewhere, and compares the numbers that it prints.

Elsewhere is the CPU, or the same GPU where it is a genuine one: ditorch must change nothing there.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from . import data
from .record import HERE, Program

# The simulated accelerator runs the CPU's kernels. A real device rounds in its own way, in every step of a training,
# and the sums of CUDA depend on the order in which threads end.
OTHER_KERNELS = 2e-2
GENUINE = "cuda"  # the backend that changes nothing
LAUNCH = str(HERE / "launch.py")
# Programs must not reach for the network; results must not depend on the number of cores.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "agg",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
    "DITORCH_DISABLE_MOCK": "0",
}


@dataclass(frozen=True)
class Result:
    program: str
    version: str
    # passed, failed, skipped; refused, with the message that the program's record expects; broken: without ditorch, too
    status: str
    message: str = ""
    # How many numbers were compared, the largest relative difference, and whether all were equal as printed.
    numbers: int = 0
    difference: float = 0.0
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class ProgramError(Exception):
    """The program did not end well, or not rightly."""


def run(program: Program, backend: str, timeout: float) -> Result:
    missing = program.missing() or _lacking_devices(program, backend)
    if missing:
        return Result(program.name, "", "skipped", missing)
    start = time.monotonic()
    try:
        seen = _numbers(program, _output(program, backend, timeout))
        seconds = time.monotonic() - start
        reference = backend if backend == GENUINE else "cpu"
        expected = seen if program.uncompared else _numbers(program, _output(program, reference, timeout, plain=True))
        tolerance = program.tolerance if backend == "sim" else max(program.tolerance, OTHER_KERNELS)
        difference = _difference(seen, expected, tolerance, _where(reference, plain=True))
    except ProgramError as failure:
        status, message = _of_failure(program, backend, timeout, str(failure))
        return Result(program.name, program.version, status, message, seconds=round(time.monotonic() - start, 1))
    message = f"not compared: {program.uncompared}" if program.uncompared else ""
    return Result(program.name, program.version, "passed", message, len(seen), difference, round(seconds, 1))


def _of_failure(program: Program, backend: str, timeout: float, failure: str) -> tuple[str, str]:
    """Whose failure it is: the device's, where the program is refused as expected, the program's own, or ours."""
    refused = re.search(program.refusal, failure) if program.refusal else None
    if refused:
        return "refused", refused[0]
    if backend == GENUINE and failure.startswith(_where(backend, plain=False)):
        try:
            _output(program, backend, timeout, plain=True)
        except ProgramError as plainly:
            reason = failure.partition(": ")[2]
            if reason == str(plainly).partition(": ")[2]:
                return "broken", f"fails without ditorch as well: {reason}"
    return "failed", failure


def _lacking_devices(program: Program, backend: str) -> str | None:
    if backend != GENUINE or program.devices == 1:
        return None
    import torch

    count = torch.cuda.device_count()
    return f"it takes {program.devices} devices, here are {count}" if count < program.devices else None


def command_line(program: Program, backend: str, plain: bool = False) -> list[str]:
    """The command as it is run. Plain: without ditorch, unless a program that knows only CUDA is to run elsewhere."""
    ditorch = ["-m", "ditorch_cli", "run"] if not plain or (program.only_cuda and backend != GENUINE) else []
    device = "cuda" if ditorch or backend == GENUINE else "cpu"
    words = shlex.split(program.command.format(device=device, libraries=HERE / "libraries"))
    environment = []
    while "=" in words[0]:
        environment.append(words.pop(0))
    if backend == "cpu":
        environment = [setting for setting in environment if not setting.startswith("CUDA_VISIBLE_DEVICES=")]
    launcher = words.pop(0)
    if launcher == "torchrun":
        split = next(index for index, word in enumerate(words) if not word.startswith("-"))
        start = [sys.executable, "-m", "torch.distributed.run", *words[:split], *(ditorch or []), LAUNCH]
        return ["env", *environment, *start, *words[split:]]
    assert launcher == "python", program.command
    return ["env", *environment, sys.executable, *ditorch, LAUNCH, *words]


def _where(backend: str, plain: bool) -> str:
    if not plain:
        return f"on {backend}"
    return "on the CPU" if backend == "cpu" else f"on {backend} without ditorch"


def _output(program: Program, backend: str, timeout: float, plain: bool = False) -> str:
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        work = Path(folder) / "work"
        shutil.copytree(program.checkout if program.repository else HERE / "libraries", work, symlinks=True)
        work = work / program.folder
        for call in program.data:
            data.write(call, work)
        environment = {**os.environ, **QUIET, "DITORCH_BACKEND": backend, "HOME": folder, "TMPDIR": folder}
        environment.setdefault("DITORCH_CACHE", str(Path.home() / ".cache/ditorch"))
        if backend == "cpu":
            environment.update(CUDA_VISIBLE_DEVICES="", TORCHDYNAMO_DISABLE="1")  # the plainest CPU run there is
        if backend == GENUINE:
            environment.update(PROGRAM_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":4096:8")
        log = Path(folder) / "log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                command_line(program, backend, plain),
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                code = None
        output = log.read_text(errors="replace")
    where = _where(backend, plain)
    if os.environ.get("PROGRAM_OUTPUT"):
        print(f"--- {program.name} {where}\n{output}")
    if code is None:
        raise ProgramError(f"{where}: not done after {timeout:g} s; last line: {_last_line(output)}")
    if code:
        raise ProgramError(f"{where}: exit code {code}: {_last_line(output)}")
    if backend != "cpu" and not program.spawns:
        used = [int(peak) for peak in re.findall(r"launch.py: (\d+) bytes", output)]
        if not used or not any(used):
            raise ProgramError(f"{where}: it ended without using the device")
    return output


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("launch.py:")]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or ["nothing was printed"])[-1][:500]


def _numbers(program: Program, output: str) -> list[float]:
    # Ranks write in any order.
    found = [float(text) for text in re.findall(program.numbers, output, re.IGNORECASE)]
    if not found:
        raise ProgramError(f"it printed no number to compare; last line: {_last_line(output)}")
    return sorted(found) if program.command.startswith("torchrun") or program.spawns else found


def _difference(seen: list[float], expected: list[float], tolerance: float, where: str) -> float:
    if len(seen) != len(expected):
        raise ProgramError(f"it printed {len(seen)} numbers, {where} {len(expected)}")
    differences = [_relative(one, other) for one, other in zip(seen, expected)]
    largest = max(differences)
    if not largest <= tolerance:
        index = differences.index(largest)
        raise ProgramError(f"number {index + 1} of {len(seen)} is {seen[index]}, {where} {expected[index]}")
    return largest


def _relative(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-6)
