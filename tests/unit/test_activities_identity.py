"""A worker's id is written once, and its data directory is its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from activities.context import crash_point
from activities.worker_identity import claim_data_dir
from schemas.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]


def test_the_id_is_the_same_after_a_restart(tmp_path: Path) -> None:
    first = claim_data_dir(tmp_path / "data")
    first.release()
    first.release()
    second = claim_data_dir(tmp_path / "data")

    assert first.worker_id == second.worker_id
    second.release()


def test_two_directories_are_two_workers(tmp_path: Path) -> None:
    one, two = claim_data_dir(tmp_path / "one"), claim_data_dir(tmp_path / "two")

    assert one.worker_id != two.worker_id
    one.release()
    two.release()


def test_a_second_worker_on_the_same_directory_is_refused_with_the_mend(tmp_path: Path) -> None:
    first = claim_data_dir(tmp_path)

    with pytest.raises(BadInput, match="STEPWISE_DATA_DIR") as refused:
        claim_data_dir(tmp_path)

    assert refused.value.code == "E_DATA_DIR_IN_USE"
    first.release()


def test_the_lock_ends_with_a_process_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, pathlib, sys\n"
        "from activities.worker_identity import claim_data_dir\n"
        "kept = claim_data_dir(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)

    again = claim_data_dir(tmp_path)

    assert again.worker_id == (tmp_path / "worker_id").read_text().strip()
    again.release()


def test_without_a_name_no_point_is_a_crash_point() -> None:
    crash_point("")("work.intent")
    crash_point("work.intent")("work.committed")
