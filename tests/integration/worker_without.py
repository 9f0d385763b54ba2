"""Runs worker.py without one activity, which is the first argument: whatever needs that waits for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import worker as program

    worker: Any = program
    build = worker.build_activities

    def without(context: Any) -> Any:
        """Return the worker's activities but one."""
        made = build(context)
        for activities in (made.shared, made.pinned, made.control):
            activities[:] = [
                one
                for one in activities
                if getattr(one, "__temporal_activity_definition").name != sys.argv[1]
            ]
        return made

    worker.build_activities = without
    os._exit(worker.main())
