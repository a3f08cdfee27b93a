"""40 single faults that set no limit, drawn by a seed: does `ditorch compare` name the right call first?

    python benchmarks/compare_held_out.py [--runs FOLDER] [--seed N] [--models GPT CNN]

Models of other build than those of compare_runs.py; five faults for each model and dtype, three in forward and two in
backward, drawn from kernels x kinds, of the sizes of compare_runs.py (2 % in forward, 5 % in backward, single parts).
The good run has the CPU's kernels, the faulty one healthy kernels of another make (`aten.*: remake`) and the fault on
top. One that changes no result is passed over for the next that was drawn. Statistics decide; where they name nobody,
the suspects' data is captured in a second pass, as `ditorch compare` advises. Then healthy pairs.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import compare_runs
import op_tools
from broken_calls import Broken, Checksums, Truth, broken, first_wrong
from compare_runs import DTYPES, _is_same, _words, train
from ditorch.sim import faults as injector
from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run
from op_tools.compare_runs.settling import settle
from op_tools.core.steps import STEPS

SEED = 20261118
OTHER_MAKE = "aten.*: remake"
FORWARD_KINDS = ("scale=1.02", "scale=0.98", "noise=2e-2", "tail=0.1", "negate@0.02", "zero@0.05")
BACKWARD_KINDS = ("scale=1.05", "scale=0.95", "noise=5e-2", "tail=0.2", "zero@0.1", "negate@0.05")
ATTENTION = "_scaled_dot_product_fused_attention_overrideable"
KERNELS = {  # forward, backward
    "GPT": (
        ["addmm", "mm", ATTENTION, "native_layer_norm", "gelu", "embedding", "_log_softmax"],
        ["native_layer_norm_backward", "gelu_backward", f"{ATTENTION}_backward", "embedding_dense_backward"],
    ),
    "Llama": (
        ["mm", ATTENTION, "silu", "rsqrt", "mean", "cos", "embedding"],
        ["silu_backward", f"{ATTENTION}_backward", "_log_softmax_backward_data", "embedding_dense_backward"],
    ),
    "CNN": (
        ["convolution_overrideable", "native_batch_norm", "relu", "native_group_norm", "addmm", "silu"],
        ["convolution_backward_overrideable", "native_batch_norm_backward", "threshold_backward", "silu_backward"],
    ),
    "LSTM": (
        ["sigmoid", "tanh", "mm", "addmm", "embedding", "_log_softmax"],
        ["sigmoid_backward", "tanh_backward", "_log_softmax_backward_data", "embedding_dense_backward"],
    ),
}  # fmt: skip
COUNTS = (3, 2)  # of faults in forward and backward, for each model and dtype


# ---- models --------------------------------------------------------------------------------------------------------


class FusedBlock(nn.Module):
    """Fused QKV, and torch's own attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = (one.view(b, s, self.heads, -1).transpose(1, 2) for one in self.qkv(self.n1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, w))
        return x + self.down(functional.gelu(self.up(self.n2(x)), approximate="tanh"))


class FusedGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(96, 72), nn.Embedding(24, 72)
        self.blocks = nn.ModuleList([FusedBlock(72, 6) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(72), nn.Linear(72, 96, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class WideLlama(nn.Module):
    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        sizes = {"hidden_size": 96, "intermediate_size": 136, "num_hidden_layers": 2, "vocab_size": 96}
        heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 48, "use_cache": False}
        self.body = LlamaForCausalLM(LlamaConfig(**sizes, **heads))

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(input_ids=ids).logits


class ResidualCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(24, 24, 3, padding=1, bias=False) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(24), nn.GroupNorm(4, 24)])
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        for conv, norm in zip(self.convs, self.norms):
            x = x + functional.silu(norm(conv(x)))
        return self.head(functional.avg_pool2d(functional.relu(x), 4).mean((-1, -2)))


class TwoWayLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.rnn = nn.Embedding(96, 36), nn.LSTM(36, 44, 1, batch_first=True, bidirectional=True)
        self.gate, self.head = nn.Linear(88, 88), nn.Linear(88, 96)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.rnn(self.tok(ids))[0]
        return self.head(x * torch.sigmoid(self.gate(x)))


MODELS = {"GPT": FusedGPT, "Llama": WideLlama, "CNN": ResidualCNN, "LSTM": TwoWayLSTM}


# ---- runs ----------------------------------------------------------------------------------------------------------


def drawn(model: str, dtype: str, seed: int) -> list[list[str]]:
    """All faults of forward, and all of backward, in the order in which they are taken."""
    generator = random.Random(f"{seed} {model} {dtype}")  # noqa: S311
    pools = []
    for kernels, kinds in zip(KERNELS[model], (FORWARD_KINDS, BACKWARD_KINDS)):
        pool = [f"aten.{kernel}: {kind}" for kernel in kernels for kind in kinds]
        generator.shuffle(pool)
        pools.append(pool)
    return pools


class Recorder:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed

    def run(self, model: str, dtype: str, *faults: str, attention: str = "", data: list[str] | None = None) -> Path:
        """Two steps. `data`: the ops whose tensors are kept in place of statistics."""
        label = "".join(letter if letter.isalnum() else "_" for letter in "+".join(faults) + attention)
        path = self._folder / (f"{model}-{dtype}-{label}" if data is None else "data")
        if data is None and (path / "truth.json").exists():
            return path
        shutil.rmtree(path, ignore_errors=True)
        STEPS.forget()
        with warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")
            injections = [stack.enter_context(injector.inject(fault)) for fault in faults]
            broken = injections[-1] if len(faults) > 1 else None
            truth = Truth(lambda: sum(broken.struck.values()) if broken else 0, verbose=0)
            backend = getattr(torch.nn.attention.SDPBackend, attention) if attention else None
            stack.enter_context(torch.nn.attention.sdpa_kernel(backend) if backend is not None else nullcontext())
            options: dict[str, Any] = {"mode": "statistics"} if data is None else {"ops": data, "steps": [0, 1]}
            with op_tools.OpCapture(out=path, verbose=0, **options), truth:
                train(model, dtype, seed=self._seed % 1000, steps=2 if data is None else 1)
        truth.write(path)
        return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    compare_runs.MODELS.update(MODELS)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name:
        recorder = Recorder(options.runs or Path(name), options.seed)
        counts: Counter[str] = Counter()
        for model in options.models:
            for dtype in DTYPES:
                of_faults(recorder, model, dtype, options.seed, counts)
                of_healthy(recorder, model, dtype, counts)
            print(dict(sorted(counts.items())), flush=True)


def of_faults(recorder: Recorder, model: str, dtype: str, seed: int, counts: Counter[str]) -> None:
    good, healthy = recorder.run(model, dtype), recorder.run(model, dtype, OTHER_MAKE)
    for pool, wanted in zip(drawn(model, dtype, seed), COUNTS):
        done = 0
        for fault in pool:
            if done == wanted:
                break
            faulty = recorder.run(model, dtype, OTHER_MAKE, fault)
            truth = first_wrong(faulty, healthy)
            if truth is None:
                print(f"passed over, it changes no result: {model} {dtype} {fault}", flush=True)
                continue
            done += 1
            verdict, how, words = judged(
                recorder, good, faulty, (truth, broken(faulty, healthy)), (model, dtype, fault), counts
            )
            counts[f"{dtype} faults"] += 1
            counts[f"{dtype} {verdict} by {how}"] += 1
            print(f"{verdict}: {model} {dtype} {fault} by {how} {words}", flush=True)


def judged(
    recorder: Recorder, good: Path, faulty: Path, truths: tuple[Broken, set[Broken]], case: tuple[str, str, str],
    counts: Counter[str],
) -> tuple[str, str, str]:  # fmt: skip
    found, how = compare(Run(good), Run(faulty)), "statistics"
    base, (truth, wrong) = Checksums.of(faulty).base, truths
    named = [(place.other_forward_id - base, place.phase) for place in found.guilty]
    counts["healthy calls named at all"] += sum(one not in wrong for one in named)
    if found.guilty:
        verdict = "right" if named[0] == truth else "another" if named[0] in wrong else "HEALTHY"
        return verdict, how, _words(found.guilty[0])
    if not found.suspects:
        return "nothing", how, ""
    model, dtype, fault = case
    ops = sorted({place.op for place in found.suspects})
    settle(found, recorder.run(model, dtype, OTHER_MAKE, fault, data=ops))
    if not found.guilty:
        return "nothing", "data", ""
    first = found.guilty[0]
    is_touched = any(_is_same(first, faulty, base, one) for one in wrong)
    verdict = "right" if _is_same(first, faulty, base, truth) else "another" if is_touched else "HEALTHY"
    return verdict, "data", _words(first)


def of_healthy(recorder: Recorder, model: str, dtype: str, counts: Counter[str]) -> None:
    good = Run(recorder.run(model, dtype))
    for label, other in others(recorder, model, dtype):
        for found in (compare(good, Run(other)), compare(Run(other), good)):
            counts["healthy pairs"] += 1
            counts["healthy pairs with a guilty call"] += bool(found.guilty)
            if found.guilty:
                print("false:", model, dtype, label, _words(found.guilty[0]), flush=True)


def others(recorder: Recorder, model: str, dtype: str) -> Iterator[tuple[str, Path]]:
    yield "another make", recorder.run(model, dtype, OTHER_MAKE)
    if model in ("GPT", "Llama"):
        yield "another attention kernel", recorder.run(model, dtype, attention="MATH")
    if dtype == "float32":
        yield "bfloat16", recorder.run(model, "bfloat16")
        yield "bfloat16 of another make", recorder.run(model, "bfloat16", OTHER_MAKE)


if __name__ == "__main__":
    main()
