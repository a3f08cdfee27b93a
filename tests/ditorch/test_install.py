"""`import ditorch` and `import op_tools`: what they say, what they load, what they change, and what is public."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import ditorch
import op_tools
from ditorch import sim
from ditorch.errors import BackendError
from ditorch.sim import faults

# Dependencies of the command line, and what people have installed beside torch: too slow to load for everybody.
HEAVY = {"click", "jinja2", "pandas", "rich", "transformers"}


def facts(code: str, **environment: str) -> dict:
    """What a program in a process of its own prints as JSON, with its stderr and its pid."""
    command = [sys.executable, "-c", f"import json, os, sys\n{code}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    return {**json.loads(stdout), "stderr": stderr, "pid": process.pid}


@pytest.fixture(scope="module")
def installed():
    """A process that imports ditorch; that its output is JSON and no more shows that nothing else is printed."""
    code = """
import torch, ditorch
again = ditorch.install()
print(json.dumps({
    "backend": ditorch.backend().name, "the same": again is ditorch.backend(), "torch": torch.__version__,
    "loaded": sorted({name.split(".")[0] for name in sys.modules}),
    "result": (torch.ones(2, device=ditorch.backend().device_type) + 1).tolist(),
}))
"""
    return facts(code, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="sim")


@pytest.fixture(scope="module")
def disabled():
    """A process that imports both packages while ditorch is disabled."""
    code = """
import torch, torch.utils.backend_registration
def identities():
    owners = (torch, torch.Tensor, torch.cuda, torch.nn.Module, torch.distributed, torch.amp)
    return {f"{owner.__name__}.{name}": id(value) for owner in owners for name, value in vars(owner).items()}
before, loaded_before = identities(), set(sys.modules)
import op_tools
op_tools.OpCapture  # the names are loaded when one is asked for
by_tools = {name.split(".")[0] for name in set(sys.modules) - loaded_before}
loaded_before = set(sys.modules)
import ditorch
after = identities()
print(json.dumps({
    "changed": [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)],
    "loaded by tools": sorted(by_tools),
    "loaded": sorted({name.split(".")[0] for name in set(sys.modules) - loaded_before}),
    "standard library": sorted(getattr(sys, "stdlib_module_names", ())),
}))
"""
    return facts(code, DITORCH_DISABLE_MOCK="1")


def test_importing_says_in_one_line_what_was_found(installed):
    found = f"ditorch: sim (simulated accelerator) torch {installed['torch']} pid {installed['pid']}"
    line = f"{found} ditorch.framework: torch:{installed['torch']}\n"
    assert installed["stderr"] == line


def test_importing_makes_the_accelerator_usable(installed):
    assert installed["backend"] == "sim"
    assert installed["result"] == [2, 2]


def test_installing_again_does_nothing(installed):
    assert installed["the same"]


def test_importing_loads_nothing_that_only_the_command_line_needs(installed):
    assert HEAVY.intersection(installed["loaded"]) == set()


def test_disabled_it_leaves_torch_alone_and_says_nothing(disabled):
    assert disabled["changed"] == []
    assert disabled["stderr"] == ""


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 does not list its standard library")
def test_disabled_it_loads_only_itself_and_the_standard_library(disabled):
    assert set(disabled["loaded"]).difference(disabled["standard library"]) == {"ditorch"}


def test_the_tools_load_neither_ditorch_nor_what_only_the_command_line_needs(disabled):
    assert (HEAVY | {"ditorch"}).intersection(disabled["loaded by tools"]) == set()
    assert "op_tools" in disabled["loaded by tools"]


def test_without_being_installed_there_is_no_backend(monkeypatch):
    monkeypatch.setattr(ditorch, "_backend", None)
    expected = "ditorch is not active in this process: call ditorch.install(), or unset DITORCH_DISABLE_MOCK."
    with pytest.raises(BackendError, match=f"^{re.escape(expected)}$"):
        ditorch.backend()


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (ditorch, ["__version__", "backend", "install", "uninstall"]),
        (
            op_tools,
            [
                "OpAutoCompare",
                "OpCapture",
                "OpDtypeCast",
                "OpFallback",
                "OpObserve",
                "OpOverflowCheck",
                "OpTimeMeasure",
                "apply_feature",
                "read_statistics",
                "step",
            ],
        ),
        (sim, ["start", "started_as"]),
        (faults, ["Fault", "Injection", "active", "inject", "parse"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_public_names_are_these(package, names):
    assert sorted(package.__all__) == names
    assert [name for name in names if not hasattr(package, name)] == []
