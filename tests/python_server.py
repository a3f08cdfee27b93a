"""Python processes in which torch is imported already: forked off a server that has imported it, and nothing else.

Importing torch takes two seconds of a processor, and hundreds of tests need a process of their own. A forked process
runs code as `python -c` would: its arguments, variables, folder, output and end are its own. What is decided before
torch is there cannot be asked for so; `Server.can` tells.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# Read when the interpreter starts or torch is imported.
_EARLY = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "ONEDNN_", "TORCH_", "PYTORCH_")


def _early(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_EARLY) and name != "PYTHONPATH"}


class Server:
    """Starts with the first process that is asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._environment = dict(os.environ)

    def can(self, environment: dict[str, str]) -> bool:
        """Whether a process with these variables is the same as one that starts anew."""
        search = environment.get("PYTHONPATH", "").split(os.pathsep)
        has_own_start = any(Path(folder, "sitecustomize.py").exists() for folder in search)
        return _early(environment) == _early(self._environment) and not has_own_start

    def run(
        self, code: str, arguments: tuple[str, ...], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As `python -c CODE ARGUMENTS` ends and what it prints, with these variables and no others."""
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            request = {
                "code": code,
                "arguments": ["-c", *arguments],
                "environment": environment,
                "folder": os.getcwd(),
                "output": str(output),
                "errors": str(errors),
                "timeout": timeout,
            }
            status = self._ask(request)
            return subprocess.CompletedProcess(request["arguments"], status, output.read_text(), errors.read_text())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # the end of its input is its end
            self._process = None

    def _ask(self, request: dict[str, object]) -> int:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _serve() -> dict[str, object] | None:
    """Forks for every line of the input. Returns in the forked processes, with what is to be run; and at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if not process:
            return request
        print(_wait(process, request["timeout"]), flush=True)
    return None


def _wait(process: int, timeout: float) -> int:
    signal.signal(signal.SIGALRM, lambda *_: os.kill(process, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _become(request: dict) -> None:
    """Gives this process what is its own."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.chdir(request["folder"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["", *given, *(path for path in sys.path[1:] if path not in own)]
    sys.argv = request["arguments"]
    for number, path in enumerate((os.devnull, request["output"], request["errors"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    import types

    import torch  # noqa: F401  what this server is for

    asked = _serve()
    if asked is not None:
        _become(asked)
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(asked["code"], "<string>", "exec"), main.__dict__)  # noqa: S102  a test's own
