"""What the pipelines print that everyday lines take words from: paths, revisions, numbers, names of files. Pure.

A word that stands for it says no more than is certain; whatever else a pipeline prints is only known when it runs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from policy.command_found import PRINTING, chooses_protected, narrow, spares_git, starts, widest
from policy.command_options import Given, given
from policy.command_protected import PROTECTED, is_plain, is_protected, widened
from policy.shell_words import (
    CHOSEN,
    FILES,
    NAME,
    NUMBER,
    REVISION,
    Command,
    Word,
    literal,
    opened,
)

TAKEN: Final = frozenset(
    {
        *(
            "git",
            "pwd",
            "dirname",
            "basename",
            "mktemp",
            "date",
            "seq",
            "nproc",
            "wc",
            "find",
            "fd",
            "fdfind",
            "rg",
            "grep",
            "ls",
        ),
        *("head", "tail", "sort", "uniq"),
    }
)
"""Programs that are taken at their word: no function may have the name of one."""
MADE: Final = "${TMPDIR}/tmp.…"
"""What stands for a file or a folder that mktemp made."""

_UNKNOWN: Final = opened()
_REVISION: Final = re.compile(r"[\w@][\w./@{}^~:-]*", re.ASCII)
_ASKING: Final = re.compile(
    r"--(?:short|verify|quiet|abbrev-ref|all|tags|always|reverse|max-parents=0|abbrev=\d+|max-count=\d+|short=\d+|no-merges"
    r"|show-current|sort=[\w:-]+|list|merged|contains|points-at|first-parent|exact-match|fork-point|octopus)"
    r"|-[nql]|-n?\d+|\d+",
    re.ASCII,
)
_ASKED: Final = frozenset({"merge-base", "rev-parse", "rev-list", "describe", "symbolic-ref", "tag"})
"""Sub-commands of git that print revisions, whose names begin with no hyphen."""
_HASHES: Final = re.compile(r"--(?:format|pretty)=(?:format:|tformat:)?%[hH]")
_LOGGED: Final = re.compile(
    r"-n?\d*|\d+|--(?:all|no-merges|merges|reverse|first-parent|max-count=\d+|skip=\d+)"
)
_DATE: Final = re.compile(
    r"\+%[YmdHMSsFTyjINbBaAuV](?:%[YmdHMSsFTyjINbBaAuV]|[\w:+-])*|-[uI]|--utc|--iso-8601", re.ASCII
)
_MKTEMP: Final = re.compile(
    r"-[dqt]+|--(?:directory|quiet|tmpdir)|--suffix=[\w.-]+|/tmp/[\w.-]+|\w[\w.-]*", re.ASCII
)
_FILTERS: Final = {
    "head": re.compile(r"-\w*|\d+|--(?:lines|bytes)=\d+", re.ASCII),
    "tail": re.compile(r"-\w*|[+]?\d+|--(?:lines|bytes)=\+?\d+", re.ASCII),
    "sort": re.compile(
        r"-[urnRVzfh]+|--(?:unique|reverse|version-sort|zero-terminated|numeric-sort)", re.ASCII
    ),
    "uniq": re.compile(r"-[duiz]+", re.ASCII),
}
"""Programs that print some of the lines that they are sent, with what they may be given for it."""
_PICKING: Final = re.compile(r"-[vEFPiwxze]+|--(?:invert-match|null-data)", re.ASCII)


def printed(pipeline: Sequence[Command]) -> Word:
    """Return what a pipeline prints."""
    if not pipeline or any(_odd(one) for one in pipeline):
        return _UNKNOWN
    first, *filters = pipeline
    name, words = _called(first)
    if filters and _called(filters[-1])[0] == "wc":
        return _wc(filters[-1].words[1:])
    found = _PRINTS[name](words) if name in _PRINTS else _UNKNOWN
    if not filters or found.text == _UNKNOWN.text:
        return found
    return found if found.text in {FILES, CHOSEN, REVISION} and all(map(_filters, filters)) else _UNKNOWN


def listed_name(command: Command) -> str | None:
    """Return the name that a plain ``read`` sets to each of the files that a pipe brings, None for any other command."""
    words = command.unwrapped
    piped = command.piped is not None and command.piped.text in {FILES, CHOSEN}
    if not piped or len(words) < 2 or words[0].text != "read" or not all(one.known for one in words):  # noqa: PLR2004
        return None
    options = " ".join(one.text for one in words[1:-1])
    plain = NAME.fullmatch(words[-1].text) and options in {"", "-r", "-d ", "-r -d ", "-rd ", "-d  -r"}
    return words[-1].text if plain else None


def _odd(command: Command) -> bool:
    """Whether a command has other input or other surroundings than it stands there."""
    return any(
        one.operator.startswith("<") and _called(command)[0] != "wc" for one in command.redirects
    ) or any(name not in {"LC_ALL", "LANG"} for name, _ in command.assignments)


def _called(command: Command) -> tuple[str, Sequence[Word]]:
    return (command.words[0].text, command.words[1:]) if command.words else ("", ())


def _filters(command: Command) -> bool:
    """Whether a command prints some of the lines that it is sent, and no others."""
    name, words = _called(command)
    if name in _FILTERS:
        return all(one.known and _FILTERS[name].fullmatch(one.text) for one in words)
    options = [one for one in words if one.text.startswith("-")]
    return (
        name in {"grep", "rg"}
        and len(words) == len(options) + 1
        and all(one.known and _PICKING.fullmatch(one.text) for one in options)
    )


def _pwd(words: Sequence[Word]) -> Word:
    return opened("${PWD}") if all(one.text == "-L" for one in words) else _UNKNOWN


def _dirname(words: Sequence[Word]) -> Word:
    path = _path(words)
    if path is None or path.text.endswith("/"):
        return _UNKNOWN
    cut = path.text.rfind("/")
    if path.known or (cut > 0 and path.cut(cut).known and not path.pattern):
        return path.cut(0, cut) if cut > 0 else literal("/" if cut == 0 else ".")
    named = path.variables or ()
    return opened(f"${{{named[0]}^}}") if path.text == f"${{{''.join(named)}}}" else _UNKNOWN


def _basename(words: Sequence[Word]) -> Word:
    if len(words) > 2 or any(one.text.startswith("-") for one in words):  # noqa: PLR2004 - a path and a suffix
        return _UNKNOWN
    path = _path(words[:1])
    named = () if path is None else path.variables or ()
    if path is not None and path.text == f"${{{''.join(named)}}}":
        return opened(f"${{{named[0]}/}}")
    if path is None or not path.known or not all(one.known for one in words):
        return _UNKNOWN
    last = posixpath.basename(path.text.rstrip("/"))
    return literal(last.removesuffix(words[1].text) if len(words) > 1 and last != words[1].text else last)


def _path(words: Sequence[Word]) -> Word | None:
    """Return the only operand of a program that takes a path apart."""
    operands = [one for one in words if one.text != "--"]
    if len(operands) != 1 or operands[0].text.startswith("-") or operands[0].pattern or not operands[0].text:
        return None
    return operands[0]


def _mktemp(words: Sequence[Word]) -> Word:
    plain = all(one.known and _MKTEMP.fullmatch(one.text) for one in words)
    # A template without a folder is made where the program stands.
    here = any(one.text[:1] not in {"-", "/"} for one in words) and not any(
        "t" in one.text for one in words if one.text[:1] == "-"
    )
    if not plain or here:
        return _UNKNOWN
    return Word(MADE, "$" * len("${TMPDIR}") + '"' * (len(MADE) - len("${TMPDIR}")))


def _date(words: Sequence[Word]) -> Word:
    told = any(one.text.startswith(("+", "-I", "--iso")) for one in words)
    return (
        opened(NUMBER) if told and all(one.known and _DATE.fullmatch(one.text) for one in words) else _UNKNOWN
    )


def _number(words: Sequence[Word]) -> Word:
    """Return what seq and nproc print, whatever they are given: a format may say something else."""
    return _UNKNOWN if any(re.match(r"-\w*[fs]|--", one.text) for one in words) else opened(NUMBER)


def _wc(words: Sequence[Word]) -> Word:
    counts = all(re.fullmatch(r"-[lwcmL]+|--(?:lines|words|bytes|chars)", one.text) for one in words)
    return opened(NUMBER) if counts else _UNKNOWN


def _git(words: Sequence[Word]) -> Word:
    words = words[1:] if words and words[0].text == "--no-pager" else words
    sub, rest = (words[0].text, words[1:]) if words else ("", ())
    texts = [one.text for one in rest]
    if sub == "rev-parse" and texts == ["--show-toplevel"]:
        return opened("${PWD}")
    if sub in _ASKED or (sub == "branch" and texts == ["--show-current"]):
        plain = all(one.known and not one.pattern for one in rest)
        asked = all(
            _ASKING.fullmatch(one) or (sub == "tag" and one[:1] != "-") or _is_revision(one) for one in texts
        )
        return opened(REVISION) if plain and asked else _UNKNOWN
    if sub == "log":
        return _logged(rest)
    if any(re.match(r"--no-index|[/~]|\.\./", one) or is_protected(one) for one in texts):
        return _UNKNOWN
    if sub == "ls-files":
        odd = any(re.match(r"--(?:format|eol|stage|debug|re)|-\w*[stvfu]", one) for one in texts)
        return _UNKNOWN if odd else opened(FILES)
    if sub in {"diff", "show", "diff-tree"} and "--name-only" in texts:
        return opened(FILES) if sub != "show" or "--format=" in texts else _UNKNOWN
    return opened(FILES) if sub == "grep" and _lists(texts) else _UNKNOWN


def _is_revision(text: str) -> bool:
    """Whether git can only take a word for a revision; one that it does not know, it prints as it is."""
    return _REVISION.fullmatch(text) is not None and is_plain(text)


def _logged(words: Sequence[Word]) -> Word:
    """Return what git log prints where that is nothing but hashes."""
    texts = [one.text for one in words]
    until = texts.index("--") if "--" in texts else len(texts)
    said = [one for one in words[:until] if not _HASHES.fullmatch(one.text)]
    plain = all(one.known and (_LOGGED.fullmatch(one.text) or _is_revision(one.text)) for one in said)
    return opened(REVISION) if plain and len(said) < until else _UNKNOWN


def _lists(texts: Sequence[str]) -> bool:
    """Whether a search prints the names of the files alone."""
    return any(
        re.fullmatch(r"-[a-zA-Z]*l[a-zA-Z]*|--files-with(?:out)?-match(?:es)?|--name-only", one)
        for one in texts
    )


def _within(words: Sequence[Word]) -> bool:
    """Whether all paths stay in the workspace, past nothing that is protected."""
    return all(one.known and is_plain(one.text.removeprefix("./") or "a") for one in words)


def _searched(found: Given, *, listing: bool = False) -> list[Word]:
    """Return the paths that a search is given: all operands but the pattern."""
    return found.operands if listing or found.has("-e", "-f", "--regexp", "--file") else found.operands[1:]


def _grep(words: Sequence[Word]) -> Word:
    texts = [one.text for one in words]
    found = given(
        words,
        short="efmABCDd",
        valued="--include --exclude --exclude-dir --regexp --file --max-count --label",
    )
    paths = _searched(found)
    included = found.values("--include")
    narrowed = (bool(included) and all(re.search(r"\.\w", one.text) for one in included)) or any(
        one.text.strip("/") in {".git", ".*"} for one in found.values("--exclude-dir")
    )
    whole = not paths or any(one.text in {".", "./"} for one in paths)
    paths = [one for one in paths if one.text not in {".", "./"}]
    odd = found.has("-f", "--file", "--label") or any(map(_picks_protected, included))
    return (
        opened(FILES)
        if _lists(texts) and not odd and _within(paths) and (narrowed or not whole)
        else _UNKNOWN
    )


def _picks_protected(glob: Word) -> bool:
    """Whether a search is told by a pattern to look at what is protected, though that is hidden."""
    if glob.text.startswith("!"):
        return not glob.known
    first, slash, _ = glob.text.removeprefix("/").partition("/")
    if not glob.known or is_protected(glob.text):
        return True
    if slash and re.fullmatch(r"\w[\w.-]*", first, re.ASCII):
        return False
    last = widened(glob.text.rpartition("/")[2])
    return any(fnmatchcase(one, last) for one in PROTECTED if not one.endswith(".json"))


def _rg(words: Sequence[Word]) -> Word:
    texts = [one.text for one in words]
    found = given(
        words,
        short="egtTmABCjMrdf",
        valued="--regexp --glob --type --type-not --max-count --iglob --max-depth --file --sort",
    )
    listing = "--files" in texts
    # What is hidden is only searched where an option says so.
    odd = any(re.match(r"-\w*[u.]|--(?:hidden|unr|path|pre|search-zip)", one) for one in texts)
    odd = odd or any(map(_picks_protected, found.values("-g", "--glob", "--iglob")))
    paths = [one for one in _searched(found, listing=listing) if one.text not in {".", "./"}]
    return opened(FILES) if (listing or _lists(texts)) and not odd and _within(paths) else _UNKNOWN


def _fd(words: Sequence[Word]) -> Word:
    found = given(words, short="etdEcjS", valued="--extension --type --max-depth --exclude")
    odd = any(
        re.match(r"-\w*[HuxXlLIB]|--(?:hidden|unr|exec|list|format|base|search|abs|and|follow)", one.text)
        for one in words
    )
    return opened(FILES) if not odd and _within(found.operands[1:]) else _UNKNOWN


def _ls(words: Sequence[Word]) -> Word:
    options = [one for one in words if one.text.startswith("-")]
    plain = all(one.known and re.fullmatch(r"-[1trSX]+", one.text) for one in options)
    return opened(FILES) if plain and _within([one for one in words if one not in options]) else _UNKNOWN


def _find(words: Sequence[Word]) -> Word:
    texts = [one.text for one in words]
    begins = starts(texts)
    tests, folders = (
        [widest(one) for one in words[begins:]],
        [one for one in words[:begins] if not one.text.startswith("-")],
    )
    roots = [one.text for one in folders or [literal(".")] if one.text in {".", "./"}]
    folders = [one for one in folders if one.text not in {".", "./"}]
    odd = any(re.match(r"-(?:exec|ok|f?print[f]|fls|ls|delete|files0|L|follow)", one) for one in texts)
    odd = odd or chooses_protected(tests)
    wide = [*texts[:begins], *tests]
    if odd or not _within(folders) or not spares_git(words, wide, PRINTING, roots):
        return _UNKNOWN
    unknown = [one.text for one in words[begins:] if not one.known]
    return opened(CHOSEN if narrow(tests) and not unknown else FILES)


_PRINTS: Final[dict[str, Callable[[Sequence[Word]], Word]]] = {
    "pwd": _pwd,
    "dirname": _dirname,
    "basename": _basename,
    "mktemp": _mktemp,
    "date": _date,
    "seq": _number,
    "nproc": _number,
    "wc": _wc,
    "git": _git,
    "grep": _grep,
    "rg": _rg,
    "fd": _fd,
    "fdfind": _fd,
    "ls": _ls,
    "find": _find,
}
