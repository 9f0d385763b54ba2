"""Which calls of Gemini CLI may be made, and how what it prints of them is read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from policy.commands import ALLOWED, Verdict
from transports.gemini_home import escape_imports, escape_prompt
from transports.gemini_policy import ALLOWED_TOOLS, BACKGROUND, READING, SHELL, WRITING, floor, judge_call
from transports.gemini_stream import blocked_reason, of_command, of_tool


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    workspace, scratch = tmp_path / "workspace", tmp_path / "scratch"
    for folder in (workspace / "src", scratch, tmp_path / "other"):
        folder.mkdir(parents=True)
    (workspace / "out").symlink_to(tmp_path / "other")
    (workspace / "git").symlink_to(workspace / ".git")
    (tmp_path / "link").symlink_to(workspace)
    return [workspace, scratch]


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("write_file", {"file_path": "src/a.py", "content": ""}, ""),
        ("write_file", {"file_path": "{workspace}/src/a.py"}, ""),
        ("replace", {"file_path": "src/a.py"}, ""),
        ("read_file", {"file_path": "src/a.py"}, ""),
        ("read_file", {"file_path": "{scratch}/tool-outputs/x.txt"}, ""),
        ("list_directory", {"dir_path": "."}, ""),
        ("glob", {"pattern": "**/*.py"}, ""),
        (SHELL, {"command": "python3 -m unittest", "dir_path": "src"}, ""),
        ("write_file", {"file_path": "{scratch}/x.txt"}, "E_PATH_ABSOLUTE"),
        ("write_file", {"file_path": "../a.py"}, "E_PATH_OUTSIDE"),
        ("write_file", {"file_path": "/etc/passwd"}, "E_PATH_ABSOLUTE"),
        ("write_file", {"file_path": "out/a.py"}, "E_PATH_SYMLINK"),
        ("write_file", {"file_path": ".git/config"}, "E_PATH_PROTECTED"),
        ("write_file", {"file_path": "git/config"}, "E_PATH_PROTECTED"),
        ("write_file", {"file_path": ".mcp.json"}, "E_PATH_PROTECTED"),
        ("write_file", {"file_path": "a\u202eb"}, "E_PATH_INVALID"),
        ("read_file", {"file_path": "/etc/passwd"}, "E_PATH_ABSOLUTE"),
        ("read_file", {"file_path": "out/a.py"}, "E_PATH_SYMLINK"),
        ("grep_search", {"dir_path": "/etc"}, "E_PATH_ABSOLUTE"),
        (SHELL, {"command": "ls", "dir_path": "/etc"}, "E_PATH_ABSOLUTE"),
        (SHELL, {"command": "ls", "dir_path": ".claude"}, "E_PATH_PROTECTED"),
        ("write_file", {"file_path": ".gemini/settings.json"}, "E_PATH_PROTECTED"),
        ("write_file", {"file_path": ".envrc"}, "E_PATH_PROTECTED"),
        (SHELL, {"command": "git push --force"}, "E_"),
        ("glob", {"pattern": "../**"}, "E_PATH_OUTSIDE"),
        ("glob", {"pattern": "/etc/*"}, "E_PATH_OUTSIDE"),
        ("grep_search", {"pattern": "a/../b", "include_pattern": "~/*"}, "E_PATH_OUTSIDE"),
        ("glob", {"pattern": "src/.git/**"}, "E_PATH_OUTSIDE"),
        ("glob", {"pattern": "{{..,.}}/outside.txt"}, "E_PATH_OUTSIDE"),
        ("glob", {"pattern": ".g[i]t/**"}, "E_PATH_OUTSIDE"),
        ("glob", {"pattern": ".[!x]*/config"}, "E_PATH_OUTSIDE"),
        ("glob", {"pattern": "?git/config"}, "E_PATH_OUTSIDE"),
        ("glob", {"pattern": "*/config"}, ""),
        ("glob", {"pattern": ".github/*.{{yml,yaml}}"}, ""),
        ("grep_search", {"pattern": "a", "include": ".GIT/*"}, "E_PATH_OUTSIDE"),
        ("read_file", {"file_path": ["/etc/passwd"]}, "E_PATH_INVALID"),
        ("write_file", {"file_path": 5}, "E_PATH_INVALID"),
        ("grep_search", {"pattern": "/a/../b"}, ""),
        ("web_fetch", {}, "tool_not_allowed"),
        ("invoke_agent", {}, "tool_not_allowed"),
        ("mcp_evil_run", {}, "tool_not_allowed"),
    ],
)
def test_a_call_is_judged_by_its_paths_and_its_command(
    tool: str, arguments: dict[str, Any], code: str, roots: list[Path]
) -> None:
    places = {"workspace": str(roots[0]), "scratch": str(roots[1])}
    given = {
        name: value.format(**places) if "{" in str(value) else value for name, value in arguments.items()
    }
    verdict = judge_call(tool, given, roots, read_only=False)
    assert verdict.code.startswith(code)
    assert (verdict.decision == "allow") == (not code)


@pytest.mark.parametrize("tool", ALLOWED_TOOLS)
def test_a_session_that_may_only_read_does_nothing_else(tool: str, roots: list[Path]) -> None:
    verdict = judge_call(tool, {"command": "ls", "file_path": "a"}, roots, read_only=True)
    assert (verdict.decision == "allow") == (tool in {*READING, *BACKGROUND})


def test_a_workspace_behind_a_link_is_the_workspace(roots: list[Path]) -> None:
    link = roots[0].parent / "link"
    assert judge_call("write_file", {"file_path": f"{link}/a"}, [link], read_only=False) == ALLOWED
    assert judge_call("write_file", {"file_path": f"{roots[0]}/a"}, [link], read_only=False) == ALLOWED


@pytest.mark.parametrize("read_only", [True, False])
def test_the_floor_is_a_closed_list(read_only: bool) -> None:
    rules = tomllib.loads(floor(read_only=read_only))["rule"]
    allowed: set[str] = set()
    for rule in rules:
        if rule["decision"] == "allow":
            allowed |= {rule["toolName"]} if isinstance(rule["toolName"], str) else set(rule["toolName"])
            assert rule["priority"] == 500
    assert allowed == ({*READING, *BACKGROUND} if read_only else set(ALLOWED_TOOLS))
    assert allowed.isdisjoint(WRITING) == read_only
    rest = [rule for rule in rules if rule["toolName"] == "*"]
    assert [(rule["decision"], rule["priority"]) for rule in rest] == [("deny", 400)]


def test_no_pattern_of_the_floor_is_one_that_the_program_leaves_out() -> None:
    # It drops rules with a repeated group, as expressions that could take for ever.
    repeated = re.compile(r"\([^)]*[*+?{].*\)[*+?{]")
    patterns = [
        rule["commandRegex"]
        for rule in tomllib.loads(floor(read_only=False))["rule"]
        if "commandRegex" in rule
    ]
    assert len(patterns) > 2
    assert [pattern for pattern in patterns if repeated.search(pattern)] == []


OWN = Verdict("deny", "E_PATH_OUTSIDE", "ours")


@pytest.mark.parametrize(
    ("kind", "said", "tool", "reason"),
    [
        ("policy_violation", "Tool execution denied by policy. floor_push: no", SHELL, "floor_push: no"),
        ("policy_violation", "Tool execution blocked: E_X: no", SHELL, "E_X: no"),
        (
            "policy_violation",
            "Tool execution denied by policy.",
            SHELL,
            "policy_violation: no reason was given",
        ),
        (
            "policy_violation",
            "Tool execution denied by policy. Modifying build configuration files requires explicit user confirmation",
            "write_file",
            "build_file: Modifying build configuration files requires explicit user confirmation",
        ),
        ("tool_not_registered", 'Tool "web_fetch" not found.', "web_fetch", "E_PATH_OUTSIDE: ours"),
        ("tool_not_registered", 'Tool "nonsense" not found.', "nonsense", None),
        ("invalid_tool_params", "Path not in workspace: /x", "write_file", "E_PATH_OUTSIDE: ours"),
        ("file_not_found", "File not found", "read_file", None),
        ("", "", SHELL, None),
    ],
)
def test_what_was_blocked_has_a_code_and_a_reason(
    kind: str, said: str, tool: str, reason: str | None
) -> None:
    assert blocked_reason(kind, said, tool, lambda: OWN) == reason


def test_what_only_the_program_refuses_is_blocked_too() -> None:
    found = blocked_reason("x", "Path not in workspace: /x", "read_file", lambda: ALLOWED)
    assert found == "policy_violation: Path not in workspace: /x"


def told(*lines: str) -> str:
    return "\n".join(["<untrusted_context>", *lines, "</untrusted_context>"])


@pytest.mark.parametrize(
    ("recorded", "success", "head"),
    [
        (None, True, "printed"),
        (told("Output: a", "Process Group PGID: 5"), True, "printed"),
        (
            told("Output: a", "Exit Code: 3", "Background PIDs: 1, 2", "Process Group PGID: 5"),
            False,
            "exit code 3",
        ),
        (told("Output: a", "Signal: 9", "Process Group PGID: 5"), False, "signal 9"),
        (told("Output: a", "Exit Code: 0", "Exit Code: 3", "Process Group PGID: 5"), False, "exit code 3"),
        (told("Output: Exit Code: 3", "more", "Process Group PGID: 5"), True, "printed"),
        ("Command was automatically cancelled because it exceeded the timeout", False, "printed"),
        (told("Command was cancelled by user before it could complete."), False, "printed"),
        ("", True, "printed"),
    ],
)
def test_how_a_command_ended_is_read_behind_its_output(
    recorded: str | None, success: bool, head: str
) -> None:
    succeeded, output = of_command(recorded, "printed")
    assert (succeeded, output.splitlines()[0]) == (success, head)


@pytest.mark.parametrize(
    ("recorded", "output"),
    [
        (None, "printed"),
        ("total = 0.0\n", "total = 0.0\n"),
        ("<untrusted_context>\ntotal = 0.0\n\n</untrusted_context>", "total = 0.0\n"),
    ],
)
def test_a_file_that_was_read_shows_what_the_model_was_told(recorded: str | None, output: str) -> None:
    assert of_tool(recorded, "printed") == (True, output)


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("/rewind", " /rewind"),
        ("?", " ?"),
        ("read @a.txt and bob@f.txt", r"read \@a.txt and bob\@f.txt"),
        (r"already \@a", r"already \@a"),
        ("a/b", "a/b"),
    ],
)
def test_a_prompt_is_only_text(prompt: str, sent: str) -> None:
    assert escape_prompt(prompt) == sent


def test_a_system_text_imports_nothing() -> None:
    assert escape_imports("@a x@b\n@/etc/passwd\t@./c") == "\\@a x@b\n\\@/etc/passwd\t\\@./c"
