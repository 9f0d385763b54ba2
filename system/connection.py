"""The connection to the Temporal server that the settings name, the same for workers and commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from temporalio.client import Client, Plugin
from temporalio.runtime import Runtime

from schemas.converter import build_data_converter
from schemas.errors import StepwiseError
from system.settings import Loaded

CONNECT_S: Final = 10.0
"""How long a server has to answer, seconds."""
MAX_REASON: Final = 300
"""Characters of the client's own words for a failed connection."""


async def connect(
    loaded: Loaded, *, plugins: Sequence[Plugin] = (), runtime: Runtime | None = None
) -> Client:
    """Return a client of the server the settings name. Raises StepwiseError E_SERVER when none answers."""
    try:
        async with asyncio.timeout(CONNECT_S):
            return await Client.connect(
                **loaded.temporal, data_converter=build_data_converter(), plugins=plugins, runtime=runtime
            )
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
