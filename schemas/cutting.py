"""Texts that are cut where they are too long to be kept or sent."""

from __future__ import annotations

import re

MAX_TOOL_TEXT = 2_000
MAX_NOTE = 40
_NOTE = re.compile(r"… \[\d{1,20} characters in all\]\Z")
_NOTE_WITHIN = 64


def cut(text: str, limit: int = MAX_TOOL_TEXT) -> str:
    """Return at most about ``limit`` characters of ``text``: the head, and how long it was; cut only once."""
    if len(text) <= limit or (len(text) <= limit + MAX_NOTE and head_of_cut(text) is not None):
        return text
    return f"{text[:limit]}… [{len(text)} characters in all]"


def head_of_cut(text: str) -> int | None:
    """Return how many characters of a cut text are its own, before the note; None for one that is not cut."""
    note = _NOTE.search(text, max(0, len(text) - _NOTE_WITHIN))
    return note.start() if note else None
