"""Texts that bash may expand once more: subscripts where it reads a name or a number. Pure; they are refused."""

from __future__ import annotations

import itertools
from typing import Final

from policy.shell_words import (
    DECLARING,
    Command,
    RefusedCommandError,
    Script,
    Word,
    literally,
    subscripted,
    substitutes,
    unreadable,
)

_NAMING: Final = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "wait"})
"""Builtins that set the names among their words."""
_EVALUATING: Final = frozenset({*DECLARING, *_NAMING, "test", "[", "let", "unset", "set", "env"} - {"printf"})
"""Builtins that may expand once more what stands in a subscript."""
_COUNTING: Final = frozenset({"let", "declare", "typeset", "local"})


def check_evaluated(script: Script) -> None:
    """Refuse a script with a text that bash may expand once more."""
    script.evaluates |= any(one.words and one.words[0].text in _COUNTING for one in script.commands)
    for command in script.commands:
        _check_builtin(command, script)
    prefixed = ([value for _, value in one.assignments] for one in script.commands)
    for word in itertools.chain(*script.values.values(), *prefixed):
        check_value(word)
        if script.evaluates and substitutes(literally(word)):
            raise unreadable("a value holds a command that an arithmetic expression may run")


def check_value(word: Word) -> None:
    """Refuse a text that runs a command where it is taken for a number or a name."""
    if subscripted(literally(word)):
        raise again("a value has")


def again(what: str) -> RefusedCommandError:
    """Return the refusal of what has such a subscript."""
    return unreadable(f"{what} a subscript that bash would expand once more")


def _check_builtin(command: Command, script: Script) -> None:
    words = command.unwrapped
    name = words[0].text if words else ""
    setting = name in _NAMING and (name != "printf" or any(one.text.startswith("-v") for one in words))
    given = [word.text for word in words[1:]] if name in _EVALUATING else []
    if name in script.functions or setting:
        given = [
            *given,
            *(literally(word) for word in words[1:]),
            *(word.text for word in words[1:3] if setting),
        ]
    if any(subscripted(text) for text in given):
        raise again(f"{name} is given")
    if not words or setting:
        for redirect in command.redirects:
            for word in (redirect.target, *redirect.body):
                check_value(word)
    if script.evaluates and any(
        subscripted(text) and substitutes(text) for text in map(literally, command.words)
    ):
        raise unreadable("a word holds a command that an arithmetic expression may run")
