"""Every environment variable: its default, what it may be, and what is said when it is something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ditorch import settings
from ditorch.errors import DitorchError, SettingError

SWITCH = {"0": False, "1": True, " 1 ": True}
NOT_A_SWITCH = dict.fromkeys(["2", "yes", "true", "-1"], "it must be 0 or 1")
NOT_A_COUNT = "it must be a whole number from 1 to 64"
NOT_BYTES = "it must be a number of bytes, such as 8000000, 512MB or 2GiB"

# name: (default, {valid text: value}, {malformed text: what is said})
CASES = {
    "DITORCH_BACKEND": ("", {"sim": "sim", " ascend ": "ascend"}, {}),
    "DITORCH_DISABLE_MOCK": (False, SWITCH, NOT_A_SWITCH),
    "DITORCH_SHOW_DEVICE_AS_CUDA": (True, SWITCH, NOT_A_SWITCH),
    "DITORCH_NATIVE_REDIRECT": (True, SWITCH, NOT_A_SWITCH),
    "DITORCH_FAULTS": ("", {"aten.mm: scale=1.01": "aten.mm: scale=1.01"}, {}),
    "DITORCH_FLOAT32_COLLECTIVES": (
        (),
        {"all": ("all_reduce", "reduce", "reduce_scatter"), "reduce, all_reduce": ("reduce", "all_reduce")},
        {"broadcast": "there is no broadcast among all_reduce, reduce, reduce_scatter and all"},
    ),
    "DITORCH_SIM_DEVICES": (
        2,
        {"1": 1, "64": 64, " 8 ": 8},
        dict.fromkeys(["0", "65", "-1", "1.5", "two", "1e1"], NOT_A_COUNT),
    ),
    "DITORCH_SIM_MEMORY": (
        0,
        {
            "8000000": 8_000_000,
            "8000000B": 8_000_000,
            "512MB": 512_000_000,
            "512 mb": 512_000_000,
            "2GiB": 2 * 1024**3,
            "1.5k": 1500,
            "1.5Ki": 1536,
            "1TiB": 1024**4,
        },
        dict.fromkeys(["-1", "much", "512XB", "1,5GB", "GB", "1e9"], NOT_BYTES),
    ),
    "DITORCH_SIM_16BIT": (
        "",
        {"float32": "float32", " float32 ": "float32"},
        dict.fromkeys(["1", "fp32", "float64", "FLOAT32"], "it must be float32, or unset"),
    ),
    "DITORCH_SIM_PROFILE": ("", {"ascend910": "ascend910", "chip.json": "chip.json"}, {}),
    "DITORCH_REHEARSAL": (None, {"/tmp/x": Path("/tmp/x")}, {}),  # noqa: S108
    "DITORCH_CONTROL": (None, {"/tmp/x": Path("/tmp/x")}, {}),  # noqa: S108
    "DITORCH_MESSAGES": (None, {"/tmp/x": Path("/tmp/x")}, {}),  # noqa: S108
    "DITORCH_PROGRESS": (True, SWITCH, NOT_A_SWITCH),
    "DITORCH_SIM_TRITON": (
        "interpret",
        {"interpret": "interpret", "off": "off"},
        dict.fromkeys(["1", "on", "Interpret"], "it must be interpret or off"),
    ),
    "DITORCH_CACHE": (None, {"/var/cache/x": Path("/var/cache/x"), "~/x": Path.home() / "x"}, {}),
}
BY_NAME = {setting.name: setting for setting in settings.ALL}

each_setting = pytest.mark.parametrize("setting", settings.ALL, ids=BY_NAME)


def test_every_setting_is_in_this_file():
    assert sorted(CASES) == sorted(setting.name for setting in settings.ALL)


def test_every_setting_of_the_module_is_listed():
    in_module = [value.name for value in vars(settings).values() if isinstance(value, settings.Setting)]
    assert sorted(in_module) == sorted(setting.name for setting in settings.ALL)


@each_setting
def test_a_variable_that_is_unset_or_empty_is_the_default(setting, monkeypatch):
    default = CASES[setting.name][0]
    monkeypatch.delenv(setting.name, raising=False)
    assert setting.get() == default
    for empty in ("", "  "):
        monkeypatch.setenv(setting.name, empty)
        assert setting.get() == default


@pytest.mark.parametrize(
    ("name", "text", "value"), [(name, text, value) for name, case in CASES.items() for text, value in case[1].items()]
)
def test_a_valid_value_is_read_when_it_is_asked_for(name, text, value, monkeypatch):
    monkeypatch.setenv(name, text)  # long after the import
    assert BY_NAME[name].get() == value
    assert type(BY_NAME[name].get()) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "said"), [(name, text, said) for name, case in CASES.items() for text, said in case[2].items()]
)
def test_a_malformed_value_names_the_variable_the_value_and_what_it_may_be(name, text, said, monkeypatch):
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingError) as caught:
        BY_NAME[name].get()
    assert str(caught.value) == f"{name}={text!r} cannot be used: {said}. It means: {BY_NAME[name].help}"


def test_a_malformed_value_is_caught_as_a_ValueError_and_as_ours(monkeypatch):  # noqa: N802 - it is the class's name
    monkeypatch.setenv("DITORCH_SIM_DEVICES", "many")
    with pytest.raises(ValueError, match=re.escape("DITORCH_SIM_DEVICES='many' cannot be used")) as caught:
        settings.SIM_DEVICES.get()
    assert isinstance(caught.value, DitorchError)
    assert caught.value.__suppress_context__  # the parser's own error says nothing more


@each_setting
def test_the_help_is_one_phrase_for_the_table(setting):
    assert re.fullmatch(r"[^\n|]+[^.\n|]", setting.help)


def test_a_misspelt_variable_is_said_at_import(run_python):
    done = run_python("import ditorch", DITORCH_DISABLE_MOCK="0", DITORCH_SIM_DEVICE="3", DITORCH_RUN="1")
    said = [line for line in done.stderr.splitlines() if "variable" in line]
    assert said == ["ditorch: the variable DITORCH_SIM_DEVICE is set but not read; did you mean DITORCH_SIM_DEVICES?"]
