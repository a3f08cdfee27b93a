"""What `ditorch conformance` prints: a summary, a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ditorch_conformance import summary
from ditorch_conformance.causes import group, reproducer
from ditorch_conformance.diff import Change, Difference
from ditorch_conformance.known import Known
from ditorch_conformance.ops import recipe as op_matrix
from ditorch_conformance.results import Result
from ditorch_conformance.tables import Table

_MAX_ROWS = 20
_MAX_OPS = 8
_MAX_WIDTH = 400


def show_summary(table: Table, baseline: Table | None, known: Known) -> None:
    console = Console(highlight=False, soft_wrap=True)
    results = table.results
    files, dtypes = summary.by_file(results), summary.by_dtype(results)
    if set(files) != {op_matrix.FILE}:  # the op matrix is no file
        _show_counts(console, "file", files, results)
    if len(dtypes) > 1 or set(files) == {op_matrix.FILE}:
        _show_counts(console, "dtype", dtypes, results)
    worst = summary.failing_most(summary.by_op(results))
    if worst:
        told = ", ".join(f"{name} {count}" for name, count in worst[:_MAX_OPS])
        console.print(f"Ops with most failures: {escape(told)}{', …' if len(worst) > _MAX_OPS else ''}")
    on_cpu = summary.falls_back(results)
    if on_cpu:
        told = ", ".join(f"{kernel} ({', '.join(dtypes)})" for kernel, dtypes in [*on_cpu.items()][:_MAX_OPS])
        more = f", and {len(on_cpu) - _MAX_OPS:,} more: --json has all" if len(on_cpu) > _MAX_OPS else ""
        console.print(f"Kernels that compute on the CPU: {escape(told)}{more}")
    if table.without_cases:
        console.print(f"No case for this device, or that was asked for: {escape(', '.join(table.without_cases))}")
    if table.never_run:
        console.print(f"{len(table.never_run):,} cases were not reached; the same command runs them.")
    if baseline is not None:
        agreed = summary.agreement(table.results, baseline.results, known)
        told = (
            f"; without {agreed.known:,} known failures {100 * agreed.share_without_known:.2f} %"
            if agreed.known
            else ""
        )
        console.print(
            f"Of {agreed.run:,} cases that pass in {escape(baseline.title)} and run here, {agreed.passed:,} pass "
            f"({100 * agreed.share:.2f} %{told})."
        )
    _show_causes(table, console)
    _show_known(table, known, console)


def _show_counts(console: Console, what: str, rows: dict[str, Counter[str]], results: Sequence[Result]) -> None:
    statuses = summary.statuses(results)
    grid = Grid(what, *statuses, box=box.SIMPLE_HEAD, pad_edge=False)
    for name, counted in sorted(rows.items()):
        grid.add_row(escape(name), *(f"{counted[status]:,}" for status in statuses))
    if len(rows) > 1:
        whole = sum(rows.values(), Counter())
        grid.add_row("all", *(f"{whole[status]:,}" for status in statuses))
    # as wide as its names: two files may differ at their ends only
    wanted = console.measure(grid, options=console.options.update(width=_MAX_WIDTH)).maximum
    before, console.width = console.width, max(console.width, wanted)
    console.print(grid)
    console.width = before


def _show_causes(table: Table, console: Console) -> None:
    causes = group(table.results)
    if not causes:
        return
    console.print(f"\n[bold]Failures: {sum(cause.count for cause in causes):,}, by cause: {len(causes):,}[/]")
    for cause in causes[:_MAX_ROWS]:
        dtypes = ", ".join(cause.dtypes)
        console.print(f"{cause.count:6,}  {cause.kind}  [bold]{escape(cause.raising)}[/]  {escape(cause.message)}")
        console.print(
            f"        {escape(reproducer(cause.smallest.case, table.options))}{'  (' + dtypes + ')' if dtypes else ''}"
        )
    if len(causes) > _MAX_ROWS:
        console.print(f"        … and {len(causes) - _MAX_ROWS:,} more; report.html and --json have all")


def _show_known(table: Table, known: Known, console: Console) -> None:
    if not known.patterns:
        return
    news, mended = known.news(table.results), known.mended(table.results)
    console.print(f"\n{len(news):,} failures are not among the known ones.")
    for result in news[:_MAX_ROWS]:
        console.print(f"  new     {escape(str(result.case))}")
    for pattern in mended[:_MAX_ROWS]:
        console.print(f"  mended  {escape(pattern.text)}")
    for pattern in summary.unmatched(table, known)[:_MAX_ROWS]:
        console.print(f"  no such case  {escape(pattern.text)}")


def show_difference(found: Difference) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{found.same:,} cases are the same, {len(found.gained):,} gained, {len(found.lost):,} lost, "
        f"{len(found.other):,} otherwise changed; {len(found.only_before):,} are only in the first, "
        f"{len(found.only_after):,} only in the second."
    )
    if not (found.same or found.gained or found.lost or found.other):
        console.print("They have no case in common: other test files, or one of them ran only the classes for the CPU.")
    _show_changes("gained", found.gained, console)
    _show_changes("lost", found.lost, console)


def _show_changes(word: str, changes: Sequence[Change], console: Console) -> None:
    if not changes:
        return
    dtypes = ", ".join(f"{dtype} {count:,}" for dtype, count in Difference.by_dtype(changes).items())
    console.print(f"\n[bold]{word}[/] by dtype: {dtypes}")
    for change in changes[:_MAX_ROWS]:
        console.print(f"  {escape(str(change.case))}: {change.before.status} -> {change.after.status}")
    if len(changes) > _MAX_ROWS:
        console.print(f"  … and {len(changes) - _MAX_ROWS:,} more; --json has all")
