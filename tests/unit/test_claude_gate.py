"""What stands between a Claude agent and its tools: closed where nothing runs, policy first, then people."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from policy.commands import ALLOWED, Verdict
from schemas.events import TransportEvent
from schemas.questions import Answer, CallDecision, CallRequest, Question
from transports.claude_gate import Gate, Mode
from transports.claude_policy import OURS, OWN, QUESTION, Toolset, judge_tool
from transports.port import Park, SessionSpec


def make_gate(
    folder: Path, verdict: Verdict | Exception = ALLOWED, **callbacks: Any
) -> tuple[Gate, dict[str, str]]:
    def judge(_: str, __: Mapping[str, Any]) -> Verdict:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    spec = SessionSpec(
        run_id="r",
        place={"step": "build", "visit": 1, "attempt": 2, "iteration": 1},
        workspace=folder,
        private=folder,
        state=folder,
        environment={},
        system="",
        model=None,
        read_only=False,
        command_timeout_s=60,
        no_output_s=600,
        **callbacks,
    )
    blocked: dict[str, str] = {}
    return Gate(spec, "session", judge, blocked, reading=OWN.reading), blocked


def ignore(_: TransportEvent) -> None:
    """Take an event."""


ASK = Verdict("ask", "E_ASK", "people decide that")


@pytest.mark.parametrize(
    ("mode", "name", "verdict", "code"),
    [
        ("closed", "Read", ALLOWED, "turn_over"),
        ("answer", "Write", ALLOWED, "read_only"),
        ("answer", QUESTION, ALLOWED, "read_only"),
        ("answer", "Read", ALLOWED, None),
        ("work", "Write", ALLOWED, None),
        ("work", "Write", Verdict("deny", "E_NO", "no"), "E_NO"),
        ("work", "Write", RuntimeError("broken"), "policy_error"),
    ],
)
async def test_a_call_is_screened_by_the_turn_and_by_policy(
    mode: Mode, name: str, verdict: Verdict | Exception, code: str | None, tmp_path: Path
) -> None:
    gate, blocked = make_gate(tmp_path, verdict)
    gate.open(mode, ignore)
    found = await gate.screen(name, {}, "1")
    assert (found.decision, found.code) == (("allow", "") if code is None else ("deny", code))
    assert ("1" in blocked) is (code is not None)
    hook = await gate.hook(name, {}, "2")
    assert hook["hookSpecificOutput"]["permissionDecision"] == ("allow" if code is None else "deny")


async def test_what_policy_did_not_leave_to_people_is_not_decided_by_them(tmp_path: Path) -> None:
    async def allow(request: CallRequest) -> CallDecision:
        return CallDecision(signature=request.signature, allow=True)

    gate, blocked = make_gate(tmp_path, ASK, on_call=allow)
    gate.open("work", ignore)
    assert not (await gate.decide("Bash", {"command": "x"}, "1")).allow
    assert blocked["1"].startswith("not_decided")
    await gate.screen("Bash", {"command": "x"}, "2")
    assert (await gate.decide("Bash", {"command": "x"}, "2")).allow
    assert not (await gate.decide("Bash", {"command": "x"}, "2")).allow
    await gate.screen("Bash", {"command": "x"}, "3")
    gate.close()
    assert not (await gate.decide("Bash", {"command": "x"}, "3")).allow


async def test_a_call_that_nobody_decides_parks_the_turn(tmp_path: Path) -> None:
    for callbacks in ({}, {"on_call": lambda _: asyncio.sleep(0, Park("later"))}):
        gate, blocked = make_gate(tmp_path, ASK, **callbacks)
        gate.open("work", ignore)
        await gate.screen("Bash", {"command": "x"}, "1")
        decision = await gate.decide("Bash", {"command": "x"}, "1")
        assert (decision.allow, decision.interrupt) == (False, True)
        assert gate.parked is not None
        assert gate.parked.end == "approval"
        assert gate.parked.call is not None
        assert gate.parked.call.code == "E_ASK"
        assert blocked["1"].startswith("parked")


async def test_a_question_has_all_its_items_and_an_empty_one_is_a_question_too(tmp_path: Path) -> None:
    asked: list[Question] = []

    async def answer(question: Question) -> Answer:
        asked.append(question)
        return Answer(answers={"Which?": ["one", "two"], "Why?": "so"}, source="test")

    gate, _ = make_gate(tmp_path, on_question=answer)
    events: list[TransportEvent] = []
    gate.open("work", events.append)
    options = [{"label": "one", "description": ""}, {"label": "two"}]
    given = {
        "questions": [{"question": "Which?", "options": options, "multiSelect": True}, {"question": "Why?"}]
    }
    decision = await gate.decide(QUESTION, given, "1")
    assert decision.arguments == {**given, "answers": {"Which?": "one, two", "Why?": "so"}}
    assert [(item.question, item.options, item.multi_select) for item in asked[0].items] == [
        ("Which?", ["one", "two"], True),
        ("Why?", [], False),
    ]
    assert (asked[0].attempt, asked[0].session_id) == (2, "session")
    await gate.decide(QUESTION, {}, "2")
    assert len(asked[1].items) == 1
    assert [event.kind for event in events] == ["question", "question"]


async def test_the_time_of_people_is_counted_apart(tmp_path: Path) -> None:
    begun, on = asyncio.Event(), asyncio.Event()

    async def answer(_: Question) -> Answer:
        begun.set()
        await on.wait()
        return Answer(answers={}, source="test")

    gate, _ = make_gate(tmp_path, on_question=answer)
    gate.open("work", ignore)
    asking = asyncio.create_task(gate.decide(QUESTION, {}, "1"))
    await begun.wait()
    assert gate.waited_s > 0
    on.set()
    await asking
    waited = gate.waited_s
    assert waited > 0
    assert gate.waited_s == waited


async def test_people_who_are_asked_twice_at_once_are_waited_for_until_the_last_answers(
    tmp_path: Path,
) -> None:
    words = [asyncio.get_running_loop().create_future() for _ in range(2)]
    waiting = iter(words)

    async def answer(_: Question) -> Answer:
        return await next(waiting)

    gate, _ = make_gate(tmp_path, on_question=answer)
    gate.open("work", ignore)
    asked = [asyncio.create_task(gate.decide(QUESTION, {}, str(call))) for call in range(2)]
    await asyncio.sleep(0)
    words[0].set_result(Answer(answers={}, source="test"))
    await asked[0]
    waited = gate.waited_s
    assert gate.waited_s > waited
    words[1].set_result(Answer(answers={}, source="test"))
    await asked[1]
    waited = gate.waited_s
    assert gate.waited_s == waited


@pytest.mark.parametrize(
    ("tools", "name", "arguments", "code"),
    [
        (OWN, "Read", {"file_path": "a.txt"}, ""),
        (OWN, "Read", {}, "E_PATH_INVALID"),
        (OWN, "Read", {"file_path": "out/x"}, "E_PATH_ABSOLUTE"),
        (OWN, "Read", {"file_path": ".claude/settings.json"}, ""),
        (OWN, "Write", {"file_path": ".claude/settings.json"}, "E_PATH_PROTECTED"),
        (OWN, "Write", {"file_path": "config/settings.json"}, "E_PATH_PROTECTED"),
        (OWN, "Edit", {"file_path": "a.txt"}, ""),
        (OWN, "Edit", {"file_path": 5}, "E_PATH_INVALID"),
        (OWN, "Write", {"file_path": "a\u202eb"}, "E_PATH_INVALID"),
        (OWN, "Glob", {"pattern": "**/*.py"}, ""),
        (OWN, "Glob", {"pattern": "../*"}, "E_PATH_OUTSIDE"),
        (OWN, "Glob", {"pattern": ".git/**"}, "E_PATH_OUTSIDE"),
        (OWN, "Grep", {"pattern": "/etc", "glob": "*.py"}, ""),
        (OWN, "Grep", {"pattern": "x", "glob": "~/*"}, "E_PATH_OUTSIDE"),
        (OWN, "Agent", {}, ""),
        (OWN, "WebFetch", {}, "tool_not_offered"),
        (OWN, "mcp__theirs__tool", {}, "tool_not_offered"),
        (OURS, "Bash", {"command": "ls"}, "tool_not_offered"),
        (OURS, "mcp__stepwise__run_command", {"command": "ls"}, ""),
        (OURS, "mcp__stepwise__list", {}, ""),
        (OURS, "mcp__stepwise__write_file", {"path": "out/x"}, "E_PATH_ABSOLUTE"),
    ],
)
def test_each_call_has_its_verdict(
    tools: Toolset, name: str, arguments: dict[str, Any], code: str, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    (workspace / ".claude").mkdir(parents=True)
    (workspace / "out").symlink_to(tmp_path)
    (workspace / "config").symlink_to(workspace / ".claude")
    found = judge_tool(
        name, arguments, tools=tools, workspace=workspace, read_only=False, repository_tools=False
    )
    assert (found.decision, found.code) == ("deny" if code else "allow", code)


def test_what_only_reads_stays_allowed_where_nothing_may_be_changed(tmp_path: Path) -> None:
    def judged(name: str, repository_tools: bool = True, **arguments: Any) -> str:
        return judge_tool(
            name,
            arguments,
            tools=OWN,
            workspace=tmp_path,
            read_only=True,
            repository_tools=repository_tools,
        ).decision

    assert judged("Read", file_path="a") == judged("Bash", command="ls") == "allow"
    assert judged("Write", file_path="a") == judged("Bash", command="touch a") == "deny"
    assert judged("mcp__theirs__tool") == "deny"
