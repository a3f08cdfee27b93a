"""A process that runs cases: it says which there are, then reads one name per line and answers each with two lines.

    python -m ditorch_conformance.worker ditorch_conformance.unittest_file:UnittestFile test_torch.py --options {}

The runner starts it (process.py). The protocol has descriptors of its own, so that a case may read and print what it
likes. A guardian process ends the worker, and whatever its cases have started, when the runner is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any, Protocol

READY, BEGUN, ANSWER = "ready", "begun", "answer"


class Suite(Protocol):
    """What a worker can run: made from an argument and options, both text."""

    def cases(self) -> list[tuple[str, str]]:
        """Class and name of each."""

    def origin(self, classname: str, name: str) -> dict[str, Any]:
        """The fields of an `Attempt` that are known before it is run."""

    def run(self, classname: str, name: str) -> dict[str, Any]:
        """The other ones, but for case and seconds."""


def main() -> None:
    suite_name, argument, options, lifeline, memory = sys.argv[1:]
    _start_guardian(int(lifeline))
    questions, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what cases print goes to the log
    module, _, attribute = suite_name.partition(":")
    suite: Suite = getattr(importlib.import_module(module), attribute)(argument, json.loads(options))

    def say(kind: str, what: Any) -> None:
        answers.write(json.dumps([kind, what]) + "\n")
        answers.flush()

    say(READY, suite.cases())
    _limit_memory(int(memory))
    for line in questions:
        began = time.perf_counter()
        case = json.loads(line)
        say(BEGUN, suite.origin(*case))  # a case that never answers is of a line and an op, too
        answer = suite.run(*case)
        say(ANSWER, {**answer, "seconds": round(time.perf_counter() - began, 4), "memory": _peak_memory()})
    os._exit(0)  # threads and children of cases must not keep it


def _start_guardian(lifeline: int) -> None:
    """A process that waits until the runner closes its end, by intention or by death, and kills this group then."""
    group = os.getpgrp()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(lifeline)
        return
    if os.fork():
        os._exit(0)  # the guardian is nobody's child: a case that waits for all its children does not wait for it
    os.setpgid(0, 0)
    for descriptor in range(3):
        os.close(descriptor)
    while os.read(lifeline, 1):
        pass
    try:
        os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)


def _limit_memory(limit: int) -> None:
    """So many bytes beyond what is in use: more is a MemoryError in the case that wants it. 0: no limit.

    Private data only: a limit of the address space would count what torch merely maps.
    """
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (_private_bytes() + limit, resource.RLIM_INFINITY))


def _private_bytes() -> int:
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    except (OSError, StopIteration):  # not Linux
        return 0


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
