"""Which files the tests of find pick out. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
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
    """Whether what is found has been named: every alternative needs a name with letters in it, and none says *not*.

    What is passed by first, or left out by its name besides, may be anything.
    """
    tests = _without_left_out(tests[starts(tests) :])
    named = sum(1 for test, value in itertools.pairwise(tests) if test in NAMING and re.search(r"\w", value))
    depth = 0
    for test in tests:
        depth += {"(": 1, ")": -1}.get(test, 0)
        if test in {"!", "-not", ","} or (test in _OR and depth == 0):
            return False
    return named >= 1 + sum(test in _OR for test in tests)


def _without_left_out(tests: Sequence[str]) -> Sequence[str]:
    """Return tests without those that pass names by where they begin, and without names that are left out."""
    while len(tests) >= _PASSING and tests[0] in NAMING and tests[2] == "-prune" and tests[3] in _OR:
        tests = tests[_PASSING:]
    kept: list[str] = []
    depth = at = 0
    while at < len(tests):
        depth += {"(": 1, ")": -1}.get(tests[at], 0)
        if depth == 0 and [tests[at]] in _NEGATED and len(tests) > at + 2 and tests[at + 1] in NAMING:
            at += 3
            continue
        kept.append(tests[at])
        at += 1
    return kept


def chooses_protected(tests: Sequence[str]) -> bool:
    """Whether a test picks something out by a protected name, rather than passing it by."""
    passed = [
        at for at, pair in enumerate(itertools.pairwise(tests)) if pair[0] == "-prune" and pair[1] in _OR
    ]
    tests = tests[passed[-1] + 1 :] if passed else tests
    return any(
        test in NAMING
        and is_protected(value)
        and tests[number - 1 : number] not in _NEGATED
        and not (tests[number - 1 : number] == ["("] and tests[number - 2 : number - 1] in _NEGATED)
        for number, (test, value) in enumerate(itertools.pairwise(tests))
    )


def spares_git(
    words: Sequence[Word], wide: Sequence[str], acting: AbstractSet[str], roots: Sequence[str]
) -> bool:
    """Whether find does nothing of ``acting`` to git's own files: it passes them by, or names what none of them is.

    ``wide`` are the words with patterns for what is only known when it runs; ``roots`` the folders that git keeps its
    files in, as find is told to begin there.
    """
    begins = starts([word.text for word in words])
    tests = wide[begins:]
    if len(tests) > _MAX_TESTS or sum(test in {"(", "!", "-not"} for test in tests) > _MAX_DEPTH:
        return False
    certain = [word.text if word.known else "" for word in words[begins:]]
    reach = _Reach(tests, certain, acting)
    return len(roots) <= _MAX_DEPTH and all(map(reach.spares, roots))


class _Reach:
    """What the expression of find may do to one path: tests that are not read here may say either."""

    def __init__(self, tests: Sequence[str], certain: Sequence[str], acting: AbstractSet[str]) -> None:
        self._tests, self._certain, self._acting = tests, certain, acting
        self._at = 0
        self._path = ""
        self._acts = False
        shallow = all(pair[1] in {"0", "1"} for pair in itertools.pairwise(tests) if pair[0] == "-mindepth")
        self._prunes = shallow and not {"-depth", "-d", "-delete"}.intersection(tests)
        self._prints = not any(test in _ACTIONS for test in tests)

    def spares(self, root: str) -> bool:
        """Whether nothing is done to what git keeps below a folder."""
        kept = f"{root}.git" if root.endswith("/") else f"{root}/.git"
        try:
            if self._done(kept):
                return False
            if self._pruned or self._deepest() == 1:
                return True
            return not any(self._done(f"{kept}/{one}") for one in _GITS_OWN)
        except _OddError:
            return False

    def _deepest(self) -> int:
        found = [value for test, value in itertools.pairwise(self._tests) if test == "-maxdepth"]
        return int(found[0]) if found and re.fullmatch(r"\d{1,3}", found[0]) else 1_000

    def _done(self, path: str) -> bool:
        """Whether something may be done to a path."""
        self._at, self._path, self._acts = 0, path, False
        ends = self._list(frozenset({False}), live=True) if self._tests else frozenset({(True, False)})
        if self._at < len(self._tests):
            raise _OddError
        self._pruned = all(pruned for _, pruned in ends)
        return self._acts or (self._prints and any(result for result, _ in ends))

    def _peek(self) -> str:
        return self._tests[self._at] if self._at < len(self._tests) else ""

    def _list(self, begun: frozenset[bool], *, live: bool) -> _Ends:
        ends = self._either(begun, live=live)
        while self._peek() == ",":
            self._at += 1
            ends = self._either(frozenset(pruned for _, pruned in ends), live=live)
        return ends

    def _either(self, begun: frozenset[bool], *, live: bool) -> _Ends:
        ends = self._all(begun, live=live)
        while self._peek() in _OR:
            self._at += 1
            failed = frozenset(pruned for result, pruned in ends if not result)
            after = self._all(failed, live=live and bool(failed))
            ends = frozenset(one for one in ends if one[0]) | after
        return ends

    def _all(self, begun: frozenset[bool], *, live: bool) -> _Ends:
        ends = self._not(begun, live=live)
        while self._peek() and self._peek() not in {")", ",", *_OR}:
            self._at += self._peek() in {"-a", "-and"}
            passed = frozenset(pruned for result, pruned in ends if result)
            after = self._not(passed, live=live and bool(passed))
            ends = frozenset(one for one in ends if not one[0]) | after
        return ends

    def _not(self, begun: frozenset[bool], *, live: bool) -> _Ends:
        turned = False
        while [self._peek()] in _NEGATED:
            turned = not turned
            self._at += 1
        return frozenset((result != turned, pruned) for result, pruned in self._one(begun, live=live))

    def _one(self, begun: frozenset[bool], *, live: bool) -> _Ends:
        test = self._peek()
        self._at += 1
        if test == "(":
            ends = self._list(begun, live=live)
            if self._peek() != ")":
                raise _OddError
            self._at += 1
            return ends
        if not test.startswith("-"):
            raise _OddError
        self._acts = self._acts or (live and test in self._acting)
        if test == "-prune":
            return frozenset((True, pruned or self._prunes) for pruned in begun)
        return frozenset((result, pruned) for result in self._results(test) for pruned in begun)

    def _results(self, test: str) -> Sequence[bool]:
        """Return what a test may say of the path, and go on after its values."""
        at = self._at
        if test in _EXECUTING:
            while self._peek() not in {"", ";"} and not (
                self._peek() == "+" and self._tests[self._at - 1] == "{}"
            ):
                self._at += 1
            self._at += 1
            return (True, False)
        self._at += _VALUES.get(test, 1 if test.startswith("-newer") else 0)
        if self._at > len(self._tests):
            raise _OddError
        if test in NAMING:
            return _says(test, self._tests[at], self._certain[at], self._path)
        if test == "-false":
            return (False,)
        if test == "-type" and self._path.endswith("/.git"):
            return ("d" in self._tests[at].split(","),)
        return (True,) if test in _TRUE else (True, False)


class _OddError(Exception):
    """An expression of find that is not read here."""


_Ends = frozenset[tuple[bool, bool]]
"""How an expression may end: what it says, and whether the path has been passed by."""


def _says(test: str, wide: str, certain: str, path: str) -> Sequence[bool]:
    """Return what a test of names may say of a path."""
    if "regex" in test:
        found = _PLAIN_END.fullmatch(wide)
        kinds = set() if found is None else set(re.findall(r"\w+", found[1]))
        return (True, False) if not kinds or kinds & _GITS_KINDS else (False,)
    subject = path.rpartition("/")[2] if test in {"-name", "-iname"} else path
    if not fnmatchcase(subject.lower(), widened(wide)):
        return (False,)
    plain = not set(certain) & set("[]\\") and fnmatchcase(subject, certain)
    return (True,) if plain else (True, False)


_OR: Final = frozenset({"-o", "-or"})
_PASSING: Final = 4
"""How many words say that a name is passed by: ``-name x -prune -o``."""
_MAX_TESTS: Final = 400
_MAX_DEPTH: Final = 16
_EXECUTING: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
PRINTING: Final = frozenset({"-print", "-print0", "-printf", "-ls"})
"""What find does that prints what it finds."""
_ACTIONS: Final = PRINTING | _EXECUTING | {"-delete", "-fls", "-fprint", "-fprint0", "-fprintf"}
_TRUE: Final = PRINTING | {
    *(
        "-true",
        "-depth",
        "-d",
        "-maxdepth",
        "-mindepth",
        "-xdev",
        "-mount",
        "-daystart",
        "-follow",
        "-noleaf",
    ),
    *("-warn", "-nowarn", "-regextype", "-ignore_readdir_race", "-noignore_readdir_race"),
}
_VALUES: Final = {
    **dict.fromkeys(NAMING, 1),
    **dict.fromkeys(
        ("-maxdepth", "-mindepth", "-regextype", "-type", "-xtype", "-size", "-perm", "-user"), 1
    ),
    **dict.fromkeys(("-group", "-uid", "-gid", "-mtime", "-mmin", "-ctime", "-cmin", "-atime", "-amin"), 1),
    **dict.fromkeys(("-lname", "-ilname", "-iwholename", "-inum", "-links", "-samefile", "-fstype"), 1),
    **dict.fromkeys(("-anewer", "-cnewer", "-used", "-context", "-printf", "-fls", "-fprint", "-fprint0"), 1),
    "-fprintf": 2,
}
"""How many words after it belong to a test or an action."""
_PLAIN_END: Final = re.compile(r"[^|]*(?:\\\.|\[\.\])(\w+|\\?\(\w+(?:\\?\|\w+)*\\?\))\$?", re.ASCII)
"""A regular expression of paths that end with one of some kinds."""
_GITS_KINDS: Final = frozenset({"git", "sample", "idx", "pack", "lock", "rev", "bitmap", "graph", "keep"})
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
    *(
        "logs",
        "info",
        "refs",
        "refs/heads",
        "refs/tags",
        "refs/remotes",
        "branches",
        "objects/pack",
        "objects/info",
    ),
    *(
        "objects/00/0123456789abcdef0123456789abcdef012345",
        "refs/remotes/origin/HEAD",
        "refs/tags/v1.0",
        "logs/refs",
    ),
    *(
        "modules",
        "worktrees",
        "lfs",
        "rebase-merge",
        "rebase-apply",
        "index.lock",
        "MERGE_HEAD",
        "MERGE_MSG",
        "shallow",
    ),
)
"""Names of files and folders that git keeps for itself."""
