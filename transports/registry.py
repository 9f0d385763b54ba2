"""The closed table of transports: a name that is not here does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from schemas.errors import BadInput
from schemas.settings import WorkerSettings
from transports.claude_cli import ClaudeCliTransport
from transports.claude_sdk import ClaudeSdkTransport
from transports.codex import CodexTransport
from transports.gemini_cli import GeminiCliTransport
from transports.port import Availability, Transport
from transports.stub import StubTransport

Factory = Callable[[WorkerSettings], Transport]
"""Makes a transport; starts nothing, imports a vendor's package only there."""


def _stub(settings: WorkerSettings) -> Transport:
    return StubTransport(may_crash_worker=settings.stub_may_crash_worker)


TRANSPORTS: Final[Mapping[str, Factory]] = MappingProxyType(
    {
        "claude-cli": lambda _: ClaudeCliTransport(),
        "claude-sdk": lambda _: ClaudeSdkTransport(),
        "codex": lambda settings: CodexTransport(kept=settings.data_dir),
        "gemini-cli": lambda _: GeminiCliTransport(),
        "stub": _stub,
    }
)
"""Every transport by the name flows use."""

_DEFAULTS: Final = WorkerSettings()


class UnknownTransport(BadInput):
    """Raised for a name that is not in the table; ``known`` lists those that are."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = tuple(sorted(TRANSPORTS))
        super().__init__(
            "unknown_transport",
            f"there is no transport {name!r}",
            mend=f"use one of: {', '.join(self.known)}",
            name=name,
        )


def open(name: str, *, settings: WorkerSettings = _DEFAULTS) -> Transport:  # noqa: A001 - registry.open
    """Return the transport of that name; raises UnknownTransport."""
    factory = TRANSPORTS.get(name)
    if factory is None:
        raise UnknownTransport(name)
    return factory(settings)


def available(names: Iterable[str], *, settings: WorkerSettings = _DEFAULTS) -> dict[str, Availability]:
    """Say of each named transport whether a worker with these settings can use it here; raises UnknownTransport."""
    return {name: open(name, settings=settings).is_available() for name in names}


def open_transports(settings: WorkerSettings) -> dict[str, Transport]:
    """Return the transports a worker offers, by name; raises UnknownTransport."""
    return {name: open(name, settings=settings) for name in settings.transports}
