"""What a shell's text is taken apart into, and how a refusal is said. Pure."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Final

QUOTED: Final = '"'
"""Stands in a word's shape for a character that was quoted."""
OPENED: Final = "$"
"""Stands in a word's shape for a character that an expansion will replace."""

NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""The name of a variable."""
ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=", re.ASCII)
"""How an assignment begins: its name."""
DECLARING: Final = frozenset({"declare", "typeset", "local", "export", "readonly"})
"""Builtins whose words are assignments."""
GIVEN: Final = frozenset({"HOME", "PWD", "TMPDIR", "OLDPWD"})
"""Names whose values are those of the surroundings as long as a command line does not set them."""
_BEFORE: Final = frozenset({"builtin", "command", "--", "-p"})
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_EXPANDED: Final = re.compile(
    r"\$\{([A-Za-z_][A-Za-z0-9_]*(?:\[\])?[%#/^]?|[A-Za-z_][A-Za-z0-9_]*:-[\w./@]+|[a-z]+…)\}"
)
_MAX_ALTERNATIVES: Final = 64
_MAX_SEQUENCE: Final = 512
_SEQUENCE: Final = re.compile(
    r"\{(?:([+-]?\d{1,9})\.\.([+-]?\d{1,9})|([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z]))(?:\.\.([+-]?\d{1,9}))?\}",
    re.ASCII,
)
_MAYBE_SEQUENCE: Final = re.compile(
    r"\{(?:[+-]?\d+|[A-Za-z])\.\.(?:[+-]?\d+|[A-Za-z])(?:\.\.[+-]?\d+)?\}", re.ASCII
)
_SUBSCRIPT: Final = re.compile(r"[\w}]\[")
_SUBSTITUTION: Final = re.compile(r"\$\(|`")
WIDE: Final = "${count…}"
"""Stands in a word for a sequence that is too long to be written out."""
REVISION: Final = "${git…}"
"""The text of what git says of a revision: a word that begins with no hyphen, or nothing."""
NUMBER: Final = "${number…}"
"""The text of a number or a date: never empty, one part of a path, not hidden."""
FILES: Final = "${files…}"
"""The text of names of files of the workspace that are not protected, as a program that lists them prints them."""
CHOSEN: Final = "${chosen…}"
"""The same of files that are picked out by their names."""
ARRAY: Final = "${array…}"
"""The text of the value of an array: what is in it is known by another name."""
PROCESS: Final = "<(…)"
"""The text of a word that is a process substitution."""


class RefusedCommandError(Exception):
    """A command line that may not run: a stable ``code`` and the reason in words, with what to do instead."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


def unreadable(what: str) -> RefusedCommandError:
    """Return the refusal of a text that cannot be read with certainty."""
    return RefusedCommandError("E_CMD_PARSE", f"{what}; write it in a plainer way")


@dataclass(frozen=True)
class Word:
    """One word after its quotes are gone: ``text``, and per character in ``shape`` whether it was quoted or expands.

    An expansion of a plain name stands in ``text`` as ``${name}``; of its first part as ``${name%}``, of its last one as
    ``${name#}``, of the last part of a path as ``${name/}``, of its folder as ``${name^}``; with a default as ``${name:-default}``; of an array as
    ``${name[]}``; any other as ``${…}``.
    """

    text: str
    shape: str

    @property
    def known(self) -> bool:
        """Whether nothing in the word is decided only when it runs."""
        return OPENED not in self.shape

    @property
    def pattern(self) -> bool:
        """Whether the shell may replace the word by names of files, or by a sequence."""
        shape = self.shape
        listed = "[" in shape and "]" in shape.partition("[")[2]
        return listed or "*" in shape or "?" in shape or ("{" in shape and ".." in shape)

    @property
    def variables(self) -> tuple[str, ...] | None:
        """The names that the word expands, None when it expands anything but plain names."""
        opened = "".join(char for char, kind in zip(self.text, self.shape, strict=True) if kind == OPENED)
        return None if _VARIABLE.sub("", opened) else tuple(_VARIABLE.findall(opened))

    @property
    def expanded(self) -> tuple[str, ...] | None:
        """What the word expands, parts of names and what programs print included; None when it is nothing known."""
        opened = "".join(char for char, kind in zip(self.text, self.shape, strict=True) if kind == OPENED)
        return None if _EXPANDED.sub("", opened) else tuple(_EXPANDED.findall(opened))

    def cut(self, start: int, end: int | None = None) -> Word:
        """Return a part of the word."""
        return Word(self.text[start:end], self.shape[start:end])


def literal(text: str) -> Word:
    """Return the word that is exactly this text."""
    return Word(text, QUOTED * len(text))


def opened(text: str = "${…}") -> Word:
    """Return a word of which nothing is known before it runs."""
    return Word(text, OPENED * len(text))


@dataclass(frozen=True)
class Redirect:
    """One redirection: its operator without the descriptor and its target; a here document has its text as ``body``."""

    operator: str
    target: Word
    body: list[Word] = field(default_factory=list)


@dataclass(frozen=True)
class Command:
    """One simple command as it stands in a text, wherever it was nested.

    ``sure`` are the names that certainly have been set when it runs, ``piped`` is what a pipe brings it, if known.
    """

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    sure: frozenset[str] = frozenset()
    piped: Word | None = None

    @property
    def unwrapped(self) -> tuple[Word, ...]:
        """Its words without what only says that a builtin is meant."""
        words = self.words
        while words and words[0].text in _BEFORE:
            words = words[1:]
        return words


@dataclass
class Script:
    """Everything a text runs, in the order it stands there; what a name may be worth; what a function runs."""

    commands: list[Command] = field(default_factory=list)
    values: dict[str, list[Word]] = field(default_factory=dict)
    functions: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)
    """Names that something else than an assignment sets: a loop, ``read``, ``${x:=y}``."""
    first: dict[str, int] = field(default_factory=dict)
    """From which command on a name may have been set by an assignment that lasts: how many commands stand before that."""
    sure: frozenset[str] = frozenset()
    """The names that certainly have been set at the place that is read."""
    evaluates: bool = False
    """Whether something in the text evaluates values as arithmetic."""


def one_of(word: Word) -> Word:
    """Return what stands for one of the files that a program lists, each a word of its own."""
    return {FILES: Word("*", "*"), CHOSEN: Word("*found", "*found")}.get(word.text, word)


def base_name(expansion: str) -> str:
    """Return the name that an expansion takes its value from, the empty string if that is none."""
    found = NAME.match(expansion)
    return "" if found is None or "…" in expansion else found[0]


def literally(word: Word) -> str:
    """Return the text of a word with a comma for every character that an expansion will replace."""
    return "".join("," if kind == OPENED else char for char, kind in zip(word.text, word.shape, strict=True))


def subscripted(text: str) -> bool:
    """Whether a text has a subscript that bash would expand once more where it evaluates the text."""
    for part in text.split("]"):
        begun = _SUBSCRIPT.search(part)
        if begun is not None and re.search(r"[$`]", part[begun.end() :]):
            return True
    return False


def substitutes(text: str) -> bool:
    """Whether a literal text has what is a command where it is expanded once more."""
    return _SUBSTITUTION.search(text) is not None


def braces(word: Word) -> list[Word]:
    """Return the words that a shell makes of ``{a,b}`` and ``{a..b}``."""
    if word.shape.count("{") > _MAX_ALTERNATIVES:
        raise RefusedCommandError("E_LIMIT_COMMAND", f"more than {_MAX_ALTERNATIVES} braces in one word")
    done: list[Word] = []
    todo = [word]
    while todo:
        one = todo.pop()
        found = _alternatives(one)
        if found is None:
            done.append(one)
        else:
            todo.extend(reversed(found))
        if len(done) + len(todo) > _MAX_ALTERNATIVES:
            raise RefusedCommandError("E_LIMIT_COMMAND", f"braces make more than {_MAX_ALTERNATIVES} words")
    return done


def _alternatives(word: Word) -> list[Word] | None:
    for start, char in enumerate(word.shape):
        if char == "{":
            made = _sequence(word.shape, start)
            if made is not None:
                end = word.shape.index("}", start) + 1
                before, after = (word.text[:start], word.text[end:]), (word.shape[:start], word.shape[end:])
                if made == [WIDE]:
                    if OPENED in word.shape:
                        raise RefusedCommandError("E_LIMIT_COMMAND", "braces make too many words")
                    return [Word(WIDE.join(before), (OPENED * len(WIDE)).join(after))]
                return [Word(one.join(before), one.join(after)) for one in made]
            cuts = _cuts(word.shape, start)
            if cuts is not None:
                return [_joined(word, start, one, two, cuts[-1]) for one, two in itertools.pairwise(cuts)]
    return None


def _sequence(shape: str, start: int) -> list[str] | None:
    """Return what the sequence at ``start`` makes, None when none stands there."""
    found = _SEQUENCE.match(shape, start)
    if found is None:
        if _MAYBE_SEQUENCE.match(shape, start):
            raise unreadable("braces hold an odd sequence")
        return None
    one, two = found[1] or found[3] or found[5], found[2] or found[4] or found[6]
    first, last = (int(one), int(two)) if found[1] else (ord(one), ord(two))
    step = abs(int(found[7] or 1)) or 1
    if abs(last - first) // step >= _MAX_SEQUENCE:
        raise RefusedCommandError("E_LIMIT_COMMAND", f"braces make more than {_MAX_SEQUENCE} words")
    if abs(last - first) // step >= _MAX_ALTERNATIVES:
        return [WIDE]
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if not found[1]:
        return [chr(number) for number in numbers]
    padded = any(re.match(r"[+-]?0\d", end) for end in (one, two))
    width = max(len(one), len(two)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]


def _cuts(shape: str, start: int) -> list[int] | None:
    """Return where the brace at ``start``, its commas and its end are; None when it is no list."""
    depth, cuts = 0, [start]
    for at in range(start, len(shape)):
        if shape[at] == "{":
            depth += 1
        elif shape[at] == "}":
            depth -= 1
            if depth == 0:
                return [*cuts, at] if len(cuts) > 1 else None
        elif shape[at] == "," and depth == 1:
            cuts.append(at)
    return None


def _joined(word: Word, start: int, one: int, two: int, end: int) -> Word:
    def cut(text: str) -> str:
        return text[:start] + text[one + 1 : two] + text[end + 1 :]

    return Word(cut(word.text), cut(word.shape))
