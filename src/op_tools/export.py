"""`ditorch export RUN`: the statistics of a run as one table, a row for each tensor, for pandas, Polars and DuckDB.

Rows are written as they are read: a run may be larger than memory.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable

from op_tools.errors import CaptureError
from op_tools.output.results import finite
from op_tools.storage import blocks, offsets, pack, store

STATISTICS = ("numel", "nan", "inf", "checksum", "min", "max", "mean", "std", "norm", "sketch")
COLUMNS = (
    "run", "step", "rank", "order", "module", "op", "occurrence", "part", "place", "shape", "dtype", *STATISTICS,
    "device", "requires_grad", "source", "forward_id", "host", "pid", "note", "data", "offset",
)  # fmt: skip
_ROWS_AT_ONCE = 20_000  # rows
Row = dict[str, Any]


def rows(run: Path, problems: list[str]) -> Iterator[Row]:
    """One for each tensor: COLUMNS. Of a damaged file, those before the damage, which is told in `problems`."""
    files = pack.read_statistics(run).files
    data = _captures(run) if run.is_dir() else {}
    for file in files:
        head = blocks.head(file)
        rank = head.get("rank", 0)
        occurrences = _Occurrences()
        for record in _records(file, problems):
            yield {
                "run": str(run),
                "rank": rank,
                "host": str(head.get("host", "")),
                "pid": head.get("pid", 0),
                "occurrence": occurrences.of(record),
                **_where(run, data, _process(head), record),
                **{name: getattr(record, name) for name in _OF_RECORD},
            }


def _records(file: Path, problems: list[str]) -> Iterator[pack.TensorRecord]:
    try:
        yield from pack.read(file)
        if blocks.is_cut_off(file):
            problems.append(blocks.cut_off(file))
    except CaptureError as error:
        problems.append(str(error))


_OF_RECORD = [name for name in COLUMNS if name not in ("run", "rank", "host", "pid", "occurrence", "data", "offset")]


class _Occurrences:
    """The how-manieth call of its op in its module and step a call is; of the last few steps."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[tuple[str, str], dict[int, int]]] = {}

    def of(self, record: pack.TensorRecord) -> int:
        calls = self._steps.setdefault(record.step, {}).setdefault((record.module, record.op), {})
        if len(self._steps) > 4:
            del self._steps[min(self._steps)]
        return calls.setdefault(record.forward_id, len(calls))


_Files = dict[tuple[tuple[str, ...], Any, str], str]


def _where(run: Path, data: _Files, process: tuple[str, ...], record: pack.TensorRecord) -> Row:
    """The file of the tensor in the run, and at which byte its elements begin; where it was captured."""
    file = data.get((process, record.forward_id, record.part), "")
    return {"data": file, "offset": _offsets(str(run / file), record.part).get(record.place) if file else None}


@lru_cache(8)
def _offsets(file: str, part: str) -> dict[str, int]:
    return offsets.of(Path(file), part)


def _process(note: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(note.get(name)) for name in ("host", "rank", "pid"))


def _captures(run: Path) -> _Files:
    """The files of captured tensors, by process, call and part."""
    found = {}
    for folder in store.find_captures(run):
        note = store.load_note(folder) or {}
        for part in ("input", "output", "grad_inputs", "grad_outputs"):
            file = folder / f"{part}.pth"
            if file.exists():
                found[_process(note), note.get("forward_id"), part] = os.path.relpath(file, run)
    return found


# ---- formats -------------------------------------------------------------------------------------------------------


def export(run: Path, form: str, out: Path) -> tuple[int, list[str]]:
    """Writes the table; how many rows it has, and which files are not whole. The file appears whole."""
    temporary = out.with_name(f"{out.name}.tmp")
    problems: list[str] = []
    try:
        count = WRITERS[form](rows(run, problems), temporary)
        if not count:
            nothing = f"{run} holds no statistics of any tensor: nothing is written"
            raise CaptureError("; ".join([*problems, nothing]))
        temporary.replace(out)
    except OSError as error:
        raise CaptureError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return count, problems


def _write_csv(table: Iterable[Row], path: Path) -> int:
    count = 0
    with open(path, "w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for count, row in enumerate(table, 1):  # noqa: B007  the last one counts
            row["shape"], row["sketch"] = (
                "x".join(map(str, row["shape"])),
                " ".join(f"{one:.9g}" for one in row["sketch"]),
            )
            writer.writerow([row[name] for name in COLUMNS])
    return count


def _write_jsonl(table: Iterable[Row], path: Path) -> int:
    count = 0
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        for count, row in enumerate(table, 1):  # noqa: B007
            file.write(json.dumps(finite({name: row[name] for name in COLUMNS}), ensure_ascii=False) + "\n")
    return count


def _write_parquet(table: Iterable[Row], path: Path) -> int:
    try:
        import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise CaptureError(
            "Parquet needs pyarrow, which is not installed: pip install 'ditorch[offline]', or --to csv or jsonl"
        ) from None
    types: dict[str, Any] = dict.fromkeys(COLUMNS, pyarrow.string())
    integers = ("step", "rank", "order", "occurrence", "numel", "nan", "inf", "forward_id", "pid", "offset")
    types.update(dict.fromkeys(integers, pyarrow.int64()), checksum=pyarrow.uint64(), requires_grad=pyarrow.bool_())
    types.update(dict.fromkeys(("min", "max", "mean", "std", "norm"), pyarrow.float64()))
    types.update(shape=pyarrow.list_(pyarrow.int64()), sketch=pyarrow.list_(pyarrow.float32()))
    schema = pyarrow.schema([(name, types[name]) for name in COLUMNS])
    count, waiting = 0, []
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for row in table:
            waiting.append(row)
            if len(waiting) >= _ROWS_AT_ONCE:
                writer.write_table(pyarrow.Table.from_pylist(waiting, schema))
                count += len(waiting)
                waiting.clear()
        if waiting:
            writer.write_table(pyarrow.Table.from_pylist(waiting, schema))
    return count + len(waiting)


WRITERS: dict[str, Callable[[Iterable[Row], Path], int]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}
