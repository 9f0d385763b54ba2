"""Which files the tests of find pick out. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from policy.command_protected import is_protected, widened
from policy.shell_words import OPENED, Word

NAMING: Final = frozenset({"-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex"})
"""Tests that pick out files by their names."""
_NEGATED: Final = (["!"], ["-not"])
_GLOBAL: Final = frozenset({"-H", "-L", "-P", "--"})


def starts(texts: Sequence[str]) -> int:
    """Return where find's expression begins: before it stand the folders to look in, and options of find itself."""
    return next(
        (at for at, one in enumerate(texts) if one.startswith(("-", "(", "!")) and not is_global(one)),
        len(texts),
    )


def widest(word: Word) -> str:
    """Return the text of a word with a pattern for what is only known when it runs."""
    return re.sub(
        r"\*+",
        "*",
        "".join("*" if kind == OPENED else char for char, kind in zip(word.text, word.shape, strict=True)),
    )


def is_global(text: str) -> bool:
    """Whether a word is an option of find itself."""
    return text in _GLOBAL or re.fullmatch(r"-O\d", text) is not None


def narrow(tests: Sequence[str]) -> bool:
    """Whether what is found has been named: every alternative needs a name with letters in it, and none says *not*."""
    named = sum(1 for test, value in itertools.pairwise(tests) if test in NAMING and re.search(r"\w", value))
    depth = 0
    for test in tests:
        depth += {"(": 1, ")": -1}.get(test, 0)
        if test in {"!", "-not", ","} or (test in {"-o", "-or"} and depth == 0):
            return False
    return named >= 1 + sum(test in {"-o", "-or"} for test in tests)


def chooses_protected(tests: Sequence[str]) -> bool:
    """Whether a test picks something out by a protected name, rather than passing it by."""
    return any(
        test in NAMING and is_protected(value) and tests[number - 1 : number] not in _NEGATED
        for number, (test, value) in enumerate(itertools.pairwise(tests))
    )


def spares_git(tests: Sequence[str]) -> bool:
    """Whether find passes by git's own files: it is told to, or takes only names that none of them has."""
    named = 0
    for at, (test, value) in enumerate(itertools.pairwise(tests)):
        if test not in NAMING:
            continue
        negated = tests[at - 1 : at] in _NEGATED
        if ".git" in value.split("/") and (negated or "-prune" in tests):
            return True
        named += not negated and not _matches_git(test, value)
    return "," not in tests and named >= 1 + sum(test in {"-o", "-or"} for test in tests)


def _matches_git(test: str, value: str) -> bool:
    """Whether a test may pick out a file of git's own."""
    if "regex" in test:
        return re.search(r"\.\w+[)$]*\Z", value) is None
    if test in {"-name", "-iname"}:
        return any(fnmatchcase(one.lower(), widened(value)) for one in _GITS_OWN)
    return any(
        fnmatchcase(f"{root}.git/{one}".lower(), widened(value)) for one in _GITS_OWN for root in ("", "./")
    )


_GITS_OWN: Final = (
    *("HEAD", "config", "index", "description", "packed-refs", "ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG"),
    *(
        "hooks",
        "hooks/pre-commit",
        "hooks/pre-commit.sample",
        "pre-commit",
        "pre-commit.sample",
        "info/exclude",
        "exclude",
    ),
    *(
        "logs/HEAD",
        "refs/heads/main",
        "main",
        "master",
        "objects",
        "objects/pack/pack-0.idx",
        "pack-0.idx",
        "pack-0.pack",
    ),
)
"""Names of files and folders that git keeps for itself."""
