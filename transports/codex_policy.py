"""What Codex may do: each command and each patch it asks for is judged before it runs; what is not understood is denied.

A command that is approved leaves the sandbox when the model asked for that, and the request does not tell. So the
call's own arguments are looked at too, and a call nobody has seen is denied.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from policy import commands
from policy.commands import ALLOWED, Verdict
from system.paths import PathDenied, canonical_name, check_new, check_writable, parts_of
from transports.codex_rollout import Made

COMMAND: Final = "exec_command"
"""The tool of Codex that runs commands."""
PATCH: Final = "apply_patch"
"""The tool of Codex that changes files."""
READ_ONLY: Final = Verdict("deny", "read_only", "nothing is to be changed in this turn")

_OWN: Final = ".codex"
_IN_SANDBOX: Final = frozenset({None, "use_default"})
_SHELLS: Final = frozenset({"bash", "sh", "zsh"})
_ESCALATION: Final = ("reason", "additionalPermissions", "networkApprovalContext", "approvalId")
_KINDS: Final = frozenset({"add", "delete", "update"})
_SHELL_WORDS: Final = 3


def judge_command(
    request: Mapping[str, Any], made: Made | None, workspace: Path, *, only_reads: bool
) -> Verdict:
    """Judge the request to run a command, whose call is ``made``; never raises."""
    if made is None or made.name != COMMAND:
        return Verdict("deny", "call_unseen", "no call of the model belongs to this command")
    given = made.arguments
    escalates = given.get("sandbox_permissions") not in _IN_SANDBOX
    if escalates or any(request.get(name) is not None for name in _ESCALATION):
        return Verdict("deny", "escalation_refused", "commands stay in the sandbox")
    if request.get("kind", "command") != "command" or given.get("tty"):
        return Verdict("deny", "terminal_refused", "what is typed into a terminal cannot be judged")
    script = script_of(str(request.get("command") or ""))
    if script is None or script != given.get("cmd"):
        return Verdict("deny", "command_unclear", "the command is not the one the model asked for")
    try:
        place = str(request.get("cwd") or "")
        for folder in (place, os.path.realpath(workspace / place)):
            check_writable(place, parts_of(folder, roots=_roots(workspace)))
    except PathDenied as denied:
        return Verdict("deny", denied.code, denied.message)
    judge = commands.judge_read_only if only_reads else commands.judge
    return judge(script, workspace=str(workspace))


def judge_changes(changes: Sequence[Mapping[str, Any]], workspace: Path) -> Verdict:
    """Judge the files a patch changes; never raises."""
    if not changes:
        return Verdict("deny", "patch_unseen", "nobody said what the patch changes")
    try:
        for change in changes:
            kind = change["kind"]
            if kind["type"] not in _KINDS:
                return Verdict("deny", "patch_unclear", f"a change of kind {kind['type']!r}")
            _check(change["path"], workspace, new=kind["type"] == "add")
            if kind.get("move_path"):
                _check(kind["move_path"], workspace, new=True)
    except PathDenied as denied:
        return Verdict("deny", denied.code, denied.message)
    except (KeyError, TypeError, AttributeError, OSError) as error:
        return Verdict("deny", "patch_unclear", f"the patch is not understood: {error!r}")
    return ALLOWED


def script_of(command: str) -> str | None:
    """Return what a shell is asked to run by ``SHELL -c SCRIPT``; None for any other command line."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if len(words) != _SHELL_WORDS or words[1] not in {"-c", "-lc"} or Path(words[0]).name not in _SHELLS:
        return None
    return words[2]


def relative(path: str, workspace: Path) -> str:
    """Return a path as it is below the workspace; one that is not there stays as it is."""
    for root in _roots(workspace):
        if path == root or path.startswith(f"{root}/"):
            return path[len(root) + 1 :] or "."
    return path


def _check(path: str, workspace: Path, *, new: bool) -> None:
    """Raise PathDenied for a path that may not be written; links are refused, since the patch would follow them."""
    parts = parts_of(path, roots=_roots(workspace))
    check_writable(path, parts)
    if any(canonical_name(part) == _OWN for part in parts):
        raise PathDenied("E_PATH_PROTECTED", path, "the file configures Codex")
    if new:
        check_new(path, parts)
    place = workspace
    for part in parts:
        place /= part
        if place.is_symlink():
            raise PathDenied("E_PATH_SYMLINK", path, "a path may not lead through a link")
    if place.is_file() and place.stat().st_nlink > 1:
        raise PathDenied("E_PATH_HARDLINK", path, "the file has another name")


def _roots(workspace: Path) -> tuple[str, str]:
    return str(workspace), os.path.realpath(workspace)
