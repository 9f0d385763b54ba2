"""What people see of a run in the Temporal UI and from the Temporal CLI."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any

from schemas.flow import FlowSpec
from schemas.questions import CallRequest, Question, QuestionItem
from schemas.run import DecisionSummary, FlowInput, StepSummary
from schemas.run_state import LastRefused, RunState, Waiting
from workflows.messages import Situation
from workflows.view import details

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
GATE = {"name": "tests", "argv": ["true"]}
SPEC = FlowSpec.model_validate(
    {
        "id": "fix",
        "version": 1,
        "title": "Fix",
        "steps": [
            {"id": "mend", "agent": "a", "objective": "o", "gates": [GATE], "routing": {"kind": "terminal"}},
            {"id": "end", "agent": "a", "objective": "o", "routing": {"kind": "terminal"}},
        ],
    }
)


def state(**more: Any) -> RunState:
    flow_input = FlowInput(flow="fix", task="t", repo="/r")
    fields = {"run_id": "r-1", "workflow_id": "r", "input": flow_input, "started_at": NOW, "flow_key": "fix"}
    return RunState(**{**fields, **more})


def shown(of: RunState, **more: Any) -> str:
    wait = more.get("waiting")
    situation = Situation(
        state="done" if more.get("outcome") else "waiting" if wait else "running",
        waiting_for=wait.kind if wait else None,
        step=more.get("step_id"),
        steps=["mend", "end"],
        following=more.pop("following", "end"),
        live=more.pop("live", False),
        questions=more.pop("questions", []),
        calls=more.pop("calls", []),
    )
    place: dict[str, Any] = {"step_id": None, "phase": None, "iteration": 1, "situation": situation}
    return details(of, SPEC, **{**place, "waiting": None, "outcome": None, **more})


def row(text: str, step: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {step}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def waiting(kind: Any, **more: Any) -> Waiting:
    return Waiting(kind=kind, since=NOW, **more)


def test_the_table_has_a_row_per_step_and_says_which_have_no_gates() -> None:
    steps = {"mend": StepSummary(step_id="mend", status="VERIFIED", visits=2, gates="tests ✓")}
    text = shown(state(steps=steps), step_id="mend", phase="work", iteration=2)
    assert row(text, "mend") == ["mend", "work (iteration 2)", "VERIFIED", "2", "tests ✓"]
    assert row(text, "end") == ["end", "", "", "", "none"]


def test_no_cell_can_break_the_table() -> None:
    text = shown(state(steps={"mend": StepSummary(step_id="mend", visits=1, gates="a|b\nc")}))
    assert "a\\|b c" in text
    assert "\nc" not in text


def test_a_skipped_step_is_said_to_be_skipped() -> None:
    steps = {"mend": StepSummary(step_id="mend", status="UNVERIFIED", visits=1)}
    assert row(shown(state(steps=steps, skipped=["mend"])), "mend")[2] == "skipped"


def test_a_wait_is_named_with_its_reason_its_end_and_the_phase_it_follows() -> None:
    wait = waiting("human", reason="no exit holds", deadline=NOW, on_silence="the run ends as needs_human")
    text = shown(state(), step_id="mend", phase="record", waiting=wait)
    assert text.startswith(
        "**waiting for a person**: no exit holds "
        "(until 2026-01-01 12:00 UTC; then the run ends as needs_human) · flow `fix`"
    )
    assert row(text, "mend")[1] == "waits after record (iteration 1)"
    assert row(shown(state(), step_id="mend", waiting=wait), "mend")[1] == "waits (iteration 1)"
    asked = shown(state(), step_id="mend", phase="work", waiting=waiting("answer"), live=True)
    assert row(asked, "mend")[1] == "waits in work (iteration 1)"


def test_a_pause_that_was_asked_for_shows_before_it_takes_hold() -> None:
    text = shown(state(pause_reason=""))
    assert text.startswith("**running**, will pause at the next phase boundary")
    assert "--name resume" in text


def test_the_newest_decision_and_the_newest_refusal_stand_below_the_table() -> None:
    last = DecisionSummary(
        step_id="mend", visit=1, iteration=1, decision="advance", next_step_id="end", explanation="It passed."
    )
    text = shown(
        state(decisions=[last], last_refused=LastRefused(name="approve", reason="not now", legal=["abort"]))
    )
    assert "Last decision: mend #1 advance → end. It passed." in text
    assert "Last refused: `approve`: not now. Legal then: abort." in text


def test_a_refusal_says_when_it_was_and_once_what_was_legal_then() -> None:
    reason = "approve is not legal while the run is running; legal now: pause, abort"
    refused = LastRefused(name="approve", reason=reason, legal=["pause", "abort"], at=NOW)
    assert (
        "Last refused at 2026-01-01 12:00:00 UTC: `approve`: approve is not legal while the run is running. "
        "Legal then: pause, abort."
    ) in shown(state(last_refused=refused))


def test_what_is_to_be_approved_is_said_with_how_to_look_at_it() -> None:
    wait = waiting("approval", about=["the agent says: [so](x)"], look=["stepwise show r-1"])
    text = shown(state(), step_id="mend", waiting=wait)
    assert "\n- the agent says: \\[so\\](x)\n" in text
    assert "Look at it:\n```\nstepwise show r-1\n```\n" in text


def test_the_end_shows_the_outcome_and_no_step_as_running() -> None:
    text = shown(state(), step_id="mend", outcome="verified")
    assert text.startswith("**verified** ·")
    assert row(text, "mend")[1] == ""
    assert "temporal workflow result --workflow-id r" in text


def test_a_wait_shows_everything_that_can_be_typed_each_with_what_it_does() -> None:
    text = shown(state(), step_id="mend", waiting=waiting("approval", reason="may mend start?"))
    block = text.split("What you can type:\n```\n")[1].removesuffix("```")
    typed = block.replace(" \\\n  ", " ").splitlines()
    assert typed[::2] == [
        "# let it pass",
        "# refuse it",
        "# start the step again",
        "# leave the step out",
        "# end the run",
    ]
    assert typed[1] == "temporal workflow update execute --workflow-id r --name approve"
    assert max(map(len, block.splitlines())) <= 40, "the page's column is narrow"
    program, *said = shlex.split(block.split("# refuse it\n")[1].split("\n#")[0])
    assert program == "temporal"
    assert said[-2:] == ["--input", '{"reason": "…"}'], "a shell reads it as one command"


def test_a_question_is_shown_with_its_options() -> None:
    items = [
        QuestionItem(question="Red or blue?", options=["red", "blue"]),
        QuestionItem(question="Which of these?", options=["a", "b"], multi_select=True),
        QuestionItem(question="Why?"),
    ]
    text = shown(
        state(), step_id="mend", waiting=waiting("answer"), questions=[Question(question_id="q", items=items)]
    )
    assert "1. Red or blue? (red · blue)\n" in text
    assert "2. Which of these? (a · b) (several may be chosen)\n" in text
    assert "3. Why?\n" in text


def test_a_call_that_asks_is_shown_with_its_reason_and_cannot_break_out_of_its_quotes() -> None:
    call = CallRequest(call_id="c", signature="s", tool_name="run", input="rm `x`", reason="it deletes")
    text = shown(state(), step_id="mend", waiting=waiting("approval"), calls=[call])
    assert "`run` `rm 'x'`: it deletes" in text
    assert '--name approve \\\n  --input \'{"remember": "run"}\'' in text
