"""Device names: "cuda" as the program says it, and the name that PyTorch knows the accelerator by."""

from __future__ import annotations

import codecs
from typing import Any


def translated(device: Any, device_type: str) -> Any:
    """A device string with "cuda" replaced by the real name; anything else as it is."""
    if not isinstance(device, str) or not (device == "cuda" or device.startswith("cuda:")):
        return device
    if device_type == "cpu":
        return "cpu"  # one device only: an index would be an error
    return device_type + device[4:]


def shown(text: str, device_type: str) -> str:
    """The other way round, for a text that begins with the real name."""
    return "cuda" + text[len(device_type) :] if text.partition(":")[0] == device_type else text


def cuda_name(device_type: str) -> str:
    """What `device.type` says: "cuda", which also equals the real name, so that both kinds of program are right."""

    class CudaName(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return str.__eq__(self, other) is True or other == device_type

        def __ne__(self, other: object) -> bool:
            return not self == other

        __hash__ = str.__hash__

        def __reduce__(self) -> Any:
            # A plain string elsewhere. torch.load(weights_only=True) refuses str itself; this is what it allows.
            return codecs.encode, (codecs.encode("cuda", "rot13"), "rot13")

    return CudaName("cuda")
