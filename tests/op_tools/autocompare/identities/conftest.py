from __future__ import annotations

import pytest

import op_tools


@pytest.fixture
def compared(tmp_path, device):
    """Runs a program under the tool: its results."""

    def run(program, reference="identities", **options):
        with op_tools.OpAutoCompare(reference=reference, out=tmp_path, verbose=0, **options) as tool:
            program()
        return tool.results

    return run
