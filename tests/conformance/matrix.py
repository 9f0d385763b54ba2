"""Writes the tables of docs/transports.md: ``python tests/conformance/matrix.py [--check]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests"),
    str(ROOT / "tests" / "integration"),
    str(Path(__file__).parent),
]

from benches import NAMES  # noqa: E402 - found by the line above

from transports import registry  # noqa: E402
from transports.conformance import CHECKS, PROOFS, Check, claims  # noqa: E402

PAGE: Final = ROOT / "docs" / "transports.md"
USAGE: Final = 2


def capabilities() -> str:
    """Return the table of flags: what each transport claims, and the checks that prove it."""
    found = {name: registry.open(name).capabilities for name in NAMES}
    rows = [_row("", *(f"`{name}`" for name in NAMES), "proved by"), _row(*["---"] * (len(NAMES) + 2))]
    for flag in PROOFS:
        cells = ["yes" if flag in claims(found[name]) else "-" for name in NAMES]
        rows.append(_row(f"`{flag}`", *cells, ", ".join(sorted(PROOFS[flag]))))
    for field in ("max_context_tokens", "provider_name"):
        values = [getattr(found[name], field) for name in NAMES]
        rows.append(
            _row(f"`{field}`", *(f"{value:,}" if isinstance(value, int) else value for value in values), "")
        )
    rows.append(
        _row("reports cost", *("yes" if registry.open(name).reports_cost else "-" for name in NAMES), "")
    )
    return "\n".join(rows)


def scenarios() -> str:
    """Return the table of checks: which transport holds each, or by which flag it cannot."""
    rows = [_row("check", *(f"`{name}`" for name in NAMES)), _row(*["---"] * (len(NAMES) + 1))]
    rows += [_row(check.name.replace("_", " "), *_cells(check)) for check in CHECKS]
    return "\n".join(rows)


def _cells(check: Check) -> Iterator[str]:
    for name in NAMES:
        if check.claim is not None and check.claim not in claims(registry.open(name).capabilities):
            yield f"cannot (`{check.claim}`)"
        else:
            yield "holds"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _filled(text: str) -> str:
    for marker, table in (("capabilities", capabilities()), ("scenarios", scenarios())):
        begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{table}\n{end}{tail}"
    return text


def main(arguments: list[str]) -> int:
    """Write the tables, or with ``--check`` say whether they are up to date; returns the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: matrix.py [--check]\n")
        return USAGE
    text = PAGE.read_text(encoding="utf-8")
    filled = _filled(text)
    if arguments:
        if text != filled:
            sys.stderr.write(f"{PAGE.name} is not up to date: run python tests/conformance/matrix.py\n")
        return int(text != filled)
    PAGE.write_text(filled, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
