"""Processes that compare calls while training goes on, as the training process sees them.

A call's tensors go over in one file of shared memory, everything else through a pipe; what comes back is an Outcome. A
call whose gradients are to be compared is kept there until they come. So much waits at most as the limit says; then
training waits. A process that dies is reported, and its share is compared by the others, or in the training process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Literal

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.observed import ObservedCall, bytes_taken
from op_tools.autocompare.reference.ways import on_cpu
from op_tools.autocompare.report import Outcome
from op_tools.autocompare.workers import transfer
from op_tools.core.call import OpCall
from op_tools.errors import UnknownOpError
from op_tools.ops.lookup import torch_op
from op_tools.output import messages


class KeptByWorker:
    """A call that waits in a worker process for its gradients."""

    __slots__ = ("_key", "_size", "_worker", "_workers")

    def __init__(self, workers: Workers, worker: _Worker, key: int, size: int) -> None:
        self._workers = workers
        self._worker: _Worker | None = worker
        self._key = key
        self._size = size

    def compare(self, call: OpCall, grad_outputs: Any, grad_inputs: Any) -> None:
        """Its gradients have come."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._workers.backward(worker, self._key, self._size, call, (grad_outputs, grad_inputs))

    def __del__(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:  # no gradients will come
            self._workers.forget(worker, self._key, self._size)


class Workers:
    """The worker processes of one tool."""

    def __init__(
        self, count: int, verbose: int, out: Path, memory: int, deliver: Callable[[OpCall, Outcome], None]
    ) -> None:
        self._folder = transfer.make_folder()
        self._memory = memory
        self.left_out = 0  # calls for whose gradients there was no room
        self._deliver = deliver
        self._changed = threading.Condition()
        self._queued = 0  # bytes of jobs on their way
        self._kept = 0  # bytes that wait in the processes for gradients
        self._forgotten: list[tuple[_Worker, int, int]] = []
        self._next = 0
        self._workers = [_Worker(self, verbose, out, count) for _ in range(count)]

    def forward(self, call: OpCall, seen: ObservedCall, keep: bool) -> KeptByWorker | Literal[False] | None:
        """Hands a call over. False where no process can take it: it must be compared here."""
        if not _is_known(seen):
            return False
        self._drop_forgotten()
        worker = self._free_worker(seen.bytes() + (0 if seen.kept is None else bytes_taken(seen.kept.tensors)))
        if worker is None:
            return False
        size = seen.bytes()
        keep = keep and self._may_keep(size)
        parts = (_both(seen.given), _both(seen.kept), seen.result)
        *known, device = seen.facts()
        facts = (seen.name, *known, None if device is None else str(device))  # the worker does not know the device
        sent = worker.send("forward", call, facts, parts, keep)
        if not sent:
            return False
        if not keep:
            return None
        with self._changed:
            self._kept += size
        return KeptByWorker(self, worker, call.id, size)

    def backward(self, worker: _Worker, key: int, size: int, call: OpCall, gradients: Any) -> None:
        worker.send("backward", call, key, gradients, False)
        with self._changed:
            self._kept -= size

    def forget(self, worker: _Worker, key: int, size: int) -> None:
        self._forgotten.append((worker, key, size))  # without a lock: this may run anywhere

    def close(self) -> None:
        """Waits until everything is compared."""
        for worker in self._workers:
            worker.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- called by the workers ---------------------------------------------------------------------------------------

    def path(self, number: int, name: str) -> str:
        return os.path.join(self._folder, f"{name}_{number}")

    def queued(self, size: int) -> None:
        with self._changed:
            self._queued += size
            self._changed.notify_all()

    def deliver(self, call: OpCall, outcome: Outcome) -> None:
        self._deliver(call, outcome)

    def _free_worker(self, size: int) -> _Worker | None:
        """The next process, when there is room for a job of this size."""
        with self._changed:
            while self._queued and self._queued + self._kept + size > self._memory:
                if not any(worker.is_alive for worker in self._workers):
                    return None
                self._changed.wait(0.1)
        alive = [worker for worker in self._workers if worker.is_alive]
        self._next += 1
        return alive[self._next % len(alive)] if alive else None

    def _may_keep(self, size: int) -> bool:
        if self._kept + size <= self._memory:
            return True
        self.left_out += 1
        messages.complain_once(
            "autocompare",
            "memory",
            text=f"OpAutoCompare: {self._kept:,} bytes of inputs wait for their gradients; until some have come, those "
            "of further calls are not compared (OP_AUTOCOMPARE_MEMORY, or memory=, sets the limit)",
        )
        return False

    def _drop_forgotten(self) -> None:
        while self._forgotten:
            worker, key, size = self._forgotten.pop()
            worker.send("forget", None, key, None, False)
            with self._changed:
                self._kept -= size


class _Worker:
    """One process, and the thread that listens to it."""

    def __init__(self, workers: Workers, verbose: int, out: Path, count: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // count)
        start = "from op_tools.autocompare.workers.worker import main; main()"
        command = [sys.executable, "-c", start, str(verbose), str(out), str(threads)]
        self._workers = workers
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), start_new_session=True
        )
        self._pipe = threading.Lock()
        # of what follows; not held while the pipe is full, for then the answers wait, too
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[OpCall, int]] = {}
        self._number = 0
        self.is_alive = True
        self._thread = threading.Thread(target=self._listen, name="OpAutoCompare worker", daemon=True)
        self._thread.start()

    def send(self, kind: str, call: OpCall | None, facts: Any, values: Any, keep: bool) -> bool:
        """False where it cannot be sent."""
        assert self._process.stdin is not None
        with self._pipe:
            self._number += 1
            number, path = self._number, self._workers.path(self._number, str(self._process.pid))
            try:
                packed, size = transfer.pack(values, path)
                place = None
                if call is not None:
                    where, facts_of_call = call.where, (call.autocast, call.other_gradients)
                    place = (call.name, call.id, call.step, where.line(), where.module, *facts_of_call)
                    self._note(number, call, size)
                transfer.send(self._process.stdin, (kind, number, place, facts, packed, path, size, keep))
                return True
            except (pickle.PicklingError, TypeError, AttributeError, OSError, RuntimeError) as error:
                self._answered(number)
                with contextlib.suppress(OSError):
                    os.unlink(path)
                self.is_alive = self.is_alive and not isinstance(error, OSError)
                return False

    def _note(self, number: int, call: OpCall, size: int) -> None:
        with self._lock:
            self._waiting[number] = (call, size)
        self._workers.queued(size)

    def _answered(self, number: int) -> OpCall | None:
        with self._lock:
            call, size = self._waiting.pop(number, (None, 0))
        if size:
            self._workers.queued(-size)
        return call

    def close(self) -> None:
        assert self._process.stdin is not None
        with self._pipe:
            with contextlib.suppress(OSError):
                transfer.send(self._process.stdin, None)  # the pipe's end may go unseen: forked children hold it
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._thread.join()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        while True:
            answer = transfer.receive(self._process.stdout)
            if answer is None:
                break
            number, outcome = answer
            call = self._answered(number)
            if call is not None:
                self._workers.deliver(call, outcome)
        self._process.stdout.close()
        self.is_alive = False
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        if lost:
            code = self._process.wait()
            text = f"a process of OpAutoCompare ended (exit code {code}): {len(lost)} calls are not compared"
            messages.complain(text)
            self._workers.queued(-sum(size for _, size in lost))


def _environment() -> dict[str, str]:
    """No accelerator is wanted there, and whatever can be imported here."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "CUDA_VISIBLE_DEVICES": "",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "DITORCH_DISABLE_MOCK": "1",
        "DITORCH_FAULTS": "",
    }


def _both(arguments: Arguments | None) -> Any:
    if arguments is None:
        return None
    moved = on_cpu(arguments)  # the other process has no accelerator, and may not even know its name
    return moved.args, moved.kwargs


def _is_known(seen: ObservedCall) -> bool:
    """True where the other process finds the same function by its name."""
    try:
        return bool(torch_op(seen.name) == seen.function)
    except UnknownOpError:
        return False
