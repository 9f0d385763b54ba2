"""What commands share: the loaded settings and the connection to Temporal."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from temporalio.client import Client

from schemas.converter import build_data_converter
from schemas.errors import StepwiseError
from system.settings import DEFAULT_ADDRESS, DEFAULT_NAMESPACE, Loaded, load

CONNECT_S: Final = 10.0
"""How long a command waits for a server to answer, seconds."""
MAX_REASON: Final = 300
"""Characters of the client's own words for a failed connection."""
WORKFLOW_TYPE: Final = "Flow"
"""The workflow type of every run."""

_LOCAL: Final = frozenset({DEFAULT_ADDRESS, "localhost:7233", "[::1]:7233"})


def settings() -> Loaded:
    """Return the settings of this environment and folder. Raises SettingsRefused."""
    return load(os.environ)


async def connect(loaded: Loaded) -> Client:
    """Return a client of the server the settings name. Raises StepwiseError E_SERVER when none answers."""
    try:
        async with asyncio.timeout(CONNECT_S):
            return await Client.connect(**loaded.temporal, data_converter=build_data_converter())
    except (RuntimeError, TimeoutError) as error:
        origin = loaded.temporal_origins["target_host"]
        # A refused connection needs no more words; keys and certificates do.
        said = str(error) or f"nothing within {CONNECT_S:g} s"
        why = "" if "refused" in said else f": {said.splitlines()[0][:MAX_REASON]}"
        raise StepwiseError(
            "E_SERVER",
            f"no Temporal server answers at {loaded.address} (address: {origin}){why}",
            mend="start one with `stepwise dev`, or set TEMPORAL_ADDRESS",
        ) from error


def temporal_flags(address: str, namespace: str) -> list[str]:
    """Return the options a ``temporal`` command needs to reach a server that is not the default one."""
    flags = [] if address in _LOCAL else ["--address", address]
    return flags + ([] if namespace == DEFAULT_NAMESPACE else ["--namespace", namespace])


def typed(argv: Sequence[str]) -> str:
    """Return a command as a person types it."""
    return shlex.join(argv)


def say(line: str = "") -> None:
    """Print a line of a command's result."""
    sys.stdout.write(f"{line}\n")


def complain(line: str) -> None:
    """Print a line about what went wrong."""
    sys.stderr.write(f"{line}\n")
