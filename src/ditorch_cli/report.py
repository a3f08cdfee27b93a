"""`ditorch report RUN [RUN…]`: one HTML file that shows what the tools found; it needs no network and no server."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN]...", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="The file. Default: report.html in the first run."
)
@click.option("--open", "is_opened", is_flag=True, help="Show it in the browser.")
def command(runs: tuple[Path, ...], out: Path | None, is_opened: bool) -> None:
    """Write one HTML file about RUN: what is wrong, what is slow, and every op call.

    RUN is a folder of `ditorch run`, or one that the tools wrote. With two runs that have statistics
    (`--capture=statistics`) it also compares them. Results of `ditorch conformance`, and what `ditorch compare --json`
    printed into a file, become pages of the same file.
    """
    from ditorch_report import contents, page
    from ditorch_report.errors import ReportError

    try:
        found = contents.of(runs)
        # results of conformance have a report.html of their own
        path = out or Path(found.runs[0]["path"] if found.runs else "") / "report.html"
        size = page.write(found, path)
    except ReportError as error:
        print(f"ditorch report: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{path} written ({_in_words(size)})")
    if is_opened and not webbrowser.open(path.absolute().as_uri()):
        print("ditorch report: there is no browser here; copy the file to a machine that has one", file=sys.stderr)


def _in_words(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
