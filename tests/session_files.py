"""Where agents keep their sessions, and how such a file is damaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final


def file_of(state: Path, session_id: str) -> Path:
    """Return the file of a session of a real program, somewhere below the folder in which a run keeps its sessions."""
    found = [*state.rglob(f"*{session_id}.jsonl"), *state.rglob(f"session-*{session_id[:8]}.jsonl")]
    assert len(found) == 1, found
    return found[0]


DAMAGES: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "empty": lambda _: b"",
    "torn": lambda whole: whole[: len(whole) // 2],
    "head": lambda whole: whole.splitlines(keepends=True)[0],
    "garbage": lambda whole: bytes(range(256)) * (len(whole) // 256),
    "zeros": lambda whole: whole[: len(whole) // 2] + bytes(len(whole) // 2),
}
"""What becomes of a file's content: nothing, its first half or line, bytes of all kinds, a second half of zeros."""
