"""What find may do beyond finding: run a program on what it found, remove it, write it down. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from policy.command_found import NAMING, chooses_protected, is_global, narrow, spares_git, widest
from policy.command_found import starts as expression_start
from policy.command_names import FREE
from policy.command_paths import Ground, check_written, inside, texts
from policy.command_protected import is_protected
from policy.shell_words import RefusedCommandError, Word, literal, unreadable

EFFECTS: Final = frozenset(
    {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fls", "-fprint", "-fprint0", "-fprintf"}
)
"""Expressions by which find does more than find."""
_MAX_EFFECTS: Final = 20
_VALUED: Final = frozenset(
    {
        *NAMING,
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
_CHANGING: Final = _RUNNING | {"-delete"}
_BESIDE: Final = frozenset({"-execdir", "-okdir"})
_GITS_OWN: Final = "./.git"
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
    if "-delete" in expression or _RUNNING.intersection(expression):
        starts = [*starts, *_reached(starts, words, ground)]
    for at, word in enumerate(words):
        if word.text in _RUNNING:
            command = _command(words, at)
            if not command:
                raise unreadable("find runs nothing")
            if command[0].text.rpartition("/")[2] in _REMOVING:
                _check_narrow(expression[:at])
            # What runs beside each file may stand in any folder.
            within = replace(ground, away=True, afar=True) if held and word.text in _BESIDE else ground
            for start in starts if any("{}" in one.text for one in command) else starts[:1]:
                _check_run([_filled(one, start) for one in command], within, check, start)
        elif word.text == "-delete":
            _check_narrow(expression[:at])
            _check_run([literal("rm"), *(_found(start) for start in starts)], ground, check, starts[-1])
        elif word.text in EFFECTS:
            check_written(words[at + 1 : at + 2], ground)


def _reached(starts: Sequence[Word], words: Sequence[Word], ground: Ground) -> list[Word]:
    """Return where find also looks: in git's own files, where it begins above them and does not pass them by."""
    whole = [
        start for start in starts if any(inside(one, ground) == "." for one in texts(start, ground) or ())
    ]
    known = [_certain(word, ground) for word in words]
    wide = [_wide(word, ground) for word in words]
    roots = [_certain(start, ground).text for start in whole]
    return [] if spares_git(known, wide, _CHANGING, roots) else [literal(_GITS_OWN)]


def _certain(word: Word, ground: Ground) -> Word:
    """Return the word that a word certainly is, if it is one."""
    worth = texts(word, ground) or ()
    return literal(worth[0]) if len(worth) == 1 else word


def _wide(word: Word, ground: Ground) -> str:
    """Return what a word is, or a pattern for all that it may be."""
    worth = texts(word, ground) or ()
    return worth[0] if len(worth) == 1 else widest(word)


def _check_run(words: Sequence[Word], ground: Ground, check: Check, start: Word) -> None:
    """Judge what find runs on a file below a folder where it looks."""
    try:
        check(words, ground)
    except RefusedCommandError as refused:
        if start.text != _GITS_OWN:
            raise
        raise RefusedCommandError(
            refused.code, "find also finds git's own files; pass them by: -not -path './.git/*'"
        ) from None


def _check_chosen(words: Sequence[Word], expression: Sequence[str]) -> None:
    """Refuse to change what a test picks out by a protected name, unless that is what find passes by."""
    for at, word in enumerate(words):
        told = expression[at + 1].rpartition("/")[2] if word.text in _RUNNING and at + 1 < len(words) else ""
        if (word.text == "-delete" or (told and told not in FREE)) and chooses_protected(expression[:at]):
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
    end = expression_start([word.text for word in words])
    return [word for word in words[:end] if not is_global(word.text)] or [literal(".")]


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
    """Refuse to remove what no test names."""
    if not narrow(tests):
        raise RefusedCommandError(
            "E_CMD_REMOVE", "find removes whatever it finds; say by -name what is to go"
        )
