"""How well `ditorch compare` names the guilty call, from statistics alone: healthy pairs of runs, and faulty ones.

    python benchmarks/compare_runs.py [--runs FOLDER] [--limits 4 6 8 12] [--data] [--list]

Four models (GPT, Llama of transformers, CNN, LSTM), two steps of AdamW, float32 and bfloat16 autocast, on the simulated
accelerator. Healthy pairs: its kernels against split-K products, float64 inside, results up to one unit off, 16-bit
halves added in 16 bits, and bfloat16 against float32. Faulty ones: a fault (docs/faults.md) on top of the split-K
kernels. The truth, which no rule sees: the first call that a broken kernel ran in and whose result differs from the
healthy one. GPT and CNN set the limit (`fit`); Llama and LSTM are the half that is reported. Runs in FOLDER are kept
and used again.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import ditorch
import op_tools
from broken_calls import Broken, Checksums, Truth, broken, first_wrong
from ditorch.sim import faults as injector
from op_tools.compare_runs.calls import plain_module
from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.judging import LIMIT
from op_tools.compare_runs.reading import Run
from op_tools.compare_runs.settling import settle
from op_tools.core.steps import STEPS

ditorch.install()
FIT = ("GPT", "CNN")
DTYPES = ("float32", "bfloat16")
SEEDS = (0,)
NUDGE = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
FAULTS = {  # in both dtypes unless one is named
    "GPT": [
        "aten.addmm: scale=1.02", "aten.addmm: noise=2e-2", "aten._softmax: noise=2e-2", "aten.bmm: tail=0.1",
        "aten.embedding: index=1", "aten.addmm: drop=self", "aten.bmm: negate@one",
        "aten.native_layer_norm: noise=2e-2",
        "aten._softmax_backward_data: noise=5e-2", "aten.native_layer_norm_backward: scale=1.05",
        "aten.gelu_backward: zero@0.1", "aten.mm: scale=1.05, phase=backward",
        "aten.embedding_dense_backward: scale=1.05",
        "aten.gelu: noise=2e-2, after=3", "float32 aten.gelu: round=bfloat16",
        "float32 aten.native_layer_norm: epsilon=100",
        "float32 aten.addmm: noise=1e-3", "float32 aten._softmax_backward_data: noise=1e-3",
        "aten._foreach_lerp_: scale=1.05",
        "float32 aten.addmm: accumulate=bfloat16", "bfloat16 aten.addmm: noise=0.1",
        "bfloat16 aten._softmax: noise=0.1",
        "bfloat16 aten.native_layer_norm: noise=0.1", "bfloat16 aten._softmax_backward_data: noise=0.2",
    ],
    "Llama": [
        "aten.mm: scale=1.02", "aten.rsqrt: tail=0.5", "aten.silu: noise=2e-2", "aten.mean: scale=1.02",
        "aten._scaled_dot_product_fused_attention_overrideable: noise=2e-2", "aten.silu_backward: noise=5e-2",
        "aten._scaled_dot_product_fused_attention_overrideable_backward: scale=1.05", "aten.mm: noise=2e-2, after=90",
        "float32 aten.cos: round=bfloat16", "float32 aten.mm: accumulate=bfloat16", "aten.neg: zero@0.05",
        "bfloat16 aten.mm: scale=1.1", "bfloat16 aten.silu: noise=0.1", "bfloat16 aten.silu_backward: noise=0.2",
        "bfloat16 aten._scaled_dot_product_fused_attention_overrideable: noise=0.1",
    ],
    "CNN": [
        "aten.convolution_overrideable: scale=1.02", "aten.native_batch_norm: noise=2e-2", "aten.relu: negate@0.02",
        "aten.native_batch_norm_backward: scale=1.05", "aten.convolution_backward_overrideable: noise=5e-2",
        "aten.threshold_backward: zero@0.05", "float32 aten.convolution_overrideable: round=bfloat16",
        "aten.max_pool2d_with_indices_backward: zero@0.05", "float32 aten.native_batch_norm: epsilon=100",
        "bfloat16 aten.native_batch_norm: noise=0.1", "bfloat16 aten.convolution_backward_overrideable: noise=0.2",
    ],
    "LSTM": [
        "aten.tanh: scale=1.02", "aten.mm: noise=2e-2", "aten._log_softmax: noise=2e-2",
        "aten.tanh_backward: scale=1.05",
        "float32 aten.tanh: round=bfloat16", "aten._log_softmax_backward_data: noise=5e-2", "aten.sigmoid: tail=0.1",
        "bfloat16 aten.mm: noise=0.1", "bfloat16 aten._log_softmax_backward_data: noise=0.2",
    ],
}  # fmt: skip


# ---- models --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))  # k's bias has no gradient
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        y = self.n1(x)
        q, k, v = (f(y).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * (w // self.heads) ** -0.5
        mask = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, w))
        return x + self.down(functional.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self, width: int = 64, layers: int = 3, vocab: int = 96, length: int = 24) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Llama(nn.Module):
    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "vocab_size": 96}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False}
        self.body = LlamaForCausalLM(LlamaConfig(**sizes, **heads))

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(input_ids=ids).logits


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, 16, 24, 32]
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in zip(widths, widths[1:])])
        self.norms = nn.ModuleList([nn.BatchNorm2d(b) for b in widths[1:]])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms):
            x = functional.max_pool2d(functional.relu(norm(conv(x))), 2)
        return self.head(x.mean((-1, -2)))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(96, 40), nn.LSTM(40, 48, 2, batch_first=True), nn.Linear(48, 96)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.rnn(self.tok(ids))[0]))


MODELS = {"GPT": GPT, "Llama": Llama, "CNN": CNN, "LSTM": LSTM}


def train(name: str, dtype: str, nudge: float = 0.0, seed: int = 0, steps: int = 2) -> None:
    """`nudge`: all weights are first moved by such a share of themselves, with random signs."""
    torch.manual_seed(1234 + seed)
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for parameter in model.parameters() if nudge else ():
            parameter.mul_(1 + nudge * (2 * torch.rand(parameter.shape, generator=generator) - 1))
    model = model.to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for step in range(steps):
        g = torch.Generator().manual_seed(1000 * seed + step)
        with torch.autocast("cuda", torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext():
            if name == "CNN":
                x, y = (
                    torch.randn(8, 3, 16, 16, generator=g).to("cuda"),
                    torch.randint(10, (8,), generator=g).to("cuda"),
                )
                loss = functional.cross_entropy(model(x), y)
            else:
                ids = torch.randint(96, (4, 24), generator=g).to("cuda")
                loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- kernels that are healthy and round otherwise ------------------------------------------------------------------

LOW = (torch.bfloat16, torch.float16)
PRODUCTS = ("mm", "bmm", "addmm")
OTHERS = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", "sum.dim_IntList", "mean.dim", "gelu", "gelu_backward", "silu", "silu_backward",
    "tanh", "tanh_backward", "rsqrt", "native_batch_norm", "native_batch_norm_backward", "embedding_dense_backward",
)  # fmt: skip
LARGE = (
    "convolution_overrideable", "convolution_backward_overrideable", "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward", "cos", "sin", "sigmoid", "exp", "pow.Tensor_Scalar",
)  # fmt: skip
_inside = threading.local()


def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _replace(library: torch.library.Library, name: str, function: Callable[..., Any]) -> None:
    """`function(run, *args)` at the accelerator's own place, below autograd and autocast."""
    original = torch.library.get_kernel(_op(name), "PrivateUse1")

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            return original.call_boxed(keys, *given, **named)

        if getattr(_inside, "yes", False):
            return run(*args, **kwargs)
        _inside.yes = True
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                return function(run, *args, **kwargs)
        finally:
            _inside.yes = False

    library.impl(name, kernel, "PrivateUse1", with_keyset=True)


def _product(variant: str, a: Tensor, b: Tensor) -> Tensor:
    dtype = a.dtype
    a, b = (t.cpu().float() if t.dtype in LOW else t.cpu() for t in (a, b))
    if variant == "wide":
        return a.double() @ b.double()
    parts = [p @ q for p, q in zip(a.split(7, -1), b.split(7, -2))][::-1]
    if variant == "reduced" and dtype in LOW and len(parts) > 1:
        half = len(parts) // 2
        return sum(parts[:half]).to(dtype).float() + sum(parts[half:]).to(dtype).float()
    return sum(parts[1:], parts[0])


def _wide(name: str) -> Callable[..., Any]:
    """The CPU's own kernel in float64, then rounded."""

    def in_float64(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.cpu().double() if value.is_floating_point() else value.cpu()
        return torch.float64 if isinstance(value, torch.dtype) else value

    def function(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = list(map(in_float64, args))
        if name in ("_softmax", "_log_softmax"):
            given[2] = False
        result = _op(name)(*given, **{key: value for key, value in kwargs.items() if key != "dtype"})
        like = run(*args, **kwargs)  # shapes, dtypes, side results
        if name == "native_batch_norm":  # it has moved the running statistics itself
            return (like[0].copy_(result[0]), *like[1:])
        if isinstance(like, Tensor):
            return like.copy_(result)
        return tuple(x if x is None or y is None else x.copy_(y) for x, y in zip(like, result))

    return function


def _one_unit_off(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = run(*args, **kwargs)
    for one in result if isinstance(result, tuple) else (result,):
        if isinstance(one, Tensor) and one.dtype in (torch.float32, torch.bfloat16):
            host = one.cpu().contiguous()
            bits = host.view(torch.int32 if one.dtype is torch.float32 else torch.int16)
            off = (bits ^ (bits >> 5) ^ (bits >> 9)) % 3 - 1
            one.copy_(torch.where(host.isfinite() & (host != 0), (bits + off.to(bits.dtype)).view(one.dtype), host))
    return result


@contextlib.contextmanager
def kernels(variant: str) -> Iterator[None]:
    if variant == "plain":
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    if variant == "units":
        for name in (*PRODUCTS, *OTHERS, *LARGE):
            _replace(library, name, _one_unit_off)
    else:
        for name in ("mm", "bmm"):
            _replace(library, name, lambda run, a, b: _product(variant, a, b).to(device=a.device, dtype=a.dtype))
        _replace(
            library, "addmm",
            lambda run, c, a, b, **k: (_product(variant, a, b) + c.cpu()).to(device=a.device, dtype=a.dtype),
        )  # fmt: skip
        for name in OTHERS:
            _replace(library, name, _wide(name))
    try:
        yield
    finally:
        library._destroy()


# ---- recording -----------------------------------------------------------------------------------------------------


class Recorder:
    """Runs in a folder; ids of calls are counted from the first of each run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def data(self, model: str, dtype: str, fault: str, ops: list[str], seed: int = 0) -> Path:
        """The second pass: the tensors of these ops in the first step of a faulty run."""
        path = self._folder / "data"
        shutil.rmtree(path, ignore_errors=True)
        STEPS.forget()
        with warnings.catch_warnings(), kernels("split"), injector.inject(fault):
            warnings.simplefilter("ignore")
            with op_tools.OpCapture(out=path, ops=ops, steps=[0, 1], verbose=0):
                train(model, dtype, seed=seed, steps=1)
        return path

    def run(
        self, model: str, dtype: str, variant: str = "plain", fault: str = "", nudge: float = 0, seed: int = 0
    ) -> Path:
        label = "".join(letter if letter.isalnum() else "_" for letter in fault)
        path = self._folder / f"{model}-{dtype}-{variant}-{label}-{nudge:g}-{seed}"
        if (path / "truth.json").exists():
            return path
        shutil.rmtree(path, ignore_errors=True)
        STEPS.forget()
        with warnings.catch_warnings(), contextlib.ExitStack() as stack:
            warnings.simplefilter("ignore")
            stack.enter_context(kernels(variant))
            injection = stack.enter_context(injector.inject(fault)) if fault else None
            truth = Truth(lambda: sum(injection.struck.values()) if injection else 0, verbose=0)
            with op_tools.OpCapture(mode="statistics", out=path, verbose=0), truth:
                train(model, dtype, nudge, seed)
        truth.write(path)
        return path


# ---- the report ----------------------------------------------------------------------------------------------------


def healthy_pairs(recorder: Recorder) -> Iterator[tuple[str, str, str, Path, Path, Path]]:
    """Model, dtype, variant; the two runs, and the nudged one."""
    for model in MODELS:
        for seed in SEEDS:
            for dtype in DTYPES:
                good = recorder.run(model, dtype, seed=seed)
                nudged = recorder.run(model, dtype, nudge=NUDGE[dtype], seed=seed)
                for variant in ("split", "wide", "units", *(["reduced"] if dtype == "bfloat16" else [])):
                    yield model, dtype, variant, good, recorder.run(model, dtype, variant, seed=seed), nudged
            good = recorder.run(model, "float32", seed=seed)
            nudged = recorder.run(model, "float32", nudge=NUDGE["bfloat16"], seed=seed)
            yield model, "mixed", "bf16/fp32", good, recorder.run(model, "bfloat16", seed=seed), nudged


def faulty_pairs(recorder: Recorder) -> Iterator[tuple[str, str, str, Path, Path, Path, Broken, set[Broken]]]:
    for model, faults in FAULTS.items():
        for dtype in DTYPES:
            good = recorder.run(model, dtype)
            nudged = recorder.run(model, dtype, nudge=NUDGE[dtype])
            healthy = recorder.run(model, dtype, "split")
            for fault in faults:
                only, _, name = fault.rpartition(" aten.")
                if only and only != dtype:
                    continue
                fault = f"aten.{name}" if only else fault
                faulty = recorder.run(model, dtype, "split", fault)
                truth = first_wrong(faulty, healthy)
                if truth is not None:
                    yield model, dtype, fault, good, faulty, nudged, truth, broken(faulty, healthy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--limits", type=float, nargs="+", default=[LIMIT])
    parser.add_argument("--second", action="store_true", help="also with a second run of the good side")
    parser.add_argument(
        "--data", action="store_true", help="a second pass with the suspects' data where nothing is named"
    )
    parser.add_argument("--list", action="store_true", help="each pair that is not right")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    folder = options.runs or Path(tempfile.mkdtemp())
    recorder = Recorder(folder)
    good, bad = list(healthy_pairs(recorder)), list(faulty_pairs(recorder))
    print("| limit | second run | half | healthy pairs with a guilty call | first right, float32 | bfloat16 | "
          "healthy call first | nothing | healthy calls among the guilty |\n|" + " --- |" * 9)  # fmt: skip
    for limit in options.limits:
        for with_second in (False, True) if options.second else (False,):
            for half in ("fit", "held out"):
                _report(half, limit, with_second, good, bad, options.list, recorder if options.data else None)
    if options.runs is None:
        shutil.rmtree(folder)


def _report(
    half: str, limit: float, with_second: bool, good: list[Any], bad: list[Any], lists: bool, recorder: Recorder | None
) -> None:
    in_half = lambda model: (model in FIT) == (half == "fit")  # noqa: E731
    counts: Counter[str] = Counter()
    for model, dtype, variant, a, b, nudged in good:
        if in_half(model):
            found = compare(Run(a), Run(b), Run(nudged) if with_second else None, limit)
            counts["healthy"] += 1
            counts["false"] += bool(found.guilty)
            if lists and found.guilty:
                print("  false:", model, dtype, variant, *map(_words, found.guilty[:3]))
    for model, dtype, fault, a, b, nudged, truth, wrong in bad:
        if not in_half(model):
            continue
        found = compare(Run(a), Run(b), Run(nudged) if with_second else None, limit)
        base = Checksums.of(b).base
        if recorder is not None and not found.guilty and found.suspects:
            settle(found, recorder.data(model, dtype, fault, sorted({place.op for place in found.suspects})))
            if found.guilty:
                # ids of the second pass are its own: a call is the one that the first pass has at this place
                counts["by data"] += 1
                is_right = _is_same(found.guilty[0], b, base, truth)
                counts[dtype] += is_right
                counts[f"{dtype} all"] += 1
                touched = any(_is_same(found.guilty[0], b, base, one) for one in wrong)
                counts["later first" if touched else "healthy first"] += not is_right
                if lists:
                    print("  by data:", model, dtype, fault, is_right, _words(found.guilty[0]))
                continue
        named = [(place.other_forward_id - base, place.phase) for place in found.guilty]
        counts[f"{dtype} all"] += 1
        counts["healthy named"] += sum(one not in wrong for one in named)
        if named and named[0] == truth:
            counts[dtype] += 1
            continue
        counts["nothing"] += not named
        counts["healthy first"] += bool(named) and named[0] not in wrong
        if lists:
            print("  missed:", model, dtype, fault, truth, *map(_words, found.guilty[:2]))
    right = " | ".join(f"{counts[dtype]} of {counts[f'{dtype} all']}" for dtype in DTYPES)
    second = "yes" if with_second else "no"
    print(
        f"| {limit:g} | {second} | {half} | {counts['false']} of {counts['healthy']} | {right} | "
        f"{counts['healthy first']} | {counts['nothing']} | {counts['healthy named']} |", flush=True,
    )  # fmt: skip


def _is_same(place: Any, run: Path, base: int, truth: Broken) -> bool:
    """Whether a call that data has shown to be wrong is of the op, module and phase of the first wrong one."""
    wanted = next(r for r in op_tools.read_statistics(run) if r.forward_id - base == truth[0])
    return (place.op, place.phase) == (wanted.op, truth[1]) and place.module in (
        wanted.module,
        plain_module(wanted.module),
    )


def _words(place: Any) -> str:
    where = f"{place.step} {place.op} {place.module} {place.phase} {place.part}{place.place}"
    return f"[{where} {place.distance:.2g} from {place.inputs:.2g}, {place.score:.2g}]"


if __name__ == "__main__":
    main()
