from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from schemas.export import EXPORTED, FOLDER, main, schema_path, schema_text, stale, write

ROOT = FOLDER.parent.parent


def test_the_exported_schemas_are_those_of_the_contracts() -> None:
    assert stale() == []


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_schema_is_a_valid_schema(name: str) -> None:
    Draft202012Validator.check_schema(json.loads(schema_path(name).read_text()))


def test_a_changed_a_missing_and_a_strange_file_are_stale(tmp_path: Path) -> None:
    write(tmp_path)
    assert stale(tmp_path) == []
    schema_path("flow", tmp_path).write_text(schema_text("flow") + " ")
    schema_path("receipt", tmp_path).unlink()
    (tmp_path / "other.json").write_text("{}")
    assert stale(tmp_path) == ["flow.schema.json", "other.json", "receipt.schema.json"]


def test_the_check_runs_as_a_command_and_writes_nothing() -> None:
    before = {path: path.stat().st_mtime_ns for path in FOLDER.iterdir()}
    subprocess.run([sys.executable, "-m", "schemas.export", "--check"], cwd=ROOT, check=True, timeout=60)
    assert {path: path.stat().st_mtime_ns for path in FOLDER.iterdir()} == before


def test_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--chek"]) == 2
    assert "usage" in capsys.readouterr().err
