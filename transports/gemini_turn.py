"""One turn of Gemini CLI: a process that takes a prompt, makes calls that the gate lets pass, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from policy.commands import Verdict
from schemas.common import Usage
from schemas.cutting import cut
from schemas.envelopes import ErrorEnvelope, Reported
from schemas.events import RateLimited
from schemas.questions import CallDecision, CallRequest, call_signature, code_of_denial
from system.processes import Child, Finished, LineTooLong, StdinClosed
from transports.gemini_errors import Failure, classify
from transports.gemini_finish import Success, cut_short, not_done
from transports.gemini_gate import Gate
from transports.gemini_home import DEFAULT_MODEL, Home, escape_prompt
from transports.gemini_log import SessionLost, Tail, make_resumable
from transports.gemini_policy import judge_call
from transports.gemini_stream import Stream
from transports.pauses import Pauses
from transports.port import Emit, Park, WorkOutcome
from transports.programs import Program
from transports.resuming import drop_mark

MAX_LINE: Final = 64 * 1024 * 1024
"""Longest line of the program, in bytes: a tool's whole output is one."""
CHILD_GRACE_S: Final = 0.5
"""Seconds between SIGTERM and SIGKILL for what a process of the program leaves behind."""
END_GRACE_S: Final = 5.0
"""Seconds the program has to end by itself when its turn is over."""
NODE_OPTIONS: Final = (
    "--import",
    "data:text/javascript,process.stdout._handle&&process.stdout._handle.setBlocking(true)",
)
"""Has what is printed last arrive: a pipe that is full when the program ends would lose it, the result first of all."""

_SETTLE_S: Final = 0.02
_SETTLE_LOOKS: Final = 25


class Stopped(Exception):
    """Raised inside a turn that is to end."""


class TurnFailed(Reported):
    """Raised where a turn has no answer; ``error`` is that of the turn."""


class Turn:
    """Runs one process of a session to its end; ``stop`` is set when it is to end before that.

    ``cut_short`` says then why the model's last answer is not whole, if it is not.
    """

    def __init__(
        self,
        home: Home,
        program: Program,
        session_id: str,
        stop: asyncio.Event,
        emit: Emit,
        *,
        read_only: bool,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
    ) -> None:
        self._home = home
        self._program = program
        self._session_id = session_id
        self._stop = stop
        self._emit = emit
        self._read_only = read_only
        self._max_tokens = max_tokens
        self._max_seconds = max_seconds
        self.cut_short: ErrorEnvelope | None = None
        self._child: Child | None = None
        self._ends: WorkOutcome | None = None
        self._over = asyncio.Event()
        self._tokens = 0
        self._pauses = Pauses()
        self._tail = Tail(home.chats, session_id)
        self._gate = Gate(home.home / "gate", self._decide)
        self._stream = Stream(emit, self._tail, self._count_tokens, self._made, self._judge)

    async def run(self, prompt: str, *, resumes: bool) -> tuple[WorkOutcome, str]:
        """Return how it ended and the text of its answer; one that ``resumes`` needs the session's file.

        Raises Stopped, TurnFailed, SessionLost and OSError.
        """
        if self._stop.is_set():
            raise Stopped
        known = await asyncio.to_thread(self._file)
        if known is None and resumes:
            raise SessionLost("the session's file is gone")
        self._tail.skip(known)
        async with self._gate as gate:
            await asyncio.to_thread(self._home.prepare, gate.command, read_only=self._read_only)
            try:
                finished = await self._process(prompt, resume=known is not None)
            finally:
                self._stream.end()
        outcome = self._outcome(finished)
        self.cut_short = await asyncio.to_thread(cut_short, self._home.telemetry)
        self._home.telemetry.unlink(missing_ok=True)
        return outcome, self._tail.answer or ""

    def _file(self) -> Path | None:
        """Return the session's file, written anew; raises SessionLost and OSError."""
        drop_mark(self._home.spec.state, self._session_id)
        return make_resumable(self._home.chats, self._session_id)

    def nudge(self) -> None:
        """Ask the program to end; nothing happens while it does not run."""
        if self._child is not None:
            self._child.interrupt()

    async def _process(self, prompt: str, *, resume: bool) -> Finished:
        words = self._home.words(self._home.spec.model or DEFAULT_MODEL, self._session_id, resume=resume)
        child = await Child.start(
            [*self._program.argv(*NODE_OPTIONS), *words],
            cwd=self._home.workspace,
            env=self._home.environment(),
            grace_s=CHILD_GRACE_S,
            max_line=MAX_LINE,
        )
        async with child, self._watched(child):
            self._child = child
            try:
                return await self._talk(child, prompt)
            finally:
                self._child = None

    async def _talk(self, child: Child, prompt: str) -> Finished:
        if self._stop.is_set():
            child.interrupt()
        with contextlib.suppress(StdinClosed):
            await child.write(escape_prompt(prompt).encode("utf-8", "replace"))
        child.close_stdin()
        try:
            async for line in child.lines():
                self._stream.take(line)
                await self._settled()
        except LineTooLong as error:
            await child.stop(CHILD_GRACE_S)
            message = f"the program wrote a line of more than {MAX_LINE} bytes"
            raise TurnFailed(ErrorEnvelope(code="line_too_long", message=message, retryable=True)) from error
        return await child.wait()

    async def _settled(self) -> None:
        """Wait until the session's file tells how commands ended: that is written right after the line, or never."""
        for _ in range(_SETTLE_LOOKS):
            if not self._stream.unsettled:
                return
            await asyncio.sleep(_SETTLE_S)
            self._stream.count()
        self._stream.count(settle=True)

    # What ends it early.

    def _finish(self, outcome: WorkOutcome) -> None:
        """End the turn with this outcome; the first one counts."""
        self._ends = self._ends or outcome
        self._over.set()

    @contextlib.asynccontextmanager
    async def _watched(self, child: Child) -> AsyncIterator[None]:
        """End the program when its seconds are used up, and when the turn is over."""
        watching = [asyncio.create_task(one) for one in (self._watch_seconds(), self._watch_end(child))]
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)

    async def _watch_seconds(self) -> None:
        begun = time.monotonic()
        while self._max_seconds is not None:
            # Time that people took is not the agent's.
            left = self._max_seconds - (time.monotonic() - begun - self._pauses.total_s)
            if left <= 0:
                self._finish(WorkOutcome(end="budget", stop_reason="seconds"))
                return
            await asyncio.sleep(left)

    async def _watch_end(self, child: Child) -> None:
        await self._over.wait()
        child.interrupt()
        await asyncio.sleep(END_GRACE_S)
        await child.stop(CHILD_GRACE_S)

    def _count_tokens(self, usage: Usage) -> None:
        self._tokens += usage.total
        if self._max_tokens is not None and self._tokens >= self._max_tokens:
            self._finish(WorkOutcome(end="budget", stop_reason="tokens"))

    def _made(self, tool: str, arguments: Mapping[str, Any], success: bool) -> None:
        """Take back the pass of a call that was made; one that succeeded without any ends the turn."""
        if not self._gate.use_up(tool, arguments) and success:
            error = ErrorEnvelope(
                code="policy_bypassed",
                message=f"Gemini CLI made a call of {tool} that its hook did not ask about: only the floor was kept",
            )
            self._finish(WorkOutcome(end="failed", stop_reason=error.code, error=error))

    # Policy.

    def _judge(self, tool: str, arguments: Mapping[str, Any]) -> Verdict:
        roots = [self._home.workspace, self._home.scratch]
        return judge_call(tool, arguments, roots, read_only=self._read_only)

    async def _decide(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Return None for a call that may be made, else ``code: reason``; may take as long as a human takes."""
        verdict = self._judge(tool, arguments)
        if verdict.decision == "allow":
            return None
        if verdict.decision == "deny":
            return f"{verdict.code}: {verdict.reason}"
        signature = call_signature(tool, arguments)
        request = CallRequest(
            call_id=self._stream.call_id(tool, arguments) or signature[:32],
            signature=signature,
            tool_name=tool,
            input=cut(json.dumps(arguments, ensure_ascii=False, sort_keys=True)),
            code=verdict.code,
            reason=verdict.reason,
        )
        on_call = self._home.spec.on_call
        decision = Park("nobody is there to ask") if on_call is None else await self._timed(on_call(request))
        if isinstance(decision, Park):
            self._finish(WorkOutcome(end="approval", stop_reason=decision.reason, call=request))
            return "approval_pending: the call waits for a human"
        if decision.allow:
            return None
        reason = f"denied: {decision.reason}" if decision.reason else "denied"
        return f"{code_of_denial(decision)}: {reason}"

    async def _timed(self, answer: Awaitable[CallDecision | Park]) -> CallDecision | Park:
        with self._pauses.pause():
            return await answer

    # Its end.

    def _missing(self, result: Mapping[str, Any] | None) -> ErrorEnvelope | None:
        stream = self._stream
        return not_done(Success(stream.warned, stream.answered, stream.unread, (result or {}).get("stats")))

    def _outcome(self, finished: Finished) -> WorkOutcome:
        """Return how it ended, by the terminal event: the exit code alone proves nothing."""
        result = self._stream.result
        success = result is not None and result.get("status") == "success"
        missing = self._missing(result) if success else None
        completed = success and missing is None
        if self._ends is not None and not (completed and self._ends.end == "budget"):
            return self._ends
        if completed:
            return WorkOutcome(end="completed")
        if self._stop.is_set():
            raise Stopped
        if missing is not None:
            return WorkOutcome(end="failed", stop_reason=missing.code, error=missing)
        said = (result or {}).get("error")
        said = said if isinstance(said, dict) else {}
        found = classify(
            Failure(
                message=str(said.get("message") or self._stream.warned),
                kind=str(said.get("type", "")),
                stderr=finished.stderr.decode("utf-8", "replace"),
                exit_code=finished.exit_code,
                signal=finished.signal,
                finished=result is not None,
            )
        )
        if not found.rate_limited:
            return WorkOutcome(end="failed", stop_reason=found.error.code, error=found.error)
        told = found.retry_after_s
        retry_at = None if told is None else datetime.now(UTC) + timedelta(seconds=told)
        self._emit(RateLimited(reset_at=retry_at, message=found.error.message))
        return WorkOutcome(end="rate_limited", stop_reason="rate_limited", retry_at=retry_at)
