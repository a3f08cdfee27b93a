"""The Triton kernel that digests tensors, by Triton's interpreter where Triton is installed; and on a GPU in use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import op_tools
from op_tools.device import digests_triton
from op_tools.storage import pack

PROGRAM = """
    import torch
    from op_tools.device import digest, digests_triton

    digests_triton.check(torch.device("cpu"))
    kernel = digests_triton.TritonDigests(torch.device("cpu"))
    group = type("Group", (), {"kept": None, "is_whole": True})()
    memory = kernel.memory(10)
    tensor = torch.randn(50, 60)
    kernel.write([tensor], group, None, memory, 0, [-1])
    kernel.write([tensor], group, None, memory, 1, [0])  # as it was
    tensor.mul_(2)
    kernel.write([tensor], group, None, memory, 2, [1])  # changed behind our back
    kernel.write([tensor], group, None, memory, 3, [2])
    lines = kernel.lines([one.cpu() for one in kernel.finish(memory, 4)])
    assert memory.sources[:4].tolist() == [0, 0, 2, 2]
    assert torch.equal(lines[0], lines[1]) and torch.equal(lines[2], lines[3])
    assert lines[2, 3] == digest.line_of(tensor)[3] != lines[0, 3]
"""


@pytest.mark.slow
def test_it_says_what_torch_says(tmp_path):
    """Every dtype, NaN and infinities, tensors that are seen again; in a process that interprets kernels."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


# ---- with a GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(device):
    if device != "cuda":
        pytest.skip("for CUDA")
    digests_triton._is_right.cache_clear()
    yield torch.device(device, torch.cuda.current_device())
    digests_triton._is_right.cache_clear()


def records(out):
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.neg", out=out, verbose=0):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            torch.arange(100_000, device="cuda").sin().to(dtype).neg()
    return sorted(pack.read(out), key=lambda record: (record.forward_id, record.part))


def test_it_is_used_on_a_gpu_and_says_the_same(gpu, monkeypatch, capsys):
    pytest.importorskip("triton")
    assert digests_triton.TritonDigests.works_on(gpu)
    ours = records("ours")
    monkeypatch.setattr(digests_triton.TritonDigests, "works_on", lambda device: False)
    torchs = records("torchs")
    assert len(ours) == len(torchs) == 6
    for one, other in zip(ours, torchs):
        assert (one.checksum, one.numel, one.min, one.max) == (other.checksum, other.numel, other.min, other.max)
        assert one.norm == pytest.approx(other.norm, rel=1e-5)
        assert one.sketch[:8] == pytest.approx(other.sketch[:8], rel=1e-5, abs=1e-5 * one.norm)
    assert "more slowly" not in capsys.readouterr().err


def test_without_it_torch_does_the_work(gpu, monkeypatch, capsys):
    pytest.importorskip("triton")

    def cannot(device):
        raise RuntimeError("no C compiler was found")

    monkeypatch.setattr(digests_triton, "check", cannot)
    assert len(records("out")) == 6
    said = "OpCapture takes torch's kernels for statistics, more slowly: RuntimeError: no C compiler was found"
    assert capsys.readouterr().err.count(said) == 1
