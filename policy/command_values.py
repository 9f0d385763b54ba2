"""What the names of a command line may be worth, and which of them something may set. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from policy.command_names import is_unsafe
from policy.command_options import given, known
from policy.command_printed import listed_name
from policy.shell import read_script
from policy.shell_words import (
    ARRAY,
    ASSIGNED,
    DECLARING,
    GIVEN,
    NAME,
    REVISION,
    Command,
    RefusedCommandError,
    Script,
    Word,
)

MOVING: Final = frozenset({"cd", "pushd", "popd"})
"""Builtins that change the directory."""

_READING: Final = {
    "read": "adinNptu",
    "mapfile": "dnOsuCc",
    "readarray": "dnOsuCc",
    "getopts": "",
    "unset": "",
    "wait": "p",
}
"""Builtins that set the names among their words, with their options that take a value."""
_TEXTS: Final = frozenset({"eval", "trap"})
_OPAQUE: Final = frozenset({"eval", "source", ".", "trap"})
_PLAIN_FLAGS: Final = frozenset("xrgpfFt")
"""Flags of declare and its like that change no value."""
_OWN: Final = re.compile(
    r"_|REPLY|MAPFILE|OPTARG|OPTIND|COPROC\w*|BASH\w*|COMP_\w+|DIRSTACK|S?RANDOM|SECONDS|LINENO|EPOCH\w+"
    r"|FUNCNAME|GROUPS|PIPESTATUS|PPID|E?UID|HISTCMD|READLINE_\w+"
)
"""Names that a shell sets by itself: what is assigned to them is not what they are worth."""
_MAX_VALUE: Final = 256
_SETTLED: Final = re.compile(r"[\w./:@%+,=-]+", re.ASCII)
"""What stays one word, and itself, where it is expanded without quotes."""


@dataclass(frozen=True)
class Known:
    """What is known of names: what each may be worth, which of ``GIVEN`` may be set, which names are set at all."""

    values: dict[str, list[Word]]
    unsure: frozenset[str]
    touched: frozenset[str] | None
    """Names that may be set to what begins with a hyphen, or is more than one word; None where any name may be."""
    named: frozenset[str]
    """Names that something else than an assignment or a declaration sets."""


def in_this_shell(script: Script, *, posix: bool, depth: int) -> Iterator[tuple[Script, Command]]:
    """Yield every command of a script, and of the texts that eval and trap run in the same shell."""
    for command in script.commands:
        yield script, command
        words = command.unwrapped
        if words and words[0].text in _TEXTS and all(one.known for one in words):
            operands = (
                words[1:] if words[0].text == "eval" else [one for one in words[1:] if one.text != "--"][:1]
            )
            text = " ".join(one.text for one in operands)
            yield from in_this_shell(
                read_script(text, posix=posix, depth=depth + 1), posix=posix, depth=depth + 1
            )


def known_names(script: Script, *, posix: bool = False, depth: int = 0) -> Known:
    """Return what is known of the names of a script, whatever sets them.

    Refuse a script that sets an unsafe name otherwise than by an assignment.
    """
    touched, anything, opaque, moves = set(script.values), False, False, False
    other, named = set[str](), set(script.named)
    for within, command in in_this_shell(script, posix=posix, depth=depth):
        touched.update(within.values)
        words = command.unwrapped
        first = words[0].text if words else ""
        opaque = opaque or (first in _OPAQUE and not _sets_nothing(words, posix=posix, depth=depth))
        moves = moves or first in MOVING
        listed = listed_name(command)
        direct = words[:1] == command.words[:1]
        sets = set[str]() if listed else _sets(words, within.values, direct=direct)
        anything = anything or sets is None
        other.update(sets or ())
        # What is set for a function is set in all that it runs.
        other.update(name for name, _ in command.assignments if first in within.functions)
        named.update(sets or () if first not in {*DECLARING, "unset"} else ())
        for word in words[1:] if first in DECLARING else ():
            found = ASSIGNED.match(word.text)
            if found is not None and found[1] in GIVEN:
                touched.add(found[1])
    for name in sorted(named):
        if is_unsafe(name):
            raise unsafe(name)
    touched |= other
    unsure = GIVEN if anything else GIVEN & touched
    values: dict[str, list[Word]] = {}
    other.update(("PWD", "OLDPWD") if moves else ())
    if not (anything or opaque or "IFS" in touched):
        values = {
            name: words
            for name, words in ((name, _all_values(name, script)) for name in script.values)
            if all(word.expanded is not None for word in words)
            and name in script.first
            and name.removesuffix("[]") not in other
            and _OWN.fullmatch(name) is None
        }
    plain = {name for name, words in script.values.items() if all(_is_plain(one) for one in words)}
    touched -= set() if opaque else plain - other
    return Known(values, unsure, None if anything else frozenset(touched), frozenset(named))


def _sets_nothing(words: Sequence[Word], *, posix: bool, depth: int) -> bool:
    """Whether a command is a trap whose text has no assignment; what else sets names in it is read with the others."""
    operands = [one for one in words[1:] if one.text != "--"]
    if words[0].text != "trap" or not all(one.known for one in operands):
        return False
    if not operands or operands[0].text.startswith("-"):
        return True
    within = in_this_shell(
        read_script(operands[0].text, posix=posix, depth=depth + 1), posix=posix, depth=depth + 1
    )
    return not any(
        one.values or one.functions or any(word.text in _OPAQUE for word in command.unwrapped[:1])
        for one, command in within
    )


def _all_values(name: str, script: Script) -> list[Word]:
    """Return the values of a name; of an array also what its first part was set to by its plain name."""
    first = script.values.get(name.removesuffix("[]"), []) if name.endswith("[]") else []
    return [*script.values[name], *(one for one in first if one.text != ARRAY)]


def _is_plain(word: Word) -> bool:
    """Whether a value is certainly one word at most, and no option."""
    if word.text.startswith(REVISION):
        return word.text[len(REVISION) :][:1] in {"", ".", ":", "^", "~"}
    return word.known and _SETTLED.fullmatch(word.text) is not None and not word.text.startswith("-")


def _sets(words: Sequence[Word], values: Mapping[str, list[Word]], *, direct: bool) -> set[str] | None:
    """Return the names that a command sets other than by an assignment that was read, None where it may be any."""
    name, rest = (words[0].text, words[1:]) if words else ("", ())
    if name in DECLARING:
        return _declared(rest, _PLAIN_FLAGS | ({"n"} if name == "export" else set()), direct=direct)
    if name == "printf":
        return _printed(rest, values)
    if name == "let":
        return {found for word in rest for found in NAME.findall(word.text)}
    if name not in _READING:
        return set()
    found = given(rest, short=_READING[name])
    named = [*found.operands, *found.values("-a")]
    if name == "wait":
        named = found.values("-p")
    elif name == "getopts":
        named = named[1:2]
    return _plain_names(named, name)


def _plain_names(words: Sequence[Word], program: str) -> set[str] | None:
    """Return names that are set; where they are only known when it runs, None for unset, a refusal for the others."""
    found: set[str] = set()
    for word in words:
        name = word.text.partition("[")[0]
        plain = Word(name, word.shape[: len(name)])
        if not plain.known or (word.pattern and name == word.text):
            if program == "unset":
                return None
            known([plain], "what sets a name")
        found.add(name)
    return found


def _declared(words: Sequence[Word], flags: AbstractSet[str], *, direct: bool) -> set[str] | None:
    found: set[str] = set()
    for word in words:
        begins = ASSIGNED.match(word.shape)
        if begins is not None:
            if not direct:
                found.add(begins[1])
        elif not word.known:
            return None
        elif word.text[:1] in {"-", "+"}:
            if not set(word.text[1:]) <= flags and word.text != "--":
                return None
        else:
            found.update(NAME.findall(word.text)[:1])
    return found


def _printed(words: Sequence[Word], values: Mapping[str, list[Word]]) -> set[str] | None:
    first = words[0] if words else None
    if first is None or not first.text:
        return set()
    if first.shape[:1] == "$":
        worth = [values.get(name, []) for name in first.variables or ("",)]
        if any(one.known and one.text.lstrip().startswith("-") for some in worth for one in some):
            known([first], "printf")
        return set() if all(some and all(one.known for one in some) for some in worth) else None
    if first.text.startswith("-") and not first.known:
        return None
    if not first.text.startswith("-v"):
        return set()
    named = [Word(first.text[2:], first.shape[2:])] if first.text != "-v" else list(words[1:2])
    return _plain_names(named, "printf")


def unsafe(name: str) -> RefusedCommandError:
    """Return the refusal to set a name that makes other programs run something."""
    return RefusedCommandError(
        "E_CMD_ENVIRONMENT", f"{name} decides what other programs run; leave it as it is"
    )


def settled(word: Word, values: Mapping[str, Sequence[Word]], sure: AbstractSet[str]) -> Word:
    """Return what a word certainly is: names that are certainly set stand there as their values."""
    names = word.variables
    if word.known or not names:
        return word
    text, shape = word.text, word.shape
    for name in dict.fromkeys(names):
        worth = values.get(name, ())
        if len(worth) != 1 or name not in sure or len(worth[0].text) > _MAX_VALUE:
            return word
        if not worth[0].known or _SETTLED.fullmatch(worth[0].text) is None:
            return word
    parts: list[Word] = []
    place = 0
    for found in re.finditer(r"\$\{(\w+)\}", text, re.ASCII):
        if shape[found.start()] != "$" or set(shape[found.start() : found.end()]) != {"$"}:
            continue
        worth_now = values[found[1]][0].text
        parts += [
            Word(text[place : found.start()], shape[place : found.start()]),
            Word(worth_now, '"' * len(worth_now)),
        ]
        place = found.end()
    parts.append(Word(text[place:], shape[place:]))
    return Word("".join(one.text for one in parts), "".join(one.shape for one in parts))
