"""The two libraries of ours that take a while to build. Each is loaded by its own package; here one may be built beside
the other."""

from __future__ import annotations

import os
from pathlib import Path

from ditorch_shared.native import NativeLibrary

_PACKAGES = Path(__file__).parents[1]

SIMULATOR = NativeLibrary(
    name="sim",
    title="The simulated accelerator",
    main=_PACKAGES / "ditorch" / "sim" / "csrc" / "simulator.cpp",
    probe="ditorch.sim.probe",
)
HELPER = NativeLibrary(
    name="op_tools",
    title="The fast path of op_tools",
    main=_PACKAGES / "op_tools" / "native" / "csrc" / "native.cpp",
    probe="op_tools.native.probe",
    uses_python=True,
)


def simulator() -> Path:
    """Where the simulated accelerator lies. Who uses it will use a tool before long, most likely."""
    is_helper_wanted = os.environ.get("OP_TOOLS_NATIVE", "").strip() != "0"
    return SIMULATOR.path(wanted_next=HELPER if is_helper_wanted else None)
