"""Which of torch's device classes a test file makes: one per case. In a worker, before torch's tests are imported.

- cuda: the classes for CUDA. The runner starts workers as `ditorch run` starts programs, so that "cuda" is the
  accelerator that is here, in children of the cases, too.
- own: the accelerator under its own name, by torch's base class for outside devices (torch_devices.py). Where that
  name is cuda: the classes for CUDA in plain torch.
- cpu: the classes for the CPU, in plain torch: what to compare with.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

CUDA, OWN, CPU = "cuda", "own", "cpu"
ALL = (CUDA, OWN, CPU)


def prepare(device: str) -> None:
    """Sets torch's own switches. A device has its name before torch's tests ask for it."""
    name = _own_name() if device == OWN else device
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = name
    if device == OWN and name != CUDA:
        os.environ["TORCH_TEST_DEVICES"] = str(Path(__file__).with_name("torch_devices.py"))
    if device == CUDA:
        import torch  # and with it ditorch

        torch.zeros(1, device="cuda")  # an accelerator that does not start costs the file, with its reason


def device_of(device: str) -> Any:
    """The torch.device that calls run on."""
    import torch

    return torch.device(_own_name() if device == OWN else device)


def variables(device: str, run: dict[str, str]) -> dict[str, str]:
    """For a worker's environment. `run`: what `ditorch run` sets."""
    if device == CUDA:
        return {**run, "DITORCH_DISABLE_MOCK": "0"}
    return {"DITORCH_DISABLE_MOCK": "1"}


def _own_name() -> str:
    from ditorch import discover

    return discover.choose().device_type
