"""How the options of a program stand among its words: alone, in clusters, with values glued on or following. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from policy import command_names as names
from policy.shell_words import RefusedCommandError, Word, literal, unreadable

_NAMED: Final = 2
"""How much of a word is the hyphen and the letter of a short option."""


@dataclass
class Given:
    """What a program is given: its options in order, each with its value, and its other words.

    A short option stands there as ``-x``, a long one by its full name where that is known, without its value.
    """

    options: list[tuple[str, Word]] = field(default_factory=list)
    operands: list[Word] = field(default_factory=list)

    def values(self, *wanted: str) -> list[Word]:
        """Return the values of some options."""
        return [value for name, value in self.options if name in wanted]

    def has(self, *wanted: str) -> bool:
        """Whether one of some options is given."""
        return any(name in wanted for name, _ in self.options)


def given(
    words: Sequence[Word], *, short: str = "", loose: str = "", valued: str = "", plain: str = ""
) -> Given:
    """Return the options and operands among the words of a program that reads them as GNU's getopt does.

    ``short`` are the letters that take a value, ``loose`` those whose value can only be the rest of their word;
    ``valued`` are the long options that take one, ``plain`` more long ones to know by an abbreviation.
    """
    found, at = Given(), 0
    while at < len(words):
        word = words[at]
        text = word.text
        at += 1
        if text == "--" and word.known:
            found.operands.extend(words[at:])
            break
        if text.startswith("--"):
            name, equals, _ = text.partition("=")
            name = _full(name, valued.split(), plain.split())
            if equals:
                found.options.append((name, _rest(word, text.index("=") + 1)))
            elif name in valued.split():
                found.options.append((name, words[at] if at < len(words) else literal("")))
                at += 1
            else:
                found.options.append((name, literal("")))
        elif text.startswith("-") and text != "-":
            at += _cluster(word, words[at : at + 1], short, loose, found)
        else:
            found.operands.append(word)
    return found


def _cluster(word: Word, after: Sequence[Word], short: str, loose: str, found: Given) -> int:
    """Read a word of short options; return how many words after it are values."""
    for place, letter in enumerate(word.text[1:], start=_NAMED):
        rest = _rest(word, place)
        if letter in short and not rest.text:
            found.options.append((f"-{letter}", after[0] if after else literal("")))
            return 1
        if letter in short or letter in loose:
            found.options.append((f"-{letter}", rest))
            return 0
        found.options.append((f"-{letter}", literal("")))
    return 0


def _full(name: str, valued: Sequence[str], plain: Sequence[str]) -> str:
    """Return the long option that a name is, or is short for."""
    if name in valued or name in plain or len(name) <= _NAMED:
        return name
    return next((one for one in (*valued, *plain) if one.startswith(name)), name)


def _rest(word: Word, start: int) -> Word:
    return word.cut(start)


def known(words: Sequence[Word], program: str) -> None:
    """Refuse words of a program that may turn out to be other words, or more of them."""
    for word in words:
        if not word.known or word.pattern:
            raise RefusedCommandError(
                "E_CMD_DYNAMIC",
                f"{program} takes {word.text[:80]}, which is only known when it runs; write it out",
            )


def options_end(words: Sequence[Word], wrapper: names.Wrapper, program: str) -> int:
    """Return where the words after a program's options begin; refuse an option that is not known."""
    valued, at = wrapper.valued.split(), 0
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        text = word.text
        at += 1
        known([word], program)
        if text == "--":
            break
        if text in valued:
            known(words[at : at + 1], program)
            at += 1
        elif not _is_read(word, wrapper) and not (program == "nice" and re.fullmatch(r"-\d+", text)):
            raise unreadable(f"{program} has the option {text}, which is not read here")
    return at


def _is_read(word: Word, wrapper: names.Wrapper) -> bool:
    """Whether a word is one option with its value in it, or options without values."""
    valued, optional, plain = wrapper.valued.split(), wrapper.optional.split(), wrapper.plain.split()
    if word.text.startswith("--"):
        return word.text in (*plain, *optional) or word.text.partition("=")[0] in (*valued, *optional)
    if word.text in plain or word.text[:2] in (*valued, *optional):
        return True
    return word.known and all(f"-{flag}" in plain for flag in word.text[1:])
