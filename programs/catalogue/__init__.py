"""Every program, in the order of the table."""

from __future__ import annotations

from ..record import Program
from .examples import EXAMPLES
from .libraries import LIBRARIES
from .repositories import REPOSITORIES
from .research import RESEARCH

ALL: tuple[Program, ...] = (*REPOSITORIES, *EXAMPLES, *RESEARCH, *LIBRARIES)
