"""Reports of gates: what counts as a pass, and that whatever cannot be read does not."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from activities.reports import MAX_REPORT_BYTES, Report, read_report
from schemas.facts import GateCounts


def read(tmp_path: Path, text: str, parse: Literal["junit", "coverage"] = "junit") -> Report:
    path = tmp_path / "report.xml"
    path.write_text(text)
    return read_report(path, parse)


def test_cases_are_counted_over_all_suites(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        "<testsuites><testsuite><testcase/><testcase><skipped/></testcase></testsuite>"
        "<testsuite><testcase><failure/></testcase><testcase><error/></testcase></testsuite></testsuites>",
    )

    assert report.counts == GateCounts(passed=1, failed=2, skipped=1)
    assert report.fault == "2 of 4 tests failed"


def test_a_clean_report_has_no_fault(tmp_path: Path) -> None:
    assert read(tmp_path, "<testsuite><testcase/></testsuite>").fault is None


def test_an_error_of_a_suite_without_a_case_of_its_own_is_a_failure(tmp_path: Path) -> None:
    report = read(tmp_path, '<testsuite errors="1"><testcase/></testsuite>')

    assert report.counts == GateCounts(passed=1, failed=1, skipped=0)
    assert report.fault is not None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "cannot be read"),
        ("<testsuite", "cannot be read"),
        ("<html/>", "begins with <html>"),
        ("<testsuites/>", "holds no test"),
        ('<!DOCTYPE x [<!ENTITY e "e">]><testsuite><testcase name="&e;"/></testsuite>', "cannot be read"),
        ("\x00", "cannot be read"),
        (" " * (MAX_REPORT_BYTES + 1), "larger than"),
    ],
)
def test_what_cannot_be_read_is_a_fault(tmp_path: Path, text: str, fault: str) -> None:
    found = read(tmp_path, text).fault

    assert found is not None
    assert fault in found


def test_a_report_that_was_not_written_is_a_fault(tmp_path: Path) -> None:
    assert (
        read_report(tmp_path / "none.xml", "coverage").fault
        == "the command wrote no coverage report to {report}"
    )


@pytest.mark.parametrize(("rate", "percent"), [("0", 0.0), ("1.0", 100.0), ("0.81256", 81.26)])
def test_a_line_rate_becomes_a_percentage(tmp_path: Path, rate: str, percent: float) -> None:
    assert read(tmp_path, f'<coverage line-rate="{rate}"/>', "coverage") == Report(percent=percent)


@pytest.mark.parametrize("rate", ["", "much", "1.5", "-0.1", "nan"])
def test_a_line_rate_that_is_none_is_a_fault(tmp_path: Path, rate: str) -> None:
    assert read(tmp_path, f'<coverage line-rate="{rate}"/>', "coverage").fault is not None
