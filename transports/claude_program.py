"""The Claude Code program: where it is, what it is started with, and the whole environment it gets."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transports.credentials import KEYS, provider_environment
from transports.port import Availability, SessionSpec

INSTALL: Final = "pip install 'claude-agent-sdk>=0.2.189,<0.3' (in a checkout: make agents)"
"""What installs the SDK, and the program with it."""
SECRETS: Final = KEYS["anthropic"]
"""The variables with the provider's keys."""
PIPED: Final[Mapping[str, str]] = {
    "ANTHROPIC_API_KEY": "CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR",
    "CLAUDE_CODE_OAUTH_TOKEN": "CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR",
}
"""Those that the program also reads from a descriptor, each with the variable that names it."""

_PACKAGE: Final = "claude_agent_sdk"
_MAX_RETRIES: Final = 2
_TOOL_SLACK_S: Final = 30.0
_SWITCHES: Final[Mapping[str, str]] = {
    # No telemetry, no updates, no look-ups: the model's address alone is talked to.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    # Else sub-agents and long commands outlive their turn, and begin turns of their own.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # Each command is judged as begun in the workspace, wherever the one before it went.
    "CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR": "1",
    "CLAUDE_CODE_MAX_RETRIES": str(_MAX_RETRIES),
    # A stream that was cut would be asked for again whole, unseen.
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": "60000",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    # The tools are few: each is declared whole, none is looked up.
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
}


@dataclass(frozen=True)
class Folders:
    """Where a session's files are: ``config`` is the run's, so that later attempts resume; the rest is the attempt's.

    ``told`` holds what the program is told when it is started.
    """

    config: Path
    home: Path
    temporary: Path
    told: Path

    @classmethod
    def of(cls, spec: SessionSpec, transport: str) -> Folders:
        """Return the folders of a session; none is made."""
        private = spec.private
        return cls(spec.state / transport, private / "home", private / "tmp", private / transport)

    def make(self) -> None:
        """Make them, for this user alone."""
        for folder in (self.config, self.home, self.temporary, self.told):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def session_file(self, session_id: str) -> Path | None:
        """Return the file of a session that was kept; None for an id that nobody knows."""
        plain = session_id.replace("-", "").isalnum()
        return next(self.config.glob(f"projects/*/{session_id}.jsonl"), None) if plain else None

    def has_session(self, session_id: str) -> bool:
        """Tell whether a session of that id was kept."""
        return self.session_file(session_id) is not None


def bundled_program() -> Path | None:
    """Return the program that comes with the SDK, without importing it; None where it is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    program = Path(found.origin).parent / "_bundled" / "claude"
    return program if program.is_file() else None


def find_program() -> Path | None:
    """Return the SDK's program, else ``claude`` on PATH; None where there is neither."""
    on_path = shutil.which("claude")
    return bundled_program() or (Path(on_path) if on_path else None)


def availability(*, needs_sdk: bool) -> Availability:
    """Say whether the program (and, where it is needed, the SDK) is installed; starts nothing."""
    if needs_sdk and importlib.util.find_spec(_PACKAGE) is None:
        return Availability(ok=False, reason="claude-agent-sdk is not installed", install_hint=INSTALL)
    if find_program() is None:
        return Availability(ok=False, reason="the program claude is not installed", install_hint=INSTALL)
    return Availability(ok=True)


def environment(spec: SessionSpec, folders: Folders) -> dict[str, str]:
    """Return the program's whole environment."""
    command_ms = str(round(spec.command_timeout_s * 1000))
    own = {
        "HOME": str(folders.home),
        "TMPDIR": str(folders.temporary),
        "CLAUDE_CONFIG_DIR": str(folders.config),
        "CLAUDE_CODE_TMPDIR": str(folders.temporary),
        "BASH_DEFAULT_TIMEOUT_MS": command_ms,
        "BASH_MAX_TIMEOUT_MS": command_ms,
        "MCP_TOOL_TIMEOUT": str(round((spec.command_timeout_s + _TOOL_SLACK_S) * 1000)),
        "PWD": str(spec.workspace),
    }
    return {**spec.environment, **provider_environment("anthropic"), **_SWITCHES, **own}


def drop_socket(pid: int) -> None:
    """Remove the socket of a program that has ended; one that was killed leaves it.

    It is in the program's own TMPDIR, unless that has too long a path for a socket.
    """
    folder = Path(f"/tmp/cc-socks-{os.getuid()}")  # noqa: S108 - the program chooses it
    with contextlib.suppress(OSError):
        (folder / f"{pid}.sock").unlink()
        folder.rmdir()


def command_line(
    program: Path,
    spec: SessionSpec,
    *,
    session_id: str,
    tools: Sequence[str],
    mcp_config: str,
    system_file: Path,
    project: Sequence[str] = (),
) -> list[str]:
    """Return the program's arguments, those for the repository's own among them; none is long, and none secret."""
    trusted = loads_project(spec)
    line = [
        str(program),
        "--print",
        "--verbose",
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--include-partial-messages",
        "--permission-prompt-tool=stdio",
        f"--tools={','.join(tools)}",
        f"--mcp-config={mcp_config}",
        f"--setting-sources={'project' if trusted else ''}",
        # Servers are those that are named here: the program would also start those of the folders above the workspace.
        "--strict-mcp-config",
        # Else a resumed session would go on with the system prompt it began with.
        "--system-prompt-snapshot=off",
        *project,
    ]
    if spec.system:
        line.append(f"--append-system-prompt-file={system_file}")
    if spec.model is not None:
        line.append(f"--model={spec.model}")
    line.append(f"--session-id={session_id}" if spec.resume is None else f"--resume={session_id}")
    return line


def loads_project(spec: SessionSpec) -> bool:
    """Tell whether the repository's own settings, hooks, instructions and MCP servers are loaded."""
    return spec.trusted and not spec.deterministic
