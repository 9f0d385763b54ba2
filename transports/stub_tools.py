"""The stub's tools: real edits and real commands in the workspace, each reported as a tool call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from policy.commands import judge_argv
from schemas.cutting import cut
from schemas.errors import StepwiseError
from schemas.events import ToolEnded, ToolStarted
from schemas.scenario import Calls, Edit, Run
from schemas.tools import NormalizedToolCall
from system.files import Root
from system.paths import PathDenied
from system.processes import Finished, SpawnFailed, how_ended, run
from transports.port import Emit, SessionSpec

T = TypeVar("T")

COMMAND: Final = "stub.run"
"""The name of the tool that runs commands."""
COMMAND_GRACE_S: Final = 0.5
"""Seconds between SIGTERM and SIGKILL for a command whose turn is to end."""

_KEPT_OUTPUT: Final = 64 * 1024
_CALLS_AT_A_TIME: Final = 200


@dataclass(kw_only=True)
class Call:
    """One tool call: announced when made, reported once by one of its ends."""

    call_id: str
    name: str
    given: str
    emit: Emit

    def __post_init__(self) -> None:
        self._begun = time.monotonic()
        self.emit(ToolStarted(call_id=self.call_id, tool_name=self.name, input=cut(self.given)))

    def ended(self, *, success: bool, output: str = "") -> None:
        """Report that it did what it could, or failed."""
        self._report(success=success, output=output, blocked_reason=None)

    def blocked(self, code: str, reason: str) -> None:
        """Report that it was not allowed and had no effect; the reason begins with its code."""
        self._report(success=False, output="", blocked_reason=f"{code}: {reason}")

    def _report(self, *, success: bool, output: str, blocked_reason: str | None) -> None:
        call = NormalizedToolCall(
            tool_name=self.name,
            input=self.given,
            output=output,
            success=success,
            duration_ms=round((time.monotonic() - self._begun) * 1000),
            blocked=blocked_reason is not None,
            blocked_reason=blocked_reason,
            source="stub",
            timestamp=datetime.now(UTC),
            call_id=self.call_id,
        )
        self.emit(ToolEnded(call=call))


class Stopped(Exception):
    """Raised inside an action that was cut short because its turn is to end."""


class BadEdit(StepwiseError):
    """Raised when an edit cannot be made in this workspace; nothing was changed."""


class Tools:
    """Edits files and runs commands for one session; ``stop`` is set when its turn is to end."""

    def __init__(self, spec: SessionSpec, stop: asyncio.Event) -> None:
        self._spec = spec
        self._stop = stop
        self._root: Root | None = None

    def edit(self, action: Edit, call_id: str, emit: Emit) -> None:
        """Make an edit; one that leaves the workspace, or any in a read-only session, is blocked."""
        given = json.dumps(
            action.model_dump(exclude_none=True, exclude={"do"}, by_alias=True), ensure_ascii=False
        )
        call = Call(call_id=call_id, name="stub.edit", given=given, emit=emit)
        if self._spec.read_only:
            call.blocked("read_only", "this session may not change files")
            return
        try:
            self._apply(action)
        except PathDenied as denied:
            call.blocked(denied.code, denied.message)
        except (StepwiseError, OSError, UnicodeError) as error:
            call.ended(success=False, output=str(error))
        else:
            call.ended(success=True)

    def write(self, path: str, content: str, call_id: str, emit: Emit) -> None:
        """Write a file whole, as ``edit`` does."""
        self.edit(Edit(do="edit", path=path, content=content), call_id, emit)

    async def run(self, action: Run, call_id: str, emit: Emit) -> None:
        """Run a command; one that fails is a failed call. Raises Stopped, unless an interrupt waits for its end."""
        call = Call(
            call_id=call_id, name=COMMAND, given=json.dumps(action.argv, ensure_ascii=False), emit=emit
        )
        if self._spec.read_only:
            call.blocked("read_only", "this session may not run commands")
            return
        verdict = judge_argv(action.argv, workspace=str(self._spec.workspace))
        if verdict.decision == "deny":
            call.blocked(verdict.code, verdict.reason)
            return
        timeout_s = action.timeout or self._spec.command_timeout_s
        finished: Finished | None = None
        output = "ended with its turn"
        try:
            running = self.process(action.argv, timeout_s=timeout_s)
            finished = await (running if action.finish else self.heeding_stop(running))
            output = _output_of(finished, timeout_s)
        except SpawnFailed as error:
            output = error.message
        finally:
            call.ended(success=finished is not None and finished.ok, output=output)

    async def calls(self, action: Calls, call_id: str, emit: Emit) -> None:
        """Make tool calls that do nothing. Raises Stopped."""
        output = "x" * action.bytes
        for number in range(action.count):
            if number % _CALLS_AT_A_TIME == 0:
                await asyncio.sleep(0)
                if self._stop.is_set():
                    raise Stopped
            Call(call_id=f"{call_id}.{number}", name=action.name, given="", emit=emit).ended(
                success=True, output=output
            )

    async def process(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        grace_s: float = COMMAND_GRACE_S,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Finished:
        """Run a program in the workspace to its end; HOME and TMPDIR are the attempt's own."""
        home, temporary = self._spec.private / "home", self._spec.private / "tmp"
        for folder in (home, temporary):
            folder.mkdir(parents=True, exist_ok=True)
        environment: Mapping[str, str] = {
            **self._spec.environment,
            "HOME": str(home),
            "TMPDIR": str(temporary),
        }
        task = asyncio.create_task(
            run(
                argv,
                cwd=self._spec.workspace,
                env=environment,
                timeout_s=timeout_s,
                grace_s=grace_s,
                max_output=_KEPT_OUTPUT,
                on_output=on_output,
            )
        )
        try:
            await asyncio.wait({task})
            return task.result()
        finally:
            await _end(task)

    async def heeding_stop(self, doing: Awaitable[T]) -> T:
        """Await ``doing``; raises Stopped if the turn was to end first, once ``doing`` is cancelled and has ended."""
        task = asyncio.ensure_future(doing)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            stopping.cancel()
            await _end(task)

    def close(self) -> None:
        """Let go of the workspace; may be called twice."""
        if self._root is not None:
            self._root.close()
            self._root = None

    def _apply(self, action: Edit) -> None:
        given = (action.content, action.replace, action.append, action.delete or None)
        if sum(part is not None for part in given) != 1:
            raise BadEdit("bad_edit", "give exactly one of content, replace, append and delete")
        if self._root is None:
            self._root = Root(self._spec.workspace)
        if action.content is not None:
            self._root.write_atomic(action.path, action.content.encode())
        elif action.append is not None:
            self._root.append(action.path, action.append.encode())
        elif action.replace is not None:
            if action.with_ is None:
                raise BadEdit("bad_edit", "replace needs with")
            content = self._root.read(action.path)
            if content.truncated:
                raise BadEdit("file_too_large", f"{action.path} has {content.total_bytes} bytes")
            text = content.data.decode()
            if action.replace not in text:
                raise BadEdit("text_not_found", f"{action.path} does not contain {action.replace[:80]!r}")
            self._root.write_atomic(action.path, text.replace(action.replace, action.with_, 1).encode())
        elif not self._root.delete(action.path):
            raise FileNotFoundError(action.path)


async def _end(task: asyncio.Future[T]) -> None:
    """Cancel a task and wait until it has ended, even if we are cancelled meanwhile: it may hold a child."""
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()  # the result is read where it counts
    if cancelled is not None:
        raise cancelled


def _output_of(finished: Finished, timeout_s: float) -> str:
    lines = [part.decode("utf-8", "replace") for part in (finished.stdout, finished.stderr) if part]
    if finished.timed_out:
        lines.insert(0, f"ended after {timeout_s:g} seconds\n")
    elif not finished.ok:
        lines.insert(0, f"{how_ended(finished.exit_code, finished.signal)}\n")
    return "".join(lines)
