"""Several processes that talk by collectives, started once for all tests of a module.

Every function of the module called `do_…` runs in each process, with its rank and device; what it returns goes through
JSON to the tests. A function that fails in one process may leave the others out of step: the rest is not run.
"""

from __future__ import annotations

import importlib
import json
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from filelock import FileLock

Function = Callable[[int, str], Any]


def start(module: str, size: int, backend: str, temporary: pytest.TempPathFactory, worker: str) -> Path:
    """Runs the functions of a module in `size` processes, unless another worker of pytest did. Returns their folder."""
    base = temporary.getbasetemp()
    folder = (base if worker == "master" else base.parent) / module
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            torch.multiprocessing.start_processes(_main, (module, size, backend, folder), size, start_method="spawn")
    return folder


def read(folder: Path, function: Function) -> list[Any]:
    """What a function returned in each process."""
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    broken = [
        value["error"] for rank in ranks for value in rank.values() if isinstance(value, dict) and "error" in value
    ]
    assert not broken, broken[0]
    return [rank[function.__name__] for rank in ranks]


def _main(rank: int, name: str, size: int, backend: str, folder: Path) -> None:
    torch.set_num_threads(1)
    module = importlib.import_module(name)
    device = module.start_rank(rank)
    bound = torch.device(device, rank) if getattr(module, "BOUND", False) else None  # the group is bound to a device
    where = f"file://{folder}/rendezvous"
    patience = timedelta(minutes=2)  # of those that wait for one that failed
    dist.init_process_group(backend, where, timeout=patience, rank=rank, world_size=size, device_id=bound)
    results = {}
    for key, function in sorted(vars(module).items()):
        if key.startswith("do_"):
            try:
                results[key] = function(rank, device)
            except Exception:  # noqa: BLE001  (whatever it is, the test shows it)
                results[key] = {"error": traceback.format_exc()}
                break
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
