"""Every environment variable of the tools: its default, what it may be, and what is said when it is something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from op_tools import settings
from op_tools.errors import OpToolsError, SettingError
from op_tools.settings import Cut

SWITCH = {"0": False, "1": True, " 1 ": True}
NOT_A_SWITCH = dict.fromkeys(["2", "yes", "true", "-1"], "it must be 0 or 1")
BYTES = {"8000000": 8_000_000, "512MB": 512_000_000, "2GiB": 2 * 2**30}
NOT_BYTES = dict.fromkeys(["-1", "much", "0", "1,5GB"], "it must be a number of bytes, such as 8000000, 512MB or 2GiB")
NOT_POSITIVE = dict.fromkeys(["0", "-1", "1.5", "many"], "it must be a whole number above 0")
NOT_WHOLE = dict.fromkeys(["-1", "1.5", "many"], "it must be a whole number, 0 or above")
NOT_NUMBERS = dict.fromkeys(["all", "-1", "1..2", "1-2-3"], "it must be numbers and ranges, such as 0,10-12 or 100-")

# name: (default, {valid text: value}, {malformed text: what is said})
CASES = {
    "OP_TOOLS_VERBOSE": (1, {"0": 0, "2": 2}, dict.fromkeys(["3", "-1", "loud"], "it must be 0, 1 or 2")),
    "OP_TOOLS_MAX_CACHE_SIZE": (1000, {"1": 1, "20000": 20000}, NOT_POSITIVE),
    "OP_TOOLS_NATIVE": (True, {"0": False, "1": True}, NOT_A_SWITCH),
    "OP_TOOLS_PRINT_STACK": (False, SWITCH, NOT_A_SWITCH),
    "OP_TOOLS_OUT": (Path("op_tools_results"), {"/runs/a": Path("/runs/a"), "~/a": Path.home() / "a"}, {}),
    "OP_TOOLS_STEPS": (None, {}, {**NOT_NUMBERS, "5-2": "the range 5-2 runs backwards"}),
    "OP_TOOLS": (
        (),
        {"time": ("time",), "autocompare, time": ("autocompare", "time")},
        {"times": f"there is no tool times; these are: {', '.join(settings.TOOL_NAMES)}"},
    ),
    "OP_TOOLS_RECORD_INTERVAL": (
        10.0,
        {"0.1": 0.1, "60": 60.0},
        dict.fromkeys(["0", "-1", "nan", "inf", "often"], "it must be a number of seconds, 0.01 or above"),
    ),
    "OP_TOOLS_MONITOR_INTERVAL": (
        1.0,
        {"0.1": 0.1, "60": 60.0},
        dict.fromkeys(["0", "-1", "nan", "inf", "often"], "it must be a number of seconds, 0.01 or above"),
    ),
    "OP_TOOLS_MODULES": ("", {"blocks.*": "blocks.*"}, {}),
    "OP_TOOLS_INPUTS_FROM": (None, {"/runs/a": Path("/runs/a"), "~/a": Path.home() / "a"}, {}),
    "OP_TOOLS_RANKS": (None, {}, NOT_NUMBERS),
    "OP_WATCH_RULES": (
        settings.WATCH_RULES,
        {"": settings.WATCH_RULES, "spike=12, nan": {**settings.WATCH_RULES, "spike": 12.0}},
        {
            "spikes": "there is no rule spikes; these are: nan, spike, norm, dead, parting, ranks",
            "dead=0": "dead=0: it must be a number above 0, or off",
        },
    ),
    "OP_WATCH_AGAINST": (None, {"/runs/a": Path("/runs/a"), "~/a": Path.home() / "a"}, {}),
    "OP_WATCH_ON_ALERT": ("", {"cat > x": "cat > x"}, {}),
    "OP_WATCH_EVERY": (10, {"1": 1}, NOT_POSITIVE),
    "OP_WATCH_TO": (
        (),
        {"wandb, tensorboard": ("wandb", "tensorboard")},
        {"email": "it must be tensorboard or wandb, or both with a comma between them"},
    ),
    "OP_WATCH_DISK": (256 * 2**20, BYTES, NOT_BYTES),
    "OP_CAPTURE_MODE": ("data", {"statistics": "statistics"}, {"stats": "it must be one of data, statistics"}),
    "OP_CAPTURE_MEMORY": (2 * 2**30, BYTES, NOT_BYTES),
    "OP_CAPTURE_SHARDS": (
        (),
        {"a.(q|k)=-1:8+4, b=0:9": (Cut(re.compile("a.(q|k)"), -1, (8, 4)), Cut(re.compile("b"), 0, (9,)))},
        dict.fromkeys(
            ("qkv", "qkv=-1", "qkv=-1:0", "qkv=x:8", "(=0:8"),
            "it must be PATTERN=DIMENSION:SIZES, such as qkv=-1:768+768+768, or several with commas",
        ),
    ),
    "OP_FALLBACK_AUTO": (False, SWITCH, NOT_A_SWITCH),
    "OP_OVERFLOW_CHECK_ACTION": (
        "continue",
        {"stop": "stop", "dump": "dump"},
        {"halt": "it must be one of continue, stop, dump"},
    ),
    "OP_TIME_MEASURE_TRACE_EVENTS": (1_000_000, {"0": 0, "10": 10}, NOT_WHOLE),
    "OP_AUTOCOMPARE_REFERENCE": (
        "cpu",
        {"device": "device", "device,cpu": "device,cpu"},
        {"gpu": "it must be one of cpu, device, device,cpu, identities"},
    ),
    "OP_TOOLS_PERTURB": (
        "own",
        {"bfloat16": "bfloat16", "tf32": "tf32"},
        {"much": "it must be one of own, bfloat16, float16, tf32"},
    ),
    "OP_AUTOCOMPARE_UNTIL_COVERED": (False, SWITCH, NOT_A_SWITCH),
    "OP_AUTOCOMPARE_ONCE": (False, SWITCH, NOT_A_SWITCH),
    "OP_AUTOCOMPARE_EVERY": (1, {"100": 100}, NOT_POSITIVE),
    "OP_AUTOCOMPARE_WORKER": (0, {"2": 2}, NOT_WHOLE),
    "OP_AUTOCOMPARE_MEMORY": (4 * 2**30, BYTES, NOT_BYTES),
    "OP_AUTOCOMPARE_FAIL": (False, SWITCH, NOT_A_SWITCH),
}
BY_NAME = {setting.name: setting for setting in settings.ALL}


def test_every_setting_is_in_this_file_and_listed():
    in_module = [value.name for value in vars(settings).values() if isinstance(value, settings.Setting)]
    assert sorted(CASES) == sorted(BY_NAME) == sorted(in_module)


@pytest.mark.parametrize("name", CASES)
def test_defaults(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    assert BY_NAME[name].get() == CASES[name][0]
    monkeypatch.setenv(name, " ")
    assert BY_NAME[name].get() == CASES[name][0]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [(name, text, value) for name, (_, good, _) in CASES.items() for text, value in good.items()],
)
def test_valid_values(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert BY_NAME[name].get() == value


@pytest.mark.parametrize(
    ("name", "text", "said"), [(name, text, said) for name, (_, _, bad) in CASES.items() for text, said in bad.items()]
)
def test_malformed_values(monkeypatch, name, text, said):
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingError) as error:
        BY_NAME[name].get()
    assert str(error.value) == f"{name}={text!r} cannot be used: {said}. It means: {BY_NAME[name].help}"
    assert isinstance(error.value, OpToolsError)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("3", [3], [2, 4]), ("0,10-12", [0, 10, 12], [1, 13]), (" 100- , 5", [5, 100, 10**9], [99, 6])],
)
def test_numbers_and_ranges(text, inside, outside):
    numbers = settings.NumberRanges(text)
    assert all(number in numbers for number in inside)
    assert not any(number in numbers for number in outside)
    assert "3" not in numbers
