"""The documentation: its tables are what the code says, its links lead somewhere, and nothing is left to fill in."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from ditorch_cli import _COMMANDS

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
ENGLISH = sorted((ROOT / "docs").glob("*.md"))
CHINESE = sorted((ROOT / "docs" / "zh").glob("*.md"))
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *ENGLISH, *CHINESE]

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


def anchors(page: Path) -> set[str]:
    """As the site makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    names = [re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", name).strip().lower()) for name in names}


@each_page
def test_every_anchor_is_there(page):
    links = re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", without_code(page.read_text(encoding="utf-8")))
    wanted = [(page.parent / target if target else page, anchor) for target, anchor in links if "://" not in target]
    assert [(str(target), anchor) for target, anchor in wanted if anchor not in anchors(target)] == []


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


def test_every_page_has_a_chinese_one():
    assert [page.name for page in CHINESE] == [page.name for page in ENGLISH]


def skeleton(page: Path) -> list[str]:
    """What a page and its translation share: levels of headings, code blocks, lists, rows of tables, pictures."""
    text = re.sub(
        r"^<!-- table: (\w+) -->.*?<!-- end -->$", r"made: \1", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M
    )
    text = re.sub(r"^```(\w*).*?^```$", r"block: \1", text, flags=re.DOTALL | re.MULTILINE)
    found = []
    for line in text.splitlines():
        kind = re.match(r"#+ |made: .*|block: .*|[-*] |\d+\. |!\[|\|", line)
        if kind:
            cells = re.split(r"(?<!\\)[|]", line)
            found.append(kind[0] + (f" {len(cells) - 2} cells" if kind[0] == "|" else ""))
    return found


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)
def test_the_translation_has_the_same_parts(page):
    assert skeleton(ROOT / "docs" / "zh" / page.name) == skeleton(page)


def figures(page: Path) -> Counter[str]:
    """Numbers of three digits and more, and those with a point, a comma or an exponent."""
    text = re.sub(r"\]\([^)]*\)", "]", without_code(page.read_text(encoding="utf-8")))
    return Counter(re.findall(r"\d+(?:[.,]\d+)+(?:e-?\d+)?|\d+e-?\d+|\d{3,}", text))


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)
def test_the_translation_has_the_same_figures(page):
    """What is measured anew is so in both."""
    assert figures(ROOT / "docs" / "zh" / page.name) == figures(page)


def in_nav(entries) -> list[str]:
    """The pages of a site, in their order."""
    found = []
    for entry in entries:
        [inner] = entry.values()
        found += [inner] if isinstance(inner, str) else in_nav(inner)
    return found


def test_the_site_shows_every_page_in_both_languages():
    yaml = pytest.importorskip("yaml")
    english, chinese = (
        in_nav(yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["nav"])
        for name in ("mkdocs.yml", "mkdocs.zh.yml")
    )
    assert sorted(english) == [page.name for page in ENGLISH]
    assert chinese == english


def test_lines_of_chinese_text_are_joined_without_a_space():
    """A browser shows a new line as a space, which Chinese has none of; code stays as it is."""
    pytest.importorskip("mkdocs")
    hooks = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))
    config = SimpleNamespace(docs_dir=str(ROOT / "docs" / "zh"))
    text = "设备在等\n什么，\n  见 `a.py`\n和 [b](b.md)。\n\n- 一\n- 二，\n  三\n\n```text\n甲\n乙\n```\n丙\n丁\n"
    joined = "设备在等什么，见 `a.py`\n和 [b](b.md)。\n\n- 一\n- 二，三\n\n```text\n甲\n乙\n```\n丙丁\n"
    assert hooks["on_page_markdown"](text, None, config, None) == joined


@pytest.mark.slow
@pytest.mark.parametrize("language", ["", ".zh"])
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(language, tmp_path):
    """mkdocs checks links and anchors once more, as it makes them."""
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    done = subprocess.run([*command, "--config-file", ROOT / f"mkdocs{language}.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("*.html"))
    assert len(pages) >= len(ENGLISH)
    loaded = [
        re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?(https?:[^\"' >]+)", page.read_text())
        for page in pages
    ]
    assert [address for addresses in loaded for address in addresses] == []
