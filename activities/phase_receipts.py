"""What a receipt says of the phases in which the agent was asked: sessions, calls, transcripts, what was missing."""

from __future__ import annotations

from collections.abc import Iterator

from activities.keeping import stored_logs
from schemas.calls import AnswerOut, RecordIn, WorkResult
from schemas.common import AgentPhase
from schemas.receipt import PhaseReceipt, ToolCallCounts
from schemas.tools import BlockedCall
from store.evidence import Evidence


def phase_receipts(evidence: Evidence, call: RecordIn, done: WorkResult | None) -> list[PhaseReceipt]:
    """Return what each phase of the agent left; of one that was lost, its logs as far as they were found. Blocks."""
    work, attempt = call.work, call.key.attempt
    found: list[PhaseReceipt] = []
    if work is not None:
        found.append(
            PhaseReceipt(
                phase="work",
                attempt=call.work_attempt or attempt,
                session=work.session_mode,
                tool_calls=work.tool_calls,
                blocked=work.tools_blocked,
                calls=done.tool_calls if done else None,
                transcript=done.transcript if done else None,
                error=work.error,
            )
        )
    for phase, out, done_in in _answers(call):
        if out is not None:
            found.append(
                PhaseReceipt(
                    phase=phase,
                    attempt=done_in or attempt,
                    session=out.session_mode,
                    tool_calls=out.tool_calls,
                    blocked=out.tools_blocked,
                    calls=out.calls,
                    transcript=out.transcript,
                    error=out.error,
                )
            )
        elif work is not None and call.execution_status != "succeeded":
            logs = stored_logs(evidence, call.key, phase)
            if logs:
                transcript, calls = logs.get("transcript"), logs.get("tool_calls")
                found.append(PhaseReceipt(phase=phase, attempt=attempt, calls=calls, transcript=transcript))
    return found


def tool_calls(call: RecordIn, done: WorkResult | None) -> ToolCallCounts:
    """Return how many calls the agent made in all its phases, and which of them policy blocked."""
    parts = [part for part in (call.work, call.finalize, call.route) if part is not None]
    blocked = list(call.work.blocked_calls) if call.work else []
    for phase, out, _ in _answers(call):
        blocked += [_in_phase(one, phase) for one in (out.blocked_calls if out else [])]
    return ToolCallCounts(
        count=sum(part.tool_calls for part in parts),
        blocked=sum(part.tools_blocked for part in parts),
        **({"blocked_calls": blocked} if blocked else {}),
        ref=done.tool_calls if done else None,
    )


def _answers(call: RecordIn) -> Iterator[tuple[AgentPhase, AnswerOut | None, int | None]]:
    yield "finalize", call.finalize, call.finalize_attempt
    yield "route", call.route, call.route_attempt


def _in_phase(blocked: BlockedCall, phase: AgentPhase) -> BlockedCall:
    return blocked.model_copy(update={"phase": phase})
