"""What is known about one program: where it comes from, how it is run, and which of its numbers are compared."""

from __future__ import annotations

import importlib.metadata
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# The folder of checkouts, one folder `owner__name` each.
SOURCES = Path(os.environ.get("PROGRAM_SOURCES", "sources"))


@dataclass(frozen=True)
class Program:
    """A program written for CUDA, run with ditorch and without it (run.py); both must print the same numbers."""

    name: str
    what: str
    # As typed without ditorch; `python` and `torchrun` are completed by run.py, `{device}` is cuda or cpu.
    command: str
    # Distributions that must be installed ("transformers<5": in this version); the version of the first one stands in
    # the table unless there is a repository.
    packages: tuple[str, ...] = ()
    # `owner/name` at GitHub, at `commit`, and the folder in it where the command is run.
    repository: str = ""
    commit: str = ""
    folder: str = "."
    # Inputs that are written before the run: names of functions in data.py and their arguments.
    data: tuple[str, ...] = ()
    # The numbers in what it prints; group 1 is compared.
    numbers: str = r"(?:loss|result)[^\n]*?(-?\d+\.\d+(?:e[+-]?\d+)?|nan|inf)"
    # The largest relative difference that is allowed, and why where it is more than rounding.
    tolerance: float = 1e-4
    reason: str = ""
    # The program has no CPU branch: its CPU run is one under DITORCH_BACKEND=cpu.
    only_cuda: bool = False
    # Why it cannot be run on the CPU at all; its numbers are then only looked at, not compared.
    uncompared: str = ""
    # It computes in processes that it starts itself, so its own device memory says nothing.
    spawns: bool = False
    # What it should say when a thing cannot work on the device: a regular expression.
    refusal: str = ""

    @property
    def checkout(self) -> Path:
        return SOURCES / self.repository.replace("/", "__")

    @property
    def devices(self) -> int:
        """How many it takes: one for each of its ranks."""
        ranks = re.search(r"--nproc_per_node=(\d+)", self.command)
        return int(ranks[1]) if ranks else 1

    @property
    def version(self) -> str:
        if self.repository:
            return self.commit
        return importlib.metadata.version(self.packages[0])

    def missing(self) -> str | None:
        """Why it cannot be run here."""
        lacking = [name for name in self.packages if not _installed(name)]
        if lacking:
            return f"not installed: {', '.join(lacking)}"
        if self.repository and not (self.checkout / self.folder).is_dir():
            return f"no checkout of {self.repository} in {SOURCES} (PROGRAM_SOURCES)"
        return None


def of(repository: str, commit: str, **common: Any) -> partial[Program]:
    """Programs of one repository."""
    return partial(Program, repository=repository, commit=commit, **common)


def library(name: str, what: str, *packages: str, **more: Any) -> Program:
    """A short program that uses a library; it lies in libraries/."""
    command = f"{more.pop('setting', '')} python {name.replace('-', '_')}.py".strip()
    return Program(name, what, command, packages, **more)


def _installed(requirement: str) -> bool:
    from packaging.requirements import Requirement  # comes with pytest

    asked = Requirement(requirement)
    try:
        return asked.specifier.contains(importlib.metadata.version(asked.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False
