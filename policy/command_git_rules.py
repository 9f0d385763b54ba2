"""What sub-commands of git may be told that change something: none loses or rewrites what is there. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Final

from policy.command_git_options import has_flag, is_option, takes_value
from policy.command_options import given
from policy.command_paths import Ground, inside, texts
from policy.shell_words import RefusedCommandError, Word

_STRATEGIES: Final = frozenset({"ort", "recursive", "resolve", "octopus", "ours", "subtree"})
_FETCH_CHANGES: Final = (
    *("--force", "--prune", "--prune-tags", "--refmap", "--stdin", "--update-head-ok", "--set-upstream"),
)
_EVERYTHING: Final = frozenset({".", "./", ":/", ":/:", "*", ":", "..", ":(top)", "/"})
_GENERATED: Final = frozenset({"*.lock", "*.snap"})
"""Patterns of files that a program makes again."""
_DEFAULT: Final = re.compile(r"\$\{\w+:-([^}]*)\}", re.ASCII)


def _reset(options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "reset")
    if any(is_option(word, "--hard", "--merge", "--keep") for word in options):
        raise RefusedCommandError(
            "E_GIT_DISCARD", "git reset --hard loses work; undo the files by name instead"
        )


def _clean(options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "clean")
    dry = False
    for word in options:
        # What stands after an -e is a pattern: the rest of the word, or else the next word, which may begin with -.
        short = not word.text.startswith("--")
        dry = dry or ("n" in word.text.partition("e")[0] if short else is_option(word, "--dry-run"))
        if takes_value(word):
            break
    if not dry or any(word.text.startswith("--no") for word in rest):
        raise RefusedCommandError(
            "E_GIT_DISCARD", "git clean removes what git does not keep; remove files by name"
        )


def _checkout(options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "checkout")
    if any(
        is_option(word, "--force", "--force-create", "--discard-changes", "--pathspec-from-file")
        for word in options
    ) or any(has_flag(word, flag) for word in options for flag in "fBC"):
        raise RefusedCommandError(
            "E_GIT_DISCARD", "it throws changes away or moves a branch; name files instead"
        )


def _restore(options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "restore")
    if any(is_option(word, "--pathspec-from-file") for word in options):
        raise RefusedCommandError("E_GIT_DISCARD", "which files it restores is not said here; name them")


def in_tree(options: Sequence[Word]) -> bool:
    """Whether restore changes files, not only what is staged."""
    return not any(is_option(word, "--staged") or has_flag(word, "S") for word in options) or any(
        is_option(word, "--worktree", "--no-staged") or has_flag(word, "W") for word in options
    )


def _branch(options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "branch")
    for word in options:
        if is_option(
            word, "--delete", "--force", "--move", "--copy", "--edit-description", "--set-upstream-to"
        ) or any(has_flag(word, flag) for flag in "dDfmMcCu"):
            raise RefusedCommandError(
                "E_GIT_HISTORY", "git branch deletes, moves or forces a branch; make a new one"
            )


def _tag(options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "tag")
    if any(
        is_option(word, "--delete", "--force") or has_flag(word, "d") or has_flag(word, "f")
        for word in options
    ):
        raise RefusedCommandError("E_GIT_HISTORY", "git tag deletes or moves a tag; make a new one")


def _stash(_options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "stash")
    first = rest[0].text if rest else "push"
    if first not in {"push", "list", "show", "pop", "apply", "save"} and not first.startswith("-"):
        raise RefusedCommandError("E_GIT_DISCARD", f"git stash {first} loses what was put away; keep it")


def _commit(options: Sequence[Word], _rest: Sequence[Word]) -> None:
    for word in options:
        if is_option(word, "--amend", "--fixup", "--squash"):
            raise RefusedCommandError(
                "E_GIT_HISTORY", "git commit --amend rewrites history; make a new commit"
            )


def _fetch(options: Sequence[Word], rest: Sequence[Word]) -> None:
    check_known(rest, "fetch")
    odd = [
        word.text
        for word in rest
        if not word.text.startswith("-") and any(char in word.text for char in ":+@")
    ]
    if odd or any(
        is_option(word, *_FETCH_CHANGES) or any(has_flag(word, flag) for flag in "fpPu") for word in options
    ):
        raise RefusedCommandError(
            "E_GIT_REMOTE", "git fetch and pull take the name of a remote and of a branch only"
        )
    if any(is_option(word, "--rebase") or has_flag(word, "r") for word in options):
        raise RefusedCommandError("E_GIT_HISTORY", "git pull --rebase rewrites history; merge instead")


def _remove(options: Sequence[Word], _rest: Sequence[Word]) -> None:
    if any(is_option(word, "--pathspec-from-file") for word in options):
        raise RefusedCommandError("E_GIT_DISCARD", "which files it removes is not said here; name them")


def spares(options: Sequence[Word]) -> bool:
    """Whether the options of rm leave the files where they are."""
    return any(
        is_option(word, "--cached", "--dry-run") or has_flag(word, "n") for word in options
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
    if any(is_option(word, "--unsafe-paths", "--directory", "--build-fake-ancestor") for word in options):
        raise RefusedCommandError("E_GIT_OPTION", "git apply changes files outside of where it stands")


SPECIAL: Final[dict[str, Callable[[Sequence[Word], Sequence[Word]], None]]] = {
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
"""By sub-command: the rule for its options and all its words."""


def check_known(rest: Sequence[Word], name: str) -> None:
    """Refuse a word before ``--`` that may turn out to be an option."""
    for at, word in enumerate(rest):
        if word.text == "--" and not (at and takes_value(rest[at - 1])):
            return
        if word.shape[:1] in {"$", "*", "?", "["}:
            raise RefusedCommandError(
                "E_CMD_DYNAMIC", f"git {name} takes a word that is only known when it runs"
            )


def check_not_everything(rest: Sequence[Word], ground: Ground) -> None:
    """Refuse a path that stands for all files, however it is written."""
    for word in rest:
        if word.text.startswith("-") or word.text in _GENERATED:
            continue
        # What git lists are files by their names, though they stand there as a pattern.
        worth = [word.text, _DEFAULT.sub(r"\1", word.text)]
        worth += [one for one in texts(word, ground) or () if word.known or not one.startswith("*")]
        worth += [
            one.text
            for name in word.variables or ()
            for one in ground.values.get(name, ())
            if one.known and not one.pattern
        ]
        if any(_is_everything(text, ground) for text in worth if text or word.known):
            raise RefusedCommandError(
                "E_GIT_DISCARD", f"{word.text} throws away every change; name the files"
            )


def _is_everything(text: str, ground: Ground) -> bool:
    plain = text.rstrip("/") or "/"
    # Magic (``:!x``) names everything but something.
    if plain in _EVERYTHING or plain.startswith((":", "*")):
        return True
    path = inside(text, ground)
    path = posixpath.normpath(text.removeprefix("${PWD}/")) if path is None else path
    return not _says_something(plain) or not _says_something(path)


def _says_something(text: str) -> bool:
    return re.search(r"\w", re.sub(r"\[[^\]]*\]", "", text)) is not None
