"""Keys: names of stored files, the same for a folder and for an object store."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from schemas.errors import BadInput

MAX_KEY_BYTES: Final = 1_000
MAX_PART_BYTES: Final = 240
"""Below the 255 bytes of file systems, so that suffixes have room."""
RUN: Final = "run.json"
"""In a run's folder: who holds the run (``RunRecord``)."""
RECEIPT: Final = "receipt.json"
"""In an attempt's folder: its evidence (``StepReceipt``)."""
ENVELOPE: Final = "envelope.json"
"""In an attempt's folder: what it leaves for later steps (``HandoffEnvelope``)."""
PARTIAL: Final = "handoff_partial.json"
"""In the folder of a stopped attempt: all that is needed to go on from there (``PartialHandoff``)."""
PRUNED: Final = ".pruned"
"""Suffix of the key that retention leaves where it removed a file, or the folder of a run."""

_NEVER: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters, surrogates, line and paragraph separators."""
_PLAIN: Final = re.compile(
    r"[A-Za-z0-9_#-][A-Za-z0-9_.#-]{0,100}(?:/[A-Za-z0-9_#-][A-Za-z0-9_.#-]{0,100}){0,8}"
)
"""What nearly all keys are: nothing about them needs a closer look."""


def check_key(key: str) -> str:
    """Return ``key`` if it is a relative path of plain names; raises BadInput (``E_STORE_KEY``).

    What retention adds to a key does not count for its length.
    """
    if _PLAIN.fullmatch(key):
        return key
    measured = key.removesuffix(PRUNED)
    parts = measured.split("/")
    if not key or any(part in {"", ".", ".."} for part in parts):
        raise BadInput("E_STORE_KEY", f"a store key is a relative path without '.' and '..': {key!r}")
    if key.startswith(".") or "\\" in key or any(unicodedata.category(c) in _NEVER for c in key):
        raise BadInput(
            "E_STORE_KEY", f"a store key has no leading dot, backslash or control character: {key!r}"
        )
    if len(measured.encode()) > MAX_KEY_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        raise BadInput(
            "E_STORE_KEY",
            f"a store key has at most {MAX_KEY_BYTES} bytes and {MAX_PART_BYTES} in a part: {key[:80]!r}…",
        )
    return key


def input_key(run_id: str) -> str:
    """Return where it is stored what a run was started with."""
    return f"runs/{run_id}/base/input.json"
