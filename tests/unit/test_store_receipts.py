"""The chain of receipts: whatever is missing, altered or out of line is found."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schemas.calls import AttemptKey
from schemas.common import ArtifactRef
from schemas.errors import EvidenceConflict
from schemas.handoff import HandoffEnvelope, PartialHandoff, Savepoint
from schemas.receipt import GENESIS, GateReceipt, StepReceipt
from store.blobs import FileBlobs
from store.evidence import Evidence
from store.receipts import ReceiptProblem, Receipts
from store.redaction import Redactor

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


def key(visit: int) -> AttemptKey:
    return AttemptKey(run_id="r1", flow_key="fix", step_id="build", visit=visit, attempt=1)


def receipt(visit: int, previous: str, **more: Any) -> StepReceipt:
    return StepReceipt.model_validate(
        {**key(visit).model_dump(), "iteration": 1, "transport": "stub", "execution_status": "succeeded",
         "verification_status": "VERIFIED", "started_at": NOW, "completed_at": NOW, "duration_ms": 0,
         "previous_sha256": previous} | more
    )  # fmt: skip


class Chain:
    """Three receipts with an envelope, a gate's output and a partial handoff's bundle."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.evidence = Evidence(FileBlobs(root, fsync=False), Redactor())
        self.receipts = Receipts(self.evidence)
        self.heads = [GENESIS]
        for visit in (1, 2, 3):
            folder = key(visit).path
            output = self.evidence.put_text(f"{folder}/gates/tests.txt", f"output {visit}")
            artifact = self.evidence.put_text(f"{folder}/out.txt", f"artifact {visit}")
            bundle = self.evidence.put_bytes(f"{folder}/save.bundle", b"bundle", "application/x-git-bundle")
            envelope = HandoffEnvelope(
                **key(visit).model_dump(), iteration=1, status="VERIFIED", summary="", timestamp=NOW, source="agent",
                artifacts={"out": artifact},
            )  # fmt: skip
            partial = PartialHandoff(
                **key(visit).model_dump(), phase="work", reason="interrupt", stopped_at=NOW,
                savepoint=Savepoint(ref="refs/x", commit="c", bundle=bundle),
            )  # fmt: skip
            made = receipt(
                visit,
                self.heads[-1],
                gates=[GateReceipt(name="tests", measured=True, evidence=output)],
                envelope=self.receipts.write_envelope(envelope),
                handoff_partial=self.receipts.write_partial(partial),
            )
            self.heads.append(self.receipts.write(made).sha256)

    def path(self, visit: int, name: str = "receipt.json") -> Path:
        return self.root / key(visit).path / name

    def problems(self, head: str | None = None) -> list[tuple[str, str]]:
        report = self.receipts.verify_run("r1", self.heads[-1] if head is None else head)
        assert report.ok == (not report.problems)
        return [
            (Path(problem.path).relative_to("runs/r1").as_posix(), problem.what)
            for problem in report.problems
        ]


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def test_a_whole_chain_verifies_in_its_order(chain: Chain) -> None:
    report = chain.receipts.verify_run("r1", chain.heads[-1])
    assert report.ok
    assert report.receipts == [f"{key(visit).path}/receipt.json" for visit in (1, 2, 3)]
    assert chain.receipts.verify_run("r1") == report


def test_the_head_is_the_digest_of_the_last_receipts_bytes(chain: Chain) -> None:
    assert hashlib.sha256(chain.path(3).read_bytes()).hexdigest() == chain.heads[-1]
    assert chain.receipts.read(key(3)) is not None
    assert chain.receipts.read(key(4)) is None


def test_a_receipt_is_never_replaced(chain: Chain) -> None:
    with pytest.raises(EvidenceConflict):
        chain.receipts.write(receipt(1, GENESIS, duration_ms=1))


@pytest.mark.parametrize("visit", [1, 2])
def test_a_receipt_that_is_missing_is_found_by_the_next(chain: Chain, visit: int) -> None:
    chain.path(visit).unlink()
    assert (
        f"fix/build/{visit + 1}/1/receipt.json",
        "the receipt before it is missing or was altered",
    ) in chain.problems()


@pytest.mark.parametrize("visit", [1, 2])
def test_a_receipt_that_was_altered_is_found_by_the_next(chain: Chain, visit: int) -> None:
    path = chain.path(visit)
    path.write_text(path.read_text().replace('"VERIFIED"', '"UNVERIFIED"', 1))
    assert (
        f"fix/build/{visit + 1}/1/receipt.json",
        "the receipt before it is missing or was altered",
    ) in chain.problems()


@pytest.mark.parametrize("how", ["missing", "altered"])
def test_a_last_receipt_that_is_gone_or_altered_is_found_by_the_head(chain: Chain, how: str) -> None:
    if how == "missing":
        chain.path(3).unlink()
    else:
        chain.path(3).write_text(chain.path(3).read_text() + "\n")
    assert any("does not reach its head" in what for _, what in chain.problems())


def test_a_receipt_after_the_head_is_found(chain: Chain) -> None:
    assert chain.problems(chain.heads[2]) == [
        ("fix/build/3/1/receipt.json", "is not in the chain that ends with the head")
    ]


def test_a_fork_is_found_and_the_way_to_the_head_is_shown(chain: Chain) -> None:
    chain.receipts.write(receipt(0, chain.heads[1]))
    what = "forked: another receipt follows the same one"
    problems = chain.problems()
    assert ("fix/build/0/1/receipt.json", what) in problems
    assert ("fix/build/2/1/receipt.json", what) in problems
    assert len(chain.receipts.verify_run("r1", chain.heads[-1]).receipts) == 3
    assert not chain.receipts.verify_run("r1").ok


def test_a_second_beginning_is_a_fork(chain: Chain) -> None:
    chain.receipts.write(receipt(9, GENESIS))
    assert ("fix/build/9/1/receipt.json", "forked: another receipt follows the same one") in chain.problems()


def test_a_receipt_that_is_no_receipt_or_lies_in_the_wrong_place_is_found(chain: Chain) -> None:
    moved = chain.path(4)
    moved.parent.mkdir(parents=True)
    chain.path(3).rename(moved)
    assert (
        "fix/build/4/1/receipt.json",
        "speaks of another attempt: runs/r1/fix/build/3/1",
    ) in chain.problems()
    moved.write_text("{")
    assert ("fix/build/4/1/receipt.json", "is no receipt: it was altered") in chain.problems()


@pytest.mark.parametrize(
    "name", ["gates/tests.txt", "envelope.json", "handoff_partial.json", "out.txt", "save.bundle"]
)
def test_every_file_that_is_named_is_checked(chain: Chain, name: str) -> None:
    place = f"fix/build/2/1/{name}"
    path = chain.path(2, name)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(whole[:1], b"~", 1))
    assert [where for where, _ in chain.problems()] == [place]
    path.write_bytes(whole + b"\n")
    assert [where for where, _ in chain.problems()] == [place]
    path.unlink()
    assert chain.problems() == [(place, "is named but missing")]
    path.with_name(path.name + ".pruned").write_text("{}")
    report = chain.receipts.verify_run("r1", chain.heads[-1])
    assert (report.ok, report.pruned) == (True, [f"runs/r1/{place}"])


def test_a_reference_that_leaves_the_store_is_a_problem_and_is_not_followed(
    chain: Chain, tmp_path: Path
) -> None:
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("x")
    ref = ArtifactRef(uri="../outside.txt", sha256=hashlib.sha256(b"x").hexdigest(), bytes=1)
    head = chain.receipts.write(receipt(4, chain.heads[-1], transcript=ref)).sha256
    report = chain.receipts.verify_run("r1", head)
    assert [problem.path for problem in report.problems] == ["../outside.txt"]


def test_a_run_without_receipts_is_whole_and_an_unknown_one_is_not(chain: Chain) -> None:
    chain.evidence.put_text("runs/r2/run.json", "{}")
    assert chain.receipts.verify_run("r2").ok
    assert not chain.receipts.verify_run("r2", chain.heads[-1]).ok
    assert chain.receipts.verify_run("r3").problems == [
        ReceiptProblem("runs/r3", "the store knows no such run")
    ]


def test_receipts_are_stored_as_json_people_can_read(chain: Chain) -> None:
    text = chain.path(1).read_text()
    assert json.loads(text)["previous_sha256"] == GENESIS
    assert '\n  "attempt": 1,\n' in text
