"""The same as compare_runs.py with models, seeds and faults that set no limit, pair by pair.

    python benchmarks/compare_fresh.py [--runs FOLDER] [--models GPT CNN]

Faults were written down before the first run; a fault that changes no result is not counted. Where statistics name
nobody, the suspects' data is captured in a second pass, as `ditorch compare` advises.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import compare_runs
from broken_calls import Checksums, broken, first_wrong
from compare_runs import CNN, DTYPES, GPT, LSTM, Recorder, _is_same, _words
from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run
from op_tools.compare_runs.settling import settle

SEED = 7
FAULTS = {
    "GPT": [
        "aten.bmm: noise=3e-2", "aten.native_layer_norm: scale=1.03", "aten.gelu: negate@0.02",
        "aten._softmax: zero@0.05", "aten.embedding: scale=1.04", "aten.addmm: tail=0.2",
        "aten.gelu_backward: scale=1.08", "aten._softmax_backward_data: tail=0.2",
        "aten.native_layer_norm_backward: noise=8e-2",
    ],
    "Llama": [
        "aten.silu: scale=1.03", "aten.mm: tail=0.1", "aten.rsqrt: noise=3e-2", "aten.sin: scale=1.04",
        "aten._scaled_dot_product_fused_attention_overrideable: scale=1.04", "aten.silu_backward: zero@0.1",
    ],
    "CNN": [
        "aten.convolution_overrideable: tail=0.2", "aten.relu: scale=1.03", "aten.native_batch_norm: negate@0.02",
        "aten.convolution_backward_overrideable: scale=1.08", "aten.threshold_backward: noise=8e-2",
    ],
    "LSTM": [
        "aten.sigmoid: noise=3e-2", "aten.tanh: negate@0.02", "aten.embedding: noise=3e-2",
        "aten._log_softmax: scale=1.03", "aten.sigmoid_backward: noise=8e-2",
    ],
}  # fmt: skip


class FreshLlama(nn.Module):
    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        sizes = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "vocab_size": 96}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64, "use_cache": False}
        self.body = LlamaForCausalLM(LlamaConfig(**sizes, **heads))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=ids).logits


class FreshCNN(CNN):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, 20, 28, 40]
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 5, padding=2) for a, b in zip(widths, widths[1:])])
        self.norms = nn.ModuleList([nn.BatchNorm2d(b) for b in widths[1:]])
        self.head = nn.Linear(40, 10)


class FreshLSTM(LSTM):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(96, 56), nn.LSTM(56, 64, 1, batch_first=True), nn.Linear(64, 96)


MODELS = {"GPT": lambda: GPT(width=80, layers=2), "Llama": FreshLlama, "CNN": FreshCNN, "LSTM": FreshLSTM}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    compare_runs.MODELS.update(MODELS)  # type: ignore[arg-type]
    recorder = Recorder(options.runs or Path(tempfile.mkdtemp()))
    counts: Counter[str] = Counter()
    for model in options.models:
        for dtype in DTYPES:
            of_faults(recorder, model, dtype, counts)
            of_healthy(recorder, model, dtype, counts)
        print(dict(sorted(counts.items())), flush=True)


def of_healthy(recorder: Recorder, model: str, dtype: str, counts: Counter[str]) -> None:
    good = Run(recorder.run(model, dtype, seed=SEED))
    others = [recorder.run(model, dtype, kind, seed=SEED) for kind in ("split", "units")]
    if dtype == "float32":
        others.append(recorder.run(model, "bfloat16", seed=SEED))
    for other in others:
        found = compare(good, Run(other))
        counts["healthy pairs"] += 1
        counts["healthy pairs with a guilty call"] += bool(found.guilty)
        if found.guilty:
            print("false:", model, dtype, other.name, _words(found.guilty[0]), flush=True)


def of_faults(recorder: Recorder, model: str, dtype: str, counts: Counter[str]) -> None:
    good, healthy = recorder.run(model, dtype, seed=SEED), recorder.run(model, dtype, "split", seed=SEED)
    for fault in FAULTS[model]:
        faulty = recorder.run(model, dtype, "split", fault, seed=SEED)
        truth = first_wrong(faulty, healthy)
        if truth is None:
            continue
        found = compare(Run(good), Run(faulty))
        base = Checksums.of(faulty).base
        how = "statistics"
        if not found.guilty and found.suspects:
            how = "data"
            settle(found, recorder.data(model, dtype, fault, sorted({place.op for place in found.suspects}), SEED))
        first = found.guilty[0] if found.guilty else None
        counts[f"{dtype} faults"] += 1
        wrong = broken(faulty, healthy)
        if first is None:
            verdict = "nothing"
        elif how == "statistics":
            named = first.other_forward_id - base, first.phase
            verdict = "right" if named == truth else "later" if named in wrong else "HEALTHY"
        else:
            is_touched = any(_is_same(first, faulty, base, one) for one in wrong)
            verdict = "right" if _is_same(first, faulty, base, truth) else "later" if is_touched else "HEALTHY"
        counts[f"{dtype} {verdict} by {how}" if first else f"{dtype} nothing"] += 1
        if how == "statistics":
            others = [(place.other_forward_id - base, place.phase) for place in found.guilty]
            counts["healthy calls named at all"] += sum(one not in wrong for one in others)
        print(f"{verdict}: {model} {dtype} {fault} {how} {_words(first) if first else ''}", flush=True)


if __name__ == "__main__":
    main()
