"""The checks after each run find what is doctored: claims that stand for measurements, lists that grow, other bytes.

And a batch is played again only where all that failed are runs that the server that skips time broke.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import soak_batch
from soak_batch import PLAYS, Report, play
from soak_broken import CANCELS_WHAT_ENDED, Played, are_its_own, broken_runs
from soak_checks import Checked, artifacts, claims, ended, sizes
from soak_history import Call, Heard, hear
from soak_plans import Batch, make_batch
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionContinuedAsNewEventAttributes
from temporalio.client import WorkflowHistory

from schemas.calls import ACQUIRE, MEASURE, RECORD, RESOLVE_FLOW, WORK, AttemptKey
from schemas.receipt import GENESIS, StepReceipt
from schemas.run_state import MAX_CONTEXT, MAX_DECISIONS, MAX_RECEIPTS
from store.blobs import open_blobs
from store.evidence import Evidence
from store.redaction import Redactor
from workflows.facts import MAX_FACTS_BYTES
from workflows.routing.state import MAX_ITERATIONS_KEPT

KEY: Final = AttemptKey(run_id="r", flow_key="small", step_id="build", visit=1, attempt=1)
NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
GATE: Final[dict[str, Any]] = {"name": "tests", "passed": True, "exit_code": 0}
LOG: Final = "runs/r/small/build/1/1/gates/tests.log"
WRITTEN: Final = b"all passed\n"


class Made:
    """An undisturbed run of one step with one gate, as the checks read it; to be doctored."""

    def __init__(self, folder: Path) -> None:
        blobs = open_blobs(folder.as_uri(), fsync=False, shared=True, temporal_is_loopback=True)
        self.evidence = Evidence(blobs, Redactor(()))
        self.log = blobs.create(LOG, WRITTEN, "text/plain").model_dump(mode="json")
        key = KEY.model_dump()
        self.step: dict[str, Any] = {"id": "build", "gates": [{"name": "tests", "argv": ["true"]}]}
        self.facts: dict[str, Any] = {"status": "VERIFIED", "claimed_status": "VERIFIED"}
        self.measured: dict[str, Any] = {"gates": [{"fact": dict(GATE), "evidence": self.log}]}
        self.receipt: dict[str, Any] = {
            **key,
            "iteration": 1,
            "transport": "stub",
            "execution_status": "succeeded",
            "verification_status": "VERIFIED",
            "started_at": NOW,
            "completed_at": NOW,
            "duration_ms": 0,
            "previous_sha256": GENESIS,
            "claimed": {"status": "VERIFIED"},
            "measured": {"status": "VERIFIED", "changed_after_measure": False},
            "gates": [{**GATE, "measured": True, "evidence": self.log}],
        }
        self.measure = Call(MEASURE.name, {"key": key}, self.measured)
        self.record = Call(RECORD.name, {"key": key, "facts": self.facts})
        self.state: dict[str, Any] = {"decisions": [], "context": [], "visits": {"build": 1}}
        self.state["routing"] = {"loops": {"build": {"iterations": []}}}
        self.torn = ""

    def claims_nothing_measured(self, status: str) -> None:
        """Let a step without gates have this status, as its agent claims."""
        self.step["gates"], self.measured["gates"], self.receipt["gates"] = [], [], []
        self.facts["status"] = self.receipt["measured"]["status"] = status
        self.receipt["verification_status"] = status

    def findings(self, check: Callable[[Checked], None]) -> str:
        """Return what a check finds."""
        resolved = Call(RESOLVE_FLOW.name, {}, {"spec": {"id": "small", "steps": [self.step]}})
        continued = WorkflowExecutionContinuedAsNewEventAttributes(
            input=Payloads(payloads=[Payload(data=b"{}"), Payload(data=json.dumps(self.state).encode())])
        )
        event = HistoryEvent(workflow_execution_continued_as_new_event_attributes=continued)
        last = HistoryEvent(event_id=1)
        heard = Heard([WorkflowHistory("w", [event]), WorkflowHistory("w", [last])])
        heard.calls = [resolved, self.measure, self.record]
        heard.torn = self.torn
        player: Any = SimpleNamespace(rig=SimpleNamespace(evidence=self.evidence))
        receipts = [StepReceipt.model_validate(self.receipt)]
        checked = Checked(player, "r", "verified", None, heard, [], receipts, None)
        check(checked)
        return "\n".join(checked.findings)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "store")


@pytest.mark.parametrize("check", [claims, sizes, artifacts, ended])
def test_nothing_is_found_in_a_run_as_it_must_be(made: Made, check: Callable[[Checked], None]) -> None:
    assert made.findings(check) == ""


def test_a_record_that_came_with_work_and_a_measurement_that_was_found_again_count(made: Made) -> None:
    made.record = Call(WORK.name, {"key": {**KEY.model_dump(), "visit": 2}, "record": made.record.argument})
    recover = {"recover": {"key": KEY.model_dump(), "phase": "measure"}}
    made.measure = Call(ACQUIRE.name, recover, {"finished_measure": made.measured})
    assert made.findings(claims) == ""


def test_a_claim_without_a_measurement_beside_it_is_found(made: Made) -> None:
    made.receipt["measured"] = {}
    assert "measured and recorded status are ('VERIFIED', None, 'VERIFIED')" in made.findings(claims)


def test_another_claim_than_was_recorded_is_found(made: Made) -> None:
    made.receipt["claimed"] = {"status": "BLOCKED"}
    assert "claimed BLOCKED, recorded VERIFIED" in made.findings(claims)


def test_a_receipt_that_nothing_was_recorded_of_is_found(made: Made) -> None:
    made.record = Call(RECORD.name, {"key": {**KEY.model_dump(), "attempt": 2}, "facts": made.facts})
    assert "nothing was recorded of" in made.findings(claims)


def test_a_claim_is_no_verification_where_there_is_no_gate(made: Made) -> None:
    made.claims_nothing_measured("UNVERIFIED")
    assert made.findings(claims) == ""
    made.claims_nothing_measured("VERIFIED")
    assert "VERIFIED without a required gate" in made.findings(claims)


def test_a_claim_is_no_verification_where_a_gate_failed(made: Made) -> None:
    made.receipt["gates"][0]["passed"] = made.measured["gates"][0]["fact"]["passed"] = False
    assert "is VERIFIED, passed set(), required {'tests'}" in made.findings(claims)


def test_a_claim_is_no_verification_where_a_gate_was_left_out(made: Made) -> None:
    made.receipt["gates"] = []
    assert "is VERIFIED, passed set(), required {'tests'}" in made.findings(claims)


def test_a_gate_that_was_not_measured_as_the_receipt_says_is_found(made: Made) -> None:
    made.measured["gates"][0]["fact"] |= {"passed": False, "exit_code": 1}
    assert "has ('tests', True, 0), measured were {('tests', False, 1)}" in made.findings(claims)


def test_a_verification_of_a_tree_that_changed_is_found(made: Made) -> None:
    made.receipt["measured"]["changed_after_measure"] = True
    assert "VERIFIED on another tree" in made.findings(claims)


def test_facts_that_are_too_large_are_found(made: Made) -> None:
    made.facts["stop_reason"] = "ä" * (MAX_FACTS_BYTES // 2)
    assert "the facts of runs/r/small/build/1/1 have" in made.findings(sizes)


@pytest.mark.parametrize(
    ("name", "bound"), [("decisions", MAX_DECISIONS), ("context", MAX_CONTEXT), ("receipts", MAX_RECEIPTS)]
)
def test_a_list_that_grows_over_continue_as_new_is_found(made: Made, name: str, bound: int) -> None:
    made.state[name] = [{}] * bound
    assert made.findings(sizes) == ""
    made.state[name] = [{}] * (bound + 1)
    assert f"{bound + 1} {name} are carried over, not {bound}" in made.findings(sizes)


def test_visits_of_more_steps_than_there_are_are_found(made: Made) -> None:
    made.state["visits"] = {f"step-{number}": 1 for number in range(4)}
    assert "4 visits are carried over, not 3" in made.findings(sizes)


def test_a_list_that_nobody_has_bounded_is_found(made: Made) -> None:
    made.state["remembered"] = []
    assert "no bound is known for the list remembered" in made.findings(sizes)


def test_a_loop_that_keeps_all_its_iterations_is_found(made: Made) -> None:
    made.state["routing"]["loops"]["build"]["iterations"] = [{}] * (MAX_ITERATIONS_KEPT + 1)
    assert "21 iterations of build are carried over" in made.findings(sizes)


def test_a_file_that_is_named_with_two_digests_is_found(made: Made) -> None:
    made.receipt["gates"][0]["evidence"] = {**made.log, "sha256": "0" * 64}
    assert f"{LOG} is named with ['{'0' * 64}', " in made.findings(artifacts)


def test_a_file_that_is_not_what_was_stored_is_found(made: Made, tmp_path: Path) -> None:
    (tmp_path / "store" / LOG).chmod(0o600)
    (tmp_path / "store" / LOG).write_bytes(b"none passed\n")
    assert f"{LOG} is stored as " in made.findings(artifacts)


def test_a_file_that_is_named_and_not_there_is_found(made: Made, tmp_path: Path) -> None:
    (tmp_path / "store" / LOG).unlink()
    assert f"{LOG} is named and is not stored" in made.findings(artifacts)


def test_a_history_without_an_end_of_a_run_that_has_ended_is_found(made: Made) -> None:
    made.torn = "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"
    assert (
        made.findings(ended) == "the run has ended, its history ends with EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"
    )


def chain_of(*last: EventType.ValueType) -> Any:
    """Return a client to whom the executions of a chain end with these events."""
    continued = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW

    def handle(_: str, *, run_id: str) -> Any:
        event = HistoryEvent(event_id=1, event_type=last[int(run_id)])
        if event.event_type == continued:
            attributes = event.workflow_execution_continued_as_new_event_attributes
            attributes.new_execution_run_id = str(int(run_id) + 1)

        async def fetch_history() -> WorkflowHistory:
            return WorkflowHistory("w", [event])

        return SimpleNamespace(fetch_history=fetch_history)

    return SimpleNamespace(get_workflow_handle=handle)


@pytest.mark.parametrize(
    ("last", "torn"),
    [
        (["WORKFLOW_EXECUTION_COMPLETED"], ""),
        (["WORKFLOW_EXECUTION_CONTINUED_AS_NEW", "WORKFLOW_EXECUTION_FAILED"], ""),
        (["WORKFLOW_TASK_COMPLETED"], "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"),
        (
            ["WORKFLOW_EXECUTION_CONTINUED_AS_NEW", "ACTIVITY_TASK_SCHEDULED"],
            "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED",
        ),
    ],
)
async def test_a_chain_whose_last_history_has_no_end_is_torn(last: list[str], torn: str) -> None:
    heard = await hear(chain_of(*(EventType.Value(f"EVENT_TYPE_{name}") for name in last)), "w", "0")
    assert (heard.torn, len(heard.histories)) == (torn, len(last))


REFUSED = f"Error while completing workflow activation: {CANCELS_WHAT_ENDED} for scheduledEventId=5"


@pytest.mark.parametrize(
    ("played", "failures", "again"),
    [
        ([Played("a", REFUSED), Played("b", "")], ["a: does not end"], True),
        ([Played("a", REFUSED), Played("b", "")], ["a: does not end", "b: no receipt"], False),
        ([Played("a", REFUSED), Played("b", "")], ["b: no receipt"], False),
        ([Played("a", REFUSED), Played("ab", "")], ["ab: no receipt"], False),
        ([Played("a", REFUSED)], ["a: torn", "a worker on disk-1 ended by itself with 1"], False),
        ([Played("a", REFUSED)], ["the workers' log holds c4n4ry-o…"], False),
        ([Played("a", "")], ["a: no receipt"], False),
        ([Played("a", REFUSED)], [], False),
        # Runs that are played side by side are not told apart, and no server but that one breaks them.
        ([], ["a: does not end"], False),
    ],
)
def test_a_play_is_discarded_only_where_the_server_broke_all_runs_that_failed(
    played: list[Played],
    failures: list[str],
    again: bool,
) -> None:
    assert are_its_own(failures, broken_runs(played)) == again


@pytest.mark.parametrize(("broken", "failed"), [(1, False), (PLAYS, True)])
async def test_what_failed_in_a_play_that_is_discarded_is_said_in_the_summary(
    broken: int,
    failed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plays: list[Path] = []

    async def doctored(_: Batch, folder: Path) -> Report:
        plays.append(folder)
        if len(plays) > broken:
            return Report(runs=1)
        said = f"a: does not end, play {len(plays)}"
        return Report(runs=1, failures=[f"{said}\n\nthe plans"], plain=[said], broken=True)

    monkeypatch.setattr(soak_batch, "_play", doctored)
    batch = make_batch(1, 2, "patient", 1)

    report = await play(batch, tmp_path)
    total = Report()
    total.plus(report)

    assert len(set(plays)) == min(broken + 1, PLAYS)
    assert bool(report.failures) == failed
    discarded = min(broken, PLAYS - 1)
    assert f"discarded   {discarded}" in total.lines()
    assert f"discarded of {batch.named}: a: does not end, play 1" in total.lines()
    assert len(total.discarded) == discarded
