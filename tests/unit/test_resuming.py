"""Which files of sessions are gone on with: those that still hold what they held when they were let go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from session_files import DAMAGES

from transports.port import TransportError
from transports.resuming import drop_mark, keep_mark, require_whole

WHOLE = b"".join(b'{"line": %d}\n' % number for number in range(10_000))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of a session that was let go."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(WHOLE)
    keep_mark(tmp_path, "s", path)
    return path


def test_a_file_that_has_only_grown_is_whole(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b'{"more": 1}\n{"torn')
    require_whole(file.parent, "s", file)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_file_that_lost_some_of_it_is_refused(damage: Callable[[bytes], bytes], file: Path) -> None:
    file.write_bytes(damage(WHOLE))
    with pytest.raises(TransportError, match="lost some") as raised:
        require_whole(file.parent, "s", file)
    assert raised.value.resume_refused


def test_a_file_that_cannot_be_read_is_refused(file: Path) -> None:
    file.unlink()
    with pytest.raises(TransportError, match="cannot be read") as raised:
        require_whole(file.parent, "s", file)
    assert raised.value.resume_refused


def test_without_a_mark_any_file_passes(file: Path) -> None:
    (file.parent / "marks" / "s.json").write_text("{")
    file.write_bytes(b"")
    require_whole(file.parent, "s", file)
    drop_mark(file.parent, "s")
    drop_mark(file.parent, "s")
    require_whole(file.parent, "s", file)


def test_a_session_without_a_file_leaves_no_mark(tmp_path: Path) -> None:
    keep_mark(tmp_path, "s", None)
    keep_mark(tmp_path, "s", tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
