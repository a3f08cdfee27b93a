"""What the tools cost: a training step with each tool and mode, beside the plain step in the same process.

    python benchmarks/overhead.py [--device cuda] [--preset tiny base] [--seconds 215] [--json FILE]
    python benchmarks/overhead.py --against PATH    another op_tools below PATH, measured by the same harness

Plain steps and steps with the tool take turns, with a warm-up after each switch; the median of the rounds and its
quartiles are reported. `stop` is the ratio with the tool's stop counted in, where it writes out what is left; `disk`,
`files` and `log` (what it prints) are for one step; `host` and `device` are memory at the peak, more than the plain
step's. On the simulated accelerator the clock is the CPU time of all threads, so that neighbours on the machine count
less, with the wall's ratio beside it, and torch has one thread; beside a real accelerator it has as many as it takes by
itself, for the tools' work on the CPU (--threads). torch.profiler is measured along.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

os.environ["DITORCH_DISABLE_MOCK"] = "1"

import torch

from ditorch import discover
from ditorch.demo import GPT, batches

Step = Callable[[], object]
# layers, width, batch, length of a sequence
PRESETS = {"large": (16, 2048, 4, 1024), "h200": (4, 512, 4, 256), "base": (4, 256, 8, 128), "tiny": (4, 256, 1, 16)}
LARGEST = "large"  # with bfloat16, this one has its parameters in bfloat16 instead of autocast
LONGEST_ROUND = 0.5  # seconds of plain steps
LARGEST_ROUND = 2e9  # bytes of files; beyond that the system's memory for files is what is measured
WARM_UP = 2  # steps
TURNS = 10  # steps until each call of a large model has been compared once, and then again
MOST_ROUNDS = 41


# ---- what is measured --------------------------------------------------------------------------------------------


AUTOCOMPARE_REFERENCE, AUTOCOMPARE_ONCE = "OP_AUTOCOMPARE_REFERENCE", "OP_AUTOCOMPARE_ONCE"
UNTIL_COVERED = "OP_AUTOCOMPARE_UNTIL_COVERED"  # came with the identities
BY_DEVICE = {AUTOCOMPARE_REFERENCE: "device"}


@dataclass(frozen=True)
class Mode:
    """One way to use one tool."""

    title: str
    tool: str  # its class in op_tools, or in a module of it
    variables: dict[str, str] = field(default_factory=dict)
    needs: str = ""  # a variable that the implementation must know; without it, the mode is not there
    slow: bool = False
    takes_turns: bool = False  # of a large model each step compares another part

    def missing(self, op_tools: Any) -> str:
        """Why it cannot be measured; empty where it can."""
        try:
            self.made(op_tools)
        except (AttributeError, ImportError):
            return f"there is no op_tools.{self.tool}"
        known = {setting.name for setting in getattr(getattr(op_tools, "settings", None), "ALL", ())}
        return f"it does not know {self.needs}" if self.needs and self.needs not in known else ""

    def made(self, op_tools: Any) -> Any:
        """Its class."""
        module, _, name = self.tool.rpartition(".")
        return getattr(importlib.import_module(f"op_tools.{module}") if module else op_tools, name)


MODES = (
    Mode("TrainingWatch", "watch.TrainingWatch"),
    Mode("TrainingWatch, every step", "watch.TrainingWatch", {"OP_WATCH_EVERY": "1"}),
    Mode("OpTimeMeasure", "OpTimeMeasure"),
    Mode("OpObserve", "OpObserve"),
    Mode("OpOverflowCheck", "OpOverflowCheck"),
    Mode("OpDtypeCast", "OpDtypeCast"),
    Mode("OpFallback, every op", "OpFallback"),
    Mode("OpCapture, data", "OpCapture", slow=True),
    Mode("OpCapture, statistics", "OpCapture", {"OP_CAPTURE_MODE": "statistics"}, "OP_CAPTURE_MODE"),
    Mode("OpAutoCompare, cpu", "OpAutoCompare", slow=True),
    Mode("OpAutoCompare, device", "OpAutoCompare", BY_DEVICE, AUTOCOMPARE_REFERENCE, slow=True, takes_turns=True),
    Mode("OpAutoCompare, identities", "OpAutoCompare", {AUTOCOMPARE_REFERENCE: "identities"}, UNTIL_COVERED, slow=True),
    Mode("OpAutoCompare, once", "OpAutoCompare", {AUTOCOMPARE_ONCE: "1"}, AUTOCOMPARE_ONCE, slow=True),
    Mode("a list of one op", "OpTimeMeasure", {"OP_TIME_MEASURE_LIST": "torch.nn.functional.gelu"}),
)


@dataclass
class Result:
    """One row of the table. Ratios are to the plain step: lower quartile, median, upper quartile."""

    title: str
    verbose: int = 1
    preset: str = ""
    dtype: str = ""
    steps: int = 1  # of one round, for which files and bytes are counted
    plain_ms: float = 0.0
    ratio: list[float] = field(default_factory=list)  # empty where it could not be measured
    ratio_with_stop: float = 0.0
    wall_ratio: float = 0.0
    rounds: int = 0
    bytes_a_step: float = 0.0
    files_a_step: float = 0.0
    log_bytes_a_step: float = 0.0
    host_peak_growth: int = 0  # bytes more than the plain step
    device_peak_growth: int = 0
    problem: str = ""


# ---- the machine -------------------------------------------------------------------------------------------------


class Machine:
    """The device, and how its work is waited for and its memory looked at."""

    def __init__(self, device: str | None, threads: int | None = None) -> None:
        self.device = device or discover.choose().device_type
        if threads is None and self.device in ("sim", "cpu"):
            threads = 1  # the CPU is the device: more threads would make the plain step faster, not the tool
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)  # for processes that a tool starts
            torch.set_num_threads(threads)
        if device == "sim":
            from ditorch import sim

            sim.start()
        self._module: Any = torch if self.device == "cpu" else getattr(torch, self.device)

    def wait(self) -> None:
        getattr(self._module, "synchronize", lambda: None)()

    def reset_peaks(self) -> tuple[int, int]:
        """Bytes in use now, on the host and on the device."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        getattr(self._module, "reset_peak_memory_stats", lambda: None)()
        return _memory_line("VmRSS"), getattr(self._module, "memory_allocated", lambda: 0)()

    def peaks(self) -> tuple[int, int]:
        """The most that was in use since."""
        return _memory_line("VmHWM"), getattr(self._module, "max_memory_allocated", lambda: 0)()

    def title(self) -> str:
        name = getattr(self._module, "get_device_name", lambda: self.device)()
        cores = f"{os.cpu_count()} CPU cores, {torch.get_num_threads()} used by torch"
        return f"{name}, {cores}, torch {torch.__version__}, Python {platform.python_version()}"


def _memory_line(name: str) -> int:
    """Bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def training_step(device: str, preset: str, dtype: str) -> Step:
    layers, width, batch, length = PRESETS[preset]
    torch.manual_seed(0)
    model = GPT(vocabulary=512, width=width, heads=8, layers=layers, length=length).to(device)
    is_low = dtype == "bfloat16"
    if is_low and preset == LARGEST:
        model, is_low = model.bfloat16(), False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, targets = (x.to(device) for x in next(batches(batch, length)))

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=is_low):
            loss = model.loss(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# ---- measuring ---------------------------------------------------------------------------------------------------


class Profiler:
    """torch.profiler, started and stopped like a tool."""

    def start(self) -> None:
        self._profile = torch.profiler.profile()
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()


@contextlib.contextmanager
def surroundings(variables: dict[str, str], folder: Path) -> Iterator[Path]:
    """A folder for results that is the current one, variables, and a file in place of the terminal."""
    before, here = dict(os.environ), Path.cwd()
    out = Path(tempfile.mkdtemp(dir=folder))
    os.environ.update(variables)
    os.chdir(out)
    try:
        with printing_to(folder / "log"):
            yield out
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(out, ignore_errors=True)


@contextlib.contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """The file descriptors themselves: C++ prints, too."""
    sys.stdout.flush()
    terminal = [os.dup(1), os.dup(2)]
    try:
        with open(log, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield
    finally:
        sys.stdout.flush()
        for number, descriptor in enumerate(terminal, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


@dataclass
class Seconds:
    """A stretch of time on both clocks; the processor's is that of all threads of this process."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.process_time())

    def since(self) -> Seconds:
        return Seconds(time.perf_counter() - self.wall, time.process_time() - self.cpu)


@dataclass
class Round:
    """One step: plain, with the tool, and with the tool's share of its stop."""

    plain: Seconds
    step: Seconds
    with_stop: Seconds

    def ratio(self, clock: str) -> float:
        return float(getattr(self.step, clock) / getattr(self.plain, clock))

    def ratio_with_stop(self, clock: str) -> float:
        return float(getattr(self.with_stop, clock) / getattr(self.plain, clock))


class Bench:
    """One model on one device, and the plain step beside which everything is measured."""

    def __init__(self, machine: Machine, preset: str, dtype: str, folder: Path, clock: str) -> None:
        self.machine, self.preset, self.dtype, self.folder, self.clock = machine, preset, dtype, folder, clock
        self._step = training_step(machine.device, preset, dtype)
        self._run(5)
        before = machine.reset_peaks()
        self.plain = self._run(3).wall / 3  # seconds
        self._plain_growth = _growth(before, machine.peaks())
        self._times = max(1, min(20, int(LONGEST_ROUND / self.plain)))  # steps in one round

    def _run(self, times: int) -> Seconds:
        """So many steps, until the device has done them."""
        began = Seconds.now()
        for _ in range(times):
            self._step()
        self.machine.wait()
        return began.since()

    def plain_round(self) -> Seconds:
        """One step. The interpreter relearns after a switch."""
        self._run(WARM_UP)
        seconds = self._run(self._times)
        return Seconds(seconds.wall / self._times, seconds.cpu / self._times)

    def measure(
        self, tool: Callable[[], Any], variables: dict[str, str], budget: float, result: Result, turns: int = 0
    ) -> Result:
        """Rounds for as long as the budget lasts, but one at least. `turns`: steps of one where calls take turns."""
        result.preset, result.dtype = self.preset, self.dtype
        began, rounds = time.monotonic(), []
        try:
            while len(rounds) < MOST_ROUNDS:
                plain = self.plain_round()
                with surroundings(variables, self.folder) as out:
                    rounds.append(Round(plain, *self._round(tool(), budget, result, turns)))
                    _count_output(result, out, self.folder / "log")
                spent = time.monotonic() - began
                if spent + spent / len(rounds) > budget:
                    break
        except Exception as error:  # noqa: BLE001  another implementation may fail in any way
            result.problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:100]}"
        return _summed_up(result, rounds, self.clock)

    def _round(self, tool: Any, budget: float, result: Result, turns: int) -> tuple[Seconds, Seconds]:
        """One step with the tool, and with its share of the stop.

        The first step of those that take turns compares all that there is memory for: no later one is like it.
        """
        gc.collect()
        before = self.machine.reset_peaks()
        tool.start()
        try:
            steps, times, warm_up = self._run(1), 1, 0
            first = steps.wall
            if first < 2 * budget:
                warm_up = (WARM_UP if first < budget / 8 else 1) + turns
                self._run(warm_up - 1)
                most = int(LARGEST_ROUND / max(sum(_sizes_in(Path.cwd())) / warm_up, 1.0))
                times = turns or max(1, min(self._times, int(budget / 4 / first), most))
                steps = self._run(times)
            else:
                result.problem = "the first step, for want of time"
            after = self.machine.peaks()
        finally:
            began = Seconds.now()
            tool.stop()
        stop = began.since()
        result.steps = times + warm_up
        growth = [max(more - plain, 0) for more, plain in zip(_growth(before, after), self._plain_growth)]
        result.host_peak_growth, result.device_peak_growth = growth
        step = Seconds(steps.wall / times, steps.cpu / times)
        return step, Seconds(step.wall + stop.wall / times, step.cpu + stop.cpu / times)


def _growth(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


def _sizes_in(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def _count_output(result: Result, out: Path, log: Path) -> None:
    sys.stdout.flush()
    sizes = _sizes_in(out)
    result.bytes_a_step, result.files_a_step = sum(sizes) / result.steps, len(sizes) / result.steps
    result.log_bytes_a_step = log.stat().st_size / result.steps
    with open(log, errors="replace") as lines:
        complaint = next((line.strip() for line in lines if line.startswith("op_tools:")), "")
    result.problem = result.problem or complaint[:160]  # such as a full disk: the figures are then worth little


def _summed_up(result: Result, rounds: list[Round], clock: str) -> Result:
    if rounds:
        result.rounds = len(rounds)
        result.plain_ms = statistics.median(getattr(one.plain, clock) for one in rounds) * 1e3
        result.ratio = _quartiles([one.ratio(clock) for one in rounds])
        result.ratio_with_stop = statistics.median(one.ratio_with_stop(clock) for one in rounds)
        result.wall_ratio = statistics.median(one.ratio("wall") for one in rounds)
    return result


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def import_only(bench: Bench, budget: float) -> Result:
    """Plain steps before and after the import, which cannot be undone: these do not take turns."""
    assert "op_tools" not in sys.modules
    began, before = time.monotonic(), []
    while len(before) < MOST_ROUNDS and (not before or time.monotonic() - began < budget / 2):
        before.append(getattr(bench.plain_round(), bench.clock))
    importlib.import_module("op_tools")
    plain = statistics.median(before)
    after = [getattr(bench.plain_round(), bench.clock) for _ in before]
    result = Result("import only", preset=bench.preset, dtype=bench.dtype, plain_ms=plain * 1e3, rounds=len(before))
    result.ratio = _quartiles([step / plain for step in after])
    return result


class Schedule:
    """Shares out the time that is left among what is still to be measured."""

    def __init__(self, seconds: float, measurements: int) -> None:
        self._end = time.monotonic() + seconds
        self._measurements = measurements

    def next(self) -> float:
        share = self.left() / max(self._measurements, 1)
        self._measurements -= 1
        return share

    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.0)


def measure_all(machine: Machine, options: argparse.Namespace) -> list[Result]:
    """The modes that take long come late, so that they cannot use up the others' time."""
    wanted = [mode for mode in MODES if not options.only or mode.title in options.only]
    runs = [(mode, level) for mode in wanted for level in ((1, 2) if options.verbose_2 else (1,))]
    with tempfile.TemporaryDirectory(prefix="op_tools_overhead_") as folder:
        benches = [
            Bench(machine, preset, dtype, Path(folder), options.time)
            for preset in options.preset
            for dtype in options.dtype
        ]
        results = [import_only(benches[0], options.seconds / 20)]
        schedule = Schedule(0.9 * options.seconds, len(benches) * (count_present(runs) + 1))
        for slow in (False, True):
            for bench in benches:
                for mode, level in runs:
                    if mode.slow == slow:
                        results.append(measure_mode(bench, mode, level, schedule, results))
        for bench in benches:  # last: nobody knows what it leaves behind in the driver
            results.append(bench.measure(Profiler, {}, schedule.next(), Result("torch.profiler")))
    titles = ["import only", "torch.profiler", *(mode.title for mode in MODES)]
    cases = [(bench.preset, bench.dtype) for bench in benches]
    return sorted(results, key=lambda row: (cases.index((row.preset, row.dtype)), titles.index(row.title), row.verbose))


def count_present(runs: list[tuple[Mode, int]]) -> int:
    op_tools = importlib.import_module("op_tools")
    return sum(not mode.missing(op_tools) for mode, _ in runs)


def measure_mode(bench: Bench, mode: Mode, level: int, schedule: Schedule, known: list[Result]) -> Result:
    op_tools = importlib.import_module("op_tools")
    result = Result(mode.title, level, bench.preset, bench.dtype, problem=mode.missing(op_tools))
    if result.problem:
        return result
    share = schedule.next()
    # a model before this one tells how long it will take
    ratio = max((row.ratio_with_stop for row in known if (row.title, row.verbose) == (mode.title, level)), default=0.0)
    expected = ratio * bench.plain * (WARM_UP + 1)
    if expected > max(3 * share, schedule.left() / 2):
        result.problem = f"left out: it would take about {expected:.0f} s (--seconds, --only)"
        return result
    variables = {"OP_TOOLS_VERBOSE": str(level), **mode.variables}
    turns = TURNS if mode.takes_turns and bench.preset == LARGEST else 0
    return bench.measure(mode.made(op_tools), variables, share, result, turns)


# ---- another implementation --------------------------------------------------------------------------------------


def measure_other(options: argparse.Namespace, device: str) -> list[Result]:
    """In a process of its own, where `import op_tools` finds the other one."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "results.json"
        command = [sys.executable, __file__, "--other", options.against, "--device", device, "--time", options.time]
        command += [
            "--json",
            str(answer),
            "--seconds",
            str(options.seconds),
            "--preset",
            *options.preset,
            "--dtype",
            *options.dtype,
        ]
        command += ["--verbose-2"] if options.verbose_2 else []
        command += ["--threads", str(options.threads)] if options.threads else []
        command += ["--only", *options.only] if options.only else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [Result(**row) for row in json.loads(answer.read_text())["results"]]


# ---- showing -----------------------------------------------------------------------------------------------------


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


HEADINGS = (
    f"{'':34} {'÷ plain':>8} {'quartiles':>14} {'stop':>8} {'wall':>8} {'rounds':>6} {'disk':>8} {'files':>7} "
    f"{'log':>8} {'host':>8} {'device':>8}"
)


def _row(result: Result) -> str:
    title = f"{result.title}{' (verbose 2)' if result.verbose == 2 else ''}"
    if not result.ratio:
        return f"{title:34} {result.problem}"
    low, median, high = result.ratio
    stop, wall = (f"{ratio:8.2f}" if ratio else f"{'':8}" for ratio in (result.ratio_with_stop, result.wall_ratio))
    return (
        f"{title:34} {median:8.3f} {f'{low:.2f}–{high:.2f}':>14} {stop} {wall} {result.rounds:6} "
        f"{_size(result.bytes_a_step):>8} {result.files_a_step:7.1f} "
        f"{_size(result.log_bytes_a_step):>8} {_size(result.host_peak_growth):>8} "
        f"{_size(result.device_peak_growth):>8} {result.problem}"
    ).rstrip()


def show(results: list[Result], others: list[Result]) -> None:
    """A table for each model; below each of our rows the other implementation's."""
    beside = {(other.preset, other.dtype, other.title, other.verbose): other for other in others}
    case = None
    for result in results:
        if case != (result.preset, result.dtype):
            case = (result.preset, result.dtype)
            print(f"\n{result.preset}, {result.dtype}: plain step {result.plain_ms:.1f} ms\n{HEADINGS}")
        print(_row(result))
        other = beside.get((*case, result.title, result.verbose))
        if other is not None:
            print(_row(replace(other, title="  the other one")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="the one that ditorch chooses, if not given")
    parser.add_argument("--preset", nargs="+", choices=PRESETS, help="h200 on CUDA, tiny and base elsewhere")
    parser.add_argument("--dtype", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--only", nargs="+", metavar="TITLE", choices=[mode.title for mode in MODES])
    parser.add_argument("--seconds", type=float, default=215.0, help="about how long it may take in all")
    parser.add_argument("--time", choices=("cpu", "wall"), help="the clock; cpu where the device is the CPU's own work")
    parser.add_argument("--threads", type=int, help="torch's on the CPU; 1 on sim and cpu, else torch's own default")
    parser.add_argument("--verbose-2", action="store_true", help="at OP_TOOLS_VERBOSE=2 as well")
    parser.add_argument("--json", type=Path, help="the same figures, for programs")
    parser.add_argument("--against", metavar="PATH", help="a folder with another implementation of op_tools")
    parser.add_argument("--other", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    machine = Machine(options.device, options.threads)
    options.time = options.time or ("cpu" if machine.device in ("sim", "cpu") else "wall")
    options.preset = options.preset or (["h200"] if machine.device == "cuda" else ["tiny", "base"])
    for folder in filter(None, (options.against, options.other)):
        if not any(Path(folder).glob("op_tools*")):
            parser.error(f"there is no op_tools in {folder}")
    if options.other:
        sys.path.insert(0, options.other)
    if options.against:
        options.seconds /= 2
    print(machine.title())
    results = measure_all(machine, options)
    others = measure_other(options, machine.device) if options.against else []
    show(results, others)
    if options.json:
        everything = {"machine": machine.title(), "results": results, "others": others}
        options.json.write_text(json.dumps(everything, default=asdict, indent=1))


if __name__ == "__main__":
    main()
