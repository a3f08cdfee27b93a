"""Two runs of a small network: which call is guilty, which carries, and what differs before the first op."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import op_tools
from ditorch.sim import faults
from ditorch_cli.compare import command
from op_tools.compare_runs import report
from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run
from op_tools.core.steps import STEPS
from op_tools.perturbation import Perturbation


def compared(*arguments):
    done = CliRunner().invoke(command, [*map(str, arguments), "--json"])
    assert done.stdout, done.stderr or repr(done.exception)
    return done.exit_code, json.loads(done.stdout)


def test_equal_runs_are_the_same(record):
    code, found = compared(record("a"), record("b"))
    assert code == found["exit_code"] == 0
    assert (found["first_divergence"], found["guilty"], found["before"]) == (None, [], [])
    assert found["schema"] == "ditorch.compare/1"
    assert found["counts"]["same"] == found["counts"]["events"] > 40
    assert found["counts"]["steps"] == 2


FAULTS = [
    ("aten.addmm: noise=1e-3", "torch.nn.functional.linear", "up", "forward", "output"),
    ("aten.gelu: round=bfloat16", "torch.nn.functional.gelu", "Net", "forward", "output"),
    (
        "aten.native_layer_norm_backward: scale=1.05",
        "torch.nn.functional.layer_norm",
        "norm",
        "backward",
        "grad_inputs",
    ),
    ("aten.tanh_backward: noise=1e-2", "torch.Tensor.tanh", "Net", "backward", "grad_inputs"),
    ("aten._foreach_lerp_: scale=1.05", "torch._foreach_lerp_", "", "forward", "output"),
]


def test_the_first_divergence_is_the_broken_call(record):
    good = record("good")
    for number, (fault, op, module, phase, part) in enumerate(FAULTS):
        code, found = compared(good, record(f"bad{number}", fault))
        first = found["first_divergence"]
        assert code == 1
        assert (first["op"], first["module"], first["phase"], first["part"]) == (op, module, phase, part), fault
        assert (first["kind"], first["step"], first["rank"]) == ("guilty", 0, 0)
        assert first["inputs"] < first["distance"] / 100
        assert {"step", "rank", "op", "module", "where", "part", "kind"} <= found["guilty"][0].keys()
        assert found["guilty"][0] == first
        assert "conftest.py" in first["where"] or module == "" or module in ("up", "norm")
        assert found["chain"][0]["forward_id"] == first["forward_id"]
        text = report.text(compare(Run(Path("good")), Run(Path(f"bad{number}"))), 120)
        assert text.startswith("first divergence: guilty")
        assert op in text


def test_other_weights_are_told_before_the_first_op_and_blame_nobody(record):
    code, found = compared(record("a"), record("b", seed=1))
    assert code == 1
    (weights,) = [one for one in found["before"] if one["what"] == "weights"]
    assert weights["name"] == "4 of 6 parameters, first up.weight"
    assert weights["a"] > 0.5
    assert found["guilty"] == []
    assert found["first_divergence"]["kind"] == "carried"
    assert found["first_divergence"]["op"] == "torch.nn.functional.linear"


def test_other_data_is_told(record):
    code, found = compared(record("a"), record("b", data_seed=1))
    assert code == 1
    assert [(one["what"], one["name"], one["step"]) for one in found["before"]] == [
        ("data", "input", 0),
        ("data", "input", 1),
    ]
    assert found["guilty"] == []
    text = report.text(compare(Run(Path("a")), Run(Path("b"))), 120)
    assert "step 1 got other data: input, " in text


def test_a_step_that_got_other_data_is_told(record):
    _, found = compared(record("a"), record("b", other_step=1))
    assert [(one["what"], one["step"]) for one in found["before"]] == [("data", 1)]
    assert found["guilty"] == []


def test_calls_that_only_one_run_has_shift_nothing(record):
    _, found = compared(record("a"), record("b", "aten.native_layer_norm_backward: scale=1.05", adds_a_call=True))
    assert found["first_divergence"]["op"] == "torch.nn.functional.layer_norm"
    assert (found["counts"]["only_a"], found["counts"]["only_b"]) == (0, 2)
    assert any("torch.Tensor.clone in Net" in line for line in found["not_comparable"])


def test_bfloat16_against_float32_blames_nobody(record):
    code, found = compared(record("a"), record("b", dtype=torch.bfloat16))
    assert (code, found["guilty"]) == (0, [])
    assert found["counts"]["same"] < found["counts"]["events"]


def test_a_gradient_that_jumps_with_the_last_digit_blames_nobody(device):
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def train(name, noise):
        STEPS.forget()
        generator = torch.Generator().manual_seed(0)
        x, other = torch.randn(2, 64, 64, generator=generator).to(device)
        x = (x + noise * other).requires_grad_()
        with op_tools.OpCapture(mode="statistics", out=name, verbose=0):
            torch.nn.functional.relu(x).sum().backward()
        return name

    found = compared(train("a", 0), train("b", 5e-3))[1]
    assert (found["guilty"], found["first_divergence"]["kind"]) == ([], "carried")


def test_a_gradient_of_weights_that_cancels_out_blames_nobody(device):
    """As before a batch norm: what is left of a sum over the batch is far smaller than what was added up."""
    if device != "sim":
        pytest.skip("has kernels of another make")

    def train(name):
        STEPS.forget()
        generator = torch.Generator().manual_seed(0)
        x = (20 + torch.randn(512, 48, generator=generator)).to(device)
        weight = torch.randn(16, 48, generator=generator).to(device).requires_grad_()
        signs = torch.randn(512, 16, generator=generator).to(device)
        with op_tools.OpCapture(mode="statistics", out=name, verbose=0):
            y = torch.nn.functional.linear(x, weight)
            ((y - y.mean(0)) * signs).sum().backward()
        return name

    good = train("a")
    with faults.inject("aten.*: remake", device):
        bad = train("b")
    found = compared(good, bad)[1]
    assert found["guilty"] == []
    assert found["counts"]["same"] < found["counts"]["events"]


def test_data_settles_what_statistics_leave_in_doubt(record):
    fault = "aten.addmm: scale=1.005"
    good, bad = record("good", dtype=torch.bfloat16), record("bad", fault, dtype=torch.bfloat16)
    code, found = compared(good, bad)
    assert (code, found["guilty"]) == (0, [])
    record("data", "aten.gelu: scale=1.1", dtype=torch.bfloat16, mode="data", ops="torch.nn.functional.gelu", steps=[0])
    code, found = compared(good, bad, "--data", "data")
    assert code == 1
    assert found["first_divergence"]["op"] == "torch.nn.functional.gelu"
    assert found["first_divergence"]["kind"] == "guilty"
    assert Path(found["first_divergence"]["capture"], "input.pth").exists()


def test_the_second_pass_is_said_as_a_command_and_found_where_it_puts_its_data(record):
    fault = "aten.gelu: noise=1e-2"
    good, bad = record("good", dtype=torch.bfloat16), record("bad", fault, dtype=torch.bfloat16)
    (bad / "manifest.json").write_text(json.dumps({"command": "python train.py --steps 2"}))
    code, found = compared(good, bad)
    assert (code, found["guilty"]) == (0, [])
    wanted = found["second_pass"]
    assert "torch.nn.functional.gelu" in wanted["ops"]
    ops = ",".join(wanted["ops"])
    options = f"--capture=data --ops {ops} --steps {wanted['step']} --ranks 0 --out bad/second_pass"
    assert wanted["command"] == f"ditorch run {options} -- python train.py --steps 2"
    text = report.text(compare(Run(good), Run(bad)), 120)
    assert f"to settle it, capture their data and compare again: {wanted['command']}" in text
    record("bad/second_pass", fault, dtype=torch.bfloat16, mode="data", ops=ops, steps=[wanted["step"]])
    code, found = compared(good, bad)
    assert (code, found["second_pass"]) == (1, None)
    assert found["first_divergence"]["op"] == "torch.nn.functional.gelu"
    assert not any(one["what"] == "code" for one in found["before"])


def test_weights_moved_by_a_rounding_error_tell_how_far_healthy_calls_move(record):
    good = record("good")
    with_perturbation = Perturbation("bfloat16").start()
    try:
        moved = record("moved")
    finally:
        with_perturbation.stop()
    assert [tuple(row.values()) for row in with_perturbation.results] == [("Net", 6)]
    _, found = compared(good, moved)
    (weights,) = [one for one in found["before"] if one["what"] == "weights"]
    assert 1e-3 < weights["a"] < 1e-2
    assert found["guilty"] == []
    bad = record("bad", "aten.gelu: noise=1e-3")
    assert compared(good, bad)[1]["first_divergence"]["op"] == "torch.nn.functional.gelu"
    assert compared(good, bad, "--healthy", moved)[1]["guilty"] == []


def test_data_clears_a_healthy_call(record):
    bad = record("bad", "aten.gelu: scale=1.1")
    record("data", mode="data", ops="torch.nn.functional.gelu", steps=[0])
    _, found = compared(record("good"), bad, "--data", "data")
    assert found["cleared"][0]["op"] == "torch.nn.functional.gelu"
    assert not any(one["op"] == "torch.nn.functional.gelu" and one["step"] == 0 for one in found["guilty"])


def test_a_second_healthy_run_tells_how_far_calls_may_move(record):
    good, nudged = record("good"), record("nudged", "aten.gelu: noise=1e-2")
    bad = record("bad", "aten.gelu: noise=2e-2")
    assert compared(good, bad)[0] == 1
    _, found = compared(good, bad, "--healthy", nudged)
    assert found["guilty"] == []


def test_steps_and_ranks_that_one_run_lacks_are_named(record):
    _, found = compared(record("a"), record("b", steps=[0]))
    assert found["not_comparable"] == ["rank 0: step 1 is only in a"]
    assert found["counts"]["steps"] == 1


def refused(*arguments):
    done = CliRunner().invoke(command, [*map(str, arguments)])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    return done.stderr


def test_comparing_statistics_imports_no_torch(record):
    good, bad = record("good"), record("bad", "aten.gelu: scale=1.1")
    code = "import sys; from ditorch_cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "compare", str(good), str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("first divergence: guilty")
    assert done.stdout.endswith("False\n")


def test_runs_that_cannot_be_used(record, tmp_path):
    good = record("good")
    (tmp_path / "empty").mkdir()
    assert "there is no such file or folder" in refused(good, tmp_path / "missing")
    assert "holds no statistics, and no captured tensors: `ditorch run" in refused(good, tmp_path / "empty")
    hostile = tmp_path / "hostile" / "op_capture_statistics_pid1.pack"
    hostile.parent.mkdir()
    for content, message in (
        (b"op_tools statistics 9\n{}\n", "a later release"),
        (b"PK\3\4", "holds no statistics that OpCapture wrote"),
        (b"op_tools statistics 2\n[]\n", "its first lines cannot be read"),
        (b"op_tools statistics 2\n{" + b"x" * 200_000, "its first lines cannot be read"),
    ):
        hostile.write_bytes(content)
        assert message in refused(good, hostile.parent)


def test_a_damaged_or_unfinished_file_is_read_as_far_as_it_goes(record):
    good, bad = record("good"), record("bad")
    (file,) = bad.rglob("*.pack")
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    code, found = compared(good, bad)
    assert found["counts"]["calls"] > 40
    assert (code, found["exit_code"], found["guilty"]) == (2, 2, []), "the rest is not known"
    assert f"{file} ends in the middle" in " ".join(found["not_comparable"])
    middle = 9 * len(content) // 10
    file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    code, found = compared(good, bad)
    assert code == 2
    assert any("damaged at byte" in line for line in found["not_comparable"])


def test_a_divergence_before_the_damage_is_one(record):
    good, bad = record("good"), record("bad", "aten.gelu: scale=1.1")
    (file,) = bad.rglob("*.pack")
    file.write_bytes(file.read_bytes()[:-100])
    code, found = compared(good, bad)
    assert (code, found["first_divergence"]["op"]) == (1, "torch.nn.functional.gelu")


@pytest.mark.parametrize(("seeds", "differs"), [({"0": 7, "1": 7}, False), ({"0": 7, "1": 8}, True)])
def test_the_same_seed_on_more_ranks_is_the_same(record, seeds, differs):
    for name, of_ranks in (("one", {"0": 7}), ("two", seeds)):
        (record(name) / "manifest.json").write_text(json.dumps({"schema": "ditorch.run/1", "seeds": of_ranks}))
    _, found = compared("one", "two")
    assert [one["what"] for one in found["before"]] == ["seeds"] * differs


def test_variables_of_our_own_make_no_difference(record):
    """A run's folder is in some of them."""
    for name in ("good", "bad"):
        variables = {"DITORCH_CONTROL": name, "DITORCH_MESSAGES": f"{name}/messages.txt", "SEED": name}
        (record(name) / "manifest.json").write_text(json.dumps({"schema": "ditorch.run/1", "variables": variables}))
    _, found = compared("good", "bad")
    assert [one["name"] for one in found["before"]] == ["variable SEED"]


def test_an_edited_program_is_told(record):
    for name in ("good", "bad"):
        files = {"train.py": name, "model.yaml": "same", f"{name}.json": name}
        (record(name) / "manifest.json").write_text(json.dumps({"schema": "ditorch.run/1", "files": files}))
    _, found = compared("good", "bad")
    assert [(one["what"], one["name"], one["a"], one["b"]) for one in found["before"]] == [
        ("code", "train.py", "good", "bad")
    ]


def test_a_manifest_that_cannot_be_understood_is_named(record):
    good, bad = record("good"), record("bad")
    (good / "manifest.json").write_text(json.dumps({"schema": "ditorch.run/99", "python": 4}))
    (bad / "manifest.json").write_bytes(b"\x00\xff{")
    code, found = compared(good, bad)
    assert (code, found["before"]) == (0, [])
    told = ": what differs before the first op is not told"
    assert found["not_comparable"] == [
        f"good/manifest.json is of another release (ditorch.run/99){told}",
        f"bad/manifest.json cannot be read{told}",
    ]


def test_a_copy_to_the_device_whose_source_only_one_run_recorded_blames_nobody(device):
    """A tool that watches a device is not called for a tensor on the host; on a host that is the device, it is."""
    if device != "sim":
        pytest.skip("records on two devices")

    def copy(name, to, seed):
        STEPS.forget()
        data = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        capture = op_tools.OpCapture(mode="statistics", out=name, verbose=0)
        capture.sees_cpu = to == "cpu"  # as `ditorch run` has it where the CPU is the device
        with capture:
            torch.ones(8, 16, device=to).mul(data.to(to))
        return name

    for good, bad in (("cpu", device), (device, "cpu")):
        code, found = compared(copy(f"{good}_a", good, 0), copy(f"{bad}_b", bad, 1))
        assert (code, found["guilty"], found["first_divergence"]["kind"]) == (1, [], "carried")
        assert [one["what"] for one in found["before"]] == ["data"]
        assert found["before"][0]["name"].startswith("torch.Tensor.to")


def test_what_calls_did_that_only_one_run_has_is_carried_and_its_data_names_them(record):
    """An optimizer works tensor by tensor on the CPU, and on lists on a chip."""
    good, fault = record("good", foreach=False), "aten._foreach_addcdiv_: scale=1.5"
    assert compared(good, record("healthy"))[0] == 0
    code, found = compared(good, record("bad", fault))
    first = found["first_divergence"]
    assert (code, found["guilty"], first["kind"], first["step"]) == (1, [], "carried", 1)
    assert "torch.Tensor.addcdiv_" in first["origin"] or "torch._foreach_" in first["origin"]
    assert (found["second_pass"]["step"], "torch._foreach_addcdiv_" in found["second_pass"]["ops"]) == (0, True)
    data = record("data", fault, mode="data", ops=found["second_pass"]["ops"], steps="0")
    code, found = compared(good, "bad", "--data", data)
    first = found["first_divergence"]
    assert (code, first["kind"], first["op"], first["step"]) == (1, "guilty", "torch._foreach_addcdiv_", 0)


def test_other_random_numbers_are_told(record):
    assert compared(record("a", drops=0.3), record("b", drops=0.3))[0] == 0
    code, found = compared("a", record("c", drops=0.3, random_seed=1))
    first = found["first_divergence"]
    assert (code, found["guilty"], first["kind"], first["op"]) == (1, [], "carried", "torch.nn.functional.dropout")
    assert "random numbers" in first["origin"]
    assert "it came from random numbers" in report.text(compare(Run(Path("a")), Run(Path("c"))), 120)


def test_an_evaluation_that_only_one_run_has_in_between_is_no_other_data(record):
    record("plain", train_steps=3)
    record("evaluates", train_steps=3, evaluates=["between"])
    for pair in (("plain", "evaluates"), ("evaluates", "plain")):
        code, found = compared(*pair)
        assert (code, found["before"], found["first_divergence"]) == (0, [], None)


@pytest.mark.parametrize("size", [(2, 2, 0), (3, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_another_one_among_equals_gets_blames_nobody(device, size, dtype):
    """Rounding decides which of a window's largest ones has the gradient."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def train(name, seed, fault="aten.tanh: scale=1"):
        STEPS.forget()
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(2, (8, 8, 16, 16), generator=generator) + 1.0
        x *= 1 + torch.finfo(dtype).eps * torch.randn(x.shape, generator=generator.manual_seed(seed))
        x = x.to(dtype).to(device).requires_grad_()
        weight = torch.randn(8, 8, 1, 1, generator=generator.manual_seed(0)).to(dtype).to(device)
        with faults.inject(fault, device), op_tools.OpCapture(mode="statistics", out=name, verbose=0):
            pooled = torch.nn.functional.max_pool2d(x, *size)
            torch.nn.functional.conv2d(pooled, weight).tanh().sum().backward()
        return name

    good = train("good", 0)
    _, found = compared(good, train("other", 1))
    assert found["guilty"] == []
    assert any(one["op"].endswith("max_pool2d") for one in found["suspects"]), "another one was chosen"
    for number, fault in enumerate(("scale=1.5", "zero@0.5", "negate@0.5")):
        _, found = compared(good, train(f"bad{number}", 0, f"aten.max_pool2d_with_indices_backward: {fault}"))
        assert found["first_divergence"]["op"] == "torch.nn.functional.max_pool2d", fault


def test_a_power_of_what_was_cast_from_bfloat16_blames_nobody(device):
    """As of a norm in float32, of weights in bfloat16 that an optimizer's small step leaves where they are."""
    if device != "sim":
        pytest.skip("records on one device")

    def train(name, dtype, seed):
        STEPS.forget()
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(64, 32, generator=generator).to(dtype).to(device)
        tokens = torch.randint(12, (64,), generator=generator).to(device)
        with op_tools.OpCapture(mode="statistics", out=f"{name}{seed}", verbose=0):
            torch.nn.functional.embedding(tokens, table).float().pow(2).mean(-1)
        return f"{name}{seed}"

    for seed in range(20):
        assert compared(train("good", torch.float32, seed), train("low", torch.bfloat16, seed))[1]["guilty"] == []


def test_the_second_pass_runs_where_the_program_ran(record, tmp_path):
    (tmp_path / "project").mkdir()
    good, bad = record("good"), record("bad", "aten.gelu: scale=1.1")
    for folder, is_there in ((tmp_path / "project", True), (tmp_path, False), (tmp_path / "on another machine", False)):
        (bad / "manifest.json").write_text(json.dumps({"command": "python train.py", "folder": str(folder)}))
        typed = compared(good, bad)[1]["second_pass"]["command"]
        assert typed.endswith("python train.py)" if is_there else "python train.py")
        assert typed.startswith(f"(cd {folder} && ditorch run " if is_there else "ditorch run ")
        assert f"--out {tmp_path / 'bad' if is_there else 'bad'}/second_pass -- " in typed
