"""What an agent asks while it works: its session is held for the answer, for a while, and the run is told.

A transport calls back with a question, or with a tool call that policy asks about, and waits. The run learns of it by
a signal; what a person says comes back by the activity ``deliver``, to the desk of the attempt. If nobody answers in
time, or the run cannot be told, the turn ends with the question.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from temporalio.client import Client

from activities.answers import bounded, in_its_words
from activities.developer import Developer
from schemas.calls import ASKED, SETTLED, AttemptKey, DeliverOut
from schemas.common import Durable
from schemas.events import QuestionAnswered
from schemas.questions import Answer, CallDecision, CallRequest, Given, Question
from schemas.run_state import Asked, Settled
from store.errors import RedactionFailed
from store.evidence import Evidence
from system.logs import logger
from transports.pauses import Pauses
from transports.port import Emit, Park

Unanswered = Literal["human", "default", "fail"]
Tell = Callable[[str, Durable], Awaitable[None]]
"""Sends the run a signal; raises when it cannot."""

TELL_LIMIT_S: Final = 5.0
"""How long the run may take to be told, in seconds."""
_STEER_END_S: Final = 1.0
_OVER: Final = "the turn is over"
_log = logger("activities")


def teller(client: Client | None, workflow_id: str) -> Tell:
    """Return what sends a run its signals."""

    async def tell(name: str, payload: Durable) -> None:
        if client is None:
            raise RuntimeError("this worker has no client")
        handle = client.get_workflow_handle(workflow_id)
        await handle.signal(name, payload, rpc_timeout=timedelta(seconds=TELL_LIMIT_S))

    return tell


Word = Given | CallDecision


@dataclass(frozen=True)
class _Wait:
    """Something that was asked, and where the answer to it goes."""

    asked: Asked
    came: asyncio.Future[Word | Park]

    def fits(self, word: Word) -> bool:
        call = self.asked.call
        if isinstance(word, Given):
            return call is None
        return call is not None and call.signature == word.signature

    def end(self, word: Word | Park) -> None:
        if not self.came.done():
            self.came.set_result(word)


class Desk:
    """Where the questions and calls of one attempt's work wait for people, or are answered by the developer model.

    ``hold_s`` is how long each is waited for, ``unanswered`` what the step says of questions, ``decisions`` are calls
    people have decided already; ``spent`` says which of them were used up, None where none of them counts once. ``say``
    shows that somebody is waited for, ``note`` hears of every answer. Its callbacks never raise.
    """

    def __init__(
        self,
        key: AttemptKey,
        tell: Tell,
        evidence: Evidence,
        *,
        hold_s: float,
        unanswered: Unanswered = "human",
        decisions: Iterable[CallDecision] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.key = key
        self.developer: Developer | None = None
        self.note: Emit = lambda _: None
        self._asked: Counter[frozenset[str]] = Counter()
        self.pauses = Pauses()
        self._tell = tell
        self._evidence = evidence
        self._hold_s = hold_s
        self._unanswered = unanswered
        self._decisions = {decision.signature: decision for decision in decisions}
        once = any(decision.remember == "once" for decision in self._decisions.values())
        self.spent: list[str] | None = [] if once else None
        self._say = say
        self._waits: dict[str, _Wait] = {}
        self._given: dict[str, Word] = {}
        self._steered: dict[str, tuple[str, asyncio.Task[bool]]] = {}
        self._had: list[str] = []
        self._over: str | None = None
        self._begun = asyncio.Event()
        # Signals belong to the activity's trace, though a session that asks knows nothing of activities.
        self._context = contextvars.copy_context()
        self._order = asyncio.Lock()
        self._telling: set[asyncio.Task[bool]] = set()

    # What the transport calls.

    async def on_question(self, question: Question) -> Answer | Park:
        """Return the developer model's answer, a person's, or that of the step's policy; Park without any in time."""
        answer = await self._by_developer(question) or await self._by_people(question)
        if isinstance(answer, Answer):
            self.note(QuestionAnswered(question_id=question.question_id, answer=answer))
        return answer

    async def _by_developer(self, question: Question) -> Answer | None:
        """Ask the model: again with all it may know where its answer does not fit, or the agent asks once more."""
        asked = frozenset(item.question for item in question.items)
        before = self._asked[asked]
        self._asked[asked] += 1
        if self.developer is None or before > 1 or self._over is not None:
            return None
        self._say("waiting for the developer model")
        try:
            with self.pauses.pause():
                found = None if before else await self.developer.answer(question, everything=False)
                return found or await self.developer.answer(question, everything=True)
        finally:
            self._say("waiting for a person" if self._waits else "")

    async def _by_people(self, question: Question) -> Answer | Park:
        if self._unanswered == "default":
            return Answer(answers=question.defaults, source="default")
        if self._unanswered == "fail":
            return Park("the flow answers no questions")
        begun, deadline = time.monotonic(), self._deadline()
        try:
            shown = self.shown(question)
        except RedactionFailed as error:
            return Park(str(error))
        asked = Asked(
            id=question.question_id,
            key=self.key,
            question=shown.model_copy(update={"deadline": deadline}),
            deadline=deadline,
        )
        given = await self._wait(asked)
        if isinstance(given, Park):
            return given
        assert isinstance(given, Given)  # noqa: S101 - nothing else fits
        return Answer(
            answers=in_its_words(question, shown, given.answers),
            source="human",
            ms=int((time.monotonic() - begun) * 1_000),
        )

    async def on_call(self, request: CallRequest) -> CallDecision | Park:
        """Return what a person says of a call, or has said of it; Park where nobody does in time.

        What was said of one call is not used up in a turn that is to end: the next one makes it.
        """
        known = self._decisions.get(request.signature)
        if known is not None and known.remember == "run":
            return known
        if known is not None and self._over is None:
            self._spend(known)
            return known
        deadline = self._deadline()
        try:
            shown = self.shown_call(request).model_copy(update={"deadline": deadline})
        except RedactionFailed as error:
            return Park(str(error))
        decision = await self._wait(Asked(id=request.call_id, key=self.key, call=shown, deadline=deadline))
        if isinstance(decision, Park):
            return decision
        assert isinstance(decision, CallDecision)  # noqa: S101 - nothing else fits
        if decision.allow and decision.remember == "run":
            self._decisions[request.signature] = decision
        return decision

    def _spend(self, decision: CallDecision) -> None:
        del self._decisions[decision.signature]
        if self.spent is not None:
            self.spent.append(decision.signature)

    def shown(self, question: Question) -> Question:
        """Return a question as people see it: bounded and redacted. Raises RedactionFailed."""
        return self._evidence.redacted(bounded(question))

    def shown_call(self, request: CallRequest) -> CallRequest:
        """Return a call as people see it: redacted. Raises RedactionFailed."""
        return self._evidence.redacted(request)

    # What ``deliver`` calls.

    async def begun(self) -> None:
        """Wait until the agent is at its turn, or will never be."""
        await self._begun.wait()

    def take(self, wait_id: str, word: Word, delivery: str = "") -> DeliverOut:
        """Hand a person's word to what waits under this id; the same word again is taken too."""
        if wait_id in self._given:
            same = self._given[wait_id] == word
            return DeliverOut(live=same, detail="" if same else "it has another answer already")
        wait = self._waits.get(wait_id)
        if wait is None or wait.came.done():
            return DeliverOut(live=False, detail=f"nothing waits under {wait_id}")
        if not wait.fits(word):
            return DeliverOut(live=False, detail=f"it is no answer to what waits under {wait_id}")
        self._given[wait_id] = word
        self._had.append(delivery)
        wait.end(word)
        return DeliverOut(live=True)

    async def steer(self, text: str, delivery: str, into: Callable[[str], Coroutine[Any, Any, bool]]) -> bool:
        """Say something to the session, once however often it is delivered; False if it did not take it.

        A session that takes it when nobody waits for that any more has it all the same.
        """
        if delivery not in self._steered:
            loop = asyncio.get_running_loop()
            self._steered[delivery] = text, loop.create_task(into(text), context=contextvars.Context())
        _, said = self._steered[delivery]
        # Not awaited itself: the end of the turn may cancel it, and that is no cancellation of who waits here.
        await asyncio.wait({said})
        return not said.cancelled() and said.result()

    # What the work phase calls.

    def begin(self) -> None:
        """Let who waits for the agent's turn know that it has begun."""
        self._begun.set()

    async def had(self, unheard: Sequence[str] | None = ()) -> list[str]:
        """Return the ids of what the session has of what people said, now that its turn is over.

        What is on its way to it gets a moment to arrive, and is called back then. ``unheard`` are the texts that it took
        and does not have, None if any of them may be.
        """
        self.close()
        saying = [said for _, said in self._steered.values() if not said.done()]
        if saying:
            _, late = await asyncio.wait(saying, timeout=_STEER_END_S)
            for said in late:
                said.cancel()
            if late:
                await asyncio.wait(late, timeout=_STEER_END_S)
        lost = Counter(unheard)
        had = [*filter(None, self._had)]
        for word, (text, said) in self._steered.items():
            if lost[text]:
                lost[text] -= 1
            elif unheard is not None and _took(said):
                had.append(word)
        return had

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended, or is to end."""
        return self._over is not None

    def close(self, why: str = _OVER) -> None:
        """End every wait at once; from here on nothing is waited for."""
        self._over = self._over or why
        self._begun.set()
        for wait in self._waits.values():
            wait.end(Park(why))

    async def told(self) -> None:
        """Wait until the run has been told what is over, at most a few seconds."""
        self.close()
        if self._telling:
            _, late = await asyncio.wait(set(self._telling), timeout=2 * TELL_LIMIT_S)
            for task in late:
                task.cancel()

    def _deadline(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._hold_s)

    async def _wait(self, asked: Asked) -> Word | Park:
        if self._over is not None:
            return Park(self._over)
        if asked.id in self._waits:
            return Park(f"two questions have the id {asked.id}")
        until = time.monotonic() + self._hold_s
        self._given.pop(asked.id, None)
        came: asyncio.Future[Word | Park] = asyncio.get_running_loop().create_future()
        self._waits[asked.id] = _Wait(asked, came)
        self._say("waiting for a person")
        with self.pauses.pause():
            telling = self._start(self._send(ASKED, asked))
            first: set[asyncio.Future[Any]] = {telling, came}
            try:
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if not came.done() and not telling.result():
                    return Park("the run could not be told")
                await asyncio.wait({came}, timeout=max(0.0, until - time.monotonic()))
                return came.result() if came.done() else Park(f"nobody answered in {self._hold_s:g} seconds")
            finally:
                del self._waits[asked.id]
                self._say("waiting for a person" if self._waits else "")
                self._start(self._send(SETTLED, Settled(id=asked.id, key=self.key)))

    def _start(self, sending: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(sending, context=self._context.copy())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    async def _send(self, name: str, payload: Durable) -> bool:
        try:
            async with asyncio.timeout(TELL_LIMIT_S), self._order:
                await self._tell(name, payload)
        except Exception as error:  # noqa: BLE001 - whatever keeps the run from knowing, nobody will answer
            _log.warning("the run could not be told (%s): %s", name, error, extra={"run_id": self.key.run_id})
            return False
        return True


def _took(said: asyncio.Task[bool]) -> bool:
    return said.done() and not said.cancelled() and said.exception() is None and said.result()
