"""What an agent may ask of git, by the words alone: a closed list, and what would lose or publish work refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from policy.command_files import named_files
from policy.command_git_options import has_flag, is_named, is_option, options_of
from policy.command_git_rules import SPECIAL, check_known, check_not_everything, in_tree, spares
from policy.command_git_words import check_positions
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

_RUNS: Final = ("--ext-diff", "--textconv", "--filters", "--open-files-in-pager", "--upload-pack", "--exec")
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
    if any(is_option(word, "--output", "--lost-found") for word in options_of(rest[1:])):
        raise RefusedCommandError("E_CMD_READ_ONLY", "git writes what it finds to a file")
    if name in READING or name in _LISTING or name in _ABOUT:
        return
    forms, first = _READING_FORMS.get(name, set[str]()), operands[0] if operands else ""
    if first in forms and (name != "branch" or first == "--list" or set(operands) <= forms):
        return
    raise RefusedCommandError("E_CMD_READ_ONLY", f"git {name} may change something; this session only reads")


def _check_sub(name: str, rest: Sequence[Word], ground: Ground) -> None:
    if name in _SENDS:
        forced = any(is_option(word, *_FORCING) or word.text.startswith(("-f", "+")) for word in rest)
        code = "E_GIT_FORCE_PUSH" if forced else "E_GIT_PUSH"
        raise RefusedCommandError(
            code, f"git {name} publishes: agents do not, the run delivers its branch itself"
        )
    if name in _HISTORY:
        raise RefusedCommandError(
            "E_GIT_HISTORY", f"git {name} rewrites or drops history; commit on top instead"
        )
    options = options_of(rest)
    for word in options:
        if not is_named(name, word):
            raise RefusedCommandError(
                "E_CMD_DYNAMIC", f"git {name} takes an option that is only known when it runs"
            )
        if is_option(word, *_RUNS) or (name == "grep" and has_flag(word, "O")):
            raise RefusedCommandError("E_GIT_RUNS", f"git {name} {word.text} runs a program")
        if word.text.startswith(("--output=", "--output-directory=")):
            check_written([word.cut(word.text.index("=") + 1)], ground)
        elif is_option(word, "--output", "--output-directory") and (
            name in READING or name in _LISTING or name in _READING_FORMS
        ):
            raise RefusedCommandError("E_GIT_OPTION", f"git {name} {word.text}: write it as --output=FILE")
    check_positions(name, rest, ground)
    special = SPECIAL.get(name)
    if special is not None:
        special(options, rest)
        if (
            name in {"checkout", "switch"}
            or (name == "rm" and not spares(options))
            or (name == "restore" and in_tree(options))
        ):
            check_not_everything(rest, ground)
            if name == "rm":
                check_written(named_files(rest), ground)
            check_pathspecs(named_files(rest), ground)
    elif name == "init":
        _check_init(options, rest, ground)
    elif name == "mv":
        check_written(named_files(rest), ground)
    elif name in _LISTING and not _asks(name, rest):
        told = [word for word in rest if name != "config" or word.text not in _SCOPES]
        first = told[0].text if told else ""
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


def _check_init(options: Sequence[Word], rest: Sequence[Word], ground: Ground) -> None:
    check_known(rest, "init")
    for word in options:
        if not (
            word.text in {"-q", "--quiet", "--bare", "-b"}
            or re.match(r"--initial-branch=|--object-format=|-b\w", word.text)
        ):
            raise RefusedCommandError("E_GIT_OPTION", f"git init {word.text} is not among what is allowed")
    check_written([word for word in named_files(rest) if word.text], ground)
