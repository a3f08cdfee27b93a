"""The runner's end of a worker: starts it, asks it, and knows what happened when it does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ditorch_conformance.results import CRASH, TIMEOUT
from ditorch_conformance.worker import READY

_MAX_MESSAGE = 2000
_POLL_SECONDS = 0.5
STOPPED = "stopped"


@dataclass(frozen=True)
class Limits:
    """Of one case, and of the import of a file."""

    seconds: float = 120.0
    import_seconds: float = 600.0
    memory: int = 8 * 2**30  # bytes beyond what the imported file takes; 0: none

    @property
    def recycled_above(self) -> int:
        """Bytes from which on a worker is replaced by a fresh one after its case."""
        return self.memory // 2 if self.memory else 2**62


@dataclass(frozen=True)
class Recipe:
    """How to start a worker for a file: what runs in it, and its surroundings."""

    suite: str  # "module:class", see worker.Suite
    argument: str
    options: dict[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""


class WorkerGone(Exception):  # noqa: N818 - it is what happened, and not an error of ours
    """The worker gave no answer: `status`, `info` and `message` are those of the case that it was asked."""

    def __init__(self, status: str, info: str, message: str) -> None:
        super().__init__(message)
        self.outcome: dict[str, Any] = {"status": status, "info": info, "message": message}


class WorkerProcess:
    """One worker. Raises WorkerGone, at its start, too; it is stopped then."""

    def __init__(self, recipe: Recipe, limits: Limits, log: Path, stopped: threading.Event) -> None:
        self._limits = limits
        self._stopped = stopped
        self._stopping = threading.Lock()
        self._is_ended = False  # by us
        self._log = open(log, "wb+")  # noqa: SIM115 - closed by stop()
        lifeline, self._lifeline = os.pipe()
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, [recipe.variables.get("PYTHONPATH", os.environ.get("PYTHONPATH")), root]))
        command = [sys.executable, "-X", "faulthandler", "-m", "ditorch_conformance.worker", recipe.suite]
        self._process = subprocess.Popen(
            [*command, recipe.argument, json.dumps(recipe.options), str(lifeline), str(limits.memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **recipe.variables, "PYTHONPATH": path},
            cwd=recipe.folder or None,
            pass_fds=(lifeline,),
            start_new_session=True,  # Ctrl-C is for the runner alone, and a group can be killed as a whole
        )
        os.close(lifeline)
        self._unread = b""
        kind, self.cases = self._answer(limits.import_seconds)
        assert kind == READY

    def run(self, classname: str, name: str) -> dict[str, Any]:
        """The answer to one case."""
        assert self._process.stdin is not None
        self._log.seek(0)
        self._log.truncate()
        try:
            self._process.stdin.write(json.dumps([classname, name]).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # it died between two cases; reading says how
            pass
        origin: dict[str, Any] = {}
        try:
            _, origin = self._answer(self._limits.seconds)
            _, answer = self._answer(self._limits.seconds)
        except WorkerGone as gone:
            gone.outcome.update(origin)
            raise
        return {**origin, **answer}

    def stop(self) -> None:
        """Ends it and whatever its cases have started. Calling it twice does nothing."""
        with self._stopping:  # Ctrl-C pressed twice: the thread that waits for an answer stops it, and the runner does
            if not self._is_ended:
                self._is_ended = True
                self._stop()

    def _stop(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._lifeline)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._log.close()

    def _answer(self, seconds: float) -> Any:
        """The next line, or WorkerGone."""
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = deadline - time.monotonic()
                if self._stopped.is_set():
                    self.stop()
                    raise WorkerGone(STOPPED, "", "the run was stopped")
                if left <= 0:
                    self.stop()
                    raise WorkerGone(TIMEOUT, "", f"no answer within {seconds:g} s")
                if selector.select(min(left, _POLL_SECONDS)):
                    received = os.read(descriptor, 1 << 16)
                    self._unread += received
                    if not received:
                        raise self._death()
                elif self._process.poll() is not None:  # a child of a case may hold the pipe open
                    raise self._death()
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _death(self) -> WorkerGone:
        code = self._process.wait()
        if self._is_ended:  # Ctrl-C pressed twice: the runner ended it, and its case has not crashed
            return WorkerGone(STOPPED, "", "the run was stopped")
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip()[-_MAX_MESSAGE:]
        self.stop()
        return WorkerGone(CRASH, _cause(code), words)


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
