"""Which commands only read: a closed list of programs, and what each may be given. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Final

from policy.command_find import EFFECTS
from policy.command_git import check_git_reading
from policy.command_names import FREE, READ_ONLY_NAMES
from policy.command_paths import Ground, check_read, check_reads
from policy.command_values import known_names
from policy.shell import read_script
from policy.shell_words import Command, RefusedCommandError, Word

_LIMITED: Final = {
    "rg": (("--pre", "--hostname-bin", "--search-zip"), ("z",), None),
    "sort": (("--output", "--compress-program", "--temporary-directory", "--files0-from"), ("o", "T"), None),
    "tree": (("--output",), ("o", "R"), None),
    "file": (("--compile",), ("C",), None),
    "date": (("--set",), ("s",), None),
    "uniq": ((), (), 1),
    "xxd": ((), ("r",), 1),
    "hostname": (("--file",), ("F",), 0),
    "printf": ((), ("v",), None),
    "read": ((), (), None),
    "command": ((), (), None),
}
"""Programs with the long and short options that are not reading, and how many operands they may have."""
_UNSAID: Final = frozenset("-*?[{")
"""With which a pattern begins that may become an option."""
_SED: Final = re.compile(r"\d+(?:,(?:\d+|\$))?p|\$p")
_CLOCK: Final = re.compile(r"\d{8,12}(?:\.\d\d)?")
_ENVIRONMENT: Final = re.compile(r"[A-Z_][A-Z0-9_]+")
"""Names that the environment may hold; a loop or ``read`` may set no such name either."""
_MERGED: Final = re.compile(r"[0-9]|-")

_ANYWHERE: Final = Ground()


def check_reading(text: str) -> None:
    """Refuse a shell's text of which any command may do more than read."""
    script = read_script(text)
    if script.functions:
        raise _refused("a function is defined")
    found = known_names(script)
    for name in sorted(found.named):
        if _ENVIRONMENT.fullmatch(name) and name not in READ_ONLY_NAMES and name.strip("_"):
            raise _refused(f"{name} is set")
    values = found.values
    check_reads(script, values)
    for command in script.commands:
        for redirect in command.redirects:
            if redirect.operator in {"<", "<&"}:
                check_read(redirect.target, values, strict=True)
        _check(command)


def _check(command: Command) -> None:
    for name, _ in command.assignments:
        if name not in READ_ONLY_NAMES:
            raise _refused(f"{name} is set")
    for redirect in command.redirects:
        to = redirect.target.text
        merged = redirect.operator == ">&" and _MERGED.fullmatch(to)
        if redirect.operator not in {"<", "<<", "<<<", "<&"} and to != "/dev/null" and not merged:
            raise _refused(f"{redirect.operator} {to} writes a file")
    if not command.words:
        return
    first, rest = command.words[0], command.words[1:]
    name = posixpath.basename(first.text)
    if first.text not in {name, f"/bin/{name}", f"/usr/bin/{name}"}:
        raise _refused(f"{first.text} is a program of its own")
    if name in _RULES:
        _RULES[name](rest)
    elif name in _LIMITED:
        _check_limited(name, rest)
    elif name not in FREE:
        raise _refused(f"{name} is not on the list")


def _refused(what: str) -> RefusedCommandError:
    return RefusedCommandError("E_CMD_READ_ONLY", f"{what}; this session only reads")


def _check_known(name: str, words: Sequence[Word], *, ends: bool = True) -> None:
    """Refuse a word that may turn out to be an option; ``ends`` says that none is after ``--``."""
    for at, word in enumerate(words):
        if ends and word.text == "--" and not (at and words[at - 1].text.startswith("-")):
            return
        if not word.known or (word.pattern and word.shape[:1] in _UNSAID):
            raise _refused(f"{name} takes a word that is only known when it runs")


def _check_limited(name: str, words: Sequence[Word]) -> None:
    long, short, most = _LIMITED[name]
    operands = 0
    _check_known(name, words)
    for word in words:
        text = word.text
        given = text.partition("=")[0]
        if text.startswith("--") and len(given) > len("--") and any(one.startswith(given) for one in long):
            raise _refused(f"{name} {text} does more than read")
        if text.startswith("-") and not text.startswith("--") and any(flag in text for flag in short):
            raise _refused(f"{name} {text} does more than read")
        operands += not text.startswith("-")
    if most is not None and operands > most:
        raise _refused(f"{name} writes its second file")
    if name == "command" and (not words or words[0].text not in {"-v", "-V"}):
        raise _refused("command runs a program")


def _check_date(words: Sequence[Word]) -> None:
    _check_limited("date", words)
    before = ""
    for word in words:
        if _CLOCK.fullmatch(word.text) and before not in {"-d", "--date"}:
            raise _refused(f"date {word.text} sets the clock")
        before = word.text


def _check_find(words: Sequence[Word]) -> None:
    _check_known("find", words, ends=False)
    for word in words:
        if word.text in EFFECTS:
            raise _refused(f"find {word.text} may do more than find")


def _check_git(words: Sequence[Word]) -> None:
    _check_known("git", words)
    check_git_reading(words, _ANYWHERE)


def _check_sed(words: Sequence[Word]) -> None:
    """Allow printing lines by number, nothing of the rest of sed's language."""
    _check_known("sed", words, ends=False)
    texts = [word.text for word in words]
    if (
        len(texts) < len(("-n", "1p"))
        or texts[0] != "-n"
        or not _SED.fullmatch(texts[1])
        or any(one.startswith("-") for one in texts[2:])
    ):
        raise _refused("sed does more than print lines by number (sed -n 'N,Mp' FILE)")


_RULES: Final[dict[str, Callable[[Sequence[Word]], None]]] = {
    "date": _check_date,
    "find": _check_find,
    "git": _check_git,
    "sed": _check_sed,
}
