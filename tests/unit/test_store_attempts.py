"""An attempt's logs: redacted before they reach a disk, bounded, and whole again after a crash."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.attempt_event import AttemptEvent
from schemas.calls import AttemptKey
from schemas.common import Usage
from schemas.errors import BadInput, EvidenceConflict
from schemas.events import (
    PermissionChanged,
    SessionOpened,
    SubagentStarted,
    TextEvent,
    ToolEnded,
    ToolStarted,
    TranscriptEvent,
    TranscriptFooter,
    TranscriptHeader,
    TransportEvent,
    TurnEnded,
    UsageEvent,
)
from schemas.tools import NormalizedToolCall
from store.attempts import LOGS, AttemptLog
from store.blobs import FileBlobs
from store.errors import RedactionFailed, StoreUnavailable
from store.evidence import Evidence
from store.redaction import Redactor
from store.spool import Limits

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = AttemptKey(run_id="r1", flow_key="fix", step_id="build", visit=2, attempt=3)
HEADER = TranscriptHeader(**KEY.model_dump(), task_id="t1", transport="stub", permission_mode="plan")
PLACE = "runs/r1/fix/build/2/3"
SPOOLED = PLACE.removeprefix("runs/").replace("/", ".")


def ticking() -> Callable[[], datetime]:
    ticks = iter(range(10_000_000))
    return lambda: NOW + timedelta(milliseconds=next(ticks))


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return Evidence(FileBlobs(tmp_path / "store", fsync=False), Redactor(["correct-horse"]))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def opened(evidence: Evidence, spool: Path, **limits: int) -> AttemptLog:
    return AttemptLog(evidence, spool, KEY, HEADER, ticking(), limits=Limits(**limits))


def died(evidence: Evidence, spool: Path, events: list[TransportEvent]) -> AttemptLog:
    log = opened(evidence, spool)
    for event in events:
        log.append(event)
    log.abandon()
    return log


def call(name: str = "read", **more: Any) -> ToolEnded:
    return ToolEnded(
        call=NormalizedToolCall(tool_name=name, success=True, source="stub", timestamp=NOW, **more)
    )


def lines(evidence: Evidence, name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in evidence.read_key(f"{PLACE}/{name}.jsonl").decode().rstrip("\n").split("\n")
    ]


WORK: list[TransportEvent] = [
    SessionOpened(session_id="s1", model="m1", server_info={"v": 1}),
    TextEvent(role="user", text="do it"),
    TextEvent(role="user", text="/compact now"),
    TextEvent(text="/done"),
    PermissionChanged(mode="acceptEdits"),
    SubagentStarted(agent_id="a1"),
    ToolStarted(call_id="c1", tool_name="read", input="x"),
    call(agent_id="a1"),
    UsageEvent(usage=Usage(prompt=3, completion=1)),
    call("write", blocked=True),
    UsageEvent(usage=Usage(prompt=2, cost_usd=0.5)),
    TurnEnded(stop_reason="end_turn"),
]


def test_a_closed_log_is_three_files_in_the_store_and_nothing_in_the_spool(
    evidence: Evidence, spool: Path
) -> None:
    log = opened(evidence, spool)
    for event in WORK:
        log.append(event)
    refs = log.close()
    assert {name: ref.uri for name, ref in refs.items()} == {
        name: f"{PLACE}/{name}.jsonl" for name in ("events", "transcript", "tool_calls")
    }
    assert all(evidence.read(ref) for ref in refs.values())
    assert list(spool.iterdir()) == []
    assert log.close() == refs
    log.emit(call())
    assert log.close() == refs
    assert log.error is None


def test_events_are_kept_in_order_with_number_and_time(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)
    for event in WORK:
        log.append(event)
    log.close()
    kept = [AttemptEvent.model_validate(line) for line in lines(evidence, "events")]
    assert [line.seq for line in kept] == list(range(1, 13))
    assert [line.event for line in kept] == WORK
    assert kept[1].ts == NOW + timedelta(milliseconds=1)


def test_the_transcript_has_header_events_and_footer(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)
    for event in WORK:
        log.append(event)
    log.close()
    head, *events, foot = lines(evidence, "transcript")
    header = TranscriptHeader.model_validate(head)
    assert (header.session_id, header.model, header.server_info) == ("s1", "m1", {"v": 1})
    parsed = [TranscriptEvent.model_validate(event) for event in events]
    assert [event.event_type for event in parsed] == [
        "session_opened", "user_prompt", "slash_command", "assistant_text", "permission_changed", "subagent_start",
        "tool_use", "tool_result", "tool_result", "turn_ended",
    ]  # fmt: skip
    assert [event.seq for event in parsed] == list(range(1, 11))
    assert {(event.session_id, event.task_id) for event in parsed} == {("s1", "t1")}
    assert [event.permission_mode for event in parsed] == ["plan"] * 4 + ["acceptEdits"] * 6
    assert [event.agent_id for event in parsed][5:8] == ["a1", None, "a1"]
    footer = TranscriptFooter.model_validate(foot)
    assert (footer.events, footer.tool_calls, footer.blocked, footer.complete) == (10, 2, 1, True)


def test_totals_stay_small_however_long_the_agent_works(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)
    for number in range(60):
        log.append(call(f"tool{number % 30}", input=str(number)))
        log.append(UsageEvent(usage=Usage(prompt=1)))
    totals = log.totals
    assert (totals.events, totals.tool_calls, totals.usage.prompt) == (120, 60, 60)
    assert list(totals.tools) == [f"tool{number}" for number in range(20)]
    assert [last.input for last in totals.last_calls] == [str(number) for number in range(50, 60)]
    log.close()
    assert [json.loads(line["input"]) for line in lines(evidence, "tool_calls")] == list(range(60))


def test_a_log_without_events_still_has_header_and_footer(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)
    log.set_header(HEADER.model_copy(update={"transport": "other"}))
    refs = log.close(complete=False)
    head, foot = lines(evidence, "transcript")
    assert (head["transport"], foot["complete"], foot["events"]) == ("other", False, 0)
    assert list(refs) == ["transcript"]


def test_the_header_is_fixed_once_an_event_was_logged(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)
    log.append(call())
    log.set_header(HEADER.model_copy(update={"transport": "other"}))
    log.close()
    assert lines(evidence, "transcript")[0]["transport"] == "stub"


def test_no_secret_reaches_the_spool(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)
    log.append(
        SessionOpened(session_id="s1", server_info={"token": "hunter22", "correct-horse": ["correct-horse"]})
    )
    log.append(TextEvent(text="I use correct-horse and password=hunter22"))
    log.append(call(input='{"password": "hunter22"}', output="correct-horse"))
    kept = b"".join(path.read_bytes() for path in spool.rglob("*.jsonl"))
    assert b"correct-horse" not in kept
    assert b"hunter22" not in kept
    assert "correct-horse" not in str(log.totals)
    log.close()


def test_an_event_that_cannot_be_redacted_is_not_written_and_stops_the_log(
    evidence: Evidence, spool: Path
) -> None:
    log = opened(evidence, spool)
    log.append(call())
    evidence.redactor.add("session_opened")
    log.emit(SessionOpened(session_id="s1"))
    log.emit(call())
    assert isinstance(log.error, RedactionFailed)
    assert log.totals.events == 1
    with pytest.raises(RedactionFailed):
        log.close()
    assert not evidence.blobs.exists(f"{PLACE}/events.jsonl")


def test_a_line_that_is_too_long_is_cut_and_stays_readable(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool, line=10_000)
    log.append(TextEvent(text="x" * 50_000))
    log.append(SessionOpened(session_id="s", server_info={f"k{n}": ["v" * 10] * 100 for n in range(200)}))
    log.close()
    for name in ("events", "transcript"):
        data = evidence.read_key(f"{PLACE}/{name}.jsonl")
        assert max(map(len, data.split(b"\n"))) <= 10_000
    text = AttemptEvent.model_validate(lines(evidence, "events")[0]).event
    assert isinstance(text, TextEvent)
    assert text.text.endswith("… [50000 characters in all]")


def test_a_full_file_ends_with_one_line_that_says_so(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool, file=4_000)
    for _ in range(40):
        log.append(call("read"))
    log.close()
    events = [AttemptEvent.model_validate(line) for line in lines(evidence, "events")]
    assert [line.event.kind for line in events] == ["tool_ended"] * (len(events) - 1) + ["error"]
    calls = [NormalizedToolCall.model_validate(line) for line in lines(evidence, "tool_calls")]
    assert [made.tool_name for made in calls] == ["read"] * (len(calls) - 1) + ["stepwise.left_out"]
    *shown, footer = lines(evidence, "transcript")
    assert [line.get("event_type") for line in shown][-2:] == ["tool_result", "left_out"]
    assert (footer["events"], footer["tool_calls"]) == (40, 40)
    assert len(evidence.read_key(f"{PLACE}/events.jsonl")) < 5_000


def test_events_from_many_threads_are_all_kept(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)

    def work() -> None:
        for _ in range(50):
            log.emit(call())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert [line["seq"] for line in lines(evidence, "events")] == list(range(1, 201))


def test_a_dead_workers_log_is_mended_and_uploaded(evidence: Evidence, spool: Path) -> None:
    log = died(evidence, spool, WORK)
    for name in ("events", "transcript", "tool_calls"):
        with (spool / SPOOLED / f"{name}.jsonl").open("ab") as file:
            file.write(b'{"torn": "li')
    recovered = AttemptLog.recover(evidence, spool, KEY, ticking())
    assert recovered is not None
    assert recovered.totals == log.totals
    assert [AttemptEvent.model_validate(line).event for line in lines(evidence, "events")] == WORK
    assert len(lines(evidence, "tool_calls")) == 2
    *_, last, footer = lines(evidence, "transcript")
    assert last["event_type"] == "turn_ended"
    assert (footer["complete"], footer["events"], footer["tool_calls"]) == (False, 10, 2)
    assert not (spool / "r1").exists()
    assert AttemptLog.recover(evidence, spool, KEY, ticking()) is None


def test_a_log_that_died_before_its_first_line_is_recovered_with_a_header(
    evidence: Evidence, spool: Path
) -> None:
    died(evidence, spool, [])
    assert AttemptLog.recover(evidence, spool, KEY, ticking()) is not None
    head, foot = lines(evidence, "transcript")
    assert TranscriptHeader.model_validate(head).step_id == "build"
    assert foot["complete"] is False


@pytest.mark.parametrize("uploaded", [1, 2, 3])
@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_log_whose_upload_was_cut_off_keeps_what_came_through(
    evidence: Evidence, spool: Path, tmp_path: Path, uploaded: int, removed: int
) -> None:
    whole = Evidence(FileBlobs(tmp_path / "whole", fsync=False), evidence.redactor)
    ended = opened(whole, tmp_path / "spool2")
    for event in WORK:
        ended.append(event)
    refs = ended.close()
    log = died(evidence, spool, WORK)
    with (spool / SPOOLED / "transcript.jsonl").open("ab") as file:
        file.write(whole.read(refs["transcript"]).split(b"\n")[-2] + b"\n")
    for name in LOGS[:uploaded]:
        evidence.put_redacted_lines(f"{PLACE}/{name}.jsonl", whole.read(refs[name]))
    for name in LOGS[: min(removed, uploaded)]:
        (spool / SPOOLED / f"{name}.jsonl").unlink()
    recovered = AttemptLog.recover(evidence, spool, KEY, ticking())
    assert recovered is not None
    assert recovered.refs == refs
    assert recovered.totals == log.totals


def test_a_second_log_of_the_same_attempt_is_refused_while_the_first_waits(
    evidence: Evidence, spool: Path
) -> None:
    died(evidence, spool, [call()])
    with pytest.raises(EvidenceConflict):
        opened(evidence, spool)


def test_attempts_do_not_touch_each_others_logs(evidence: Evidence, spool: Path) -> None:
    log = opened(evidence, spool)
    other = AttemptLog(evidence, spool, KEY.model_copy(update={"attempt": 4}), HEADER, ticking())
    log.append(call())
    other.close()
    log.append(call())
    log.close()
    assert len(lines(evidence, "events")) == 2


def test_each_phase_of_an_attempt_has_logs_of_its_own(evidence: Evidence, spool: Path) -> None:
    work = opened(evidence, spool)
    draft = AttemptLog(evidence, spool, KEY, HEADER.model_copy(update={"phase": "finalize"}), ticking())
    work.append(call("write"))
    draft.append(call("read", blocked=True, blocked_reason="read_only: no"))
    refs = draft.close()
    work.close()
    assert [line["tool_name"] for line in lines(evidence, "tool_calls")] == ["write"]
    assert {name: ref.uri for name, ref in refs.items()} == {
        name: f"{PLACE}/finalize/{name}.jsonl" for name in LOGS
    }
    header = json.loads(evidence.read(refs["transcript"]).splitlines()[0])
    assert header["phase"] == "finalize"
    assert draft.totals.blocked_calls[0].code == "read_only"


def test_the_log_of_a_lost_phase_is_recovered_by_its_name_alone(evidence: Evidence, spool: Path) -> None:
    draft = AttemptLog(evidence, spool, KEY, HEADER.model_copy(update={"phase": "route"}), ticking())
    draft.append(call())
    draft.abandon()
    assert AttemptLog.recover(evidence, spool, KEY, ticking()) is None
    assert AttemptLog.recover(evidence, spool, KEY, ticking(), phase="finalize") is None
    found = AttemptLog.recover(evidence, spool, KEY, ticking(), phase="route")
    assert found is not None
    assert found.refs["events"].uri == f"{PLACE}/route/events.jsonl"
    assert found.totals == draft.totals
    assert list(spool.iterdir()) == []


def test_a_key_that_leaves_the_spool_is_refused(evidence: Evidence, spool: Path) -> None:
    with pytest.raises(BadInput):
        AttemptLog(evidence, spool, KEY.model_copy(update={"flow_key": "../x"}), HEADER, ticking())


def test_a_spool_that_cannot_be_written_is_retryable(evidence: Evidence, spool: Path) -> None:
    spool.write_text("a file")
    with pytest.raises(StoreUnavailable):
        opened(evidence, spool)


def test_an_upload_that_failed_can_be_repeated(evidence: Evidence, spool: Path, tmp_path: Path) -> None:
    log = opened(evidence, spool)
    log.append(call())
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable):
        log.close()
    (tmp_path / "away").rename(tmp_path / "store")
    log.close()
    assert [line["kind"] for line in lines(evidence, "transcript")] == ["header", "event", "footer"]
