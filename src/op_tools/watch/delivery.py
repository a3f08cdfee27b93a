"""Hands alerts to the user's command, on its stdin, or to a webhook, by POST. One that fails or hangs harms nobody.

It runs in a thread of its own, in a session of its own, with a limit of time; alerts that come too fast are dropped and
counted.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from op_tools.errors import SettingError
from op_tools.output import messages

SECONDS_FOR_ONE = 30.0
SECONDS_AT_END = 10.0
MAX_WAITING = 100
_OURS = ("OP_TOOLS", "DITORCH_RUN")  # what would start the tools in a Python process
_MAX_SHOWN = 200


class Delivery:
    """`receiver`: a command line for the shell, or an address."""

    def __init__(self, receiver: str) -> None:
        self._receiver = check(receiver)
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self.delivered = 0
        self.failed = 0

    def add(self, alert: str) -> None:
        """Never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="TrainingWatch delivery", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.failed += 1
            self._complain("alerts come faster than it takes them, some are dropped")

    def close(self) -> None:
        """What is under way has a few seconds."""
        if self._thread is None:
            return
        until = time.monotonic() + SECONDS_AT_END
        while self._queue.unfinished_tasks and time.monotonic() < until and self._thread.is_alive():
            time.sleep(0.01)
        waiting = self._queue.unfinished_tasks
        if waiting:
            self._is_over = True
            messages.complain(f"{waiting} alert(s) could not be handed to {self._shown()} before the end")
            self._end_command()
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=1.0)  # the thread takes what waits before it, and drops it
        self._thread.join(1.0)
        self._thread = None

    def _run(self) -> None:
        while not (self._is_over and self._queue.empty()):
            alert = self._queue.get()
            if alert is None:
                return
            try:
                if self._is_over:
                    self.failed += 1
                    continue
                self._send(alert)
                self.delivered += 1
            except Exception as error:  # noqa: BLE001  whatever the user's command does, training goes on
                self.failed += 1
                self._complain(str(error))
            finally:
                self._queue.task_done()

    def _send(self, alert: str) -> None:
        if _is_address(self._receiver):
            self._post(alert)
        else:
            self._command(alert)

    def _post(self, alert: str) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "ditorch"}
        request = urllib.request.Request(self._receiver, alert.encode(), headers)  # noqa: S310 - checked to be http(s)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_FOR_ONE):  # noqa: S310
                pass
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"it answered {error.code}") from None
        except (OSError, ValueError) as error:
            raise RuntimeError(f"it cannot be reached: {getattr(error, 'reason', error)}") from None

    def _command(self, alert: str) -> None:
        surroundings = {name: text for name, text in os.environ.items() if name not in _OURS}
        self._process = process = subprocess.Popen(  # noqa: S602 - the user's own command line
            self._receiver,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=surroundings,
            start_new_session=True,
        )
        try:
            _, said = process.communicate(alert.encode(), timeout=SECONDS_FOR_ONE)
        except subprocess.TimeoutExpired:
            self._end_command()
            raise RuntimeError(f"it took more than {SECONDS_FOR_ONE:.0f} s and was ended") from None
        finally:
            self._process = None
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {_last_line(said)}".rstrip(": "))

    def _end_command(self) -> None:
        """With all that it started."""
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            for stream in (process.stdin, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _complain(self, reason: str) -> None:
        messages.complain_once("alert", reason, text=f"an alert could not be handed to {self._shown()}: {reason}")

    def _shown(self) -> str:
        """An address may hold a secret: of it, only the host is told."""
        if _is_address(self._receiver):
            return f"the webhook at {self._receiver.split('/')[2].rpartition('@')[2]}"
        return f"the command {self._receiver[:_MAX_SHOWN]!r}"


def check(receiver: str) -> str:
    """An address must be one of http; a text with another scheme is no command either."""
    scheme = receiver.partition("://")[0] if "://" in receiver.split(" ")[0] else ""
    if scheme and (scheme not in ("http", "https") or not receiver.split("://", 1)[1].strip("/")):
        raise SettingError(
            "OP_WATCH_ON_ALERT cannot be used: an address must begin with http:// or https://, and name a host"
        )
    if "\0" in receiver:
        raise SettingError("OP_WATCH_ON_ALERT cannot be used: it holds a NUL character")
    return receiver


def _is_address(receiver: str) -> bool:
    return receiver.startswith(("http://", "https://"))


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:_MAX_SHOWN] if lines else ""
