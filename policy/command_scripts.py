"""Which file of commands a shell runs, and what is no file but what a process is sent. Pure."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from policy.command_paths import Ground, texts
from policy.shell_words import RefusedCommandError, Word

_STREAM: Final = re.compile(
    r"(?:^|/)(?:dev/(?:std|fd(?:/|$)|tty|pts|console|ptmx|tcp|udp)|proc/(?:self|thread-self|\d))"
)
_UNDER: Final = re.compile(r"\$\{(PWD|HOME|TMPDIR)\}/")
_STREAM_PART: Final = re.compile(r"stdin|stdout|stderr|fd|\d+|tty\w*|pts|console")


def sent(name: str) -> RefusedCommandError:
    """Return the refusal of a program that runs what it is sent."""
    return RefusedCommandError(
        "E_CMD_PIPE_TO_SHELL",
        f"{name} runs what it is sent, which is not read here; save it, read it, run the file",
    )


def check_file(word: Word, ground: Ground) -> None:
    """Refuse to run as a script what is no file, or a file that is only known when it runs."""
    found = texts(word, ground)
    if found is None or word.pattern:
        raise changing_script()
    if any(is_stream(one, ground) for one in found):
        raise RefusedCommandError("E_CMD_PIPE_TO_SHELL", f"{word.text} is no file of commands")


def is_given(word: Word, ground: Ground) -> bool:
    """Whether a word is a path under a directory of the surroundings, so that it is no option and one word."""
    found = _UNDER.match(word.text)
    if found is None or word.pattern or found[1] in ground.values or found[1] in ground.unsure:
        return False
    return word.cut(found.end()).known


def changing_script() -> RefusedCommandError:
    """Return the refusal of a script whose name is not known before."""
    return RefusedCommandError(
        "E_CMD_DYNAMIC", "which script runs is only known when it runs; write its name out"
    )


def is_stream(text: str, ground: Ground) -> bool:
    """Whether a path is, or after a change of directory may be, what a process is sent rather than a file."""
    path = re.sub(r"^/+", "/", posixpath.normpath(text))
    if path.startswith(("/dev/", "/proc/")) or _STREAM.search(path) is not None:
        return True
    return (
        ground.away
        and not path.startswith("/")
        and any(_STREAM_PART.fullmatch(part) for part in path.split("/"))
    )
