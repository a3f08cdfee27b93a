"""Each chip that a vendor's package brings, end to end: a stand-in package starts the simulated accelerator under the
chip's device name, and `import ditorch` finds it. One process per chip, because PyTorch has room for one of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ditorch.backend import Backend
from ditorch.backends import ACCELERATORS, ASCEND, BIREN, DIPU, ENFLAME, HABANA, MTHREADS

# PyTorch has names of its own for the devices of the other two.
STAND_INS = [
    pytest.param(backend, module, id=module)
    for backend in ACCELERATORS
    for module in backend.modules
    if backend not in (DIPU, HABANA)
]


def write_stand_in(folder: Path, module: str, backend: Backend, more: str = "") -> None:
    package = folder / module
    package.mkdir()
    start = f"from ditorch import sim\nsim.start({backend.device_type!r}, collectives={backend.collectives!r})\n"
    (package / "__init__.py").write_text(f"__version__ = '9.8.7'\n{start}{more}")


# torch.compile takes seconds: it is tried for one chip, and for all of them with the slow tests.
COMPILED = [
    pytest.param(*stand_in.values, how, id=f"{stand_in.id}-{how}", marks=pytest.mark.slow if is_slow else ())
    for number, stand_in in enumerate(STAND_INS)
    for how, is_slow in (("compiled", number > 0), ("not compiled", number == 0))
]


@pytest.mark.parametrize(("backend", "module", "how"), COMPILED)
def test_the_chip_of_an_installed_package_is_found_and_computes(run_python, tmp_path, backend, module, how):
    write_stand_in(tmp_path, module, backend)
    code = """
        import sys, torch, ditorch
        from ditorch import doctor, surroundings
        name, device, how = sys.argv[1:]
        assert ditorch.backend().name == name, ditorch.backend()
        assert torch.ones(2, device=device).device.index == 0

        # a program written for CUDA
        assert torch.cuda.is_available()
        model = torch.nn.Linear(2, 2).cuda()
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(1, 2, device="cuda:0")).sum()
        scaler.scale(loss).backward()
        assert model.weight.grad.is_cuda and str(loss.device) == "cuda:0" and getattr(loss, f"is_{device}")
        torch.cuda.synchronize()
        graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
        assert isinstance(graph, getattr(getattr(torch, device), f"{device.upper()}Graph"))
        with torch.cuda.graph(cuda_graph=graph, pool=torch.cuda.graph_pool_handle()):
            doubled = x * 2
        graph.replay()
        assert doubled.tolist() == [2, 2]
        backend = torch.distributed.distributed_c10d.BackendConfig(torch.distributed.Backend("cpu:gloo,cuda:nccl"))
        assert backend.get_device_backend_map() == {"cpu": "gloo", device: ditorch.backend().collectives}

        if how == "not compiled":
            surroundings._compiled = lambda *_: None
        report = doctor.examine()
        assert report.healthy, report.checks
        assert [f.name for f in report.findings if f.reason is None] == [name, "sim", "cpu"], report.findings
        assert report.collectives == f"{ditorch.backend().collectives} is available"
        assert report.versions[ditorch.backend().module] == "9.8.7"
        assert not ditorch.backend().migration_active()
    """
    environment = {"PYTHONPATH": str(tmp_path), "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": ""}
    done = run_python(code, backend.name, backend.device_type, how, **environment)
    assert done.stderr.startswith(f"ditorch: {backend.name} ({backend.title}) torch ")


def test_dipu_is_found_as_the_owner_of_torch_cuda(run_python, tmp_path):
    (tmp_path / "torch_dipu.py").write_text(
        "import torch\nfrom ditorch import sim\nsim.start('dipu', collectives='dicl')\n"
        "torch.cuda.is_available = lambda: True\n"
        "plain = torch.ones\n"
        "torch.ones = lambda *sizes, device: plain(*sizes, device=device.replace('cuda', 'dipu'))\n"
    )
    code = """
        import torch, ditorch
        from ditorch import discover
        assert ditorch.backend().name == "dipu"
        assert ditorch.backend().migration() == "torch_dipu"
        assert torch.ones(2, device="cuda").device.type == "dipu"
        [cuda] = [finding for finding in discover.survey() if finding.name == "cuda"]
        assert cuda.reason == "torch.cuda stands for dipu here, by torch_dipu", cuda
    """
    run_python(code, PYTHONPATH=str(tmp_path), DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="")


def test_dipu_without_its_cuda_names_cannot_be_used(monkeypatch):
    monkeypatch.setenv("DIPU_MOCK_CUDA", "False")
    assert DIPU.unavailable() == "DIPU_MOCK_CUDA=False takes away the cuda names that ditorch uses"


def test_a_chip_in_the_place_of_cuda_is_found_once(run_python, tmp_path):
    obey = (
        "import os, torch\n"
        "if os.environ.get('TORCH_TRANSFER_TO_NPU') == '1':\n"
        "    import torch_npu.contrib.transfer_to_npu\n"
    )
    write_stand_in(tmp_path, "torch_npu", ASCEND, obey)
    (tmp_path / "torch_npu/contrib").mkdir()
    (tmp_path / "torch_npu/contrib/transfer_to_npu.py").write_text(
        "import torch\ntorch.cuda.is_available = torch.npu.is_available\n"
    )
    code = """
        import torch, ditorch
        assert torch.cuda.is_available()
        assert ditorch.backend().name == "ascend"
        assert ditorch.backend().migration_active()
    """
    run_python(code, PYTHONPATH=str(tmp_path), DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="", TORCH_TRANSFER_TO_NPU="1")


@pytest.mark.parametrize("backend", [pytest.param(backend, id=backend.name) for backend in (ASCEND, MTHREADS, ENFLAME)])
def test_a_package_that_rewrites_torch_cuda_by_itself_is_left_alone(run_python, tmp_path, backend):
    """Whatever it is called: no module of ours is named, and no switch."""
    rewrite = "import torch\ndef is_available(): return True\ntorch.cuda.is_available = is_available\n"
    write_stand_in(tmp_path, backend.module, backend, rewrite)
    code = """
        import sys, torch
        plain = torch.cuda.synchronize
        import ditorch
        assert ditorch.backend().name == sys.argv[1]
        assert ditorch.backend().migration() == ditorch.backend().module
        assert torch.cuda.synchronize is plain and ditorch._redirect is None
    """
    run_python(code, backend.name, PYTHONPATH=str(tmp_path), DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="")


@pytest.mark.parametrize("backend", [pytest.param(backend, id=backend.name) for backend in (ASCEND, BIREN, ENFLAME)])
def test_the_vendors_migration_is_used_where_only_it_brings_the_device(run_python, tmp_path, backend):
    """The package alone has no torch.<device>: its migration starts the device, and answers for torch.cuda."""
    migration = next(name for name in backend.migrations if name.startswith(backend.module))
    *folders, file = migration.split(".")
    folder = tmp_path.joinpath(*folders)
    folder.mkdir(parents=True)
    (tmp_path / backend.module / "__init__.py").write_text("__version__ = '9.8.7'\n")
    (folder / f"{file}.py").write_text(
        "import torch\nfrom ditorch import sim\n"
        f"sim.start({backend.device_type!r}, collectives={backend.collectives!r})\n"
        "torch.cuda.is_available = lambda: True\n"
    )
    code = """
        import sys, torch, ditorch
        name, device, migration = sys.argv[1:]
        assert ditorch.backend().name == name
        assert migration in sys.modules and ditorch.backend().migration() == migration
        assert torch.ones(2, device=device).sum().item() == 2
        assert torch.cuda.is_available() and ditorch._redirect is None
    """
    arguments = (backend.name, backend.device_type, migration)
    run_python(code, *arguments, PYTHONPATH=str(tmp_path), DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="")


def test_the_vendors_migration_is_not_used_where_there_is_only_no_device(run_python, tmp_path):
    no_device = "import torch\ntorch.npu.is_available = lambda: False\n"
    write_stand_in(tmp_path, "torch_npu", ASCEND, no_device)
    (tmp_path / "torch_npu/contrib").mkdir()
    (tmp_path / "torch_npu/contrib/transfer_to_npu.py").write_text("raise SystemExit('it must not be imported')\n")
    code = """
        from ditorch.backends import ASCEND
        assert ASCEND.unavailable() == "torch.npu.is_available() is False"
        assert ASCEND.migration() is None
    """
    run_python(code, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize(
    ("backend", "migration"),
    [pytest.param(backend, name, id=name) for backend in ACCELERATORS for name in backend.migrations],
)
def test_the_vendors_own_migration_is_seen_once_it_is_imported(monkeypatch, backend, migration):
    assert not backend.migration_active()
    monkeypatch.setitem(sys.modules, migration, ModuleType(migration))
    assert backend.migration() == migration
    assert backend.migration_active()


@pytest.mark.parametrize(
    "backend", [pytest.param(backend, id=backend.name) for backend in ACCELERATORS if backend.migration_switch]
)
def test_a_migration_switch_counts_until_the_vendors_package_had_its_chance_to_obey(monkeypatch, backend):
    variable, _, value = backend.migration_switch.partition("=")
    monkeypatch.setenv(variable, "0")
    assert not backend.migration_active()
    monkeypatch.setenv(variable, value)
    assert backend.migration() == backend.migration_switch
    monkeypatch.setitem(sys.modules, backend.module, ModuleType(backend.module))  # a release that ignored the switch
    assert not backend.migration_active()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("3,1", "must name each device once, in ascending order, such as 1,3"),
        ("0,0", "must name each device once, in ascending order, such as 0"),
        ("5", "torch.npu.is_available() is False (ASCEND_RT_VISIBLE_DEVICES=5 may hide the devices)"),
    ],
)
def test_ascend_says_how_its_visible_devices_hide_all_of_them(monkeypatch, value, reason):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", value)
    assert reason in ASCEND.why_no_devices()
    assert f"ASCEND_RT_VISIBLE_DEVICES={value}" in ASCEND.why_no_devices()
