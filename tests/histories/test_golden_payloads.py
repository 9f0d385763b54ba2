"""What a release has stored or sent stays readable: its payloads validate, and no field of them is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record import DATA
from samples import durable_models, sample, write_missing

PAYLOADS = sorted((DATA / "payloads").glob("*/*.json"))


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_payload_of_a_release_still_validates_and_keeps_every_field(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    read = durable_models()[path.stem].model_validate_json(text)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == json.loads(text)


def test_every_durable_contract_has_a_golden_payload() -> None:
    missing = durable_models().keys() - {path.stem for path in PAYLOADS}
    assert not missing, "run `make golden` once, and commit the new payloads"


def test_a_golden_payload_is_never_written_again(tmp_path: Path) -> None:
    old = tmp_path / "0.0.1" / "Lease.json"
    old.parent.mkdir()
    old.write_text('{"worker_id": "w", "epoch": 1}', encoding="utf-8")
    write_missing(tmp_path)
    assert {path.stem for path in tmp_path.glob("*/*.json")} == set(durable_models())
    assert list(tmp_path.glob("*/Lease.json")) == [old]


def test_a_sample_sets_every_field() -> None:
    model = durable_models()["AcquireOut"]
    assert sample(model).keys() == model.model_fields.keys()
