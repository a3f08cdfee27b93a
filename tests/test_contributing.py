"""CONTRIBUTING and how-it-works.md show the tree as it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOUSE = re.search(r"## The house\n\n```text\n(.*?)```", TEXT, re.DOTALL)[1]
FILE = re.compile(r"\b[\w/-]+\.(?:py|cpp|md)\b")


def places(house):
    """Each line's path, and the files that the line names beside it."""
    above: list[tuple[int, Path]] = []
    for line in house.splitlines():
        indent = len(line) - len(line.lstrip())
        above = [(depth, folder) for depth, folder in above if depth < indent]
        folder = above[-1][1] if above else ROOT
        first = line.split()[0].rstrip(",")
        place = folder / first
        yield place, [name for name in FILE.findall(line) if name != first], folder
        if first.endswith("/"):
            above.append((indent, place))


def test_what_the_house_shows_is_there():
    missing = [str(place.relative_to(ROOT)) for place, _, _ in places(HOUSE) if not place.exists()]
    assert missing == []


def test_files_that_are_named_beside_it_are_there():
    missing = []
    for place, names, folder in places(HOUSE):
        there = {path.name for path in (*folder.iterdir(), *(place.iterdir() if place.is_dir() else ()))}
        missing += [f"{name} in {place.name}" for name in names if name not in there]
    assert missing == []


def test_every_folder_of_op_tools_is_shown():
    shown = {place for place, _, _ in places(HOUSE)}
    source = ROOT / "src" / "op_tools"
    rooms = [path for path in source.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    modules = [path for path in source.glob("*.py") if path.name != "__init__.py"]
    assert [str(path.relative_to(ROOT)) for path in (*rooms, *modules) if path not in shown] == []


def test_the_five_questions_have_one_file_each():
    section = re.search(r"## Where to change what\n(.*?)\n## ", TEXT, re.DOTALL)[1]
    answers = re.findall(r"^\| \w.* \| `([^`]+)`", section, re.MULTILINE)
    assert len(answers) == len(set(answers)) == 5
    assert [answer for answer in answers if not (ROOT / "src" / "op_tools" / answer).is_file()] == []


def test_a_room_that_lists_its_files_lists_all_of_them():
    wrong = []
    for room in (ROOT / "src" / "op_tools").rglob("__init__.py"):
        listed = set(re.findall(r"\b\w+\.py\b", ast.get_docstring(ast.parse(room.read_text(encoding="utf-8"))) or ""))
        files = {path.name for path in room.parent.glob("*.py")} - {"__init__.py"}
        if len(listed) > 2 and listed != files:
            wrong.append(f"{room.relative_to(ROOT)}: {sorted(listed ^ files)}")
    assert wrong == []


def test_how_it_works_names_files_that_are_there():
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    section = re.search(r"## The way of one op call through the tools\n(.*?)\n## ", text, re.DOTALL)[1]
    named = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", section)
    source = ROOT / "src" / "op_tools"
    assert len(named) > 20
    assert [name for name in named if not (source / name).exists() and name != "src/op_tools"] == []


def test_the_folders_of_tests_are_those_of_src():
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / "src" / folder).is_dir()] == []
