"""How well the sketch of a tensor sees a change, which shards of it add up, and what a digest costs on a device.

python benchmarks/sketches.py                     two tables: distance told over true distance, and shards
python benchmarks/sketches.py --device cuda       the cost of the kernel on this device, and that it says the same
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from op_tools.compare_runs.calls import Kind, Numbers, Seen
from op_tools.compare_runs.distance import distance
from op_tools.compare_runs.shards import Shard, whole
from op_tools.device import digest, digests
from op_tools.device.tensor_groups import grouped
from op_tools.output.writer import Writer

SHAPES = ((512, 1024), (16384, 64), (64, 64), (8, 32))
SEEDS = 10


def numbers(tensor: Tensor) -> Numbers:
    """As a file of statistics has them, in double precision."""
    line = digest.lines(*digest.digested(tensor.double().reshape(1, -1), tensor.shape))[0]
    counts, columns = line[:4].tolist(), line[4:].view(torch.float64).tolist()
    return (*counts, *columns[:5], *(number / (columns[4] or 1.0) for number in columns[5:]))


def seen(found: Numbers, shape: tuple[int, ...]) -> Seen:
    return Seen.of(Kind({"part": "output", "place": "", "shape": shape, "dtype": "float32"}), found)


def changes(x: Tensor, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    rows, columns = x.shape

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=x.dtype)

    yield "noise 1 %", x * (1 + 0.01 * random(rows, columns))
    yield "factor 1.001", x * 1.001
    yield "channels rolled by 1", x.roll(1, 1)
    order = torch.arange(columns)
    order[[3, 5]] = order[[5, 3]]
    yield "two channels swapped", x[:, order]
    yield "one stale row", x.index_copy(0, torch.tensor([rows // 3]), x[rows // 3 - 1 : rows // 3])
    yield (
        "one element",
        x + torch.zeros_like(x).index_put_((torch.tensor(rows // 2), torch.tensor(3)), torch.ones((), dtype=x.dtype)),
    )
    yield "constant added", x + 0.01
    yield "ramp over rows", x + 0.01 * torch.arange(rows)[:, None] / rows
    yield "ramp over columns", x + 0.01 * torch.arange(columns) / columns
    yield "same vector in each row", x + 0.01 * random(columns)
    yield "constant per row", x + 0.01 * random(rows, 1)
    yield "every 8th channel", x + 0.01 * (torch.arange(columns) % 8 == 3)
    yield (
        "tail of zeros",
        torch.cat([x[: rows - max(rows // 8, 1)], torch.zeros(max(rows // 8, 1), columns, dtype=x.dtype)]),
    )
    yield "signs of 2 % flipped", torch.where(torch.rand(x.shape, generator=generator) < 0.02, -x, x)
    if rows == columns:
        yield "transposed", x.T.contiguous()


def sensitivity() -> None:
    ratios: dict[str, dict[tuple[int, ...], list[float]]] = {}
    for shape in SHAPES:
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, y in changes(x, generator):
                told = distance(seen(numbers(x), shape), seen(numbers(y), shape))
                assert told is not None
                true = float((x - y).norm()) / max(float(x.norm()), float(y.norm()))
                ratios.setdefault(name, {}).setdefault(shape, []).append(told.told / true)
    print(
        "| change |"
        + "".join(f" {rows} x {columns} |" for rows, columns in SHAPES)
        + "\n| --- |"
        + " --- |" * len(SHAPES)
    )
    for name, by_shape in ratios.items():
        cells = [by_shape.get(shape, []) for shape in SHAPES]
        print(f"| {name} |" + "".join(f" {min(cell):.2g} … {max(cell):.2g} |" if cell else " |" for cell in cells))


def shards() -> None:
    print("\n| tensor | cut along | at | off by | numbers not known |\n| --- | --- | --- | --- | --- |")
    for shape, dimension, cuts in (
        ((512, 1024), 0, (0, 200, 512)),
        ((512, 1024), 1, (0, 256, 512, 1024)),
        ((512, 1024), 1, (0, 341, 1024)),
        ((4, 64, 48), 1, (0, 20, 64)),
        ((4, 8, 24, 16), 1, (0, 1, 3, 8)),
        ((8, 64, 48), 0, (0, 3, 8)),
    ):
        x = torch.randn(shape, dtype=torch.float64)
        parts = []
        for begin, end in zip(cuts, cuts[1:]):
            part = x.narrow(dimension, begin, end - begin)
            start = tuple(begin if at == dimension else 0 for at in range(len(shape)))
            parts.append(Shard(numbers(part), tuple(part.shape), start))
        found, right = whole(parts, shape), numbers(x)
        off = max(abs(one - other) for one, other in zip(found[4:], right[4:]) if one == one)
        print(f"| {shape} | {dimension} | {cuts[1:-1]} | {off:.0e} | {sum(one != one for one in found)} |")


def cost(device: torch.device) -> None:
    assert digests.can_digest(device), "there is no kernel for this device"
    print(f"\n{device}: agrees with torch on {len(digests._samples())} tensors")
    print("| tensor | µs | GB/s |\n| --- | --- | --- |")
    writer = Writer("sketches")
    stage = digests.DigestStage(device, writer, lambda labels, lines: None)
    for shape in ((64,), (64, 64), (32, 768), (1024, 1024), (4096, 4096), (16384, 64), (8, 12, 512, 512), (50257, 768)):
        for dtype in (torch.float32, torch.bfloat16):
            tensors = [torch.randn(shape, device=device).to(dtype)]
            (group,) = grouped(tensors, [0])
            times = []
            for _ in range(6):
                _wait(device)
                began = time.perf_counter()
                for _ in range(20):
                    stage.add(tensors, group, None)
                _wait(device)
                times.append((time.perf_counter() - began) / 20)
            size = math.prod(shape) * dtype.itemsize
            print(f"| {shape} {dtype} | {min(times) * 1e6:.1f} | {size / min(times) / 1e9:.0f} |", flush=True)
    stage.flush()
    writer.close()


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="measure the kernel there")
    options = parser.parse_args()
    if options.device:
        index = 0 if options.device == "cuda" else None
        cost(torch.device(options.device, index) if index is not None else torch.device(options.device))
    else:
        torch.manual_seed(0)
        sensitivity()
        shards()


if __name__ == "__main__":
    main()
