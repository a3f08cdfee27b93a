"""One HTML file that needs nothing else: op x dtype, causes, every case that did not pass; searchable."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path

from ditorch_conformance import summary
from ditorch_conformance.causes import group, kind_of, reproducer
from ditorch_conformance.ops.recipe import DTYPES
from ditorch_conformance.results import PASSING, SKIPPED, Result, dtype_of
from ditorch_conformance.tables import Table

_ASSETS = Path(__file__).parent / "assets"
_MAX_MESSAGE = 300
_WIDE = frozenset({"message", "smallest reproducer", "case"})


class _Code(str):
    """A cell that is a command."""


def page(table: Table) -> str:
    """Everything that comes from results is escaped."""
    parts = [_head(table), _files(table), _causes(table), _on_cpu(table), _matrix(table), _cases(table)]
    body = "\n".join(part for part in parts if part)
    style, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(table.title)}: conformance</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>\n{style}</style></head><body>\n{body}\n"
        f"<div id='told' role='status'></div><script>\n{script}</script></body></html>\n"
    )


def _head(table: Table) -> str:
    options = "; ".join(f"{name}: {_plain(value)}" for name, value in table.options.items() if value)
    counted = Counter(result.status for result in table.results)
    told = [f"{counted[status]:,} {status}" for status in summary.statuses(table.results)]
    if table.never_run:
        told.append(f"{len(table.never_run):,} not reached")
    return (
        f"<h1>{escape(table.title)}</h1><p>{escape(', '.join(told))}</p><p class='muted'>{escape(options)}</p>"
        "<form onsubmit='return false'><input id='search' type='search' aria-label='search' "
        "placeholder='search ops, dtypes, cases, messages   ( / )'>"
        "<label><input id='failing' type='checkbox'> only what is not right</label></form>"
    )


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _grid(title: str, columns: list[str], rows: list[str], kind: str = "") -> str:
    if not rows:
        return ""
    head = "".join(f"<th scope='col'{_class(column)}>{escape(column)}</th>" for column in columns)
    return (
        f"<section><h2>{escape(title)} <small class='count muted'></small></h2>"
        f"<div class='grid {kind}' tabindex='0' role='region' aria-label='{escape(title)}'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(rows) + "</tbody></table></div></section>"
    )


def _class(column: str) -> str:
    return " class='wide'" if column in _WIDE else ""


def _row(*cells: object, is_right: bool = False) -> str:
    """The first cell is the row's name, unless it is a number."""
    shown = [f"<td class='number'>{cell:,}</td>" if isinstance(cell, int) else _text(cell) for cell in cells]
    if not isinstance(cells[0], int):
        shown[0] = f"<th scope='row'>{escape(str(cells[0]))}</th>"
    return f"<tr{' data-right' if is_right else ''}>{''.join(shown)}</tr>"


def _text(cell: object) -> str:
    shown = escape(str(cell))
    return f"<td><code>{shown}</code></td>" if isinstance(cell, _Code) else f"<td>{shown}</td>"


def _files(table: Table) -> str:
    statuses = summary.statuses(table.results)
    counts = summary.by_file(table.results)
    rows = [
        _row(file, *(counted[status] for status in statuses), is_right=not _failed(counted))
        for file, counted in sorted(counts.items())
    ]
    return _grid("Files", ["file", *statuses], rows)


def _failed(counted: Counter[str]) -> int:
    return sum(count for status, count in counted.items() if status not in (*PASSING, SKIPPED))


def _causes(table: Table) -> str:
    rows = [
        _row(
            cause.count,
            cause.kind,
            cause.raising,
            cause.message,
            ", ".join(cause.dtypes),
            _Code(reproducer(cause.smallest.case, table.options)),
        )
        for cause in group(table.results)
    ]
    return _grid("Causes", ["cases", "kind", "raising", "message", "dtypes", "smallest reproducer"], rows)


def _on_cpu(table: Table) -> str:
    rows = [_row(kernel, ", ".join(dtypes)) for kernel, dtypes in summary.falls_back(table.results).items()]
    return _grid("Kernels that compute on the CPU", ["kernel", "dtypes"], rows)


def _matrix(table: Table) -> str:
    found = summary.matrix(table.results)
    seen = {dtype for dtypes in found.values() for dtype in dtypes}
    columns = [dtype for dtype in DTYPES if dtype in seen] + sorted(seen.difference(DTYPES))
    figures = {(result.op, dtype_of(result.case)): _figures(result) for result in table.results if result.details}
    rows = []
    for op, dtypes in sorted(found.items()):
        cells = "".join(_cell(dtypes.get(dtype, Counter()), figures.get((op, dtype), "")) for dtype in columns)
        is_right = not any(map(_failed, dtypes.values()))
        rows.append(f"<tr{' data-right' if is_right else ''}><th scope='row'>{escape(op)}</th>{cells}</tr>")
    title = "Ops and dtypes" if table.options.get("kind") == "ops" else "Ops and dtypes: passed of run"
    return _grid(title, ["op", *columns], rows, "matrix")


def _cell(counted: Counter[str], figures: str) -> str:
    """How many of several cases passed; of a single one, as in the op matrix, its status."""
    run = sum(counted.values()) - counted[SKIPPED]
    if not run:
        return f"<td class='none'>{SKIPPED if counted else ''}</td>"
    passed = sum(counted[status] for status in PASSING)
    kind = "good" if passed == run else "bad" if passed == 0 else "part"
    failed = ", ".join(f"{count} {status}" for status, count in counted.items() if status not in (*PASSING, SKIPPED))
    shown = next(iter(counted)) if run == sum(counted.values()) == 1 else f"{passed}/{run}"
    told = f" title='{escape(figures or failed)}'" if figures or failed else ""
    return f"<td class='{kind}'{told}>{escape(shown)}</td>"


def _figures(result: Result) -> str:
    """What the op matrix has found and measured, for who points at a cell."""
    details = result.details
    told = (
        ("max_ulp", "off by up to {:g} ulp"),
        ("rmse_ratio", "{:g} times the CPU's error"),
        ("speedup", "{:g} times the CPU's speed"),
    )
    words = [_short(result.message)] if result.is_failing else []
    words += [text.format(details[key]) for key, text in told if isinstance(details.get(key), (int, float))]
    if details.get("deterministic") is False:
        words.append("other bits each time")
    return ", ".join([*words, *(f"falls back: {name}" for name in details.get("falls_back", ()))])


def _cases(table: Table) -> str:
    rows = [
        _row(result.case, result.status, kind_of(result), _short(result.message), result.where)
        for result in table.results
        if result.status not in (*PASSING, SKIPPED)
    ]
    return _grid("Cases that did not pass", ["case", "status", "kind", "message", "where"], rows)


def _short(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} …"
