from __future__ import annotations

import ctypes
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chance import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from system.files import Root, create_exclusive, write_atomic
from system.paths import PathDenied, parts_of

SECRET = b"outside\n"


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """Make a workspace beside a folder that nothing may reach."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "s").write_bytes(SECRET)
    (tmp_path / "ws-evil").mkdir()
    (tmp_path / "ws-evil" / "x").write_bytes(SECRET)
    ws = tmp_path / "ws"
    (ws / "src").mkdir(parents=True)
    (ws / "src" / "app.py").write_text("print()\n")
    (ws / "leaf").symlink_to(tmp_path / "out" / "s")
    (ws / "pd").symlink_to(tmp_path / "out")
    (ws / ".git" / "hooks").mkdir(parents=True)
    (ws / ".git" / "config").write_text("[core]\n")
    (ws / ".vscode").mkdir()
    os.mkfifo(ws / "fifo")
    return ws


@pytest.fixture
def root(ws: Path) -> Iterator[Root]:
    with Root(ws) as root:
        yield root


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = path.read_bytes() if stat.S_ISREG(mode) else b""
        found[str(path)] = (mode, os.fsencode(path.readlink()) if stat.S_ISLNK(mode) else content)
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


OPERATIONS: dict[str, Callable[[Root, str], object]] = {
    "read": lambda root, path: root.read(path),
    "write": lambda root, path: root.write_atomic(path, b"evil"),
    "append": lambda root, path: root.append(path, b"evil"),
    "delete": lambda root, path: root.delete(path),
    "mkdir": lambda root, path: root.mkdir(path),
    "list": lambda root, path: root.list(path),
    "stat": lambda root, path: root.stat(path),
}
ALL = tuple(OPERATIONS)
CHANGING = ("write", "append", "delete", "mkdir")
OPENING = ("read", "write", "append")
CREATING = ("write", "append", "mkdir")

ATTACKS: list[tuple[str, str, tuple[str, ...]]] = [
    ("../../etc/passwd", "E_PATH_OUTSIDE", ALL),
    ("src/../../out/s", "E_PATH_OUTSIDE", ALL),
    ("src/..", "E_PATH_OUTSIDE", ALL),
    ("/etc/passwd", "E_PATH_ABSOLUTE", ALL),
    ("{ws}-evil/x", "E_PATH_ABSOLUTE", ALL),
    ("{ws}/../out/s", "E_PATH_OUTSIDE", ALL),
    ("/proc/self/environ", "E_PATH_ABSOLUTE", ALL),
    ("/dev/stdin", "E_PATH_ABSOLUTE", ALL),
    ("/proc/self/root/etc/passwd", "E_PATH_ABSOLUTE", ALL),
    ("leaf", "E_PATH_SYMLINK", OPENING),
    ("leaf", "E_PATH_SYMLINK", ("list",)),
    ("pd/s", "E_PATH_SYMLINK", ALL),
    ("pd/new", "E_PATH_SYMLINK", ALL),
    ("pd", "E_PATH_SYMLINK", ("list", "read", "write", "append")),
    (".git/hooks/pre-commit", "E_PATH_PROTECTED", ALL),
    (".git/config", "E_PATH_PROTECTED", ALL),
    (".git", "E_PATH_PROTECTED", ALL),
    (".GIT/config", "E_PATH_PROTECTED", ALL),
    (".git /config", "E_PATH_PROTECTED", ALL),
    (".git./config", "E_PATH_PROTECTED", ALL),
    (".g\u200cit/config", "E_PATH_PROTECTED", ALL),
    ("git~1/config", "E_PATH_PROTECTED", ALL),
    (".git::$INDEX_ALLOCATION/config", "E_PATH_PROTECTED", ALL),
    ("sub/.git", "E_PATH_PROTECTED", ALL),
    (".gitconfig", "E_PATH_PROTECTED", CHANGING),
    (".claude/settings.json", "E_PATH_PROTECTED", CHANGING),
    (".claude/commands/x.md", "E_PATH_PROTECTED", CHANGING),
    ("src/.claude/settings.json", "E_PATH_PROTECTED", CHANGING),
    (".mcp.json", "E_PATH_PROTECTED", CHANGING),
    (".MCP.json", "E_PATH_PROTECTED", CHANGING),
    (".vscode", "E_PATH_PROTECTED", CHANGING),
    (".vscode/tasks.json", "E_PATH_PROTECTED", CHANGING),
    (".idea/workspace.xml", "E_PATH_PROTECTED", CHANGING),
    (".env", "E_PATH_PROTECTED", CHANGING),
    ("a\0b", "E_PATH_INVALID", ALL),
    ("", "E_PATH_INVALID", ALL),
    ("\ud800", "E_PATH_INVALID", ALL),
    ("c" * 256, "E_PATH_INVALID", ALL),
    ("ж" * 128, "E_PATH_INVALID", ALL),
    ("d/" * 2048 + "x", "E_PATH_INVALID", ALL),
    ("new\nline", "E_PATH_INVALID", CREATING),
    ("esc\x1b[31m", "E_PATH_INVALID", CREATING),
    ("del\x7f", "E_PATH_INVALID", CREATING),
    ("c1\x9b", "E_PATH_INVALID", CREATING),
    ("bidi\u202egnp.exe", "E_PATH_INVALID", CREATING),
    ("tag\U000e0041", "E_PATH_INVALID", CREATING),
    ("raw\udcff", "E_PATH_INVALID", CREATING),
    ("bad\ndir/file", "E_PATH_INVALID", CREATING),
    ("fifo", "E_PATH_NOT_REGULAR", OPENING),
    (".", "E_PATH_INVALID", ("read", "write", "append", "delete", "mkdir")),
]


@pytest.mark.parametrize(
    ("path", "code", "operation"),
    [(path, code, name) for path, code, operations in ATTACKS for name in operations],
    ids=lambda value: ascii(value)[:40],
)
def test_a_hostile_path_is_denied_and_nothing_changes(
    ws: Path, root: Root, path: str, code: str, operation: str
) -> None:
    before = snapshot(ws.parent)
    with pytest.raises(PathDenied) as caught:
        OPERATIONS[operation](root, path.replace("{ws}", str(ws)))
    assert caught.value.code == code
    assert not caught.value.retryable
    assert snapshot(ws.parent) == before


@pytest.mark.parametrize(
    "path", ["docs/a b.md", "файл.txt", "-rf", ".github/x.yml", ".gitignore", "git", "a:b", ".x"]
)
def test_an_ordinary_path_is_written_and_read_back(root: Root, path: str) -> None:
    root.write_atomic(path, b"one")
    root.append(path, b" two")
    assert root.read(path).data == b"one two"
    assert root.delete(path)
    assert not root.delete(path)


def test_an_absolute_path_under_the_root_is_taken(ws: Path, root: Root) -> None:
    assert root.read(f"{ws}/src/app.py").data == b"print()\n"
    assert [entry.path for entry in root.list(f"{ws}/src")] == ["src/app.py"]


def test_a_root_reached_through_a_link_takes_both_of_its_names(tmp_path: Path, ws: Path) -> None:
    (tmp_path / "alias").symlink_to(ws)
    with Root(tmp_path / "alias") as root:
        assert root.read(f"{ws}/src/app.py") == root.read(f"{tmp_path}/alias/src/app.py")


def test_protected_settings_can_be_read(ws: Path, root: Root) -> None:
    (ws / ".env").write_text("A=1\n")
    assert root.read(".env").data == b"A=1\n"


def test_sockets_and_folders_are_no_files(root: Root, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ws)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        with pytest.raises(PathDenied, match="neither a regular file"):
            root.read("sock")
    with pytest.raises(IsADirectoryError):
        root.read("src")
    with pytest.raises(IsADirectoryError):
        root.write_atomic("src", b"")
    with pytest.raises(NotADirectoryError):
        root.read("src/app.py/x")


def test_deleting_a_link_leaves_what_it_leads_to(ws: Path, root: Root) -> None:
    assert root.delete("leaf")
    assert root.delete("pd")
    assert (ws.parent / "out" / "s").read_bytes() == SECRET


def test_deleting_a_folder_does_not_follow_links_inside(ws: Path, root: Root) -> None:
    (ws / "src" / "link").symlink_to(ws.parent / "out")
    assert root.delete("src")
    assert not (ws / "src").exists()
    assert (ws.parent / "out" / "s").read_bytes() == SECRET


def test_a_hard_link_to_the_outside_is_never_written_through(ws: Path, root: Root) -> None:
    (ws / "hard").hardlink_to(ws.parent / "out" / "s")
    with pytest.raises(PathDenied, match="another name") as caught:
        root.append("hard", b"evil")
    assert caught.value.code == "E_PATH_HARDLINK"
    root.write_atomic("hard", b"mine")
    assert (ws.parent / "out" / "s").read_bytes() == SECRET


def test_reading_is_cut_at_the_limit_and_says_so(root: Root) -> None:
    root.write_atomic("big", b"x" * 100)
    content = root.read("big", max_bytes=10)
    assert (content.data, content.total_bytes, content.truncated) == (b"x" * 10, 100, True)
    assert not root.read("big", max_bytes=100).truncated


def test_writing_keeps_the_mode_of_a_file_and_leaves_no_temporary(ws: Path, root: Root) -> None:
    (ws / "src" / "app.py").chmod(0o755)
    root.write_atomic("src/app.py", b"new")
    assert root.stat("src/app.py").mode == 0o755
    assert names(ws / "src") == ["app.py"]


def test_missing_parents_are_made_only_when_asked(root: Root) -> None:
    with pytest.raises(FileNotFoundError):
        root.write_atomic("a/b/c", b"", create_parents=False)
    root.write_atomic("a/b/c", b"")
    assert root.stat("a/b/c").size == 0


def test_mkdir_tells_a_folder_from_a_file(root: Root) -> None:
    root.mkdir("src")
    with pytest.raises(FileExistsError):
        root.mkdir("src", exist_ok=False)
    with pytest.raises(FileExistsError):
        root.mkdir("src/app.py")


def test_a_list_shows_links_but_neither_enters_them_nor_git(root: Root) -> None:
    found = {entry.path: entry.type for entry in root.list(recursive=True)}
    assert found == {
        ".vscode": "directory",
        "fifo": "other",
        "leaf": "symlink",
        "pd": "symlink",
        "src": "directory",
        "src/app.py": "file",
    }
    assert len(root.list(recursive=True, limit=2)) == 2


def test_a_folder_swapped_for_a_link_after_the_walk_is_not_followed(ws: Path, root: Root) -> None:
    with root._leaf("src/app.py", ("src", "app.py")) as (folder, name):
        (ws / "src").rename(ws / "moved")
        (ws / "src").symlink_to(ws.parent / "out")
        os.close(os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=folder))
    assert (ws / "moved" / "app.py").read_bytes() == b""
    assert (ws.parent / "out" / "s").read_bytes() == SECRET
    with pytest.raises(PathDenied):
        root.read("src/s")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="renameat2 is Linux's")
def test_writing_while_a_folder_and_a_link_change_places_never_reaches_the_outside(ws: Path) -> None:
    (ws / "d").mkdir()
    (ws / "link").symlink_to(ws.parent / "out")
    libc = ctypes.CDLL(None, use_errno=True)
    done = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        at_fdcwd, exchange = -100, 2
        pair = os.fsencode(ws / "d"), os.fsencode(ws / "link")
        while not done.is_set():
            assert libc.renameat2(at_fdcwd, pair[0], at_fdcwd, pair[1], exchange) == 0
            swaps += 1

    swapper = threading.Thread(target=swap)
    swapper.start()
    written = denied = 0
    try:
        with Root(ws) as root:
            while not (written > 50 and denied > 50 and swaps > 100):
                try:
                    root.write_atomic("d/s", b"evil")
                    written += 1
                except PathDenied:
                    denied += 1
                except NotADirectoryError:
                    # It was a link when opened and a folder again when looked at.
                    denied += 1
    finally:
        done.set()
        swapper.join()
    assert (ws.parent / "out" / "s").read_bytes() == SECRET
    assert names(ws.parent / "out") == ["s"]


@given(st.text(max_size=60))
@examples(300, suppress=[HealthCheck.function_scoped_fixture])
def test_any_text_is_either_denied_or_stays_below_the_root(text: str) -> None:
    try:
        parts = parts_of(text, roots=("/ws",))
    except PathDenied:
        return
    joined = Path("/ws").joinpath(*parts)
    assert Path(os.path.normpath(joined)).is_relative_to("/ws")
    assert ".git" not in parts


def test_the_engines_files_are_replaced_whole_and_parents_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two", fsync=False)
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["b.json"]


def test_creating_twice_keeps_the_first_content(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    assert create_exclusive(path, b"one")
    assert not create_exclusive(path, b"two", fsync=False)
    assert path.read_bytes() == b"one"
    assert names(path.parent) == ["b.json"]


def test_of_many_creators_exactly_one_wins_and_its_content_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "one"
    start = threading.Barrier(8)
    won: list[bytes] = []

    def create(number: int) -> None:
        data = bytes([number]) * 100_000
        start.wait()
        if create_exclusive(path, data):
            won.append(data)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [path.read_bytes()]
