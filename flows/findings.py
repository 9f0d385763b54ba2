"""What the linter says: where, what is wrong, how to mend it."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

PathInFile = tuple[str | int, ...]
"""Where a value is in a file: keys and list indexes from the top."""

Code = Literal[
    "yaml_syntax",
    "yaml_limit",
    "duplicate_key",
    "unknown_key",
    "missing_key",
    "wrong_value",
    "inconsistent",
    "wrong_id",
    "duplicate_step",
    "missing_target",
    "unreachable_step",
    "unbounded_loop",
    "loop_without_gate",
    "no_loop",
    "no_terminal",
    "unknown_agent",
    "bad_persona",
    "bad_file",
    "unknown_transport",
    "unknown_policy",
    "usd_without_cost",
    "unknown_scorer",
    "not_supported",
    "duplicate_gate",
    "report_missing",
    "empty_argv",
    "unknown_input",
    "bad_output",
    "unknown_fact",
    "bad_condition",
    "unknown_param",
    "param_not_filled",
    "argv_in_text",
    "unused_param",
    "param_without_value",
    "bad_default",
    "chain_cycle",
    "chain_too_deep",
    "bad_chained_flow",
    "unknown_step",
    "bad_edit",
]
"""Every kind of finding; docs/flows.md says what each means."""

MAX_FINDINGS = 100
"""How many findings a file gets at most: enough to mend, bounded to say."""

_NEAR = 0.6
_MAX_SAID = 1_000
_MAX_WORD = 100
_MAX_KNOWN = 200
_MAX_LISTED = 40


@dataclass(frozen=True, order=True)
class Finding:
    """One fault of a file; ``line`` and ``column`` count from 1. Findings sort by place; very long words are cut."""

    file: str
    line: int
    column: int
    code: Code
    what: str
    mend: str = ""

    def __post_init__(self) -> None:
        if len(self.what) > _MAX_SAID:
            object.__setattr__(self, "what", f"{self.what[:_MAX_SAID]}…")
        if len(self.mend) > _MAX_SAID:
            object.__setattr__(self, "mend", f"{self.mend[:_MAX_SAID]}…")

    def __str__(self) -> str:
        """Return one line: ``file:line:column code what -> mend``."""
        mend = f" -> {self.mend}" if self.mend else ""
        return f"{self.file}:{self.line}:{self.column} {self.code} {self.what}{mend}"


@dataclass(frozen=True)
class Fault:
    """A fault by the path of the value it is about; a ``Source`` turns it into a finding."""

    path: PathInFile
    code: Code
    what: str
    mend: str = ""
    on_key: bool = False


def dotted(path: PathInFile) -> str:
    """Return a path as people write it: ``steps[1].routing.next``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return the known word that is most like ``word``, or None if none is near; of very many only some are tried."""
    tried = list(itertools.islice(known, _MAX_KNOWN))
    close = get_close_matches(word, tried, n=1, cutoff=_NEAR) if len(word) <= _MAX_WORD else []
    return close[0] if close else None


def one_of(word: str, known: Collection[str]) -> str:
    """Return the mend for a word outside a closed set: the nearest one, and all of them where they are not very many."""
    if not known:
        return "there is none in this version"
    near = nearest(word, known)
    names = sorted(known)
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    listed = f"known: {', '.join(names[:_MAX_LISTED])}{more}"
    return f"did you mean {near!r}? {listed}" if near else listed
