"""What a script of sed writes and runs, as far as that stands in its words. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

from policy.command_options import given
from policy.command_paths import Ground, check_written, texts
from policy.shell_words import OPENED, RefusedCommandError, Word, literal, unreadable

_OPEN: Final = "\ue000"
"""Stands in a script for what is only known when it runs."""
_PLACE: Final = rf"(?:[\d{_OPEN}]+(?:~[\d{_OPEN}]+)?|\$)"
_BLANK: Final = re.compile(r"[ \t]*")
_PLAIN_PLACE: Final = re.compile(_PLACE)
_RELATIVE: Final = re.compile(rf"[+~][\d{_OPEN}]+")
_FLAGS: Final = re.compile(r"[gpiImM\d]*")
_LINE: Final = re.compile(r"[^\n]*")
_LABEL: Final = re.compile(r"[ \t]*[^\s;}]*")
_TEXT: Final = re.compile(r"(?:[^\n\\]|\\.)*", re.DOTALL)
_BRACKET: Final = re.compile(r"\^?\]?(?:\[[:.=][^\]\n]{0,32}\]|[^\]\n]){0,256}\]")
_NUMBER: Final = re.compile(r"[ \t]*\d*")
_WITHOUT: Final = frozenset("{}=dDgGhHnNpPxFz")
_MAX_SCRIPTS: Final = 64


def check_sed(words: Sequence[Word], ground: Ground) -> None:
    """Refuse a call of sed that runs a program or writes what no agent writes, in place or by its script."""
    found = given(
        words,
        short="efl",
        loose="i",
        valued="--expression --file --line-length",
        plain="--in-place --quiet --silent --null-data --debug --posix --sandbox --separate --follow-symlinks",
    )
    scripts, files = found.values("-e", "--expression"), found.operands
    if not scripts and not found.has("-f", "--file"):
        scripts, files = files[:1], files[1:]
    if any(one.text in {"-", "/dev/stdin", "/dev/fd/0"} for one in found.values("-f", "--file")):
        raise unreadable("a script of sed that it is sent is not read here")
    if found.has("-i", "--in-place"):
        check_written(files, ground)
        for suffix in found.values("-i", "--in-place"):
            if "/" in suffix.text or not suffix.known:
                raise unreadable("a suffix of copies is no plain one")
    for script in _worth(scripts, ground):
        read = _Script(script)
        if read.read():
            pass
        elif _OPEN in script:
            raise _unknown()
        elif re.search(r"[wWe]", script):
            raise unreadable("a script of sed is not read here")
        check_written(
            [literal(one) for one in read.targets if one not in {"/dev/stdout", "/dev/stderr"}], ground
        )


def _worth(scripts: Sequence[Word], ground: Ground) -> list[str]:
    """Return what the whole script may be; what is only known when it runs has a sign of its own there."""
    worth = [texts(one, ground) or [] for one in scripts]
    if len(scripts) == 1 and 0 < len(worth[0]) <= _MAX_SCRIPTS:
        return worth[0]
    parts = (found[0] if len(found) == 1 else _marked(one) for one, found in zip(scripts, worth, strict=True))
    return ["\n".join(parts)]


def _marked(word: Word) -> str:
    return "".join(
        _OPEN if kind == OPENED else "".join(char for char, _ in run)
        for kind, run in itertools.groupby(
            zip(word.text, word.shape, strict=True), lambda one: one[1] if one[1] == OPENED else ""
        )
    )


class _Script:
    """A script of sed, read as GNU sed does."""

    def __init__(self, text: str) -> None:
        self._text, self._pos = text, 0
        self.targets: list[str] = []
        """The files that the script writes."""

    def read(self) -> bool:
        """Read the script; return whether it could be read. Refuse one that runs a program."""
        while self._pos < len(self._text):
            if not self._command():
                return False
        return True

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._pos)
        taken = "" if found is None else found[0]
        self._pos += len(taken)
        return taken

    def _char(self) -> str:
        char = self._text[self._pos : self._pos + 1]
        self._pos += 1
        return char

    def _peek(self) -> str:
        return self._text[self._pos : self._pos + 1]

    def _command(self) -> bool:
        """Read one command with its addresses; return whether it was one."""
        begun = self._pos
        while self._peek() and self._peek() in " \t\n;":
            self._pos += 1
        if not self._peek():
            return True
        if self._peek() == _OPEN and begun == self._pos and begun and self._text[begun - 1] != "{":
            return False
        if self._address():
            self._take(_BLANK)
            if self._peek() == ",":
                self._pos += 1
                self._take(_BLANK)
                if not (self._take(_RELATIVE) or self._address()):
                    return False
        while self._peek() and self._peek() in " \t!":
            self._pos += 1
        return self._verb(self._char())

    def _address(self) -> bool:
        if self._take(_PLAIN_PLACE):
            return True
        char = self._peek()
        if char not in {"/", "\\"}:
            return False
        self._pos += 1
        if not self._delimited(char if char == "/" else self._char(), brackets=True):
            return False
        while self._peek() in {"I", "M"}:
            self._pos += 1
        return True

    def _delimited(self, end: str, *, brackets: bool) -> bool:
        while self._pos < len(self._text):
            char = self._char()
            if char == "\\":
                self._pos += 1
            elif char == "[" and brackets and self._take(_BRACKET):
                pass
            elif char == end:
                return True
        return False

    def _verb(self, verb: str) -> bool:
        if verb in {"s", "y"}:
            return self._replaced(verb)
        if verb == "e":
            raise _runs()
        if verb in {"w", "W"}:
            self._writes()
        elif verb in {"r", "R", "#", "v"}:
            self._take(_LINE)
        elif verb in {"a", "i", "c"}:
            self._take(_TEXT)
        elif verb in {"b", "t", "T", ":"}:
            return _OPEN not in self._take(_LABEL)
        elif verb in {"q", "Q", "l", "L"}:
            self._take(_NUMBER)
        else:
            return verb in _WITHOUT and bool(verb)
        return True

    def _replaced(self, verb: str) -> bool:
        end = self._char()
        if not end or end in f"\n\\{_OPEN}" or not self._delimited(end, brackets=verb == "s"):
            return False
        if not self._delimited(end, brackets=False):
            return False
        if verb == "s":
            self._take(_FLAGS)
            if self._peek() == _OPEN:
                return False
            if self._peek() == "e":
                raise _runs()
            if self._peek() == "w":
                self._pos += 1
                self._writes()
        return True

    def _writes(self) -> None:
        self._take(_BLANK)
        self.targets.append(self._take(_LINE))
        if _OPEN in self.targets[-1]:
            raise _unknown()


def _unknown() -> RefusedCommandError:
    return RefusedCommandError(
        "E_CMD_DYNAMIC", "what a script of sed does is only known when it runs; write its commands out"
    )


def _runs() -> RefusedCommandError:
    return RefusedCommandError("E_CMD_EMBEDDED", "a script of sed runs a program; run that program itself")
