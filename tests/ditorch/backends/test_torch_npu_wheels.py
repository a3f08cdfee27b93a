"""The Ascend backend against the real torch_npu: its wheels are downloaded and read, never installed.

Needs the network, about 70 MB: `pytest -m vendor`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile

import pytest

from ditorch.backends import ASCEND

pytestmark = pytest.mark.vendor

OLDEST, NEWEST = "torch-npu==2.1.*", "torch-npu"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# What ditorch asks torch.npu itself; what the redirect passes on is taken as it is there.
ASKED = {"is_available", "device_count", "get_device_name", "get_device_properties", "mem_get_info"}


class Wheel:
    """The Python sources of a wheel."""

    def __init__(self, path):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            self.sources = {name: archive.read(name).decode() for name in names}

    def defined_in(self, name):
        """The names that importing a module gives: defined, assigned or imported at its top level."""
        names = set()
        for node in ast.parse(self.sources[name]).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update(alias.asname or alias.name for alias in node.names)
            elif isinstance(node, ast.Assign):
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        return names

    def called_with(self, function):
        """The first argument of every call of `function`, where it is a plain string."""
        calls = [
            node
            for source in self.sources.values()
            if function in source
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == function and node.args
        ]
        return {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}

    def mentions(self, text):
        return any(text in source for source in self.sources.values())


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def requirement(request):
    return request.param


@pytest.fixture(scope="module")
def wheel(requirement, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    pip += ["--python-version", "3.11", *(f"--platform={platform}" for platform in PLATFORMS)]
    done = subprocess.run([*pip, "--dest", str(folder), requirement], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("torch_npu-*.whl")
    return Wheel(path)


def test_the_package_and_its_migration_module_have_our_names(wheel):
    assert "torch_npu/__init__.py" in wheel.sources
    for module in ASCEND.migrations:
        assert f"{module.replace('.', '/')}.py" in wheel.sources


def test_the_device_has_our_name(wheel):
    assert ASCEND.device_type in wheel.called_with("rename_privateuse1_backend")
    assert ASCEND.device_type in wheel.called_with("_register_device_module")


def test_the_device_module_has_what_we_ask(wheel):
    assert wheel.defined_in("torch_npu/npu/__init__.py") >= ASKED


def test_the_collectives_have_our_name(wheel):
    assert ASCEND.collectives in wheel.called_with("register_backend")


def test_the_variable_that_hides_devices_has_our_name(wheel):
    assert wheel.mentions(ASCEND.visible_devices)


def test_the_migration_switch_is_obeyed_by_new_releases_only(wheel, requirement):
    variable = ASCEND.migration_switch.partition("=")[0]
    assert wheel.mentions(variable) == (requirement == NEWEST)
