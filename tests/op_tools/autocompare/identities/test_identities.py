"""Proofs by identities: results are checked by what must hold of them, without a reference."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import nn

import op_tools
from ditorch.sim import faults
from op_tools.autocompare.identities import whole


@pytest.fixture(autouse=True)
def _as_if_large(monkeypatch):
    """The calls of these tests are small; the CPU would compute them as a whole."""
    monkeypatch.setattr(whole, "MAX_ELEMENTS", 0)


class Model(nn.Module):
    """A little of everything that has an identity."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm, self.other_norm = nn.LayerNorm(32), nn.RMSNorm(32)
        self.mixed, self.out = nn.Linear(32, 96), nn.Linear(32, 32, bias=False)
        self.convolution = nn.Conv1d(32, 32, 3, padding=1, groups=2)
        self.image = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 50)

    def forward(self, numbers):
        x = self.embedding(numbers)
        query, key, value = self.mixed(self.norm(x)).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.convolution(F.gelu(self.other_norm(x)).transpose(1, 2)).transpose(1, 2)
        shares, logarithms = torch.softmax(x, -1), torch.log_softmax(x, 1)
        x = x + torch.bmm(shares @ shares.mT, logarithms) * 0.01
        x = x + self.image(x.unsqueeze(1)).mean((1, 2, 3), keepdim=True).squeeze(1)
        return self.head(F.dropout(x, 0.1)) + x.sum() * 1e-3


def training(device, dtype=torch.float32, autocast=False, losses=None):
    torch.manual_seed(0)
    model = Model().to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = torch.randint(0, 50, (4, 16)).to(device)
    for _ in range(2):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(numbers).view(-1, 50), numbers.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if losses is not None:
            losses.append(loss.item())


@pytest.mark.parametrize("kernels", ["", "aten.*: remake"], ids=["own kernels", "another make"])
@pytest.mark.parametrize(
    "options", [{}, {"dtype": torch.bfloat16}, {"autocast": True}], ids=["float32", "bfloat16", "autocast"]
)
def test_a_healthy_program_is_proven_and_stays_the_same(compared, device, options, kernels):
    plain, watched = [], []
    with faults.inject(kernels) if kernels else torch.enable_grad():
        training(device, losses=plain, **options)
        results = compared(lambda: training(device, losses=watched, **options))
    assert watched == plain
    assert list(results) == []
    left_out = {one["what"] for one in results.not_looked_at if "gradients" not in one["reason"]}
    assert left_out <= {"torch.Tensor.item"}
    assert results.facts["values"] > 300


# a fault, and the op that is to blame; no other may be
FAULTS = {
    "aten.addmm: scale=1.001": {"torch.nn.functional.linear"},
    "aten.mm: tail=0.1": {"torch.nn.functional.linear", "torch.Tensor.matmul"},
    "aten.bmm: accumulate=bfloat16": {"torch.bmm", "torch.Tensor.matmul"},
    "aten.native_layer_norm: epsilon=100": {"torch.nn.functional.layer_norm"},
    "aten.native_layer_norm_backward: scale=1.001": {"torch.nn.functional.layer_norm"},
    "aten._softmax: scale=1.0001": {"torch.softmax"},
    "aten._softmax_backward_data: noise=1e-2": {"torch.softmax"},
    "aten._log_softmax: round=bfloat16": {"torch.log_softmax", "torch.nn.functional.cross_entropy"},
    "aten.gelu: round=bfloat16": {"torch.nn.functional.gelu"},
    "aten.gelu_backward: scale=1.01": {"torch.nn.functional.gelu"},
    "aten.embedding: index=1": {"torch.nn.functional.embedding"},
    "aten.convolution: drop=bias": {"torch.nn.functional.conv1d", "torch.nn.functional.conv2d"},
    "aten.convolution_backward: scale=1.001": {"torch.nn.functional.conv1d", "torch.nn.functional.conv2d"},
    "aten.mean: scale=1.001": {"torch.Tensor.mean", "torch.nn.functional.rms_norm"},
    "aten._foreach_addcdiv_: scale=1.01": {"torch._foreach_addcdiv_"},
    "aten.nll_loss_forward: scale=1.01": {"torch.nn.functional.cross_entropy"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_kernel_is_named_and_no_other(compared, device, fault):
    with faults.inject(fault) as injection:
        results = compared(lambda: training(device))
    assert sum(injection.struck.values()), "the program does not use this kernel"
    named = {row["op"] for row in results}
    assert named
    assert named <= FAULTS[fault]


@pytest.mark.parametrize("fault", ["aten.addmm: scale=1.01", "aten.native_layer_norm: scale=1.01"])
def test_the_device_as_reference_finds_a_kernel_that_is_wrong_in_every_dtype(compared, device, fault):
    with faults.inject(fault):  # the reference in float64 is wrong as well
        results = compared(lambda: training(device), reference="device")
    assert {row["op"] for row in results} <= FAULTS.get(fault, set()) | {
        "torch.nn.functional.linear", "torch.nn.functional.layer_norm",
    }  # fmt: skip
    assert list(results)


class ManyPlaces(nn.Module):
    """Each product stands in a line of its own."""

    names = tuple(f"line_{number}" for number in range(24))

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))
        lines = [f"def {name}(x, weight): return torch.mm(x, weight)" for name in self.names]
        exec(compile("\n".join(lines), "many_places.py", "exec"), functions := {"torch": torch})  # noqa: S102
        self.functions = [functions[name] for name in self.names]

    def forward(self, x):
        for function in self.functions:
            x = function(x, self.weight)
        return torch.softmax(x, -1).sum()


def trained(device, steps, **options):
    """What each step of a model with many places allocates, which most kernels do; and the tool."""
    model = ManyPlaces().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    given, counts = torch.randn(8, 8).to(device), []
    with op_tools.OpAutoCompare(reference="device", verbose=0, **options) as tool:
        for _ in range(steps):
            before = torch.get_device_module(device).memory_stats()["allocation.all.allocated"]
            optimizer.zero_grad()
            model(given).backward()
            optimizer.step()
            counts.append(torch.get_device_module(device).memory_stats()["allocation.all.allocated"] - before)
    return counts, tool


def test_proofs_beside_the_device_take_a_small_part_of_each_step(device, monkeypatch, tmp_path):
    counts, _ = trained(device, 8, out=tmp_path)
    monkeypatch.setattr("op_tools.autocompare.on_device._FREE_PROOFS", -1_000_000)
    alone, tool = trained(device, 2, out=tmp_path)
    assert "proven by identities, too: 0 of" in tool.summary.text()
    assert max(counts[1:]) <= 1.25 * alone[1]
    assert sum(counts[1:]) > 7 * alone[1], "nothing was proven"


def test_a_fault_in_every_dtype_is_found_in_the_last_of_many_places_within_twenty_steps(device, tmp_path):
    with faults.inject("aten._softmax: scale=1.01"):
        (_, early), (_, late) = (trained(device, steps, out=tmp_path) for steps in (1, 20))
    assert list(early.results) == []
    assert ": its turn has not come" in early.summary.text()
    assert {row["op"] for row in late.results} == {"torch.softmax"}
    assert "proven by identities, too: 27 of 27 places" in late.summary.text()


def test_what_is_compared_once_is_proven_at_once(device, tmp_path):
    _, tool = trained(device, 1, out=tmp_path, once=True)
    assert "proven by identities, too: 27 of 27 places" in tool.summary.text()


def test_what_has_no_identity_is_said(compared, device):
    results = compared(lambda: torch.linalg.svd(torch.eye(3, device=device)))
    assert [(one["what"], one["reason"]) for one in results.not_looked_at if "svd" in one["what"]] == [
        ("torch.linalg.svd", "no identity is known")
    ]


def test_gradients_without_an_identity_are_said(compared, device):
    def program():
        shift = torch.randn(4, device=device, requires_grad=True)
        (torch.randn(6000, 4, device=device) + shift).sum().backward()

    said = {one["what"]: one["reason"] for one in compared(program).not_looked_at if "gradients" in one["reason"]}
    reason = "no identity is known for some of its gradients"
    assert said == {"torch.Tensor.add": reason}


def test_nothing_is_kept_of_elementwise_ops_that_autograd_does_not_keep(device, tmp_path):
    with op_tools.OpAutoCompare(reference="identities", out=tmp_path, verbose=0):
        leaf = torch.ones(1000, device=device, requires_grad=True)
        given = leaf * 2
        gone = weakref.ref(given)
        result = given + 1
        del given
        gc.collect()
        assert gone() is None
        result.sum().backward()


def test_the_programs_random_numbers_stay_its_own(compared, device):
    def drawn():
        torch.manual_seed(3)
        x = torch.randn(8, 8, device=device)
        return (F.linear(x, x) + torch.randn(8, 8, device=device)).sum().item(), torch.rand(3).tolist()

    found = []
    compared(lambda: found.append(drawn()))
    assert found == [drawn()]


def test_nan_where_numbers_should_be_is_found(compared, device):
    def program():
        x = torch.randn(64, 32, device=device)
        F.linear(x, torch.randn(16, 32, device=device))

    with faults.inject("aten.mm: nan@one"):
        results = compared(program)
    assert [row["op"] for row in results] == ["torch.nn.functional.linear"]


def test_infinite_inputs_are_no_fault(compared, device):
    def program():
        x = torch.randn(64, 32, device=device)
        x[3, 4] = float("inf")
        x[5, 6] = float("nan")
        torch.softmax(F.linear(x, torch.randn(16, 32, device=device)), -1)

    assert list(compared(program)) == []


@pytest.mark.parametrize("reference", ["identities", "device"])
@pytest.mark.parametrize("drop", [F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout])
def test_whole_channels_that_are_dropped_are_no_fault(compared, device, drop, reference):
    def program():
        x = torch.randn(3, 4, *[5] * {F.dropout1d: 1, F.dropout2d: 2}.get(drop, 3), device=device, requires_grad=True)
        for _ in range(3):
            drop(x, 0.3).sum().backward()

    assert list(compared(program, reference)) == []


@pytest.mark.parametrize("reference", ["identities", "device"])
def test_dropout_that_returns_its_mask_is_proven(compared, device, reference):
    def program():  # what compiled code calls
        for _ in range(4):
            x = torch.randn(6, 5, 64, device=device, requires_grad=True)
            torch.native_dropout(x, 0.3, True)[0].square().sum().backward()

    assert not list(compared(program, reference))
    with faults.inject("aten.native_dropout: scale=1.1"):
        assert {row["op"] for row in compared(program, reference)} == {"torch.native_dropout"}


def test_what_fails_when_a_backward_pass_ends_does_not_end_the_training(device, tmp_path, monkeypatch, capsys):
    def fails(self):
        raise IndexError("out of range")

    monkeypatch.setattr("op_tools.autocompare.on_device.OnDevice.parameters_will_change", fails)
    with op_tools.OpAutoCompare(reference="device", out=tmp_path, verbose=0):
        x = torch.ones(3, device=device, requires_grad=True)
        for _ in range(2):
            (x * 2).sum().backward()
    assert x.grad.tolist() == [4.0] * 3
    assert capsys.readouterr().err.count("out of range") == 1


@pytest.mark.parametrize("reference", ["device", "identities"])
def test_rows_that_are_scaled_in_place_after_they_were_picked_are_right(compared, device, reference):
    table, numbers = nn.Embedding(10, 8).to(device), torch.tensor([1, 2, 3, 1]).to(device)

    def program():
        rows = table(numbers)
        rows *= 2.0
        rows.square().sum().backward()
        more = torch.index_select(table.weight, 0, numbers)
        more *= 3.0

    assert list(compared(program, reference)) == []


def test_where_the_user_has_set_a_tolerance_a_proof_does_not_decide(compared, device, monkeypatch):
    def products():
        weight = torch.randn(48, 64, device=device, requires_grad=True)
        F.linear(torch.randn(32, 64, device=device), weight).square().sum().backward()

    def blamed(value):
        monkeypatch.setenv("LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", value)
        torch.manual_seed(0)
        return {row["what"] for row in compared(products)}

    assert blamed("0,0") == {"output", "grad[1]"}
    assert not blamed("1,1")
    with faults.inject("aten.mm: scale=1.05"):
        assert not blamed("10,10")
        assert blamed("") == {"output", "grad[1]"}
