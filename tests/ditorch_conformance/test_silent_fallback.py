"""A kernel of the device's own that computes on the CPU inside itself, as vendors' do where they have none."""

from __future__ import annotations

import json

import pytest
import torch

from ditorch_conformance.ops import fallbacks, samples
from ditorch_conformance.ops.checks import Checker

pytest.importorskip("numpy")


@pytest.fixture
def kernel(device):
    """Gives the device another kernel for an op, for as long as the test runs."""
    libraries = []

    def register(name, function):
        library = torch.library.Library("aten", "IMPL")
        library.impl(name, function, "PrivateUse1")
        libraries.append(library)

    yield register
    for library in libraries:
        library._destroy()


def falls_back(device, name, *shapes, function=None, has_gradient=False):
    generator = torch.Generator().manual_seed(0)
    given = tuple(torch.rand(*shape, generator=generator).requires_grad_(has_gradient) for shape in shapes)
    call = samples.Call(name, function or getattr(torch, name.rpartition(".")[2]), given, has_gradient=has_gradient)
    return [*Checker(torch.device(device)).check(call).falls_back]


def test_a_kernel_that_computes_on_the_cpu_is_named(device, kernel):
    assert falls_back(device, "torch.erfinv", (4, 4)) == []
    kernel("erfinv", lambda x: torch.erfinv(x.cpu()).to(x.device))
    assert falls_back(device, "torch.erfinv", (4, 4)) == ["aten::erfinv"]


def test_the_kernel_inside_of_an_op_is_named_and_not_the_op(device, kernel):
    kernel("mm", lambda x, y: torch.mm(x.cpu(), y.cpu()).to(x.device))
    assert falls_back(device, "torch.matmul", (4, 4), (4, 4)) == ["aten::mm"]


def test_a_kernel_of_the_gradient_is_named(device, kernel):
    kernel("tanh_backward", lambda g, y: torch.ops.aten.tanh_backward(g.cpu(), y.cpu()).to(g.device))
    assert falls_back(device, "torch.tanh", (4, 4), has_gradient=True) == ["aten::tanh_backward"]


def test_copies_that_are_the_ops_own_are_no_fall_back(device, kernel):
    def looks_at_a_number(x):
        scale = x.max().reshape(1).cpu().to(x.device)  # what decides how the kernel goes on
        return torch.asin(x) * scale / scale

    kernel("erfinv", looks_at_a_number)
    assert falls_back(device, "torch.erfinv", (4, 4)) == []
    there_and_back = lambda x: x.cpu().exp().to(x.device)  # noqa: E731 - a program's own line
    assert falls_back(device, "torch.exp", (4, 4), function=there_and_back) == []


def test_a_kernel_that_runs_by_the_fall_back_of_its_key_is_named(device):
    library = torch.library.Library("conformance_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    there = torch.ones(2, device=device)
    assert fallbacks.by_table("conformance_test::twice", [there])
    assert not fallbacks.by_table("conformance_test::twice", [there.cpu()])
    assert not fallbacks.by_table("aten::mul.Tensor", [there, there])
    library._destroy()


def test_a_kernel_of_sparse_tensors_is_asked_for_by_their_key(device):
    assert fallbacks.by_table("aten::_indices", [torch.ones(2, device=device)])  # it has none for dense ones
    assert not fallbacks.by_table("aten::_indices", [torch.ones(2, device=device).to_sparse()])


BACKEND = """
import torch
from ditorch import sim
from ditorch.backend import Backend

class SlowBackend(Backend):
    def unavailable(self):
        return None

    def start(self):
        sim.start("slow", collectives="slowccl")
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl("erfinv", lambda x: torch.erfinv(x.cpu()).to(x.device), "PrivateUse1")

SLOW = SlowBackend(name="slow", title="slow accelerator", device_type="slow", collectives="slowccl")
"""


def test_the_summary_and_the_profile_name_what_a_vendors_kernels_do_on_the_cpu(ditorch_command, tmp_path):
    plug_in = tmp_path / "slow_backend-1.0.dist-info"
    plug_in.mkdir()
    (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-backend\nVersion: 1.0\n")
    (plug_in / "entry_points.txt").write_text("[ditorch.backends]\nslow = slow_backend:SLOW\n")
    (tmp_path / "slow_backend.py").write_text(BACKEND)
    chosen = ("--ops", "erfinv,neg", "--dtypes", "float32", "--samples", "2", "--out", "out")
    surroundings = {"DITORCH_BACKEND": "slow", "PYTHONPATH": str(tmp_path)}
    done = ditorch_command("conformance", "ops", *chosen, **surroundings)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Kernels that compute on the CPU: aten::erfinv (float32)\n" in done.stdout

    told = json.loads(ditorch_command("conformance", "report", "out", "--json").stdout)
    assert told["falls_back"] == {"aten::erfinv": ["float32"]}
    done = ditorch_command("conformance", "profile", "out", "--chip", "slow", "--out", "chip.json")
    assert done.returncode == 0, done.stderr
    kernels = json.loads((tmp_path / "chip.json").read_text())["kernels"]
    assert kernels["aten::erfinv"]["falls_back"] == ["float32"]
