"""Runs that kept tensors in place of statistics, compared with each other and with those that kept statistics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run
from op_tools.compare_runs.settling import settle
from op_tools.storage import store
from tests.op_tools.compare_runs.test_compare import FAULTS, compared, refused


def test_equal_runs_of_tensors_are_the_same(record):
    code, found = compared(record("a", mode="data"), record("b", mode="data"))
    assert (code, found["first_divergence"], found["before"]) == (0, None, [])
    assert found["counts"]["same"] == found["counts"]["events"] > 40
    assert found["counts"]["steps"] == 2


def test_the_first_divergence_is_the_broken_call_of_tensors_and_of_both_kinds(record):
    good = {mode: record(f"good {mode}", mode=mode) for mode in ("data", "statistics")}
    for number, (fault, op, module, phase, part) in enumerate(FAULTS[1:3]):
        bad = {mode: record(f"bad {mode} {number}", fault, mode=mode) for mode in ("data", "statistics")}
        for a, b in (("data", "data"), ("data", "statistics"), ("statistics", "data")):
            code, found = compared(good[a], bad[b])
            first = found["first_divergence"]
            assert (code, first["kind"], first["step"]) == (1, "guilty", 0), (fault, a, b)
            assert (first["op"], first["module"], first["phase"], first["part"]) == (op, module, phase, part), fault
            assert first["side"] == "b"
            if b == "data":  # it was computed again
                assert Path(first["capture"], "input.pth").exists()
                assert first["reason"]


def test_what_data_proves_wrong_is_in_the_order_in_which_it_ran(record):
    """Whatever numbers the calls have: those of another process, as of a second pass, begin elsewhere."""
    fault = "aten.mm: noise=5e-2"
    found = compare(Run(record("good")), Run(record("bad", fault)))
    first = found.guilty[0]
    assert (first.module, first.phase) == ("down", "backward")
    found.suspects, found.guilty, found.first_divergence = [first], [], None  # as if it had been less clear
    settle(found, record("data", fault, mode="data", ops=["torch.nn.functional.linear"]))
    backward = [place.module for place in found.guilty if (place.step, place.phase) == (0, "backward")]
    assert backward == ["down", "up"]
    assert found.first_divergence is found.guilty[0]


def test_tensors_and_statistics_of_one_program_are_the_same(record):
    code, found = compared(record("a", mode="data"), record("b"))
    assert code == 0
    assert found["counts"]["same"] == found["counts"]["events"] > 40
    assert (found["counts"]["only_a"], found["counts"]["only_b"]) == (0, 0)


def test_backward_is_in_the_order_in_which_it_ran(record):
    data, statistics = Run(record("a", mode="data")), Run(record("b"))
    orders = []
    for run in (data, statistics):
        _, calls = next(run.steps((0, 0)))
        calls = [call for call in calls if not call.site.is_outside]
        ordered = sorted((one.order, call.site.key) for call in calls for one in call.backwards)
        orders.append([key for _, key in ordered])
    assert orders[0] == orders[1]
    assert len(orders[0]) > 5


def test_what_is_wrong_in_the_good_run_is_said(record):
    wrong, right = record("a", "aten.gelu: scale=1.1", mode="data"), record("b", mode="data")
    code, found = compared(wrong, right)
    first = found["first_divergence"]
    assert code == 1
    assert (first["op"], first["side"], first["kind"]) == ("torch.nn.functional.gelu", "a", "guilty")
    assert first["capture"].startswith("a/")


def test_distances_of_tensors_are_exact(record):
    good, bad = record("a", mode="data"), record("b", "aten.gelu: noise=3e-2", mode="data")
    place = compare(Run(good), Run(bad)).guilty[0]
    folders = [next(run.rglob(f"torch.nn.functional.gelu/*/{id}")) for run, id in _of(place, good, bad)]
    x, y = (store.load_part(next(folder.rglob("output.pth"))).args[0].detach().double() for folder in folders)
    assert abs(place.distance - float((x - y).norm() / max(x.norm(), y.norm()))) < 1e-9


def _of(place, good, bad):
    return (good, place.forward_id), (bad, place.other_forward_id)


def test_damaged_and_missing_tensors_are_named_and_the_others_compared(record):
    good, bad = record("a", mode="data"), record("b", mode="data")
    outputs = sorted(bad.rglob("output.pth"))
    outputs[0].write_bytes(outputs[0].read_bytes()[:-50])
    outputs[1].write_bytes(b"")
    shutil.rmtree(outputs[2].parent)
    code, found = compared(good, bad)
    assert (code, found["guilty"]) == (2, []), "the rest is not known"
    assert [str(file) in " ".join(found["not_comparable"]) for file in outputs[:3]] == [True, True, False]
    assert found["counts"]["only_a"] == 1
    assert found["counts"]["events"] > 30


def test_notes_that_are_missing_or_nonsense_do_not_matter(record):
    good, bad = record("a", mode="data", steps=[0]), record("b", mode="data", steps=[0])
    for number, note in enumerate(sorted(bad.rglob("*.json"))):
        note.write_text(("", "[]", "{", json.dumps({"order": -1, "rank": "x", "step": None, "tf32": 3}))[number % 4])
    code, found = compared(good, bad)
    assert code in (0, 2)
    assert found["guilty"] == []


def test_a_folder_without_anything_says_what_to_do(tmp_path):
    (tmp_path / "a").mkdir()
    assert "holds no statistics, and no captured tensors: `ditorch run" in refused(tmp_path / "a", tmp_path / "a")
