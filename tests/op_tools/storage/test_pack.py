"""Files of statistics: what they hold, and files of other releases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import op_tools
from op_tools.device import digest
from op_tools.errors import CaptureError
from op_tools.storage import pack

OLD = Path(__file__).with_name("layout_1.pack")


def test_files_of_the_old_layout_are_read():
    """Made by the release that wrote them; with tensors whose numbers are those of others."""
    found = list(pack.read(OLD))
    assert len(found) == 29
    weight = found[1]
    assert (weight.op, weight.part, weight.place) == ("torch.nn.functional.linear", "input", "[1]")
    assert (weight.shape, weight.numel, weight.order, weight.checksum) == ((3, 4), 12, 0, 14274885346960568578)
    assert weight.norm == pytest.approx(0.80063, abs=1e-5)
    assert weight.sketch == pytest.approx((0.3208, 0.2535, -0.3803, -0.3596), abs=1e-4)
    repeated = found[-1]
    assert (repeated.op, repeated.place, repeated.forward_id) == ("torch._foreach_addcmul_", "[2][1]", 5)
    assert repeated.checksum == found[5].checksum


def test_a_file_of_a_later_release_is_named(tmp_path):
    path = tmp_path / "op_capture_statistics_pid1.pack"
    path.write_bytes(b"op_tools statistics 9\n{}\n")
    with pytest.raises(CaptureError, match="a later release of op_tools wrote it"):
        list(pack.read(path))


def test_the_order_is_that_of_the_run_in_backward_too(device):
    x = torch.ones(3, device=device, requires_grad=True)
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.(mul|neg|exp)", verbose=0):
        (x * 2).exp().neg().sum().backward()
    found = sorted(pack.read("."), key=lambda record: record.order)
    order = list(dict.fromkeys((record.op.rpartition(".")[2], record.part.partition("_")[0]) for record in found))
    forward = [(op, part) for op in ("mul", "exp", "neg") for part in ("input", "output")]
    assert order == [*forward, ("neg", "grad"), ("exp", "grad"), ("mul", "grad")]


def test_what_a_kernel_written_in_python_calls_is_left_out(device):
    """In backward it runs under the tools; what a checkpointed layer calls again there is the program's own."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")
    from torch.utils.checkpoint import checkpoint

    from ditorch.sim import faults

    x = torch.randn(4, 4, device=device, requires_grad=True)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpCapture(mode="statistics", verbose=0):
        checkpoint(lambda t: (t @ t).relu(), x, use_reentrant=False).sum().backward()
    calls = {(record.forward_id, record.op.rpartition(".")[2]) for record in pack.read(".") if record.part == "output"}
    assert [name for _, name in sorted(calls)] == ["matmul", "relu", "sum", "matmul"]


def test_a_part_of_a_dtensor_is_read_like_any_tensor(tmp_path):
    tensor = {"part": "output", "place": "", "shape": [2], "dtype": "float32", "device": "cpu", "requires_grad": False}
    placed = {"whole": [4], "start": [2], "placements": ["S(0)"]}
    file = pack.Pack(tmp_path / "op_capture_statistics_x.pack", {"rank": 1})
    file.describe({"op": "f", "source": "", "module": "", "tensors": [{**tensor, **placed}]})
    file.add(torch.zeros(1, 5 + digest.LINE, dtype=torch.int64))
    file.close()
    (record,) = op_tools.read_statistics(tmp_path)
    assert (record.shape, record.op) == ((2,), "f")
