"""How the tools' cost grows: with the size of an op, the length of a run, the processes of a machine, and the model.

    python benchmarks/growth.py [size] [steps] [processes] [depth] [--device cuda] [--json FILE] [--svg docs/growth.svg]

size       one op, forward and backward, of 1 to 10^7 elements (10^8 with --largest): its time, plain and with each tool
steps      a small model for 10,000 steps: resident memory after the first tenth, and at the end
processes  8 processes that train and capture at once: steps a second of each, beside one alone, and beside plain ones
depth      a GPT of 2, 8 and 32 layers, and chains of few and of many distinct ops: what a tool adds to one op call
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ditorch.demo import GPT, batches
from overhead import MODES, Machine, Mode, Step, _memory_line, surroundings, training_step

KINDS = ("size", "steps", "processes", "depth")
UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor", "frac"),
    *("lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin"),
    *("sinh", "sqrt", "square", "tan", "tanh", "trunc", "sinc", "digamma", "relu", "rad2deg", "deg2rad", "asinh"),
)
COLOURS = ("#000", "#47a", "#e67", "#283", "#cb4", "#6ce", "#a37", "#bbb", "#993", "#825", "#f80", "#08f")


def counts_cpu_time(machine: Machine) -> bool:
    """Where the CPU is the device."""
    return machine.device in ("sim", "cpu")


class Growth:
    """One machine, the tools that are measured, and what was found."""

    def __init__(self, machine: Machine, options: argparse.Namespace, folder: Path) -> None:
        self.machine, self.options, self.folder = machine, options, folder
        self.modes = [mode for mode in MODES if not options.only or mode.title in options.only]
        self.found: list[dict[str, Any]] = []
        # neighbours on the machine count less in CPU time, which is that of all threads
        self._clock = time.process_time if counts_cpu_time(machine) else time.perf_counter

    def note(self, mode: Mode | None, **figures: Any) -> None:
        """One row, shown as it comes."""
        self.found.append({"tool": mode.title if mode else "plain", **figures})
        rounded = (
            f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
        )
        print(f"{self.found[-1]['tool']:24} {', '.join(rounded)}", flush=True)

    @contextlib.contextmanager
    def watched(self, mode: Mode | None) -> Iterator[Path]:
        """With a tool on, or none; in a folder of its own."""
        import op_tools

        with contextlib.ExitStack() as stack:
            variables = {"OP_TOOLS_VERBOSE": "1", **(mode.variables if mode else {})}
            out = stack.enter_context(surroundings(variables, self.folder))
            if mode is not None:
                stack.enter_context(getattr(op_tools, mode.tool)())
            yield out

    def beside_plain(self, step: Step, mode: Mode) -> tuple[float, float]:
        """Microseconds of a step without the tool and with it, taking turns: the best of each."""
        plain, tool = [], []
        for _ in range(3):
            plain.append(self._time(step, self.options.seconds / 12))
            with self.watched(mode):
                tool.append(self._time(step, self.options.seconds / 4))
            if tool[-1] > self.options.seconds * 1e6:
                break
        return min(plain), min(tool)

    def _time(self, step: Step, budget: float) -> float:
        self._run(step, 1)
        rounds, times, end = [self._run(step, 1)], 1, time.perf_counter() + budget
        while time.perf_counter() < end:
            times = max(1, min(200, int(budget * 1e6 / 20 / rounds[-1])))
            rounds.append(self._run(step, times) / times)
        return min(rounds)

    def _run(self, step: Step, times: int) -> float:
        began = self._clock()
        for _ in range(times):
            step()
        self.machine.wait()
        return (self._clock() - began) * 1e6

    # ---- what is measured --------------------------------------------------------------------------------------------

    def size(self) -> None:
        too_slow: set[str] = set()
        for exponent in range(9 if self.options.largest else 8):
            step = _one_op(self.machine.device, 10**exponent)
            for mode in self.modes:
                if mode.title not in too_slow:
                    plain, tool = self.beside_plain(step, mode)
                    self.note(mode, elements=10**exponent, plain_us=plain, tool_us=tool)
                    if tool > self.options.seconds * 1e6:
                        too_slow.add(mode.title)  # ten times as many elements would take ten times as long

    def steps(self) -> None:
        for mode in (None, *self.modes):
            step = _small_model(self.machine.device)
            began, spent, first, done = time.perf_counter(), 0.0, 0, 0
            with self.watched(mode) as out:
                while done < self.options.steps and spent < self.options.most:
                    step()
                    done += 1
                    spent = time.perf_counter() - began
                    if not first and (done >= self.options.steps / 10 or spent > self.options.most / 10):
                        first = _memory_line("VmRSS")
                    if done % 200 == 0:  # the disk is not what is measured
                        for captured in out.glob("op_tools_results/op_capture_results/torch*"):
                            shutil.rmtree(captured, ignore_errors=True)
                last = _memory_line("VmRSS")
            self.note(mode, steps=done, first_mib=first / 2**20, last_mib=last / 2**20)

    def processes(self) -> None:
        capturing = [mode for mode in self.modes if mode.tool == "OpCapture"]
        for mode in (None, *capturing):
            for number in (1, self.options.processes):
                speeds = self._speeds(mode, number)
                mean, slowest = statistics.mean(speeds), min(speeds)
                self.note(mode, processes=number, steps_a_second=mean, steps_a_second_of_the_slowest=slowest)

    def _speeds(self, mode: Mode | None, number: int) -> list[float]:
        threads = max(1, torch.get_num_threads() // self.options.processes)
        command = [sys.executable, __file__, "--worker", mode.title if mode else "plain", "--threads", str(threads)]
        command += ["--device", self.machine.device, "--seconds", str(self.options.seconds)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(number)]
        for worker in workers:
            worker.stdout.readline()  # all of them are warm before the first one begins
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        return [float(worker.communicate()[0]) for worker in workers]

    def work(self) -> None:
        """One of the processes: says when it is warm, and how many steps a second it made when it was told to go."""
        step = training_step(self.machine.device, "tiny", "float32")
        self._run(step, 3)
        print("warm", flush=True)
        sys.stdin.readline()
        with self.watched(next((mode for mode in MODES if mode.title == self.options.worker), None)):
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < 5 * self.options.seconds:
                self._run(step, 1)
                steps += 1
            speed = steps / (time.perf_counter() - began)
        print(speed)

    def depth(self) -> None:
        device = self.machine.device
        programs = {f"GPT of {layers} layers": _gpt(device, layers) for layers in (2, 8, 32)}
        programs.update({f"{kinds} distinct ops": _chain(device, kinds) for kinds in (2, len(UNARY))})
        for title, step in programs.items():
            calls = _op_calls(step)
            for mode in self.modes:
                plain, tool = self.beside_plain(step, mode)
                self.note(mode, program=title, op_calls=calls, added_us_per_call=(tool - plain) / calls)


# ---- programs --------------------------------------------------------------------------------------------------------


def _one_op(device: str, elements: int) -> Step:
    x = torch.randn(elements, device=device, requires_grad=True)
    gradient = torch.ones_like(x)

    def step() -> None:
        nn.functional.gelu(x).backward(gradient)
        x.grad = None

    return step


def _small_model(device: str) -> Step:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 8, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _gpt(device: str, layers: int) -> Step:
    model = GPT(width=32, heads=2, layers=layers, length=8).to(device)
    tokens, targets = (x.to(device) for x in next(batches(1, 8)))
    return lambda: model.loss(tokens, targets).backward()


def _chain(device: str, kinds: int) -> Step:
    """The same number of calls, of few functions or of many."""
    functions = [getattr(torch, UNARY[index % kinds]) for index in range(len(UNARY))]
    x = torch.full((4,), 0.5, device=device, requires_grad=True)
    return lambda: torch.stack([function(x) for function in functions]).sum().backward()


def _op_calls(step: Step) -> int:
    from op_tools.core.tool import Tool

    class Counting(Tool):
        hook, prefix, calls = "CountingHook", "OP_COUNTING", 0

        def after(self, call: Any, state: Any) -> None:
            self.calls += 1

    with Counting(verbose=0) as counting:
        step()
    return counting.calls


# ---- showing ---------------------------------------------------------------------------------------------------------


def plot(found: list[dict[str, Any]], title: str) -> str:
    """The time of one op against its size, both logarithmic: an SVG picture of 420 by 300 units with names beside."""
    largest = max(math.log10(one["elements"]) for one in found) or 1.0
    highest = math.ceil(max(math.log10(one["tool_us"]) for one in found))
    lines: dict[str, dict[int, float]] = {"plain": {}}
    for one in found:
        elements, plain = one["elements"], lines["plain"]
        plain[elements] = min(one["plain_us"], plain.get(elements, math.inf))
        lines.setdefault(one["tool"], {})[elements] = one["tool_us"]

    def across(exponent: float) -> float:
        return 70 + 420 * exponent / largest

    def down(exponent: float) -> float:
        return 340 - 300 * max(exponent, 0.0) / highest

    def text(x: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{words}</text>'

    parts = [text(70, 22, title, ' font-weight="bold"'), text(230, 376, "elements of the op")]
    parts += [text(across(one) - 8, 358, f"10^{one}") for one in range(int(largest) + 1)]
    for one in range(highest + 1):
        parts.append(f'<path d="M70 {down(one):.0f}h420" stroke="#ddd"/>{text(12, down(one) + 4, f"10^{one} µs")}')
    for number, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{across(math.log10(n)):.0f},{down(math.log10(us)):.0f}" for n, us in line.items())
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(504, 52 + 18 * number, name, f' fill="{colour}"'))
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 690 390" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="690" height="390" fill="white"/>', *parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], metavar="KIND", help=f"{', '.join(KINDS)}; else all")
    parser.add_argument("--device", help="the one that ditorch chooses, if not given")
    parser.add_argument("--only", nargs="+", metavar="TITLE", choices=[mode.title for mode in MODES])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure; a process trains five times that")
    parser.add_argument("--largest", action="store_true", help="ops of 10^8 elements, too")
    parser.add_argument("--steps", type=int, default=10_000, help="of the long run")
    parser.add_argument("--most", type=float, default=300.0, help="seconds after which a long run is ended early")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, help="torch's on the CPU; 1 on sim and cpu, else torch's own default")
    parser.add_argument("--json", type=Path, help="the figures, for programs")
    parser.add_argument("--svg", type=Path, help="a plot of `size`")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    machine = Machine(options.device, options.threads)
    with tempfile.TemporaryDirectory(prefix="op_tools_growth_") as folder:
        if options.worker:
            Growth(machine, options, Path(folder)).work()
            return
        print(machine.title())
        found = {"machine": machine.title()}
        for kind in options.kinds or KINDS:
            print(f"\n{kind}")
            growth = Growth(machine, options, Path(folder))
            getattr(growth, kind)()
            found[kind] = growth.found
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.svg and "size" in found:
        name, clock = machine.title().partition(",")[0], " (CPU time)" if counts_cpu_time(machine) else ""
        options.svg.write_text(plot(found["size"], f"One op, forward and backward: {name}{clock}"))


if __name__ == "__main__":
    main()
