"""The side effects workflows ask for: phases, gates, workspaces; everything is written through the store."""

from __future__ import annotations

from activities.context import WorkerContext, crash_point
from activities.register import Registered, build_activities
from activities.startup import sweep, sweep_forever
from activities.worker_identity import WorkerIdentity, claim_data_dir

__all__ = [
    "Registered",
    "WorkerContext",
    "WorkerIdentity",
    "build_activities",
    "claim_data_dir",
    "crash_point",
    "sweep",
    "sweep_forever",
]
