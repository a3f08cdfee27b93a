"""What results become: files, causes, known failures, comparisons, a page."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

import ditorch_cli
from ditorch_cli.conformance_text import show_summary
from ditorch_conformance import causes, diff, known, page, summary, tables
from ditorch_conformance import journal as journals
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.results import Attempt, Case, Result, dtype_of, full_name, portable, unique


def result(name, status="passed", message="", info="", classname="TestThingCUDA", file="test_thing.py", **more):
    return Result(Case(file, classname, name), status, info, message, tries=(status,), **more)


def failing(name, message, info="RuntimeError", **more):
    return result(name, "error", message, info, **more)


def test_the_name_of_a_case_without_its_device():
    case = Case("test_ops.py", "TestCommonCUDA", "test_out_add_cuda_bfloat16")
    same = Case("test_ops.py", "TestCommonPRIVATEUSE1", "test_out_add_privateuseone_bfloat16")
    assert portable(case) == portable(same) == Case("test_ops.py", "TestCommon", "test_out_add_bfloat16")
    assert dtype_of(case) == "bfloat16"
    assert dtype_of(case._replace(name="test_cast_cuda_int64_float16")) == "float16"
    assert dtype_of(case._replace(name="test_sum_cuda")) == ""


@pytest.mark.parametrize(("variant", "name"), [("", "mm"), ("decomposed", "mm.decomposed")])
def test_the_name_of_an_op_in_older_releases(variant, name):
    assert full_name(SimpleNamespace(name="mm", variant_test_name=variant)) == name  # they have no op.full_name


@pytest.fixture
def table():
    return tables.Table(
        "a run",
        [
            result("test_a_cuda"),
            failing("test_b_cuda_float16", "\"random_\" not implemented for 'Half'", line=7, op="b", where="x.py:f"),
            result("test_c_cuda", "skipped", "Only runs on cpu", "skip"),
            result("test_d_cuda", "crash", '\x00 <b> & "quoted"\nsecond line', "SIGSEGV"),
            result("test_e_cuda", "flaky"),
        ],
        [Case("test_thing.py", "TestThingCUDA", "test_f_cuda")],
    )


def test_the_files_of_a_run(table, tmp_path):
    tables.write(tmp_path, table)
    with open(tmp_path / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:7] == ["file", "classname", "name", "status", "info", "message", "line"]
    assert [row["status"] for row in rows] == ["passed", "error", "skipped", "crash", "flaky"]
    assert (rows[1]["line"], rows[1]["op"]) == ("7", "b")
    for name, cases in {
        "passed_test_case": ["test_a_cuda"],
        "skipped_test_case": ["test_c_cuda"],
        "failed_test_case": ["test_b_cuda_float16", "test_d_cuda"],
        "never_tested_device_test_case": ["test_f_cuda"],
    }.items():
        expected = {"test_thing.py": [f"TestThingCUDA.{case}" for case in cases]}
        assert json.loads((tmp_path / f"{name}.json").read_text()) == expected
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]  # noqa: S314 - our own file
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")} == {
        "name": "test_thing.py",
        "tests": "5",
        "failures": "0",
        "errors": "3",
        "skipped": "1",
    }
    assert suite.find("testcase[@name='test_d_cuda']/error").get("message") == '? <b> & "quoted"\nsecond line'
    again = tables.read(tmp_path / "results.csv").results
    assert [(r.case, r.status, r.op) for r in again] == [(r.case, r.status, r.op) for r in table.results]


PUBLISHED = """file,classname,name,status,info,message,line
test_a.py,TestACUDA,test_x_cuda_float32,passed,,,10
test_a.py,TestACUDA,test_y_cuda_float32,error,RuntimeError,"call aclnnAdd failed,
 detail:EZ1001 of 3",12
test_a.py,TestACUDA,test_y_cuda_float32,error,RuntimeError,call aclnnAdd failed,12
test_a.py,TestACPU,test_x_cpu_float32,passed,,,10
"""


@pytest.fixture
def published(tmp_path):
    """As the reference publishes: a CSV in a compressed archive."""
    path = tmp_path / "chip_summary_of_pytorch_test_case_testing.csv.tar"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("chip_summary_of_pytorch_test_case_testing.csv")
        member.size = len(PUBLISHED.encode())
        archive.addfile(member, io.BytesIO(PUBLISHED.encode()))
    return path


def test_the_references_archive_is_read_and_compared(published, tmp_path):
    before = tables.read(published)
    assert [r.case.name for r in before.results] == ["test_x_cuda_float32", "test_y_cuda_float32", "test_x_cpu_float32"]
    after = tables.Table(
        "sim",
        [
            result("test_x_sim_float32", "failure", classname="TestASIM", file="test_a.py"),
            result("test_y_sim_float32", classname="TestASIM", file="test_a.py"),
            result("test_z_sim", classname="TestASIM", file="test_a.py"),
        ],
    )
    found = diff.compare(before, after)
    assert [change.case.name for change in found.gained] == ["test_y_float32"]
    assert [change.case.name for change in found.lost] == ["test_x_float32"]
    assert ([case.name for case in found.only_after], found.only_before, found.same) == (["test_z"], [], 0)
    assert found.as_dictionary()["gained"][0]["before"] == "error"

    disabled = tmp_path / "disabled.json"
    disabled.write_text(json.dumps({"test_y_privateuse1_float32 (__main__.TestAPRIVATEUSE1)": ["", ["linux"]]}))
    found = diff.compare(tables.read(disabled), after)
    assert [change.case.name for change in found.gained] == ["test_y_float32"]


def test_a_vendors_lists_of_disabled_tests(tmp_path):
    """As torch_npu has them: names with hyphens, one without its class, models of the chip, or kinds with a reason."""
    (tmp_path / "disabled.json").write_text(
        json.dumps(
            {
                "test_nearest_nearest-exact_npu (__main__.TestNNPRIVATEUSE1)": ["", [""]],
                "test_neg_view_npu_float64": ["", [""]],
                "test_fx (fx.test_matcher.TestMatcher)": ["only test_fx.py", ["A2", "910A"]],
            }
        )
    )
    cases = {str(r.case): r.message for r in tables.read(tmp_path / "disabled.json").results}
    assert cases == {
        "::TestNNPRIVATEUSE1.test_nearest_nearest-exact_npu": "",
        "::.test_neg_view_npu_float64": "",
        "::TestMatcher.test_fx": "only test_fx.py A2 910A",
    }
    (tmp_path / "kinds.json").write_text(
        json.dumps({"test_cov_npu_complex64 (__main__.TestTorchDeviceTypePRIVATEUSE1)": {"DTYPE": "no aclnnDiv"}})
    )
    mine = tables.Table("sim", [result("test_cov_cuda_complex64", classname="TestTorchDeviceTypeCUDA")])
    found = diff.compare(tables.read(tmp_path / "kinds.json"), mine)
    assert [change.before.message for change in found.gained] == ["DTYPE: no aclnnDiv"]


def test_the_command_compares(published, tmp_path, monkeypatch, capsys):
    tables.write(
        tmp_path,
        tables.Table("mine", [result("test_x_cuda_float32", "error", classname="TestACUDA", file="test_a.py")]),
    )
    monkeypatch.setattr("sys.argv", ["ditorch", "conformance", "diff", str(published), str(tmp_path / "results.csv")])
    with pytest.raises(SystemExit) as ended:
        ditorch_cli.main()
    assert ended.value.code == 1
    assert "0 gained, 1 lost" in capsys.readouterr().out

    (tmp_path / "other.csv").write_text("file,classname,name,status\ntest_b.py,TestBCUDA,test_x_cuda,passed\n")
    monkeypatch.setattr("sys.argv", ["ditorch", "conformance", "diff", str(published), str(tmp_path / "other.csv")])
    with pytest.raises(SystemExit):
        ditorch_cli.main()
    assert "They have no case in common" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("table.csv", "a,b\n1,2\n", "it has no column classname, name, status"),
        ("table.csv", "file,classname,name,status\na,b,c,passed\na,b\n", "line 3 has no status"),
        ("archive.tar", "nonsense", r"cannot be read as results: it is no CSV, tar or JSON file$"),
        ("list.json", "{", r"cannot be read as results: it is no JSON \(Expecting property name"),
        ("list.json", '{"nonsense": 1}', "'nonsense' is not of the form"),
    ],
)
def test_what_holds_no_results_is_said(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConformanceError, match=reason):
        tables.read(tmp_path / name)
    with pytest.raises(ConformanceError, match=r"There is no .*missing.csv"):
        tables.read(tmp_path / "missing.csv")
    with pytest.raises(ConformanceError, match=r"There is no run in .*journal.jsonl is missing"):
        tables.read(tmp_path)
    (tmp_path / "journal.jsonl").write_text('{"options": {}}\nnonsense\n')
    with pytest.raises(ConformanceError, match=r"journal.jsonl line 2 is not a run's: 'nonsense'"):
        tables.read(tmp_path)


def test_an_archive_that_ends_too_early_is_said(published, monkeypatch, capsys):
    published.write_bytes(published.read_bytes()[:-40])
    monkeypatch.setattr("sys.argv", ["ditorch", "conformance", "report", str(published)])
    with pytest.raises(SystemExit) as ended:
        ditorch_cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("cannot be read as results: the archive ends too early\n")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "results.csv").mkdir()
    with pytest.raises(ConformanceError, match=r"results.csv cannot be written \(Is a directory\)"):
        tables.put(tmp_path / "results.csv", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("sys.argv", ["ditorch", "conformance", "ops", "--out", str(tmp_path / "file" / "out")])
    with pytest.raises(SystemExit) as ended:
        ditorch_cli.main()
    assert ended.value.code == 2
    assert "out cannot be made (Not a directory): choose another --out." in capsys.readouterr().err


def test_numbers_of_any_size_are_one_cause():
    """1,234 is one number, as 12 is; a shape without spaces is several."""
    numbers = ("12", "1,234", "14,754,136", "-1,234.5")
    said = {causes.without_numbers(failing("a", f"errors are {one} times those", "")) for one in numbers}
    assert said == {"errors are # times those"}
    assert causes.without_numbers(failing("a", "of shape [2,1234]", "")) == "of shape [#,#]"


def test_failures_are_grouped_by_cause():
    found = causes.group(
        [
            failing("test_a_cuda_float16", "Could not run 'aten::foo' with shape [2, 3]", seconds=3.0, op="foo"),
            failing("test_b_cuda_int64", "Could not run 'aten::foo' with shape [4, 55, 6]", seconds=0.1, op="foo"),
            failing("test_c_cuda_int8", "\"random_\" not implemented for 'Char'"),
            result(
                "test_d_cuda", "failure", "Tensor-likes are not close!\n\nMismatched elements: 3 / 4", "AssertionError"
            ),
            result("test_e_cuda", "timeout", "no answer within 60 s"),
            result("test_f_cuda"),
        ]
    )
    assert [(c.kind, c.raising, c.count) for c in found] == [
        ("unsupported", "aten::foo", 2),
        ("input-generator", "random_", 1),
        ("wrong", "AssertionError", 1),
        ("timeout", "", 1),
    ]
    assert found[0].smallest.case.name == "test_b_cuda_int64"  # the quickest
    assert (found[0].dtypes, found[0].ops) == ({"float16": 1, "int64": 1}, {"foo": 2})
    assert (
        found[0].as_dictionary({})["reproducer"].endswith("ditorch run test_thing.py TestThingCUDA.test_b_cuda_int64")
    )
    on_cpu = causes.reproducer(Case("test_thing.py", "TestThingCPU", "test_b_cpu"))
    assert on_cpu == "PYTORCH_TESTING_DEVICE_ONLY_FOR=cpu python test_thing.py TestThingCPU.test_b_cpu"
    by_own_name = causes.reproducer(Case("test_thing.py", "TestThingPRIVATEUSE1", "test_b_npu_int8"))
    assert by_own_name.startswith("ditorch conformance pytorch --source .. --device own -k 'TestThing*.test_b_*_int8' ")
    assert by_own_name.endswith(' --out "$(mktemp -d)" test_thing.py')


def test_a_reproducer_can_be_pasted_anywhere():
    of_cuda = {"kind": "pytorch", "source": "/home/me/my pytorch", "device": "cuda"}
    case = Case("distributed/test_thing.py", "TestThing", "test_b[1, 2]")  # a class for no device
    path = "'/home/me/my pytorch/test/distributed/test_thing.py'"
    assert causes.reproducer(case, of_cuda) == (
        f"PYTORCH_TESTING_DEVICE_ONLY_FOR=cuda ditorch run {path} 'TestThing.test_b[1, 2]'"
    )
    assert causes.reproducer(case, {**of_cuda, "device": "cpu"}) == (
        f"PYTORCH_TESTING_DEVICE_ONLY_FOR=cpu python {path} 'TestThing.test_b[1, 2]'"
    )
    assert causes.reproducer(case, {**of_cuda, "device": "own"}) == (
        "ditorch conformance pytorch --source '/home/me/my pytorch' --device own -k 'TestThing.test_b[[]1, 2]' "
        '--out "$(mktemp -d)" distributed/test_thing.py'
    )
    broken = Case("test_thing.py", "", "import")  # torch's files print their options once they are imported
    assert causes.reproducer(broken, of_cuda) == (
        "PYTORCH_TESTING_DEVICE_ONLY_FOR=cuda ditorch run '/home/me/my pytorch/test/test_thing.py' --help"
    )
    op = Case("ops", "nn.Linear", "float16")
    assert causes.reproducer(op, {"kind": "ops", "device": "own", "samples": 2}) == (
        'ditorch conformance ops --device own --ops nn.Linear --dtypes float16 --samples 2 --out "$(mktemp -d)"'
    )


def test_only_news_fail_and_what_is_known_is_written(tmp_path):
    path = tmp_path / "known.txt"
    path.write_text("# comment\ntest_thing.py::*.test_a_*  # a reason\ntest_other.py::*  # not run here\n"
                    "test_thing.py::*.test_c*  # mended by now\n")  # fmt: skip
    results = [failing("test_a_cuda", "1"), failing("test_b_cuda", "Could not run 3 of [x]"), result("test_c_cuda")]
    before = known.read(path)
    assert [r.case.name for r in before.news(results)] == ["test_b_cuda"]
    assert [pattern.reason for pattern in before.mended(results)] == ["mended by now"]
    before.updated(results).write(path)
    after = known.read(path)
    assert after.news(results) == after.mended(results) == []
    assert [pattern.reason for pattern in after.patterns] == [
        "a reason",
        "not run here",
        "unsupported: RuntimeError: Could not run N of [x]",
    ]
    assert path.read_text().splitlines()[:3] == [
        "# comment",
        "test_thing.py::*.test_a_*  # a reason",
        "test_other.py::*  # not run here",
    ]
    path.unlink()
    assert known.read(path, may_be_missing=True).patterns == []
    with pytest.raises(ConformanceError, match=r"no file .*known.txt of known failures; --update-known writes one"):
        known.read(path)
    for wrong, reason in ((tmp_path, "Is a directory"), (tmp_path / "bytes", "it is no text")):
        (tmp_path / "bytes").write_bytes(b"\xff\xfe")
        with pytest.raises(ConformanceError, match=f"cannot be read as known failures: {reason}"):
            known.read(wrong)
    with pytest.raises(ConformanceError, match=r"new/known.txt cannot be written: there is no folder .*new\."):
        known.read(tmp_path / "new" / "known.txt", may_be_missing=True)  # said before the run and not after it
    path.write_text("test_thing.py::*\n")
    with pytest.raises(ConformanceError, match=r"known.txt line 1 is not a known failure: 'test_thing.py::\*'"):
        known.read(path)


def test_a_known_failure_that_no_case_has_is_told(tmp_path, capsys):
    patterns = "test_thing.py::*.test_a_*", "test_thing.py::*.test_aa_*", "test_other.py::*.test_a_*"
    expected = known.Known([known.Pattern(text, "a reason") for text in patterns])
    run = tables.Table("a run", [failing("test_a_cuda", "1")])
    show_summary(run, None, expected)
    assert capsys.readouterr().out.endswith(
        "are not among the known ones.\n  no such case  test_thing.py::*.test_aa_*\n"
    )
    assert summary.as_dictionary(run, None, expected)["unmatched"] == ["test_thing.py::*.test_aa_*"]
    run.slices = {"test_thing.py": 20}  # it may be among those that were left out
    assert summary.unmatched(run, expected) == []


def test_a_report_with_known_failures_ends_with_1_for_others(tmp_path, monkeypatch, capsys):
    run = tables.Table("mine", [failing("test_a_cuda", "1"), result("test_b_cuda")])
    tables.write(tmp_path, run)
    for known_failures, code in (("test_thing.py::*.test_a_*  # a reason\n", 0), ("other.py::*  # a reason\n", 1)):
        (tmp_path / "known.txt").write_text(known_failures)
        words = ["ditorch", "conformance", "report", tmp_path / "results.csv", "--known", tmp_path / "known.txt"]
        monkeypatch.setattr("sys.argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as ended:
            ditorch_cli.main()
        assert ended.value.code == code


def test_the_share_of_what_passes_on_the_cpu():
    def on_cpu(name, status="passed"):
        return result(name, status, classname="TestThingCPU")

    baseline = [on_cpu("test_a_cpu"), on_cpu("test_b_cpu"), on_cpu("test_c_cpu"), on_cpu("test_d_cpu", "failure")]
    here = [
        result("test_a_cuda"),
        failing("test_b_cuda", ""),
        result("test_c_cuda", "skipped"),
        failing("test_d_cuda", ""),
    ]
    agreed = summary.agreement(here, baseline)
    assert (agreed.run, agreed.passed, agreed.share) == (2, 1, 0.5)
    text = summary.markdown(tables.Table("x", here), tables.Table("cpu", baseline))
    assert "| test_thing.py | all | 4 | 1 | 2 | 0 | 1 | 2 | 1 (50.00 %) | 0 | 50.00 % |" in text
    expected = known.Known(
        [known.Pattern("*test_b_*", "CUDA's own words"), known.Pattern("*test_d_*", "so on the CPU")]
    )
    agreed = summary.agreement(here, baseline, expected)
    assert (agreed.run, agreed.passed, agreed.known, agreed.share_without_known) == (2, 1, 1, 1.0)


def test_runs_of_several_files_and_slices_are_summed_up_as_one(tmp_path, monkeypatch, capsys):
    for file, options in (("test_a.py", {}), ("test_b.py", {"one_in": 8})):
        for device in ("cuda", "cpu"):
            made = journals.Journal(tmp_path / f"{device}_{file}", {"kind": "pytorch", "device": device, **options})
            case = Case(file, f"TestThing{device.upper()}", f"test_x_{device}")
            made.add_cases(file, [case])
            made.add(Attempt(case, "failure" if (file, device) == ("test_b.py", "cuda") else "passed"))
            made.close()
    folders = [[tmp_path / f"{device}_{file}" for file in ("test_a.py", "test_b.py")] for device in ("cuda", "cpu")]
    baselines = [word for folder in folders[1] for word in ("--baseline", folder)]
    words = ["ditorch", "conformance", "report", *folders[0], *baselines, "--markdown"]
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    with pytest.raises(SystemExit):
        ditorch_cli.main()
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| test_a.py | all | 1 | 1 | 0 | 0 | 0 | 1 | 1 (100.00 %) | 0 | 100.00 % |",
        "| test_b.py | 1 in 8 | 1 | 0 | 1 | 0 | 0 | 1 | 0 (0.00 %) | 0 | 0.00 % |",
        "| all |  | 2 | 1 | 1 | 0 | 0 | 2 | 1 (50.00 %) | 0 | 50.00 % |",
    ]
    assert tables.read_all(folders[0]).options == {"kind": "pytorch", "device": "cuda"}


def test_the_table_by_file_tells_what_was_not_reached():
    table = tables.Table("a run", [result("test_a")], never_run=[Case("test_thing.py", "TestThingCUDA", "test_b")])
    assert summary.markdown(table).splitlines()[2] == "| test_thing.py | all, 1 not reached | 1 | 1 | 0 | 0 | 0 |"


def test_what_is_skipped_in_one_run_and_passes_in_another_is_not_flaky():
    """As where one of them had more devices."""
    assert [r.status for r in unique([result("test_a", "skipped", "two devices"), result("test_a")])] == ["passed"]
    assert [r.status for r in unique([result("test_a", "skipped"), result("test_a", "error"), result("test_a")])] == [
        "flaky"
    ]


def test_long_names_of_files_are_whole_in_the_summary(capsys):
    names = [f"distributed/checkpoint/_experimental/test_{name}.py" for name in ("staging", "builder")]
    statuses = ("passed", "failure", "error", "timeout", "skipped")
    results = [result(f"test_{status}", status, file=name) for name in names for status in statuses]
    show_summary(tables.Table("a run", results), None, known.Known())
    first_words = [row.split()[0] for row in capsys.readouterr().out.splitlines() if row.strip()]
    assert {*names} <= {*first_words}


def test_the_page_escapes_what_results_say(table):
    text = page.page(table)
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "<td class='bad' title='1 error'>error</td>" in text  # op b in float16
    assert "<script>" in text
    assert "src=" not in text  # it needs nothing else


def test_the_page_in_a_browser(tmp_path):
    """On a phone: it fits, rows are searched and filtered, and the arrow keys tell what a cell knows."""
    from ..ditorch_report import browser

    def matrix(op, status, message="", **details):
        return result("float32", status, message, classname=op, file="ops", op=op, details=details)

    results = [matrix("add", "right", max_ulp=0.5), matrix("erfinv", "wrong", "forward: off by 1.1", max_ulp=9.0)]
    (tmp_path / "report.html").write_text(page.page(tables.Table("a run", results, options={"kind": "ops"})))
    with browser.chromium() as chromium:
        view = chromium.new_context(viewport=browser.PHONE, color_scheme="dark").new_page()
        complaints = []
        view.on("console", lambda message: complaints.append(message.text))
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.goto((tmp_path / "report.html").as_uri())
        rows = view.locator(".matrix tbody tr:visible")
        assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 20, 23)"
        assert rows.count() == 2
        view.keyboard.press("/")
        view.keyboard.type("ADD")
        view.wait_for_function("document.querySelector('.matrix').textContent && "
                               "document.querySelectorAll('.matrix tbody tr:not([hidden])').length === 1")  # fmt: skip
        assert rows.all_inner_texts() == ["add\tright"]
        view.keyboard.press("Escape")
        assert rows.count() == 2
        view.check("#failing")
        assert rows.all_inner_texts() == ["erfinv\twrong"]
        view.focus(".matrix")
        view.keyboard.press("ArrowDown")
        assert view.inner_text("#told") == "erfinv float32: wrong; forward: off by 1.1, off by up to 9 ulp"
        assert complaints == []


def test_the_op_matrix_has_its_figures_on_the_page_and_known_failures(tmp_path):
    def matrix(op, dtype, status, **details):
        return result(dtype, status, classname=op, file="ops", op=op, details=details)

    table = tables.Table(
        "ops_cuda",
        [
            matrix("add", "float32", "right", max_ulp=0.5, speedup=3.0, deterministic=False),
            matrix("igamma", "bfloat16", "unsupported", raising="aten::igamma"),
            matrix("igamma", "float16", "wrong", raising="forward"),
        ],
    )
    text = page.page(table)
    assert "title='off by up to 0.5 ulp, 3 times the CPU&#x27;s speed, other bits each time'>right</td>" in text
    assert summary.failing_most(summary.by_op(table.results)) == [("igamma", 2)]
    (tmp_path / "known.txt").write_text("ops::igamma.bfloat16  # CUDA has no kernel for it\n")
    news = known.read(tmp_path / "known.txt").news(table.results)
    assert [str(one.case) for one in news] == ["ops::igamma.float16"]
    better = tables.Table("after", [matrix("igamma", "bfloat16", "right"), matrix("add", "float32", "wrong")])
    changed = diff.compare(table, better)
    assert [str(change.case) for change in changed.gained] == ["ops::igamma.bfloat16"]
    assert [str(change.case) for change in changed.lost] == ["ops::add.float32"]
