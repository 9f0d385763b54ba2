"""The bundle: everything a run depends on, pinned by one digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pydantic import ValidationError

from schemas.common import Digest, Durable
from schemas.errors import BadInput, EvidenceConflict
from schemas.flow import FlowSpec, StepSpec
from schemas.json_text import parse_json
from schemas.run import MAX_SPEC_BYTES

MAX_BUNDLE_BYTES = MAX_SPEC_BYTES
"""How large the canonical bytes of a bundle may be."""


class Bundle(Durable):
    """The flow as it will run, the text it was written as, its agents' texts, the scenario that drives it.

    ``digest`` is the SHA-256 of ``canonical()``, which are the bytes that are stored.
    """

    spec: FlowSpec
    source: str
    personas: dict[str, str]
    scenario: str | None = None
    digest: Digest

    def step(self, step_id: str) -> StepSpec:
        """Return the step of this id. Raises BadInput for one that the flow does not have."""
        found = self.spec.step(step_id)
        if found is None:
            raise BadInput("BadFlowInput", f"flow {self.spec.id!r} has no step {step_id!r}")
        return found

    def canonical(self) -> bytes:
        """Return the bytes that stand for this bundle: JSON with sorted keys, without the digest."""
        return _canonical(self.model_dump(mode="json", exclude_unset=True, exclude={"digest"}))


def bundle(
    *, spec: FlowSpec, source: str, personas: Mapping[str, str], scenario: str | None = None
) -> Bundle:
    """Pin a resolved flow with what it needs; BadInput ``FlowRefused`` with the sizes if it is too large."""
    parts = {
        "spec": spec.model_dump(mode="json", exclude_unset=True),
        "source": source,
        "personas": dict(personas),
        "scenario": scenario,
    }
    data = _canonical(parts)
    if len(data) > MAX_BUNDLE_BYTES:
        sizes = {name: len(_canonical(part)) for name, part in parts.items()}
        said = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise BadInput(
            "FlowRefused",
            f"the flow with its agents and scenario has {len(data)} bytes, at most {MAX_BUNDLE_BYTES} are kept: {said}",
            mend="shorten the largest; long texts belong in files of the repository",
            **{f"{name}_bytes": str(size) for name, size in sizes.items()},
        )
    return Bundle(
        spec=spec,
        source=source,
        personas=dict(personas),
        scenario=scenario,
        digest=hashlib.sha256(data).hexdigest(),
    )


def read_bundle(data: bytes, *, digest: str | None = None) -> Bundle:
    """Read stored bytes back; EvidenceConflict if they are no bundle, or not the one with this digest."""
    found = hashlib.sha256(data).hexdigest()
    if digest is not None and found != digest:
        raise EvidenceConflict("BundleChanged", f"the stored bundle has digest {found}, not {digest}")
    try:
        return Bundle.model_validate({**parse_json(data), "digest": found})
    except (ValueError, TypeError, ValidationError) as error:
        raise EvidenceConflict("BundleUnreadable", f"the stored bundle cannot be read: {error}") from error


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
