"""What conformance checks are run on: an agent that can be told how to behave, and what is seen of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Literal, Protocol

from pydantic import ValidationError

from schemas.events import TransportEvent
from schemas.handoff import HandoffDraft
from system.leftovers import leftovers
from transports.port import SessionSpec, StepSession, StructuredResult, Transport, WorkOutcome, WorkRequest

Behaviour = Literal[
    "idle",
    "write",
    "hold",
    "hang",
    "ask",
    "call",
    "bad_once",
    "bad_always",
    "say",
    "command",
    "parallel",
    "dangerous",
    "stream",
    "piecemeal",
    "tool",
    "background",
    "subagent",
    "limited",
    "bad_key",
    "crash",
    "cut",
    "huge",
    "limited_untold",
    "broken",
    "overloaded",
    "schema",
    "unjudged",
    "escape",
    "project",
    "heed",
]
"""What the agent does in its turn.

``idle``: ends it at once. ``write``: writes MARKER and ends it. ``hold``: writes MARKER, then does not end its turn
until it is interrupted. ``hang``: has a child that ignores SIGTERM, never ends, does not obey. ``ask``: asks QUESTION,
says what was answered, then ends it. ``call``: makes a tool call that policy asks about and that writes MARKER, then ends it. ``bad_once`` and ``bad_always``: idle, and what is no JSON for an answer, the first time or every time.
``say``: says WORDS and ends it. ``command``: writes MARKER, prints it with a command, ends it. ``parallel``: writes
MARKER and OTHER in one go. ``dangerous``: makes the call DANGEROUS, then ends it. ``stream``: says WORDS, and more of
them without end. ``piecemeal``: says WORDS in pieces, the last of which does not come until it is interrupted. ``tool``: runs a command that takes an hour. ``background``: leaves a process in a session of its own
behind, then ends it. ``subagent``: has a sub-agent write MARKER. ``limited``: its provider refuses for RETRY_S seconds.
``bad_key``: its provider does not know the key. ``crash``: its program is killed in the middle of the turn. ``cut``: the
answer of its provider ends in the middle, every time. ``huge``: a command prints HUGE_CHARS characters in one line.
``limited_untold``: its provider refuses for a while, and does not say for how long. ``broken`` and ``overloaded``: its
provider answers with status 500 or 529, every time. ``schema``: idle, and hands in a value only where the request for it
has its schema; for words it has what is no JSON. ``unjudged``: writes MARKER and ends it, and what judges its calls
fails. ``escape``: runs ``python3 ESCAPE`` and ends it. ``project``: says HOUSE_RULE if it was told that, and STRANGE_RULE
if it was told that; the first stands in the instructions of the repository, which the spec has put there, the other in
those of the folder above. ``heed``: uses tools until it is told STEERED, then says WORDS and ends it.
"""

MARKER: Final = "conformance.txt"
"""The file agents write."""
QUESTION: Final = "Which colour?"
"""The question agents ask."""

WORDS: Final = "Here I am."
"""What agents say."""
OTHER: Final = "other.txt"
"""The other file that agents write."""
DANGEROUS: Final = "git push --force origin HEAD"
"""The command line that policy denies."""
RETRY_S: Final = 45
"""For how long a provider refuses, in seconds."""
HUGE_CHARS: Final = 3_000_000
"""More than any line that is read whole."""

OWN_TOOLS: Final = ("mcp__stepwise__", "stub.")
"""How the names of tools begin that are ours, and no program's own."""
ESCAPE: Final = "escape.py"
"""The program that tries to get out of the workspace; the check puts it there."""
OUTSIDE: Final = "outside.txt"
"""The file that it tries to write, in the folder above."""
TRIED: Final = "It tries."
"""What it prints first."""
HOUSE_RULE: Final = "Rule-of-the-house"
"""What stands in the instructions of a repository."""
STRANGE_RULE: Final = "Rule-of-strangers"
"""What stands in instructions above its workspace."""
STEERED: Final = "mind the gap"
"""What agents are told while they work."""

LIMIT_S: Final = 60.0
"""How long a check may take, in seconds."""

_LOOK_S: Final = 0.02


class Bench(Protocol):
    """A transport with an agent that can be told how to behave; made anew for each check.

    All its specs share one run, one workspace and one private root; their environment holds ``STEPWISE_RUN``.
    """

    @property
    def transport(self) -> Transport:
        """The transport to be checked."""

    @property
    def behaviours(self) -> frozenset[Behaviour]:
        """What its agent can be made to do; checks that need more are left out."""

    def spec(self, behaviour: Behaviour, *, step: str = "build") -> SessionSpec:
        """Return the spec of a session whose agent behaves so."""

    def kept(self, session_id: str) -> Path:
        """Return the file in which a session is kept that was closed."""


class NotConforming(AssertionError):
    """Raised by a check that a transport does not hold."""


class Heard:
    """The events of a session in their order, and how many signs of life came between them."""

    def __init__(self) -> None:
        self.events: list[TransportEvent] = []
        self.stirs = 0
        self._news = asyncio.Event()

    def emit(self, event: TransportEvent) -> None:
        """Take an event."""
        self.events.append(event)
        self._news.set()

    def stir(self) -> None:
        """Take a sign of life."""
        self.stirs += 1
        self._news.set()

    @property
    def words(self) -> list[str]:
        """What the agent said, as it was told."""
        return [event.text for event in self.events if event.kind == "text" and event.role == "assistant"]

    async def pieces(self, number: int) -> None:
        """Wait until so many pieces of what the agent says were heard of, by a sign of life or an event each."""
        while self.stirs + len(self.words) < number:
            self._news.clear()
            await self._news.wait()

    async def until(self, wanted: Callable[[TransportEvent], bool]) -> None:
        """Wait until one of the events is wanted."""
        while not any(map(wanted, self.events)):
            self._news.clear()
            await self._news.wait()


def require(condition: bool, otherwise: str) -> None:
    """Raise NotConforming, which says what is otherwise, unless the condition holds."""
    if not condition:
        raise NotConforming(otherwise)


def require_interrupted(outcome: WorkOutcome) -> None:
    """Raise NotConforming unless a turn ended as an interrupted one does."""
    code = None if outcome.error is None else outcome.error.code
    require((outcome.end, code) == ("failed", "interrupted"), f"the turn ended as {outcome.end} ({code})")


async def require_knowledge(session: StepSession, heard: Heard) -> None:
    """Raise NotConforming unless the agent can say that it wrote MARKER."""
    result = await session.structured(
        "Which files did you write?", HandoffDraft, heard.emit, timeout_s=LIMIT_S
    )
    require(MARKER in json.dumps(result.value), f"it does not know what it wrote: {result}")


def require_value(result: StructuredResult) -> HandoffDraft:
    """Return the handoff that was answered; raises NotConforming for an error, and for what is none."""
    require(result.error is None, f"there was no answer: {result.error}")
    try:
        return HandoffDraft.model_validate(result.value)
    except ValidationError as error:
        raise NotConforming(f"the answer is no handoff: {error}") from error


def said_by(heard: Heard, role: str) -> str:
    """Return what was said in a role, as one text."""
    return "".join(event.text for event in heard.events if event.kind == "text" and event.role == role)


def is_sign_of_work(event: TransportEvent) -> bool:
    """Tell whether an event shows that the agent is at work."""
    return event.kind in {"tool_ended", "text"}


@contextlib.asynccontextmanager
async def opened(bench: Bench, spec: SessionSpec) -> AsyncIterator[tuple[StepSession, Heard]]:
    """Hold a session open for the block, with what was heard of it."""
    heard = Heard()
    session = await bench.transport.open_session(spec, heard.emit)
    try:
        yield session, heard
    finally:
        await session.aclose()


@contextlib.asynccontextmanager
async def working(session: StepSession, heard: Heard) -> AsyncIterator[asyncio.Task[WorkOutcome]]:
    """Have a turn run beside the block; it is ended at the end of the block."""
    work = asyncio.create_task(session.work(WorkRequest("go on", on_output=heard.stir), heard.emit))
    try:
        yield work
    finally:
        work.cancel()
        await asyncio.wait({work})


async def child_of(bench: Bench) -> None:
    """Wait until a process of the run is there."""
    run_id = bench.spec("idle").run_id
    # Nobody tells when an agent starts a child.
    while not await asyncio.to_thread(leftovers, run_id):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)


async def nothing_left(bench: Bench) -> None:
    """Raise NotConforming if a process of the run is there."""
    left = await asyncio.to_thread(leftovers, bench.spec("idle").run_id)
    require(not left, f"processes are left: {left}")
