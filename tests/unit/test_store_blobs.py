"""Blobs are whole or absent, never overwritten, and swapped by one writer at a time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from schemas.errors import BadInput, EvidenceConflict
from store.blobs import Blobs, FileBlobs, open_blobs
from store.errors import NotStored, StoreUnavailable

ROOT = Path(__file__).parents[2]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "store", fsync=True)


def test_what_is_created_can_be_read_and_is_described_by_its_reference(blobs: FileBlobs) -> None:
    ref = blobs.create("runs/a/b.txt", b"one", "text/plain")
    assert (ref.uri, ref.sha256, ref.bytes, ref.media_type) == (
        "runs/a/b.txt",
        digest(b"one"),
        3,
        "text/plain",
    )
    assert blobs.read("runs/a/b.txt") == b"one"
    assert blobs.exists("runs/a/b.txt")


def test_creating_the_same_again_gives_the_same_reference_and_other_content_is_refused(
    blobs: FileBlobs,
) -> None:
    ref = blobs.create("a", b"one", "text/plain")
    assert blobs.create("a", b"one", "text/plain") == ref
    with pytest.raises(EvidenceConflict) as refused:
        blobs.create("a", b"two", "text/plain")
    assert not refused.value.retryable
    assert blobs.read("a") == b"one"


def test_what_is_not_there_is_not_stored(blobs: FileBlobs) -> None:
    blobs.create("a", b"", "text/plain")
    for key in ("b", "b/c", "a/b"):
        assert not blobs.exists(key)
        with pytest.raises(NotStored):
            blobs.read(key)


def test_a_file_cannot_become_a_folder(blobs: FileBlobs) -> None:
    blobs.create("a", b"one", "text/plain")
    blobs.create("b/c", b"one", "text/plain")
    for key in ("a/b", "b"):
        with pytest.raises(EvidenceConflict):
            blobs.create(key, b"two", "text/plain")


@pytest.mark.parametrize(
    "key",
    [
        "", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/.", "..", "a\0b", "a\nb", "a\x1b[0m", "a\x7f", "a\x9b", "a\\b",
        "a\u202eb", "a\udc80b", ".tmp/a", ".locks/00", "x" * 241, "/".join(["x" * 200] * 6),
    ],
)  # fmt: skip
def test_keys_that_are_no_plain_relative_path_are_refused(blobs: FileBlobs, tmp_path: Path, key: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    for call in (
        blobs.read,
        blobs.exists,
        lambda k: blobs.create(k, b"", "x"),
        lambda k: blobs.swap(k, b"", None),
    ):
        with pytest.raises(BadInput) as refused:
            call(key)
        assert refused.value.code == "E_STORE_KEY"
    assert sorted(tmp_path.rglob("*")) == before


def test_keys_in_any_script_are_allowed(blobs: FileBlobs) -> None:
    for key in ("runs/файл.txt", "runs/a b.md", "runs/.hidden", "runs/" + "x" * 240):
        blobs.create(key, b"", "text/plain")
        assert key in blobs.keys("runs/")


def test_keys_are_listed_by_prefix_and_folders_by_level(blobs: FileBlobs) -> None:
    for key in ("runs/b/run.json", "runs/a/run.json", "runs/a/events/1", "runs/ab", "other"):
        blobs.create(key, b"", "text/plain")
    assert blobs.keys("runs/a") == ["runs/a/events/1", "runs/a/run.json", "runs/ab"]
    assert blobs.keys("runs/a/") == ["runs/a/events/1", "runs/a/run.json"]
    assert blobs.keys("") == ["other", "runs/a/events/1", "runs/a/run.json", "runs/ab", "runs/b/run.json"]
    assert blobs.keys("none/") == []
    assert blobs.folders("runs/") == ["a", "b"]
    assert blobs.folders("none/") == []


def test_a_swap_needs_the_digest_of_what_is_there(blobs: FileBlobs) -> None:
    assert not blobs.swap("a/run.json", b"one", digest(b""))
    assert blobs.swap("a/run.json", b"one", None)
    assert not blobs.swap("a/run.json", b"two", None)
    assert not blobs.swap("a/run.json", b"two", digest(b"two"))
    assert blobs.read("a/run.json") == b"one"
    assert blobs.swap("a/run.json", b"two", digest(b"one"))
    assert blobs.read("a/run.json") == b"two"


def test_of_swaps_at_once_none_is_lost(blobs: FileBlobs) -> None:
    blobs.swap("n", b"0", None)

    def count() -> None:
        for _ in range(25):
            stored = blobs.read("n")
            while not blobs.swap("n", str(int(stored) + 1).encode(), digest(stored)):
                stored = blobs.read("n")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blobs.read("n") == b"100"


def test_of_creators_at_once_one_wins_and_the_others_conflict(blobs: FileBlobs) -> None:
    won: list[bytes] = []
    barrier = threading.Barrier(8)

    def create(data: bytes) -> None:
        barrier.wait()
        try:
            blobs.create("new/key", data, "text/plain")
        except EvidenceConflict:
            return
        won.append(data)

    threads = [threading.Thread(target=create, args=(bytes([n]) * 10_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [blobs.read("new/key")]


FULL_DISK = """
import resource, sys
from pathlib import Path
from store.blobs import FileBlobs
from store.errors import StoreUnavailable
blobs = FileBlobs(Path(sys.argv[1]), fsync=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for write in (lambda: blobs.create("runs/a", b"x" * 5000, "x"), lambda: blobs.swap("run.json", b"x" * 5000, None)):
    try:
        write()
    except StoreUnavailable as error:
        print(error.code, error.retryable)
"""


def test_a_write_that_runs_out_of_room_is_retryable_and_leaves_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["E_STORE_UNAVAILABLE True"] * 2
    blobs = FileBlobs(tmp_path, fsync=False)
    assert blobs.keys("") == []
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_store_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreUnavailable, EvidenceConflict)):
        FileBlobs(tmp_path / "file" / "store", fsync=False)


def test_opening_removes_only_temporary_files_of_long_ago(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path, fsync=False)
    blobs.create("kept", b"", "x")
    names = ("." + "0" * 16 + ".tmp", "." + "1" * 16 + ".tmp", "a persons own")
    old, new, foreign = (tmp_path / ".tmp" / name for name in names)
    for path in (old, new, foreign):
        path.write_text("half")
    for path in (old, foreign, tmp_path / "kept"):
        os.utime(path, (0, 0))
    assert FileBlobs(tmp_path, fsync=False).keys("") == ["kept"]
    assert not old.exists()
    assert new.exists()
    assert foreign.exists(), "a folder that was named by mistake may have a .tmp of its own"


def opened(url: str, *, shared: bool = False, loopback: bool = True) -> Blobs:
    return open_blobs(url, fsync=False, shared=shared, temporal_is_loopback=loopback)


def test_a_file_url_opens_the_folder_it_names(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b", f"FILE://{tmp_path}/a b"):
        opened(url).create("x", b"one", "text/plain")
    assert (tmp_path / "a b" / "x").read_bytes() == b"one"


@pytest.mark.parametrize(
    "url",
    [
        "", "store", "/abs/store", "file:store", "file://", "file://./store", "file://host/store", "file://~/store",
        "file:///~/store", "file:///~me/store", "file:///a/../b", "file:///a?b", "file:///a#b", "file:///a%00b", "http://[x/",
        "https://host/store", "gs://bucket/x", "file://user:pw@localhost/store",
    ],
)  # fmt: skip
def test_urls_that_name_no_folder_of_this_machine_are_refused(url: str) -> None:
    with pytest.raises(BadInput) as refused:
        opened(url, shared=True)
    assert refused.value.code == "E_STORE_URL"


def test_s3_is_refused_with_the_extra_that_will_bring_it() -> None:
    with pytest.raises(BadInput, match=r"stepwise\[s3\]") as refused:
        opened("s3://key:hunter22@bucket/prefix")
    assert "hunter22" not in str(refused.value)


def test_files_of_one_machine_are_refused_with_a_temporal_elsewhere_unless_shared(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with pytest.raises(BadInput, match="store_shared"):
        opened(url, loopback=False)
    assert not (tmp_path / "store").exists()
    opened(url, loopback=False, shared=True).create("x", b"", "x")
