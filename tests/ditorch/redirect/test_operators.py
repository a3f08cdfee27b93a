"""Operators of a program's own, with kernels for CUDA."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("redirect")


@pytest.fixture
def library(request):
    name = f"ditorch_test_{abs(hash(request.node.nodeid))}"
    fragment = torch.library.Library(name, "FRAGMENT")
    fragment.define("twice(Tensor x) -> Tensor")
    yield fragment
    if hasattr(fragment, "_destroy"):
        fragment._destroy()


def called(library, tensor):
    return getattr(torch.ops, library.ns).twice(tensor)


def test_a_kernel_for_cuda_runs_on_the_accelerator(library):
    library.impl("twice", lambda x: x * 2, "CUDA")
    result = called(library, torch.ones(2, device="cuda"))
    assert result.is_cuda
    assert result.tolist() == [2, 2]


def test_kernels_for_cuda_and_the_cpu_stand_side_by_side(library):
    library.impl("twice", lambda x: x + 100, "CPU")
    torch.library.impl(library, "twice", "CUDA")(lambda x: x * 2)
    assert called(library, torch.ones(1)).item() == 101
    assert called(library, torch.ones(1, device="cuda")).item() == 2


def test_a_library_of_cuda_kernels(library):
    kernels = torch.library.Library(library.ns, "IMPL", "CUDA")
    kernels.impl("twice", lambda x: x * 2)
    assert called(library, torch.ones(1, device="cuda")).item() == 2


def test_a_gradient_formula_for_cuda(library):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.detach() * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 20

    library.impl("twice", Twice.apply, "AutogradCUDA")
    x = torch.ones(1, device="cuda", requires_grad=True)
    called(library, x).backward()
    assert x.grad.item() == 20


def test_libraries_that_launch_kernels_find_the_current_stream():
    assert isinstance(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()), int)


def test_programs_clear_cublas_workspaces_before_they_look_at_memory():
    assert torch._C._cuda_clearCublasWorkspaces() is None
