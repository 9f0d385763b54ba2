"""How git reads its options: which words they are, what they are short for, what they take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policy.shell_words import Word

_VALUED: Final = (
    *("--create", "--force-create", "--orphan", "--source", "--conflict", "--exclude", "--message", "--file"),
    *("--pathspec-from-file", "--depth", "--deepen", "--refmap", "--server-option", "--jobs", "--format"),
)
_GLUED: Final = frozenset("mnSGLUCF")
"""Short options whose value may stand in the same word."""
_VALUED_FLAGS: Final = frozenset("bBcCeFmojsu")
"""Options of the sub-commands judged here that take the next word for their value."""


def options_of(rest: Sequence[Word]) -> list[Word]:
    """Return the words that git may take for options: those before ``--`` that begin with a hyphen.

    After an option ``--`` may be that option's value and end nothing.
    """
    found: list[Word] = []
    for at, word in enumerate(rest):
        if word.text == "--" and not (at and rest[at - 1].text.startswith("-")):
            break
        if word.text.startswith("-"):
            found.append(word)
    return found


def is_named(sub: str, word: Word) -> bool:
    """Whether it is known which option a word is, be its value known or not."""
    name = word.shape.partition("=")[0]
    if word.text.startswith("--"):
        return not any(char in name for char in "$*?[")
    return (word.known and not word.pattern) or (sub != "grep" and word.text[1:2] in _GLUED)


def takes_value(word: Word) -> bool:
    """Whether a word is an option that takes the next word for its value."""
    if word.text.startswith("--"):
        return "=" not in word.text and is_option(word, *_VALUED)
    return word.text.startswith("-") and word.text[-1:] in _VALUED_FLAGS


def is_option(word: Word, *names: str) -> bool:
    """Whether a word is one of the long options, written out or cut short as git allows."""
    given = word.text.partition("=")[0]
    return len(given) >= len("--x") and any(name.startswith(given) for name in names)


def has_flag(word: Word, flag: str) -> bool:
    """Whether a cluster of short options has the flag."""
    return word.text.startswith("-") and not word.text.startswith("--") and flag in word.text[1:]
