"""What a run has on this worker's disk: its clone, private folders, and the note of who holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.calls import AttemptKey, Lease
from schemas.common import Durable, UtcTime
from system.files import write_atomic
from system.leftovers import RUN_VARIABLE
from system.processes import ALLOWED_ENV, child_env
from system.untrusted import own_folder, remove_tree

_HELD_FILE: Final = "held.json"


class Held(Durable):
    """``held.json``: under which lease this worker has the run, and on what its clone stands.

    It is written once the clone is all that it should be. ``claimed`` is the lease that this worker was about to
    take over from itself; ``setup`` is the digest of the set-up that was done; ``released_at`` is set when the run
    has ended.
    """

    run_id: str
    workflow_id: str
    lease: Lease
    claimed: Lease | None = None
    base_commit: str
    setup: str | None = None
    released_at: UtcTime | None = None

    def is_under(self, lease: Lease) -> bool:
        """Whether the run under this lease is the one noted here: nobody else had it in between."""
        return lease in (self.lease, self.claimed)


@dataclass(frozen=True)
class RunFolder:
    """``<data_dir>/runs/<run_id>``."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def workspace(self) -> Path:
        """The run's clone."""
        return self.path / "ws"

    @property
    def private(self) -> Path:
        """Folders of the attempts' own, and their sessions' files beside them."""
        return self.path / "private"

    @property
    def scratch(self) -> Path:
        """Files on their way to or from the store."""
        return self.path / "scratch"

    def attempt(self, key: AttemptKey) -> Path:
        """Return the private folder of an attempt."""
        return self.private / f"{key.flow_key}.{key.step_id}.{key.visit}.{key.attempt}"

    def held(self) -> Held | None:
        """Return the note of who holds the run; None if there is none that can be read."""
        try:
            return Held.model_validate_json((self.path / _HELD_FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def hold(self, held: Held) -> Held:
        """Write the note, whole or not at all, and return it."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path / _HELD_FILE, held.model_dump_json().encode())
        return held

    def drop(self) -> None:
        """Remove all of it, the note first: without it nothing here counts as a run's."""
        if not self.path.is_symlink():
            with suppress(FileNotFoundError, NotADirectoryError):
                (self.path / _HELD_FILE).unlink()
        remove_tree(self.path)

    def drop_private(self) -> None:
        """Remove the private folders and what was on its way."""
        remove_tree(self.private)
        remove_tree(self.scratch)

    def environment(self, home: Path, names: Collection[str], **extra: str) -> dict[str, str]:
        """Return the whole environment of a child: allowed variables, and a HOME and TMPDIR inside ``home``."""
        own = {"HOME": home / "home", "TMPDIR": home / "tmp"}
        for folder in (self.private, home, *own.values()):
            own_folder(folder)
        given = {name: str(folder) for name, folder in own.items()}
        return child_env(allow=ALLOWED_ENV | set(names), extra={**given, RUN_VARIABLE: self.run_id, **extra})


def drop_run(folder: RunFolder, spool: Path) -> None:
    """Remove all that this worker's disk has of a run: its clone with its savepoints, and logs of its attempts."""
    folder.drop()
    for left in spool.glob(f"{escape(folder.run_id)}.*"):
        remove_tree(left)


def run_folders(runs: Path) -> Iterator[RunFolder]:
    """Yield what this worker's disk has of runs; a link is nobody's run."""
    if runs.is_dir():
        for path in sorted(runs.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield RunFolder(path)
