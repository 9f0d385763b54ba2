"""Programs that run another one by their later words or by an option: package runners, and searches. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Final

from policy import command_names as names
from policy.command_options import known
from policy.command_paths import Ground, texts
from policy.shell_words import RefusedCommandError, Word, literal, opened, unreadable

Check = Callable[[Sequence[Word], Ground], None]

_OWN_COMMANDS: Final = frozenset({"install", "link"})
"""What runners do themselves, by a name that programs with a rule have too."""


def check_runner(
    runner: str, words: Sequence[Word], ground: Ground, check: Check, has_rules: Callable[[str], bool]
) -> None:
    """Judge the words of a runner: the program that it runs, and those from the first one on that has rules.

    ``check`` judges a program with its words, ``has_rules`` says of which programs there is something to judge.
    """
    if runner == "hatch":
        words = [_after_colon(word) for word in words]
    _check_run(runner, words, ground, check)
    mark, after = {"mise": ("--", 1), "direnv": ("exec", 2)}.get(runner, ("", 0))
    ends = next((at + after for at, word in enumerate(words) if word.text == mark), 0)
    for at, word in enumerate(words):
        name = posixpath.basename(word.text)
        if word.text in names.RUNNERS_RUN or name in {".", "source"}:
            continue
        told = at > 0 and words[at - 1].text in {"run", "exec", "--", "x"}
        runs_first = at == 0 and runner in names.RUNNERS_DIRECT
        if name in _OWN_COMMANDS and not told and not runs_first:
            continue
        if has_rules(name) or (told and names.refused(name) is not None):
            check(words[at:], ground)
            if at >= ends and not takes_value(words[at - 1].text if at else ""):
                return


def takes_value(option: str) -> bool:
    """Whether a word after this one may be its value rather than the program that a runner runs."""
    return option.startswith("-") and "=" not in option and option not in names.RUNNERS_PLAIN


def _after_colon(word: Word) -> Word:
    """Return a program as hatch is told to run it, without the environment before it."""
    return word.cut(word.text.find(":") + 1)


def _check_run(runner: str, words: Sequence[Word], ground: Ground, check: Check) -> None:
    """Refuse what no agent runs where a runner may take it for the program to run."""
    running = runner in names.RUNNERS_DIRECT
    skipped = runner != "direnv"
    for at, word in enumerate(words):
        known([word], runner)
        if word.text.startswith("-"):
            _check_call(runner, words[at : at + 2], ground, check)
            continue
        if word.text in names.RUNNERS_RUN:
            running = True
            continue
        if runner == "cross-env" and "=" in word.text:
            continue
        name = posixpath.basename(word.text)
        found = names.refused(name) or names.refused(name.partition("@")[0])
        if found is not None and (running or name not in names.RUNNERS_OWN):
            raise RefusedCommandError(found[0], f"{name} {found[1]}")
        if takes_value(words[at - 1].text if at else ""):
            continue
        if running and not skipped:
            skipped = True
        elif runner != "mise":
            return


def _check_call(runner: str, words: Sequence[Word], ground: Ground, check: Check) -> None:
    """Judge the text that npm and its like are told to give to a shell."""
    option, given, value = words[0].text.partition("=")
    if runner in {"npx", "npm", "pnpm"} and option in {"-c", "--call", "--shell-mode"}:
        known(words[1:], runner)
        text = [literal(value)] if given else list(words[1:])
        check([literal("sh"), literal("-c"), *text], ground)


def _told_to_run(option: str) -> str:
    """Return the option of fd that runs a program where a cluster of short options holds it, else what was given."""
    found = re.match(r"-(?!-)[^xXetdESCcjo]*([xX])", option)
    return option if found is None or found.end() < len(option) else f"-{found[1]}"


def check_searcher(name: str, words: Sequence[Word], ground: Ground, check: Check) -> None:
    """Judge the program that a search is told to run on what it finds."""
    for at, word in enumerate(words):
        if word.shape[:1] == "$":
            found = texts(word, ground)
            unknown = found is None and name != "rg"
            if unknown or any(one.startswith("-") for one in found or ()):
                known([word], name)
        option, given, value = word.text.partition("=")
        option = option if name == "rg" else _told_to_run(option)
        runs = option in (names.RG_RUNS if name == "rg" else names.SEARCHERS_RUN)
        if runs or (name != "rg" and re.match(names.SEARCHERS_CLUSTER, option)):
            command = [literal(value)] if given else list(words[at + 1 :])
            if not command or (not given and not runs):
                raise unreadable(f"a search has the option {word.text}, which is not read here")
            check([opened() if "{" in one.text else one for one in command] + [opened()], ground)
            return
