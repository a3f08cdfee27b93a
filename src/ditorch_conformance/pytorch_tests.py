"""PyTorch's test files in a checkout of its sources: which there are, and how a worker runs one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ditorch_conformance import devices, forked_children
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.process import Recipe

# What is run unless files are named: what every device must do, without hours of decompositions and compilers.
USUAL = (
    "test_torch.py", "test_view_ops.py", "test_indexing.py", "test_type_promotion.py", "test_sort_and_select.py",
    "test_tensor_creation_ops.py", "test_reductions.py", "test_unary_ufuncs.py", "test_binary_ufuncs.py",
    "test_linalg.py", "test_autograd.py", "test_nn.py", "test_modules.py", "test_optim.py", "test_ops.py",
)  # fmt: skip


def files(source: Path, wanted: Iterable[str]) -> list[str]:
    """The files that are meant, by their paths below `test/`; names may be patterns and leave out `.py`."""
    tests = source / "test"
    if not tests.is_dir():
        raise ConformanceError(
            f"{source} is not a checkout of PyTorch: it has no folder test/. Get the one of your release, such as "
            "`git clone --depth 1 --branch v2.9.0 https://github.com/pytorch/pytorch`."
        )
    found: list[str] = []
    for name in wanted:
        pattern = name if name.endswith(".py") else f"{name}.py"
        matching = sorted(str(path.relative_to(tests)) for path in tests.glob(pattern))
        if not matching:
            raise ConformanceError(f"There is no test file {pattern} in {tests}.")
        found += matching
    return list(dict.fromkeys(found))


def recipe(source: Path, file: str, device: str, run: Mapping[str, str], forked: bool = False) -> Recipe:
    """`run`: the variables of `ditorch run`, which bring ditorch into a program. `forked`: see forked_children.py."""
    reason = forked_children.why_unavailable() if forked else ""
    if reason:
        raise ConformanceError(f"--forked does not work here: {reason}. Leave it out: the same results, slower.")
    path = source.absolute() / "test" / file
    variables = devices.variables(device, dict(run))
    before = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    # Test files import each other. The checkout itself must not be on the path: it has a torch that is not built.
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(source.absolute() / "test")]))
    options = {"device": device, "forked": forked}
    return Recipe("ditorch_conformance.unittest_file:UnittestFile", str(path), options, variables, str(path.parent))
