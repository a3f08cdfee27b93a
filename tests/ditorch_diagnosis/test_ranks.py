"""Programs of two ranks: diagnosed against a run of two and of one, and in lockstep with another run."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from .test_commands import typed

PROGRAM = Path(__file__).parents[1] / "op_tools" / "compare_runs" / "parallel_program.py"
TWO = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(PROGRAM), "batch")
GELU = "torch.nn.functional.gelu"

SECOND_IS_BROKEN = """
import os, runpy, sys
import ditorch
from ditorch.sim import faults

ditorch.install()
if os.environ["RANK"] == "1":
    faults.inject("aten.native_layer_norm: scale=1.2")
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def recorded(out, *arguments, **variables):
    code, _, told = typed("run", "--out", out, *arguments, **variables)
    assert code == 0, told


@pytest.mark.parametrize("good", [TWO, (str(PROGRAM), "one")], ids=["two", "one"])
def test_the_broken_op_of_two_ranks_is_found_and_confirmed(good):
    recorded("good", "--capture=statistics", "--", *good)
    fault = {"DITORCH_FAULTS": "aten.gelu: noise=1e-1"}
    code, printed, told = typed("diagnose", "--good", "good", "--out", "found", "--json", "--", *TWO, **fault)
    found = json.loads(printed)
    assert (code, found["verdict"], found["op"], found["is_confirmed"]) == (1, "found", GELU, True), told
    assert Path(found["reproducer"]).is_file()


def test_each_rank_is_given_what_the_same_rank_was_given():
    chosen = ("--modules", r"blocks\.\d\.(norm1|norm2|up|down)")
    recorded("good", *chosen, "--", *TWO)
    Path("second_is_broken.py").write_text(SECOND_IS_BROKEN)
    launcher, program = TWO[:-2], TWO[-2:]
    recorded("bad", *chosen, "--inputs-from", "good", "--", *launcher, "second_is_broken.py", *program)
    wrong = []
    for rank in (0, 1):
        with Path(f"bad/modules/rank{rank}/own_errors.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if not row["what"].startswith("arrived")]
        assert {row["rank_of_run"] for row in rows} == {str(rank)}
        wrong.append({row["layer"].rpartition(".")[2] for row in rows if row["allclose"] == "False"})
    assert wrong == [set(), {"norm1", "norm2"}]
    assert json.loads(Path("bad/summary.json").read_text())["modules"][0]["ranks"] == [1]
