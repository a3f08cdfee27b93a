"""Memory and utilisation of a run: `python -m op_tools.process_monitor --pid PID`, also known as `ditorch monitor`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: Python looks for modules beside this file, where op_tools itself is not
    here = Path(__file__).parent.absolute()  # in a checkout, or a link to or a copy of the folder at its root
    sys.path[:1] = map(str, (here.parent, here.resolve().parent, here.parent / "src"))

from ditorch_cli.monitor import command

if __name__ == "__main__":
    command(prog_name="python -m op_tools.process_monitor")
