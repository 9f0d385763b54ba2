"""Claude Code driven by its own streams: frames out and in, and the few control requests that a session needs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemas.errors import StepwiseError
from transports.claude_gate import Decision, Gate
from transports.claude_server import end_server
from transports.claude_wire import INTERRUPT, Wire, WireBroken, withdrawal

Frame = Mapping[str, Any]

_HOOK: Final = "before_tool"
# It answers at once: people are asked by the request after it, which has no bound.
_HOOK_S: Final = 600
_INITIALIZE: Final = {
    "subtype": "initialize",
    "hooks": {
        "PreToolUse": [
            {"matcher": None, "hookCallbackIds": [_HOOK], "timeout": _HOOK_S, "onFailure": "block"}
        ]
    },
}


class CliLink:
    """A program's streams as a session's link; nothing is read before ``begin``."""

    def __init__(self, wire: Wire, gate: Gate) -> None:
        self._wire = wire
        self._gate = gate
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Frame]] = {}
        self._deciding: dict[str, asyncio.Task[None]] = {}
        self._pump: asyncio.Task[None] | None = None

    def begin(self, heard: Callable[[Frame], None], lost: Callable[[WireBroken], None]) -> None:
        """Read on from now: ``heard`` takes the frames, ``lost`` the program's end."""
        self._pump = asyncio.create_task(self._read(heard, lost))

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._wire.pid

    async def initialize(self, timeout_s: float) -> None:
        """Shake hands; raises WireBroken, and StepwiseError for a program that would let a call pass whose hook fails."""
        try:
            async with asyncio.timeout(timeout_s):
                said = await self._request(_INITIALIZE)
        except TimeoutError:
            raise WireBroken(
                "agent_hung", f"the program did not answer within {timeout_s:g} seconds"
            ) from None
        except WireBroken as error:
            raise await self._wire.why(error) from error
        # A program that does not know ``onFailure`` drops it, and answers all the same.
        if not said.get("hook_on_failure_supported") or said.get("hooks_applied") is False:
            raise StepwiseError(
                "hooks_unsupported",
                "the program would let a call pass whose hook fails",
                mend="update Claude Code",
            )

    async def prompt(self, text: str, prompt_id: str, *, begins: bool = True) -> None:
        """Say something as the user, word for word; raises WireBroken."""
        await self._wire.send(
            {
                "type": "user",
                "message": {"role": "user", "content": text},
                "parent_tool_use_id": None,
                "session_id": "default",
                "uuid": prompt_id,
                "client_composed": True,
                "shouldQuery": begins,
            }
        )

    async def withdraw(self, prompt_id: str) -> None:
        """Have the program drop what it has not begun with; raises WireBroken."""
        await self._request(withdrawal(prompt_id))

    async def interrupt(self) -> None:
        """Ask the program to end its turn."""
        await self._request(INTERRUPT)

    async def kill(self) -> None:
        """End the program and all it started."""
        await self._wire.kill()

    async def close(self) -> None:
        """End the program; may be called twice."""
        try:
            await end_server(self.pid)
            await self._wire.close()
        finally:
            tasks = [*filter(None, [self._pump]), *self._deciding.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _request(self, request: Frame) -> Frame:
        """Make a control request and return its answer; raises WireBroken."""
        request_id = f"stepwise-{next(self._numbers)}"
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            await self._wire.send({"type": "control_request", "request_id": request_id, "request": request})
            return await answer
        finally:
            self._waiting.pop(request_id, None)

    async def _read(self, heard: Callable[[Frame], None], lost: Callable[[WireBroken], None]) -> None:
        try:
            async for frame in self._wire.frames():
                if not self._take(frame):
                    heard(frame)
            error = await self._wire.ended()
        except WireBroken as broken:
            error = broken
        except Exception as odd:  # noqa: BLE001 - whatever it was, nobody understands this program any more
            error = WireBroken("agent_protocol", f"the program wrote a frame that cannot be read: {odd!r}")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        for task in self._deciding.values():
            task.cancel()
        lost(error)

    def _take(self, frame: Frame) -> bool:
        """Take a frame of the control protocol; False for any other."""
        match frame.get("type"):
            case "control_response":
                response = frame["response"]
                answer = self._waiting.get(str(response.get("request_id")))
                if answer is not None and not answer.done():
                    if response.get("subtype") == "error":
                        answer.set_exception(
                            WireBroken("agent_protocol", f"refused: {response.get('error')}")
                        )
                    else:
                        said = response.get("response")
                        answer.set_result(said if isinstance(said, dict) else {})
            case "control_request":
                request_id = str(frame.get("request_id"))
                task = asyncio.create_task(self._decide(request_id, frame["request"]))
                self._deciding[request_id] = task
                task.add_done_callback(lambda _: self._deciding.pop(request_id, None))
            case "control_cancel_request":
                cancelled = self._deciding.get(str(frame.get("request_id")))
                if cancelled is not None:
                    cancelled.cancel()
            case _:
                return False
        return True

    async def _decide(self, request_id: str, request: Frame) -> None:
        try:
            answer: Frame = {"subtype": "success", "response": await self._answer(request)}
        except Exception as error:  # noqa: BLE001 - a hook that has an error for an answer blocks
            answer = {"subtype": "error", "error": repr(error)}
        with contextlib.suppress(StepwiseError):
            await self._wire.send(
                {"type": "control_response", "response": {**answer, "request_id": request_id}}
            )

    async def _answer(self, request: Frame) -> Frame:
        call_id = str(request.get("tool_use_id") or "")
        arguments = request.get("input") or {}
        match request.get("subtype"):
            case "hook_callback" if request.get("callback_id") == _HOOK:
                name, given = str(arguments.get("tool_name")), arguments.get("tool_input") or {}
                return await self._gate.hook(name, given, call_id)
            case "can_use_tool":
                name = str(request.get("tool_name"))
                return _as_permission(await self._gate.decide(name, arguments, call_id), arguments)
            case other:
                raise StepwiseError("unsupported_request", f"not supported: {other}")


def _as_permission(decision: Decision, arguments: Frame) -> dict[str, Any]:
    if decision.allow:
        return {"behavior": "allow", "updatedInput": dict(decision.arguments or arguments)}
    end = {"interrupt": True} if decision.interrupt else {}
    return {"behavior": "deny", "message": decision.message, **end}
