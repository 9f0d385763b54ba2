"""The page for people: what it says to type is taken as it stands."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest

from schemas.common import ArtifactRef
from schemas.handoff import Savepoint
from schemas.messages import Resume
from schemas.run import FlowInput, StepSummary
from schemas.run_state import PartialView, RunState, Waiting
from workflows.messages import MESSAGES, Situation, parse
from workflows.view import details

PAGE = Path(__file__).resolve().parents[2] / "docs" / "humans.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = "\n".join(
    block for _, block in re.findall(r"^(````?)[a-z]*\n(.*?)^\1$", TEXT, re.MULTILINE | re.DOTALL)
)
TYPED = sorted(
    {
        line.removeprefix("$ ")
        for line in BLOCKS.replace(" \\\n  ", " ").splitlines()
        if line.removeprefix("$ ").startswith("temporal workflow")
    }
)


@pytest.mark.parametrize("typed", TYPED)
def test_a_command_of_the_page_names_a_message_or_a_query_and_its_payload_is_taken(typed: str) -> None:
    words = shlex.split(typed)
    if "query" in words:
        assert words[words.index("--type") + 1] in {"status", "pending", "partial_handoff"}
    if "--name" in words:
        name = words[words.index("--name") + 1]
        given = [json.loads(words[words.index("--input") + 1])] if "--input" in words else []
        assert name in MESSAGES
        assert parse(name, given)


def test_every_message_is_typed_somewhere_on_the_page() -> None:
    typed = {words[words.index("--name") + 1] for words in map(shlex.split, TYPED) if "--name" in words}
    assert typed == set(MESSAGES)


def test_every_action_of_resume_is_typed_somewhere_on_the_page_with_and_without_another_agent() -> None:
    asked = [
        parse("resume", [json.loads(words[words.index("--input") + 1])] if "--input" in words else [])
        for words in map(shlex.split, TYPED)
        if "--name" in words and words[words.index("--name") + 1] == "resume"
    ]
    orders = [one for one in asked if isinstance(one, Resume)]
    assert {one.action for one in orders} == set(get_args(Resume.model_fields["action"].annotation))
    assert {bool(one.transport) for one in orders} == {True, False}


@pytest.mark.parametrize(
    ("heading", "typed"),
    [
        ("Pause", "--name pause"),
        ("Interrupt", "--name interrupt"),
        ("Resume", "--name resume"),
        ("Questions", "--name answer"),
        ("Approvals", "--name approve"),
        ("Steer", "--name steer"),
        ("Budgets", "--name extend_budget"),
        ("Abort, cancel, terminate", "--name abort"),
        ("Abort, cancel, terminate", "workflow cancel"),
        ("Abort, cancel, terminate", "workflow terminate"),
    ],
)
def test_a_section_shows_its_own_command(heading: str, typed: str) -> None:
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if typed in line and "--workflow-id" in line]


def test_every_link_of_the_page_leads_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in TEXT.splitlines()
        if line.startswith("## ")
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        if path:
            assert (PAGE.parent / path).exists(), target
        else:
            assert anchor in headings, target


def test_what_can_be_typed_is_shown_as_it_is_printed() -> None:
    at = datetime(2026, 11, 29, tzinfo=UTC)
    flow_input = FlowInput(flow="talk", task="t", repo="/r")
    left = PartialView(
        ref=ArtifactRef(uri="", sha256="0" * 64, bytes=0),
        step_id="mend",
        visit=1,
        attempt=1,
        ended="interrupted",
        savepoint=Savepoint(ref="refs/stepwise/talk-1-0/1", commit="c"),
    )
    state = RunState(
        run_id="talk-1-0",
        workflow_id="talk-1",
        input=flow_input,
        started_at=at,
        visits={"mend": 1},
        steps={"mend": StepSummary(step_id="mend", visits=1, attempts=1)},
        partial=left,
    )
    shown = details(
        state,
        None,
        step_id="mend",
        phase="record",
        iteration=1,
        situation=Situation("waiting", "human", step="mend", steps=["mend", "finish"], following="finish"),
        waiting=Waiting(kind="human", since=at, can_continue=True),
        outcome=None,
    )
    head = "\n\n\nWhat you can type:\n"
    assert head + shown.partition(head)[2] + "\n````\n" in TEXT


def test_the_help_of_reject_says_who_reads_the_reason() -> None:
    assert MESSAGES["reject"].help.endswith("reason: for the agent, before a step for a person.")
    assert "`before`, the run waits for a person, who reads who rejected it and why" in " ".join(TEXT.split())
