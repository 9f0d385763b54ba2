"""What commands share: the loaded settings, words to type into a shell, and where they print."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

from policy.plain import typed, visible
from system.settings import DEFAULT_ADDRESS, DEFAULT_NAMESPACE, Loaded, load

WORKFLOW_TYPE: Final = "Flow"
"""The workflow type of every run."""

_LOCAL: Final = frozenset({DEFAULT_ADDRESS, "localhost:7233", "[::1]:7233"})


def settings() -> Loaded:
    """Return the settings of this environment and folder. Raises SettingsRefused."""
    return load(os.environ)


def temporal_flags(address: str, namespace: str) -> list[str]:
    """Return the options a ``temporal`` command needs to reach a server that is not the default one."""
    flags = [] if address in _LOCAL else ["--address", address]
    return flags + ([] if namespace == DEFAULT_NAMESPACE else ["--namespace", namespace])


def temporal_command(loaded: Loaded, *words: str) -> str:
    """Return a command of the Temporal CLI as a person types it to reach the configured server."""
    return typed(["temporal", *words, *temporal_flags(loaded.address, loaded.namespace)])


def say(line: str = "") -> None:
    """Print a line of a command's result, in which nothing takes effect on a terminal."""
    sys.stdout.write(f"{visible(line)}\n")


def say_json(data: Any, *, indent: int | None = 2) -> None:
    """Print a command's result for programs: JSON in ASCII, which every terminal, pipe and reader can take."""
    say(json.dumps(data, indent=indent))


def complain(line: str) -> None:
    """Print a line about what went wrong, in which nothing takes effect on a terminal."""
    sys.stderr.write(f"{visible(line)}\n")
