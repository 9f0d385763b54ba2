"""What the programs that remove, move, copy and write files may be given. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from policy.command_paths import Ground, check_removal, check_written
from policy.shell_words import RefusedCommandError, Word, literal, unreadable

_OPEN_TO_ALL: Final = re.compile(r"0*[0-7]*[2367]|(?:[ugoa]*[oa][ugoa]*|)[+=][rXstx]*w\w*|[^,]*s")
_MAX_MODE: Final = 60
_SET_ID: Final = re.compile(r"0*[2-7][0-7]{3}|.*\+.*s")


def named_files(words: Sequence[Word]) -> list[Word]:
    """Return the words that are no options: all after ``--``, and those that do not begin with a hyphen."""
    found: list[Word] = []
    for at, word in enumerate(words):
        if word.text == "--" and word.known:
            return [*found, *words[at + 1 :]]
        if not word.text.startswith("-") or word.text == "-":
            found.append(word)
    return found


def check_remove(words: Sequence[Word], ground: Ground) -> None:
    """Judge what is removed: every operand."""
    check_removal(named_files(words), ground)


def check_move(words: Sequence[Word], ground: Ground) -> None:
    """Judge a move: what goes is removed where it was and written where it goes."""
    operands = named_files(words)
    check_removal([one for one in operands[:-1] if one.known], ground)
    check_copy(words, ground)


def check_copy(words: Sequence[Word], ground: Ground) -> None:
    """Judge where a copy goes: its last operand, or the target directory of an option."""
    for at, word in enumerate(words):
        if word.text.startswith("-t") and len(word.text) > len("-t"):
            check_written([literal(word.text[2:])], ground)
        elif word.text == "-t" or (word.text.startswith("--t") and "=" not in word.text):
            check_written(words[at + 1 : at + 2], ground)
        elif word.text.startswith("--t"):
            check_written([literal(word.text.partition("=")[2])], ground)
    check_written(named_files(words)[-1:], ground)


def check_made(words: Sequence[Word], ground: Ground) -> None:
    """Judge files and directories that are made; names that are only known when they run pass."""
    check_written(named_files(words), ground, unknown=True)


def check_tee(words: Sequence[Word], ground: Ground) -> None:
    """Judge files that are written: every operand."""
    check_written(named_files(words), ground)


def check_truncate(words: Sequence[Word], ground: Ground) -> None:
    """Judge files whose length is set."""
    check_written(
        [one for one in named_files(words) if not re.fullmatch(r"[+<>/%-]?\d+\w*", one.text)], ground
    )


def check_dd(words: Sequence[Word], ground: Ground) -> None:
    """Judge where dd writes."""
    check_written([Word(one.text[3:], one.shape[3:]) for one in words if one.text.startswith("of=")], ground)
    if not all(one.known for one in words):
        raise RefusedCommandError("E_CMD_DYNAMIC", "where dd writes is only known when it runs; write it out")


def _recursive(words: Iterable[Word]) -> bool:
    return any(
        re.fullmatch(r"-\w*[rR]\w*", one.text)
        or (len(one.text) > len("--") and "--recursive".startswith(one.text))
        for one in words
    )


def check_chmod(words: Sequence[Word], ground: Ground) -> None:
    """Judge a change of permissions: no tree is opened to everybody, no file runs as somebody else."""
    modes = [one.text for one in words if not one.text.startswith("--")]
    symbolic = [one for one in modes if not re.fullmatch(r"-[RcfvR]+", one)]
    if any(len(one) > _MAX_MODE for one in symbolic[:1]):
        raise unreadable("chmod has an odd mode")
    mode, files = (symbolic[0] if symbolic else ""), named_files(words)
    if _recursive(words) and any(_OPEN_TO_ALL.fullmatch(part) for part in mode.split(",")):
        raise RefusedCommandError("E_CMD_PERMISSIONS", f"chmod -R {mode} opens a whole tree to everybody")
    if any(_SET_ID.fullmatch(part) for part in mode.split(",")):
        raise RefusedCommandError("E_CMD_PERMISSIONS", f"chmod {mode} lets a file run as somebody else")
    check_written([one for one in files if one.text != mode], ground, unknown=not _recursive(words))


def check_chown(words: Sequence[Word], ground: Ground) -> None:
    """Judge a change of owner: never a whole tree."""
    if _recursive(words):
        raise RefusedCommandError("E_CMD_PERMISSIONS", "chown -R gives a whole tree to somebody else")
    check_written(named_files(words)[1:], ground)


def check_rsync(words: Sequence[Word], ground: Ground) -> None:
    """Judge a copy of a tree: not to or from another machine, removing only what may go."""
    operands = named_files(words)
    if any(re.match(r"[^/]*:", one.text) for one in operands):
        raise RefusedCommandError("E_CMD_NETWORK", "rsync opens a way to another machine")
    if any(one.text.startswith(("--del", "--remove-source")) for one in words):
        check_removal(operands[-1:], ground)
    check_written(operands[-1:], ground)
