"""What Gemini CLI may do: the closed list of its tools, the floor its own engine keeps, and our judgement of a call."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from policy.commands import ALLOWED, Verdict, judge
from system.paths import PathDenied, check_new, check_writable, leads_out, parts_of

SHELL: Final = "run_shell_command"
"""Its tool for commands."""
READING: Final = ("list_directory", "read_file", "grep_search", "glob")
"""Tools that change nothing."""
WRITING: Final = ("write_file", "replace")
"""Tools that change one file."""
BACKGROUND: Final = ("list_background_processes", "read_background_output")
"""Tools that look after commands that were left to run; both only read."""
ALLOWED_TOOLS: Final = (*READING, *WRITING, SHELL, *BACKGROUND)
"""Every tool a session with write access may call. All others, sub-agents and MCP among them, do not exist for it."""
BUILT_IN: Final = frozenset(
    {
        *ALLOWED_TOOLS,
        "activate_skill",
        "ask_user",
        "codebase_investigator",
        "enter_plan_mode",
        "exit_plan_mode",
        "google_web_search",
        "invoke_agent",
        "read_many_files",
        "save_memory",
        "update_topic",
        "web_fetch",
        "write_todos",
    }
)
"""Tools the program has; to call one that is not allowed is to be blocked, to call another one is an error."""

_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "list_directory": ("dir_path", "path"),
    "read_file": ("file_path", "absolute_path"),
    "grep_search": ("dir_path", "path"),
    "glob": ("dir_path", "path"),
    "write_file": ("file_path",),
    "replace": ("file_path",),
    SHELL: ("dir_path", "directory"),
}
_PATTERNS: Final[Mapping[str, tuple[str, ...]]] = {
    "grep_search": ("include_pattern", "include"),
    "glob": ("pattern",),
}
_DENIED_COMMANDS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "floor_push",
        "what is published is the engine's to push",
        ("git push", "git send-pack", "git remote add", "git remote set-url"),
    ),
    (
        "floor_history",
        "this throws work away that nothing can bring back",
        ("git reset --hard", "git clean", "git filter-branch", "git update-ref -d", "git reflog expire"),
    ),
    (
        "floor_machine",
        "this changes the machine",
        (
            *(
                "sudo",
                "su",
                "doas",
                "mkfs",
                "fdisk",
                "mount",
                "umount",
                "shutdown",
                "reboot",
                "halt",
                "poweroff",
            ),
            *("systemctl", "service", "crontab", "iptables", "insmod", "rmmod", "kexec"),
        ),
    ),
    (
        "floor_mode",
        "this opens files to everybody",
        ("chmod -R 777", "chmod 777 -R", "chmod -R a+w", "chown -R"),
    ),
)
_DENIED_PATTERNS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "floor_delete",
        "this deletes more than a part of the workspace",
        r"rm\s[^\"]*-[a-zA-Z-]*[rR][^\"]*\s(?:/(?:\s|\"|\*)|/[a-zA-Z]+/?(?:\s|\")|~|\$|\*|\.\.|\.(?:\s|\"|/\s|/\")|\\\"/|\\\"~|\\\"\$|'/|'~)",
    ),
    ("floor_device", "this writes to a device", r"dd\s[^\"]*of=/dev/"),
    ("floor_fork_bomb", "this is a fork bomb", r":\s*\(\s*\)\s*\{"),
)


def floor(*, read_only: bool) -> str:
    """Return the policy file of a session: what is not allowed in it does not exist, whatever becomes of the hook."""
    reading = [*READING, *BACKGROUND]
    rules = [
        _rule(reading if read_only else [*reading, *WRITING], "allow", 500),
        _rule("*", "deny", 400, denyMessage=_NOT_ALLOWED),
    ]
    if not read_only:
        # A pattern, though it says nothing, keeps the program's own guesses out of what our policy decides.
        rules.append(_rule(SHELL, "allow", 500, commandRegex=".*", allowRedirection=True))
        for code, reason, prefixes in _DENIED_COMMANDS:
            message = f"{code}: {reason}"
            rules.append(_rule(SHELL, "deny", 900, commandPrefix=list(prefixes), denyMessage=message))
        for code, reason, pattern in _DENIED_PATTERNS:
            message = f"{code}: {reason}"
            rules.append(_rule(SHELL, "deny", 900, commandRegex=pattern, denyMessage=message))
    return "\n".join(rules)


_NOT_ALLOWED: Final = "tool_not_allowed: the tool is not one of those this session has"
_NO_PATH: Final = Verdict("deny", "E_PATH_INVALID", "a path is a text")
_READ_ONLY: Final = Verdict("deny", "read_only", "this session may not change files or run commands")


def judge_call(tool: str, arguments: Mapping[str, Any], roots: Sequence[Path], *, read_only: bool) -> Verdict:
    """Judge a call before it is made. ``roots`` are the workspace and folders beside it that may only be read."""
    if read_only and tool in {*WRITING, SHELL}:
        return _READ_ONLY
    if tool not in ALLOWED_TOOLS:
        return Verdict("deny", *_NOT_ALLOWED.split(": ", 1))
    try:
        for name in _PATHS.get(tool, ()):
            given = arguments.get(name)
            if given is not None and not isinstance(given, str):
                return _NO_PATH
            if given:
                _check(
                    given,
                    roots[:1] if tool in {*WRITING, SHELL} else roots,
                    writing=tool in {*WRITING, SHELL},
                )
        for name in _PATTERNS.get(tool, ()):
            _check_pattern(str(arguments.get(name) or ""))
    except PathDenied as denied:
        return Verdict("deny", denied.code, denied.message)
    if tool == SHELL:
        return judge(str(arguments.get("command", "")), workspace=str(roots[0]))
    return ALLOWED


def _check(given: str, roots: Sequence[Path], *, writing: bool) -> None:
    """Raise PathDenied for a path outside of the roots, by its text or by its links, or one that is not to be written."""
    parts = parts_of(
        given, roots=[name for root in roots for name in dict.fromkeys((str(root), os.path.realpath(root)))]
    )
    if writing:
        check_writable(given, parts)
        check_new(given, parts)
    real = os.path.realpath(roots[0] / given)
    if not any(Path(real).is_relative_to(os.path.realpath(root)) for root in roots):
        raise PathDenied("E_PATH_SYMLINK", given, "the path leads out of the workspace")
    if real != os.path.realpath(roots[0]) and Path(real).is_relative_to(os.path.realpath(roots[0])):
        inside = Path(real).relative_to(os.path.realpath(roots[0])).parts
        parts_of("/".join(inside))
        if writing:
            check_writable(given, inside)


def _check_pattern(pattern: str) -> None:
    if leads_out(pattern):
        raise PathDenied("E_PATH_OUTSIDE", pattern, "the pattern leads out of the workspace")


def _rule(tools: str | list[str], decision: str, priority: int, **more: str | bool | list[str]) -> str:
    fields = {"toolName": tools, "decision": decision, "priority": priority, **more}
    # What JSON writes of texts, lists, numbers and truth values, TOML reads.
    lines = (f"{name} = {json.dumps(value)}" for name, value in fields.items())
    return "\n".join(["[[rule]]", *lines, ""])
