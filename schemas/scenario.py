"""The scenario file: a script for the ``stub`` transport, per step and visit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.common import Closed, StepId


class Edit(Closed):
    """Write, replace in, append to, or delete a file of the workspace.

    Exactly one of ``content`` (write whole), ``replace`` + ``with`` (first occurrence; missing text is a failed
    call), ``append`` and ``delete: true``.
    """

    do: Literal["edit"]
    path: str
    content: str | None = None
    replace: str | None = None
    with_: str | None = Field(default=None, alias="with")
    append: str | None = None
    delete: bool = False


class Run(Closed):
    """Run a command in the workspace, without a shell; a non-zero exit is a failed call, not a failed turn.

    ``ask``: policy asks a human about this command first, for ``reason``. ``finish``: an interrupt waits for its end.
    """

    do: Literal["run"]
    argv: list[str] = Field(min_length=1)
    timeout: float | None = Field(default=None, gt=0)
    ask: bool = False
    reason: str = ""
    finish: bool = False


class Say(Closed):
    """Write text."""

    do: Literal["say"]
    text: str


class Ask(Closed):
    """Ask a question; its answer is written to the transcript (and to ``save_to``, if given)."""

    do: Literal["ask"]
    question: str
    header: str = ""
    options: list[str] = []
    multi_select: bool = False
    save_to: str | None = None


class Together(Closed):
    """Run commands and ask questions at the same time; where one ends the turn, all are done again by who resumes."""

    do: Literal["together"]
    actions: list[Annotated[Run | Ask, Field(discriminator="do")]] = Field(min_length=1, max_length=20)


class Calls(Closed):
    """Make ``count`` tool calls with ``bytes`` characters of output each."""

    do: Literal["calls"]
    count: int = Field(ge=1, le=100_000)
    bytes: int = Field(default=0, ge=0, le=1_000_000)
    name: str = "stub.noop"


class UseTokens(Closed):
    """Report tokens as used."""

    do: Literal["tokens"]
    prompt: int = Field(default=0, ge=0)
    completion: int = Field(default=0, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)


class Stall(Closed):
    """Emit nothing for ``seconds`` (cooperative: an interrupt ends it at once)."""

    do: Literal["stall"]
    seconds: float = Field(gt=0)


class Hang(Closed):
    """Run a child that ignores TERM and never ends: only killing it helps."""

    do: Literal["hang"]


class Wait(Closed):
    """Wait until the file ``path`` (absolute) exists: lets a test hold a turn open without a clock."""

    do: Literal["wait_for_file"]
    path: str


class WaitForSteer(Closed):
    """Wait until a human says something to the agent at work; the words go to ``save_to``, if given."""

    do: Literal["wait_for_steer"]
    save_to: str | None = None


class RateLimit(Closed):
    """Be rate limited for ``seconds``, or without being told how long; the turn ends and is tried again after that."""

    do: Literal["rate_limit"]
    seconds: float | None = Field(default=None, gt=0)


class Fail(Closed):
    """End the turn as failed with this error."""

    do: Literal["fail"]
    code: str = "agent_failed"
    message: str = "the scenario says so"
    retryable: bool = True


class CrashChild(Closed):
    """Let the agent's process die in the middle of its turn."""

    do: Literal["crash_child"]


class CrashWorker(Closed):
    """kill -9 the worker process; honoured only where the worker's setting ``stub_may_crash_worker`` is on."""

    do: Literal["crash_worker"]


Action = Annotated[
    Edit
    | Run
    | Say
    | Ask
    | Together
    | Calls
    | UseTokens
    | Stall
    | Hang
    | Wait
    | WaitForSteer
    | RateLimit
    | Fail
    | CrashChild
    | CrashWorker,
    Field(discriminator="do"),
]


class Answering(Closed):
    """What the agent answers to one structured request (finalize or route).

    ``value`` overrides fields of a well-formed default; ``raw`` is given as it is, one per try, so that bad JSON
    can come first; ``actions`` are done before the answer (an edit here makes the evidence stale).
    """

    value: dict[str, Any] = {}
    raw: list[str] = []
    actions: list[Action] = []


class Turn(Closed):
    """One visit of a step: what the agent does in work, then what it answers in finalize and route."""

    work: list[Action] = []
    finalize: Answering = Answering()
    route: Answering = Answering()


class StepScript(Closed):
    """The turns of a step, one per visit; the last one repeats. ``resumed`` is the turn of a resumed attempt."""

    turns: list[Turn] = Field(min_length=1)
    resumed: Turn | None = None


class Scenario(Closed):
    """A scenario file. Steps it does not name do nothing and claim UNVERIFIED."""

    version: Literal[1]
    description: str = ""
    steps: dict[StepId, StepScript] = {}
