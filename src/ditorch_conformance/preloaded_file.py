"""Imports the test file that a variable names: what the process that others are forked off does first.

A file that cannot be imported so leaves the processes as bare as spawned ones are; they say what is wrong with it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

VARIABLE = "DITORCH_CONFORMANCE_FILE"

if os.environ.get(VARIABLE):
    from ditorch_conformance.unittest_file import imported

    sys.argv = [os.environ[VARIABLE]]  # as in the worker: torch's tests look at it when they are imported
    with contextlib.suppress(Exception):
        imported(Path(os.environ[VARIABLE]))
