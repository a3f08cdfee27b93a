"""The simulated accelerator as another chip: what its profile lacks is missing, sums and times are that chip's."""

from __future__ import annotations

import json

import pytest
import torch

from ditorch.errors import SettingError
from ditorch.sim import chip_profile, faults
from ditorch.sim.chip_profile import ChipProfile
from ditorch.sim.rehearsal import Rehearsal

from ...ditorch_cli.conftest import ditorch_command  # noqa: F401


def profile_of(**kernels):
    facts = {f"aten::{name}": known for name, known in kernels.items()}
    return {"schema": "ditorch.profile/1", "chip": "a chip", "source": "measured", "kernels": facts}


def times(*points, work="bytes"):
    return {"times": {"float32": {"work": work, "points": [list(point) for point in points]}}}


def test_a_kernel_that_the_chip_lacks_raises_what_it_raises_there(device):
    missing = {
        "erfinv": {"missing": {"float32": "RuntimeError: call aclnnErfinv failed"}},
        "i0": {"missing": {"*": "no i0"}},
    }
    x = torch.full((3,), 0.5, device=device)
    rehearsal = Rehearsal(ChipProfile(profile_of(**missing)), device, None)
    try:
        with pytest.raises(RuntimeError, match=r"^call aclnnErfinv failed \(by the profile of a chip\)$"):
            torch.erfinv(x)
        with pytest.raises(RuntimeError, match="call aclnnErfinv failed"):
            x.erfinv_()
        torch.erfinv(x.double())
        with pytest.raises(RuntimeError, match="no i0"):
            torch.i0(x.double())
        assert (x + 1)[0].item() == 1.5
    finally:
        rehearsal.remove()
    torch.erfinv(x)


def test_a_kernel_inside_of_one_that_torch_makes_of_others_is_missing_too(device, tmp_path):
    """ones_like is an empty tensor that is filled, on whatever chip has no kernel of its own for it."""
    known = profile_of(fill={"missing": {"*": "no fill"}})
    x = torch.zeros(3, device=device)
    rehearsal = Rehearsal(ChipProfile(known), device, None)
    try:
        with pytest.raises(RuntimeError, match="no fill"):
            torch.ones_like(x)
    finally:
        rehearsal.remove()
    rehearsal = Rehearsal(ChipProfile(known), device, tmp_path)
    try:
        assert torch.ones_like(x).tolist() == [1, 1, 1]
        x.fill_(2)
        told = {name: row["calls"] for (name, _), row in rehearsal._kernels.items() if "missing" in row}
    finally:
        rehearsal.remove()
    assert told == {"aten::fill_.Scalar": 2}


def test_sums_are_kept_as_on_the_chip(device):
    a, b = torch.rand(8, 512, device=device), torch.rand(512, 8, device=device)
    with faults.inject("aten.mm: accumulate=bfloat16", device):
        broken = a @ b
    sound = a @ b
    rehearsal = Rehearsal(ChipProfile(profile_of(mm={"accumulation": {"float32": "bfloat16"}})), device, None)
    try:
        assert torch.equal(a @ b, broken)
        assert torch.equal(a.double() @ b.double(), a.double() @ b.double())
    finally:
        rehearsal.remove()
    assert not torch.equal(broken, sound)


def test_the_devices_clock_takes_the_chips_times(device):
    module = torch.get_device_module(device)
    x = torch.ones(1000, device=device)
    rehearsal = Rehearsal(ChipProfile(profile_of(add=times((1000, 0.05), (100_000, 0.05)))), device, None)
    try:
        before, after = module.Event(enable_timing=True), module.Event(enable_timing=True)
        before.record()
        x + 1
        after.record()
        module.synchronize()
        assert before.elapsed_time(after) >= 50
    finally:
        rehearsal.remove()


def test_times_between_the_measured_sizes():
    known = ChipProfile(profile_of(add=times((1e3, 1e-6), (1e5, 1e-4)), mm=times((1e6, 1e-5), work="flops")))
    assert known.seconds("aten::add.Tensor", "float32", {"bytes": 10.0}) == 1e-6
    assert known.seconds("aten::add_.Tensor", "float32", {"bytes": 1e4}) == pytest.approx(1e-5)
    assert known.seconds("aten::add", "float32", {"bytes": 1e6}) == pytest.approx(1e-3)
    assert known.seconds("aten::exp", "int64", {"bytes": 1e4}) == pytest.approx(1e-5)  # as add does
    assert known.seconds("aten::bmm", "float32", {"bytes": 1.0, "flops": 2e6}) == pytest.approx(2e-5)  # as mm does
    assert ChipProfile(profile_of()).seconds("aten::add", "float32", {"bytes": 1.0}) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("{", "Expecting property name"),
        ('{"schema": "ditorch.profile/2"}', "its schema is not ditorch.profile/1"),
        (json.dumps({**profile_of(), "source": "guessed"}), "a source that is measured or derived"),
        (json.dumps({**profile_of(), "kernels": {"mm": {}}}), "'mm' is no kernel such as aten::mm"),
        (json.dumps(profile_of(mm={"missing": ["float32"]})), "missing of aten::mm must be an object"),
        (json.dumps(profile_of(mm={"missing": {"float32": 5}})), "missing of aten::mm must have what is raised"),
        (
            json.dumps(profile_of(mm={"accumulation": {"float32": "bf16"}})),
            "accumulation of aten::mm must be bfloat16, fl",
        ),
        (json.dumps(profile_of(mm={"falls_back": "float32"})), "falls_back of aten::mm must be a list of dtypes"),
        (json.dumps(profile_of(mm=times((1, -1)))), "the times of aten::mm in float32 must have work"),
    ],
)
def test_a_profile_that_cannot_be_used_is_named(tmp_path, content, reason):
    path = tmp_path / "chip.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match=r"chip\.json cannot be used") as caught:
        ChipProfile.read(str(path))
    assert reason in str(caught.value)
    assert "ascend910, cambricon, h200" in str(caught.value)


def test_profiles_that_come_along_can_be_read_and_say_where_they_are_from():
    assert {"ascend910", "cambricon", "h200"} <= set(chip_profile.included())
    h200 = ChipProfile.read("h200")
    assert (h200.chip, h200.source) == ("NVIDIA H200", "measured")
    assert "angle_cuda" in h200.missing("aten::angle", ["bfloat16"])
    assert h200.accumulation("aten::mm", "bfloat16") == "float32"
    assert 1e-4 < h200.seconds("aten::mm", "bfloat16", {"bytes": 1e8, "flops": 2 * 4096**3}) < 3e-4
    ascend = ChipProfile.read("ascend910")
    assert (ascend.chip, ascend.source) == ("Ascend 910", "derived")
    assert "not implemented" in ascend.missing("aten::avg_pool2d", ["bfloat16"])
    assert ascend.missing("aten::avg_pool2d", ["float16"]) is None
    assert ascend.missing("aten::mm", ["bfloat16"]) is None
    assert ChipProfile.read("cambricon").falls_back("aten::hypot", ["float32"])


@pytest.mark.parametrize("name", ["ascend910", "cambricon", "h200"])
def test_profiles_that_come_along_name_kernels_as_torch_does(name):
    assert ChipProfile.read(name).unknown() == []


# ---- the command -----------------------------------------------------------------------------------------------------

# as `ditorch rehearse` is started: this process imports no torch before
LIGHT = ("-c", "import ditorch_cli; ditorch_cli.main()")

PROGRAM = """
import torch
weight = torch.full((16, 16), 0.5, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    torch.erfinv(weight @ weight / 100).sum().backward()
    optimizer.step()
print("trained")
"""


def test_rehearse_says_what_is_missing_where_and_how_long_a_step_takes(tmp_path, ditorch_command):  # noqa: F811
    program, profile = tmp_path / "train.py", tmp_path / "chip.json"
    program.write_text(PROGRAM)
    known = {"erfinv": {"missing": {"*": "NotImplementedError: no erfinv"}}, "add": times((1, 1e-6), (1e9, 1e-6))}
    misspelt = {"log_add_exp": {"missing": {"*": "no logaddexp"}}}
    profile.write_text(json.dumps(profile_of(**known, sinh={"missing": {"*": "no sinh"}}, **misspelt)))
    done = ditorch_command("rehearse", "--profile", profile, "--json", program, python=LIGHT)
    assert done.returncode == 1, done.stderr
    assert "chip.json names kernels that this torch lacks: aten::log_add_exp\n" in done.stderr
    assert "trained" in done.stderr  # it ran to its end; its output is no part of the JSON
    found = json.loads(done.stdout)
    (missing,) = found["missing"]
    assert (missing["kernel"], missing["dtype"], missing["calls"]) == (
        "aten::erfinv",
        "float32",
        4,
    )  # its gradient calls it again
    assert missing["where"].startswith(f"{program}:6 <module>: torch.erfinv(weight @ weight / 100)")
    assert found["steps"] == 2
    assert found["step_seconds"] == pytest.approx(sum(row["seconds"] for row in found["times"]))
    one = next(row for row in found["times"] if row["kernel"] == "aten::erfinv")
    assert (one["calls"], one["seconds"]) == (2, pytest.approx(2e-6))

    failed = ditorch_command("rehearse", "--profile", tmp_path / "nowhere.json", program, python=LIGHT)
    assert failed.returncode == 2
    assert "nowhere.json cannot be used" in failed.stderr


LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
sizes = dict(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
config = LlamaConfig(**sizes, num_key_value_heads=2, attn_implementation="eager", attention_bias=True)
model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 128, (2, 32)).to(DEVICE)
model(input_ids=tokens, labels=tokens).loss.backward()
optimizer.step()
"""
REMOVED = (
    *(
        "silu",
        "rsqrt",
        "_softmax",
        "embedding",
        "neg",
        "cos",
        "pow",
        "nll_loss_forward",
        "_log_softmax",
        "silu_backward",
    ),
    *("erfinv", "native_layer_norm", "gelu", "relu", "cumsum", "sort", "topk", "tanh", "sigmoid", "avg_pool2d"),
)
ACCUMULATING = ("mm", "addmm", "bmm", "sum", "mean")


@pytest.mark.slow
def test_a_rehearsed_llama_step_misses_and_drifts_as_on_the_chip(tmp_path, device, monkeypatch, ditorch_command):  # noqa: F811
    """The chip is the simulated one with faults, which know nothing of profiles: each missing kernel by itself."""
    pytest.importorskip("transformers")
    code = compile(LLAMA, "llama.py", "exec")
    program, profile = tmp_path / "llama.py", tmp_path / "chip.json"
    program.write_text(LLAMA.replace("DEVICE", '"cuda"'))
    rounded = {name: {"accumulation": dict.fromkeys(("float32", "bfloat16"), "bfloat16")} for name in ACCUMULATING}
    gone = {name: {"missing": {"*": f"NotImplementedError: no {name}"}} for name in REMOVED}
    profile.write_text(json.dumps(profile_of(**rounded, **gone)))
    done = ditorch_command("rehearse", "--profile", profile, "--json", program, python=LIGHT)
    assert done.returncode == 1, done.stderr
    predicted = json.loads(done.stdout)

    def misses(kernel):
        with faults.inject(f"aten.{kernel}: unimplemented", device):
            try:
                exec(code, {"DEVICE": device})  # noqa: S102 - the same program, on the broken chip
            except NotImplementedError as error:
                return "injected fault" in str(error)
        return False

    missed = {kernel for kernel in REMOVED if misses(kernel)}
    assert len(missed) == 10
    assert {row["kernel"].partition("::")[2].partition(".")[0] for row in predicted["missing"]} == missed

    from op_tools import OpAutoCompare

    monkeypatch.chdir(tmp_path)
    low = "; ".join(f"aten.{name}: accumulate=bfloat16" for name in ACCUMULATING)
    with faults.inject(low, device), OpAutoCompare(verbose=0, fail=False) as tool:
        exec(code, {"DEVICE": device})  # noqa: S102
    measured = worst_ratios(next(file for file in tool.results.files if file.endswith(".csv")))
    drift = {}
    for row in predicted["drift"]:
        kernel = row["kernel"].partition("::")[2].partition(".")[0]
        drift[kernel] = max(drift.get(kernel, 0.0), row["drift"])
    assert set(drift) == set(ACCUMULATING)
    # a linear layer is addmm, or mm where it has no bias; gradients that were broadcast are summed up
    for op, kernels in {"linear": ("mm", "addmm"), "matmul": ("bmm",), "mean": ("mean",), "mul": ("sum",)}.items():
        foretold = max(drift[kernel] for kernel in kernels)
        assert 0.5 < foretold / measured[op] < 2, (op, foretold, measured[op])


def worst_ratios(path):
    """By op, the largest ratio of a call's errors to those of the CPU in the same dtype, as OpAutoCompare wrote it."""
    import csv
    import math

    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            op, ratio = row["name"].split()[0].rpartition(".")[2], float(row["rmse_ratio"] or 0)
            if math.isfinite(ratio):
                found[op] = max(found.get(op, 0.0), ratio)
    return found


def test_the_limits_of_drift_are_those_of_the_verdict():
    from ditorch_cli.rehearse import DRIFT_LIMITS
    from op_tools.autocompare.judging import limits

    assert DRIFT_LIMITS["float32"] == limits.SINGLE.ratio
    assert DRIFT_LIMITS["bfloat16"] == DRIFT_LIMITS["float16"] == limits.LOW_SUMS.ratio
