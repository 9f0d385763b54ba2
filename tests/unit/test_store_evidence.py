"""Everything stored is redacted first, deterministic, and checked when it is read."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from policy.secrets import marker
from schemas.calls import AttemptKey, FinalizeOut, GateRun, MeasureOut, ProposeOut, WorkOut, WorkResult
from schemas.common import ArtifactRef
from schemas.errors import EvidenceConflict
from schemas.facts import GateFact
from schemas.handoff import HandoffDraft, HandoffEnvelope
from schemas.routing import RoutingSignal
from store.blobs import FileBlobs
from store.errors import EvidenceCorrupt, NotStored, RedactionFailed
from store.evidence import Evidence
from store.redaction import Redactor
from store.results import Results

KNOWN = "correct-horse"
NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = AttemptKey(run_id="r1", flow_key="fix", step_id="build", visit=2, attempt=3)


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return Evidence(FileBlobs(tmp_path, fsync=False), Redactor([KNOWN]))


def envelope(summary: str, **more: object) -> HandoffEnvelope:
    return HandoffEnvelope.model_validate(
        {
            **KEY.model_dump(),
            "iteration": 1,
            "status": "PARTIAL",
            "summary": summary,
            "timestamp": NOW,
            "source": "agent",
        }
        | more
    )


def test_a_model_is_stored_readable_and_comes_back(evidence: Evidence) -> None:
    ref = evidence.put_model("e.json", envelope("done"))
    text = evidence.read(ref).decode()
    assert text.endswith("}\n")
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    assert '"timestamp": "2025-01-02T03:04:05Z"' in text
    assert evidence.get_model("e.json", HandoffEnvelope) == envelope("done")
    assert evidence.get_model("other.json", HandoffEnvelope) is None


def test_the_same_content_gives_the_same_bytes(evidence: Evidence) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=2)))
    one = evidence.put_model("a.json", envelope("ü", artifacts={}, timestamp=elsewhere))
    assert evidence.put_model("b.json", envelope("ü")).sha256 == one.sha256
    assert evidence.put_model("a.json", envelope("ü")) == one


def test_required_fields_without_a_value_survive(evidence: Evidence) -> None:
    draft = HandoffDraft(
        status="PARTIAL", summary="", proposed_next_step=None, notes_for_next_step="", confidence=0.5,
        can_further_iteration_help="unsure", assumptions=[], decisions=[], blockers=[], evidence_names=[],
    )  # fmt: skip
    evidence.put_model("d.json", draft)
    assert evidence.get_model("d.json", HandoffDraft) == draft


def test_secrets_reach_neither_models_nor_text(evidence: Evidence, tmp_path: Path) -> None:
    evidence.put_model(
        "e.json",
        envelope(f"used {KNOWN}", artifacts={KNOWN: ArtifactRef(uri="x", sha256="0" * 64, bytes=0)}),
    )
    evidence.put_text("t.txt", f"used {KNOWN} and password=hunter22\n")
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KNOWN.encode() not in stored
    assert b"hunter22" not in stored
    assert stored.count(marker("exact", KNOWN).encode()) == 3


def test_a_summary_that_redaction_made_too_long_is_cut_to_its_limit(evidence: Evidence) -> None:
    evidence.put_model("e.json", envelope("pwd=abc " * 250))
    stored = evidence.get_model("e.json", HandoffEnvelope)
    assert stored is not None
    assert len(stored.summary) == 2_000
    assert "pwd=abc" not in stored.summary


def test_a_model_that_is_not_valid_without_its_secret_is_not_written(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.redactor.add("UNVERIFIED")
    with pytest.raises(RedactionFailed):
        evidence.put_model("e.json", envelope("x", status="UNVERIFIED"))
    assert not (tmp_path / "e.json").exists()


def test_bundles_are_stored_byte_for_byte(evidence: Evidence) -> None:
    data = f"# v2 git bundle {KNOWN}\x00".encode()
    assert evidence.read(evidence.put_bytes("b.bundle", data, "application/x-git-bundle")) == data


def test_bytes_that_changed_after_they_were_stored_are_found_out(evidence: Evidence, tmp_path: Path) -> None:
    ref = evidence.put_text("t.txt", "one")
    (tmp_path / "t.txt").write_text("two")
    with pytest.raises(EvidenceCorrupt):
        evidence.read(ref)
    (tmp_path / "t.txt").unlink()
    with pytest.raises(NotStored) as missing:
        evidence.read(ref)
    assert missing.value.code == "E_NOT_STORED"
    (tmp_path / "t.txt.pruned").write_text("")
    with pytest.raises(NotStored) as pruned:
        evidence.read(ref)
    assert pruned.value.code == "E_PRUNED"


def test_a_stored_model_that_cannot_be_read_is_corrupt_and_not_absent(
    evidence: Evidence, tmp_path: Path
) -> None:
    (tmp_path / "e.json").write_text('{"status": "PARTIAL"')
    with pytest.raises(EvidenceCorrupt):
        evidence.get_model("e.json", HandoffEnvelope)


def test_each_phase_result_has_its_own_key_and_comes_back(evidence: Evidence) -> None:
    results = Results(evidence)
    work = WorkResult(out=WorkOut(ended="finished", tree="abc"))
    measure = MeasureOut(gates=[GateRun(fact=GateFact(name="tests", passed=True, exit_code=0))])
    finalize = FinalizeOut(claimed_status="VERIFIED")
    route = ProposeOut(signal=RoutingSignal(decision="advance", reason="", confidence=1))
    assert results.load(KEY, WorkResult) is None
    places = [results.save(KEY, result).uri for result in (work, measure, finalize, route)]
    assert places == [
        f"runs/r1/fix/build/2/3/{phase}.json" for phase in ("work", "measure", "finalize", "route")
    ]
    assert results.load(KEY, WorkResult) == work
    assert results.load(KEY, MeasureOut) == measure
    assert results.load(KEY, FinalizeOut) == finalize
    assert results.load(KEY, ProposeOut) == route


def test_a_phase_result_is_never_replaced(evidence: Evidence) -> None:
    results = Results(evidence)
    results.save(KEY, MeasureOut(elapsed_ms=1))
    results.save(KEY, MeasureOut(elapsed_ms=1))
    with pytest.raises(EvidenceConflict):
        results.save(KEY, MeasureOut(elapsed_ms=2))
