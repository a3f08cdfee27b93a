"""Guilty ops are named exactly: of real kernels that are broken, in a real training, by the loss alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from ditorch_diagnosis import losses, trial
from ditorch_diagnosis.bisection import Bisection, read_suspects
from ditorch_diagnosis.checks import ByExitCode, Ended, LikeGood, NoNan, Verdict
from ditorch_diagnosis.errors import DiagnosisError
from ditorch_diagnosis.journal import Journal, identity
from op_tools.core.steps import STEPS
from op_tools.losses import LossLog

STEPS_OF_A_RUN = 3
F, T = "torch.nn.functional", "torch.Tensor"


class Net(nn.Module):
    """A little of everything, so that ops have kernels of their own."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(16, 24)
        self.norm = nn.LayerNorm(24)
        self.rms = nn.Parameter(torch.ones(24))
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24)
        self.conv = nn.Conv1d(24, 24, 3, padding=1)
        self.head = nn.Linear(24, 16)

    def forward(self, tokens):
        x = self.norm(self.token(tokens))
        weights = torch.softmax(x @ x.transpose(1, 2) / 24**0.5, dim=-1)
        x = x + torch.bmm(weights, x)
        x = x + self.down(functional.gelu(self.up(x)))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.rms
        x = x + functional.silu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.head(torch.tanh(functional.dropout(x, 0.1)))


def train(device):
    torch.manual_seed(0)
    STEPS.forget()
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS_OF_A_RUN):
        tokens = torch.randint(16, (4, 9)).to(device)
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Runner:
    """Runs the training in this process, with the tools that a trial's variables ask for."""

    def __init__(self, device, monkeypatch):
        self.device, self.runs = device, 0
        self._patch = monkeypatch

    def __call__(self, program, folder, variables, check, seconds):
        self.runs += 1
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "run" / "processes").mkdir(parents=True)
        status = 0
        with self._patch.context() as patch:
            for name, text in variables.items():
                patch.setenv(name, text)
            tools = [op_tools.OpFallback(verbose=0)] if "fallback" in variables["OP_TOOLS"] else []
            tools += [op_tools.OpDtypeCast(verbose=0)] if "cast" in variables["OP_TOOLS"] else []
            log = LossLog(folder / "run").start()
            for tool in tools:
                tool.start()
            try:
                train(self.device)
            except RuntimeError:
                status = 1
            finally:
                for tool in tools:
                    tool.stop()
                log.stop()
        record = {"tools": [tool.results.as_dictionary(200) for tool in tools]}
        (folder / "run" / "processes" / "one.json").write_text(json.dumps(record))
        (folder / "output.txt").write_text("")
        return Ended(status, folder / "output.txt", folder / "run")


@pytest.fixture
def bisect(device, monkeypatch):
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")
    runner = Runner(device, monkeypatch)

    def run(fault, check=None, way=trial.CPU, suspects=(), folder="search"):
        if check is None:
            good = Runner(device, monkeypatch)(None, Path(f"good-{folder}"), trial.with_ops(way, []), None, None)
            check = LikeGood(losses.noted(good.run), None, None)
        with faults.inject(fault, device):
            journal = Journal(Path(folder), identity([fault], check.name, way.tool))
            return Bisection(["train"], check, way, journal, lines.append, run=runner).run(suspects)

    lines = run.lines = []
    run.runner = runner
    return run


SINGLE = {
    "aten.gelu: scale=1.02": [f"{F}.gelu"],
    "aten.gelu_backward: noise=0.05": [f"{F}.gelu"],
    "aten.native_layer_norm: scale=1.01": [f"{F}.layer_norm"],
    "aten.native_layer_norm_backward: tail=0.5": [f"{F}.layer_norm"],
    "aten.embedding: index=1": [f"{F}.embedding"],
    "aten._softmax: zero@0.1": ["torch.softmax"],
    "aten.convolution_overrideable: scale=1.05": [f"{F}.conv1d"],
    "aten.silu_backward: negate@0.2": [f"{F}.silu"],
    "aten.tanh: round=bfloat16": ["torch.tanh"],
    "aten._log_softmax: scale=1.01": [f"{F}.cross_entropy"],
    "aten.rsqrt: scale=1.1": ["torch.rsqrt"],
    "aten.mean: scale=0.9": [f"{T}.mean"],
}
PAIRS = {
    "aten.gelu: scale=1.1; aten.native_layer_norm: scale=1.2": [f"{F}.gelu", f"{F}.layer_norm"],
    "aten.embedding: index=1; aten.silu: negate@0.1": [f"{F}.embedding", f"{F}.silu"],
    "aten._softmax_backward_data: scale=3; aten.tanh: scale=0.9": ["torch.softmax", "torch.tanh"],
}


QUICK = ("aten.gelu_backward: noise=0.05", "aten.gelu: scale=1.1; aten.native_layer_norm: scale=1.2")


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in (*SINGLE, *PAIRS)]
)
def test_exactly_the_guilty_ops_are_found(bisect, fault):
    found = bisect(fault)
    assert (found.verdict, found.ops, found.exit_code) == ("found", sorted({**SINGLE, **PAIRS}[fault]), 1)
    assert f"{F}.dropout" not in found.candidates
    assert len(found.trials) <= 2 + 7 * len(found.ops) + 2


def test_a_search_goes_on_where_it_was_and_is_the_same_each_time(bisect, monkeypatch):
    fault = "aten.gelu: scale=1.02"
    whole = bisect(fault)
    runs = bisect.runner.runs
    journal = Path("search/trials.jsonl")
    kept = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(kept[:5]) + kept[5][:10])  # killed while it wrote
    STEPS.forget()
    bisect.runner.runs = 0
    again = bisect(fault)
    assert again.ops == whole.ops
    assert [one.ops for one in again.trials] == [one.ops for one in whole.trials]
    assert bisect.runner.runs == runs - 4
    assert any("[known]" in line for line in bisect.lines)
    with pytest.raises(DiagnosisError, match="holds the search of another command or check"):
        bisect("aten.gelu: scale=1.03")
    journal.write_text("[]\nx\n")
    with pytest.raises(DiagnosisError, match="is damaged: remove it"):
        bisect(fault)


def test_suspects_of_a_comparison_come_first(bisect):
    compared = {
        "schema": "ditorch.compare/1",
        "first_divergence": None,
        "guilty": [],
        "suspects": [{"op": f"{F}.silu"}],
    }
    Path("compared.json").write_text(json.dumps(compared))
    found = bisect("aten.silu: scale=1.1", suspects=read_suspects("compared.json"))
    assert found.ops == [f"{F}.silu"]
    assert len(found.trials) == 4  # as it is, all, the suspect, once more
    assert bisect("aten.silu: scale=1.1", suspects=["torch.tanh"], folder="other").ops == [f"{F}.silu"]


def test_no_set_of_ops_explains_what_is_no_op_s_fault(bisect):
    far = LikeGood([9.0] * STEPS_OF_A_RUN, None, None)
    found = bisect("aten.sort: scale=2", check=far)
    assert (found.verdict, found.exit_code, found.ops) == ("unexplained", 2, [])
    assert "with every op on the CPU" in found.reason


def test_a_good_run_has_nothing_to_find(bisect):
    found = bisect("aten.sort: scale=2")
    assert (found.verdict, found.exit_code, len(found.trials)) == ("passes", 0, 1)


def test_other_checks(bisect):
    found = bisect("aten.silu: nan@one, after=1", check=NoNan(2, None), folder="nan")
    assert (found.verdict, found.ops) == ("found", [f"{F}.silu"])
    assert bisect("aten.silu: nan@one, after=1", check=NoNan(0, None), folder="later").verdict == "passes"
    found = bisect("aten.silu: raise", check=ByExitCode(), folder="code")
    assert (found.verdict, found.ops) == ("found", [f"{F}.silu"])


def test_a_check_that_changes_its_mind_is_said(bisect):
    class Fickle(ByExitCode):
        """Passes with silu on the CPU, but for a set of ops that it has seen before."""

        seen: ClassVar[set[frozenset[str]]] = set()

        def verdict(self, ended):
            ops = frozenset(trial.rerouted(trial.CPU, ended.run))
            is_new = ops not in self.seen
            self.seen.add(ops)
            return Verdict(f"{F}.silu" in ops and is_new, "by chance")

    found = bisect("aten.sort: scale=2", check=Fickle())
    assert (found.verdict, found.exit_code) == ("unclear", 2)
    assert "do not pass a second time (by chance): runs differ" in found.reason


def test_an_op_that_16_bits_are_too_few_for_is_found_in_float32(bisect, monkeypatch):
    """x * x overflows inside of it, while its result would fit."""

    class Normed(Net):
        dtype = torch.float32

        def forward(self, tokens):
            x = functional.local_response_norm((self.token(tokens) * 300).to(self.dtype), 3).float()
            return super().forward(tokens) + x[..., :16] / 100

    monkeypatch.setitem(globals(), "Net", Normed)
    healthy = bisect("aten.sort: scale=2", way=trial.CAST)
    assert healthy.verdict == "passes"
    good = losses.noted(Path("good-search/run"))
    Normed.dtype = torch.float16
    found = bisect("aten.sort: scale=2", check=LikeGood(good, None, None), way=trial.CAST, folder="half")
    assert (found.verdict, found.ops) == ("found", [f"{F}.local_response_norm"])
    assert found.next[0].startswith(f"ditorch run --cast '{F}.local_response_norm:torch.float16->torch.float32")


def test_bad_suspects_are_said(tmp_path):
    for text in ("", "{}", '{"schema": "ditorch.run/1"}', '{"schema": "ditorch.compare/1", "guilty": 3}', "\0\1"):
        Path("compared.json").write_text(text)
        with pytest.raises(DiagnosisError, match="is not what `ditorch compare --json` prints"):
            read_suspects("compared.json")
    for text in ("nowhere.json", "runs/compared", " , "):
        with pytest.raises(DiagnosisError, match="there is no such file, and these are no names of ops"):
            read_suspects(text)
    assert read_suspects("torch.mm, torch.bmm") == ["torch.mm", "torch.bmm"]


def test_a_trial_that_may_still_be_running_keeps_its_folder(tmp_path):
    """That of a search that was killed; the same search goes on beside it."""
    left = tmp_path / "trials" / "000"
    left.mkdir(parents=True)
    folders = []

    def run(command, folder, *rest):
        folder.mkdir()
        folders.append(folder.name)
        (folder / "output.txt").touch()
        return Ended(0, folder / "output.txt", folder / "run")

    found = Bisection(["program"], ByExitCode(), trial.CPU, Journal(tmp_path, "x"), lambda line: None, run=run).run()
    assert (found.verdict, folders) == ("passes", ["000_2"])


def test_ranks_that_share_a_batch_have_its_loss_together(tmp_path):
    def note(rank, *values):
        lines = [json.dumps({"step": step, "loss": loss, "ranks": 2}) + "\n" for step, loss in enumerate(values)]
        (tmp_path / "losses" / f"h-rank{rank}-pid{rank}.jsonl").write_text("".join(lines))

    (tmp_path / "losses").mkdir()
    check, going_on = LikeGood([3.0, 2.0], None, 0.01), Ended(None, tmp_path / "output.txt", tmp_path)
    assert not check.is_decided(going_on)
    note(0, 4.0, 2.5)
    assert not check.is_decided(going_on), "the other rank's are still to come"
    note(1, 2.0, 1.5)
    assert losses.noted(tmp_path) == [3.0, 2.0]
    assert check.is_decided(going_on)
    assert check.verdict(going_on).passes
    (tmp_path / "losses" / "h-rank0-pid0.jsonl").unlink()  # as of a pipeline, whose last rank alone has a loss
    os.utime(tmp_path / "losses", (0, 0))
    assert check.is_decided(going_on)
    assert losses.noted(tmp_path) == [2.0, 1.5]
