"""Reading what a gate wrote about itself: JUnit and Cobertura files. Unreadable is never a pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from schemas.facts import GateCounts
from system.untrusted import read_regular

MAX_REPORT_BYTES = 20 * 1024 * 1024
_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Report:
    """What a report says: test counts or a percentage, and the reason why it is no pass, if it is none."""

    counts: GateCounts | None = None
    percent: float | None = None
    fault: str | None = None


def read_report(path: Path, parse: Literal["junit", "coverage"]) -> Report:
    """Read a report file; a fault is part of the answer, never an exception."""
    try:
        data = read_regular(path, max_bytes=MAX_REPORT_BYTES + 1)
    except OSError:
        return Report(fault=f"the command wrote no {parse} report to {{report}}")
    if len(data) > MAX_REPORT_BYTES:
        return Report(fault=f"the {parse} report is larger than {MAX_REPORT_BYTES} bytes")
    try:
        root = fromstring(data)
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        return Report(fault=f"the {parse} report cannot be read: {error}")
    return _junit(root) if parse == "junit" else _coverage(root)


def _junit(root: Element) -> Report:
    if root.tag not in {"testsuites", "testsuite"}:
        return Report(fault=f"the junit report begins with <{root.tag[:80]}>")
    passed = failed = skipped = 0
    for case in root.iter("testcase"):
        marks = {child.tag for child in case}
        if marks & {"failure", "error"}:
            failed += 1
        elif "skipped" in marks:
            skipped += 1
        else:
            passed += 1
    # A file that could not be collected is an error of its suite and of no test case.
    suite_errors = sum(
        _number(suite, "errors") + _number(suite, "failures") for suite in root.iter("testsuite")
    )
    failed = max(failed, suite_errors)
    counts = GateCounts(passed=passed, failed=failed, skipped=skipped)
    if passed + failed + skipped == 0:
        return Report(counts=counts, fault="the junit report holds no test")
    if failed:
        return Report(counts=counts, fault=f"{failed} of {passed + failed + skipped} tests failed")
    return Report(counts=counts)


def _coverage(root: Element) -> Report:
    try:
        percent = round(float(root.get("line-rate", "")) * 100, 2)
    except ValueError:
        return Report(fault="the coverage report says no line-rate")
    if not 0 <= percent <= 100:  # noqa: PLR2004 - a percentage; NaN is refused too
        return Report(fault=f"the coverage report says a line-rate of {percent} %")
    return Report(percent=percent)


def _number(element: Element, name: str) -> int:
    text = element.get(name, "0")
    return int(text) if _COUNT.fullmatch(text) else 0
