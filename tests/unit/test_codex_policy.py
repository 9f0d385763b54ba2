"""What is asked by Codex is judged with the call it belongs to; what is not understood is denied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from transports.codex_policy import judge_changes, judge_command, relative, script_of
from transports.codex_rollout import Made


def asked(workspace: Path, script: str = "ls", **more: Any) -> dict[str, Any]:
    """Return a request as the app-server makes it."""
    given = {"kind": "command", "itemId": "1", "command": f"/bin/bash -c '{script}'", "cwd": str(workspace)}
    return {**given, **more}


def made(script: str = "ls", name: str = "exec_command", **more: Any) -> Made:
    return Made(name, {"cmd": script, **more})


def test_a_plain_command_is_allowed(tmp_path: Path) -> None:
    verdict = judge_command(asked(tmp_path), made(), tmp_path, only_reads=False)
    assert verdict.decision == "allow", verdict


@pytest.mark.parametrize(
    ("request_more", "call", "code"),
    [
        ({}, None, "call_unseen"),
        ({}, made(name="write_stdin"), "call_unseen"),
        ({}, made(sandbox_permissions="require_escalated"), "escalation_refused"),
        ({}, made(sandbox_permissions="something_new"), "escalation_refused"),
        ({"reason": ""}, made(), "escalation_refused"),
        ({"additionalPermissions": {"network": {"enabled": True}}}, made(), "escalation_refused"),
        ({"networkApprovalContext": {"host": "x", "protocol": "https"}}, made(), "escalation_refused"),
        ({"approvalId": "1"}, made(), "escalation_refused"),
        ({"kind": "writeStdin"}, made(), "terminal_refused"),
        ({}, made(tty=True), "terminal_refused"),
        ({}, made("pwd"), "command_unclear"),
        ({"command": "ls"}, made(), "command_unclear"),
        ({"command": "/usr/bin/python3 -c ls"}, made(), "command_unclear"),
        ({"command": "/bin/bash -c 'ls"}, made(), "command_unclear"),
        ({"command": "/bin/bash -c ls extra"}, made(), "command_unclear"),
        ({"command": None}, made(), "command_unclear"),
        ({"cwd": "/etc"}, made(), "E_PATH_ABSOLUTE"),
        ({"cwd": None}, made(), "E_PATH_INVALID"),
        ({"cwd": ".claude"}, made(), "E_PATH_PROTECTED"),
        ({"cwd": "link"}, made(), "E_PATH_PROTECTED"),
    ],
)
def test_a_command_that_is_more_than_it_says_is_denied(
    request_more: dict[str, Any], call: Made | None, code: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(".codex")
    verdict = judge_command(asked(tmp_path, **request_more), call, tmp_path, only_reads=False)
    assert (verdict.decision, verdict.code) == ("deny", code)
    assert verdict.reason


@pytest.mark.parametrize("script", ["rm -rf /", "git push --force", "git reset --hard", "chmod -R 777 ."])
def test_policy_judges_what_the_shell_is_asked_to_run(script: str, tmp_path: Path) -> None:
    verdict = judge_command(asked(tmp_path, script), made(script), tmp_path, only_reads=False)
    assert verdict.decision == "deny"


def test_a_turn_that_only_reads_runs_what_reads(tmp_path: Path) -> None:
    for script, decision in {"ls": "allow", "touch a": "deny"}.items():
        verdict = judge_command(asked(tmp_path, script), made(script), tmp_path, only_reads=True)
        assert verdict.decision == decision, verdict


def change(path: Path | str, kind: str = "add", move_path: str | None = None) -> dict[str, Any]:
    return {"path": str(path), "kind": {"type": kind, "move_path": move_path}, "diff": ""}


def test_patches_inside_the_workspace_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    changes = [
        change(tmp_path / "new" / "a.txt"),
        change(tmp_path / "old", "update", str(tmp_path / "moved")),
    ]
    assert judge_changes(changes, tmp_path).decision == "allow"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc/passwd", "E_PATH_ABSOLUTE"),
        ("{}/../outside.txt", "E_PATH_OUTSIDE"),
        ("{}/.git/hooks/post-commit", "E_PATH_PROTECTED"),
        ("{}/.GIT/config", "E_PATH_PROTECTED"),
        ("{}/.env", "E_PATH_PROTECTED"),
        ("{}/.codex/rules/all.rules", "E_PATH_PROTECTED"),
        ("{}/link/a.txt", "E_PATH_SYMLINK"),
        ("{}/named-twice", "E_PATH_HARDLINK"),
        ("{}/a\u200bb", "E_PATH_INVALID"),
        ("", "E_PATH_INVALID"),
    ],
)
def test_patches_elsewhere_are_denied(path: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/tmp")
    (tmp_path / "one").write_text("x")
    os.link(tmp_path / "one", tmp_path / "named-twice")
    there = path.format(tmp_path)
    assert judge_changes([change(tmp_path / "fine"), change(there)], tmp_path).code == code
    assert judge_changes([change(tmp_path / "one", "update", there)], tmp_path).code in {
        code,
        "E_PATH_HARDLINK",
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([], "patch_unseen"),
        ([{"path": "a"}], "patch_unclear"),
        ([{"kind": {"type": "add"}}], "patch_unclear"),
        ([{"path": "a", "kind": "add"}], "patch_unclear"),
        ([{"path": "a", "kind": {"type": "chmod"}}], "patch_unclear"),
        ([{"path": 7, "kind": {"type": "add"}}], "patch_unclear"),
    ],
)
def test_a_patch_that_is_not_understood_is_denied(
    changes: list[dict[str, Any]], code: str, tmp_path: Path
) -> None:
    verdict = judge_changes(changes, tmp_path)
    assert (verdict.decision, verdict.code) == ("deny", code)


def test_a_script_is_read_out_of_its_shell() -> None:
    assert script_of("/bin/bash -lc 'a b'") == "a b"
    assert script_of("/bin/bash -x 'a b'") is None


def test_paths_are_told_as_they_are_below_the_workspace(tmp_path: Path) -> None:
    assert relative(f"{tmp_path}/a/b", tmp_path) == "a/b"
    assert relative(str(tmp_path), tmp_path) == "."
    assert relative(f"{tmp_path}-other/b", tmp_path) == f"{tmp_path}-other/b"
