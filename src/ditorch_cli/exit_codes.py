"""What commands tell by their exit code. `ditorch run` and `ditorch monitor` have that of the program."""

from __future__ import annotations

FINE = 0
FOUND = 1  # what the command looks for: a call that is wrong, a case that fails and is not known to, a guilty op
FAILED = 2  # the command line cannot be understood, a file cannot be used, or it is our own mistake
INTERRUPTED = 130  # Ctrl-C, as a shell has it
