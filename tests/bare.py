"""A virtual environment that has torch and what torch requires, and nothing else."""

from __future__ import annotations

import importlib.metadata
import re
import venv
from pathlib import Path


def environment(folder):
    """Makes it; nothing is downloaded, the packages are links to those that are here. Its Python."""
    venv.create(folder, with_pip=False)
    there = next((folder / "lib").glob("python*")) / "site-packages"
    wanted, known = ["torch"], set()
    for name in wanted:  # grows as we go
        distribution = importlib.metadata.distribution(name)
        for top in {Path(str(file)).parts[0] for file in distribution.files or ()} - {"..", "__pycache__", "bin"}:
            if not (there / top).exists():
                (there / top).symlink_to(distribution.locate_file(top))
        for required in distribution.requires or ():
            one = re.match(r"[\w.-]+", required)[0].lower()
            if "extra ==" not in required and one not in known and _is_installed(one):
                known.add(one)
                wanted.append(one)
    return folder / "bin" / "python"


def _is_installed(name):
    try:
        return bool(importlib.metadata.distribution(name).files)
    except importlib.metadata.PackageNotFoundError:
        return False
