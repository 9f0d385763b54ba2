"""What a step's status is, and when two failures are the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, Literal

from schemas.common import Verification
from schemas.facts import GateFact

SIGNATURE_LENGTH: Final = 16

# Applied in this order to lower-cased text. Possessive quantifiers and look-behinds keep each one linear: no
# position is a second start of the same run of characters.
_MASKS: Final = (
    (re.compile(r"\x1b\[[0-9;]*+[a-z]"), ""),
    (
        re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])"),
        "<uuid>",
    ),
    (
        re.compile(
            r"(?<!\d)\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?:z|[+-]\d\d:?\d\d)?)?"
        ),
        "<time>",
    ),
    (re.compile(r"(?<![\d:])\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?![\d:])"), "<time>"),
    (
        re.compile(r"(?<![\w.])\d++(?:\.\d++)? ?(?:ns|µs|us|ms|s|sec|secs|seconds?|minutes?|min|h|hours?)\b"),
        "<time>",
    ),
    (re.compile(r"(?<![\w.~+@%/\\-])(?:[a-z]:)?[\w.~+@%-]*+(?:[/\\]++[\w.~+@%-]++)++[/\\]?"), "<path>"),
    (re.compile(r"\b(pid|process|thread)([ :=#]{1,3})\d++"), r"\1\2<pid>"),
    (re.compile(r"(?<=\w)\[\d{2,10}\](?=:)"), "[<pid>]"),
    (re.compile(r"\b(line|lines|ln)([ :=#]{1,3})\d++"), r"\1\2<line>"),
    (re.compile(r"(?<=[\w>.)]):\d++(?::\d++)?"), ":<line>"),
    (re.compile(r"\b0x[0-9a-f]++"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-f]{0,127}\d)[0-9a-f]{7,128}+\b"), "<hex>"),
    (re.compile(r"([=_*~#-])\1++"), r"\1"),
    (re.compile(r"\s++"), " "),
)


def gates_passed(gates: Sequence[GateFact], required: Sequence[str], *, changed_after_measure: bool) -> bool:
    """Say whether there are required gates, each measured and passed, on a tree that did not change after."""
    if not required or changed_after_measure:
        return False
    for name in required:
        results = [gate.measured and gate.passed for gate in gates if gate.name == name]
        if not results or not all(results):
            return False
    return True


def verification(
    gates: Sequence[GateFact],
    required: Sequence[str],
    claimed_status: str | None,
    caused: Literal["PARTIAL", "BLOCKED"] | None,
    changed_after_measure: bool,
) -> Verification:
    """Return a step's status from what was measured; ``required`` names the gates that must pass.

    A claim can make it worse (BLOCKED, PARTIAL), never VERIFIED; what the engine ``caused`` beats the claim.
    """
    if gates_passed(gates, required, changed_after_measure=changed_after_measure):
        return "VERIFIED"
    if caused is not None:
        return caused
    claim = (claimed_status or "").strip().casefold()
    if claim == "blocked":
        return "BLOCKED"
    return "PARTIAL" if claim == "partial" else "UNVERIFIED"


def failure_signature(text: str) -> str:
    """Return 16 hex digits that are equal for failures which differ only in times, places and process ids."""
    masked = text.lower()
    for pattern, mask in _MASKS:
        masked = pattern.sub(mask, masked)
    digest = hashlib.sha256(masked.strip().encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:SIGNATURE_LENGTH]
