"""Files that appear whole: under another name first, then renamed; and equal ones that are written once."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Union

Buffer = Union[bytes, memoryview]
_MAX_BUFFERS = 512  # that the system takes in one call
_BLOCK_BYTES = 2**20


def put(path: str, buffers: Sequence[Buffer]) -> None:
    """Writes one file; its folder is made where there is none."""
    unfinished = f"{path}.unfinished"
    descriptor = _created(unfinished)
    try:
        try:
            write_all(descriptor, buffers)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise OSError(error.errno, error.strerror, path) from None


def _created(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        _make(os.path.dirname(path))
        return os.open(path, flags, 0o666)


def _make(folder: str) -> None:
    """As os.makedirs does, without looking first."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    except FileNotFoundError:
        parent = os.path.dirname(folder)
        if not parent or os.path.isdir(parent):
            raise  # /proc and the like: there, nothing can be made
        _make(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raises OSError for a pipe or a device: who opens it may wait, or read, for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def write_all(descriptor: int, buffers: Sequence[Buffer]) -> None:
    """The system may take less than it is offered."""
    waiting = [memoryview(buffer) for buffer in buffers if len(buffer)]
    first = 0
    while first < len(waiting):
        taken = os.writev(descriptor, waiting[first : first + _MAX_BUFFERS])
        while taken:
            part = min(taken, len(waiting[first]))
            taken -= part
            if part < len(waiting[first]):
                waiting[first] = waiting[first][part:]
            else:
                first += 1


class WrittenFiles:
    """Files that were written, the last `most` of them, by what is in them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._files: OrderedDict[object, tuple[str, list[int]]] = OrderedDict()

    def add(self, key: object, path: str, places: list[int]) -> None:
        """`places`: where in the file those bytes are that `link` compares."""
        with self._lock:
            self._files[key] = (path, places)
            if len(self._files) > self._most:
                self._files.popitem(last=False)

    def link(self, key: object, path: str, contents: Sequence[Buffer]) -> bool:
        """Makes `path` another name of a file that was written under `key` with these contents; false if it cannot."""
        known = self._files.get(key)
        if known is None:
            return False
        earlier, places = known
        try:
            if not _holds(earlier, places, contents):
                return False
            _make(os.path.dirname(path))
            os.link(earlier, path)
        except OSError:  # it is gone, there is no linking here, or it has too many names
            self._files.pop(key, None)
            return False
        return True


def _holds(path: str, places: list[int], contents: Sequence[Buffer]) -> bool:
    """Whether the file really has these bytes: a checksum alone may be that of others."""
    with open(path, "rb", buffering=0) as file:
        for place, content in zip(places, contents):
            for start in range(0, len(content), _BLOCK_BYTES):
                block = bytes(content[start : start + _BLOCK_BYTES])
                if os.pread(file.fileno(), len(block), place + start) != block:
                    return False
    return True


def in_words(bytes: int) -> str:
    """A size, such as 820.4 MB."""
    size = float(bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"
