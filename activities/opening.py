"""Opening an attempt's session: the first transport of the list that takes it, resumed where that is possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from activities.context import WorkerContext
from activities.models import Models, models_of
from activities.prompt import DISCIPLINE
from activities.running import Stop
from activities.sessions import HeldSession
from activities.timeouts import seconds
from activities.trust import is_trusted
from flows.bundle import Bundle
from flows.personas import Persona, PersonaFile, parse_persona
from schemas.calls import AttemptKey
from schemas.envelopes import ErrorEnvelope
from schemas.flow import StepSpec
from schemas.handoff import SessionRef
from schemas.receipt import FallbackRecord
from schemas.run import FlowInput
from store.keys import input_key
from system.files import write_atomic
from system.logs import logger
from transports.port import SESSION_LOST, Emit, SessionSpec, TransportError

READ_ONLY = "read-only"
_log = logger("activities")


@dataclass
class Opening:
    """A session that was opened, with its model, or the error why none was; the transports that were passed over."""

    held: HeldSession | None = None
    model: str | None = None
    error: ErrorEnvelope | None = None
    fallbacks: list[FallbackRecord] = field(default_factory=list)
    stopped: bool = False

    def refuse(self, name: str, code: str, reason: str, error: ErrorEnvelope | None = None) -> None:
        """Note a transport that was passed over, with the routing-decision code."""
        self.fallbacks.append(FallbackRecord(transport=name, code=code, reason=reason[:500]))
        self.error = error or ErrorEnvelope(code=code, message=f"{name}: {reason}"[:2_000])

    def without(self, name: str, model: str, owner: str) -> None:
        """Note with the last that was passed over that the one which works instead has another model than was named."""
        if self.fallbacks:
            last = self.fallbacks[-1]
            said = f"{last.reason}; {name} takes its own model, since {model!r} was named for {owner}"
            self.fallbacks[-1] = last.model_copy(update={"reason": said[:1_000]})


def turned_out_lost(held: HeldSession, error: ErrorEnvelope | None) -> bool:
    """Tell whether a turn failed because the session it was to go on with is gone: a cold one does it instead.

    Some programs find that out only in a turn. A session that was begun cold has nothing to lose.
    """
    if error is None or error.code != SESSION_LOST or held.session.mode == "cold":
        return False
    _log.warning("the session of %s is lost, a cold one takes its place: %s", held.key.path, error.message)
    return True


def is_read_only(bundle: Bundle, step: StepSpec) -> bool:
    """Whether the step may change nothing."""
    return (step.policy or bundle.spec.defaults.policy) == READ_ONLY


@lru_cache(maxsize=256)
def _persona(key: str, text: str) -> Persona | None:
    return parse_persona(key, PersonaFile(key, text))[0]


def step_models(ctx: WorkerContext, key: AttemptKey, bundle: Bundle, step: StepSpec) -> Models:
    """Return the models that were named for a step. Blocks."""
    persona = _persona(step.agent, bundle.personas.get(step.agent, ""))
    given = ctx.evidence.get_model(input_key(key.run_id), FlowInput)
    named = persona.model if persona else None
    return models_of(bundle.spec, step, named, given, ctx.settings, ctx.transports)


def session_spec(
    ctx: WorkerContext,
    key: AttemptKey,
    iteration: int,
    bundle: Bundle,
    step: StepSpec,
    model: str | None = None,
) -> SessionSpec:
    """Return what a session of the attempt is opened with, all but the id it may be resumed by. Blocks."""
    folder = ctx.folder(key.run_id)
    private = folder.attempt(key)
    persona = _persona(step.agent, bundle.personas.get(step.agent, ""))
    given = ctx.evidence.get_model(input_key(key.run_id), FlowInput)
    return SessionSpec(
        run_id=key.run_id,
        place={
            "step": key.step_id,
            "visit": key.visit,
            "attempt": key.attempt,
            "iteration": iteration,
        },
        workspace=folder.workspace,
        private=private,
        environment=folder.environment(private, ctx.settings.environment),
        state=folder.private / "agents",
        system="\n\n".join(filter(None, [persona.text if persona else "", DISCIPLINE])),
        model=model,
        read_only=is_read_only(bundle, step),
        command_timeout_s=seconds(bundle.spec, step, "command"),
        no_output_s=seconds(bundle.spec, step, "no_output"),
        scenario=_scenario_file(folder.private, bundle),
        trusted=is_trusted(given, ctx.settings.trusted_repos),
        deterministic=given is not None and given.deterministic,
    )


async def open_session(
    ctx: WorkerContext,
    key: AttemptKey,
    names: list[str],
    spec: SessionSpec,
    session: SessionRef | None,
    emit: Emit,
    stop: Stop,
    trying: Callable[[str, str | None], None] = lambda _name, _model: None,
    models: Models | None = None,
) -> Opening:
    """Try the transports in order; an id that is refused is healed by a cold session on the same transport.

    ``trying`` hears the name of each, and its model, before anything is heard of its session. Each has its own of
    ``models``; without any that of ``spec``.
    """
    opening = Opening()
    for name in names:
        transport = ctx.transports.get(name)
        if transport is None:
            opening.refuse(name, "sdk_not_enabled", "the worker does not offer it")
            continue
        available = transport.is_available()
        if not available.ok:
            opening.refuse(name, "sdk_unavailable", str(available))
            continue
        model = models.of(name) if models is not None else spec.model
        trying(name, model)
        resume = None
        if session is not None and session.transport == name and session.resumable:
            resume = session.session_id
        for wanted in dict.fromkeys([resume, None]):
            if stop.reason is not None:
                opening.stopped = True
                return opening
            task = asyncio.ensure_future(
                ctx.sessions.open(key, transport, replace(spec, model=model, resume=wanted), emit)
            )
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                opening.stopped = True
                return opening
            try:
                opening.held = task.result()
            except TransportError as error:
                if wanted is not None and error.resume_refused:
                    continue
                opening.refuse(name, "sdk_error_message", error.error.message, error.error)
                break
            except Exception as error:  # noqa: BLE001 - a transport that breaks is passed over like one that refuses
                reason = f"{type(error).__name__}: {error}"
                known = ErrorEnvelope(code="sdk_exception", message=reason[:2_000], retryable=True)
                opening.refuse(name, "sdk_exception", reason, known)
                break
            else:
                opening.model = model
                withheld = models.withheld(name) if models is not None else None
                if withheld is not None:
                    opening.without(name, *withheld)
                return opening
    if opening.error is None:
        opening.error = ErrorEnvelope(code="sdk_unavailable", message="no transport could be used")
    return opening


def _scenario_file(private: Path, bundle: Bundle) -> str | None:
    if bundle.scenario is None:
        return None
    path = private / f"scenario-{bundle.digest[:16]}.yaml"
    if not path.exists():
        write_atomic(path, bundle.scenario.encode(), fsync=False)
    return str(path)
