"""What find may do beyond finding: run a program on what it found, remove it, write it down. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from policy.command_paths import Ground, check_removal, check_written, is_protected, texts
from policy.shell_words import RefusedCommandError, Word, literal, unreadable

EFFECTS: Final = frozenset(
    {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fls", "-fprint", "-fprint0", "-fprintf"}
)
"""Expressions by which find does more than find."""
_MAX_EFFECTS: Final = 20
_NAMING: Final = frozenset({"-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex"})
_VALUED: Final = frozenset(
    {
        *_NAMING,
        *(
            "-type",
            "-size",
            "-mtime",
            "-mmin",
            "-newer",
            "-maxdepth",
            "-mindepth",
            "-user",
            "-group",
            "-perm",
        ),
        *("-printf", "-ctime", "-cmin", "-atime", "-amin", "-lname", "-ilname", "-iwholename", "-newermt"),
    }
)
"""Tests and actions that take one value."""
_RUNNING: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_BESIDE: Final = frozenset({"-execdir", "-okdir"})
_ONLY_READING: Final = frozenset(
    {
        "cat",
        "ls",
        "head",
        "tail",
        "grep",
        "wc",
        "stat",
        "file",
        "echo",
        "basename",
        "dirname",
        "md5sum",
        "sha256sum",
        "du",
    }
)
_REMOVING: Final = frozenset({"rm", "rmdir", "unlink", "mv", "shred"})

Check = Callable[[Sequence[Word], Ground], None]


def check_find(words: Sequence[Word], ground: Ground, check: Check) -> None:
    """Refuse a call of find that removes or writes what it may not; ``check`` judges the programs it runs."""
    _check_known(words, ground)
    starts = _starts(words)
    expression = [word.text for word in words]
    held = any(is_protected(text) for start in starts for text in texts(start, ground) or ())
    _check_chosen(words, expression)
    if sum(word.text in EFFECTS for word in words) > _MAX_EFFECTS:
        raise RefusedCommandError("E_LIMIT_COMMAND", f"find does more than {_MAX_EFFECTS} things at once")
    for at, word in enumerate(words):
        if word.text in {"-exec", "-execdir", "-ok", "-okdir"}:
            command = _command(words, at)
            if not command:
                raise unreadable("find runs nothing")
            if command[0].text.rpartition("/")[2] in _REMOVING:
                _check_narrow(expression[:at])
            # What runs beside each file may stand in any folder.
            within = replace(ground, away=True, afar=True) if held and word.text in _BESIDE else ground
            for start in starts if any("{}" in one.text for one in command) else starts[:1]:
                check([_filled(one, start) for one in command], within)
        elif word.text == "-delete":
            _check_narrow(expression[:at])
            check_removal([_found(start) for start in starts], ground)
        elif word.text in EFFECTS:
            check_written(words[at + 1 : at + 2], ground)


def _check_chosen(words: Sequence[Word], expression: Sequence[str]) -> None:
    """Refuse to change what a test picks out by a protected name, unless that is what find passes by."""
    if "-prune" in expression:
        return
    for at, word in enumerate(words):
        told = expression[at + 1].rpartition("/")[2] if word.text in _RUNNING and at + 1 < len(words) else ""
        chosen = any(
            test in _NAMING
            and is_protected(value)
            and expression[number - 1 : number] not in (["!"], ["-not"])
            for number, (test, value) in enumerate(itertools.pairwise(expression[:at]))
        )
        if chosen and (word.text == "-delete" or (told and told not in _ONLY_READING)):
            raise RefusedCommandError("E_PATH_PROTECTED", "find changes what is protected; leave it out")


def _check_known(words: Sequence[Word], ground: Ground) -> None:
    """Refuse a word that may turn out to be an expression; a value and what is run may be a plain name's."""
    runs = False
    for at, word in enumerate(words):
        runs = word.text in _RUNNING or (runs and word.text not in {";", "+"})
        value = runs or (at > 0 and words[at - 1].text in _VALUED)
        found = texts(word, ground)
        if found is None:
            dynamic = not value or word.variables is None
        elif not word.known:
            dynamic = any(one.startswith(("-", "(", ")", "!", ",", ";")) for one in found)
        else:
            dynamic = not value and word.pattern and word.shape[:1] in {"-", "*", "?", "["}
        if dynamic:
            raise RefusedCommandError(
                "E_CMD_DYNAMIC", "what find does is only known when it runs; write its words out"
            )


def _starts(words: Sequence[Word]) -> list[Word]:
    """Return where find begins: the words before its expression, the current directory without any."""
    starts: list[Word] = []
    for word in words:
        if word.text in {"-H", "-L", "-P"} or re.fullmatch(r"-O\d|--", word.text):
            continue
        if word.text.startswith(("-", "(", "!")):
            break
        starts.append(word)
    return starts or [literal(".")]


def _command(words: Sequence[Word], at: int) -> list[Word]:
    command: list[Word] = []
    for number, word in enumerate(words[at + 1 :]):
        if word.text == ";" or (word.text == "+" and number and command[-1].text == "{}"):
            return command
        command.append(word)
    raise unreadable("what find runs is not closed")


def _found(start: Word) -> Word:
    found = literal("/found")
    return Word(start.text + found.text, start.shape + found.shape)


def _filled(word: Word, start: Word) -> Word:
    """Return the word as find will pass it, with a file under ``start`` for its braces."""
    if "{}" not in word.text:
        return word
    before, _, after = word.text.partition("{}")
    found, at = _found(start), len(before)
    return Word(before + found.text + after, word.shape[:at] + found.shape + word.shape[at + 2 :])


def _check_narrow(tests: Sequence[str]) -> None:
    """Refuse to remove what no test names: every alternative needs a name with letters in it, and none says *not*."""
    named = sum(1 for test, value in itertools.pairwise(tests) if test in _NAMING and re.search(r"\w", value))
    depth = 0
    for test in tests:
        depth += {"(": 1, ")": -1}.get(test, 0)
        if test in {"!", "-not", ","} or (test in {"-o", "-or"} and depth == 0):
            named = 0
            break
    if named < 1 + sum(test in {"-o", "-or"} for test in tests):
        raise RefusedCommandError(
            "E_CMD_REMOVE", "find removes whatever it finds; say by -name what is to go"
        )
