"""A chip's profile from results: measured by the op matrix, or derived from a published table."""

from __future__ import annotations

import json

import pytest

from ditorch.sim.chip_profile import ChipProfile
from ditorch_conformance import profiles
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.results import Case, Result
from ditorch_conformance.tables import Table


def op(name, dtype, status="right", message="", info="", **details):
    return Result(Case("ops", name, dtype), status, info, message, tries=(status,), details=details)


def published(name, status, message="", classname="TestUnaryUfuncsPRIVATEUSE1"):
    return Result(Case("test_x.py", classname, name), status, "", message, tries=(status,))


def read(profile, tmp_path):
    (tmp_path / "chip.json").write_text(profiles.text(profile))
    assert json.loads(profiles.text(profile)) == profile
    return ChipProfile.read(str(tmp_path / "chip.json"))


def test_a_measured_profile(tmp_path):
    raised = "forward: NotImplementedError: Could not run 'aten::erfinv'"
    points = [[1e3, 1e-5], [1e6, 2e-5]]
    table = Table(
        "a run",
        [
            op("erfinv", "bfloat16", "unsupported", raised, "NotImplementedError", raising="aten::erfinv"),
            op(
                "ndtri",
                "bfloat16",
                "unsupported",
                "forward: RuntimeError: too large",
                "RuntimeError",
                raising="aten::cat",
            ),
            op("cat", "bfloat16", kernels=["aten::cat"], max_ulp=0.5, device_ms=0.0123456, deterministic=False),
            op("hypot", "float32", kernels=["aten::hypot"], falls_back=["aten::hypot"]),
            op("kernel.mm", "bfloat16", work="flops", times=points, accumulation="float32"),
            op("nn.Linear", "bfloat16", max_ulp=3.0),
        ],
    )
    made = profiles.of_tables([table], "a chip")
    assert (made["source"], made["dtypes"]) == ("measured", ["float32", "bfloat16"])
    # cat raised once and worked another time: it is there
    assert made["kernels"]["aten::cat"] == {"partly_missing": {"bfloat16": "RuntimeError: too large"}}
    assert made["ops"]["cat"] == {"bfloat16": {"max_ulp": 0.5, "device_ms": 0.0123, "deterministic": False}}
    assert made["ops"]["erfinv"] == {"bfloat16": {"status": "unsupported"}}
    assert "nn.Linear" not in made["ops"]
    chip = read(made, tmp_path)
    assert chip.missing("aten::erfinv", ["bfloat16"]) == "NotImplementedError: Could not run 'aten::erfinv'"
    assert chip.missing("aten::erfinv_", ["bfloat16"])
    assert chip.missing("aten::erfinv", ["float32"]) is None
    assert chip.missing("aten::cat", ["bfloat16"]) is None
    assert chip.falls_back("aten::hypot", ["float32"])
    assert chip.accumulation("aten::mm", "bfloat16") == "float32"
    assert chip.seconds("aten::mm", "bfloat16", {"bytes": 1.0, "flops": 1e6}) == pytest.approx(2e-5)


def test_a_derived_profile(tmp_path):
    lists = "call aclnn{} failed, detail: self not implemented for {}, should be in dtype support list [{}]. [ERROR]"
    floats = "DT_FLOAT,DT_FLOAT16,DT_BFLOAT16,DT_DOUBLE,DT_COMPLEX64,DT_COMPLEX128,DT_COMPLEX32"
    whole = "DT_INT8,DT_INT16,DT_INT32,DT_INT64,DT_UINT8,"
    table = Table(
        "published",
        [
            published(
                "test_a_erfinv_privateuse1_bool", "error", lists.format("Erfinv", "DT_BOOL", floats + "," + whole)
            ),
            published(
                "test_b_fill_privateuse1_bool", "error", lists.format("InplaceFillScalar", "DT_BOOL", whole + floats)
            ),
            published("test_c_fill_privateuse1_bool", "passed"),
            published("test_h_x_privateuse1_bool", "error", lists.format("MaxDim", "DT_BOOL", floats + "," + whole)),
            published("test_i_y_privateuse1_bool", "error", lists.format("InplaceOne", "DT_BOOL", floats)),
            published("test_d_eq_mlu_complex64", "error", "MLU eq don't support tensor dtype ComplexFloat."),
            published("test_e_x_mlu_int16", "error", "\"random_\" not implemented for 'Short'"),
            published("test_f_hypot_mlu_float16", "error", "\"hypot_cpu\" not implemented for 'Half'"),
            published(
                "test_g_eq_cpu_complex128", "error", "MLU eq don't support tensor dtype ComplexDouble.", "TestXCPU"
            ),
        ],
    )
    made = profiles.of_tables([table], "a chip")
    assert made["source"] == "derived"
    missing = {name: set(facts.get("missing", ())) for name, facts in made["kernels"].items()}
    # fill passes for bool elsewhere, so that its list cannot be the whole truth
    assert missing == {
        "aten::erfinv": {"bool"},
        "aten::max.dim": {"bool"},  # by torch's name; it has none for One
        "aten::eq": {"complex64"},
        "aten::random": {"int16"},
        "aten::hypot": set(),
    }
    chip = read(made, tmp_path)
    assert chip.falls_back("aten::hypot", ["float32"])
    assert chip.missing("aten::random_.from", ["int16"])


def test_results_without_kernels_are_no_profile():
    with pytest.raises(ConformanceError, match="say nothing about kernels"):
        profiles.of_tables([Table("a run", [published("test_a_cuda", "passed")])], "a chip")
    right = Result(Case("ops", "neg", "float32"), "right", tries=("right",))
    with pytest.raises(ConformanceError, match=r"Nothing is missing .* no times: .* --ops 'kernel\.\*'"):
        profiles.of_tables([Table("a run", [right])], "a chip")
