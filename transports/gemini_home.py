"""What Gemini CLI is started with: a home of its own with settings, policy, hook and system text, environment, words."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transports.credentials import provider_environment
from transports.gemini_finish import settings
from transports.gemini_gate import HOOK_TIMEOUT_MS
from transports.gemini_log import link_chats
from transports.gemini_policy import floor
from transports.port import SessionSpec

NAME: Final = "gemini-cli"
"""The transport's name, and that of its folders."""
DEFAULT_MODEL: Final = "gemini-3.1-pro-preview"
"""The model of steps that name none: without a name the program asks another model which one to take."""
MAX_INSTRUCTIONS: Final = 100_000
"""How many characters of a trusted repository's GEMINI.md are told to the agent."""

_SLUG: Final = "workspace"
_SYSTEM: Final = "stepwise.md"
_INSTRUCTIONS: Final = "GEMINI.md"
_EXTENSION: Final = "stepwise"
_MAX_TURNS: Final = 200
_BUILD_FILES: Final = (
    "The tools write_file and replace refuse build files (Makefile, package.json, pyproject.toml, go.mod, Dockerfile "
    "and their like): change those with a shell command."
)
# The program reads "@path" at the beginning of a word as the content of a file, and "/word" at that of a prompt as a
# command of its own.
_INLINED: Final = re.compile(r"(?<!\\)@")
_IMPORTED: Final = re.compile(r"(^|(?<=\s))@")


@dataclass(frozen=True)
class Home:
    """The folders of a session: ``home`` belongs to the attempt, ``chats`` to the run."""

    spec: SessionSpec
    attempts: int

    @property
    def home(self) -> Path:
        """Where the program keeps its settings."""
        return self.spec.private / NAME

    @property
    def chats(self) -> Path:
        """Where its sessions are kept."""
        return self.spec.state / NAME / "chats"

    @property
    def workspace(self) -> Path:
        """The workspace as the program sees it, without links."""
        return Path(os.path.realpath(self.spec.workspace))

    @property
    def scratch(self) -> Path:
        """Where it puts what is too long for the model, for the model to read."""
        return self.home / ".gemini" / "tmp" / _SLUG

    @property
    def telemetry(self) -> Path:
        """Where the next process writes why its model stopped."""
        return self.home / "telemetry.log"

    def prepare(self, hook: str, *, read_only: bool) -> None:
        """Write everything the next process reads; what an earlier one or its agent made of it is void."""
        dot = self.home / ".gemini"
        for folder in (dot / "policies", dot / "extensions"):
            shutil.rmtree(folder, ignore_errors=True)
        # Its lock of this file is left behind when it ends, and costs the next one ten seconds.
        shutil.rmtree(dot / "projects.json.lock", ignore_errors=True)
        for folder in (dot, self.home / "tmp", self.home / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        link_chats(self.home, _SLUG, self.chats)
        self.telemetry.unlink(missing_ok=True)
        root = str(self.workspace)
        (self.scratch / ".project_root").write_text(root)
        _write(dot / "projects.json", {"projects": {root: _SLUG}})
        _write(
            dot / "settings.json",
            _settings(self.attempts, self.spec.command_timeout_s, settings(self.telemetry)),
        )
        extension = dot / "extensions" / _EXTENSION
        (extension / "hooks").mkdir(parents=True)
        _write(extension / "gemini-extension.json", {"name": _EXTENSION, "version": "1.0.0"})
        # Hooks of the settings do not run where the repository is not trusted; those of an extension do.
        _write(extension / "hooks" / "hooks.json", {"hooks": {"BeforeTool": [_hook(hook)]}})
        self.policy.write_text(floor(read_only=read_only))
        (dot / _SYSTEM).write_text(self._system())

    @property
    def policy(self) -> Path:
        """The policy file of the next process."""
        return self.home / "policy.toml"

    def words(self, model: str, session_id: str, *, resume: bool) -> list[str]:
        """Return the arguments of the program; the prompt comes on stdin."""
        mode = ["--approval-mode", "default", "--policy", str(self.policy)]
        session = ["--resume" if resume else "--session-id", session_id]
        return ["--model", model, *mode, "--output-format", "stream-json", *session]

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the program."""
        return {
            **self.spec.environment,
            **provider_environment("google"),
            "HOME": str(self.home / "home"),
            "TMPDIR": str(self.home / "tmp"),
            "GEMINI_CLI_HOME": str(self.home),
            "GEMINI_CLI_NO_RELAUNCH": "1",  # else signals go to a parent that ignores them
            "GEMINI_CLI_TRUST_WORKSPACE": "false",  # nothing of the repository is loaded
            "NO_COLOR": "1",
        }

    def _system(self) -> str:
        texts = [self.spec.system, _BUILD_FILES]
        if self.spec.trusted and not self.spec.deterministic:
            texts.append(_instructions(self.workspace / _INSTRUCTIONS))
        return escape_imports("\n\n".join(filter(None, texts)))


def escape_prompt(prompt: str) -> str:
    """Return a prompt in which nothing is read as a command or as a file of the program's."""
    escaped = _INLINED.sub(r"\\@", prompt)
    return f" {escaped}" if escaped.startswith(("/", "?")) else escaped


def escape_imports(text: str) -> str:
    """Return a system text in which nothing is read as a file to be imported."""
    return _IMPORTED.sub(r"\1\\@", text)


def _instructions(path: Path) -> str:
    try:
        if path.is_symlink() or not path.is_file():
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_INSTRUCTIONS)
    except OSError:
        return ""
    return f"# Instructions of the repository ({_INSTRUCTIONS})\n\n{text}"


def _settings(attempts: int, silent_s: float, telemetry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "security": {
            # Without this a model at another address is taken for a gateway, which nobody can log in to.
            "auth": {"selectedType": "gemini-api-key"},
            # Off, and the workspace said to be untrusted: so it runs without loading what the repository has.
            "folderTrust": {"enabled": False},
            "environmentVariableRedaction": {"enabled": True},
            "disableYoloMode": True,
            "disableAlwaysAllow": True,
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": telemetry,
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "maxAttempts": attempts,
            "sessionRetention": {"enabled": False},
            "checkpointing": {"enabled": False},
        },
        "model": {"maxSessionTurns": _MAX_TURNS},
        "tools": {"shell": {"inactivityTimeout": max(1, round(silent_s))}},
        "context": {"fileName": _SYSTEM},
        "advanced": {"ignoreLocalEnv": True},
        "hooksConfig": {"enabled": True},
        "mcp": {"allowed": []},
        "skills": {"enabled": False},
        "ide": {"enabled": False},
    }


def _hook(command: str) -> dict[str, Any]:
    made = {"type": "command", "command": command, "timeout": HOOK_TIMEOUT_MS, "name": "stepwise"}
    return {"matcher": "*", "hooks": [made]}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
