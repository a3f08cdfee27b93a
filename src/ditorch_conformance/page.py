"""One HTML file that needs nothing else: op x dtype, causes, every case that did not pass; searchable."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from ditorch_conformance import summary
from ditorch_conformance.causes import group, kind_of, reproducer
from ditorch_conformance.ops.recipe import DTYPES
from ditorch_conformance.results import PASSING, SKIPPED, dtype_of
from ditorch_conformance.tables import Table

_MAX_MESSAGE = 300
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .6em;border:1px solid #ddd;text-align:left;vertical-align:top}
th{background:#f5f5f5;position:sticky;top:0}
.good{background:#d9f2d9}.part{background:#fdf1c7}.bad{background:#f8d0d0}.none{color:#999}
input{font:inherit;padding:.4em;width:30em}code{font-size:12px;overflow-wrap:anywhere}
"""
# rows are hidden and shown in place: the text of the page is there without a script, too
_SCRIPT = """
const search=document.getElementById("search");
search.addEventListener("input",()=>{const words=search.value.toLowerCase().split(/\\s+/).filter(Boolean);
for(const row of document.querySelectorAll("tbody tr")){const text=row.textContent.toLowerCase();
row.hidden=!words.every(word=>text.includes(word));}});
"""


def page(table: Table) -> str:
    """Everything that comes from results is escaped."""
    parts = [_head(table), _files(table), _causes(table), _matrix(table), _cases(table)]
    body = "\n".join(part for part in parts if part)
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(table.title)}: conformance</title>"
        f"<style>{_STYLE}</style></head><body>\n{body}\n<script>{_SCRIPT}</script></body></html>\n"
    )


def _head(table: Table) -> str:
    options = escape(json.dumps(table.options)) if table.options else ""
    return (
        f"<h1>{escape(table.title)}</h1><p><code>{options}</code></p>"
        "<p><input id='search' type='search' placeholder='search ops, dtypes, cases, messages' autofocus></p>"
    )


def _grid(title: str, columns: list[str], rows: list[str]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return (
        f"<h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(rows) + "</tbody></table>"
    )


def _row(*cells: object) -> str:
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _files(table: Table) -> str:
    statuses = summary.statuses(table.results)
    counts = summary.by_file(table.results)
    rows = [_row(file, *(counted[status] for status in statuses)) for file, counted in sorted(counts.items())]
    return _grid("Files", ["file", *statuses], rows)


def _causes(table: Table) -> str:
    rows = [
        _row(
            cause.count,
            cause.kind,
            cause.raising,
            cause.message,
            ", ".join(cause.dtypes),
            reproducer(cause.smallest.case, table.options),
        )
        for cause in group(table.results)
    ]
    return _grid("Causes", ["cases", "kind", "raising", "message", "dtypes", "smallest reproducer"], rows)


def _matrix(table: Table) -> str:
    found = summary.matrix(table.results)
    seen = {dtype for dtypes in found.values() for dtype in dtypes}
    columns = [dtype for dtype in DTYPES if dtype in seen] + sorted(seen.difference(DTYPES))
    figures = {(result.op, dtype_of(result.case)): _figures(result.details) for result in table.results}
    rows = []
    for op, dtypes in sorted(found.items()):
        cells = "".join(_cell(dtypes.get(dtype, {}), figures.get((op, dtype), "")) for dtype in columns)
        rows.append(f"<tr><td>{escape(op)}</td>{cells}</tr>")
    return _grid("Ops and dtypes: passed of run", ["op", *columns], rows)


def _cell(counted: dict[str, int], figures: str) -> str:
    """How many of several cases passed; of a single one, as in the op matrix, its status."""
    run = sum(count for status, count in counted.items() if status != SKIPPED)
    if not run:
        return "<td class='none'>–</td>"
    passed = sum(counted.get(status, 0) for status in PASSING)
    kind = "good" if passed == run else "bad" if passed == 0 else "part"
    failed = ", ".join(f"{count} {status}" for status, count in counted.items() if status not in (*PASSING, SKIPPED))
    shown = next(iter(counted)) if run == sum(counted.values()) == 1 else f"{passed}/{run}"
    return f"<td class='{kind}' title='{escape(figures or failed)}'>{escape(shown)}</td>"


def _figures(details: dict[str, Any]) -> str:
    """What the op matrix has measured, for who points at a cell."""
    told = (
        ("max_ulp", "off by up to {:g} ulp"),
        ("rmse_ratio", "{:g} times the CPU's error"),
        ("speedup", "{:g} times the CPU's speed"),
    )
    words = [text.format(details[key]) for key, text in told if isinstance(details.get(key), (int, float))]
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
