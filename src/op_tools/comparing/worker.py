"""Processes that compare calls while training goes on.

A call's tensors go over in one file of shared memory, everything else through a pipe; what comes back is an Outcome. A
call whose gradients are to be compared is kept there until they come. So much waits at most as the limit says; then
training waits. A process that dies is reported, and its share is compared by the others, or in the training process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable

import torch
from torch import Tensor

from op_tools import messages, trees
from op_tools.call import OpCall
from op_tools.comparing.arguments import Arguments
from op_tools.comparing.compare import Comparer, Comparison
from op_tools.comparing.examine import Examiner, Outcome
from op_tools.comparing.reference import on_cpu, silence
from op_tools.comparing.seen import Seen
from op_tools.comparing.tolerance import Tolerances
from op_tools.errors import UnknownOpError
from op_tools.lookup import torch_op
from op_tools.rerouting.dtypes import read_cast_tables
from op_tools.where import RecordedWhere

_SHARED_MEMORY = "/dev/shm"  # noqa: S108  a folder of our own below it
_LENGTH = struct.Struct("<Q")


# ---- tensors in shared memory ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Packed:
    """Where a tensor's bytes are in the file."""

    start: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool


def _pack(value: Any, path: str) -> tuple[Any, int]:
    """Writes the tensors of nested values to a file; returns the values without them, and the bytes."""
    starts: dict[int, int] = {}
    made: dict[int, _Packed] = {}  # a tensor that is there twice is one tensor over there, too
    storages: list[tuple[int, torch.UntypedStorage]] = []
    total = 0

    def place(tensor: Tensor) -> Any:
        nonlocal total
        if id(tensor) in made:
            return made[id(tensor)]
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in starts:
            starts[key] = total
            storages.append((total, storage))
            total += -(-storage.nbytes() // 64) * 64
        packed = made[id(tensor)] = _Packed(
            starts[key],
            storage.nbytes(),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.requires_grad,
        )
        return packed

    packed = trees.map_tensors(place, value)
    if total:
        memory = torch.from_file(path, shared=True, size=total, dtype=torch.uint8)
        for start, storage in storages:
            bytes_of = torch.empty(0, dtype=torch.uint8).set_(storage)
            memory[start : start + storage.nbytes()].copy_(bytes_of)
    return packed, total


def _unpack(value: Any, path: str, total: int) -> Any:
    """The counterpart; the file has no name after that, and lives as long as its tensors."""
    if not total:
        return value
    memory = torch.from_file(path, shared=True, size=total, dtype=torch.uint8)
    os.unlink(path)
    return _restored(value, memory, {})


def _restored(value: Any, memory: Tensor, made: dict[int, Tensor]) -> Any:
    if isinstance(value, _Packed):
        if id(value) not in made:
            made[id(value)] = _tensor(value, memory)
        return made[id(value)]
    if isinstance(value, dict):
        return {key: _restored(part, memory, made) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return trees.rebuilt(value, [_restored(part, memory, made) for part in value])
    return value


def _tensor(packed: _Packed, memory: Tensor) -> Tensor:
    part = memory[packed.start : packed.start + packed.length].view(packed.dtype)
    offset = part.storage_offset() + packed.offset
    with torch.no_grad():
        return part.as_strided(packed.shape, packed.stride, offset).requires_grad_(packed.requires_grad)


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = pipe.read(length)
    return pickle.loads(body) if len(body) == length else None  # noqa: S301  our own child, no file


# ---- in the training process -----------------------------------------------------------------------------------------


class Kept:
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
        base = _SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else None
        self._folder = tempfile.mkdtemp(prefix="op_tools_", dir=base)
        self._memory = memory
        self._deliver = deliver
        self._changed = threading.Condition()
        self._queued = 0  # bytes of jobs on their way
        self._kept = 0  # bytes that wait in the processes for gradients
        self._forgotten: list[tuple[_Worker, int, int]] = []
        self._next = 0
        self._workers = [_Worker(self, verbose, out, count) for _ in range(count)]

    def forward(self, call: OpCall, seen: Seen, keep: bool) -> Kept | bool | None:
        """Hands a call over. False where no process can take it: it must be compared here."""
        if not _is_known(seen):
            return False
        self._drop_forgotten()
        worker = self._free_worker(seen.bytes() + (0 if seen.kept is None else seen.kept.bytes()))
        if worker is None:
            return False
        size = seen.bytes()
        keep = keep and self._may_keep(size)
        parts = (_both(seen.given), _both(seen.kept), seen.result)
        facts = (seen.name, *seen.facts())
        sent = worker.send("forward", call, facts, parts, keep)
        if not sent:
            return False
        if not keep:
            return None
        with self._changed:
            self._kept += size
        return Kept(self, worker, call.id, size)

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
        start = "from op_tools.comparing.worker import main; main()"
        command = [sys.executable, "-c", start, str(verbose), str(out), str(threads)]
        self._workers = workers
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), start_new_session=True
        )
        self._pipe = threading.Lock()
        self._lock = (
            threading.Lock()
        )  # of what follows; not held while the pipe is full, for then the answers wait, too
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
                packed, size = _pack(values, path)
                place = None if call is None else (call.name, call.id, call.step, call.where.line(), call.where.module)
                message = pickle.dumps((kind, number, place, facts, packed, path, size, keep))
                if call is not None:
                    self._note(number, call, size)
                _send(self._process.stdin, message)
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
                _send(self._process.stdin, pickle.dumps(None))  # the pipe's end may go unseen: forked children hold it
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._thread.join()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        while True:
            answer = _receive(self._process.stdout)
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


def _is_known(seen: Seen) -> bool:
    """True where the other process finds the same function by its name."""
    try:
        return bool(torch_op(seen.name) == seen.function)
    except UnknownOpError:
        return False


# ---- in the worker process -------------------------------------------------------------------------------------------


def main() -> None:
    """Compares what comes in through stdin, until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process decides
    verbose, out, threads = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints here is no answer
    os.nice(5)
    torch.set_num_threads(threads)
    silence()
    examiner = Examiner(Comparer(Tolerances(), read_cast_tables().cast_table), verbose, out)
    kept: dict[int, Seen] = {}
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # a pipe holds little: what waits is kept here, so that training does not wait for us
    threading.Thread(target=_read_into, args=(jobs,), daemon=True).start()
    while True:
        job = jobs.get()
        if job is None:
            return
        try:
            number, outcome = _done(job, examiner, kept)
        except Exception as error:  # noqa: BLE001  a defect of ours, which the summary names
            number, outcome = job[1], Outcome(Comparison(failure=f"{type(error).__name__}: {error}"))
        if outcome is not None:
            _send(answers, pickle.dumps((number, outcome)))


def _read_into(jobs: queue.SimpleQueue[Any]) -> None:
    while True:
        job = _receive(sys.stdin.buffer)
        jobs.put(job)
        if job is None:
            return


def _done(job: Any, examiner: Examiner, kept: dict[int, Seen]) -> tuple[int, Outcome | None]:
    kind, number, place, facts, packed, path, size, keep = job
    values = _unpack(packed, path, size)
    if kind == "forget":
        kept.pop(facts, None)
        return number, None
    call = _call(place)
    if kind == "backward":
        return number, examiner.backward(call, kept.pop(facts), *values)
    seen = _seen(facts, values)
    if keep:
        kept[call.id] = seen.for_backward()
    return number, examiner.forward(call, seen)


def _call(place: tuple[str, int, int, str, str]) -> OpCall:
    name, id, step, line, module = place
    call = OpCall(name, torch_op(name), (), {}, RecordedWhere(line, module), step)
    call.id = id
    return call


def _seen(facts: tuple[Any, ...], values: tuple[Any, ...]) -> Seen:
    name, *others = facts
    before, after, result = values
    kept = None if after is None else Arguments(*after)
    return Seen(name, torch_op(name), Arguments(*before), kept, result, *others)
