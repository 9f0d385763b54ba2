"""The flow file: steps, gates, routing, bounds. Closed: an unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.common import Budget, Closed, StepId, Verification

Operator = Literal["equals", "not_equals", "in", "not_in", "contains"]
Scalar = str | int | float | bool
GateParser = Literal["exit_code", "junit", "coverage"]
OnExhausted = Literal["escalate", "advance", "terminate"]
Seconds = Annotated[int, Field(gt=0)]

DAY_S = 86_400
DEFAULT_MAX_ITERATIONS = 3
DEFAULT_MAX_ITERATIONS_WITH_QUALITY = 5


class Linear(Closed):
    """Go to ``next``."""

    kind: Literal["linear"]
    next: StepId


class ExitOn(Closed):
    """The claimed statuses that end a loop which has neither a required gate nor a score."""

    status: list[Verification] = ["VERIFIED"]


class Quality(Closed):
    """A score asked of each iteration: the loop ends at ``threshold`` (0-100) or when it stops improving."""

    threshold: float = Field(default=70, ge=0, le=100, allow_inf_nan=False)
    min_improvement: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    scorer: str = "default"


class Stall(Closed):
    """How many iterations with the same failure and no file change count as stalled."""

    window: int = Field(default=3, ge=2, le=20)
    exempt_tools: list[str] = []


class Microloop(Closed):
    """Go back to ``loop_target`` until an exit holds, then to ``next``."""

    kind: Literal["microloop"]
    loop_target: StepId
    next: StepId
    max_iterations: int | None = Field(default=None, ge=1, le=20)
    exit_on: ExitOn = ExitOn()
    quality: Quality | None = None
    stall: Stall = Stall()
    timeout: Seconds | None = None
    on_exhausted: OnExhausted = "escalate"

    @property
    def bound(self) -> int:
        """The number of iterations after which the loop ends in any case."""
        if self.max_iterations is not None:
            return self.max_iterations
        return DEFAULT_MAX_ITERATIONS_WITH_QUALITY if self.quality else DEFAULT_MAX_ITERATIONS


class When(Closed):
    """Go to ``next`` if the fact ``field`` compares to ``value``."""

    field: str
    operator: Operator
    value: Scalar | list[Scalar]
    next: StepId


class Branch(Closed):
    """Choose among steps: by rules (first match, else ``default``) or by the agent (never unchecked)."""

    kind: Literal["branch"]
    when: list[When] = []
    default: StepId | None = None
    decided_by: Literal["rules", "agent"] = "rules"


class Terminal(Closed):
    """The run ends after this step."""

    kind: Literal["terminal"]


Routing = Annotated[Linear | Microloop | Branch | Terminal, Field(discriminator="kind")]


class Gate(Closed):
    """A command the engine runs in the workspace, without a shell, to measure the tree.

    ``{report}`` in ``argv`` stands for the file a ``junit`` or ``coverage`` report is read from.
    """

    name: StepId
    argv: list[str] = Field(min_length=1)
    timeout: Seconds | None = None
    parse: GateParser = "exit_code"
    required: bool = True
    before: bool = True


class Timeouts(Closed):
    """Seconds for each kind of wait; a step's beat the flow's, the flow's beat the worker's."""

    gate: Seconds | None = None
    command: Seconds | None = None
    push: Seconds | None = None
    work: Seconds | None = None
    finalize: Seconds | None = None
    route: Seconds | None = None
    no_output: Seconds | None = None
    answer: Seconds | None = None


DEFAULT_TIMEOUTS: dict[str, int] = {
    "gate": 600,
    "command": 120,
    "push": 180,
    "work": 3_600,
    "finalize": 180,
    "route": 180,
    "no_output": 300,
    "answer": 60,
}


class Retries(Closed):
    """How often one visit of a step is tried again before a human is asked."""

    agent: int = Field(default=1, ge=0, le=20)
    infrastructure: int = Field(default=5, ge=0, le=50)


class Questions(Closed):
    """What happens to a question nobody answered."""

    unanswered: Literal["human", "default", "fail"] = "human"


class Developer(Closed):
    """How often the developer model reads along (0: never)."""

    review_every_turns: int = Field(default=0, ge=0)


class Interrupt(Closed):
    """How many seconds an agent gets to stop by itself."""

    grace_s: float = Field(default=10, ge=0, le=600)


class Human(Closed):
    """How long a step waits for a human (seconds), and what silence means."""

    deadline: Seconds = 7 * DAY_S
    on_silence: Literal["fail", "default", "keep_waiting"] = "fail"


class Context(Closed):
    """How many characters of earlier hand-offs the prompt may carry."""

    max_chars: int = Field(default=200_000, ge=1_000, le=1_000_000)


class StepSpec(Closed):
    """One step: an agent, an objective, gates that measure it, a rule where to go next."""

    id: StepId
    agent: str
    objective: str
    routing: Routing
    inputs: list[StepId] = []
    outputs: list[str] = []
    transport: str | list[str] | None = None
    model: str | None = None
    gates: list[Gate] = Field(default=[], max_length=20)
    approval: Literal["none", "before", "after"] = "none"
    budget: Budget | None = None
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    tools: list[str] | None = None
    policy: str | None = None
    questions: Questions = Questions()
    developer: Developer = Developer()
    mcp_servers: list[str] = []
    skills: list[str] = []
    subagents: list[str] = []
    interrupt: Interrupt = Interrupt()
    human: Human = Human()
    requires_evidence: bool = False
    context: Context = Context()

    def required_gates(self) -> list[Gate]:
        """Return the gates that must pass for the step to be verified."""
        return [gate for gate in self.gates if gate.required]


class Param(Closed):
    """A parameter of a flow; ``argv`` is a list of words, spliced where an argv element is ``${params.name}``."""

    type: Literal["string", "integer", "number", "boolean", "argv"] = "string"
    default: Scalar | list[str] | None = None
    required: bool = False
    help: str = ""


class Defaults(Closed):
    """What steps use where they say nothing."""

    transport: str | list[str] | None = None
    model: str | None = None
    budget: Budget | None = None
    timeouts: Timeouts = Timeouts()
    policy: str | None = None


class Chain(Closed):
    """The flow that follows."""

    flow: str


class FlowSpec(Closed):
    """A flow file. The first step is where a run begins."""

    id: StepId
    version: int = Field(ge=1)
    title: str
    description: str = ""
    params: dict[StepId, Param] = {}
    defaults: Defaults = Defaults()
    setup: list[list[str]] = []
    steps: list[StepSpec] = Field(min_length=1)
    on_complete: Chain | None = None
    on_failure: Chain | None = None

    @model_validator(mode="after")
    def _step_ids_are_unique(self) -> FlowSpec:
        seen: set[str] = set()
        for step in self.steps:
            if step.id in seen:
                message = f"step id {step.id!r} is used twice; give each step its own id"
                raise ValueError(message)
            seen.add(step.id)
        return self

    def step(self, step_id: str) -> StepSpec | None:
        """Return the step with this id, or None."""
        return next((step for step in self.steps if step.id == step_id), None)
