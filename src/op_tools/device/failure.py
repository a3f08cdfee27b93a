"""A device that has failed: an assert in a kernel, an illegal address. It is heard of later; every call raises then.

The tools say once which calls are known to be good and which is the first that is not, and touch the device no more.
The user's own exception goes its way. Pinned memory that the device was copying to is never freed from then on: torch
wants to record an event when it is, which raises in a destructor and ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from op_tools.device import progress
from op_tools.device.progress import Asked
from op_tools.device.queues import OUT_OF_MEMORY, all_queues
from op_tools.output import messages

_lock = threading.RLock()
_is_known = False
_OF_THE_HOST = (NotImplementedError, RecursionError, OUT_OF_MEMORY)  # errors that say nothing about the device


def is_known() -> bool:
    """Whether a device has failed, for good."""
    return _is_known


def is_noticed(error: BaseException | None, asked: Asked | None = None) -> bool:
    """Whether this error is that of a device that has failed; `asked`: the call that raised it.

    To be asked where the error is caught, while everything that it passed through is still there.
    """
    global _is_known
    if _is_known:
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, _OF_THE_HOST):
        return False
    with _lock:
        if not _is_known and _has_failed(wait=True) is not None:
            _is_known = True
            _keep_host_memory()
            messages.complain(_text(error, asked))
        return _is_known


def check() -> None:
    """Before memory is given back: finds out whether the device has failed, as far as it is known by now."""
    if not _is_known:
        failed = _has_failed(wait=False)
        if failed is not None:
            is_noticed(failed)


@contextlib.contextmanager
def tolerated() -> Iterator[None]:
    """What is done here may find that a device has failed; then the rest of it is left out."""
    try:
        yield
    except Exception as error:
        if not is_noticed(error):
            raise


def _has_failed(wait: bool) -> BaseException | None:
    """The error that the device answers with; None where it is well. `wait`: until it has done what it was asked."""
    try:
        for queue in all_queues():
            event = queue.record()
            if wait:
                queue.wait(event)
            else:
                queue.give_back(event)
        if wait and hasattr(torch, "accelerator") and torch.accelerator.is_available():
            torch.accelerator.synchronize()
    except RecursionError:  # ours, to ask takes a few frames more than the program had left
        return None
    except Exception as error:  # noqa: BLE001  each vendor has errors of its own
        return error
    return None


def _keep_host_memory() -> None:
    """For good: also beyond the end of the interpreter, which frees what modules hold."""
    kinds = (Tensor, torch.nn.Parameter, torch.UntypedStorage)
    for thing in gc.get_objects():
        if type(thing) in kinds and thing.device.type == "cpu":
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _text(error: BaseException, asked: Asked | None) -> str:
    lines = [f"the device has failed: {str(error).partition(chr(10))[0]}", *progress.in_words(asked)]
    lines.append(
        "a device runs behind the host: to have the guilty call itself raise, make the host wait for each call "
        "(CUDA_LAUNCH_BLOCKING=1 on CUDA). What the tools wrote before is whole; they do nothing more"
    )
    return "\n  ".join(lines)
