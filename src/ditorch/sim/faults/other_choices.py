"""Other choices where PyTorch leaves one: among equal values, in the order of results, in the signs of vectors."""

from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor

from ditorch.sim.faults.work import Results, Work


def _from_the_end(work: Work) -> Results | None:
    """Along a dimension: of equal values, the one that comes last is found first."""
    given = work.given
    x: Tensor = given["self"]
    if "dim" not in given or given.get("stable") or not x.dim() or not x.numel():
        return None
    dimension = given["dim"]
    values, places = work.run({"self": x.flip(dimension)})
    return [values, x.shape[dimension] - 1 - places]


def _topk(work: Work) -> Results | None:
    found = _from_the_end(work)
    if found is None or work.given["sorted"]:
        return found
    return [one.flip(work.given["dim"]) for one in found]


def _unique(work: Work) -> Results | None:
    """In the opposite order, if none was asked for."""
    values, inverse, counts = work.run({})
    if work.given["sorted"]:
        return None
    return [values.flip(0), values.numel() - 1 - inverse if inverse.numel() else inverse, counts.flip(0)]


def _scatter(work: Work) -> Results | None:
    """Where several numbers go to one place, another one stays."""
    given = work.given
    if not isinstance(given.get("src"), Tensor) or given.get("reduce") is not None or not given["index"].dim():
        return None
    dimension, index = given["dim"], given["index"]
    source = given["src"][tuple(slice(size) for size in index.shape)]
    return work.run({"index": index.flip(dimension), "src": source.flip(dimension)})


def _index_put(work: Work) -> Results | None:
    """The numbers come in the opposite order: another one stays, or sums have another order."""
    given = work.given
    indices, values = given["indices"], given["values"]
    if len(indices) != 1 or indices[0] is None or indices[0].dim() != 1 or indices[0].dtype is torch.bool:
        return None
    whole = values.expand(*indices[0].shape, *given["self"].shape[1:])
    return work.run({"indices": [indices[0].flip(0)], "values": whole.flip(0)})


def _max_pool(work: Work) -> Results | None:
    """The last of several equal numbers of a window; where windows fill the plane."""
    given = work.given
    x: Tensor = given["self"]
    kernel, stride, padding, dilation = (given[name] for name in ("kernel_size", "stride", "padding", "dilation"))
    for place, size in enumerate(x.shape[-2:]):
        step = (stride or kernel)[place % len(stride or kernel)]
        span = dilation[place % len(dilation)] * (kernel[place % len(kernel)] - 1) + 1
        if (size + 2 * padding[place % len(padding)] - span) % step:
            return None
    values, places = work.run({"self": x.flip((-2, -1))})
    return [values.flip((-2, -1)), (x.shape[-2] * x.shape[-1] - 1 - places).flip((-2, -1))]


def _other_signs(*turned: tuple[int, int]) -> Callable[[Work], Results | None]:
    """Every second vector points the other way: (number of the result, its dimension) for all that must go with it."""

    def make(work: Work) -> Results | None:
        made = work.run({})
        for number, dimension in turned:
            result = made[number]
            if not result.numel():
                continue
            signs = 1 - 2 * (torch.arange(result.shape[dimension], device=result.device) % 2)
            shape = [-1 if one == dimension % result.dim() else 1 for one in range(result.dim())]
            made[number] = result * signs.to(result.dtype).reshape(shape)
        return made

    return make


CHOICES: dict[str, Callable[[Work], Results | None]] = {
    **dict.fromkeys(("sort", "kthvalue", "mode", "median"), _from_the_end),
    "topk": _topk,
    "_unique2": _unique,
    "scatter": _scatter,
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "max_pool2d_with_indices": _max_pool,
    "_linalg_svd": _other_signs((0, -1), (2, -2)),
    "_linalg_eigh": _other_signs((1, -1)),
    "linalg_qr": _other_signs((0, -1), (1, -2)),
}
