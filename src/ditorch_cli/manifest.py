"""manifest.json in a run's folder: what ran, where, and with what. docs/run.md describes it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FILE = "manifest.json"
SCHEMA = "ditorch.run/1"
_MAX_CODE_BYTES = 1_000_000  # larger files are data
_MAX_COMMAND_SECONDS = 10  # for a command that tells something
_TOLD = re.compile(
    r"(OP|DITORCH|CUDA|CUBLAS|CUDNN|NVIDIA|TORCH|PYTORCH|TORCHELASTIC|NCCL|GLOO|HCCL|ASCEND|MUSA|MLU|XPU|SYCL|HABANA|"
    r"PYTHON|OMP|MKL|SLURM)_?.*|.*AUTOCOMPARE_ERROR_TOLERANCE.*|.*_OP_DTYPE_CAST_DICT|"
    r"(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|ON_ALERT", re.IGNORECASE)  # webhooks have tokens in them


def begun(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What is known before the program starts."""
    told = {name: text for name, text in sorted(environment.items()) if _TOLD.fullmatch(name)}
    return {
        "schema": SCHEMA,
        "command": shlex.join(command),
        "folder": os.getcwd(),
        "git": _git(),
        "files": _checksums(command),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": sys.version.partition(" ")[0],
        "packages": dict(sorted((one.name, one.version) for one in importlib.metadata.distributions() if one.name)),
        "variables": {name: text for name, text in told.items() if not _SECRET.search(name)},
        "started": time.time(),
        "ended": None,
        "status": None,
    }


def ended(folder: Path, summary: dict[str, Any], model: dict[str, Any], status: int) -> dict[str, Any]:
    """The same, with what the processes told."""
    found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    processes = summary["processes"]
    first = processes[0] if processes else {}
    device = dict(first.get("device", {}))
    device["driver"] = driver(device.get("command"))
    found.update(
        ended=time.time(),
        status=status,
        torch=first.get("torch"),
        device=device,
        world_size=max((one["world_size"] for one in processes), default=1),
        seeds={f"rank {one['rank']}, pid {one['pid']}": one["seed"] for one in processes},
        **model,
    )
    return found


def write(folder: Path, content: dict[str, Any]) -> None:
    write_whole(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """A reader sees the old file or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", errors="replace")
    temporary.replace(path)


def _git() -> dict[str, Any] | None:
    """The commit of the working directory, and whether something in it differs."""
    commit = _said(["git", "rev-parse", "HEAD"])
    if not commit:
        return None
    changed = _said(["git", "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit.strip(), "has_changes": None if changed is None else bool(changed.strip())}


def _checksums(command: list[str]) -> dict[str, str]:
    """Of the files that the command names, the program and its configuration: not all code is in git."""
    found = {}
    for path in map(Path, command):
        with contextlib.suppress(OSError):  # no file, or not a readable one
            content = path.read_bytes() if path.is_file() and path.stat().st_size <= _MAX_CODE_BYTES else b"\0"
            if b"\0" not in content:  # as in Python itself
                found[path.name] = hashlib.sha256(content).hexdigest()[:16]
    return found


def driver(command: str | None) -> str | None:
    """Its version, as the vendor's command tells it."""
    if command is None:
        return None
    if shutil.which("nvidia-smi") and command.startswith("nvidia-smi"):
        told = _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
        return told.splitlines()[0].strip() if told and told.strip() else None
    told = _said(shlex.split(command))
    match = re.search(r"(?:driver[ _-]*)?version\s*[:=]?\s*v?(\d[\w.]*)", told or "", re.IGNORECASE)
    return match[1] if match else None


def _said(command: list[str]) -> str | None:
    """What a command prints; None where it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MAX_COMMAND_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
