"""OpCapture(mode="statistics"): a few numbers for each tensor that tell whether two runs did the same."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import op_tools
from op_tools.capture import repeats, statistics
from op_tools.core.steps import STEPS
from op_tools.device import digest, digests, staging
from op_tools.errors import CaptureError
from op_tools.storage import blocks, pack

from .test_capture import killed

NEG = "torch.Tensor.neg"


def records(*tensors, root="."):
    """What is recorded about tensors that are given to an op."""
    with op_tools.OpCapture(mode="statistics", ops=NEG, out=root, verbose=0):
        for tensor in tensors:
            tensor.neg()
    found = [record for record in pack.read(root) if record.part == "input"]
    return sorted(found, key=lambda record: record.forward_id)[-len(tensors) :]


def expected(tensor):
    host = tensor.detach().cpu()
    numbers = (torch.view_as_real(host) if host.is_complex() else host).double().flatten()
    finite = numbers[numbers.isfinite()]
    bad = (int(numbers.isnan().sum()), int(numbers.isinf().sum()))
    if not len(finite):
        return (len(numbers), *bad), None
    values = (finite.min(), finite.max(), finite.mean(), finite.std(correction=0), finite.norm())
    return (len(numbers), *bad), [value.item() for value in values]


def check(record, tensor):
    counts, values = expected(tensor)
    assert (record.numel, record.nan, record.inf) == counts
    assert record.shape == tuple(tensor.shape)
    assert record.dtype == str(tensor.dtype).partition(".")[2]
    found = (record.min, record.max, record.mean, record.std, record.norm)
    if values is None:
        assert all(math.isnan(value) for value in found)
    else:
        size = max(abs(values[0]), abs(values[1]))
        assert found[:2] == tuple(values[:2])
        assert record.mean == pytest.approx(values[2], abs=1e-6 * size)
        # a difference of squares
        assert record.std == pytest.approx(values[3], rel=1e-6, abs=3e-4 * abs(values[2]))
        assert record.norm == pytest.approx(values[4], rel=1e-6)


# ---- the numbers ---------------------------------------------------------------------------------------------------

SHAPES = [(), (1,), (511,), (512,), (513,), (3, 5, 100), (70_000,), (0, 4), (128, 512)]
DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_size(way, device, dtype, monkeypatch):
    """Also of tensors that are larger than the buffer they pass through."""
    monkeypatch.setattr(staging, "MIN_BUFFER_BYTES", 2**16)
    tensors = []
    for shape in SHAPES:
        tensor = torch.randn(shape) * 50
        tensors.append((tensor > 0 if dtype is torch.bool else tensor.abs().to(dtype)).to(device))
    tensors += [tensors[5].transpose(0, 2), tensors[5][:, ::2, 7:50], tensors[1].expand(300, 4)]
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.eq", verbose=0):
        for tensor in tensors:
            tensor.eq(tensor)
    found = [record for record in pack.read(".") if (record.part, record.place) == ("input", "[1]")]
    found.sort(key=lambda record: record.forward_id)
    assert len(found) == len(tensors)
    for record, tensor in zip(found, tensors):
        check(record, tensor)


def test_float8(way, device):
    dtype = getattr(torch, "float8_e4m3fn", None)
    if dtype is None:
        pytest.skip("this torch has none")
    tensor = torch.randn(1000).to(dtype).to(device)
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.to", verbose=0):
        tensor.to(torch.float32)
    record = next(pack.read("."))
    assert record.dtype == "float8_e4m3fn"
    assert record.norm == pytest.approx(tensor.cpu().float().norm().item(), rel=1e-6)


def bad_numbers():
    mixed = torch.randn(5000)
    mixed[7], mixed[100:120], mixed[4999] = math.nan, math.inf, -math.inf
    return {
        "some NaN and infinities": mixed,
        "only NaN": torch.full((3000,), math.nan),
        "one infinity": torch.tensor([1.0, math.inf, 3.0]),
        "squares overflow": torch.full((3000,), 3e38),
        "squares vanish": torch.rand(3000) * 1e-24,
        "zeros": torch.zeros(3000),
        "NaN in bfloat16": torch.tensor([1.0, math.nan] * 700).bfloat16(),
    }


@pytest.mark.parametrize("name", bad_numbers())
def test_numbers_of_the_finite_elements(way, device, name):
    tensor = bad_numbers()[name].to(device)
    check(*records(tensor), tensor)


def test_the_same_numbers_wherever_the_tensor_lies_in_the_batch(way, device):
    tensor = torch.randn(700, device=device)
    others = [torch.randn(size, device=device) for size in (3, 5000, 512)]
    alone, *_ = records(tensor)
    *_, behind = records(*others, tensor)
    strip = {"forward_id": 0, "order": 0, "source": "", "step": 0}
    assert replace(alone, **strip) == replace(behind, **strip)


def test_sparse_tensors_are_named_instead(device):
    if device == "sim":
        pytest.skip("it has no sparse tensors")
    (record,) = records(torch.eye(3, device=device).to_sparse())
    assert record.note == "there are no statistics of torch.sparse_coo tensors of torch.float32"
    assert math.isnan(record.mean)


# ---- what they see -------------------------------------------------------------------------------------------------


def alike(one, other):
    """As far as the usual statistics go."""
    return all(
        getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-6)
        for name in ("min", "max", "mean", "std", "norm")
    )


def apart(one, other):
    """How far the tensors are from each other, by their sketches, relative to their norm."""
    squares = sum((a - b) ** 2 for a, b in zip(one.sketch, other.sketch)) / len(one.sketch)
    return math.sqrt(squares) / one.norm


@pytest.mark.parametrize("shape", [(4, 16, 8, 8), (64, 32), (300,)])
def test_swapped_channels_are_seen(device, shape):
    tensor = torch.randn(shape, device=device)
    order = list(range(shape[0]))
    order[0], order[1] = 1, 0
    one, other = records(tensor, tensor[order])
    assert alike(one, other)
    assert apart(one, other) > 0.001


def test_a_transposition_is_seen(device):
    tensor = torch.randn(64, 64, device=device)
    one, other = records(tensor, tensor.t())
    assert alike(one, other)
    assert apart(one, other) > 0.1


def test_noise_is_seen_and_measured(way, device):
    """One percent of noise that keeps mean, norm and extremes as they are."""
    tensor = torch.randn(256, 256, dtype=torch.float64)
    noise = torch.randn_like(tensor)
    noise.view(-1)[torch.stack([tensor.argmin(), tensor.argmax()])] = 0
    noise -= noise.mean()
    noise -= tensor * (noise * tensor).sum() / tensor.square().sum()
    noisy = tensor + 0.01 * noise
    noisy *= tensor.norm() / noisy.norm()
    noisy = noisy.clamp(tensor.min(), tensor.max())
    one, other = records(tensor.float().to(device), noisy.float().to(device))
    for name, tolerance in (("min", 1e-2), ("max", 1e-2), ("mean", 1e-3), ("std", 1e-3), ("norm", 1e-1)):
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=tolerance)
    assert one.checksum != other.checksum
    assert 0.002 < apart(one, other) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_one_bit_is_seen(way, device, dtype):
    tensor = (torch.rand(5000) * 100).to(dtype)
    changed = tensor.clone()
    bits = changed.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    bits[1234] ^= 1
    one, other = records(tensor.to(device), changed.to(device))
    assert one.checksum != other.checksum


def test_equal_tensors_have_equal_records(way, device):
    tensor = torch.randn(30, 70, device=device)
    one, other, strided = records(tensor, tensor.clone(), tensor.t().contiguous().t())
    strip = {"forward_id": 0, "order": 0, "source": "", "step": 0}
    assert replace(one, **strip) == replace(other, **strip) == replace(strided, **strip)


def test_the_weights_never_change():
    """Records of different processes, devices and releases are compared: these numbers are for ever."""
    places = torch.tensor([0, 1, 17, 70_000])
    assert [digest.phases(places, 0, number).tolist() for number in range(digest.NUMBERS)] == COLUMNS
    assert [digest.phases(places, 2, number).tolist() for number in range(digest.NUMBERS)] == ROWS
    real, imaginary = digest.weights(torch.arange(0, 2**32, 2**28))
    assert (real.square() + imaginary.square()).tolist() == pytest.approx([1] * 16)


COLUMNS = [
    [3739068558, 1292205129, 2625126702, 2705362465],
    [3138065659, 1405267106, 1876796293, 198989408],
    [3144374283, 3483454498, 3644050601, 1377688364],
    [4111040428, 1645508301, 1701802918, 1291886635],
]
ROWS = [
    [0, 1599505887, 1421796303, 4204617872],
    [0, 565835023, 1029260799, 263206288],
    [0, 192715323, 3276160491, 3875300560],
    [0, 67553539, 1148410163, 4283704400],
]


# ---- records -------------------------------------------------------------------------------------------------------


def test_a_record_tells_which_tensor_it_is_of(device):
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2)).to(device)
    step = op_tools.step()
    with op_tools.OpCapture(mode="statistics", ops="torch.nn.functional.linear", verbose=0):
        layer(torch.ones(4, 3, device=device)).sum().backward()
    found = {(record.part, record.place): record for record in pack.read(".")}
    assert list(found) == [
        *(("parameter", "0.weight"), ("parameter", "0.bias"), ("input", "")),  # the model, and what it was given
        *(("input", "[0]"), ("input", "[1]"), ("input", "[2]"), ("output", "")),
        *(("grad_inputs", "[1]"), ("grad_inputs", "[2]"), ("grad_outputs", "")),
    ]
    assert [found[key].op for key in list(found)[:3]] == ["(model)", "(model)", "(step)"]
    assert found["parameter", "0.weight"].checksum == found["input", "[1]"].checksum
    weight = found["input", "[1]"]
    assert (weight.op, weight.module, weight.step) == ("torch.nn.functional.linear", "0", step)
    assert weight.source.endswith("layer(torch.ones(4, 3, device=device)).sum().backward()")
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((2, 3), "float32", True)
    assert weight.device == str(layer[0].weight.device)
    check(weight, layer[0].weight)
    check(found["grad_inputs", "[1]"], layer[0].weight.grad)


def test_the_model_and_the_inputs_of_each_step_are_told(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = STEPS.current
    with op_tools.OpCapture(mode="statistics", verbose=0) as tool:
        for number in range(3):
            for _ in range(2):  # micro-batches: the first is told
                model(torch.full((2, 4), float(number), device=device)).sum().backward()
            optimizer.step()
    facts = tool.results.facts
    assert [(row["part"], row["name"], row["shape"]) for row in facts["model"]] == [
        *(("parameter", "0.weight", [4, 4]), ("parameter", "0.bias", [4])),
        *(("parameter", "1.weight", [4]), ("parameter", "1.bias", [4])),
        *(("buffer", "1.running_mean", [4]), ("buffer", "1.running_var", [4]), ("buffer", "1.num_batches_tracked", [])),
    ]
    assert [row["step"] - first for row in facts["first_inputs"]] == [0, 1, 2]
    checksums = {row["checksum"] for row in facts["first_inputs"]}
    assert len(checksums) == 3
    told = [record for record in pack.read(".") if record.op == "(step)"]
    assert [record.mean for record in told] == [0, 1, 2]
    running_mean = next(record for record in pack.read(".") if record.place == "1.running_mean")
    assert running_mean.max == 0, "as it was before the first step"


def test_lists_and_names(device):
    x = torch.ones(3, device=device)
    with op_tools.OpCapture(mode="statistics", ops="torch.cat|torch.Tensor.add", verbose=0):
        torch.cat([x, x * 2], dim=0)
        x.add(other=x * 3)
    found = [(record.op, record.part, record.place, record.mean) for record in pack.read(".")]
    assert found == [
        ("torch.cat", "input", "[0][0]", 1),
        ("torch.cat", "input", "[0][1]", 2),
        ("torch.cat", "output", "", 1.5),
        ("torch.Tensor.add", "input", "", 1),
        ("torch.Tensor.add", "input", "other", 3),
        ("torch.Tensor.add", "output", "", 4),
    ]


def test_tensors_are_those_of_the_call(way, device):
    """Also when they are changed in a way that torch does not hear of."""
    x = torch.zeros(100, device=device)
    with op_tools.OpCapture(mode="statistics", ops=NEG, verbose=0):
        for number in range(5):
            x.data.fill_(number)
            x.neg()
    assert [record.mean for record in pack.read(".") if record.part == "input"] == [0, 1, 2, 3, 4]


def test_an_in_place_op_before_and_after(way, device):
    x = torch.zeros(3, device=device)
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.add_", verbose=0):
        x.add_(1)
    assert [(record.part, record.mean) for record in pack.read(".")] == [("input", 0), ("output", 1)]


def test_under_autocast_the_numbers_are_the_same(way, device):
    tensor = torch.randn(100, 100, device=device)
    (plain,) = records(tensor)
    with torch.autocast(device, dtype=torch.bfloat16):
        (watched,) = records(tensor)
    assert watched.sketch == plain.sketch


@pytest.mark.parametrize("begins_in_it", [True, False])
def test_in_and_out_of_inference_mode(way, device, begins_in_it, monkeypatch):
    monkeypatch.setattr(statistics, "_MAX_SECONDS_UNWRITTEN", 0)
    tensor = torch.tensor([1.0, math.inf, 3.0], device=device)
    with op_tools.OpCapture(mode="statistics", ops=NEG, verbose=0):
        for number in range(4):
            with torch.inference_mode((number % 2 == 0) is begins_in_it):
                tensor.neg().neg()
                op_tools.step()
    assert [(record.mean, record.inf) for record in pack.read(".") if record.part == "input"] == [(2, 1), (-2, 1)] * 4


def test_random_numbers_are_left_alone(way, device):
    module = torch.get_device_module(device)
    before = (torch.get_rng_state(), module.get_rng_state())
    records(torch.zeros(10, device=device))
    after = (torch.get_rng_state(), module.get_rng_state())
    assert all(torch.equal(one, other) for one, other in zip(before, after))


def test_streams_are_kept_apart(way, device):
    module = torch.get_device_module(device)
    streams = [module.Stream(), module.Stream()]
    x = torch.ones(1_000_000, device=device)
    module.synchronize()
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.mul", verbose=0):  # stops before the device is done
        for number in range(10):
            with module.stream(streams[number % 2]):
                x * number
    found = sorted((record.forward_id, record.mean) for record in pack.read(".") if record.part == "output")
    assert [mean for _, mean in found] == list(range(10))


def test_an_optimizers_lists_are_digested_once(way, device, monkeypatch):
    """Between the list ops of one step nothing changes unseen; from one step to the next it may."""
    digested = []

    def counted(add):
        def count_and_add(self, tensors, chunk, *arguments):
            digested.append(len(chunk.numbers))
            add(self, tensors, chunk, *arguments)

        return count_and_add

    monkeypatch.setattr(staging.Stage, "add", counted(staging.Stage.add))
    monkeypatch.setattr(digests.DigestStage, "add", counted(digests.DigestStage.add))
    parameters = [torch.nn.Parameter(torch.randn(size, device=device)) for size in (3, 70_000)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    with op_tools.OpCapture(mode="statistics", ops="torch._foreach_.*", verbose=0):
        for _ in range(3):
            for parameter in parameters:
                parameter.data.add_(1)
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
    found = list(pack.read("."))
    assert 0 < sum(digested) < 0.7 * len(found)
    by_place = {(record.forward_id, record.part, record.place): record for record in found}
    assert len(by_place) == len(found)
    starts = [record for record in found if (record.op, record.part) == ("torch._foreach_mul_", "input")]
    assert len({record.checksum for record in starts}) > 6, "each step begins with other numbers"


def test_one_list_op_in_each_step_is_seen_anew(device):
    """Its arguments may have been changed in a way that torch does not hear of, from one step to the next."""
    parameters = [torch.nn.Parameter(torch.zeros(3, device=device))]
    optimizer = torch.optim.SGD(parameters, lr=1.0, foreach=True)
    parameters[0].grad = torch.ones_like(parameters[0])
    with op_tools.OpCapture(mode="statistics", ops="torch._foreach_add_", verbose=0):
        for number in range(3):
            parameters[0].grad.data.fill_(number)
            optimizer.step()
    gradients = [record.mean for record in pack.read(".") if (record.part, record.place) == ("input", "[1][0]")]
    assert gradients == [0, 1, 2]


def test_repeated_records_are_as_if_they_were_digested(device, monkeypatch):
    def all_records(out):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(size, device=device)) for size in (3, 70_000)]
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        with op_tools.OpCapture(mode="statistics", ops="torch._foreach_.*", out=out, verbose=0):
            for _ in range(3):
                for parameter in parameters:
                    parameter.data.mul_(1.5)  # torch's versions do not tell
                    parameter.grad = torch.randn_like(parameter)
                optimizer.step()
        found = sorted(pack.read(out), key=lambda record: (record.forward_id, record.part, record.place))
        return [(record.op, record.part, record.place, record.checksum, record.min, record.max) for record in found]

    fewer = all_records("fewer")
    monkeypatch.setattr(repeats.Repeats, "find", lambda self, call, tensors: None)
    assert fewer == all_records("all")
    assert len(fewer) > 100


def test_repeated_records_are_those_of_the_tensors(device):
    """Statistics beside the tensors themselves."""
    from op_tools.storage import store

    parameters = [torch.nn.Parameter(torch.randn(size, device=device)) for size in (3, 700)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    data = op_tools.OpCapture(out="data", ops="torch._foreach_.*", verbose=0)
    with op_tools.OpCapture(mode="statistics", ops="torch._foreach_.*", verbose=0), data:
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
    found = {(record.forward_id, record.part, record.place): record for record in pack.read("op_tools_results")}
    compared = 0
    for folder in store.find_captures("data"):
        for part in ("input", "output"):
            args = store.load_part(folder / f"{part}.pth").args
            lists = args if part == "input" else args[:1]
            for place, tensors in enumerate(lists):
                for number, tensor in enumerate(tensors if isinstance(tensors, (list, tuple)) else ()):
                    if isinstance(tensor, torch.Tensor):
                        check(found[int(folder.parent.name), part, f"[{place}][{number}]"], tensor)
                        compared += 1
    assert compared == len(found) > 40


# ---- files ---------------------------------------------------------------------------------------------------------


def packs():
    return sorted(Path().rglob("*.pack"))


def test_one_file_for_all_records(device, capsys):
    x = torch.ones(3, device=device)
    with op_tools.OpCapture(mode="statistics"):
        for _ in range(10):
            x * 2
    (path,) = packs()
    assert path.parent == Path("op_tools_results", "op_capture_results")
    assert path.name.startswith(f"op_capture_statistics_pid{os.getpid()}_")
    assert "OpCapture: statistics of 20 tensors in 10 calls" in capsys.readouterr().out
    assert len(list(pack.read("op_tools_results"))) == len(list(pack.read(path))) == 20


def test_a_large_file_is_followed_by_another(device, monkeypatch):
    monkeypatch.setattr(statistics, "_MAX_FILE_BYTES", 5_000)
    monkeypatch.setattr(statistics, "_MAX_SECONDS_UNWRITTEN", 0)
    x = torch.ones(3, device=device)
    steps = 0
    with op_tools.OpCapture(mode="statistics", verbose=0):
        while len(packs()) <= 3 and steps < 20_000:  # a thread writes them, in its own time
            x * 2
            op_tools.step()
            steps += 1
    assert len(packs()) > 3
    assert len([record for path in packs() for record in pack.read(path)]) == 2 * steps


def test_files_can_be_read_one_by_one_also_in_the_middle_of_an_optimizers_step(device, monkeypatch):
    monkeypatch.setattr(statistics, "_MAX_SITES", 5)
    parameter = torch.nn.Parameter(torch.randn(700, device=device))
    optimizer = torch.optim.AdamW([parameter], foreach=True)
    with op_tools.OpCapture(mode="statistics", ops="torch._foreach_.*", verbose=0):
        for _ in range(4):
            parameter.grad = torch.randn_like(parameter)
            optimizer.step()
    assert len(packs()) > 3
    assert all(list(pack.read(path)) for path in packs())


def test_a_reader_need_not_remember_everything(device, monkeypatch):
    monkeypatch.setattr(statistics, "_MAX_UNSETTLED_RECORDS", 20)
    x = torch.ones(3, device=device)
    with op_tools.OpCapture(mode="statistics", ops=NEG, verbose=0):
        for _ in range(50):
            x.neg()
    (path,) = packs()
    assert [kind for _, kind, _ in blocks.blocks(path)].count(blocks.REPEATED) >= 4
    assert len(list(pack.read(path))) == 100


def test_shapes_that_always_change_do_not_fill_the_memory(device, monkeypatch):
    monkeypatch.setattr(statistics, "_MAX_SITES", 10)
    with op_tools.OpCapture(mode="statistics", ops=NEG, verbose=0):
        for size in range(1, 41):
            torch.ones(size, device=device).neg()
    assert len(packs()) > 3
    shapes = [record.shape for record in pack.read(".") if record.part == "input"]
    assert sorted(shapes) == [(size,) for size in range(1, 41)]


def test_the_tool_can_be_started_again(device):
    tool = op_tools.OpCapture(mode="statistics", verbose=0)
    for _ in range(2):
        with tool:
            torch.ones(3, device=device) * 2
    assert len(packs()) == 2


def test_a_killed_process_leaves_whole_records(way, device):
    killed(device, "statistics", 1.5)
    found = list(pack.read("."))
    assert len(found) > 10
    assert all(record.numel in (1, 90_000) for record in found)


@pytest.mark.parametrize("cut", [1, 9, 50])
def test_an_unfinished_block_is_passed_over(device, cut):
    records(torch.ones(3, device=device))
    (path,) = packs()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert list(pack.read(path)) == []


def test_a_damaged_or_foreign_file_is_named(device):
    records(torch.ones(3, device=device))
    (path,) = packs()
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CaptureError, match=r"\.pack is damaged at byte \d+: what comes after it cannot be read"):
        list(pack.read(path))
    path.write_text("hello")
    with pytest.raises(CaptureError, match="it holds no statistics that OpCapture wrote"):
        list(pack.read(path))
    with pytest.raises(CaptureError, match="No such file"):
        list(pack.read("nowhere"))


def test_verbose_2_shows_the_calls(device, capsys):
    x = torch.ones(3, device=device, requires_grad=True)
    with op_tools.OpCapture(mode="statistics", verbose=2, ops="torch.Tensor.mul"):
        (x * 2).sum().backward()
    out = capsys.readouterr().out
    assert "| torch.Tensor.mul inputs[0] |" in out
    assert "| torch.Tensor.mul grad_outputs |" in out


class TestReading:
    @pytest.fixture
    def records(self, device):
        x = torch.tensor([1.0, 2.0, 3.0], device=device)
        for _ in range(2):
            with op_tools.OpCapture(mode="statistics", verbose=0):
                x.mul(2)
        return op_tools.read_statistics()

    def test_records_are_plain_objects_that_can_be_gone_over_again(self, records):
        found = [(record.op, record.part, record.place, record.shape, record.max) for record in records]
        op = "torch.Tensor.mul"
        assert found == 2 * [(op, "input", "[0]", (3,), 3.0), (op, "output", "", (3,), 6.0)]
        assert len(list(records)) == 4
        assert repr(records) == "<statistics in 2 files at op_tools_results>"

    def test_one_file(self, records):
        assert len(list(op_tools.read_statistics(records.files[0]))) == 2

    def test_as_a_table_of_pandas(self, records):
        pandas = pytest.importorskip("pandas")
        table = records.to_pandas()
        assert isinstance(table, pandas.DataFrame)
        assert list(table["max"]) == [3.0, 6.0, 3.0, 6.0]

    def test_a_path_without_statistics_is_named(self, tmp_path):
        with pytest.raises(CaptureError, match=r"nowhere holds no statistics: there is no such file or folder"):
            op_tools.read_statistics("nowhere")
        with pytest.raises(CaptureError, match=r"there is no op_capture_statistics_\*\.pack below it"):
            op_tools.read_statistics(tmp_path)
