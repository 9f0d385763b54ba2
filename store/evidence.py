"""The one write point: everything that is stored goes through ``Evidence``, redacted first."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from schemas.common import ArtifactRef
from schemas.pruned import Pruned
from store.blobs import Blobs
from store.errors import EvidenceCorrupt, NotStored, RedactionFailed
from store.keys import PRUNED
from store.redaction import Redactor

JSON: Final = "application/json"
JSON_LINES: Final = "application/jsonl"

M = TypeVar("M", bound=BaseModel)


def line_of(tree: Any) -> bytes:
    """Return a JSON value as one line: keys sorted, compact."""
    text = json.dumps(tree, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


class Evidence:
    """Reads and writes evidence in ``blobs``; what ``redactor`` cannot clean is not written (RedactionFailed).

    Writes create: the same content again is fine, other content raises EvidenceConflict. Calls block and may come
    from any thread; they raise StoreUnavailable.
    """

    def __init__(self, blobs: Blobs, redactor: Redactor) -> None:
        self.blobs = blobs
        self.redactor = redactor

    def put_model(self, key: str, model: BaseModel) -> ArtifactRef:
        """Store a model as JSON for people: indented, the same bytes for the same content."""
        return self.blobs.create(key, self._bytes(model), JSON)

    def put_text(self, key: str, text: str, media_type: str = "text/plain; charset=utf-8") -> ArtifactRef:
        """Store text, as UTF-8."""
        return self.blobs.create(key, self.redactor.text(text).encode("utf-8", "replace"), media_type)

    def put_bytes(self, key: str, data: bytes, media_type: str) -> ArtifactRef:
        """Store bytes as they are, unredacted: for git bundles, which hold the repository's own content.

        A changed byte would break the bundle, and what a secret in the repository needs is to be revoked there.
        """
        return self.blobs.create(key, data, media_type)

    def put_redacted_lines(self, key: str, data: bytes) -> ArtifactRef:
        """Store JSON lines that were redacted one by one, as values, before they were written down."""
        return self.blobs.create(key, data, JSON_LINES)

    def adopt_redacted_lines(self, key: str, path: Path) -> ArtifactRef:
        """Store a file of such lines, which is gone from where it was then."""
        return self.blobs.adopt(key, path, JSON_LINES)

    def redacted(self, model: M) -> M:
        """Return ``model`` as it reads once stored, with the fields set that it has set. Raises RedactionFailed.

        A text that grew over its limit is cut.
        """
        tree = self.redactor.tree(model.model_dump(mode="json", by_alias=True, exclude_unset=True))
        try:
            return type(model).model_validate(tree)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_input=False):
                if problem["type"] != "string_too_long":
                    break
                _cut_at(tree, problem["loc"], problem["ctx"]["max_length"])
        try:
            return type(model).model_validate(tree)
        except ValidationError as error:
            raise RedactionFailed(
                "E_REDACTION_INVALID",
                f"{type(model).__name__} is not valid once redacted ({error.error_count()} fields)",
            ) from None

    def swap_model(self, key: str, model: BaseModel, expected_sha256: str | None) -> bool:
        """Replace a model if what is stored has the expected digest (None: nothing); say whether. For run.json."""
        return self.blobs.swap(key, self._bytes(model), expected_sha256)

    def get_model(self, key: str, model: type[M]) -> M | None:
        """Return the stored model, or None if there is none; raises EvidenceCorrupt if it cannot be read."""
        stored = self.get_versioned(key, model)
        return stored[0] if stored else None

    def get_versioned(self, key: str, model: type[M]) -> tuple[M, str] | None:
        """Return the stored model and the digest of its bytes, or None; raises EvidenceCorrupt."""
        try:
            data = self.blobs.read(key)
        except NotStored:
            return None
        try:
            return model.model_validate_json(data), hashlib.sha256(data).hexdigest()
        except ValidationError as error:
            raise EvidenceCorrupt(
                "E_EVIDENCE_CORRUPT",
                f"{key} is no {model.__name__} ({error.error_count()} fields do not fit)",
                key=key,
            ) from None

    def read(self, ref: ArtifactRef) -> bytes:
        """Return the bytes a reference names; raises NotStored, or EvidenceCorrupt if they are other ones."""
        data = self.read_key(ref.uri)
        if len(data) != ref.bytes or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise EvidenceCorrupt(
                "E_EVIDENCE_CORRUPT", f"{ref.uri} is not what was stored: its digest differs", key=ref.uri
            )
        return data

    def read_key(self, key: str) -> bytes:
        """Return what is stored under ``key``; raises NotStored, with code ``E_PRUNED`` if it was removed.

        When it was removed stands in the message.
        """
        try:
            return self.blobs.read(key)
        except NotStored:
            marker = self.pruned(key)
            if marker is None:
                raise
            raise NotStored("E_PRUNED", f"{key} was {marker.words}", key=key) from None

    def pruned(self, key: str) -> Pruned | None:
        """Return the marker that retention left for a file that it removed, or None."""
        marker = self._marker(key)
        if marker is not None:
            return marker
        top, run_id, name = (*key.split("/", 2), "", "")[:3]
        marker = self._marker(f"{top}/{run_id}") if name else None
        return marker if marker is not None and name in marker.files else None

    def pruned_run(self, run_id: str) -> Pruned | None:
        """Return the marker of a run that was pruned, or whose pruning has begun; else None."""
        return self._marker(f"runs/{run_id}")

    def _marker(self, key: str) -> Pruned | None:
        try:
            data = self.blobs.read(key + PRUNED)
        except NotStored:
            return None
        try:
            return Pruned.model_validate_json(data)
        except ValidationError:
            return Pruned()

    def _bytes(self, model: BaseModel) -> bytes:
        redacted = self.redacted(model)
        try:
            return redacted.model_dump_json(by_alias=True, indent=2).encode() + b"\n"
        except PydanticSerializationError:
            # Half a surrogate pair, which a cut text may end with: the slow way writes a question mark for it.
            tree = redacted.model_dump(mode="json", by_alias=True)
            return json.dumps(tree, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n"


def _cut_at(tree: Any, place: tuple[int | str, ...], limit: int) -> None:
    for part in place[:-1]:
        tree = tree[part]
    tree[place[-1]] = tree[place[-1]][:limit]
