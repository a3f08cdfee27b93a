"""Results as files: the reference's CSV and JSON lists, JUnit XML; and everything that results can be read from."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

from ditorch_conformance import journal
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.results import FAILING, FAILURE, PASSING, SKIPPED, WRONG, Case, Result, unique

# the reference's columns, then ours
COLUMNS = ("file", "classname", "name", "status", "info", "message", "line", "where", "op", "seconds", "tries")
_DISABLED = re.compile(r"(\S+) \((?:[\w.]*\.)?(\w+)\)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # XML has no form for these


@dataclass
class Table:
    """The results of one run, or of one published table. `never_run`: cases that were found and not reached."""

    title: str
    results: list[Result]
    never_run: list[Case] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)  # of a file one case in so many was taken; unless told, all
    without_cases: list[str] = field(
        default_factory=list
    )  # files that have none for this device, or none that is wanted

    @property
    def is_whole(self) -> bool:
        """Whether all cases of its files were wanted."""
        chosen = any(self.options.get(name) for name in ("wanted", "ops", "dtypes"))
        return not chosen and all(one_in == 1 for one_in in self.slices.values())


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Table:
    """A run's folder, a CSV or the reference's archive of one, or a JSON list of disabled tests."""
    if path.is_dir():
        contents = journal.read(path)
        options = contents.options or {}
        slices = dict.fromkeys(contents.cases, options.get("one_in", 1))
        without = [file for file, cases in contents.cases.items() if not cases]
        return Table(path.name, contents.results(), contents.never_run(), options, slices, without)
    if not path.is_file():
        raise ConformanceError(f"There is no {path}: give the folder of a run, or a CSV, tar or JSON file of results.")
    try:
        if path.suffix == ".json":
            return Table(path.name, _disabled_tests(json.loads(path.read_text(encoding="utf-8"))))
        if path.suffix == ".csv":
            with open(path, encoding="utf-8", newline="") as file:
                return Table(path.name, _rows(file))
        with tarfile.open(path) as archive:
            member = next((member for member in archive if member.isfile() and member.name.endswith(".csv")), None)
            content = archive.extractfile(member) if member else None
            if content is None:
                raise ValueError("it holds no CSV file")
            return Table(path.name, _rows(io.TextIOWrapper(content, encoding="utf-8", newline="")))
    except json.JSONDecodeError as error:
        raise ConformanceError(f"{path} cannot be read as results: it is no JSON ({error})") from None
    except tarfile.TarError:  # its message has a line for each method that it tried
        raise ConformanceError(f"{path} cannot be read as results: it is no CSV, tar or JSON file") from None
    except (EOFError, zlib.error):
        raise ConformanceError(f"{path} cannot be read as results: the archive ends too early") from None
    except (ValueError, KeyError, OSError, csv.Error) as error:
        raise ConformanceError(f"{path} cannot be read as results: {error}") from None


def read_all(paths: Sequence[Path]) -> Table:
    """Several runs as one: of other files, or of other slices of them. Options are those that all have."""
    tables = [read(path) for path in paths]
    return Table(
        ", ".join(table.title for table in tables),
        unique(result for table in tables for result in table.results),
        [case for table in tables for case in table.never_run],
        {name: value for name, value in tables[0].options.items() if all(t.options.get(name) == value for t in tables)},
        {file: one_in for table in tables for file, one_in in table.slices.items()},
        [file for table in tables for file in table.without_cases],
    )


def _rows(file: TextIO) -> list[Result]:
    csv.field_size_limit(2**30)  # messages with whole tensors in them
    reader = csv.DictReader(file)
    missing = {"classname", "name", "status"}.difference(reader.fieldnames or ())
    if missing:
        raise ValueError(f"it has no column {', '.join(sorted(missing))}")
    return unique(_result(row, reader.line_num) for row in reader)


def _result(row: dict[str, str], line: int) -> Result:
    if not row["status"]:
        raise ValueError(f"line {line} has no status")
    tries = tuple((row.get("tries") or row["status"]).split())
    return Result(
        Case(row.get("file", ""), row["classname"], row["name"]),
        *(row["status"], row.get("info", ""), row.get("message", ""), int(row.get("line") or 0)),
        *(row.get("where", ""), row.get("op", ""), float(row.get("seconds") or 0)),
        tries=tries,
    )


def _disabled_tests(tests: Any) -> list[Result]:
    """PyTorch's form: "test_name (__main__.TestClass)": [address, [platforms]]; a vendor's list of what fails there."""
    if not isinstance(tests, dict):
        raise ValueError("it is no JSON object of tests")
    found = [(_DISABLED.fullmatch(key), key, value) for key, value in tests.items()]
    if not any(match for match, _, _ in found):
        raise ValueError(f"'{next(iter(tests), '')}' is not of the form 'test_name (__main__.TestClass)'")
    # torch_npu's list has a name without its class, too
    cases = [(Case("", match[2], match[1]) if match else Case("", "", key), value) for match, key, value in found]
    return [Result(case, FAILURE, "disabled", _reason(value), tries=(FAILURE,)) for case, value in cases]


def _reason(value: Any) -> str:
    """Of [address, [platforms]], or of {kind: reason}, as torch_npu sorts some of its own."""
    if isinstance(value, dict):
        return "; ".join(f"{kind}: {reason}" for kind, reason in value.items())
    address, platforms = (*value, "", [])[:2] if isinstance(value, list) else ("", [])
    return " ".join(filter(None, [address, *platforms]))


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(folder: Path, table: Table) -> None:
    """All files of a run."""
    results = table.results
    put(folder / "results.csv", "".join(_csv_lines(results)))
    of_status = {"passed": PASSING, "skipped": {SKIPPED}, "failed": FAILING}
    for name, statuses in of_status.items():
        cases = [result.case for result in results if result.status in statuses]
        put(folder / f"{name}_test_case.json", json.dumps(_by_file(cases), indent=1))
    put(folder / "never_tested_device_test_case.json", json.dumps(_by_file(table.never_run), indent=1))
    put(folder / "junit.xml", junit(table))


def put(path: Path, text: str) -> None:
    """Files appear whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ConformanceError(f"{path} cannot be written ({error.strerror}): choose another place.") from None


def _csv_lines(results: Sequence[Result]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        values = {**vars(result), **result.case._asdict(), "tries": " ".join(result.tries)}
        values["message"] = " ".join(result.message.split())  # one row is one line
        writer.writerow([values[column] for column in COLUMNS])
    yield buffer.getvalue()


def _by_file(cases: Iterable[Case]) -> dict[str, list[str]]:
    """As the reference lists them: file, then `Class.name`."""
    found: dict[str, list[str]] = {}
    for case in cases:
        found.setdefault(case.file, []).append(f"{case.classname}.{case.name}")
    return found


def junit(table: Table) -> str:
    """For CI systems: one suite per file."""
    root = ElementTree.Element("testsuites", name=table.title)
    suites: dict[str, ElementTree.Element] = {}
    for result in table.results:
        suite = suites.get(result.case.file)
        if suite is None:
            suite = suites[result.case.file] = ElementTree.SubElement(root, "testsuite", name=result.case.file)
        names = {**result.case._asdict(), "line": str(result.line), "time": f"{result.seconds:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", names)
        kinds = {SKIPPED: "skipped", FAILURE: "failure", WRONG: "failure", **dict.fromkeys(PASSING, "")}
        kind = kinds.get(result.status, "error")
        if kind:
            what = {"type": _clean(result.info or result.status), "message": _clean(result.message)}
            ElementTree.SubElement(case, kind, what)
    for suite in suites.values():
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
        suite.set("tests", str(len(suite)))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _clean(text: str) -> str:
    return _CONTROL.sub("?", text)
