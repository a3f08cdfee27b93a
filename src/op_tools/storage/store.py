"""One captured op call on disk: a folder with input.pth, output.pth, grad_inputs.pth and grad_outputs.pth.

Each of them is a file as torch.save writes it, which torch.load(weights_only=True) reads on its own, anywhere:
{"name", "args", "kwargs", "identifier"}, with all tensors on the CPU. `.pth.json` beside it tells people and scripts
what is in it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.device.host_memory import HostMemory
from op_tools.errors import CaptureError
from op_tools.output import paths, process
from op_tools.storage import encoding, files
from op_tools.storage.archive import FOLDER, Archive
from op_tools.storage.snapshot import HostTensor, Taken, take
from op_tools.values import trees

PARTS = ("input", "output", "grad_inputs", "grad_outputs")
_MAX_FILES_KNOWN = 4096  # files that are remembered, to find equal ones


# ---- saving --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """What goes into one file, and beside it."""

    part: str
    name: str
    identifier: str
    taken: Taken  # of (args, kwargs)
    details: Mapping[str, Any]  # for the .pth.json: step, source line, module …


def save(
    folder: Path,
    part: str,
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    identifier: str,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Writes one part of a call now; its tensors may be on any device. Returns the file."""
    taken = take((args, dict(kwargs)), HostMemory(0, lambda: False))
    return Path(Files().write(str(folder), Content(part, name, identifier, taken, details or {})))


class Files:
    """Writes parts of calls. Equal content is not written again but linked.

    Only a whole file can be linked, and each holds its op's name and all tensors of a part. So this is for ops that run
    again on the same numbers, as those of a checkpointed layer do; the identifier inside is then the first one's. A
    tensor that is one op's output and another one's input is in both files: else none of them could be read alone.
    """

    def __init__(self) -> None:
        self.count = 0
        self.calls = 0
        self.bytes = 0
        self.linked = 0
        self._lock = threading.Lock()
        self._known = files.WrittenFiles(_MAX_FILES_KNOWN)

    def write(self, folder: str, content: Content) -> str:
        """Returns the path of the file."""
        content.taken.wait()
        path = f"{folder}{os.sep}{content.part}.pth"
        args, kwargs = encoding.for_disk(content.taken.value)
        value = {"name": content.name, "args": args, "kwargs": kwargs, "identifier": content.identifier}
        archive = Archive(value)
        files.put(
            f"{path}.json", [_described(content).encode(errors="backslashreplace")]
        )  # first, so that no .pth is without it
        # all but the identifier, which is last
        described = archive.pickle[: archive.pickle.rfind(content.identifier.encode()) - 5]
        key = (hashlib.blake2b(described, digest_size=16).digest(), *archive.checksums)
        is_linked = self._known.link(key, path, archive.tensors)
        if not is_linked:
            files.put(path, archive.buffers)
            self._known.add(key, path, archive.places)
        with self._lock:
            self.count += 1
            self.calls += content.part == "input"
            self.linked += is_linked
            self.bytes += 0 if is_linked else archive.length
        return path


def _described(content: Content) -> str:
    """JSON with one line for each tensor or value."""
    head = {"name": content.name, "part": content.part, "identifier": content.identifier}
    head = {**head, **content.details, **process.identity()}
    args, kwargs = content.taken.value
    is_result = content.part == "output" and len(args) == 1
    places = trees.results(args[0]) if is_result else trees.arguments(args, kwargs)
    role = {"input": "inputs", "output": "outputs"}.get(content.part, content.part)
    rows = ",\n  ".join(_row(f"{content.name} {role}{place}", value) for place, value in places)
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    return "{\n" + ",\n".join(lines) + f',\n "values": [\n  {rows}\n ]\n}}\n'


def _row(label: str, value: Any) -> str:
    name = encode_basestring(label)
    if isinstance(value, (HostTensor, Tensor)):
        dtype = str(value.dtype).partition(".")[2]
        text = f'{{"name": {name}, "shape": {list(value.shape)}, "dtype": "{dtype}", "device": "{value.device}"'
        if isinstance(value, Tensor):
            text += f', "layout": "{value.layout}"'
        else:
            text += f', "stride": {list(value.stride)}'
            if value.stored_stride != value.stride:
                text += f', "stored_stride": {list(value.stored_stride)}'
        return text + f', "requires_grad": {"true" if value.requires_grad else "false"}}}'
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)  # JSON has no word for it
    elif value is not None and not isinstance(value, (int, str, float)):
        value = str(value)
    return f'{{"name": {name}, "value": {json.dumps(value, ensure_ascii=False)}}}'


# ---- loading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedPart:
    """What was in one file: the arguments of a call, its result (args[0]), or gradients, one for each tensor."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    identifier: str


@dataclass(frozen=True)
class Capture:
    """One captured call. Parts that were not saved are None: the op failed, or no gradients flowed."""

    folder: Path
    input: SavedPart
    output: SavedPart | None
    grad_inputs: SavedPart | None
    grad_outputs: SavedPart | None

    @property
    def name(self) -> str:
        """The op's full name."""
        return self.input.name


def find_captures(root: str | os.PathLike[str]) -> Iterator[Path]:
    """Every folder at or below `root` that holds a captured call, in the order in which the calls were made."""
    if not os.path.isdir(root):
        raise CaptureError(f"{os.fspath(root)} is no folder: give one that OpCapture wrote, or one above it")
    for folder, inner, names in os.walk(root):
        inner.sort(key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
        if Path(folder).parts[-3:-2] == ("autocompare",) and "device" in inner:
            inner[:] = ["device"]  # of a call that was found wrong; the reference's arguments beside it are the same
        if paths.REPLAYED in inner:
            inner.remove(paths.REPLAYED)  # what replay itself has written
        if "input.pth" in names:
            yield Path(folder)


def load(folder: str | os.PathLike[str]) -> Capture:
    """One captured call, all of it. Raises CaptureError where a file of it cannot be used."""
    folder = Path(folder)
    parts = {part: load_part(folder / f"{part}.pth") for part in PARTS if os.path.lexists(folder / f"{part}.pth")}
    if "input" not in parts:
        raise CaptureError(f"{folder} holds no captured call: there is no input.pth in it")
    return Capture(folder, parts["input"], *(parts.get(part) for part in PARTS[1:]))


def load_note(folder: Path, part: str = "input") -> dict[str, Any]:
    """What stands in the JSON beside a part of a call; a missing one is no error."""
    path = folder / f"{part}.pth.json"
    try:
        files.check_regular(path)
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def load_part(path: str | os.PathLike[str], is_checked: bool = True) -> SavedPart:
    """What is in one file. Raises CaptureError where it is damaged, or no such file at all.

    `is_checked`: False where it was read before, and its checksums need not be looked at again.
    """
    path = Path(path)
    try:
        if is_checked:
            _check(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sparse tensors have torch warn, and a warning may be an error here
            return _part(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # noqa: BLE001  a damaged file can make torch.load raise anything
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, OSError):
            reason = error.strerror or reason
        raise CaptureError(f"{path} cannot be used: {reason}") from None


def _check(path: Path) -> None:
    """torch.load does not look at checksums, and would take files of older kinds that are not safe in every release."""
    files.check_regular(path)
    with open(path, "rb") as file:
        if file.read(4) != b"PK\3\4":
            raise ValueError("it is no file that torch.save writes")
    try:
        with zipfile.ZipFile(path) as archive:
            ours = all(name.startswith(f"{FOLDER}/") for name in archive.namelist())
            damaged = archive.testzip() if ours else None
    except zipfile.BadZipFile:
        raise ValueError("its end is missing: it was not copied whole, or is damaged") from None
    if damaged is not None:
        raise ValueError(f"it is damaged ({damaged} is not what was written)")


def _part(value: Any) -> SavedPart:
    if not isinstance(value, dict) or not {"name", "args", "kwargs"} <= value.keys():
        raise ValueError('it is no captured call: such a file holds "name", "args" and "kwargs"')
    name, args, kwargs = value["name"], value["args"], value["kwargs"]
    if not isinstance(name, str) or not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        raise ValueError("it is no captured call: its name, args or kwargs are of another kind")
    identifier = str(value.get("identifier", ""))
    return SavedPart(name, tuple(encoding.decode(args)), encoding.decode(kwargs), identifier)
