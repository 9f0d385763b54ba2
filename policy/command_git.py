"""What an agent may ask of git, by the words alone: a closed list, and what would lose or publish work refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from policy.command_files import named_files
from policy.command_git_words import check_positions
from policy.command_options import given
from policy.command_paths import Ground, check_pathspecs, check_unhidden, check_written
from policy.shell_words import RefusedCommandError, Word

_GLOBAL: Final = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"})
_ABOUT: Final = frozenset({"--version", "--help", "-h", "-v"})

READING: Final = frozenset(
    {
        *(
            "status",
            "diff",
            "log",
            "show",
            "blame",
            "annotate",
            "grep",
            "ls-files",
            "ls-tree",
            "rev-parse",
            "rev-list",
        ),
        *(
            "cat-file",
            "describe",
            "shortlog",
            "merge-base",
            "name-rev",
            "diff-tree",
            "diff-index",
            "diff-files",
        ),
        *("for-each-ref", "show-ref", "count-objects", "check-ignore", "check-attr", "whatchanged", "cherry"),
        *("show-branch", "version", "range-diff", "fsck"),
    }
)
"""Sub-commands that only read, once the options that run or write something are refused."""
_CHANGING: Final = frozenset(
    {
        "add",
        "commit",
        "rm",
        "mv",
        "apply",
        "am",
        "merge",
        "cherry-pick",
        "revert",
        "init",
        "fetch",
        "pull",
        "hash-object",
    }
)
_LISTING: Final = {
    "config": ("--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"),
    "worktree": ("list",),
    "submodule": ("status",),
    "remote": ("-v", "--verbose", "show", "get-url"),
    "notes": ("list", "show"),
    "reflog": ("show", "list", "exists"),
    "bundle": ("verify", "list-heads"),
}
"""Sub-commands of which only some forms are allowed: the first word after them says which."""

_SCOPES: Final = frozenset({"--local", "--global", "--system", "--worktree", "--short", "-q", "--quiet"})
_KEY: Final = re.compile(r"[A-Za-z][\w-]*\.[\w./:*-]+", re.ASCII)
"""The name of a setting, without which git config says nothing."""
_READING_FORMS: Final = {
    "branch": {"", "-a", "-r", "-v", "-vv", "--all", "--remotes", "--list", "--show-current", "--verbose"},
    "tag": {"", "-l", "--list", "-n"},
    "stash": {"list", "show"},
}
"""Sub-commands that only read when the first word after them is one of these."""

_STRATEGIES: Final = frozenset({"ort", "recursive", "resolve", "octopus", "ours", "subtree"})
_FETCH_CHANGES: Final = (
    *("--force", "--prune", "--prune-tags", "--refmap", "--stdin", "--update-head-ok", "--set-upstream"),
)
_RUNS: Final = ("--ext-diff", "--textconv", "--filters", "--open-files-in-pager", "--upload-pack", "--exec")
_VALUED: Final = (
    *("--create", "--force-create", "--orphan", "--source", "--conflict", "--exclude", "--message", "--file"),
    *("--pathspec-from-file", "--depth", "--deepen", "--refmap", "--server-option", "--jobs", "--format"),
)
_GLUED: Final = frozenset("mnSGLUCF")
"""Short options whose value may stand in the same word."""
_VALUED_FLAGS: Final = frozenset("bBcCeFmojsu")
"""Options of the sub-commands judged here that take the next word for their value."""
_HISTORY: Final = frozenset(
    {
        "filter-branch",
        "filter-repo",
        "update-ref",
        "replace",
        "prune",
        "gc",
        "repack",
        "rebase",
        "fast-import",
    }
)
_SENDS: Final = frozenset(
    {"push", "send-pack", "send-email", "request-pull", "http-push", "daemon", "svn", "p4"}
)
_FORCING: Final = ("--force", "--force-with-lease", "--force-if-includes", "--mirror", "--delete", "--prune")
_EVERYTHING: Final = frozenset({".", "./", ":/", ":/:", "*", ":", "..", ":(top)", "/"})


def check_git(words: Sequence[Word], ground: Ground) -> None:
    """Refuse a call of git that is not on the list; ``words`` are those after ``git``."""
    check_unhidden(words, ground, "git")
    if "HOME" in ground.unsure:
        raise RefusedCommandError("E_CMD_ENVIRONMENT", "HOME decides what git runs; leave it as it is")
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        text = words[at].text
        if text in _ABOUT:
            return
        if text not in _GLOBAL:
            raise RefusedCommandError(
                "E_GIT_GLOBAL_OPTION", f"git {text} before the sub-command; call git without it"
            )
        at += 1
    if at == len(words):
        return
    name, rest = words[at], words[at + 1 :]
    if not name.known or name.pattern:
        raise RefusedCommandError("E_CMD_DYNAMIC", "which git sub-command runs is only known when it runs")
    _check_sub(name.text, rest, ground)


def check_git_reading(words: Sequence[Word], ground: Ground) -> None:
    """Refuse every call of git that does more than read."""
    check_git(words, ground)
    rest = [word for word in words if word.text not in _GLOBAL]
    name, operands = (rest[0].text if rest else "--version"), [word.text for word in rest[1:]]
    if any(_is_option(word, "--output", "--lost-found") for word in _options(rest[1:])):
        raise RefusedCommandError("E_CMD_READ_ONLY", "git writes what it finds to a file")
    if name in READING or name in _LISTING or name in _ABOUT:
        return
    forms, first = _READING_FORMS.get(name, set[str]()), operands[0] if operands else ""
    if first in forms and (name != "branch" or first == "--list" or set(operands) <= forms):
        return
    raise RefusedCommandError("E_CMD_READ_ONLY", f"git {name} may change something; this session only reads")


def _check_sub(name: str, rest: Sequence[Word], ground: Ground) -> None:
    if name in _SENDS:
        forced = any(_is_option(word, *_FORCING) or word.text.startswith(("-f", "+")) for word in rest)
        code = "E_GIT_FORCE_PUSH" if forced else "E_GIT_PUSH"
        raise RefusedCommandError(
            code, f"git {name} publishes: agents do not, the run delivers its branch itself"
        )
    if name in _HISTORY:
        raise RefusedCommandError(
            "E_GIT_HISTORY", f"git {name} rewrites or drops history; commit on top instead"
        )
    options = _options(rest)
    for word in options:
        if not _named(name, word):
            raise RefusedCommandError(
                "E_CMD_DYNAMIC", f"git {name} takes an option that is only known when it runs"
            )
        if _is_option(word, *_RUNS) or (name == "grep" and _has_flag(word, "O")):
            raise RefusedCommandError("E_GIT_RUNS", f"git {name} {word.text} runs a program")
        if word.text.startswith(("--output=", "--output-directory=")):
            check_written([_after_equals(word)], ground)
        elif _is_option(word, "--output", "--output-directory") and (
            name in READING or name in _LISTING or name in _READING_FORMS
        ):
            raise RefusedCommandError("E_GIT_OPTION", f"git {name} {word.text}: write it as --output=FILE")
    check_positions(name, rest, ground)
    special = _SPECIAL.get(name)
    if special is not None:
        special(options, rest)
        if name == "rm" and not _spares(options):
            check_written(named_files(rest), ground)
        if (
            name == "checkout"
            or (name == "rm" and not _spares(options))
            or (name == "restore" and _in_tree(options))
        ):
            check_pathspecs(named_files(rest), ground)
    elif name == "init":
        _check_init(options, rest, ground)
    elif name == "mv":
        check_written(named_files(rest), ground)
    elif name in _LISTING and not _asks(name, rest):
        first = rest[0].text if rest else ""
        silent = name == "remote" and first.startswith("-") and len(rest) > 1
        if silent or (first not in _LISTING[name] and (rest or name in {"config", "bundle"})):
            code = (
                "E_GIT_CONFIG"
                if name == "config"
                else "E_GIT_HISTORY"
                if name == "reflog"
                else "E_GIT_COMMAND"
            )
            raise RefusedCommandError(
                code, f"git {name} {first}: only {', '.join(_LISTING[name])} are allowed"
            )
    elif name not in READING and name not in _CHANGING and not _asks(name, rest):
        raise RefusedCommandError("E_GIT_COMMAND", f"git {name} is not among what an agent may ask of git")


def _asks(name: str, rest: Sequence[Word]) -> bool:
    """Whether a sub-command that may change something is only asked for a value, or told to print what it makes."""
    operands = [word for word in rest if word.text not in _SCOPES]
    if name == "config":
        return len(operands) == 1 and _KEY.fullmatch(operands[0].text) is not None
    if name == "symbolic-ref":
        return len(operands) == 1 and operands[0].known and not operands[0].text.startswith("-")
    return name == "format-patch" and "--stdout" in [word.text for word in rest]


def _reset(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "reset")
    if any(_is_option(word, "--hard", "--merge", "--keep") for word in options):
        raise RefusedCommandError(
            "E_GIT_DISCARD", "git reset --hard loses work; undo the files by name instead"
        )


def _clean(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "clean")
    dry = False
    for word in options:
        # What stands after an -e is a pattern: the rest of the word, or else the next word, which may begin with -.
        short = not word.text.startswith("--")
        dry = dry or ("n" in word.text.partition("e")[0] if short else _is_option(word, "--dry-run"))
        if _takes(word):
            break
    if not dry or any(word.text.startswith("--no") for word in rest):
        raise RefusedCommandError(
            "E_GIT_DISCARD", "git clean removes what git does not keep; remove files by name"
        )


def _checkout(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "checkout")
    if any(
        _is_option(word, "--force", "--force-create", "--discard-changes", "--pathspec-from-file")
        for word in options
    ) or any(_has_flag(word, flag) for word in options for flag in "fBC"):
        raise RefusedCommandError(
            "E_GIT_DISCARD", "it throws changes away or moves a branch; name files instead"
        )
    _not_everything(rest)


def _restore(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "restore")
    if any(_is_option(word, "--pathspec-from-file") for word in options):
        raise RefusedCommandError("E_GIT_DISCARD", "which files it restores is not said here; name them")
    if _in_tree(options):
        _not_everything(rest)


def _in_tree(options: Sequence[Word]) -> bool:
    """Whether restore changes files, not only what is staged."""
    return not any(_is_option(word, "--staged") or _has_flag(word, "S") for word in options) or any(
        _is_option(word, "--worktree", "--no-staged") or _has_flag(word, "W") for word in options
    )


def _branch(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "branch")
    for word in options:
        if _is_option(
            word, "--delete", "--force", "--move", "--copy", "--edit-description", "--set-upstream-to"
        ) or any(_has_flag(word, flag) for flag in "dDfmMcCu"):
            raise RefusedCommandError(
                "E_GIT_HISTORY", "git branch deletes, moves or forces a branch; make a new one"
            )


def _tag(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "tag")
    if any(
        _is_option(word, "--delete", "--force") or _has_flag(word, "d") or _has_flag(word, "f")
        for word in options
    ):
        raise RefusedCommandError("E_GIT_HISTORY", "git tag deletes or moves a tag; make a new one")


def _stash(_options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "stash")
    first = rest[0].text if rest else "push"
    if first not in {"push", "list", "show", "pop", "apply", "save"} and not first.startswith("-"):
        raise RefusedCommandError("E_GIT_DISCARD", f"git stash {first} loses what was put away; keep it")


def _commit(options: Sequence[Word], _rest: Sequence[Word]) -> None:
    for word in options:
        if _is_option(word, "--amend", "--fixup", "--squash"):
            raise RefusedCommandError(
                "E_GIT_HISTORY", "git commit --amend rewrites history; make a new commit"
            )


def _fetch(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _known(rest, "fetch")
    odd = [
        word.text
        for word in rest
        if not word.text.startswith("-") and any(char in word.text for char in ":+@")
    ]
    if odd or any(
        _is_option(word, *_FETCH_CHANGES) or any(_has_flag(word, flag) for flag in "fpPu") for word in options
    ):
        raise RefusedCommandError(
            "E_GIT_REMOTE", "git fetch and pull take the name of a remote and of a branch only"
        )
    if any(_is_option(word, "--rebase") or _has_flag(word, "r") for word in options):
        raise RefusedCommandError("E_GIT_HISTORY", "git pull --rebase rewrites history; merge instead")


def _remove(options: Sequence[Word], rest: Sequence[Word]) -> None:
    if any(_is_option(word, "--pathspec-from-file") for word in options):
        raise RefusedCommandError("E_GIT_DISCARD", "which files it removes is not said here; name them")
    if not _spares(options):
        _not_everything(rest)


def _spares(options: Sequence[Word]) -> bool:
    """Whether the options of rm leave the files where they are."""
    return any(
        _is_option(word, "--cached", "--dry-run") or _has_flag(word, "n") for word in options
    ) and not any(word.text.startswith("--no") for word in options)


def _merge(_options: Sequence[Word], rest: Sequence[Word]) -> None:
    """Refuse a strategy that git does not bring along: it is a program of that name."""
    found = given(rest, short="smXFS", valued="--strategy --strategy-option --message --file --into-name")
    if any(not one.known or one.text not in _STRATEGIES for one in found.values("-s", "--strategy")):
        raise RefusedCommandError("E_GIT_RUNS", "a strategy of merging is a program; take one of git's own")


def _pull(options: Sequence[Word], rest: Sequence[Word]) -> None:
    _fetch(options, rest)
    _merge(options, rest)


def _apply(options: Sequence[Word], _rest: Sequence[Word]) -> None:
    if any(_is_option(word, "--unsafe-paths", "--directory", "--build-fake-ancestor") for word in options):
        raise RefusedCommandError("E_GIT_OPTION", "git apply changes files outside of where it stands")


_SPECIAL: Final[dict[str, Callable[[Sequence[Word], Sequence[Word]], None]]] = {
    "reset": _reset,
    "clean": _clean,
    "checkout": _checkout,
    "switch": _checkout,
    "restore": _restore,
    "branch": _branch,
    "tag": _tag,
    "stash": _stash,
    "commit": _commit,
    "fetch": _fetch,
    "pull": _pull,
    "merge": _merge,
    "rm": _remove,
    "apply": _apply,
    "am": _apply,
}


def _known(rest: Sequence[Word], name: str) -> None:
    """Refuse a word before ``--`` that may turn out to be an option."""
    for at, word in enumerate(rest):
        if word.text == "--" and not (at and _takes(rest[at - 1])):
            return
        if word.shape[:1] in {"$", "*", "?", "["}:
            raise RefusedCommandError(
                "E_CMD_DYNAMIC", f"git {name} takes a word that is only known when it runs"
            )


def _not_everything(rest: Sequence[Word]) -> None:
    for word in rest:
        text = word.text.rstrip("/") or "/"
        if word.text.startswith("-"):
            continue
        # Magic (``:!x``) names everything but something.
        if text in _EVERYTHING or text.startswith((":", "*")) or not _says_something(text):
            raise RefusedCommandError(
                "E_GIT_DISCARD", f"{word.text} throws away every change; name the files"
            )


def _says_something(text: str) -> bool:
    return re.search(r"\w", re.sub(r"\[[^\]]*\]", "", text)) is not None


def _check_init(options: Sequence[Word], rest: Sequence[Word], ground: Ground) -> None:
    _known(rest, "init")
    for word in options:
        if not (
            word.text in {"-q", "--quiet", "--bare", "-b"}
            or re.match(r"--initial-branch=|--object-format=|-b\w", word.text)
        ):
            raise RefusedCommandError("E_GIT_OPTION", f"git init {word.text} is not among what is allowed")
    check_written([word for word in named_files(rest) if word.text], ground)


def _options(rest: Sequence[Word]) -> list[Word]:
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


def _named(sub: str, word: Word) -> bool:
    """Whether it is known which option a word is, be its value known or not."""
    name = word.shape.partition("=")[0]
    if word.text.startswith("--"):
        return not any(char in name for char in "$*?[")
    return (word.known and not word.pattern) or (sub != "grep" and word.text[1:2] in _GLUED)


def _takes(word: Word) -> bool:
    """Whether a word is an option that takes the next word for its value."""
    if word.text.startswith("--"):
        return "=" not in word.text and _is_option(word, *_VALUED)
    return word.text.startswith("-") and word.text[-1:] in _VALUED_FLAGS


def _is_option(word: Word, *names: str) -> bool:
    """Whether a word is one of the long options, written out or cut short as git allows."""
    given = word.text.partition("=")[0]
    return len(given) >= len("--x") and any(name.startswith(given) for name in names)


def _has_flag(word: Word, flag: str) -> bool:
    """Whether a cluster of short options has the flag."""
    return word.text.startswith("-") and not word.text.startswith("--") and flag in word.text[1:]


def _after_equals(word: Word) -> Word:
    at = word.text.index("=") + 1
    return word.cut(at)
