"""What stands between a Claude agent and its tools: policy first, then people where policy asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from policy.commands import Verdict
from schemas.cutting import cut
from schemas.events import QuestionEvent
from schemas.questions import Answer, CallRequest, Question, QuestionItem, call_signature, code_of_denial
from transports.claude_policy import QUESTION
from transports.pauses import Pauses
from transports.port import Emit, Park, SessionSpec, WorkOutcome

T = TypeVar("T")
Mode = Literal["closed", "work", "answer"]
"""Which turn runs: none, one of work, or one that is to answer and may only read."""
Judge = Callable[[str, Mapping[str, Any]], Verdict]
"""Judges a call by the tool's name and its arguments; may block."""

_MAX_REASON: Final = 2_000
_PARKED: Final = "Nobody can decide that now. The turn ends here; you will be told later."


@dataclass(frozen=True)
class Decision:
    """Whether a call is let through, with which arguments; if not, what the agent is told, and whether its turn ends."""

    allow: bool
    message: str = ""
    interrupt: bool = False
    arguments: Mapping[str, Any] | None = None


class Gate:
    """Judges every call of a session, its sub-agents' too; closed while no turn runs.

    ``reading`` names the tools that may be used in a turn that is to answer. ``parked`` is how a turn ended that was
    parked, ``waited_s`` how long people were waited for in it; ``before_park`` is called when one is to be parked.
    """

    def __init__(
        self,
        spec: SessionSpec,
        session_id: str,
        judge: Judge,
        blocked: dict[str, str],
        *,
        reading: Collection[str],
    ) -> None:
        self._spec = spec
        self._session_id = session_id
        self._judge = judge
        self._blocked = blocked
        self._asking: dict[str, Verdict] = {}
        self._pauses = Pauses()
        self._emit: Emit | None = None
        self._mode: Mode = "closed"
        self.reading = frozenset(reading)
        self.parked: WorkOutcome | None = None
        self.before_park: Callable[[], Awaitable[None]] | None = None

    def open(self, mode: Mode, emit: Emit) -> None:
        """Let calls through again, for a turn of this kind."""
        self._mode, self._emit = mode, emit
        self.parked = None
        self._pauses = Pauses()
        self._asking.clear()

    def close(self) -> None:
        """Let nothing through any more."""
        self._mode, self._emit = "closed", None

    @property
    def waited_s(self) -> float:
        """Seconds people were waited for in this turn."""
        return self._pauses.total_s

    async def screen(self, name: str, arguments: Mapping[str, Any], call_id: str) -> Verdict:
        """Return what policy says of a call, noting what it denies; an error in the policy is a denial."""
        try:
            verdict = await asyncio.to_thread(self._judged, name, arguments)
        except Exception as error:  # noqa: BLE001 - fail closed, whatever goes wrong
            verdict = Verdict("deny", "policy_error", f"the call could not be judged: {error!r}")
        if verdict.decision == "deny":
            self.block(call_id, verdict.code, verdict.reason)
        elif verdict.decision == "ask":
            self._asking[call_id] = verdict
        return verdict

    async def hook(
        self,
        name: str,
        arguments: Mapping[str, Any],
        call_id: str,
        *,
        allowed: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Judge a call, in the words of a ``PreToolUse`` hook; one that is allowed is made with ``allowed``."""
        verdict = await self.screen(name, arguments, call_id)
        if verdict.decision == "deny":
            return hook_says("deny", f"{verdict.code}: {verdict.reason}")
        if name == QUESTION:
            return {}  # whoever asks people is asked next
        if verdict.decision == "ask":
            return hook_says("ask", verdict.reason)
        return hook_says("allow", arguments=allowed)

    def block(self, call_id: str, code: str, reason: str) -> None:
        """Note why a call is not let through."""
        self._blocked[call_id] = f"{code}: {reason}"

    async def decide(self, name: str, arguments: Mapping[str, Any], call_id: str) -> Decision:
        """Decide what policy left to people: a question, or a call it asks about. Everything else is denied."""
        if self._mode == "work" and name == QUESTION:
            return await self._question(arguments, call_id)
        verdict = self._asking.pop(call_id, None)
        if self._mode == "closed" or verdict is None:
            self.block(call_id, "not_decided", "policy has not let this call through")
            return Decision(allow=False, message="This call was not let through.")
        return await self._consent(name, arguments, call_id, verdict)

    def _judged(self, name: str, arguments: Mapping[str, Any]) -> Verdict:
        if self._mode == "closed":
            return Verdict("deny", "turn_over", "the turn is over")
        if self._mode == "answer" and name not in self.reading:
            return Verdict("deny", "read_only", "in this turn you may only read, and answer")
        return self._judge(name, arguments)

    async def _consent(
        self, name: str, arguments: Mapping[str, Any], call_id: str, verdict: Verdict
    ) -> Decision:
        command = arguments.get("command")
        signed = {"command": command} if isinstance(command, str) else dict(arguments)
        request = CallRequest(
            call_id=call_id,
            signature=call_signature(name, signed),
            tool_name=name,
            input=cut(command) if isinstance(command, str) else cut(str(signed)),
            code=verdict.code,
            reason=verdict.reason[:_MAX_REASON],
        )
        on_call = self._spec.on_call
        said = Park("nobody is there to ask") if on_call is None else await self._asked(on_call(request))
        if isinstance(said, Park):
            self.block(call_id, "parked", said.reason)
            return await self._park(WorkOutcome(end="approval", stop_reason=said.reason, call=request))
        if said.allow:
            return Decision(allow=True, arguments=arguments)
        reason = f"denied: {said.reason}" if said.reason else "denied"
        code = code_of_denial(said)
        self.block(call_id, code, reason)
        who = "A human denied this call" if code == "denied_by_human" else "This call was denied"
        return Decision(allow=False, message=f"{who}: {said.reason or 'no reason given'}")

    async def _question(self, arguments: Mapping[str, Any], call_id: str) -> Decision:
        question = Question(
            question_id=call_id,
            session_id=self._session_id,
            attempt=int(self._spec.place.get("attempt", 1)),
            items=_items(arguments),
        )
        if self._emit is not None:
            self._emit(QuestionEvent(question=question))
        on_question = self._spec.on_question
        said: Answer | Park = Park("nobody is there to answer")
        if on_question is not None:
            said = await self._asked(on_question(question))
        if isinstance(said, Park):
            return await self._park(WorkOutcome(end="question", stop_reason=said.reason, question=question))
        answers = {
            text: words if isinstance(words, str) else ", ".join(words)
            for text, words in said.answers.items()
        }
        return Decision(allow=True, arguments={**arguments, "answers": answers})

    async def _park(self, outcome: WorkOutcome) -> Decision:
        """End the turn with what waits for people."""
        self.parked = outcome
        if self.before_park is not None:
            await self.before_park()
        return Decision(allow=False, message=_PARKED, interrupt=True)

    async def _asked(self, answer: Awaitable[T]) -> T:
        """Await what people say; the time is not the agent's."""
        with self._pauses.pause():
            return await answer


def hook_says(
    decision: str, reason: str = "", *, arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what a ``PreToolUse`` hook answers; ``arguments`` take the place of the call's own."""
    said: dict[str, Any] = {"hookEventName": "PreToolUse", "permissionDecision": decision}
    if reason:
        said["permissionDecisionReason"] = reason
    if arguments is not None:
        said["updatedInput"] = dict(arguments)
    return {"hookSpecificOutput": said}


def _items(arguments: Mapping[str, Any]) -> list[QuestionItem]:
    asked = [each for each in arguments.get("questions") or [] if isinstance(each, dict)]
    return [
        QuestionItem(
            question=str(each.get("question") or "What do you want to know?"),
            header=str(each.get("header") or ""),
            options=[
                str(option.get("label")) for option in each.get("options") or [] if isinstance(option, dict)
            ],
            multi_select=bool(each.get("multiSelect")),
        )
        for each in asked
    ] or [QuestionItem(question="(The agent asked an empty question.)")]
