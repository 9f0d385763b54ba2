"""Words of a call of git that are only known when it runs: where one may turn out to be an option. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from policy.command_paths import Ground
from policy.shell_words import NUMBER, OPENED, REVISION, RefusedCommandError, Word, base_name

_STRICT: Final = frozenset({"commit", "apply", "am"})
"""Sub-commands in which an option rewrites history, or writes elsewhere."""
_UNHARMED: Final = frozenset({"add", "mv", "rm"})
"""Sub-commands without an option that harms, or whose words are all read as files."""
_VALUES: Final = {
    "commit": re.compile(
        r"-[aqvsnioez]*[mFCct]|--(?:message|file|author|date|trailer|template|reuse-message|reedit-message)"
    ),
    **dict.fromkeys(
        ("log", "shortlog", "rev-list"),
        re.compile(r"-[nSGL]|--(?:author|committer|grep|since|until|after|before|max-count|skip)"),
    ),
    **dict.fromkeys(("diff", "show", "blame"), re.compile(r"-[SGL]")),
    "grep": re.compile(r"-[nilwEFP]*[eABCm]"),
    **dict.fromkeys(
        ("merge", "cherry-pick", "revert"), re.compile(r"-[mX]|--(?:message|mainline|strategy-option)")
    ),
}
"""Options that take the next word for their value, whatever it is."""


def check_positions(name: str, rest: Sequence[Word], ground: Ground) -> None:
    """Refuse a word where an option may stand that may turn out to be one.

    A name that nothing in the command line sets has its value from the surroundings, which is no option.
    """
    if name in _UNHARMED:
        return
    for at, word in enumerate(rest):
        before = rest[at - 1].text if at else ""
        if word.text == "--" and not before.startswith("-"):
            return
        if name in _VALUES and _VALUES[name].fullmatch(before):
            continue
        strict = name in _STRICT
        if (strict and word.shape[:1] in {"*", "?", "["}) or (
            word.shape[:1] == OPENED and (strict or not _is_plain(word, ground))
        ):
            raise RefusedCommandError(
                "E_CMD_DYNAMIC",
                f"git {name} takes {word.text[:80]}, which may be an option; a path goes after --, a revision is written out"
                " or asked for where it stands: git diff $(git rev-parse main)",
            )


def _is_plain(word: Word, ground: Ground) -> bool:
    """Whether a word that an expansion begins is certainly no option."""
    end = next((at for at, kind in enumerate(word.shape) if kind != OPENED), len(word.shape))
    rest, first = word.text[end:], Word(word.text[:end], word.shape[:end])
    if rest.startswith("-"):
        return False
    if first.text == REVISION:
        return True
    if first.expanded is None or any(
        one[-1] in "#/^" or ("…" in one and one != NUMBER[2:-1]) for one in first.expanded
    ):
        return False
    names = set(map(base_name, first.expanded))
    return ground.touched is not None and not ground.touched.intersection(names)
