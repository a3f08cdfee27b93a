"""A process that compares calls for another one, where training goes on (workers.py)."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.judging.comparer import Comparer, Comparison
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import References, silence
from op_tools.autocompare.report import Outcome
from op_tools.autocompare.workers import transfer
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.where import RecordedWhere
from op_tools.ops.autocast_policy import Autocast
from op_tools.ops.cast_tables import read_cast_tables
from op_tools.ops.lookup import torch_op


def main() -> None:
    """Compares what comes in through stdin, until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process decides
    verbose, out, threads = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints here is no answer
    os.nice(5)
    torch.set_num_threads(threads)
    silence()
    references = References(read_cast_tables().cast_table)
    examiner = Examiner(Comparer(Tolerances(), references, verbose >= 2), verbose, out)
    kept: dict[int, ObservedCall] = {}
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
            transfer.send(answers, (number, outcome))


def _read_into(jobs: queue.SimpleQueue[Any]) -> None:
    while True:
        job = transfer.receive(sys.stdin.buffer)
        jobs.put(job)
        if job is None:
            return


def _done(job: Any, examiner: Examiner, kept: dict[int, ObservedCall]) -> tuple[int, Outcome | None]:
    kind, number, place, facts, packed, path, size, keep = job
    values = transfer.unpack(packed, path, size)
    if kind == "forget":
        kept.pop(facts, None)
        return number, None
    call = _call(place)
    if kind == "backward":
        outputs, inputs = values
        return number, examiner.backward(call, kept.pop(facts), Gradients(inputs, outputs))
    seen = _seen(facts, values)
    if keep:
        kept[call.id] = seen.for_backward()
    return number, examiner.forward(call, seen)


def _call(place: tuple[str, int, int, str, str, Autocast | None, str]) -> OpCall:
    name, id, step, line, module, autocast, other_gradients = place
    call = OpCall(name, torch_op(name), (), {}, RecordedWhere(line, module), step)
    call.id, call.autocast, call.other_gradients = id, autocast, other_gradients
    return call


def _seen(facts: tuple[Any, ...], values: tuple[Any, ...]) -> ObservedCall:
    name, *others = facts
    before, after, result = values
    kept = None if after is None else Arguments(*after)
    return ObservedCall(name, torch_op(name), Arguments(*before), kept, result, *others)
