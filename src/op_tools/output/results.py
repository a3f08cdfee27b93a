"""Results: what a tool has found, as data. Summaries, files and notebooks are made from it.

with op_tools.OpTimeMeasure() as tool:
    train()
for row in tool.results:
    print(row["op"], row["total"])
tool.results  # a table, in a notebook
tool.results.to_pandas()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, overload

from ditorch_shared.shares import percent

Row = dict[str, Any]
MAX_ROWS_SHOWN = 100  # in a notebook
# paths and reasons are long: they go on in the next line
_STYLE = (
    ".ditorch-results th, .ditorch-results td { text-align: left; vertical-align: top; padding: 2px 8px } "
    ".ditorch-results th { white-space: nowrap } .ditorch-results td { max-width: 26em; overflow-wrap: anywhere }"
)


class Results(Sequence[Row]):
    """A sequence of rows, each a dictionary with the same keys; what matters most comes first.

    `calls`: op calls that the tool has looked at. `not_looked_at`: rows with `what`, `calls`, `reason` and, where the
    fact `all_calls` is known, their `share` of these. `files`: what was written. `facts`: other figures of the run.
    """

    def __init__(
        self,
        tool: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        calls: int,
        not_looked_at: Iterable[tuple[str, int, str]] = (),
        files: Iterable[str] = (),
        **facts: Any,
    ) -> None:
        self.tool = tool
        self.columns = tuple(columns)
        self.calls = calls
        self.files = list(files)
        self.facts = facts
        self.not_looked_at: list[Row] = []
        self.add_not_looked_at(not_looked_at)
        self._rows: list[Row] = [dict(zip(self.columns, row)) for row in rows]

    def add_not_looked_at(self, rows: Iterable[tuple[str, int, str]]) -> None:
        whole = self.facts.get("all_calls")
        for what, count, reason in rows:
            share = {} if whole is None else {"share": count / whole if count else None}
            self.not_looked_at.append({"what": what, "calls": count, "reason": reason, **share})

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<results of {self.tool}: {len(self)} rows from {self.calls:,} calls>"

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "".join(_html_row(row, self.columns) for row in self._rows[:MAX_ROWS_SHOWN])
        more = f"<p>… and {len(self) - MAX_ROWS_SHOWN:,} more rows</p>" if len(self) > MAX_ROWS_SHOWN else ""
        left_alone = "".join(f"<li>{escape(text)}</li>" for text in map(_not_looked_at, self.not_looked_at))
        return (
            f"<p><b>{escape(self.tool)}</b>: {len(self):,} rows from {self.calls:,} calls</p>"
            f"<style>{_STYLE}</style><table class='ditorch-results'>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
            + (f"<p>Not looked at:</p><ul>{left_alone}</ul>" if left_alone else "")
        )

    def to_pandas(self) -> Any:
        """The rows as a DataFrame; pandas has to be installed."""
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]

        return pandas.DataFrame(self._rows, columns=list(self.columns))

    def as_dictionary(self, most_rows: int) -> dict[str, Any]:
        """For JSON. `left_out`: how many rows are not in it."""
        return {
            "tool": self.tool,
            "calls": self.calls,
            **self.facts,
            "rows": self._rows[:most_rows],
            "left_out": max(0, len(self) - most_rows),
            "not_looked_at": self.not_looked_at,
            "files": self.files,
        }


def _html_row(row: Row, columns: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(_cell(row[column]))}</td>' for column in columns)}</tr>"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _not_looked_at(row: Row) -> str:
    share = f" ({percent(row['share'])})" if row.get("share") else ""
    return f"{row['what']}, {row['calls']:,} calls{share}: {row['reason']}"


def finite(value: Any) -> Any:
    """For JSON, which has no infinity and no NaN: those are words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list) else value
