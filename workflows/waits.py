"""What a run waits for people to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from temporalio import workflow

from schemas.common import UtcTime
from schemas.flow import Human
from schemas.messages import Interrupt, Resume
from schemas.questions import CallRequest, Question
from schemas.run_state import WaitFor, Waiting
from workflows.conversation import Conversation
from workflows.gate import Gate
from workflows.messages import legal_now
from workflows.standing import Ended, Order
from workflows.view import WAITS
from workflows.words import action, because, by, silence

INTERRUPT_FIRST = "interrupt-first"
"""The patch with which an interrupt holds before a wait for words, too."""


class Waits(Conversation):
    """The waits of a run."""

    async def boundary(self) -> Resume | None:
        """Between two phases: end if asked to, wait if paused or interrupted. Returns what ended the wait."""
        self.check_ending()
        order: Order | None = None
        if self.stop_asked:
            order = await self._held("human", self.interrupted())
        elif self._stop_order is not None:
            order, self._stop_order = self._stop_order, None
        elif self.state.pause_reason is not None:
            order = await self._held("pause", self.state.pause_reason)
        return order if isinstance(order, Resume) else None

    async def interrupted_first(self) -> Resume | None:
        """Wait out an interrupt that came when nothing could be stopped any more, before the run waits for words.

        Runs from before the patch forgot it.
        """
        if not self.stop_asked or not workflow.patched(INTERRUPT_FIRST):
            return None
        order = await self._held("human", self.interrupted())
        return order if isinstance(order, Resume) else None

    async def _held(self, kind: WaitFor, reason: str) -> Order | None:
        """Wait for a resume; silence goes on where the step wants it."""
        human = self.step.human if self.step else Human()
        return await self.wait(kind, reason, human, default=True)

    def interrupted(self) -> str:
        """Return who interrupted the run, and why, as far as they said."""
        asked = self.state.interrupt or Interrupt()
        return f"interrupted{by(asked.by)}{because(asked.reason)}"

    def take_stop_order(self) -> Resume | None:
        """Return the resume for which the agent was stopped, once."""
        order, self._stop_order = self._stop_order, None
        return order

    async def wait(
        self,
        kind: WaitFor,
        reason: str,
        human: Human,
        *,
        until: UtcTime | None = None,
        default: bool = False,
        question: Question | None = None,
        call: CallRequest | None = None,
        remark: Callable[[Order], str] = lambda _: "",
        about: Gate | None = None,
        used_up: Sequence[str] = (),
    ) -> Order | None:
        """Wait for a person, who is answered with a ``remark``. None: nobody came, and something is done by itself then.

        That is so after ``until``; after the deadline of a call, which is then denied; and after the deadline of a
        wait that has a ``default``, where the step wants it. An interrupt that came before a wait for words is waited
        out first; one that comes while the run waits until a time ends that. Raises Ended on abort and on any other
        silence.
        """
        if kind in {"answer", "budget", "approval"}:
            order = await self.interrupted_first()
            if order is not None and order.action != "continue":
                return order
            if order is not None:
                self.take_note(order)
        now = workflow.now()
        bounded = until or (
            now + timedelta(seconds=human.deadline) if human.on_silence != "keep_waiting" else None
        )
        by_itself = until is not None or call is not None or (default and human.on_silence == "default")
        self._order = self._stop_order = self.state.interrupt = None
        self.live.over()
        self._question, self._call, self._remark = question, call, remark
        step_id = self.step.id if self.step else None
        self._waiting = Waiting(
            kind=kind,
            step_id=step_id,
            reason=reason,
            since=now,
            deadline=bounded,
            on_silence=silence(kind, human, by_itself),
            can_continue=default,
            about=about.lines if about else [],
            look=about.look if about else [],
            used_up=list(used_up),
        )
        if kind in {"pause", "human"}:
            # The run is held, and goes on when it is told to: no pause is left to take hold.
            self.state.pause_reason = None
        self._waiting = self._waiting.model_copy(update={"legal": legal_now(self.situation())})
        self.journal.add(
            "waiting",
            waiting_for=kind,
            reason=reason[:500],
            step=step_id,
            deadline=bounded.isoformat() if bounded else None,
            on_silence=self._waiting.on_silence,
        )
        self.show()
        try:
            await self.phases.flush()
            await workflow.wait_condition(
                lambda: self._order is not None or self.stop_asked or self.ending or self.was_reset,
                timeout=max(bounded - workflow.now(), timedelta()) if bounded else None,
                timeout_summary=WAITS[kind],
            )
        except TimeoutError:
            if self._order is None and not by_itself:
                raise Ended(
                    "needs_human", f"nobody answered the wait for {kind} in time{because(reason)}"
                ) from None
        finally:
            self._waiting = self._question = self._call = None
        self.check_ending()
        self.journal.add("resumed", waited_for=kind, action=action(self._order))
        self.show()
        return self._order
