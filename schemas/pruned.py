"""What retention leaves in place of evidence that it removed."""

from __future__ import annotations

from schemas.common import Durable, UtcTime


class Pruned(Durable):
    """A marker: when something was removed, and, for a whole run, its ``files`` with their sizes in bytes.

    That of a run is ``runs/<run_id>.pruned``, and names files within the run's folder; that of a single file stands
    beside it, with the same ending. ``pruned_at`` is None where the marker does not say.
    """

    pruned_at: UtcTime | None = None
    files: dict[str, int] = {}

    @property
    def words(self) -> str:
        """When it was removed, as people read it: ``pruned on 2025-01-02``."""
        return f"pruned on {self.pruned_at:%Y-%m-%d}" if self.pruned_at else "removed by retention"
