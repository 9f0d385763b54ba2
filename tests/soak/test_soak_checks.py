"""The checks after each run find what is doctored: claims that stand for measurements, lists that grow, other bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from soak_checks import Checked, artifacts, claims, sizes
from soak_history import Call, Heard
from temporalio.api.common.v1 import Payload, Payloads
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
        player: Any = SimpleNamespace(rig=SimpleNamespace(evidence=self.evidence))
        receipts = [StepReceipt.model_validate(self.receipt)]
        checked = Checked(player, "r", "verified", None, heard, [], receipts, None)
        check(checked)
        return "\n".join(checked.findings)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "store")


@pytest.mark.parametrize("check", [claims, sizes, artifacts])
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
