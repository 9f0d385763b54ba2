"""What Codex asks while it works: may this run, may this be changed, what do you want; and who answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from policy.commands import Verdict
from schemas.cutting import cut
from schemas.events import QuestionEvent
from schemas.questions import (
    OWN_JUDGEMENT,
    Answer,
    CallRequest,
    Question,
    QuestionItem,
    call_signature,
    code_of_denial,
)
from transports.codex_policy import COMMAND, READ_ONLY, judge_changes, judge_command, relative, script_of
from transports.codex_rollout import Rollout
from transports.codex_rpc import Unanswerable
from transports.codex_turn import Turn
from transports.pauses import Pauses
from transports.port import Park, SessionSpec, WorkOutcome

T = TypeVar("T")

_ACCEPT: Final = {"decision": "accept"}
_DECLINE: Final = {"decision": "decline"}
_PARKED: Final = Verdict("deny", "parked", "nobody decided it")
_NOBODY: Final = Park("nobody is there to ask")


class Desk:
    """Answers what one turn asks. ``parked`` is what it has to end with; ``pauses`` is the time people take.

    ``stop`` is set when the turn is to end. In a turn that ``only_reads`` nothing is changed and nobody is asked.
    """

    def __init__(
        self,
        spec: SessionSpec,
        turn: Turn,
        rollout: Rollout,
        session_id: str,
        *,
        stop: asyncio.Event,
        only_reads: bool,
    ) -> None:
        self.parked: WorkOutcome | None = None
        self.pauses = Pauses()
        self._spec = spec
        self._turn = turn
        self._rollout = rollout
        self._session_id = session_id
        self._stop = stop
        self._only_reads = only_reads
        self._changes_nothing = only_reads or spec.read_only
        self._judged: set[str] = set()

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the server; raises Unanswerable for one nobody answers."""
        match method:
            case "item/commandExecution/requestApproval":
                return await self._command(params)
            case "item/fileChange/requestApproval":
                return self._changes(str(params.get("itemId")))
            case "item/tool/requestUserInput":
                return await self._question(params)
            case _:
                raise Unanswerable

    async def _command(self, params: Mapping[str, Any]) -> dict[str, Any]:
        call_id = str(params.get("itemId"))
        made = await self._rollout.call(call_id)
        verdict = judge_command(params, made, self._spec.workspace, only_reads=self._changes_nothing)
        if call_id in self._judged:
            verdict = Verdict("deny", "escalation_refused", "a command is approved once")
        self._judged.add(call_id)
        if verdict.decision == "ask":
            verdict = await self._consent(call_id, params, verdict)
        return self._decision(call_id, verdict)

    def _changes(self, call_id: str) -> dict[str, Any]:
        running = self._turn.running.get(call_id)
        changes = running.item.get("changes") if running is not None else None
        verdict = judge_changes(changes or [], self._spec.workspace)
        if self._changes_nothing:
            verdict = READ_ONLY
        return self._decision(call_id, verdict)

    def _decision(self, call_id: str, verdict: Verdict) -> dict[str, Any]:
        """Return the answer to a judged call; nothing begins in a turn that is to end, and that is no block."""
        if verdict.decision == "allow":
            if self._stop.is_set() or self.parked is not None:
                return _DECLINE
            self._turn.accepted(call_id)
            return _ACCEPT
        if verdict is not _PARKED:
            self._turn.blocked[call_id] = f"{verdict.code}: {verdict.reason}"
        return _DECLINE

    async def _consent(self, call_id: str, params: Mapping[str, Any], verdict: Verdict) -> Verdict:
        """Ask people about a call that policy asks about; a Park ends the turn without it."""
        script = script_of(str(params["command"])) or ""
        cwd = relative(str(params["cwd"]), self._spec.workspace)
        request = CallRequest(
            call_id=call_id,
            signature=call_signature(COMMAND, {"command": script, "cwd": cwd}),
            tool_name=COMMAND,
            input=cut(script),
            code=verdict.code,
            reason=cut(verdict.reason, 1_900),
        )
        if self._only_reads:
            return replace(verdict, decision="deny")
        on_call = self._spec.on_call
        decision = _NOBODY if on_call is None else await self._asked(on_call(request))
        if isinstance(decision, Park):
            self._park(WorkOutcome(end="approval", stop_reason=decision.reason, call=request))
            return _PARKED
        if decision.allow:
            return Verdict("allow")
        return Verdict("deny", code_of_denial(decision), decision.reason or "denied")

    async def _question(self, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = [(str(each["id"]), _item(each)) for each in params["questions"]]
        if self._only_reads:
            return _answers({number: [OWN_JUDGEMENT] for number, _ in asked})
        question = Question(
            question_id=str(params["itemId"]),
            session_id=self._session_id,
            attempt=int(self._spec.place.get("attempt", 1)),
            items=[item for _, item in asked],
        )
        self._turn.emit(QuestionEvent(question=question))
        on_question = self._spec.on_question
        answer = _NOBODY if on_question is None else await self._asked(on_question(question))
        if isinstance(answer, Park):
            self._park(WorkOutcome(end="question", stop_reason=answer.reason, question=question))
            await self._turn.over.wait()
            raise Unanswerable
        return _answers({number: _words(answer, item.question) for number, item in asked})

    def _park(self, outcome: WorkOutcome) -> None:
        self.parked = self.parked or outcome
        self._turn.changed.set()

    async def _asked(self, said: Awaitable[T]) -> T | Park:
        """Await what people say; the time is not the agent's. A turn that is to end waits for nobody."""
        answering = asyncio.ensure_future(said)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            with self.pauses.pause():
                await asyncio.wait({answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return (
                answering.result()
                if answering.done() and not self._stop.is_set()
                else Park("the turn is to end")
            )
        finally:
            for task in (answering, stopping):
                task.cancel()
            self._turn.changed.set()


def _item(asked: Mapping[str, Any]) -> QuestionItem:
    options = [str(option["label"]) for option in asked.get("options") or []]
    return QuestionItem(
        question=str(asked["question"]), header=str(asked.get("header") or ""), options=options
    )


def _words(answer: Answer, question: str) -> list[str]:
    value = answer.answers.get(question, "")
    return [value] if isinstance(value, str) else list(value)


def _answers(words: Mapping[str, list[str]]) -> dict[str, Any]:
    return {"answers": {number: {"answers": said} for number, said in words.items()}}
