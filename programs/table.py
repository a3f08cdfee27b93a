"""The table of docs/programs.md: what is in the catalogue, and what came of it where it was run last."""

from __future__ import annotations

import json
from typing import Any

from .catalogue import ALL
from .record import HERE, Program

RESULTS = HERE / "results"
HEAD = ("program", "version", "what is run", "command", "sim", "H200")


def rows() -> list[tuple[str, ...]]:
    sim, h200 = _results("sim"), _results("h200")
    return [
        (
            _name(program),
            f"`{program.commit}`" if program.repository else str(sim.get(program.name, {}).get("version", "")),
            program.what,
            f"`{_command(program)}`",
            _in_words(sim.get(program.name), program),
            _with_version(h200.get(program.name), sim.get(program.name), program),
        )
        for program in ALL
    ]


def counts() -> str:
    """How many there are and how many pass, for the text above the table."""
    passed = [result for result in _results("sim").values() if result["status"] == "passed"]
    equal = sum(result["difference"] == 0 and not result["message"] for result in passed)
    return (
        f"{len(ALL)} programs; on sim {len(passed)} pass, {equal} of them with every printed number equal to the CPU's."
    )


def _results(device: str) -> dict[str, dict[str, Any]]:
    file = RESULTS / f"{device}.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())["programs"] if file.exists() else {}
    return found


def _name(program: Program) -> str:
    if not program.repository:
        return program.name
    return f"[{program.name}](https://github.com/{program.repository})"


def _command(program: Program) -> str:
    """As it is typed with ditorch in the checkout, or in programs/libraries."""
    command = program.command.format(device="cuda", libraries="…/programs/libraries")
    command = command.replace("python ", "ditorch run ", 1) if "torchrun " not in command else command
    if "torchrun " in command:
        options, separator, script = command.partition("nproc_per_node=")
        ranks, _, script = script.partition(" ")
        command = f"{options}{separator}{ranks} -m ditorch run {script}"
    folder = f"cd {program.folder}; " if program.folder != "." else ""
    return folder + command


def _with_version(result: dict[str, Any] | None, other: dict[str, Any] | None, program: Program) -> str:
    """What came of it, with the library's version where it is not the one of the table."""
    words = _in_words(result, program)
    if words == "–" or result is None or program.repository or (other and other["version"] == result["version"]):
        return words
    return f"{result['version']}: {words}"


def _in_words(result: dict[str, Any] | None, program: Program) -> str:
    if result is None or result["status"] == "skipped":
        return "–"
    if result["status"] == "broken":
        return str(result["message"])
    if result["status"] != "passed":
        return f"**{result['status']}**: {result['message']}"
    if result["message"]:
        return f"runs; {result['message']}"
    if result["difference"] == 0:
        return f"equal ({result['numbers']})"
    reason = f", {program.reason}" if program.reason else ""
    return f"within {result['difference']:.0e} ({result['numbers']}{reason})"
