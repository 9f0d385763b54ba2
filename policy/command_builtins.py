"""Builtins that set names, signal processes or change what a name means. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from policy import command_names as names
from policy.command_options import known
from policy.command_paths import Ground, texts
from policy.command_values import unsafe
from policy.shell_words import ASSIGNED, WIDE, RefusedCommandError, Word, opened

_MEANINGS: Final = frozenset({"dotglob", "expand_aliases", "cdable_vars"})
_EVERYBODY: Final = re.compile(r"[-+]?0*[01]")


def check_name(name: str, value: Word) -> None:
    """Refuse to set a name that decides what other programs run."""
    if names.is_unsafe(name) and not (
        value.known and value.text in names.HARMLESS_VALUES and not name.startswith(("LD_", "DYLD_"))
    ):
        raise unsafe(name)


def check_exported(words: Sequence[Word], _ground: Ground) -> None:
    """Refuse ``export`` and its like of such a name."""
    named = any(re.match(r"-\w*n", word.text) for word in words)
    for word in words:
        found = ASSIGNED.match(word.shape)
        if found is not None:
            value = word.cut(found.end())
            check_name(found[1], value)
            if named:
                check_name(value.text.partition("[")[0], opened())
        elif (odd := ASSIGNED.match(word.text)) is not None:
            check_name(odd[1], opened())


def check_mapfile(words: Sequence[Word], _ground: Ground) -> None:
    """Refuse to run a text for lines."""
    known(words, "mapfile")
    if any(re.match(r"-\w*C", word.text) for word in words):
        raise RefusedCommandError("E_CMD_WRAPPER", "mapfile -C runs a text for the lines it reads")


def check_jobs(words: Sequence[Word], _ground: Ground) -> None:
    """Refuse to run a program by way of jobs."""
    known(words, "jobs")
    if any(re.match(r"-\w*x", word.text) for word in words):
        raise RefusedCommandError("E_CMD_WRAPPER", "jobs -x runs a program; run that program itself")


def check_kill(words: Sequence[Word], ground: Ground) -> None:
    """Refuse to signal every process."""
    targets = list(words)
    first = targets[0].text if targets else ""
    if first in {"-s", "-n", "--signal"}:
        targets = targets[2:]
    elif first.startswith("-") and first != "--" and len(targets) > 1:
        targets = targets[1:]
    for target in targets:
        if WIDE in target.text:
            known([target], "kill")
        for text in texts(target, ground) or (target.text,):
            if _EVERYBODY.fullmatch(text.strip()):
                raise RefusedCommandError("E_CMD_KILL", f"kill {text} ends processes that are not yours")


def check_shopt(words: Sequence[Word], _ground: Ground) -> None:
    """Refuse to change what patterns, names and directories mean."""
    known(words, "shopt")
    texts_given = [word.text for word in words]
    if _MEANINGS.intersection(texts_given) and "-u" not in texts_given:
        raise RefusedCommandError("E_CMD_ALIAS", "shopt changes what a pattern or a name means")


def check_hash(words: Sequence[Word], _ground: Ground) -> None:
    """Refuse to say where a program is."""
    known(words, "hash")
    if any(re.match(r"-\w*p", one.text) for one in words):
        raise RefusedCommandError("E_CMD_ALIAS", "hash -p changes what a name means")
