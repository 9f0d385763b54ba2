"""The Codex program: where it is, what it is started with, and the whole environment it gets."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from system import processes
from transports.credentials import provider_environment
from transports.port import Availability, SessionSpec

INSTALL: Final = "pip install 'openai-codex-cli-bin>=0.163,<0.164' (in a checkout: make agents)"
"""What installs the program."""
SANDBOX_FAULT: Final = (
    "Codex cannot sandbox commands here: {} (allow user namespaces, or use another transport)"
)
"""What is said where commands cannot be sandboxed."""
WORK: Final = "stepwise_work"
"""The permissions of turns that may change the workspace."""
READ: Final = "stepwise_read"
"""The permissions of turns that may change nothing but their own temporary files."""

_PACKAGE: Final = "codex_cli_bin"
_PROVIDER: Final = "stepwise"
_ADDRESS: Final = "https://api.openai.com/v1"
_RETRIES: Final = 1
_INSTRUCTIONS: Final = "AGENTS.md"
_MAX_INSTRUCTIONS: Final = 32_768
_SANDBOX_LIMIT_S: Final = 20.0
# A closed list of tools: commands, patches and questions. The rest reaches other hosts, keeps state beside the
# session, runs what the repository says, or starts agents whose calls nobody could follow.
_OFF: Final = (
    "apps",
    "browser_use",
    "computer_use",
    "enable_request_compression",
    "goals",
    "hooks",
    "image_generation",
    "in_app_browser",
    "multi_agent",
    "plugin_sharing",
    "plugins",
    "remote_plugin",
    "shell_snapshot",
    "skill_mcp_dependency_install",
    "skill_search",
    "tool_suggest",
    "unbounded_connection_retries",
    "view_image",
    "workspace_dependencies",
)
# Without the second one nothing is said of a patch while the model writes it, and it can be long.
_ON: Final = ("default_mode_request_user_input", "apply_patch_streaming_events")


@dataclass(frozen=True)
class Folders:
    """Where a session's files are: ``codex`` is the run's, so that later attempts resume; the rest is the attempt's."""

    codex: Path
    home: Path
    temporary: Path

    @classmethod
    def of(cls, spec: SessionSpec) -> Folders:
        """Return the folders of a session; none is made."""
        private = spec.private / "codex"
        home, temporary = spec.environment.get("HOME"), spec.environment.get("TMPDIR")
        return cls(
            codex=spec.state / "codex",
            home=Path(home) if home else private / "home",
            temporary=Path(temporary) if temporary else private / "tmp",
        )

    def make(self) -> None:
        """Make them, for this user alone."""
        for folder in (self.codex, self.home, self.temporary):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def find_program() -> Path | None:
    """Return the program of the package, else ``codex`` on PATH; None where there is neither."""
    if importlib.util.find_spec(_PACKAGE) is not None:
        package = importlib.import_module(_PACKAGE)
        try:
            return Path(package.bundled_codex_path())
        except FileNotFoundError:
            pass
    on_path = shutil.which("codex")
    return Path(on_path) if on_path else None


def availability(program: Path | None) -> Availability:
    """Say whether the program is installed; starts nothing."""
    if program is None:
        return Availability(ok=False, reason="the program codex is not installed", install_hint=INSTALL)
    return Availability(ok=True)


def command_environment(spec: SessionSpec, folders: Folders) -> dict[str, str]:
    """Return the whole environment of the commands an agent runs: the spec's, nothing of the provider's."""
    own = {"HOME": str(folders.home), "TMPDIR": str(folders.temporary)}
    return {"PATH": os.defpath, **spec.environment, **own}


def program_environment(
    spec: SessionSpec, folders: Folders, environment: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the whole environment of the program: that of its commands, and what it needs to reach its model."""
    return {
        **command_environment(spec, folders),
        **provider_environment("openai", environment),
        "CODEX_HOME": str(folders.codex),
    }


def arguments(spec: SessionSpec, folders: Folders, environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of the app-server: everything is said here, no file of the user or repository is needed."""
    settings: dict[str, Any] = {
        "model_provider": _PROVIDER,
        f"model_providers.{_PROVIDER}": {
            "name": _PROVIDER,
            "base_url": environment.get("OPENAI_BASE_URL", _ADDRESS),
            "env_key": "OPENAI_API_KEY",
            "wire_api": "responses",
            "request_max_retries": _RETRIES,
            "stream_max_retries": _RETRIES,
            # Silence is watched by who runs the turn; this is a second bound, never the first.
            "stream_idle_timeout_ms": round(max(spec.no_output_s, 1.0) * 1000),
            "supports_websockets": False,
        },
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
        "suppress_unstable_features_warning": True,
        "web_search": "disabled",
        "allow_login_shell": False,
        "skills.bundled.enabled": False,
        "skills.include_instructions": False,
        "project_doc_max_bytes": 0,
        "shell_environment_policy": {"inherit": "none", "set": command_environment(spec, folders)},
        # Said for every repository, also for one that is trusted: one without a word is trusted by the first session in
        # it, and its rules then let commands pass that nobody was asked about.
        "projects": {place: {"trust_level": "untrusted"} for place in _places(spec.workspace)},
        "default_permissions": WORK,
        f"permissions.{WORK}": _permissions(folders, workspace={".": "write", ".git": "read"}),
        f"permissions.{READ}": _permissions(folders, workspace={".": "read"}),
        **{f"features.{name}": False for name in _OFF},
        **{f"features.{name}": True for name in _ON},
    }
    return [
        "app-server",
        *(part for name, value in settings.items() for part in ("-c", f"{name}={_toml(value)}")),
    ]


def give_instructions(spec: SessionSpec, folders: Folders) -> None:
    """Have a trusted repository's own instructions read as the user's, and those of no other."""
    text = b""
    if spec.trusted and not spec.deterministic:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with (
            contextlib.suppress(OSError),
            os.fdopen(os.open(spec.workspace / _INSTRUCTIONS, flags), "rb") as file,
        ):
            text = file.read(_MAX_INSTRUCTIONS)
    given = folders.codex / _INSTRUCTIONS
    if text:
        given.write_bytes(text)
    else:
        given.unlink(missing_ok=True)


async def sandbox_fault(program: Sequence[str], cwd: Path, env: Mapping[str, str]) -> str | None:
    """Return why commands cannot be sandboxed on this machine; None where they can.

    Raises ProcessError, also where the trial was killed or did not end: that says nothing of the sandbox.
    """
    ended = await processes.run(sandbox_trial(program), cwd=cwd, env=env, timeout_s=_SANDBOX_LIMIT_S)
    if ended.timed_out or ended.stopped_by == "lost":
        why = "it did not end in time" if ended.timed_out else processes.LOST
        raise processes.SpawnFailed("E_SPAWN", program[0], why)
    return None if ended.ok else last_line(ended.stderr)


def sandbox_trial(program: Sequence[str]) -> list[str]:
    """Return the words that run a command in the sandbox that does nothing."""
    return [*program, "sandbox", "--", "/bin/true"]


def last_line(stderr: bytes) -> str:
    """Return what a program that failed said last."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it does not start"


def _places(workspace: Path) -> list[str]:
    """Return the names under which a workspace is looked up."""
    return sorted({str(workspace), os.path.realpath(workspace)})


def _permissions(folders: Folders, *, workspace: Mapping[str, str]) -> dict[str, Any]:
    # With a path that may not be read, an approved command that the sandbox stops is not run again without it.
    return {
        "filesystem": {
            ":root": "read",
            ":workspace_roots": dict(workspace),
            str(folders.home): "write",
            str(folders.temporary): "write",
            str(folders.codex): "deny",
        },
        "network": {"enabled": False},
    }


def _toml(value: object) -> str:
    """Return a value in TOML; raises TypeError for one it cannot say."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_string(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    raise TypeError(type(value).__name__)


def _string(text: str) -> str:
    # A basic string of TOML is one of JSON, but for DEL and what JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
