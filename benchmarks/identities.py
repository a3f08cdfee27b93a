"""How sure are proofs by identities (OpAutoCompare's reference="identities")? Healthy calls, and the smallest faults.

    python benchmarks/identities.py                       400 cases of each half, own kernels and those of another make
    python benchmarks/identities.py --half held-out --cases 2000

Healthy: random calls of every op that has an identity, forward and backward, with inputs that are hard in ten ways. A
value over a limit is computed again by the CPU: it costs time, and blames nobody. Limits were set on the half "tuned".
Faults: the smallest factor, and the smallest error of one element, that is found in ten of ten calls.
"""

from __future__ import annotations

import argparse
import collections
import random
from collections.abc import Iterator
from typing import Any, Callable

import torch
import torch.nn.functional as F  # noqa: N812  its usual name

import ditorch  # noqa: F401
from ditorch.sim import faults
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.by_identities import provable_of
from op_tools.autocompare.identities.projections import NUMBERS
from op_tools.autocompare.identities.proof import Measured
from op_tools.autocompare.judging.limits import PROOF_LIMITS
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.names import op_name
from op_tools.output import tables

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TRIES = 10


# ---- calls -----------------------------------------------------------------------------------------------------------


def values(shape: tuple[int, ...], kind: str, own: random.Random) -> torch.Tensor:
    """Numbers that are hard for a proof, in one of ten ways."""
    maker = torch.Generator().manual_seed(own.randrange(2**31))
    normal = torch.randn(shape, generator=maker)
    if kind == "positive":
        return normal.abs()
    if kind == "rows":
        return normal * torch.exp2(torch.randint(-8, 8, (*shape[:-1], 1), generator=maker).float())
    if kind == "columns":
        return normal * torch.exp2(torch.randint(-8, 8, shape[-1:], generator=maker).float())
    if kind == "cancelling":
        return normal + 30 * torch.where(torch.arange(shape[-1]) % 2 == 0, 1.0, -1.0)
    if kind == "sparse":
        return normal * (torch.rand(shape, generator=maker) < 0.05)
    if kind == "one large":
        normal.view(-1)[own.randrange(normal.numel())] = 300.0
    if kind == "powers of two":
        return torch.exp2(torch.randint(-3, 3, shape, generator=maker).float())
    if kind == "uniform":
        return torch.rand(shape, generator=maker)
    if kind == "constant":
        return torch.full(shape, 0.3)
    return normal


KINDS = (
    "normal",
    "positive",
    "rows",
    "columns",
    "cancelling",
    "sparse",
    "one large",
    "powers of two",
    "uniform",
    "constant",
)
Case = tuple[Callable[..., torch.Tensor], tuple[Any, ...], dict[str, Any]]


def case(number: int, dtype: torch.dtype) -> Case:
    own = random.Random(number)  # noqa: S311  nothing secret
    size = lambda most: own.choice((1, 2, 3, 7, 16, 33, 64, most))  # noqa: E731

    def made(*shape: int) -> torch.Tensor:
        return values(shape, own.choice(KINDS), own).to(dtype).cuda().requires_grad_()

    b, m, k, n = size(8), size(200), size(700), size(300)
    which = own.choice(
        ("linear", "matmul", "bmm", "addmm", "conv1d", "conv2d", "layer_norm", "rms_norm", "softmax", "log_softmax",
         "attention", "einsum", "sum", "mean", "cross_entropy")
    )  # fmt: skip
    if which == "linear":
        return F.linear, (made(b, m, k), made(n, k), made(n)), {}
    if which == "matmul":
        return torch.matmul, (made(m, k), made(k, n)), {}
    if which == "bmm":
        return torch.bmm, (made(b, m, k), made(b, k, n)), {}
    if which == "addmm":
        return torch.addmm, (made(n), made(m, k), made(k, n)), {}
    if which == "conv1d":
        return (
            F.conv1d,
            (made(b, 6, 40), made(8, 3, 3), made(8)),
            {"padding": 1, "groups": 2, "stride": own.choice((1, 2))},
        )
    if which == "conv2d":
        channels = size(32)
        given, weight = made(b, channels, 12, 11), made(size(48), channels, 3, 3)
        return F.conv2d, (given, weight), {"padding": own.choice((0, 1)), "dilation": own.choice((1, 2))}
    if which in ("layer_norm", "rms_norm"):
        width = max(2, k)
        if which == "layer_norm":
            return F.layer_norm, (made(b, m, width), (width,), made(width), made(width)), {}
        return F.rms_norm, (made(b, m, width), (width,), made(width)), {}
    if which in ("softmax", "log_softmax"):
        return getattr(torch, which), (made(b, m, k), -1), {}
    if which == "attention":
        return attention(b, max(2, m), made, own)
    if which == "einsum":
        k = max(2, k)  # of one term torch takes no matrix product
        equation, *shapes = own.choice(
            (
                ("bid,bjd->bij", (b, m, k), (b, n, k)),
                ("bij,bjd->bid", (b, m, k), (b, k, n)),
                ("ijk,kd->dji", (b, m, k), (k, n)),
            )
        )
        return torch.einsum, (equation, *(made(*shape) for shape in shapes)), {}
    if which in ("sum", "mean"):
        return getattr(torch, which), (made(b, m, k), own.choice((-1, 0, (0, 1)))), {}
    classes = max(2, n)
    target = torch.randint(0, classes, (m,), generator=torch.Generator().manual_seed(number)).cuda()
    return F.cross_entropy, (made(m, classes), target), {}


def attention(batches: int, rows: int, made: Callable[..., torch.Tensor], own: random.Random) -> Case:
    """Plain, causal, or with a mask of its own; each head has keys of its own, or several share them."""
    groups, columns = own.choice((1, 1, 2, 4)), own.choice((2, 17, 130))
    kind = own.choice(("plain", "causal", "truth values", "added"))
    columns = rows if kind == "causal" else columns
    query, key, value = (
        made(batches, 2 * groups, rows, 16),
        made(batches, 2, columns, 16),
        made(batches, 2, columns, 16),
    )
    kwargs: dict[str, Any] = {"enable_gqa": True} if groups > 1 else {}
    allowed = torch.rand(rows, columns, generator=torch.Generator().manual_seed(own.randrange(2**31))) > 0.3
    if kind == "causal":
        kwargs["is_causal"] = True
    if kind == "truth values":
        kwargs["attn_mask"] = allowed.cuda()
    if kind == "added":
        kwargs["attn_mask"] = torch.zeros(rows, columns).masked_fill(~allowed, float("-inf")).to(query.dtype).cuda()
    return F.scaled_dot_product_attention, (query, key, value), kwargs


def run(one: Case) -> tuple[ObservedCall, Gradients]:
    function, args, kwargs = one
    given = Arguments(args, kwargs)
    result = function(*args, **kwargs)
    arrived = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result.dtype).cuda()
    wanted = [tensor for tensor in given.tensors if tensor.requires_grad]
    found = dict(zip(map(id, wanted), torch.autograd.grad(result, wanted, arrived)))
    call = ObservedCall(op_name(function), function, given, None, result.detach())
    return call, Gradients([found.get(id(tensor)) for tensor in given.tensors], [arrived])


def proofs(call: ObservedCall, gradients: Gradients) -> Iterator[tuple[str, list[float]]]:
    provable = provable_of(call)
    assert provable is not None, call.name
    with torch.no_grad():
        for proof in (*provable.forward(), *provable.backward(gradients)):
            if isinstance(proof, Measured):
                yield proof.name, proof.numbers.tolist()


# ---- figures ---------------------------------------------------------------------------------------------------------


def healthy(numbers: range, kernels: str) -> str:
    largest: dict[tuple[str, str], list[float]] = collections.defaultdict(lambda: [0.0] * len(NUMBERS))
    checked: collections.Counter[tuple[str, str]] = collections.Counter()
    over: collections.Counter[tuple[str, str]] = collections.Counter()
    for number in numbers:
        for dtype in DTYPES:
            if kernels:
                with faults.inject(kernels):
                    call, gradients = run(case(number, dtype))
            else:
                call, gradients = run(case(number, dtype))
            for _, found in proofs(call, gradients):
                key = (call.name.rpartition(".")[2], str(dtype).rpartition(".")[2])
                checked[key] += 1
                over[key] += any(value > limit for value, limit in zip(found, PROOF_LIMITS))
                largest[key] = [max(pair) for pair in zip(largest[key], found)]
    rows = [
        (*key, str(checked[key]), str(over[key]), *(f"{value:.2g}" for value in largest[key]))
        for key in sorted(checked)
    ]
    total = f"{sum(checked.values()):,} values, {sum(over.values())} over a limit"
    return f"{tables.table(('op', 'dtype', 'values', 'over', *NUMBERS), rows)}\n{total}"


def smallest_faults() -> str:
    """Of products, norms, softmax and attention of usual sizes."""
    rows = []
    shapes = {
        "linear": (F.linear, ((256, 512), (512, 512))),
        "layer_norm": (F.layer_norm, ((256, 1024), None)),
        "softmax": (torch.softmax, ((256, 1024), -1)),
        "attention": (F.scaled_dot_product_attention, ((1, 4, 256, 64),) * 3),
    }
    for name, (function, shape) in shapes.items():
        for dtype in DTYPES:
            found = []
            for break_ in (_factor, _one_element):
                found.append(next((size for size in _sizes() if _is_found(function, shape, dtype, break_, size)), None))
            rows.append((name, str(dtype).rpartition(".")[2], *("–" if one is None else f"{one:.1e}" for one in found)))
    return tables.table(("op", "dtype", "factor 1 +", "one element, × typical size"), rows)


def _sizes() -> Iterator[float]:
    size = 1e-7
    while size < 8:
        yield size
        size *= 10**0.25


def _factor(result: torch.Tensor, size: float, own: random.Random) -> torch.Tensor:
    return (result.double() * (1 + size)).to(result.dtype)


def _one_element(result: torch.Tensor, size: float, own: random.Random) -> torch.Tensor:
    broken = result.clone()
    broken.view(-1)[own.randrange(result.numel())] += size * result.float().square().mean().sqrt().to(result.dtype)
    return broken


def _is_found(function: Any, shape: Any, dtype: torch.dtype, break_: Any, size: float) -> bool:
    for number in range(TRIES):
        maker = torch.Generator().manual_seed(number)
        args = [torch.randn(one, generator=maker).to(dtype).cuda() if isinstance(one, tuple) else one for one in shape]
        if function is F.layer_norm:
            args[1] = (args[0].shape[-1],)
        exact = function(*(one.double() if isinstance(one, torch.Tensor) else one for one in args))
        result = break_(exact.to(dtype) if break_ is _one_element else exact, size, random.Random(number)).to(dtype)  # noqa: S311
        provable = provable_of(ObservedCall(op_name(function), function, Arguments(tuple(args), {}), None, result))
        assert provable is not None
        found = [proof.numbers.tolist() for proof in provable.forward() if isinstance(proof, Measured)]
        if not any(value > limit for numbers in found for value, limit in zip(numbers, PROOF_LIMITS)):
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("tuned", "held-out"), action="append")
    parser.add_argument("--cases", type=int, default=400)
    options = parser.parse_args()
    for half in options.half or ("tuned", "held-out"):
        start = 0 if half == "tuned" else 1_000_000
        for title, kernels in (("its own kernels", ""), ("kernels of another make", "aten.*: remake")):
            print(f"\n{half}, {title}\n{healthy(range(start, start + options.cases), kernels)}", flush=True)
    print(f"\nsmallest fault that is doubted in {TRIES} of {TRIES} calls\n{smallest_faults()}")


if __name__ == "__main__":
    main()
