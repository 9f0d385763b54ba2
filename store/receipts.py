"""Receipts: written once per attempt, chained by digest, and verified against every file they name.

Verification detects corruption: a file that is missing, altered or out of the chain. It does not detect a forger,
who can write a whole new chain; only a head that is kept elsewhere (a run's history holds it) can show that.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from schemas.calls import AttemptKey
from schemas.common import ArtifactRef
from schemas.errors import BadInput
from schemas.handoff import HandoffEnvelope, PartialHandoff
from schemas.pruned import Pruned
from schemas.receipt import GENESIS, StepReceipt
from store.errors import EvidenceCorrupt, NotStored
from store.evidence import Evidence
from store.keys import ENVELOPE, PARTIAL, RECEIPT

_NAMING: Final = (f"/{ENVELOPE}", f"/{PARTIAL}")
"""Files that name further files."""


@dataclass(frozen=True)
class ReceiptProblem:
    """Something verification found: the file it is about, and what is wrong with it."""

    path: str
    what: str


@dataclass(frozen=True)
class Report:
    """Whether a run's receipts hold: their paths in the order of the chain, problems, and files that were pruned.

    ``pruned_on`` is the day those files were removed (``2025-01-02``; empty: none were, or it is not known). Receipts
    that were pruned are a problem: without them there is no chain.
    """

    ok: bool
    receipts: list[str]
    problems: list[ReceiptProblem]
    pruned: list[str]
    pruned_on: str = ""


class Receipts:
    """Receipts, envelopes and partial handoffs of all attempts. Calls block; they raise StoreUnavailable."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def write(self, receipt: StepReceipt) -> ArtifactRef:
        """Store a receipt in its attempt's folder; raises EvidenceConflict if another one is there."""
        return self._evidence.put_model(f"{_folder(receipt)}/{RECEIPT}", receipt)

    def write_envelope(self, envelope: HandoffEnvelope) -> ArtifactRef:
        """Store an envelope in its attempt's folder; raises EvidenceConflict if another one is there."""
        return self._evidence.put_model(f"{_folder(envelope)}/{ENVELOPE}", envelope)

    def write_partial(self, partial: PartialHandoff) -> ArtifactRef:
        """Store a partial handoff in its attempt's folder; raises EvidenceConflict if another one is there."""
        return self._evidence.put_model(f"{_folder(partial)}/{PARTIAL}", partial)

    def read(self, key: AttemptKey) -> StepReceipt | None:
        """Return the attempt's receipt, or None; raises EvidenceCorrupt."""
        return self._evidence.get_model(f"{key.path}/{RECEIPT}", StepReceipt)

    def verify_run(self, run_id: str, head: str | None = None) -> Report:
        """Check a run's chain of receipts, and every file they name; ``head`` is the digest it must end with."""
        check = _Verification(self._evidence)
        keys = self._evidence.blobs.keys(f"runs/{run_id}/")
        marker = self._evidence.pruned_run(run_id)
        if not keys and marker is None:
            check.problem(f"runs/{run_id}", "the store knows no such run")
        for key in keys:
            if key.endswith(f"/{RECEIPT}"):
                check.add_receipt(key)
        chain: list[str] = []
        lost = _lost_receipts(run_id, marker, keys)
        if marker is not None and lost:
            what = f"{marker.words}, with {lost} of its receipts: there is no chain to check"
            check.problem(f"runs/{run_id}", what)
        else:
            chain = check.chain(f"runs/{run_id}", head)
        check.references()
        on = f"{marker.pruned_at:%Y-%m-%d}" if marker and marker.pruned_at else ""
        return Report(not check.problems, chain, check.problems, sorted(check.pruned), on)


def _lost_receipts(run_id: str, marker: Pruned | None, keys: Iterable[str]) -> int:
    """Return how many receipts retention has removed."""
    pruned = {f"runs/{run_id}/{name}" for name in marker.files} if marker else set()
    return sum(key.endswith(f"/{RECEIPT}") for key in pruned.difference(keys))


class _Verification:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._receipts: dict[str, tuple[str, StepReceipt]] = {}
        self._seen: set[str] = set()
        self.problems: list[ReceiptProblem] = []
        self.pruned: set[str] = set()

    def problem(self, path: str, what: str) -> None:
        self.problems.append(ReceiptProblem(path, what))

    def add_receipt(self, key: str) -> None:
        try:
            data = self._evidence.read_key(key)
        except EvidenceCorrupt as error:
            self.problem(key, error.message)
            return
        try:
            receipt = StepReceipt.model_validate_json(data)
        except ValidationError:
            self.problem(key, "is no receipt: it was altered")
            return
        if key != f"{_folder(receipt)}/{RECEIPT}":
            self.problem(key, f"speaks of another attempt: {_folder(receipt)}")
        self._receipts[hashlib.sha256(data).hexdigest()] = (key, receipt)

    def chain(self, run: str, head: str | None) -> list[str]:
        """Return the paths from the first receipt to ``head``, noting what does not belong to that one line."""
        after: defaultdict[str, list[str]] = defaultdict(list)
        for digest, (key, receipt) in self._receipts.items():
            after[receipt.previous_sha256].append(digest)
            if receipt.previous_sha256 not in {GENESIS, *self._receipts}:
                self.problem(key, "the receipt before it is missing or was altered")
        for followers in after.values():
            for digest in followers if len(followers) > 1 else ():
                self.problem(self._receipts[digest][0], "forked: another receipt follows the same one")
        line: list[str] = []
        last = GENESIS
        while last in after:
            last = after[last][0]
            line.append(last)
        if head is not None and last != head:
            line = self._line_to(head)
            if not line and head != GENESIS:
                self.problem(
                    run, f"the chain does not reach its head {head[:12]}…: a receipt is missing or altered"
                )
        if head is not None and line:
            for digest in self._receipts.keys() - set(line):
                self.problem(self._receipts[digest][0], "is not in the chain that ends with the head")
        return [self._receipts[digest][0] for digest in line]

    def _line_to(self, head: str) -> list[str]:
        line: list[str] = []
        while head in self._receipts:
            line.insert(0, head)
            head = self._receipts[head][1].previous_sha256
        return line

    def references(self) -> None:
        """Check that every file the receipts name, and every file those name, is there and unaltered."""
        for _, receipt in self._receipts.values():
            self._check(_references(receipt.model_dump(mode="json")))

    def _check(self, references: Iterable[ArtifactRef]) -> None:
        for ref in references:
            if (identity := ref.model_dump_json()) in self._seen:
                continue
            self._seen.add(identity)
            try:
                data = self._evidence.read(ref)
            except NotStored as error:
                if error.code == "E_PRUNED":
                    self.pruned.add(ref.uri)
                else:
                    self.problem(ref.uri, "is named but missing")
            except (EvidenceCorrupt, BadInput) as error:
                self.problem(ref.uri, error.message)
            else:
                if ref.uri.endswith(_NAMING):
                    self._check_named(ref.uri, data)

    def _check_named(self, path: str, data: bytes) -> None:
        try:
            self._check(list(_references(json.loads(data))))
        except (ValueError, RecursionError):
            self.problem(path, "is no JSON")


def _folder(of: StepReceipt | HandoffEnvelope | PartialHandoff) -> str:
    return AttemptKey(
        run_id=of.run_id, flow_key=of.flow_key, step_id=of.step_id, visit=of.visit, attempt=of.attempt
    ).path


def _references(tree: Any) -> Iterator[ArtifactRef]:
    if isinstance(tree, list):
        for item in tree:
            yield from _references(item)
    elif isinstance(tree, dict):
        if {"uri", "sha256", "bytes"} <= tree.keys():
            try:
                yield ArtifactRef.model_validate(tree)
            except ValidationError:
                return
        for item in tree.values():
            yield from _references(item)
