"""Every environment variable of the tools: its name, default, meaning and parser. docs/settings.md is made from it.

A variable is read when a tool starts. An argument of the tool goes before its variable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

from ditorch_shared import settings as shared
from ditorch_shared.settings import Value, number_of_bytes, switch
from op_tools.errors import SettingError


class Setting(shared.Setting[Value]):
    """One environment variable of op_tools."""

    error = SettingError


def parse(name: str, text: str, parser: Callable[[str], Value], help: str) -> Value:
    """`text` as a value; where that fails, a SettingError says of which argument or variable, and why."""
    return shared.parsed(name, text, parser, help, SettingError)


def argument(name: str, given: Any, setting: Setting[Value]) -> Value:
    """What a tool was given, in the forms that its variable takes; the variable where it was given nothing."""
    if given is None:
        return setting.get()
    text = str(int(given)) if isinstance(given, bool) else str(given)
    return parse(name, text, setting.parse, setting.help)


def numbers(name: str, given: Any, setting: Setting[Container[int] | None]) -> Container[int] | None:
    """A selection of steps or ranks, from the argument or its variable. The argument may have the variable's form."""
    if given is None:
        return setting.get()
    if isinstance(given, str):
        return parse(name, given, setting.parse, setting.help)
    is_usable = hasattr(given, "__contains__")
    if isinstance(given, (list, tuple, set, frozenset)):
        is_usable = all(isinstance(number, int) for number in given)
    if not is_usable:
        raise SettingError(
            f"{name}={given!r} cannot be used: give numbers and ranges such as '0,10-12', a range, or a set of numbers"
        )
    chosen: Container[int] = given
    return chosen


def _one_of(*choices: str) -> Callable[[str], str]:
    def parser(text: str) -> str:
        if text not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return text

    return parser


def _level(text: str) -> int:
    if text not in ("0", "1", "2"):
        raise ValueError("it must be 0, 1 or 2")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds < math.inf:
        raise ValueError("it must be a number of seconds, 0.01 or above")
    return seconds


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("it must be a whole number above 0")
    return int(text)


def _not_negative(text: str) -> int:
    if not text.isdigit():
        raise ValueError("it must be a whole number, 0 or above")
    return int(text)


_bytes = partial(number_of_bytes, may_be_zero=False)


class NumberRanges:
    """Whole numbers chosen like pages to print: `0`, `10-12`, `100-`, and several of these with commas.

    `10:13` is `10-12`, as Python counts, and `100:` is `100-`.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._parts: list[tuple[int, float]] = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d+)\s*(?:([-:])\s*(\d*))?\s*", part)
            if not match:
                raise ValueError("it must be numbers and ranges, such as 0,10-12 or 100-")
            first = int(match[1])
            last = first if not match[2] else int(match[3]) - (match[2] == ":") if match[3] else float("inf")
            if last < first:
                raise ValueError(f"the range {part.strip()} runs backwards")
            self._parts.append((first, last))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(first <= number <= last for first, last in self._parts)

    def __repr__(self) -> str:
        return self._text


class Cut(NamedTuple):
    """How ranks share tensors of some modules: along which dimension, and the sizes of the whole's blocks."""

    pattern: re.Pattern[str]
    dimension: int
    sizes: tuple[int, ...]


def _cuts(text: str) -> tuple[Cut, ...]:
    return tuple(_cut(part.strip()) for part in text.split(",") if part.strip())


def _cut(text: str) -> Cut:
    found = re.fullmatch(r"(.+)=(-?\d+):([1-9]\d*(?:\+[1-9]\d*)*)", text)
    try:
        if found:
            return Cut(re.compile(found[1]), int(found[2]), tuple(int(size) for size in found[3].split("+")))
    except re.error:
        pass
    raise ValueError("it must be PATTERN=DIMENSION:SIZES, such as qkv=-1:768+768+768, or several with commas")


# what OP_TOOLS and the options of `ditorch run` call the tools
TOOL_NAMES = (
    "autocompare",
    "capture",
    "time",
    "overflow",
    "observe",
    "fallback",
    "cast",
    "monitor",
    "losses",
    "modules",
    "watch",
    "perturb",
)


def _tool_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in TOOL_NAMES]
    if unknown:
        raise ValueError(f"there is no tool {unknown[0]}; these are: {', '.join(TOOL_NAMES)}")
    return names


TOOLS: Setting[tuple[str, ...]] = Setting(
    "OP_TOOLS",
    (),
    _tool_names,
    f"the tools that `ditorch run` starts in a program and its children: {', '.join(TOOL_NAMES)}",
)
VERBOSE = Setting(
    "OP_TOOLS_VERBOSE",
    1,
    _level,
    "0: only errors; 1: which ops a tool applies to, calls in which something was found, summaries; 2: every call",
)
MAX_CACHE_SIZE = Setting(
    "OP_TOOLS_MAX_CACHE_SIZE", 1000, _positive, "how many rows of a table are kept before they are written out"
)
NATIVE = Setting(
    "OP_TOOLS_NATIVE", True, switch, "0: do without the C++ helper, which is built once; all is slower then"
)
PRINT_STACK = Setting("OP_TOOLS_PRINT_STACK", False, switch, "1: show the whole Python stack of a call, not one line")
OUT = Setting("OP_TOOLS_OUT", Path("op_tools_results"), lambda text: Path(text).expanduser(), "the folder for results")
STEPS: Setting[Container[int] | None] = Setting(
    "OP_TOOLS_STEPS",
    None,
    NumberRanges,
    "the training steps to look at, such as 0,10-12; an optimizer's step ends one, or op_tools.step() counts them",
)
RANKS: Setting[Container[int] | None] = Setting(
    "OP_TOOLS_RANKS", None, NumberRanges, "the ranks of a distributed run to look at, such as 0 or 0-7"
)
MODULES = Setting(
    "OP_TOOLS_MODULES",
    "",
    str,
    "the modules whose inputs, outputs and gradients are kept, in the first step or in OP_TOOLS_STEPS: names and "
    "regular expressions, such as blocks.*",
)
INPUTS_FROM: Setting[Path | None] = Setting(
    "OP_TOOLS_INPUTS_FROM",
    None,
    lambda text: Path(text).expanduser(),
    "a run's folder: modules of OP_TOOLS_MODULES are given what they were given there: each shows its own error",
)
PERTURB = Setting(
    "OP_TOOLS_PERTURB",
    "own",
    _one_of("own", "bfloat16", "float16", "tf32"),
    "by whose rounding `ditorch run --perturb` moves the weights: that of their own dtype, or of one of these",
)
MONITOR_INTERVAL = Setting(
    "OP_TOOLS_MONITOR_INTERVAL", 1.0, _seconds, "seconds between the samples of `ditorch run --monitor`"
)
RECORD_INTERVAL = Setting(
    "OP_TOOLS_RECORD_INTERVAL",
    10.0,
    _seconds,
    "the most seconds after which a process of `ditorch run` writes anew what its tools have found",
)

# rules of TrainingWatch, with the number that each has by itself; docs/watch.md explains them
WATCH_RULES = {"nan": 10.0, "spike": 8.0, "norm": 8.0, "dead": 20.0, "parting": 0.05, "ranks": 1.0}
WATCH_RECEIVERS = ("tensorboard", "wandb")
Rules = dict[str, float]


def _rules(text: str) -> Rules:
    """`spike=12,dead=off`: the others stay as they are."""
    chosen = dict(WATCH_RULES)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in WATCH_RULES:
            raise ValueError(f"there is no rule {name}; these are: {', '.join(WATCH_RULES)}")
        if value == "off":
            chosen.pop(name, None)
            continue
        chosen[name] = _above_zero(part, value or str(WATCH_RULES[name]))
    return chosen


def _above_zero(part: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ValueError(f"{part}: it must be a number above 0, or off")
    return number


def _receivers(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in WATCH_RECEIVERS:
            raise ValueError(f"it must be {' or '.join(WATCH_RECEIVERS)}, or both with a comma between them")
    return names


WATCH_RULE_NUMBERS: Setting[Rules] = Setting(
    "OP_WATCH_RULES",
    dict(WATCH_RULES),
    _rules,
    "TrainingWatch's rules and their numbers, where they are to be others: spike=12,dead=off",
)
WATCH_AGAINST: Setting[Path | None] = Setting(
    "OP_WATCH_AGAINST",
    None,
    lambda text: Path(text).expanduser(),
    "a run's folder: TrainingWatch alerts when the loss parts from that run's",
)
WATCH_ON_ALERT = Setting(
    "OP_WATCH_ON_ALERT",
    "",
    str,
    "who gets each alert of TrainingWatch as JSON: a command, on its stdin, or an address (http://, https://), by POST",
)
WATCH_EVERY = Setting(
    "OP_WATCH_EVERY", 10, _positive, "TrainingWatch looks at tensors in every N-th step; at the loss in each"
)
WATCH_TO: Setting[tuple[str, ...]] = Setting(
    "OP_WATCH_TO", (), _receivers, "who gets TrainingWatch's curves as well: tensorboard, wandb"
)
WATCH_DISK = Setting(
    "OP_WATCH_DISK",
    256 * 2**20,
    _bytes,
    "how large a process's file of TrainingWatch grows; towards it, ever fewer steps have figures by module",
)

CAPTURE_MODE = Setting(
    "OP_CAPTURE_MODE",
    "data",
    _one_of("data", "statistics"),
    "data: OpCapture saves every tensor; statistics: a few numbers per tensor, for long runs",
)
CAPTURE_MEMORY = Setting(
    "OP_CAPTURE_MEMORY",
    2 * 2**30,
    _bytes,
    "host memory for tensors that OpCapture has not written yet; training waits where the disk cannot keep up",
)
CAPTURE_SHARDS: Setting[tuple[Cut, ...]] = Setting(
    "OP_CAPTURE_SHARDS",
    (),
    _cuts,
    "modules whose tensors all ranks share, along which dimension, and how large the whole is, block by block: "
    "qkv=-1:768+768+768,head=-1:50257; so statistics of the ranks add up to those of one process",
)
FALLBACK_AUTO = Setting(
    "OP_FALLBACK_AUTO", False, switch, "1: OpFallback takes only the ops that the accelerator does not have"
)
OVERFLOW_ACTION = Setting(
    "OP_OVERFLOW_CHECK_ACTION",
    "continue",
    _one_of("continue", "stop", "dump"),
    "what OpOverflowCheck does beside reporting: continue; stop: raise; dump: save the op's inputs",
)
TRACE_EVENTS = Setting(
    "OP_TIME_MEASURE_TRACE_EVENTS",
    1_000_000,
    _not_negative,
    "how many events OpTimeMeasure writes into its trace file, about 170 bytes each; 0: no such file",
)

AUTOCOMPARE_REFERENCE = Setting(
    "OP_AUTOCOMPARE_REFERENCE",
    "cpu",
    _one_of("cpu", "device", "device,cpu", "identities"),
    "what OpAutoCompare compares with: cpu; device: the same device in higher precision, fast, and "
    "identities against what both get wrong; device,cpu: narrower limits, and the CPU has the last word; identities: "
    "only what must hold of a result, on the device, for about a pass over the data",
)
AUTOCOMPARE_ONCE = Setting(
    "OP_AUTOCOMPARE_ONCE",
    False,
    switch,
    "1: OpAutoCompare looks once at each distinct call: op, shapes, dtypes, strides and source line",
)
AUTOCOMPARE_EVERY = Setting(
    "OP_AUTOCOMPARE_EVERY", 1, _positive, "OpAutoCompare looks at every N-th training step only"
)
AUTOCOMPARE_WORKER = Setting(
    "OP_AUTOCOMPARE_WORKER", 0, _not_negative, "how many processes compare for OpAutoCompare while training goes on"
)
AUTOCOMPARE_MEMORY = Setting(
    "OP_AUTOCOMPARE_MEMORY",
    4 * 2**30,
    _bytes,
    "memory for calls that wait for gradients or for a worker process; beyond it, each step takes other calls",
)
AUTOCOMPARE_UNTIL_COVERED = Setting(
    "OP_AUTOCOMPARE_UNTIL_COVERED",
    False,
    switch,
    "1: OpAutoCompare ends its work when each call of a step has been compared, forward and backward",
)
AUTOCOMPARE_FAIL = Setting(
    "OP_AUTOCOMPARE_FAIL", False, switch, "1: OpAutoCompare raises at stop if something is wrong, for CI"
)

ALL: tuple[Setting[Any], ...] = tuple(each for each in list(globals().values()) if isinstance(each, Setting))
# variables that have the name of an op or a dtype in theirs
FAMILIES = (
    re.compile(r"(\w+_)?AUTOCOMPARE_ERROR_TOLERANCE(_(FLOAT16|BFLOAT16|FLOAT32|FLOAT64))?"),
    re.compile(r"(\w+_)?OP_DTYPE_CAST_DICT"),
)
