"""Compares what the layers of a model gave in two runs, and says where the second one goes wrong first."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from module_tools.recording import BACKWARD, DATA, EXPECTED, FORWARD, REAL, RUN_LAYERS
from op_tools import settings
from op_tools.errors import CaptureError
from op_tools.output import messages, tables
from op_tools.output.csv_files import CsvFile
from op_tools.output.results import Results, Row
from op_tools.storage import encoding
from op_tools.values import trees

COLUMNS = (
    "rank_of_run",
    "layer",
    "what",
    "allclose",
    "relative_error",
    "input_error",
    "cosine_similarity",
    "max_abs_diff",
    "max_relative_diff",
    "error_info",
)
SHOWN = tuple(column for column in COLUMNS if column not in ("rank_of_run", "max_relative_diff"))
# in each file: what came in, and what the layer made of it
PARTS = ((FORWARD, "input", ("output",)), (BACKWARD, "grad_output", ("grad_input", "grad_parameters")))
MAX_ROWS = 40  # that are shown, below verbosity 2
_WIDTH = 160  # of the table, where the terminal's is unknown


def compare_accuracy(data_dir: str | os.PathLike[str] = DATA, atol: float = 1e-3, rtol: float = 1e-3) -> Results:
    """Compares every layer that CompLayerAcc wrote in both runs; prints what is not close, and writes a CSV file.

    `atol` counts beside the size of a tensor where that is below 1, so that small gradients are compared as well; no
    dtype is asked for more than it has. A layer's `relative_error` is the size of the difference beside the size of the
    benchmark's tensor; `input_error` is that of what the layer was given. The layer to look at is the first that makes
    a large one out of a small one.
    """
    folder = Path(data_dir)
    ranks = sorted(int(match[1]) for path in folder.glob("rank*") if (match := re.fullmatch(r"rank(\d+)", path.name)))
    if not ranks:
        raise CaptureError(f"{folder} holds nothing that CompLayerAcc wrote: there is no folder rank0 in it")
    rows: list[Row] = []
    not_compared: list[tuple[str, int, str]] = []
    for rank in ranks:
        runs = (folder / f"rank{rank}" / EXPECTED, folder / f"rank{rank}" / REAL)
        rows += compared(runs, rank, not_compared, atol, rtol)
    results = saved("CompLayerAcc", folder / "layer_accuracy.csv", rows, not_compared)
    if settings.VERBOSE.get() >= 1:
        messages.say(_text(results, atol, rtol))
    return results


def saved(tool: str, path: Path, rows: list[Row], not_compared: list[tuple[str, int, str]]) -> Results:
    """Writes a table of all layers."""
    file = CsvFile(path, COLUMNS, settings.MAX_CACHE_SIZE.get())
    for row in rows:
        file.add([_cell(row[column]) for column in COLUMNS])
    file.close()
    written = [str(file.path)] if file.written else []
    cells = ([row[column] for column in COLUMNS] for row in rows)
    return Results(tool, COLUMNS, cells, len(rows), not_compared, written)


def compared(
    runs: tuple[Path, Path],
    rank: int,
    not_compared: list[tuple[str, int, str]],
    atol: float = 1e-3,
    rtol: float = 1e-3,
) -> Iterator[Row]:
    """A row for each tensor that layers gave, `runs`: what the benchmark's rank wrote, and what this one did."""
    layers = [_names(run / RUN_LAYERS) for run in runs]
    for run, missing in ((runs[0], layers[1].keys() - layers[0]), (runs[1], layers[0].keys() - layers[1])):
        for name in sorted(missing):
            not_compared.append((name, 1, f"it did not run in {run}"))
    for direction, given, made in PARTS:
        # gradients flow the other way
        order = [name for name in layers[0] if name in layers[1]]
        for name in order if direction == FORWARD else reversed(order):
            pair = [_loaded(run / direction / f"{name}.pt") for run in runs]
            if pair[0] is None or pair[1] is None:
                run = runs[0] if pair[0] is None else runs[1]
                not_compared.append((name, 1, f"there is no {direction} of it in {run}"))
                continue
            came_in = _worst(_differences(pair[0][given], pair[1][given], atol, rtol))
            for what, one, other in _parts(pair, given, made):
                for place, found in _differences(one, other, atol, rtol):
                    yield {
                        "rank_of_run": rank,
                        "layer": name,
                        "what": f"{what}{place}",
                        "input_error": came_in,
                        **found,
                    }


def _parts(pair: list[Any], given: str, made: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    """What of the benchmark is compared with what; where inputs were replaced, also with what would have come in."""
    for what in made:
        yield what, pair[0].get(what), pair[1].get(what)
    if "arrived" in pair[1]:
        before = (pair[0][given], pair[0].get("kwargs", {})) if given == "input" else pair[0][given]
        yield f"arrived {given}", before, pair[1]["arrived"]


def _names(path: Path) -> dict[str, None]:
    try:
        return dict.fromkeys(path.read_text(encoding="utf-8").split())
    except OSError as error:
        run = path.parent
        hint = "run the model with CompLayerAcc(model, is_dump_benchmark=%s)" % (run.name == EXPECTED)
        raise CaptureError(f"{run} holds no layers ({error.strerror}): {hint}") from None


def _loaded(path: Path) -> Any:
    try:
        return encoding.decode(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001  a damaged file can make torch.load raise anything
        raise CaptureError(f"{path} cannot be used: {messages.in_short(error)}") from None


def _differences(expected: Any, real: Any, atol: float, rtol: float) -> Iterator[tuple[str, dict[str, Any]]]:
    pairs = [list(_tensors(value)) for value in (expected, real)]
    if len(pairs[0]) != len(pairs[1]):
        counts = f"{len(pairs[1])} tensors instead of {len(pairs[0])}"
        yield "", _difference_of_kind(counts)
        return
    for (place, one), (_, other) in zip(*pairs):
        if one.shape != other.shape:
            yield place, _difference_of_kind(f"shape {tuple(other.shape)} instead of {tuple(one.shape)}")
        else:
            yield place, _difference(one, other, atol, rtol)


def _tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """With its place; a single one needs none."""
    found = [(place, each) for place, each in trees.leaves(value) if isinstance(each, Tensor)]
    return iter([("", found[0][1])] if len(found) == 1 and not isinstance(value, dict) else found)


def _difference_of_kind(why: str) -> dict[str, Any]:
    measures = dict.fromkeys(("relative_error", "cosine_similarity", "max_abs_diff", "max_relative_diff"), math.nan)
    return {"allclose": False, **measures, "error_info": why}


def _difference(expected: Tensor, real: Tensor, atol: float, rtol: float) -> dict[str, Any]:
    finest = 2 * torch.finfo(real.dtype).eps if real.is_floating_point() else 0.0
    expected, real = (_numbers(tensor) for tensor in (expected, real))
    finite = torch.nan_to_num(expected, 0.0, 0.0, 0.0)
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    is_close = torch.isclose(real, expected, max(rtol, finest), max(atol, finest) * min(1.0, size), equal_nan=True)
    # NaN and Inf at one place in both runs are no difference
    counted = expected.isfinite() & real.isfinite()
    lost = int((~counted & ~is_close).sum())
    expected, real = expected[counted], real[counted]
    error = (real - expected).abs()
    norm, error_norm = float(expected.norm()), float(error.norm())
    norms = norm * float(real.norm())
    has_values = bool(error.numel())
    return {
        "allclose": bool(is_close.all()),
        "relative_error": math.inf if lost else error_norm / norm if norm else float(error_norm > 0),
        "cosine_similarity": float(expected @ real) / norms if norms else float(error_norm == 0),
        "max_abs_diff": float(error.max()) if has_values else 0.0,
        "max_relative_diff": float((error / expected.abs().clamp_min(1e-300)).max()) if has_values else 0.0,
        "error_info": f"{lost} values are NaN or Inf in one run only" if lost else "",
    }


def _numbers(tensor: Tensor) -> Tensor:
    """Flat, in float64."""
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return (torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense).detach().double().flatten()


def _worst(differences: Iterator[tuple[str, dict[str, Any]]]) -> float:
    errors = [found["relative_error"] for _, found in differences]
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)


# ---- what is shown -------------------------------------------------------------------------------------------------


def _text(results: Results, atol: float, rtol: float) -> str:
    wrong = [row for row in results if not row["allclose"]]
    layers = {(row["rank_of_run"], row["layer"]) for row in results}
    bad = {(row["rank_of_run"], row["layer"]) for row in wrong}
    lines = [f"CompLayerAcc: {len(layers)} layers compared, {len(bad)} not close (atol {atol:g}, rtol {rtol:g})"]
    origin = next((row for row in wrong if row["input_error"] <= rtol), None)
    if origin is not None:
        of_rank = f" (rank {origin['rank_of_run']})" if len({rank for rank, _ in layers}) > 1 else ""
        lines.append(
            f"the first to look at: {origin['layer']}{of_rank}, {origin['what']} is off by "
            f"{origin['relative_error']:.2g} of its size, what came in by {origin['input_error']:.2g}"
        )
    shown = list(results) if settings.VERBOSE.get() == 2 else wrong[:MAX_ROWS]
    if shown:
        width = shutil.get_terminal_size((_WIDTH, 24)).columns
        lines.append(tables.fitted(SHOWN, [[_cell(row[column]) for column in SHOWN] for row in shown], width))
    if len(wrong) > len(shown):
        lines.append(f"and {len(wrong) - len(shown)} more")
    if results.not_looked_at:
        first = results.not_looked_at[0]
        lines.append(f"{len(results.not_looked_at)} not compared, such as {first['what']}: {first['reason']}")
    return "\n".join([*lines, *(f"{path} saved" for path in results.files)])


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
