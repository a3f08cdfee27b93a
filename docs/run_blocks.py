"""Runs the code blocks of pages that show output, and says where a page is not true.

python docs/run_blocks.py README.md docs/quickstart.md     the exit code is 1 where they print something else
python docs/run_blocks.py --write docs/quickstart.md       … and puts what they print into the page

CONTRIBUTING.md tells how blocks are written. A page's console blocks run one after the other in one shell, in a fresh
folder with examples/train_gpt.py in it as train.py; each program (a python block with an output block behind it) runs
on its own.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 100  # columns of the terminal
LEFT_OUT = "…"  # alone in its line: any lines
LONGEST = 40  # lines that a command of docs/quickstart.md may print
_BLOCK = re.compile(r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_END = "\x1e"  # what the shell prints behind each command
# Whole numbers are compared. What may vary is not, and how wide it makes a column: dates, processes, times, and numbers
# with a point, a comma or an exponent, versions among them.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d(_\d+)?"
    r"|(?<=pid)[ ]?\d+|(?<=/)\d+(?=/)"
    r"|\d+:\d\d:\d\d"
    r"|-?\d[\d,]*([.,]\d+)+(e[+-]?\d+)?(\+\w+)?|-?\d+e[+-]?\d+"
)


@dataclass
class Step:
    """A command or a program, what the page says that it prints, and where in the page that stands."""

    source: str
    expected: str
    begin: int
    end: int
    got: str = ""


def blocks(text: str) -> list[tuple[str, re.Match[str]]]:
    return [(block["language"], block) for block in _BLOCK.finditer(text)]


def commands(text: str) -> list[Step]:
    """Of the console blocks: `$ ` begins a command, which goes on in the next line after a backslash."""
    steps = []
    for language, block in blocks(text):
        if language == "console":
            for found in re.finditer(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block["text"], re.MULTILINE):
                begin, end = (block.start("text") + place for place in found.span(2))
                steps.append(Step(found[1], found[2], begin, end))
    return steps


def programs(text: str) -> list[Step]:
    """Of the python blocks: those with an output block behind them."""
    found = blocks(text)
    return [
        Step(program["text"], output["text"], output.start("text"), output.end("text"))
        for (language, program), (following, output) in zip(found, found[1:])
        if (language, following) == ("python", "output")
    ]


def run_commands(steps: list[Step]) -> None:
    script = "".join(f"{step.source}printf '{_END}'\n" for step in steps)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "examples/train_gpt.py", Path(folder) / "train.py")
        printed = _run(["bash", "-c", script], Path(folder)).split(_END)
    assert len(printed) == len(steps) + 1, f"the shell ended early:\n{printed[-1]}"
    for step, text in zip(steps, printed):
        step.got = text


def run_programs(steps: list[Step]) -> None:
    for step in steps:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.py"
            path.write_text(step.source, encoding="utf-8")
            step.got = _run([sys.executable, str(path)], path.parent)


def _run(command: list[str], folder: Path) -> str:
    """What it prints on both of its streams, in the order in which it does."""
    own = ("OP_", "DITORCH_", "AUTOCOMPARE_", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment.update(
        PATH=os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"])),
        PYTHONPATH=str(ROOT / "src"),
        PYTHONUNBUFFERED="1",
        COLUMNS=str(WIDTH),
        DITORCH_BACKEND="sim",  # whatever the machine has
        DITORCH_CACHE=os.environ.get("DITORCH_CACHE", ""),
    )
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800
    )
    text = done.stdout.decode("utf-8")
    for path in (folder, folder.resolve(), ROOT / "src"):
        text = text.replace(f"{path}/", f"{LEFT_OUT}/")
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def compared(text: str) -> list[str]:
    """The lines without what may vary."""
    lines = _VARYING.sub("#", text).splitlines()
    return [re.sub(r"([─━-])\1+", r"\1", " ".join(line.split())) for line in lines]


def is_as_said(step: Step) -> bool:
    got, parts = compared(step.got), [[]]
    for line in compared(step.expected):
        if line == LEFT_OUT:
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) == 1:
        return got == parts[0]
    first, *middle, last = parts
    if got[: len(first)] != first or (last and got[-len(last) :] != last):
        return False
    place, end = len(first), len(got) - len(last)
    for part in middle:
        found = (at for at in range(place, end - len(part) + 1) if got[at : at + len(part)] == part)
        place = next(found, -1) + len(part)
        if place < len(part):
            return False
    return place <= end


def differences(page: Path, steps: list[Step]) -> Iterator[str]:
    for step in steps:
        if not is_as_said(step):
            yield f"{page}: what this prints is not what the page says:\n  {step.source.rstrip()}\n"
            lines = difflib.unified_diff(
                step.expected.splitlines(), step.got.splitlines(), "page", "printed", "", "", 1
            )
            yield "".join(f"  {line.rstrip()}\n" for line in lines)
        if page.name == "quickstart.md" and step.got.count("\n") > LONGEST:
            yield f"{page}: more than {LONGEST} lines are no page:\n  {step.source}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--only", choices=("commands", "programs"), help="the console blocks, or the python blocks")
    parser.add_argument("--write", action="store_true", help="put what they print into the page")
    options = parser.parse_args()
    status = 0
    for page in options.pages:
        text = page.read_text(encoding="utf-8")
        in_shell = [] if options.only == "programs" else commands(text)
        alone = [] if options.only == "commands" else programs(text)
        if in_shell:
            run_commands(in_shell)
        run_programs(alone)
        steps = sorted((*in_shell, *alone), key=lambda step: step.begin)
        for difference in differences(page, steps):
            status = 1
            print(difference, end="")
        if options.write:
            for step in reversed(steps):
                text = text if is_as_said(step) else text[: step.begin] + step.got + text[step.end :]
            page.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
