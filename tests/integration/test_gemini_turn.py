"""Turns of a program that says what it is told to: what of the words of Gemini CLI decides how a turn ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gemini_kit import GeminiBench

from transports.conformance_bench import opened
from transports.gemini_cli import GeminiCliTransport
from transports.port import WorkRequest

PROGRAM = """#!{python}
import json, os, subprocess, sys
sys.stdin.read()
hooks = os.environ["GEMINI_CLI_HOME"] + "/.gemini/extensions/stepwise/hooks/hooks.json"
command = json.load(open(hooks))["hooks"]["BeforeTool"][0]["hooks"][0]["command"]
for asked, line in json.loads({steps!r}):
    if asked:
        call = json.dumps(dict(tool_name=asked[0], tool_input=asked[1]))
        assert subprocess.run(["/bin/bash", "-c", command], input=call.encode()).returncode == 0
    if line:
        print(json.dumps(line), flush=True)
"""
Step = tuple[tuple[str, dict[str, Any]] | None, dict[str, Any]]
EDIT = {"file_path": "a.txt", "old_string": "a", "new_string": "b"}
OTHER = {"file_path": "a.txt", "old_string": "c", "new_string": "d"}
ANSWER: Step = (None, {"type": "message", "role": "assistant", "content": "Done.", "delta": True})
PROMPT: Step = (None, {"type": "message", "role": "user", "content": "Do it."})


def call(number: int, arguments: dict[str, Any], *, judged: bool = True, error: str = "") -> list[Step]:
    """Return the steps of a call, for which the hook is asked or not, and which fails by itself with an ``error``."""
    name, call_id = "replace", f"call-{number}"
    begun = {"type": "tool_use", "tool_name": name, "tool_id": call_id, "parameters": arguments}
    ended: dict[str, Any] = {"type": "tool_result", "tool_id": call_id, "status": "success", "output": "well"}
    if error:
        ended |= {"status": "error", "error": {"type": error, "message": "no"}}
    return [(None, begun), ((name, arguments) if judged else None, ended)]


def success(**stats: Any) -> Step:
    return (None, {"type": "result", "status": "success", "stats": stats})


def warning(text: str) -> Step:
    return (None, {"type": "error", "severity": "warning", "message": text})


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the worker a key; who plays the model or the program looks at none."""
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-real-key")


USED = success(total_tokens=9, models={"m": {"total_tokens": 9}})
UNASKED = success(total_tokens=0, models={})


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([*call(1, EDIT), *call(2, EDIT), ANSWER, USED], None),
        ([*call(1, EDIT, error="edit_no_occurrence_found"), *call(2, EDIT), ANSWER, USED], None),
        ([*call(1, EDIT, judged=False, error="invalid_tool_params"), *call(2, EDIT), ANSWER, USED], None),
        (
            [*call(1, EDIT, error="edit_no_occurrence_found"), *call(2, EDIT, judged=False), ANSWER, USED],
            "policy_bypassed",
        ),
        (
            [*call(1, EDIT, error="policy_violation"), *call(2, OTHER, judged=False), ANSWER, USED],
            "policy_bypassed",
        ),
        ([ANSWER, warning("Loop detected, stopping execution"), USED], "agent_looped"),
        ([warning("Loop detected, stopping execution"), UNASKED], "agent_looped"),
        ([*call(1, EDIT), warning("Maximum session turns exceeded"), USED], "turns_exhausted"),
        ([ANSWER, warning("something else"), USED], None),
        ([PROMPT, UNASKED], "context_overflow"),
        ([PROMPT, USED], "agent_failed"),
        ([PROMPT, *call(1, EDIT), USED], None),
    ],
    ids=[
        *("twice", "failed and again", "not asked about"),
        *("unjudged behind one that failed", "unjudged behind one that was blocked"),
        *("looped", "looped at once", "turns", "warned", "not asked", "no answer", "nothing after a call"),
    ],
)
async def test_what_a_turn_comes_to(steps: list[Step], code: str | None, tmp_path: Path) -> None:
    path = tmp_path / "gemini"
    path.write_text(PROGRAM.format(python=sys.executable, steps=json.dumps(steps)))
    path.chmod(0o755)
    bench = GeminiBench(tmp_path, transport=GeminiCliTransport(program=path))
    async with opened(bench, bench.spec("idle")) as (session, heard):
        outcome = await session.work(WorkRequest("Do it."), heard.emit)
    assert (outcome.error and outcome.error.code) == code
    assert outcome.end == ("failed" if code else "completed")
