"""Code blocks of the documentation: each says what it is, and what shows output is run and compared with it.

CONTRIBUTING.md tells how they are written, docs/run_blocks.py runs them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import run_blocks  # noqa: E402

READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages whose programs run in every test; the others' do in `make test-all`, as all commands do.
QUICK = {"README.md", "simulator.md"}
WITH_PROGRAMS = [page for page in PAGES[:1] + PAGES[2:] if run_blocks.programs(page.read_text(encoding="utf-8"))]
WITH_COMMANDS = [page for page in PAGES[:1] + PAGES[2:] if run_blocks.commands(page.read_text(encoding="utf-8"))]
WORDS = {"console", "python", "output", "sh", "bash", "toml", "text"}


def name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_code_block_says_what_it_is(page):
    text = page.read_text(encoding="utf-8")
    words = [word for word, _ in run_blocks.blocks(text)]
    assert set(words) <= WORDS
    assert len(words) * 2 == len(re.findall(r"^```", text, re.MULTILINE))
    assert all(before == "python" for before, word in zip(["", *words], words) if word == "output")
    for word, block in run_blocks.blocks(text):
        if word == "python":
            compile(block["text"], str(page), "exec")
        if word == "console":
            assert block["text"].startswith("$ ")


def without_comments(text):
    return re.sub(r" +# .*|(?<=\S) {2,}\S.*", "", text)


PAIRS = [tuple(READMES), *((page, page.parent / "zh" / page.name) for page in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].name)
def test_the_chinese_page_has_the_same_blocks(pair):
    """Comments and descriptions are translated; programs, commands and what they print are not: those run once."""
    english, chinese = (run_blocks.blocks(page.read_text(encoding="utf-8")) for page in pair)
    assert [word for word, _ in english] == [word for word, _ in chinese]
    for (word, block), (_, translated) in zip(english, chinese):
        if word in ("console", "output"):
            assert block["text"] == translated["text"]
        else:
            assert without_comments(block["text"]) == without_comments(translated["text"])


def ran(page, what):
    command = [sys.executable, ROOT / "docs/run_blocks.py", "--only", what, page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page.name in QUICK else pytest.mark.slow)
        for page in WITH_PROGRAMS
        if page != READMES[1]
    ],
    ids=name,
)
def test_programs_print_what_the_page_says(page):
    assert ran(page, "programs") == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands_print_what_the_page_says(page):
    """docs/quickstart.md is the walk of a new user: each of its commands prints one page at most."""
    assert ran(page, "commands") == ""


SAYS = "step 5  loss 3.0  pid 12\n1 call, 1,234 values of 2.5e-07 in runs/a-2026-01-02-03-04-05/8\n"


@pytest.mark.parametrize(
    ("printed", "is_right"),
    [
        (SAYS, True),
        ("step   5  loss 17.25  pid 45678\n1 call, 99,999,999 values of 7.0 in runs/a-2025-09-08-07-06-05_2/8\n", True),
        (SAYS.replace("step 5", "step 6"), False),
        (SAYS.replace("1 call", "2 call"), False),
        (SAYS.replace("runs/a-", "runs/b-"), False),
        (SAYS.replace("3.0", "nan"), False),
        (SAYS + "one line more\n", False),
        ("", False),
    ],
)
def test_what_may_vary_and_what_may_not(printed, is_right):
    assert run_blocks.is_as_said(run_blocks.Step("", SAYS, 0, 0, printed)) == is_right


@pytest.mark.parametrize(
    ("expected", "is_right"),
    [
        ("a\n…\nd\n", True),
        ("…\nb\nc\n…\n", True),
        ("a\nb\nc\nd\n…\n", True),
        ("a\n…\nb\nd\n", False),
        ("…\nx\n…\n", False),
        ("a\nb\nc\n…\nc\nd\n", False),
        ("…\nc\n…\nb\n…\n", False),
    ],
)
def test_lines_that_are_left_out(expected, is_right):
    assert run_blocks.is_as_said(run_blocks.Step("", expected, 0, 0, "a\nb\nc\nd\n")) == is_right


def test_commands_of_a_page_run_in_one_shell(tmp_path):
    page = "```console\n$ export A=5\n$ echo $A \\\n  and more\n5 and more\n$ ls\ntrain.py\n```\n```sh\n$ false\n```\n"
    steps = run_blocks.commands(page)
    run_blocks.run_commands(steps)
    assert [(step.expected, step.got) for step in steps] == [("", ""), ("5 and more\n",) * 2, ("train.py\n",) * 2]
