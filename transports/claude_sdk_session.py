"""A session through claude-agent-sdk: its client speaks the control protocol, our wire carries it.

The SDK starts the program with the whole environment of this process, from which nothing can be taken away. It also
takes a transport of one's own: ours starts the program under the guard, with the environment it is to have and no more.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    CLIConnectionError,
    HookContext,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    SdkMcpTool,
    ToolPermissionContext,
    Transport,
    create_sdk_mcp_server,
)
from pydantic import BaseModel

from schemas.envelopes import ErrorEnvelope
from schemas.errors import StepwiseError
from schemas.events import TextEvent
from transports.claude_gate import Gate, hook_says
from transports.claude_hand_in import NAMES, TOOLS, HandIn, tool_for
from transports.claude_messages import Reader
from transports.claude_policy import OWN, SERVER
from transports.claude_program import Folders
from transports.claude_session import ClaudeSession
from transports.claude_wire import INTERRUPT, Wire, WireBroken, withdrawal
from transports.credentials import provider_names
from transports.port import Emit, SessionSpec, StructuredResult
from transports.structured import MAX_REPROMPTS, TurnLost

# A hook answers at once: people are asked by the callback after it, which has no bound.
_HOOK_S: Final = 600.0
_CONTROL: Final = frozenset({"control_request", "control_response", "control_cancel_request"})
# What the program has of the model's, and what it puts there itself: the way to talk to it, and to other sessions.
_UNSET: Final = (
    *provider_names("anthropic"),
    "CLAUDE_CODE_MESSAGING_SOCKET",
    "CLAUDE_CODE_MESSAGING_TOKEN",
)


class WireTransport(Transport):
    """Carries the SDK's frames over a wire, and shows those that are not its own protocol to ``heard``."""

    def __init__(
        self, wire: Wire, heard: Callable[[Mapping[str, Any]], None], lost: Callable[[WireBroken], None]
    ) -> None:
        self._wire = wire
        self._heard = heard
        self._lost = lost
        self._ready = True

    async def connect(self) -> None:
        """Do nothing: the program runs already."""

    async def write(self, data: str) -> None:
        """Send a frame; raises CLIConnectionError."""
        try:
            await self._wire.send_text(data)
        except WireBroken as error:
            raise CLIConnectionError(error.message) from error

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the program's frames; raises CLIConnectionError at its end, which frees whoever waits for an answer."""
        try:
            async for frame in self._wire.frames():
                if frame.get("type") not in _CONTROL:
                    self._heard(frame)
                yield frame
            error = await self._wire.ended()
        except WireBroken as broken:
            error = broken
        except GeneratorExit:
            self._lost(WireBroken("agent_protocol", "the SDK reads no more of what the program says"))
            raise
        except Exception as odd:  # noqa: BLE001 - whatever it was, nobody understands this program any more
            error = WireBroken("agent_protocol", f"the program wrote a frame that cannot be read: {odd!r}")
        self._ready = False
        self._lost(error)
        raise CLIConnectionError(error.message)

    async def close(self) -> None:
        """End the program, within a bound."""
        self._ready = False
        await self._wire.close()

    def is_ready(self) -> bool:
        """Tell whether the program runs."""
        return self._ready

    async def end_input(self) -> None:
        """Do nothing: a session takes prompts until it is closed."""


class SdkLink:
    """The SDK's client as a session's link; ``pump`` reads what the client keeps for readers, lest it stalls."""

    def __init__(self, client: ClaudeSDKClient, wire: Wire) -> None:
        self._client = client
        self._wire = wire
        self._pump = asyncio.create_task(self._drain())

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._wire.pid

    async def prompt(self, text: str, prompt_id: str, *, begins: bool = True) -> None:
        """Say something as the user; raises WireBroken."""

        async def once() -> AsyncIterator[dict[str, Any]]:
            yield {
                "type": "user",
                "message": {"role": "user", "content": text},
                "parent_tool_use_id": None,
                "uuid": prompt_id,
                "shouldQuery": begins,
            }

        try:
            await self._client.query(once())
        except ClaudeSDKError as error:
            raise WireBroken("agent_crashed", str(error)) from error

    async def withdraw(self, prompt_id: str) -> None:
        """Have the program drop what it has not begun with; raises WireBroken."""
        await self._order(withdrawal(prompt_id))

    async def interrupt(self) -> None:
        """Ask the program to end its turn."""
        await self._order(INTERRUPT)

    async def kill(self) -> None:
        """End the program and all it started."""
        await self._wire.kill()

    async def close(self) -> None:
        """End the program; may be called twice."""
        try:
            await self._client.disconnect()
        finally:
            self._pump.cancel()
            await self._wire.close()

    async def _order(self, request: Mapping[str, Any]) -> None:
        """Make a control request past the client, which does not know it; nor does it wait for the answer."""
        request_id = f"stepwise-{uuid.uuid4()}"
        await self._wire.send({"type": "control_request", "request_id": request_id, "request": request})

    async def _drain(self) -> None:
        while True:
            try:
                async for _ in self._client.receive_messages():
                    pass
            except CLIConnectionError:
                return
            except ClaudeSDKError:
                continue  # a message of a kind this SDK cannot read; we have read it on its way
            return


class SdkSession(ClaudeSession):
    """A session whose calls pass our hook, and whose answers are handed in by tools of ours."""

    hand_in: HandIn | None = None
    _emit: Emit | None = None

    async def _structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        tool = tool_for(schema)
        if tool is None:
            return await super()._structured(prompt, schema, emit, timeout_s=timeout_s)
        self.hand_in = waited = HandIn(tool, schema)
        self._emit = emit
        try:
            async with asyncio.timeout(timeout_s):
                request = f"{prompt}\n\n{_how(tool)}"
                while not waited.over:
                    said = await self._asked(waited, request, emit)
                    # What was refused already is not to be counted once more.
                    if not waited.over:
                        refused = waited.take_text(said)
                        request = f"Your answer was not accepted:\n{refused}\n\n{_how(tool)}"
        except TimeoutError:
            message = f"no valid {schema.__name__} within {timeout_s:g} seconds"
            error = ErrorEnvelope(code="structured_timeout", message=message, retryable=True)
            return StructuredResult(value=None, reprompts=min(waited.tries, MAX_REPROMPTS), error=error)
        finally:
            self.hand_in = self._emit = None
        return _result(waited)

    async def _asked(self, waited: HandIn, request: str, emit: Emit) -> str:
        """Run a turn that is to hand in; how it ends does not matter once it has."""
        try:
            return await self.ask(request, emit)
        except TurnLost:
            if waited.value is None:
                raise
            return ""

    async def before_tool(self, given: Any, call_id: str | None, context: HookContext) -> Any:
        """Judge a call before it is made: the hook of every call of the session, its sub-agents' too."""
        del context
        name, arguments, known_id = given["tool_name"], given["tool_input"], call_id or ""
        if name in NAMES:
            return self._take_hand_in(name, arguments, known_id)
        allowed = _without_keys(name, arguments)
        return await self.gate.hook(name, arguments, known_id, allowed=allowed)

    async def may_use(
        self, name: str, arguments: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        """Ask people about a call or a question: the client's callback for what is left undecided."""
        decision = await self.gate.decide(name, arguments, context.tool_use_id or "")
        if not decision.allow:
            return PermissionResultDeny(message=decision.message, interrupt=decision.interrupt)
        return PermissionResultAllow(updated_input=_without_keys(name, decision.arguments or arguments))

    def _take_hand_in(self, name: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        waited = self.hand_in
        if waited is None or waited.tool != name or waited.value is not None:
            self.gate.block(call_id, "not_asked_for", "nobody asked for that now")
            return hook_says("deny", "nobody asked for that now")
        refused = waited.take(arguments)
        if refused is None:
            if self._emit is not None:
                self._emit(TextEvent(text=json.dumps(waited.value, ensure_ascii=False)))
            return {**hook_says("allow"), "continue_": False, "stopReason": "handed in"}
        over = {"continue_": False, "stopReason": "not accepted"} if waited.over else {}
        return {**hook_says("deny", f"Your answer was not accepted:\n{refused}"), **over}


async def connect(
    spec: SessionSpec,
    session_id: str,
    folders: Folders,
    wire: Wire,
    gate: Gate,
    reader: Reader,
    *,
    timeout_s: float,
) -> SdkSession:
    """Shake hands with a program that runs, and return its session; raises StepwiseError."""
    box: list[SdkSession] = []
    early: list[WireBroken] = []

    async def before_tool(given: Any, call_id: str | None, context: HookContext) -> Any:
        return await box[0].before_tool(given, call_id, context)

    async def may_use(
        name: str, arguments: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        return await box[0].may_use(name, arguments, context)

    def heard(frame: Mapping[str, Any]) -> None:
        if box:
            box[0].take(frame)

    def lost(error: WireBroken) -> None:
        early.append(error)
        if box:
            box[0].lost(error)

    options = ClaudeAgentOptions(
        can_use_tool=may_use,
        hooks={"PreToolUse": [HookMatcher(hooks=[before_tool], on_failure="block", timeout=_HOOK_S)]},
        mcp_servers={SERVER: create_sdk_mcp_server(SERVER, tools=_tools())},
        verbatim_prompts=True,
    )
    client = ClaudeSDKClient(options, transport=WireTransport(wire, heard, lost))
    try:
        async with asyncio.timeout(timeout_s):
            await client.connect()
    except TimeoutError:
        raise WireBroken("agent_hung", f"the program did not answer within {timeout_s:g} seconds") from None
    except ClaudeSDKError as error:
        if isinstance(error.__cause__, WireBroken):
            raise await wire.why(error.__cause__) from error
        # Where the SDK itself refuses, it has closed the wire by now: what that says is not why.
        ended = next((each for each in early if each.message in str(error)), None)
        raise ended or StepwiseError("agent_protocol", str(error)) from error
    session = SdkSession(spec, session_id, folders, SdkLink(client, wire), gate, reader)
    box.append(session)
    if early:
        session.lost(early[0])
    return session


def _tools() -> list[SdkMcpTool[Any]]:
    async def take(_: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "Taken."}]}

    return [
        SdkMcpTool(name=name, description=says, input_schema=schema.model_json_schema(), handler=take)
        for name, (schema, says) in TOOLS.items()
    ]


def _how(tool: str) -> str:
    return f"Hand it in by calling the tool `{tool}` once, with nothing after it. You may read files before, no more."


def _result(waited: HandIn) -> StructuredResult:
    reprompts = min(waited.tries, MAX_REPROMPTS)
    if waited.value is not None:
        return StructuredResult(value=waited.value, reprompts=reprompts)
    error = ErrorEnvelope(
        code="structured_output_invalid",
        message=f"no valid {waited.schema.__name__} after {reprompts} reprompts: {waited.errors[0]}",
        details={"errors": "\n".join(waited.errors)},
    )
    return StructuredResult(value=None, reprompts=reprompts, error=error)


def _without_keys(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments such that a command does not see the keys of the program it runs under."""
    if name != OWN.command:
        return dict(arguments)
    return {**arguments, "command": f"unset {' '.join(_UNSET)}\n{arguments.get('command', '')}"}
