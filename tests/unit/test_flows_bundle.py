from __future__ import annotations

import hashlib
import json

import pytest

from flows.bundle import MAX_BUNDLE_BYTES, Bundle, bundle, read_bundle
from flows.loader import find_flow, load_flow
from flows.params import resolve
from flows.personas import personas_of
from schemas.errors import BadInput, EvidenceConflict
from schemas.flow import FlowSpec


def _spec(task: str = "do it") -> FlowSpec:
    spec, findings = load_flow("fix")
    assert findings == []
    assert spec is not None
    return resolve(spec, {"test": ["make", "test"]}, task)


def _bundle(*, scenario: str | None = None, source: str | None = None) -> Bundle:
    file, spec = find_flow("fix"), _spec()
    personas = personas_of(spec, {}, file.folders)
    return bundle(spec=spec, source=source or file.text, personas=personas, scenario=scenario)


def test_a_bundle_holds_every_agent_of_the_flow() -> None:
    assert sorted(_bundle().personas) == ["implementer", "integrator", "reviewer"]


def test_the_digest_is_that_of_the_stored_bytes() -> None:
    made = _bundle(scenario="version: 1\n")
    assert made.digest == hashlib.sha256(made.canonical()).hexdigest()


def test_what_is_stored_reads_back_the_same() -> None:
    made = _bundle(scenario="version: 1\n# é\n")
    again = read_bundle(made.canonical(), digest=made.digest)
    assert again == made
    assert again.canonical() == made.canonical()


def test_the_digest_does_not_depend_on_the_order_of_agents() -> None:
    spec = _spec()
    one = bundle(spec=spec, source="s", personas={"a": "1", "b": "2"})
    other = bundle(spec=spec, source="s", personas={"b": "2", "a": "1"})
    assert one.digest == other.digest
    assert read_bundle(one.canonical(), digest=one.digest).digest == one.digest


def test_every_part_changes_the_digest() -> None:
    spec = _spec()
    made = [
        bundle(spec=spec, source="s", personas={"a": "1"}),
        bundle(spec=spec, source="t", personas={"a": "1"}),
        bundle(spec=spec, source="s", personas={"a": "2"}),
        bundle(spec=spec, source="s", personas={"a": "1"}, scenario="x"),
        bundle(spec=spec.model_copy(update={"version": 2}), source="s", personas={"a": "1"}),
    ]
    assert len({one.digest for one in made}) == len(made)


def test_a_bundle_over_the_limit_is_refused_with_the_sizes() -> None:
    with pytest.raises(BadInput) as caught:
        _bundle(source="x" * MAX_BUNDLE_BYTES)
    assert caught.value.code == "FlowRefused"
    assert (
        int(caught.value.details["source_bytes"]) > MAX_BUNDLE_BYTES > int(caught.value.details["spec_bytes"])
    )
    assert f"source {MAX_BUNDLE_BYTES + 2}" in str(caught.value)


def test_changed_bytes_are_noticed() -> None:
    made = _bundle()
    changed = made.canonical().replace(b"make", b"fake")
    with pytest.raises(EvidenceConflict) as caught:
        read_bundle(changed, digest=made.digest)
    assert caught.value.code == "BundleChanged"


@pytest.mark.parametrize("data", [b"", b"[]", b"5", b"{}", b"\xff"])
def test_bytes_that_are_no_bundle_are_refused(data: bytes) -> None:
    with pytest.raises(EvidenceConflict) as caught:
        read_bundle(data)
    assert caught.value.code == "BundleUnreadable"


def test_a_bundle_of_a_later_version_can_be_read() -> None:
    data = json.loads(_bundle().canonical())
    assert read_bundle(json.dumps({**data, "skills": {}}).encode()).spec.id == "fix"
