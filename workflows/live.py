"""The session that works now: what it asks humans, and what is on its way to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from temporalio import workflow

from schemas.calls import AttemptKey, DeliverIn, DeliverOut, WorkOut
from schemas.questions import CallDecision, Given
from schemas.run_state import Asked
from workflows.phases import Phases

Told = Callable[[DeliverOut], None]
Word = Given | CallDecision


class Live:
    """Questions and calls that wait while the agent works, and deliveries to its session, one after another.

    What was answered too late for the session is kept for the next one: ``given`` by question, ``decided`` by the
    signature of the call. What it has had is not: it would count twice. Of what may have reached it, and of texts that
    it took, the end of its work says whether it had them.
    """

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._asked: dict[str, tuple[Asked, datetime]] = {}
        self._queue: deque[tuple[DeliverIn, Told]] = deque()
        self._delivering = False
        self.given: dict[str, Given] = {}
        self.decided: dict[str, CallDecision] = {}
        self._unsure: dict[str, Word | str] = {}
        self._texts: dict[str, str] = {}
        self._had: set[str] = set()
        self._open: set[str] = set()
        self._words = 0

    @property
    def first(self) -> tuple[Asked, datetime] | None:
        """What has waited longest, and since when."""
        return next(iter(self._asked.values()), None)

    @property
    def asked(self) -> list[tuple[Asked, datetime]]:
        """Everything that waits, in the order in which it was asked."""
        return list(self._asked.values())

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way to the session."""
        return not self._queue and not self._delivering

    def add(self, asked: Asked) -> bool:
        """Note what the session asks; False if it is known."""
        if asked.id in self._asked:
            return False
        self._asked[asked.id] = (asked, workflow.now())
        return True

    def end(self, had: Sequence[str]) -> list[str]:
        """Note that its work is over, and which words it had; return the texts that it was told and has not had.

        Of work that was lost nobody knows: all its texts are among them, and told again.
        """
        self.over()
        self._open.clear()
        self._had.update(had)
        unsure, self._unsure = {**self._texts, **self._unsure}, {}
        self._texts = {}
        for word in (what for key, what in unsure.items() if key in self._had and not isinstance(what, str)):
            self.had(word)
        return [what for key, what in unsure.items() if key not in self._had and isinstance(what, str)]

    def doubt(self) -> None:
        """Forget consents that a session may have had whose work is lost: its calls are asked about again."""
        for word in self._unsure.values():
            if isinstance(word, CallDecision) and word.allow:
                self.had(word)

    def over(self) -> None:
        """Forget all that was asked: nobody waits for it."""
        self._asked.clear()

    def took(self, word_id: str, what: Word | str, out: DeliverOut) -> bool | None:
        """Tell whether the session has a word; None where only the end of the work that it was said to will say."""
        if out.live and isinstance(what, str) and word_id not in self._had:
            if word_id in self._open:
                self._texts[word_id] = what
            # Else the work that took it was lost.
            return word_id in self._open
        if out.live or word_id in self._had:
            return True
        if out.unsure and word_id in self._open:
            self._unsure[word_id] = what
            return None
        return False

    def word_id(self) -> str:
        """Return an id for what a person says to the session that works now."""
        self._words += 1
        word_id = f"word-{self._words}"
        self._open.add(word_id)
        return word_id

    def parked(self, key: AttemptKey, out: WorkOut) -> None:
        """Keep what a work phase ended with as asked, until the run waits for it: it can be answered at once."""
        question, call = out.question, out.call
        if question is not None and question.question_id not in self.given:
            self.add(Asked(id=question.question_id, key=key, question=question))
        elif call is not None and call.signature not in self.decided:
            self.add(Asked(id=call.call_id, key=key, call=call))

    def answered(self, asked_id: str, word: Word) -> None:
        """Keep what a person says until the session has it; a second answer finds nothing that waits."""
        self._asked.pop(asked_id, None)
        if isinstance(word, Given):
            self.given[word.question.question_id] = word
        else:
            self.decided[word.signature] = word

    def had(self, word: Word) -> None:
        """Forget an answer or a decision: the session has it."""
        if isinstance(word, Given):
            self.given.pop(word.question.question_id, None)
        else:
            self.decided.pop(word.signature, None)

    def too_late(self) -> tuple[list[Given], list[CallDecision]]:
        """Return, once, what no session has had: answers and decisions, in the order in which they were said."""
        given, decided = list(self.given.values()), list(self.decided.values())
        self.given.clear()
        self.decided.clear()
        return given, decided

    def deliver(self, call: DeliverIn, told: Told) -> None:
        """Hand something to the session; ``told`` hears whether it took it."""
        self._queue.append((call, told))

    async def pump(self) -> None:
        """Deliver what comes, for ever."""
        while True:
            await workflow.wait_condition(lambda: bool(self._queue))
            call, told = self._queue.popleft()
            self._delivering = True
            out = await self._phases.deliver(call)
            self._delivering = False
            told(out)


def same_attempt(asked: AttemptKey, key: AttemptKey | None) -> bool:
    """Tell whether a session's word is of the attempt that works now."""
    return key is not None and asked == key
