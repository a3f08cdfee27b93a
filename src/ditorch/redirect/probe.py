"""`python -m ditorch.redirect.probe LIBRARY`: tries out a freshly built hook of the device-string parser."""

from __future__ import annotations

import ctypes
import sys

import torch


def main(library: str) -> None:
    hook = ctypes.CDLL(library)
    assert hook.ditorch_redirect_strings(b"meta") > 0, "PyTorch's parser of device strings was not found"
    check("meta")
    assert torch.empty(0, device="cuda").device.type == "meta"
    assert torch.empty(0).to("cuda").device.type == "meta"
    assert hook.ditorch_restore_strings() > 0
    assert torch.device("cuda").type == "cuda"


def check(device_type: str) -> None:
    """That "cuda" now means this device, and that nothing else has changed. The device itself is not touched yet."""
    assert torch.device("cuda").type == device_type
    parse_arguments = getattr(torch._C._nn, "_parse_to", None)  # what module.to() calls first
    assert parse_arguments is None or parse_arguments("cuda")[0].type == device_type
    assert torch.device("cpu").type == "cpu"
    try:
        torch.device("cudas")
    except RuntimeError:
        return
    raise AssertionError("a wrong device string is not refused any more")


if __name__ == "__main__":
    main(sys.argv[1])
