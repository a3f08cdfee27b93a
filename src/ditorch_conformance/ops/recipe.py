"""How a worker runs the op matrix, and what may be chosen of it. Without torch."""

from __future__ import annotations

import fnmatch
from typing import Any

from ditorch_conformance import devices
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.process import Recipe

FILE = "ops"  # stands for a test file in results
SHARD_CASES = 4  # a worker keeps what it has imported, and some cases take a hundred times as long as others
DTYPES = (
    "float64", "float32", "bfloat16", "float16", "complex128", "complex64", "complex32",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip


def recipe(device: str, chosen: dict[str, Any], run: dict[str, str]) -> Recipe:
    """`chosen`: see `choice`; `run`: the variables that `ditorch run` sets."""
    # workers share the machine's cores: each computes its references in one thread
    # and torch's profiler has nothing to say in the messages of those that die
    variables = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", **devices.variables(device, run)}
    return Recipe("ditorch_conformance.ops.suite:OpSuite", FILE, {"device": device, **chosen}, variables)


def choice(ops: str, dtypes: str, samples: int) -> dict[str, Any]:
    """Names with commas between them; ops may be patterns. `samples`: at most so many of each case; 0: all."""
    wanted = _listed(dtypes)
    unknown = [name for name in wanted if name not in DTYPES]
    if unknown:
        raise ConformanceError(f"There is no dtype {unknown[0]!r} in the op matrix; there are {', '.join(DTYPES)}.")
    return {"ops": _listed(ops), "dtypes": wanted, "samples": samples}


def is_chosen(name: str, patterns: list[str]) -> bool:
    """All are, unless some are named."""
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _listed(text: str) -> list[str]:
    return [part.strip().removeprefix("torch.") for part in text.split(",") if part.strip()]
