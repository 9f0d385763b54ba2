"""Which command lines an agent may run, judged by their text alone before anything runs. Pure.

This is a floor of words, not a wall: a program that an agent wrote does what it does, and only the sandbox around it
holds that. What cannot be read with certainty is denied, and so is whatever makes a rule fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from policy.command_paths import Ground
from policy.command_reading import check_reading
from policy.command_rules import check_script, check_words
from policy.shell_words import RefusedCommandError, literal

Decision = Literal["allow", "deny", "ask"]


@dataclass(frozen=True)
class Verdict:
    """What policy says of a call, with a stable code and a reason in words where it is not ``allow``."""

    decision: Decision
    code: str = ""
    reason: str = ""


ALLOWED = Verdict("allow")
"""What is allowed, decided purely and lexically: no I/O, no clock, no environment."""

MAX_COMMAND: Final = 131_072
"""The longest command line in UTF-8 bytes; more than one argument of a process can hold."""

_CHARACTERS: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def judge(command: str, *, workspace: str = "") -> Verdict:
    """Return whether an agent may have a shell run ``command``; every part of it is judged, nested ones too.

    ``workspace`` is the absolute path that the command runs in; without it every absolute path is outside. Never raises.
    """
    return _verdict(command, lambda: check_script(command, Ground(workspace=workspace)))


def judge_argv(argv: Sequence[str], *, workspace: str = "") -> Verdict:
    """Return whether an agent may run a program with arguments and no shell. Never raises."""
    if not argv:
        return Verdict("deny", "E_CMD_PARSE", "there is no program to run")
    return _verdict(
        "\n".join(argv), lambda: check_words([literal(one) for one in argv], Ground(workspace=workspace))
    )


def judge_read_only(command: str, *, workspace: str = "") -> Verdict:
    """Return whether a session that only reads may have a shell run ``command``: a closed list. Never raises."""
    ground = Ground(workspace=workspace)

    def check() -> None:
        check_script(command, ground)
        check_reading(command)

    return _verdict(command, check)


def _verdict(text: str, check: Callable[[], None]) -> Verdict:
    try:
        if len(text) > MAX_COMMAND or len(text.encode("utf-8", "surrogatepass")) > MAX_COMMAND:
            return Verdict("deny", "E_LIMIT_COMMAND", f"the command line is longer than {MAX_COMMAND} bytes")
        found = _CHARACTERS.search(text)
        if found is not None:
            return Verdict(
                "deny", "E_CMD_CHARACTERS", f"the command line holds U+{ord(found[0]):04X}, which is not seen"
            )
        check()
    except RefusedCommandError as refused:
        return Verdict("deny", refused.code, refused.reason)
    except Exception as error:  # noqa: BLE001 - a rule that fails must not let anything through
        return Verdict(
            "deny", "E_CMD_JUDGE", f"the command line could not be judged ({type(error).__name__})"
        )
    return ALLOWED
