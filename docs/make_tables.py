"""Writes the tables in docs/*.md that are made from code, between `<!-- table: NAME -->` and `<!-- end -->`.

python docs/make_tables.py          (make docs)
python docs/make_tables.py --check  exit code 1 if a table is not what the code says
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

os.environ["DITORCH_DISABLE_MOCK"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks and programs, which are not installed

from benchmarks import reported_faults
from programs import table as programs

import ditorch_cli
from ditorch import backends, settings
from ditorch.redirect import cuda
from ditorch.sim.faults.kinds import KINDS
from ditorch_cli import tool_options
from op_tools import settings as tool_settings

FOLDER = Path(__file__).parent


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def settings_table(of: ModuleType) -> str:
    def default(setting: Any) -> str:
        if setting is settings.CACHE:
            return "`~/.cache/ditorch`"
        if isinstance(setting.default, int) and setting.default >= 2**20:
            return f"`{setting.default / 2**30:g}GiB`" if setting.default % 2**20 == 0 else f"`{setting.default}`"
        if isinstance(setting.default, bool):
            return f"`{int(setting.default)}`" if setting.default else "–"
        return f"`{setting.default}`" if setting.default else "–"

    return table(
        ("variable", "default", "meaning"),
        ((f"`{setting.name}`", default(setting), setting.help) for setting in of.ALL),
    )


def faults_table() -> str:
    return table(
        ("kind", "what the kernel does wrong", "example", "`@share`"),
        (
            (f"`{kind.name}`", kind.help, f"`{kind.example}`", "yes" if kind.takes_share else "–")
            for kind in KINDS.values()
        ),
    )


def run_options_table() -> str:
    def variables(option: tool_options.Option) -> str:
        started = f"`OP_TOOLS={option.tool}`" if option.tool else ""
        return " ".join(filter(None, (started, f"`{option.variable}`" if option.variable else "")))

    rows = ((f"`{option.shown}`", variables(option), option.help) for option in tool_options.OPTIONS)
    return table(("option", "variable", "meaning"), rows)


def commands_table() -> str:
    return table(
        ("command", "what it does"),
        ((f"`ditorch {name}`", help) for name, (_, help) in ditorch_cli._COMMANDS.items()),
    )


TABLES: dict[str, Callable[[], str]] = {
    "backends": backends.table,
    "commands": commands_table,
    "cuda": cuda.table,
    "faults": faults_table,
    "programs": lambda: f"{programs.counts()}\n\n{table(programs.HEAD, programs.rows())}",
    "reported": lambda: table(("family", "kinds: tuned + held out", "reports"), reported_faults.families()),
    "run_options": run_options_table,
    "settings": lambda: settings_table(settings),
    "tool_settings": lambda: settings_table(tool_settings),
}


def filled(text: str) -> str:
    """The page with every table made anew."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- table: (\w+) -->)\n.*?(<!-- end -->)", fill, text, flags=re.DOTALL)


def stale_pages() -> list[Path]:
    return [page for page in sorted(FOLDER.glob("*.md")) if filled(page.read_text()) != page.read_text()]


def main() -> int:
    stale = stale_pages()
    if "--check" in sys.argv:
        for page in stale:
            print(f"{page.name} is not what the code says: run 'make docs'")
        return int(bool(stale))
    for page in stale:
        page.write_text(filled(page.read_text()))
        print(f"wrote {page.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
