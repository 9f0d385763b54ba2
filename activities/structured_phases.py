"""Finalize and route: what the agent says of its work and where to go, in its own session, without write tools."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from activities.answering import Answer, Asking, ask
from activities.context import OpenRun, WorkerContext, now
from activities.errors import translated
from activities.heartbeat import Beat, beating
from activities.running import Stop
from activities.workspace import open_run, settle
from schemas.calls import AnswerOut, FinalizeOut, ProposeOut, SessionPhaseIn
from schemas.handoff import MAX_SUMMARY_CHARS, HandoffDraft
from schemas.routing import RoutingSignal

Out = TypeVar("Out", bound=AnswerOut)

MAX_DRAFT_ITEMS: Final = 20
MAX_DRAFT_CHARS: Final = 1_000
MAX_NOTES_CHARS: Final = 20_000
_HEADLINE_CHARS: Final = 300
_STORED_ALONE: Final = {"transcript", "calls"}

_FINALIZE: Final = """\
Your work on this step is over; do not change anything any more. Hand it over to the next step: what is its state, what
was decided and assumed, what blocks, what should the next step know. Say only what is true: the engine has measured
what it can, and both are recorded."""
_ROUTE: Final = """\
Say where this run should go from here. The engine decides; your advice counts where the flow leaves it to you. Change
nothing."""


async def finalize(ctx: WorkerContext, call: SessionPhaseIn) -> FinalizeOut:
    """Ask for the hand-off draft. That there is none is a value; only the engine's own faults raise."""
    async with beating(ctx.settings.heartbeat_every_s) as beat:
        with translated():
            return await ctx.running.phase(call.key.run_id, lambda stop: _finalize(ctx, call, beat, stop))


async def propose_route(ctx: WorkerContext, call: SessionPhaseIn) -> ProposeOut:
    """Ask for a routing signal. That there is none is a value; only the engine's own faults raise."""
    async with beating(ctx.settings.heartbeat_every_s) as beat:
        with translated():
            return await ctx.running.phase(call.key.run_id, lambda stop: _propose(ctx, call, beat, stop))


async def _finalize(ctx: WorkerContext, call: SessionPhaseIn, beat: Beat, stop: Stop) -> FinalizeOut:
    key = call.key
    await _begin(ctx, call)
    stored = await ctx.blocking(ctx.results.load, key, FinalizeOut)
    if stored is not None:
        return told(stored)
    opened = await open_run(ctx, key.run_id, call.lease)
    bundle = await ctx.bundle(call.bundle)
    asking = Asking(ctx, call, bundle, bundle.step(key.step_id), "finalize", stop)
    answer = await ask(asking, _FINALIZE, HandoffDraft)
    beat.say("storing the draft")
    draft = _cut(answer.value) if isinstance(answer.value, HandoffDraft) else None
    ref = await ctx.blocking(ctx.evidence.put_model, f"{key.path}/draft.json", draft) if draft else None
    ctx.crash_at("finalize.draft")
    out = FinalizeOut(
        **await _outcome(opened, answer),
        draft=ref,
        claimed_status=draft.status if draft else None,
        can_further_iteration_help=draft.can_further_iteration_help if draft else "unsure",
        headline=_headline(ctx, draft),
        reprompts=answer.reprompts,
    )
    await ctx.blocking(ctx.results.save, key, out)
    ctx.crash_at("finalize.done")
    return told(out)


async def _propose(ctx: WorkerContext, call: SessionPhaseIn, beat: Beat, stop: Stop) -> ProposeOut:
    key = call.key
    await _begin(ctx, call)
    stored = await ctx.blocking(ctx.results.load, key, ProposeOut)
    if stored is not None:
        return told(stored)
    opened = await open_run(ctx, key.run_id, call.lease)
    bundle = await ctx.bundle(call.bundle)
    prompt = f"{_ROUTE}\n\nThe ways on: {', '.join(call.candidates) or 'none is named'}."
    asking = Asking(ctx, call, bundle, bundle.step(key.step_id), "route", stop)
    answer = await ask(asking, prompt, RoutingSignal)
    beat.say("storing the signal")
    signal = answer.value if isinstance(answer.value, RoutingSignal) else None
    out = ProposeOut(**await _outcome(opened, answer), signal=signal)
    await ctx.blocking(ctx.results.save, key, out)
    ctx.crash_at("route.done")
    return told(out)


def told(out: Out) -> Out:
    """Return a result as history has it: without what only the store is asked for, and what is as it would be anyway."""
    return type(out).model_validate(out.model_dump(exclude_defaults=True, exclude=_STORED_ALONE))


async def _begin(ctx: WorkerContext, call: SessionPhaseIn) -> None:
    await ctx.check_lease(call.key.run_id, call.lease)
    if call.journal:
        await ctx.blocking(ctx.journal.flush, call.key.run_id, call.journal)


async def _outcome(opened: OpenRun, answer: Answer) -> dict[str, Any]:
    """Return what both phases have in common; the tree is put back to what the work left."""
    totals = answer.totals
    return {
        "ended": answer.ended,
        "tree": (await settle(opened)).tree,
        "session_mode": answer.mode,
        "usage": totals.usage,
        "tool_calls": totals.tool_calls,
        "tools_blocked": totals.blocked,
        "blocked_calls": list(totals.blocked_calls),
        "elapsed_ms": answer.elapsed_ms,
        "retry_at": answer.retry_at,
        "ended_at": now(),
        "error": answer.error,
        "transcript": answer.logs.get("transcript"),
        "calls": answer.logs.get("tool_calls"),
    }


def _cut(draft: HandoffDraft) -> HandoffDraft:
    def items(texts: list[str]) -> list[str]:
        return [text[:MAX_DRAFT_CHARS] for text in texts[:MAX_DRAFT_ITEMS]]

    return draft.model_copy(
        update={
            "summary": draft.summary[:MAX_SUMMARY_CHARS],
            "notes_for_next_step": draft.notes_for_next_step[:MAX_NOTES_CHARS],
            "proposed_next_step": draft.proposed_next_step and draft.proposed_next_step[:MAX_DRAFT_CHARS],
            "assumptions": items(draft.assumptions),
            "decisions": items(draft.decisions),
            "blockers": items(draft.blockers),
            "evidence_names": items(draft.evidence_names),
        }
    )


def _headline(ctx: WorkerContext, draft: HandoffDraft | None) -> str:
    """Return the first line of the summary for history, where nothing else redacts it."""
    lines = draft.summary.strip().splitlines() if draft else []
    return ctx.evidence.redactor.text(lines[0][:_HEADLINE_CHARS])[:_HEADLINE_CHARS] if lines else ""
