"""The port every agent is driven through. Read this before any transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from pydantic import BaseModel

from schemas.common import SessionMode
from schemas.envelopes import ErrorEnvelope
from schemas.events import TransportEvent
from schemas.handoff import StopMethod
from schemas.questions import Answer, CallDecision, CallRequest, Given, Question

Emit = Callable[[TransportEvent], None]
"""Takes an event; never blocks, never raises."""


def unwatched() -> None:
    """Take a sign of life where nobody watches for one."""


@dataclass(frozen=True)
class Availability:
    """Whether a transport can be used here; if not, why, and the command that installs what is missing."""

    ok: bool
    reason: str = ""
    install_hint: str = ""

    def __str__(self) -> str:
        """Return why it cannot be used, and what installs it."""
        return f"{self.reason}, install: {self.install_hint}" if self.install_hint else self.reason


@dataclass(frozen=True)
class TransportCapabilities:
    """What a transport can do. The conformance suite has a scenario for each flag, and fails a claim that does not hold.

    - ``output_format``: a value is asked for in the provider's own way: the request has its schema.
    - ``interrupts``: an agent that is asked to end its turn does so by itself.
    - ``hooks``: the program has each call judged by a hook of ours, and makes none whose judging fails.
    - ``sandbox``: commands reach neither the network nor a file beside the workspace, whatever policy lets run.
    - ``hot_context``: hand-off and route are asked where the work was done.
    - ``context_across_steps``: another step can go on with a session.
    - ``streaming``: events come while the turn runs.
    - ``rewind``: work can be taken back out of a session, which is one that ``Rewinds``.
    - ``native_tools``: the agent works with the program's own tools, not with ours.
    - ``tool_observation``: each call is seen to begin and to end.
    - ``tool_interception``: a call that is not allowed has no effect, and one that people are asked about waits.
    - ``project_context``: a trusted repository's own instructions are told to the agent.
    - ``questions``: the agent can ask, and goes on with the answer.
    - ``subagents``: it can have another agent do something, whose calls are seen as that one's.
    - ``parallel_calls``: it can make several calls at once.
    - ``retry_time``: when a provider says for how long it refuses, that is known.
    - ``steering``: it hears what is said to it while it works.
    - ``structured_output_fallback``: an answer that is no value of its schema is asked for again, within a bound.

    ``small_model`` is the model that answers what agents ask, where no other is set: empty for the program's own
    default, None where there is no model.
    """

    output_format: bool = False
    interrupts: bool = False
    hooks: bool = False
    sandbox: bool = False
    hot_context: bool = False
    context_across_steps: bool = False
    streaming: bool = False
    rewind: bool = False
    native_tools: bool = False
    tool_observation: bool = False
    tool_interception: bool = False
    project_context: bool = False
    max_context_tokens: int = 0
    provider_name: str = "unknown"
    structured_output_fallback: Literal["none", "microloop"] = "none"
    small_model: str | None = None
    questions: bool = False
    subagents: bool = False
    parallel_calls: bool = False
    steering: bool = False
    retry_time: bool = False


@dataclass(frozen=True)
class Park:
    """The answer to what cannot be answered while the session is held: end the turn as ``question`` or ``approval``."""

    reason: str


@dataclass(frozen=True)
class SessionSpec:
    """What a session is opened with.

    ``environment`` is the environment of the children, but for what the program itself needs to reach its model;
    ``private`` is a folder of the attempt's own (HOME, TMPDIR), ``state`` one of the run's own, where sessions are kept
    that later attempts resume; ``system`` is what the agent is told beside its own preset: the persona, then how steps
    work; ``resume`` is the id of a session to go on with; ``read_only`` forbids every edit. Only for a ``trusted``
    repository are settings, hooks, instructions and MCP servers of its own loaded, and never when ``deterministic``.
    ``place`` (step, visit, attempt, iteration) only names the attempt, for scripts and logs.

    ``on_question`` and ``on_call`` may take minutes: the time in them is not the agent's, so no watch over silence,
    seconds or time-outs runs meanwhile. They never raise, and may be cancelled. A call that policy asks about is made
    only once ``on_call`` allows it; one that is denied is reported as blocked, with the code that ``code_of_denial``
    gives. Without a callback nobody can be asked: as Park.
    """

    run_id: str
    place: Mapping[str, str | int]
    workspace: Path
    private: Path
    state: Path
    environment: Mapping[str, str]
    system: str
    model: str | None
    read_only: bool
    command_timeout_s: float
    no_output_s: float
    resume: str | None = None
    scenario: str | None = None
    trusted: bool = False
    deterministic: bool = False
    on_question: Callable[[Question], Awaitable[Answer | Park]] | None = None
    on_call: Callable[[CallRequest], Awaitable[CallDecision | Park]] | None = None


@dataclass(frozen=True)
class WorkRequest:
    """One work turn: the prompt, and how many tokens and seconds may be used (None: no bound).

    ``given`` is the answer to the question an earlier turn ended with; the prompt has it in words. ``on_output`` is
    called, without a thing to say, whenever a piece of something arrives that is an event only once it is whole: words,
    thoughts, the arguments of a call, what a command prints. What only keeps a line open is no output, else an agent
    that hangs would look like one that works. Never blocks, never raises.
    """

    prompt: str
    max_tokens: int | None = None
    max_seconds: float | None = None
    given: Given | None = None
    on_output: Callable[[], None] = unwatched


SESSION_LOST: Final = "session_lost"
"""The code of a turn that failed because the session it was to go on with turned out to be gone: it has done nothing."""

WorkEnd = Literal["completed", "question", "approval", "rate_limited", "budget", "failed"]


@dataclass(frozen=True)
class WorkOutcome:
    """How the turn ended. Anything but ``completed`` leaves work undone; ``error`` says why for ``failed``.

    ``question`` and ``call`` are what a turn that ended as ``question`` or ``approval`` was parked with.
    ``unheard`` are the texts that the turn took (``steer``) and that its session does not hold: its model never has them.
    """

    end: WorkEnd
    stop_reason: str = ""
    question: Question | None = None
    call: CallRequest | None = None
    retry_at: datetime | None = None
    error: ErrorEnvelope | None = None
    unheard: Sequence[str] = ()


@dataclass(frozen=True)
class StructuredResult:
    """A value that validates against the schema, or the error; ``reprompts`` counts the tries after the first.

    ``rate_limited``: there is no value since the provider refuses for now, until ``retry_at`` where it said so.
    """

    value: dict[str, Any] | None
    reprompts: int = 0
    error: ErrorEnvelope | None = None
    rate_limited: bool = False
    retry_at: datetime | None = None


@dataclass(frozen=True)
class StopReport:
    """Which rung of the ladder ended the turn."""

    method: StopMethod
    detail: str = ""


class StepSession(Protocol):
    """One agent session, opened once per attempt and used for work, finalize and route."""

    @property
    def session_id(self) -> str | None:
        """The id by which the session can be resumed, once it is known."""

    @property
    def mode(self) -> SessionMode:
        """Whether the session is new (cold), resumed, or (asked again) hot."""

    @property
    def resumable(self) -> bool:
        """Whether a later session can go on with this one's id."""

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        """Run one turn to its end. Raises nothing but CancelledError; a failure is an outcome."""

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        """Ask for a value of ``schema`` in a turn without write tools. Raises nothing but CancelledError."""

    async def steer(self, text: str) -> bool:
        """Say something to the agent while it works; True only if the turn that runs takes it."""

    async def interrupt(self, grace_s: float) -> StopReport:
        """End the running turn: ask, wait up to ``grace_s`` seconds, then end the process tree."""

    async def aclose(self) -> None:
        """End the session and everything it started; may be called twice."""


@runtime_checkable
class Rewinds(Protocol):
    """A session whose work can be taken back: what the flag ``rewind`` claims of a transport's sessions."""

    async def rewind(self) -> None:
        """Have the agent go on as if its last turn of work had never been; files stay as they are."""


class Transport(Protocol):
    """One kind of agent."""

    @property
    def name(self) -> str:
        """The name flows use."""

    @property
    def capabilities(self) -> TransportCapabilities:
        """What it can do."""

    @property
    def reports_cost(self) -> bool:
        """Whether ``usd`` budgets can be held."""

    def is_available(self) -> Availability:
        """Say whether it can be used on this machine, without starting anything."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StepSession:
        """Open (or, with ``spec.resume``, go on with) a session. Raises TransportError."""


@dataclass
class TransportError(Exception):
    """Raised when a session cannot be opened: the error as data, and whether only the resumed id was bad."""

    error: ErrorEnvelope
    resume_refused: bool = False
    details: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.error.message
