"""Rehearsals of whole programs against the chip itself: the simulated accelerator with faults, which knows no profile.

Which kernels the chip lacks, and which keep their sums in bfloat16, is drawn by a seed.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ditorch.sim import faults
from ditorch.sim.faults.low_precision import ACCUMULATING

from ...ditorch_cli.conftest import ditorch_command  # noqa: F401
from .test_rehearsal import LIGHT, LLAMA, profile_of

CNN = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(512, 64), nn.Hardswish(), nn.Dropout(0.1), nn.Linear(64, 10),
).to(DEVICE)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
images, labels = torch.randn(8, 3, 16, 16).to(DEVICE), torch.randint(0, 10, (8,)).to(DEVICE)
loss = nn.functional.cross_entropy(net(images), labels, label_smoothing=0.1)
loss.backward()
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
optimizer.step()
"""
RECURRENT = """
import torch
from torch import nn
torch.manual_seed(0)
table, recurrent = nn.Embedding(50, 32).to(DEVICE), nn.LSTM(32, 48, 2, batch_first=True).to(DEVICE)
head = nn.Linear(48, 50).to(DEVICE)
weights = [*table.parameters(), *recurrent.parameters(), *head.parameters()]
optimizer = torch.optim.RMSprop(weights, lr=1e-3)
text = torch.randint(0, 50, (4, 20)).to(DEVICE)
states, _ = recurrent(table(text))
scores = head(states).log_softmax(-1)
kept = scores.topk(5, dim=-1).values.exp().sum(-1).clamp(max=1.0)
loss = nn.functional.nll_loss(scores.flatten(0, 1), text.roll(-1, 1).flatten()) + (1 - kept).square().mean()
loss.backward()
optimizer.step()
"""
AUTOENCODER = """
import torch
from torch import nn
torch.manual_seed(0)
down = nn.Sequential(nn.Conv1d(2, 16, 5, stride=2), nn.GELU(), nn.LayerNorm(30)).to(DEVICE, torch.bfloat16)
up = nn.Sequential(nn.ConvTranspose1d(16, 2, 6, stride=2), nn.Tanh()).to(DEVICE, torch.bfloat16)
weights = [*down.parameters(), *up.parameters()]
optimizer = torch.optim.Adam(weights, lr=1e-3)
signal = torch.randn(4, 2, 64).to(DEVICE, torch.bfloat16).cumsum(-1).sin()
hidden = down(signal)
similar = torch.einsum("bct,dct->bd", hidden, hidden) / hidden.shape[-1]
loss = nn.functional.smooth_l1_loss(up(hidden), signal) + similar.softmax(-1).diagonal().log().neg().mean()
loss.backward()
optimizer.step()
"""
PROGRAMS = {"llama": LLAMA, "cnn": CNN, "recurrent": RECURRENT, "autoencoder": AUTOENCODER}
# Kernels that few of these programs call: what a profile says of them must not come up
OTHERS = (
    "erfinv", "cumprod", "sort", "digamma", "acosh", "roll", "tril", "triu", "gelu", "sigmoid", "hardtanh", "mish",
    "avg_pool2d", "max_pool2d_with_indices", "native_layer_norm", "native_group_norm", "native_batch_norm", "softplus",
    "upsample_nearest2d", "linalg_inv_ex", "grid_sampler_2d", "bincount", "median", "logcumsumexp", "atan2", "floor",
)  # fmt: skip
_WORTH_TELLING = 3.0  # times the error of a sound kernel: below it, rounding alone moves the figure by as much


class Kernels(TorchDispatchMode):
    """The names of all that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name.startswith("aten::"):
            self.names.add(func._schema.name.partition("::")[2])
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "seed"), [("llama", 1), ("llama", 2), ("llama", 3), ("cnn", 4), ("recurrent", 5), ("autoencoder", 6)]
)
def test_a_program_misses_and_drifts_as_foretold(program, seed, tmp_path, device, monkeypatch, ditorch_command):  # noqa: F811
    if program == "llama":
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    source, code = PROGRAMS[program], compile(PROGRAMS[program], program, "exec")
    with Kernels() as kernels:
        run(code, device)
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    used = sorted({plain(name) for name in kernels.names} - {plain(name) for name in ALWAYS_THERE})
    removed = [*chance.sample(used, min(12, len(used)))]
    removed += chance.sample(sorted(set(OTHERS) - set(removed)), 20 - len(removed))
    rounded = [name.partition("::")[2] for name in chance.sample(sorted(ACCUMULATING), 5)]
    gone = {name: {"missing": {"*": f"NotImplementedError: no {name}"}} for name in removed}
    low = {name: {"accumulation": dict.fromkeys(("float32", "bfloat16"), "bfloat16")} for name in rounded}
    facts = {name: {**gone.get(name, {}), **low.get(name, {})} for name in (*gone, *low)}
    (tmp_path / "chip.json").write_text(json.dumps(profile_of(**facts)))
    (tmp_path / "program.py").write_text(source.replace("DEVICE", '"cuda"'))
    done = ditorch_command("rehearse", "--profile", "chip.json", "--json", "program.py", python=LIGHT)
    assert done.returncode == 1, done.stderr
    foretold = json.loads(done.stdout)

    missed = {kernel for kernel in removed if misses(code, kernel, device)}
    told = {plain(row["kernel"]) for row in foretold["missing"]}
    assert told == missed

    drift = {}
    for row in foretold["drift"]:
        kernel = plain(row["kernel"])
        drift[kernel] = max(drift.get(kernel, 0.0), row["drift"])
    healthy = ratios(code, device, "")
    compared = {}
    for kernel in rounded:
        broken = ratios(code, device, f"aten.{kernel}: accumulate=bfloat16") if kernel in drift else {}
        worse = [ratio for op, ratio in broken.items() if ratio > 1.5 * healthy.get(op, 0.0)]
        compared[kernel] = (round(drift.get(kernel, 0.0), 2), round(max(worse, default=0.0), 2))
    print(f"\n{program} {seed}: {len(missed)} of {len(removed)} missing; foretold and measured drift: {compared}")
    clear = {kernel: both for kernel, both in compared.items() if max(both) > _WORTH_TELLING}
    for kernel, (said, measured) in clear.items():
        # of sums of a few numbers the sound ones are nearer by chance, and the largest ratio of all calls is told
        limit = 3.0 if kernel == "sum" else 2.0
        assert 1 / limit < said / max(measured, 1e-9) < limit, (kernel, compared)


# They compute nothing: no chip lacks these
ALWAYS_THERE = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "detach_", "alias", "view",
    "_unsafe_view", "_reshape_alias", "as_strided", "t", "transpose", "permute", "expand", "slice", "select",
    "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "_to_copy", "copy_", "_local_scalar_dense", "item",
    "lift_fresh", "_has_compatible_shallow_copy_type", "set_", "resize_", "record_stream", "is_pinned", "_pin_memory",
)  # fmt: skip


def plain(name):
    """As a profile names a kernel: for its overloads and its in-place form, on devices from outside of PyTorch, too."""
    found = name.rpartition("::")[2].partition(".")[0].replace("_overrideable", "")
    return found[:-1] if found.endswith("_") and not found.endswith("__") else found


def absent(kernel):
    """The fault that the chip has none of its forms."""
    forms = (kernel, f"{kernel}_", f"{kernel}_overrideable")
    if kernel.endswith("_backward"):
        forms = (*forms, f"{kernel.removesuffix('_backward')}_backward_overrideable")
    return "; ".join(f"aten.{form}: unimplemented" for form in forms if hasattr(torch.ops.aten, form))


def run(code, device):
    exec(code, {"DEVICE": device})  # noqa: S102 - the same program, here


def misses(code, kernel, device):
    with faults.inject(absent(kernel), device):
        try:
            run(code, device)
        except NotImplementedError as error:
            return "injected fault" in str(error)
    return False


def ratios(code, device, broken):
    """By op, the largest ratio of a call's errors to those of the CPU in the same dtype."""
    from op_tools import OpAutoCompare

    found = {}
    chip = faults.inject(broken, device) if broken else contextlib.nullcontext()
    with chip, OpAutoCompare(verbose=0, fail=False) as tool:
        run(code, device)
    path = next(file for file in tool.results.files if file.endswith(".csv"))
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            ratio = float(row["rmse_ratio"] or 0)
            if math.isfinite(ratio):
                found[row["name"].split()[0]] = max(found.get(row["name"].split()[0], 0.0), ratio)
    return found
