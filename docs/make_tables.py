"""Writes the tables in docs/*.md and docs/zh/*.md that are made from code.

They stand between `<!-- table: NAME -->` and `<!-- end -->`.

python docs/make_tables.py          (make docs)
python docs/make_tables.py --check  exit code 1 if a table is not what the code says
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

os.environ["DITORCH_DISABLE_MOCK"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks and programs, which are not installed

import click
from benchmarks import reported_faults
from programs import table as programs

import ditorch
import ditorch_cli
import op_tools
from ditorch import backends, errors, settings
from ditorch.redirect import cuda
from ditorch.sim.faults.kinds import KINDS
from ditorch_cli import tool_options
from op_tools import errors as tool_errors
from op_tools import settings as tool_settings
from op_tools.core.tool import Tool

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


def options_table() -> str:
    """Arguments and options of every command, in the order in which help lists them."""

    def rows(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from rows(found, *names, name)
            return
        given = [
            f"`{one.make_metavar(click.Context(command))}`" for one in command.params if isinstance(one, click.Argument)
        ]
        options = [f"`{'`, `'.join(one.opts)}`" for one in command.params if isinstance(one, click.Option)]
        said = " ".join((command.help or "").partition("\n\n")[0].split())
        yield f"`ditorch {' '.join(names)}`", " ".join(given) or "–", " ".join(options) or "–", said

    return table(("command", "arguments", "options", "what it does"), rows(ditorch_cli._group))


def api_table(of: ModuleType) -> str:
    """The public names of a package: how they are called, and the first sentence about them."""

    def row(name: str) -> tuple[str, ...]:
        found = getattr(of, name)
        if not callable(found):
            return f"`{name}`", repr(found)
        common = set(inspect.signature(Tool.__init__).parameters)
        given = [
            str(one)
            for one in inspect.signature(found).parameters.values()
            if not (inspect.isclass(found) and one.name in common)
        ]
        shown = ", ".join(re.sub(r": .*?(?= = |$)|(?<= = )<.*>", "…" if "<" in one else "", one) for one in given)
        said = (inspect.getdoc(found) or "").partition("\n")[0]
        return f"`{name}({shown})`", said

    return table(("name", "what it is"), map(row, sorted(of.__all__)))


def errors_table() -> str:
    rows = []
    for module in (errors, tool_errors):
        for name, kind in vars(module).items():
            if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == module.__name__:
                bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
                rows.append((f"`{module.__name__.partition('.')[0]}.errors.{name}`", bases, inspect.getdoc(kind) or ""))
    return table(("error", "is a", "when"), rows)


def schemas_table() -> str:
    """Every schema that the code writes, and the page that tells its keys."""
    sources = sorted((FOLDER.parent / "src").rglob("*.py"))
    written = {name for file in sources for name in re.findall(r'"(ditorch\.[a-z.]+/\d+)"', file.read_text("utf-8"))}
    pages = {
        page.name: page.read_text("utf-8") for page in sorted(FOLDER.glob("*.md")) if page.name != "file-formats.md"
    }
    found = {name: [page for page, text in pages.items() if name in text] for name in sorted(written)}
    told = ((f"`{name}`", ", ".join(f"[{page}]({page})" for page in where)) for name, where in found.items() if where)
    return table(("schema", "described in"), told)


TABLES: dict[str, Callable[[], str]] = {
    "api_ditorch": lambda: api_table(ditorch),
    "api_tools": lambda: api_table(op_tools),
    "backends": backends.table,
    "commands": commands_table,
    "cuda": cuda.table,
    "errors": errors_table,
    "faults": faults_table,
    "options": options_table,
    "programs": lambda: f"{programs.counts()}\n\n{table(programs.HEAD, programs.rows())}",
    "reported": lambda: table(
        ("family", "kinds: tuned + held out + fresh + latest + recent + sixth + seventh + eighth + ninth", "reports"),
        reported_faults.families(),
    ),
    "run_options": run_options_table,
    "schemas": schemas_table,
    "settings": lambda: settings_table(settings),
    "tool_settings": lambda: settings_table(tool_settings),
}


# the heads of tables, for the Chinese pages; what stands in them is the code's own, in English
CHINESE: dict[str, str] = json.loads((FOLDER / "zh" / "table_heads.json").read_text(encoding="utf-8"))


def _chinese_head(head: re.Match[str]) -> str:
    return f"| {' | '.join(CHINESE.get(title, title) for title in head[1].split(' | '))} |"


def filled(text: str, is_chinese: bool = False) -> str:
    """The page with every table made anew."""

    def fill(match: re.Match[str]) -> str:
        made = TABLES[match[2]]()
        if is_chinese:
            made = re.sub(r"(?m)^\| (.*) \|$(?=\n\| ---)", _chinese_head, made)
        return f"{match[1]}\n{made}\n{match[3]}"

    return re.sub(r"(<!-- table: (\w+) -->)\n.*?(<!-- end -->)", fill, text, flags=re.DOTALL)


def stale_pages() -> list[Path]:
    return [page for page in _pages() if _filled(page) != page.read_text(encoding="utf-8")]


def _pages() -> list[Path]:
    return [*sorted(FOLDER.glob("*.md")), *sorted((FOLDER / "zh").glob("*.md"))]


def _filled(page: Path) -> str:
    return filled(page.read_text(encoding="utf-8"), page.parent != FOLDER)


def main() -> int:
    stale = stale_pages()
    if "--check" in sys.argv:
        for page in stale:
            print(f"{page.relative_to(FOLDER)} is not what the code says: run 'make docs'")
        return int(bool(stale))
    for page in stale:
        page.write_text(_filled(page), encoding="utf-8")
        print(f"wrote {page.relative_to(FOLDER)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
