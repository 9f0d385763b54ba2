"""What each action of a scenario does, and how it can end a turn."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar, assert_never

from schemas.common import Usage
from schemas.cutting import cut
from schemas.envelopes import ErrorEnvelope
from schemas.events import QuestionEvent, RateLimited, TextEvent, UsageEvent
from schemas.questions import (
    Answer,
    CallRequest,
    Given,
    Question,
    QuestionItem,
    call_signature,
    code_of_denial,
)
from schemas.scenario import (
    Action,
    Ask,
    Calls,
    CrashChild,
    CrashWorker,
    Edit,
    Fail,
    Hang,
    RateLimit,
    Run,
    Say,
    Stall,
    Together,
    UseTokens,
    Wait,
    WaitForSteer,
)
from transports.port import Emit, Park, SessionSpec, WorkOutcome
from transports.stub_tools import COMMAND, Call, Stopped, Tools

T = TypeVar("T")

POLL_S: Final = 0.02
"""How often a file that is waited for is looked for, in seconds."""

_MAX_LABEL_CHARS: Final = 120
_NO_END_S: Final = 10 * 365 * 86_400.0
# A real child each, since what is to be shown is what happens to children. No site: they start in milliseconds.
_PYTHON: Final = (sys.executable, "-I", "-S", "-c")
_HANG = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("hanging", flush=True)
while True:
    signal.pause()
"""
_HANGING: Final = (*_PYTHON, _HANG)
_CRASHING: Final = (*_PYTHON, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


def failed(code: str, message: str, *, retryable: bool) -> WorkOutcome:
    """Return the outcome of a turn that failed with this error; its stop reason is the code."""
    error = ErrorEnvelope(code=code, message=message, retryable=retryable)
    return WorkOutcome(end="failed", stop_reason=code, error=error)


def interrupted() -> WorkOutcome:
    """Return the outcome of a turn that was ended by an interrupt."""
    return failed("interrupted", "the turn was ended by an interrupt", retryable=True)


def ends_once(action: Action) -> bool:
    """Tell whether an action counts as done when it begins, since a resumed session could never get behind it."""
    return isinstance(action, RateLimit | Fail | CrashChild | CrashWorker | Hang)


def label_of(action: Action) -> str:
    """Return a few words that name an action: what it does and to what."""
    match action:
        case Edit(path=path):
            label = f"edit {path}"
        case Run(argv=argv):
            label = f"run {' '.join(argv)}"
        case Calls(count=count, name=name):
            label = f"calls {count} {name}"
        case _:
            label = action.do
    return label[:_MAX_LABEL_CHARS]


def answer_in(given: Given | None, question: str, question_id: str) -> str | None:
    """Return the words with which ``given`` answers a question, asked under this id or with this text."""
    if given is None:
        return None
    texts = [item.question for item in given.question.items]
    if given.question.question_id != question_id and question not in texts:
        return None
    value = given.answers.get(question if question in texts else texts[0], "")
    return value if isinstance(value, str) else ", ".join(value)


class Actor:
    """Does actions for one session; ``stop`` is set when its turn is to end.

    ``given`` is an answer the prompt of the turn has, ``heard`` what was said to the agent while it worked,
    ``waited_s`` how long it waited for people.
    """

    def __init__(
        self, spec: SessionSpec, session_id: str, stop: asyncio.Event, *, may_crash_worker: bool
    ) -> None:
        self._spec = spec
        self._session_id = session_id
        self._stop = stop
        self._may_crash_worker = may_crash_worker
        self.tools = Tools(spec, stop)
        self.given: Given | None = None
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.waited_s = 0.0

    async def do(self, action: Action, call_id: str, emit: Emit) -> WorkOutcome | None:
        """Do one action; None to go on, or how it ended the turn. Raises Stopped.

        What is parked is not done: a session that goes on comes to it again, with the answer.
        """
        match action:
            case Edit():
                self.tools.edit(action, call_id, emit)
            case Say():
                emit(TextEvent(text=action.text))
            case UseTokens():
                emit(UsageEvent(usage=_usage(action)))
            case Run():
                return await self._run(action, call_id, emit)
            case Calls():
                await self.tools.calls(action, call_id, emit)
            case Ask():
                return await self._ask(action, call_id, emit)
            case Together():
                return await self._together(action.actions, call_id, emit)
            case Stall():
                await self.tools.heeding_stop(asyncio.sleep(action.seconds))
            case Wait():
                await self.tools.heeding_stop(_appearance(Path(action.path)))
            case WaitForSteer():
                words = await self.tools.heeding_stop(self.heard.get())
                if action.save_to is not None:
                    self.tools.write(action.save_to, words, call_id, emit)
            case Hang():
                return await self._hang(call_id, emit)
            case RateLimit():
                return _rate_limited(action, emit)
            case Fail():
                return failed(action.code, action.message, retryable=action.retryable)
            case CrashChild():
                await self.tools.process(_CRASHING, timeout_s=self._spec.command_timeout_s)
                return _crashed()
            case CrashWorker():
                if self._may_crash_worker:
                    os.kill(os.getpid(), signal.SIGKILL)
                return failed("not_allowed", "this worker may not be killed by scenarios", retryable=False)
            case _:
                assert_never(action)
        return None

    async def _run(self, action: Run, call_id: str, emit: Emit) -> WorkOutcome | None:
        if not action.ask or self._spec.read_only:
            await self.tools.run(action, call_id, emit)
            return None
        given = json.dumps(action.argv, ensure_ascii=False)
        request = CallRequest(
            call_id=call_id,
            signature=call_signature(COMMAND, action.argv),
            tool_name=COMMAND,
            input=cut(given),
            code="asked_by_scenario",
            reason=action.reason,
        )
        if self._spec.on_call is None:
            return WorkOutcome(end="approval", stop_reason="nobody is there to ask", call=request)
        decision = await self._asked(self._spec.on_call(request))
        if isinstance(decision, Park):
            return WorkOutcome(end="approval", stop_reason=decision.reason, call=request)
        if decision.allow:
            await self.tools.run(action, call_id, emit)
        else:
            call = Call(call_id=call_id, name=COMMAND, given=given, emit=emit)
            reason = f"denied: {decision.reason}" if decision.reason else "denied"
            call.blocked(code_of_denial(decision), reason)
        return None

    async def _asked(self, answer: Awaitable[T]) -> T:
        """Await what people say; the time is not the agent's. Raises Stopped."""
        begun = time.monotonic()
        try:
            said = await self.tools.heeding_stop(answer)
        finally:
            self.waited_s += time.monotonic() - begun
        if isinstance(said, Park) and self._stop.is_set():
            raise Stopped
        return said

    async def _ask(self, action: Ask, call_id: str, emit: Emit) -> WorkOutcome | None:
        known = answer_in(self.given, action.question, call_id)
        if known is not None:
            self.given = None
            self.take_answer(known, action.save_to, call_id, emit)
            return None
        item = QuestionItem(
            question=action.question,
            header=action.header,
            options=action.options,
            multi_select=action.multi_select,
        )
        question = Question(
            question_id=call_id,
            session_id=self._session_id,
            attempt=int(self._spec.place["attempt"]),
            items=[item],
        )
        emit(QuestionEvent(question=question))
        answer: Answer | Park = Park("nobody is there to answer")
        if self._spec.on_question is not None:
            answer = await self._asked(self._spec.on_question(question))
        if isinstance(answer, Park):
            return WorkOutcome(end="question", stop_reason=answer.reason, question=question)
        self.take_answer(_words(answer, action.question), action.save_to, call_id, emit)
        return None

    async def _together(self, actions: Sequence[Run | Ask], call_id: str, emit: Emit) -> WorkOutcome | None:
        """Do actions at the same time; the first that ends the turn ends the others."""
        tasks = [
            asyncio.create_task(self.do(action, f"{call_id}.{number}", emit))
            for number, action in enumerate(actions)
        ]
        try:
            for done in asyncio.as_completed(tasks):
                outcome = await done
                if outcome is not None:
                    return outcome
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return None

    def take_answer(self, text: str, save_to: str | None, call_id: str, emit: Emit) -> None:
        """Note an answer in the transcript, and in the file that was asked for."""
        emit(TextEvent(role="user", text=text))
        if save_to is not None:
            self.tools.write(save_to, text, call_id, emit)

    async def _hang(self, call_id: str, emit: Emit) -> WorkOutcome:
        call: Call | None = None

        def show(_: bytes) -> None:
            # Only now does it ignore SIGTERM: whoever sees the call begin can rely on that.
            nonlocal call
            call = call or Call(call_id=call_id, name="stub.hang", given="", emit=emit)

        try:
            await self.tools.process(_HANGING, timeout_s=_NO_END_S, grace_s=0, on_output=show)
        finally:
            if call is not None:
                call.ended(success=False, output="killed")
        return _crashed()  # only somebody else can have ended it


def _crashed() -> WorkOutcome:
    return failed("agent_crashed", "the agent's process was killed", retryable=True)


def _usage(action: UseTokens) -> Usage:
    return Usage(prompt=action.prompt, completion=action.completion, cost_usd=action.cost_usd or 0.0)


def _rate_limited(action: RateLimit, emit: Emit) -> WorkOutcome:
    retry_at = None if action.seconds is None else datetime.now(UTC) + timedelta(seconds=action.seconds)
    emit(RateLimited(reset_at=retry_at, message="the scenario says so"))
    return WorkOutcome(end="rate_limited", stop_reason="rate_limited", retry_at=retry_at)


def _words(answer: Answer, question: str) -> str:
    value = answer.answers.get(question)
    return (
        json.dumps(answer.answers) if value is None else value if isinstance(value, str) else ", ".join(value)
    )


async def _appearance(path: Path) -> None:
    # Nobody tells when a file of another process appears, and to look is cheaper than a thread.
    while not path.exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(POLL_S)
