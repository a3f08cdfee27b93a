"""What a program needs beside right kernels, tried out: compiler, cache, pinned memory, autocast, collectives, compile.

`ditorch doctor` shows it. Each check says what is wrong and what to do about it, and is given up after a while: a
device that hangs must not hang the doctor.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from ditorch.backend import Backend
from ditorch_shared import matrix_units, native

CHECK_SECONDS = 60.0  # of each check
announce: Callable[[str], None] = lambda name: None  # noqa: E731  is told what is tried now; "": still the same
Question = Callable[[], Optional[str]]


class Check(NamedTuple):
    """One thing that was tried. `problem` is None where it is right; then there is no `advice` either."""

    name: str
    problem: str | None
    advice: str | None = None


class Asked(NamedTuple):
    """Something to try."""

    name: str
    question: Question
    advice: str = ""  # for where it fails


def answers_to(questions: Iterable[Asked]) -> list[Check]:
    """Of a device that hangs, nothing more is asked."""
    checks: list[Check] = []
    hanging = ""
    for asked in questions:
        if hanging:
            checks.append(Check(asked.name, f"not tried, because {hanging} hangs", _HANGS))
            continue
        checks.append(answered(*asked))
        if checks[-1].advice is _HANGS:
            hanging = asked.name
    return checks


_HANGS = "the vendor's own command, or restarting the device, tells more"


def is_hanging() -> bool:
    """Whether a check has never come back: the process would not end by itself."""
    return any(thread.name.startswith(_THREAD) for thread in threading.enumerate())


_THREAD = "ditorch doctor: "


def answered(name: str, question: Question, advice: str = "") -> Check:
    """The answer to a question, within a time limit. Whatever it raises is the finding."""
    answers: list[str | None] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # noqa: BLE001  whatever the device raises is the finding
            answers.append(f"raised {type(error).__name__}: {' '.join(str(error).split())[:300]}")

    announce(name)
    thread = threading.Thread(target=ask, name=_THREAD + name, daemon=True)
    thread.start()
    thread.join(CHECK_SECONDS)
    while thread.is_alive() and native.is_building():  # which ends by itself, and says how long it takes
        announce("")
        thread.join(1.0)
    if not answers:
        return Check(name, f"did not finish within {CHECK_SECONDS:g} s", _HANGS)
    return Check(name, answers[0], (advice or None) if answers[0] else None)


def look_at_cpu() -> Check:
    """To be asked before anything is multiplied: where its matrix units kill programs, this one goes on without."""
    advice = f"set {matrix_units.VARIABLE}={matrix_units.WITHOUT_UNITS} for every program on this machine"
    return answered("CPU", _cpu, advice)


def look_around(backend: Backend, is_redirected: bool) -> list[Check]:
    """Everything but the kernels. What the chip does not have at all is left out."""
    device = backend.device_type
    questions = [
        Asked("C++ compiler", _compiler, "install one (Debian, Ubuntu: apt-get install g++) or set CXX"),
        Asked("cache folder", _cache, "set DITORCH_CACHE to a folder that can be written to and has 10 MB free"),
        Asked("pin_memory", lambda: _pinned(device), "load data with pin_memory=False until this is mended"),
        Asked("autocast", lambda: _autocast(device), "train without autocast, or in another dtype"),
    ]
    if backend.collectives is not None and torch.distributed.is_available():
        advice = f"look at the installation of {backend.collectives}; programs on one device do not need it"
        questions.append(Asked("collective", lambda: _collective(backend), advice))
    # the redirect chooses a compiler that goes with the chip
    options: dict[str, Any] = {} if is_redirected else {"backend": "aot_eager"}
    advice = "run without it: TORCHDYNAMO_DISABLE=1"
    questions.append(Asked("torch.compile", lambda: _compiled(device, options), advice))
    return answers_to(questions)


def _cpu() -> str | None:
    if not matrix_units.kill_programs():
        return None
    matrix_units.leave_alone()
    return "its matrix units (AMX) are announced and do not work: a product in bfloat16 kills the process"


def _compiler() -> str | None:
    wanted = os.environ.get("CXX")
    names = [wanted.split()[0]] if wanted and wanted.split() else ["g++", "clang++", "c++"]
    return None if any(map(shutil.which, names)) else f"none is found ({', '.join(names)})"


def _cache() -> str | None:
    folder = native.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="doctor-") as file:
        file.write(b"x" * 2**20)
    return None


def _pinned(device: str) -> str | None:
    pinned = torch.arange(8.0).pin_memory()
    if pinned.to(device, non_blocking=True).cpu().tolist() != list(range(8)):
        return "a copy from pinned memory is wrong"
    return None


def _autocast(device: str) -> str | None:
    with torch.autocast(device, dtype=torch.bfloat16):
        product = torch.ones(4, 4, device=device) @ torch.ones(4, 4, device=device)
    if product.dtype is not torch.bfloat16:
        return f"a product in bfloat16 is {product.dtype}"
    return None if product.float().cpu().eq(4).all() else "a product in bfloat16 is wrong"


def _collective(backend: Backend) -> str | None:
    """With one process: whether the library is there and answers."""
    import torch.distributed as dist

    if dist.is_initialized():
        return None
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend.collectives, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            tensor = torch.ones(4, device=backend.device_type)
            dist.all_reduce(tensor)
            return None if tensor.cpu().eq(1).all() else "a sum over one process is wrong"
        finally:
            dist.destroy_process_group()


def _compiled(device: str, options: dict[str, Any]) -> str | None:
    def twice_and_more(x: Tensor) -> Tensor:
        return torch.sin(x) * 2 + 1

    torch._dynamo.reset()
    try:
        x = torch.linspace(0, 1, 16)
        got = torch.compile(twice_and_more, **options)(x.to(device)).cpu()
    finally:
        torch._dynamo.reset()
    return None if torch.allclose(got, twice_and_more(x), atol=1e-3) else "a compiled function gives other numbers"
