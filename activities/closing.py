"""Closing a session of an agent: never for ever, and whatever becomes of who asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from system.logs import logger
from transports.port import StepSession

Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts what must come to its end though nobody waits for it any more."""

CLOSE_LIMIT_S: Final = 20.0
_log = logger("activities")


async def close_session(session: StepSession, start: Start) -> None:
    """Close a session; one that does not close, or breaks, is logged and left."""
    closing = start(session.aclose())
    await asyncio.wait({closing}, timeout=CLOSE_LIMIT_S)
    if not closing.done():
        closing.cancel()
        _log.error("a session could not be closed within %s s", CLOSE_LIMIT_S)
    elif not closing.cancelled() and closing.exception() is not None:
        _log.error("a session could not be closed", exc_info=closing.exception())
