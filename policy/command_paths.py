"""Where a command's paths lead, by their text alone: inside the workspace, out of it, or to what is protected. Pure."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from policy.command_printed import MADE
from policy.command_protected import PROTECTED, is_plain, is_protected, widened
from policy.command_values import MOVING
from policy.shell_words import (
    CHOSEN,
    FILES,
    GIVEN,
    NUMBER,
    PROCESS,
    REVISION,
    WIDE,
    Command,
    RefusedCommandError,
    Script,
    Word,
    base_name,
)

_WITHIN: Final = (*PROTECTED, ".claude/settings.json", ".vscode/settings.json", ".vscode/tasks.json")
_HARMLESS: Final = frozenset(
    {"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty", "/dev/zero"}
)
_TMP: Final = "/tmp/"  # noqa: S108 - judged, not opened
_TEMPORARY: Final = "${TMPDIR}/"
_HERE: Final = "${PWD}/"
_CLASS: Final = re.compile(r"\[[^\]]*\]")
_PLAIN: Final = re.compile(r"[\w./-]+|\$\{(?:PWD|TMPDIR|HOME)\}[\w./-]*", re.ASCII)
"""A directory that is one word, and itself, where it is expanded without quotes."""

_NO_CHAIN: Final = frozenset(";\n(){}`!#\\")
"""Characters of a line in which something else than ``&&`` and pipes may decide what runs, or where."""
_STEP: Final = re.compile(r"[\w.][\w./-]*", re.ASCII)
"""A relative path that cd takes as it is."""

_ENTRY: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_ROOTS: Final = frozenset(
    {
        *(
            "bin",
            "boot",
            "data",
            "dev",
            "etc",
            "home",
            "lib",
            "lib32",
            "lib64",
            "media",
            "mnt",
            "opt",
            "proc",
            "root",
        ),
        *(
            "run",
            "sbin",
            "srv",
            "sys",
            "tmp",
            "usr",
            "var",
            "work",
            "workspace",
            "Users",
            "System",
            "Library",
        ),
    }
)
"""Folders that stand at the root of machines."""

_MAX_VALUES: Final = 64
_MAX_VALUES_DEEP: Final = 8
_MAX_PATH: Final = 4_096
_MAX_WORK: Final = 1_000_000


@dataclass(frozen=True)
class Ground:
    """What the words of a command line are judged against.

    ``workspace`` is its absolute path, empty when it is not known; ``away`` says that the command line leaves it,
    ``afar`` that it does so for somewhere else than temporary files. ``values`` holds what each name may be worth, a name
    that is not in it may be worth anything; ``unsure`` those of the surroundings that may have been set, ``touched`` all
    that may have been, None for any. ``piped`` is what a pipe brings a command, if known; ``many`` says that a command is
    run on all that another one finds.
    """

    workspace: str = ""
    away: bool = False
    afar: bool = False
    posix: bool = False
    depth: int = 0
    values: dict[str, list[Word]] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    touched: frozenset[str] | None = frozenset()
    networked: bool = False
    piped: Word | None = None
    many: bool = False
    folder: str = ""
    later: dict[str, list[Word]] = field(default_factory=dict)
    judged: list[int] = field(default_factory=lambda: [0])

    def work(self, characters: int) -> None:
        """Count what is judged; refuse a command line of which the same parts are judged again and again."""
        self.judged[0] += characters + 1
        if self.judged[0] > _MAX_WORK:
            raise RefusedCommandError(
                "E_LIMIT_COMMAND", "commands run commands too often; write them one by one"
            )


def check_reads(script: Script, values: dict[str, list[Word]]) -> None:
    """Refuse a script that reads from where no file is."""
    for command in script.commands:
        for redirect in command.redirects:
            if redirect.operator in {"<", "<&"}:
                check_read(redirect.target, values)


def check_read(target: Word, values: dict[str, list[Word]], *, strict: bool = False) -> None:
    """Refuse to read from a connection; ``strict`` refuses every target that is not known before it runs."""
    if target.text == PROCESS:
        return
    found = texts(target, Ground(values=values))
    if found is None and (strict or target.variables is None):
        raise RefusedCommandError(
            "E_CMD_DYNAMIC", f"where {_shown(target)} reads is only known when it runs; write the path out"
        )
    for text in found or ():
        if _connects(text):
            raise RefusedCommandError("E_CMD_NETWORK", f"{text} is a connection, not a file")


def _connects(text: str) -> bool:
    return f"/{posixpath.normpath(text).lstrip('/')}".startswith(("/dev/tcp", "/dev/udp")) and text[:1] == "/"


_PRINTED: Final = {
    NUMBER: ["7", ""],
    WIDE: ["7"],
    FILES: ["*", ""],
    CHOSEN: ["*found", ""],
    REVISION: ["*", ""],
}
"""What stands for a text that a program prints, which may have printed nothing."""


def texts(word: Word, ground: Ground, *, depth: int = 0) -> list[str] | None:
    """Return every text that a word may become, None when that is only known when it runs."""
    if word.known:
        return [word.text]
    if word.expanded is None or len(word.text) > _MAX_PATH or depth > _MAX_VALUES_DEEP:
        return None
    choices: dict[str, list[str]] = {}
    for name in dict.fromkeys(word.expanded):
        base, given = base_name(name), [] if ":-" not in name else [name.partition(":-")[2]]
        if (
            base in GIVEN
            and base not in ground.values
            and base not in ground.unsure
            and (given or name == base)
        ):
            worth: list[str] | None = [f"${{{base}}}", *given]
        else:
            worth = _worth(name.partition(":-")[0], ground, depth)
            worth = worth if worth is None else [*worth, *given]
        if worth is None or any(len(one) > _MAX_PATH for one in worth):
            return None
        choices[name] = worth
    chosen = list(itertools.islice(itertools.product(*choices.values()), _MAX_VALUES + 1))
    if len(chosen) > _MAX_VALUES:
        return None
    found: list[str] = []
    for choice in chosen:
        text = word.text
        for name, worth_now in zip(choices, choice, strict=True):
            text = text.replace(f"${{{name}}}", worth_now)
            if len(text) > _MAX_PATH:
                return None
        found.extend([text, *(text.split() if len(text.split()) > 1 else ())])
    return found


def _worth(name: str, ground: Ground, depth: int) -> list[str] | None:
    """Return every text that an expansion may stand for."""
    if "…" in name:
        return _PRINTED.get(f"${{{name}}}")
    part = name[-1] if name[-1] in "%#/^" else ""
    found: list[str] = []
    for value in ground.values.get(name.removesuffix(part), ()):
        worth = texts(value, ground, depth=depth + 1)
        if worth is None:
            return None
        for one in worth:
            some = _parts(one, part) if part else [one]
            if some is None:
                return None
            found.extend(some)
    return list(dict.fromkeys(found)) if 0 < len(found) <= _MAX_PATH else None


def _parts(text: str, part: str) -> list[str] | None:
    """Return what may be left of a text without its end (``%``), its beginning (``#``), its folders (``/``), or its name (``^``)."""
    if part == "^":
        # Nothing is no operand, unless it stands in quotes: dirname prints nothing then.
        return [posixpath.dirname(text.rstrip("/")) or ".", *(() if text.strip() else ("",))]
    last = text.rpartition("/")[2]
    if part == "/":
        return ["*", ""] if is_plain(last) or not last else [last]
    if text and not is_plain(text):
        return None
    if part == "%":
        return ["*", ""]
    odd = (one for one in (text[at:] for at in range(min(len(text), _MAX_VALUES))) if one[:1] in {".", "-"})
    return ["*", "", *(["/*"] if "/" in text else ()), *odd]


def check_removal(words: Iterable[Word], ground: Ground) -> None:
    """Refuse to remove what is outside the workspace, all of it, or what is protected in it."""
    for word in words:
        for text in _places(word, ground, f"what {_shown(word)} removes"):
            path = inside(text, ground)
            if path is None and (_is_made(text, word) or _is_temporary(text)):
                _check_protected(text, text)
                continue
            if path is None or ground.away:
                raise RefusedCommandError(
                    "E_CMD_REMOVE",
                    f"{text} is outside the workspace; remove only what is inside, or under /tmp",
                )
            _check_protected(text, path)
            if not any(_says_something(part) for part in path.split("/")):
                raise RefusedCommandError(
                    "E_CMD_REMOVE", f"{text} is the whole workspace; name what is to go"
                )


def _is_made(text: str, word: Word) -> bool:
    """Whether a path is what mktemp made, or a named thing in the folder for temporary files if that is certainly set."""
    plain = posixpath.normpath(text)
    if plain == MADE or plain.startswith(f"{MADE}/"):
        # Where mktemp fails, what stands after it is a path from the root.
        first = plain.removeprefix(MADE).strip("/").partition("/")[0]
        return not first or (_ENTRY.fullmatch(first) is not None and first not in _ROOTS)
    named = _says_something(plain.removeprefix(_TEMPORARY).partition("/")[0])
    return plain.startswith(_TEMPORARY) and named and word.text.startswith("${TMPDIR:-")


def check_outputs(targets: Iterable[Word], ground: Ground) -> None:
    """Judge files that options name for what is written, ``-`` being the standard output."""
    check_written([one for one in targets if one.text != "-"], ground)


def _is_temporary(text: str) -> bool:
    """Whether a path is a named thing in the folder for temporary files."""
    plain = posixpath.normpath(text)
    return plain.startswith(_TMP) and _says_something(plain.removeprefix(_TMP).partition("/")[0])


def check_written(words: Iterable[Word], ground: Ground) -> None:
    """Refuse to write outside the workspace and temporary files, to devices, and to what is protected."""
    for word in words:
        for text in _places(word, ground, f"where {_shown(word)} writes"):
            _check_written(text, ground)


def _places(word: Word, ground: Ground, what: str) -> list[str]:
    """Return every path that a word may become; refuse one that is only known when it runs.

    An empty path is none: what is only made of names that are not set is no file.
    """
    found = texts(word, ground)
    if found is None:
        raise RefusedCommandError(
            "E_CMD_DYNAMIC",
            f"{what} is only known when it runs; write the path out, or take it from a pattern (for f in src/*.py)",
        )
    return found if word.known else [one for one in found if one]


def _check_written(text: str, ground: Ground) -> None:
    path = inside(text, ground)
    if path is not None and not (ground.afar and not text.startswith("/")):
        _check_protected(text, path)
        return
    plain = posixpath.normpath(text)
    if _connects(text):
        raise RefusedCommandError("E_CMD_NETWORK", f"{text} is a connection, not a file")
    if plain in _HARMLESS or plain.startswith("/dev/fd/"):
        return
    if plain.startswith(("/dev/", "/sys/", "/proc/")):
        raise RefusedCommandError("E_CMD_DEVICE", f"{text} is a device or the system's own")
    if f"{plain}/".startswith((_TMP, _TEMPORARY)):
        _check_protected(text, plain)
        return
    raise RefusedCommandError(
        "E_CMD_OUTSIDE", f"{text} is outside the workspace; write inside it or under /tmp"
    )


def inside(text: str, ground: Ground) -> str | None:
    """Return a path relative to the workspace, normalised, or None when it leads out of it."""
    if len(text) > _MAX_PATH:
        raise RefusedCommandError("E_LIMIT_COMMAND", f"a path is longer than {_MAX_PATH} characters")
    if text.startswith(_HERE) or text == _HERE[:-1]:
        # It may be the root as well as the folder: from neither a path may lead up.
        text, ground = text[len(_HERE) :], replace(ground, folder="")
    if text.startswith(("~", "${")):
        return None
    path = posixpath.normpath(text or ".")
    if path == ".." or path.startswith("../"):
        path = posixpath.normpath(posixpath.join(ground.folder, path))
    if path.startswith("/"):
        root = posixpath.normpath(ground.workspace) if ground.workspace else ""
        if not root or not (path == root or path.startswith(f"{root}/")):
            return None
        return path[len(root) :].strip("/") or "."
    return None if path == ".." or path.startswith("../") else path


def folders(text: str, commands: Sequence[Command], begun: str) -> list[str] | None:
    """Return in which folder each command certainly stands, None where that is not certain.

    It is where every change of folder leads down or back by a plain path, and all that follows only runs if it succeeds.
    """
    plain = re.sub(r"\d?>&\d", "", text)
    if _NO_CHAIN.intersection(plain) or "||" in plain or "&" in plain.replace("&&", ""):
        return None
    sizes = [part.count("|") + 1 for part in plain.split("&&")]
    if sum(sizes) != len(commands):
        return None
    found: list[str] = []
    folder = begun
    for size in sizes:
        pipeline = commands[len(found) : len(found) + size]
        found.extend([folder] * size)
        if any(one.unwrapped and one.unwrapped[0].text in MOVING for one in pipeline):
            led = _led(pipeline, folder)
            if led is None:
                return None
            folder = led
    return found


def _led(pipeline: Sequence[Command], folder: str) -> str | None:
    """Return where a plain ``cd`` leads from a folder of the workspace, None if it is no such one or leads out of it."""
    words = pipeline[0].words
    if len(pipeline) > 1 or len(words) != 2 or words[0].text != "cd" or not words[1].known:  # noqa: PLR2004
        return None
    if pipeline[0].assignments or pipeline[0].redirects or not _STEP.fullmatch(words[1].text):
        return None
    path = posixpath.normpath(posixpath.join(folder, words[1].text))
    return None if path == ".." or path.startswith("../") or is_protected(path) else path


def moved(ground: Ground, commands: Iterable[Sequence[Word]]) -> tuple[Ground, bool]:
    """Return the ground of a command line that has these commands, and whether it enters what is protected."""
    entered = False
    for words in commands:
        if not words or words[0].text not in MOVING:
            continue
        ground = replace(ground, folder="")
        operands = [word for word in words[1:] if word.text == "-" or not word.text.startswith("-")]
        found = texts(operands[0], ground) if operands else None
        if found is None or any(text in {"-", ""} for text in found):
            ground = replace(ground, away=True, afar=True, unsure=ground.unsure | {"PWD"})
            continue
        for text in found:
            entered = entered or is_protected(text)
            outside = inside(text, ground) is None
            ground = replace(
                ground,
                away=ground.away or outside,
                afar=ground.afar
                or (outside and not f"{posixpath.normpath(text)}/".startswith((_TMP, _TEMPORARY))),
                unsure=ground.unsure if _PLAIN.fullmatch(text) else ground.unsure | {"PWD"},
            )
    return ground, entered


def check_tree(words: Iterable[Word], ground: Ground, program: str) -> None:
    """Refuse to change all of the workspace, of which git's own files are a part."""
    for word in words:
        if any(inside(text, ground) == "." for text in texts(word, ground) or ()):
            raise RefusedCommandError(
                "E_PATH_PROTECTED",
                f"{program} reaches git's own files below {_shown(word)}; name the folders or files",
            )


def check_guessed(words: Iterable[Word], ground: Ground) -> None:
    """Refuse what is protected where a program may write, or may not; words that are only known when they run pass."""
    for word in words:
        for text in texts(word, ground) or ():
            _check_protected(text, inside(text, ground) or text)


def check_changed(words: Iterable[Word], ground: Ground) -> None:
    """Refuse to change what is protected, wherever it is."""
    for word in words:
        for text in _places(word, ground, f"what {_shown(word)} changes"):
            _check_protected(text, inside(text, ground) or text)


def check_pathspecs(words: Iterable[Word], ground: Ground) -> None:
    """Refuse paths as git matches them with what is protected: its patterns match dots and slashes too."""
    for word in words:
        for text in texts(word, ground) or ():
            _check_protected(text, inside(text, ground) or text)
            pattern = widened(posixpath.normpath(text))
            if any(char in text for char in "*?[") and any(fnmatchcase(one, pattern) for one in _WITHIN):
                raise RefusedCommandError(
                    "E_PATH_PROTECTED", f"{text} also means what is protected; name the files"
                )


def check_unhidden(words: Iterable[Word], ground: Ground, program: str) -> None:
    """Refuse a word that is, or may be, an option by the value of a name."""
    for word in words:
        worth = () if word.known or word.text.startswith("-") else texts(word, ground) or ()
        if any(text.startswith("-") for text in worth):
            raise RefusedCommandError(
                "E_CMD_DYNAMIC", f"{program} takes {_shown(word)}, which may be an option; write it out"
            )


def _check_protected(text: str, path: str) -> None:
    if is_protected(path):
        raise RefusedCommandError("E_PATH_PROTECTED", f"{text} is protected: no agent writes it")


def _says_something(part: str) -> bool:
    return re.search(r"\w", _CLASS.sub("", part)) is not None


def _shown(word: Word) -> str:
    return word.text if len(word.text) <= 80 else f"{word.text[:79]}…"  # noqa: PLR2004 - enough to be known by
