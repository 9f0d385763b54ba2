"""Every setting of a worker: its type, default and meaning. Loading (and origins) is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from schemas.common import Closed

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class WorkerSettings(Closed):
    """Settings of one worker process. Environment names are ``STEPWISE_<NAME>`` in upper case."""

    task_queue: str = Field(default="stepwise", description="Task queue on which flows are started.")
    data_dir: Path = Field(
        default=Path("~/.local/state/stepwise"),
        description="Folder of this worker: its id, workspaces, session files.",
    )
    store: str = Field(default="", description="Evidence store: a file:// URL; empty: <data_dir>/store.")
    store_shared: bool = Field(
        default=False,
        description="Say true if the file:// store is a mount every worker sees; needed with a Temporal "
        "address that is not loopback.",
    )
    flow_paths: list[Path] = Field(
        default=[], description="Folders with own flow files (and agents/, scenarios/ beside them)."
    )
    default_transport: str = Field(default="stub", description="Transport of steps that name none.")
    transports: list[str] = Field(
        default=["stub", "claude-sdk", "claude-cli", "gemini-cli", "codex"],
        description="Transports this worker offers; others are refused.",
    )
    trusted_repos: list[str] = Field(
        default=[], description="Repositories (path or URL) for which `trusted` is honoured."
    )
    max_runs: int = Field(default=50, gt=0, description="Runs that may have a workspace here at once.")
    max_agents: int = Field(default=4, gt=0, description="Agents that may work at once.")
    heartbeat_s: Positive = Field(default=15, description="Heartbeat time-out of phases, seconds.")
    heartbeat_every_s: Positive = Field(default=0.25, description="Heartbeat interval of phases, seconds.")
    schedule_to_start_s: Positive = Field(
        default=30, description="How long a phase may wait for its pinned worker, seconds."
    )
    recover_old_worker_s: Positive = Field(
        default=5, description="How long recovery waits for the old worker, seconds."
    )
    sticky_s: Positive = Field(default=1, description="Sticky schedule-to-start time-out, seconds.")
    drain_s: Positive = Field(default=30, description="Grace for running phases after SIGTERM, seconds.")
    park_s: Positive = Field(default=600, description="How long an idle session is kept, seconds.")
    hold_s: Positive = Field(
        default=120, description="How long a session at work is held for a person's answer, seconds."
    )
    developer_qa_model: str = Field(
        default="",
        description="Model that answers what agents ask, of the provider of `default_transport` (where that has no "
        "model, of the step's first); empty, and for others: the small one of the step's provider, `off`: none.",
    )
    keep_workspaces_s: Positive = Field(
        default=7 * 86_400, description="How long a finished run's clone is kept, seconds."
    )
    fsync: bool = Field(default=True, description="Flush evidence to disk before a phase returns.")
    environment: list[str] = Field(
        default=[], description="Names of variables that gates, set-up commands and agents may see."
    )
    git_credentials: str = Field(
        default="", description="Name of the variable that holds the token for clone and push."
    )
    git_host: str = Field(
        default="github.com", description="Host (with its port, if it has one) that the token is for."
    )
    stub_may_crash_worker: bool = Field(
        default=False, description="Let scenarios kill this worker (tests of recovery)."
    )
    crash_at: str = Field(
        default="",
        description="Kill this worker (-9) at a named point of a phase, such as work.committed (tests of "
        "recovery).",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Log level.")
    log_format: Literal["json", "text"] = Field(default="json", description="Log format.")
