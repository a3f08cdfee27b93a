"""The documentation: its tables are what the code says, its links lead somewhere, and nothing is left to fill in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ditorch_cli import _COMMANDS

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)


def test_the_tables_are_what_the_code_says():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/make_tables.py", "--check"], capture_output=True, text=True, timeout=240
    )
    assert (done.stdout, done.returncode) == ("", 0)


# data of one page, journals, figures and notes of processes that only ditorch itself reads
OWN_SCHEMAS = {
    "ditorch.histograms/1",
    "ditorch.rehearsal.process/1",
    "ditorch.report/1",
    "ditorch.stages/1",
    "ditorch.trials/1",
}


def test_every_schema_is_documented():
    """What `--json` prints and what lies in a run's folder has a version, and a page that tells its keys."""
    sources = (ROOT / "src").rglob("*.py")
    written = {name for file in sources for name in re.findall(r'"(ditorch\.[a-z.]+/\d+)"', file.read_text("utf-8"))}
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not {name for name in written - OWN_SCHEMAS if name not in pages}
    assert "ditorch.doctor/1" in written


@each_page
def test_every_table_has_rows_and_an_end(page):
    text = page.read_text(encoding="utf-8")
    marked = re.findall(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert len(marked) == text.count("<!-- table:") == text.count("<!-- end -->")
    for name, table in marked:
        assert table.count("\n|") >= 2, f"the table {name} has no rows"


@each_page
def test_every_link_to_a_file_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", without_code(page.read_text(encoding="utf-8")))
    files = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in files if not (page.parent / target).exists()] == []


@each_page
def test_nothing_is_left_to_fill_in(page):
    assert (
        re.findall(r"^[A-Z]+(?:_[A-Z]+)+$|\b(?:TODO|FIXME|TBD|XXX)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
        == []
    )


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_the_readme_is_short_and_names_every_command(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("\n") < 150
    assert [name for name in _COMMANDS if f"\nditorch {name} " not in text] == []
    assert "make demo" in text
    assert "make test" in text
