"""The Messages API as far as the Claude programs use it: streamed answers, client tools, strict about what comes in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import Any

from jsonschema import Draft202012Validator, SchemaError

from model_servers.script import (
    Ask,
    Call,
    Called,
    Edit,
    HandIn,
    Part,
    Read,
    Run,
    Say,
    Seen,
    Think,
    Turn,
    Write,
    pieces,
)
from model_servers.server import ModelServer, Unexpected, event

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_WORKING_FOLDER = re.compile(r"[Ww]orking directory: (\S+)")
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_STOPS = {"no_room": "max_tokens", "refused": "refusal"}
_STRUCTURED = "StructuredOutput"


class AnthropicServer(ModelServer):
    """Speaks ``POST /v1/messages``; mid-conversation messages of role ``system`` are taken, as the real one does."""

    keep_alive = event({"type": "ping"}, "ping")

    def read(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Seen | bytes:
        """Return what is asked; raises Unexpected for what the real API answers with 400, or a request without a key."""
        where = path.partition("?")[0]
        if where == "/v1/messages/count_tokens":
            return json.dumps({"input_tokens": len(json.dumps(body)) // 4}).encode()
        if where != "/v1/messages":
            raise Unexpected(f"no such place: {path}")
        _require(isinstance(body.get("max_tokens"), int), "max_tokens is missing")
        lower = {name.lower(): value for name, value in headers.items()}
        _require("x-api-key" in lower or "authorization" in lower, "the request has no key")
        tools = _tools(body.get("tools") or [])
        messages = body["messages"]
        texts = tuple(_texts(messages))
        return Seen(
            model=body["model"],
            system=_joined(body.get("system") or ""),
            texts=texts,
            calls=tuple(_calls(messages)),
            tools=tuple(tools),
            schema=_schema(tools, texts),
            raw=body,
            headers=lower,
        )

    def stream(self, turn: Turn, seen: Seen) -> Iterable[bytes]:
        """Return the events of a message; raises Unexpected for a tool that was not declared."""
        # After some errors the program asks once more without a stream; a script has an error for that too.
        _require(seen.raw.get("stream") is True, "an answer without a stream was asked for")
        usage = {
            "input_tokens": turn.tokens.input,
            "cache_read_input_tokens": turn.tokens.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": 1,
        }
        message: dict[str, Any] = {
            "id": f"msg_{self._next()}",
            "type": "message",
            "role": "assistant",
            "model": seen.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message=message)
        blocks = [self._block(part, seen) for part in turn.parts]
        for index, block in enumerate(blocks):
            yield from _block_events(index, block, turn.parts[index])
        used_tools = any(block["type"] == "tool_use" for block in blocks)
        reason = _STOPS.get(turn.end) or ("tool_use" if used_tools else "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage={"output_tokens": turn.tokens.output})
        yield _event("message_stop")

    def error(self, status: int, message: str) -> bytes:
        """Return an error body."""
        kind = _ERROR_TYPES.get(status, "api_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()

    _ids: Iterator[int] | None = None

    def _next(self) -> str:
        self._ids = self._ids or count(1)
        return f"{id(self):x}_{next(self._ids)}"

    def _block(self, part: Part, seen: Seen) -> dict[str, Any]:
        if isinstance(part, Think):
            return {"type": "thinking", "thinking": part.text, "signature": "signed"}
        found = _tool_call(part, seen)
        if isinstance(found, str):
            return {"type": "text", "text": found}
        name, arguments = found
        if name not in seen.tools:
            raise Unexpected(f"the client declared no tool {name}: {seen.tools}")
        return {"type": "tool_use", "id": f"toolu_{self._next()}", "name": name, "input": arguments}


def _tool_call(part: Part, seen: Seen) -> str | tuple[str, dict[str, Any]]:
    """Return the text a part is, or the tool of this client it is a call of, with the arguments."""
    match part:
        case Say(text=text) | Think(text=text):
            return text
        case Call(tool=tool, arguments=arguments):
            return tool, dict(arguments)
        case Write(path=path, content=content) if "Write" in seen.tools:
            return "Write", {"file_path": f"{working_folder(seen)}/{path}", "content": content}
        case Write(path=path, content=content):
            return _ours(seen, "write_file"), {"path": path, "content": content}
        case Read(path=path) if "Read" in seen.tools:
            return "Read", {"file_path": f"{working_folder(seen)}/{path}"}
        case Read(path=path):
            return _ours(seen, "read_file"), {"path": path}
        case Edit(path=path, old=old, new=new) if "Edit" in seen.tools:
            changed = {"old_string": old, "new_string": new}
            return "Edit", {"file_path": f"{working_folder(seen)}/{path}", **changed}
        case Edit(path=path, old=old, new=new):
            return _ours(seen, "edit_file"), {"path": path, "old": old, "new": new}
        case Run(command=command) if "Bash" in seen.tools:
            return "Bash", {"command": command, "description": "Runs a command"}
        case Run(command=command):
            return _ours(seen, "run_command"), {"command": command}
        case Ask(question=question, options=options, multi_select=multi_select):
            listed = [{"label": label, "description": label} for label in options or ("Yes", "No")]
            asked = {"question": question, "header": "Choice", "options": listed, "multiSelect": multi_select}
            return "AskUserQuestion", {"questions": [asked]}
        case HandIn(value=value):
            name = _hand_in_tool(seen.tools, seen.texts)
            return json.dumps(value) if name is None else (name, dict(value))


def working_folder(seen: Seen) -> str:
    """Return the folder the client says it works in; raises Unexpected when it says none."""
    for text in (seen.system, *(text for _, text in seen.texts)):
        if found := _WORKING_FOLDER.search(text):
            return found[1]
    raise Unexpected("the client does not say where it works")


def _ours(seen: Seen, name: str) -> str:
    return next((tool for tool in seen.tools if tool.endswith(f"__{name}")), name)


def _hand_in_tool(tools: Iterable[str], texts: Sequence[tuple[str, str]]) -> str | None:
    """Return the tool by which the value that was asked for last is handed in; None where it is to be the text."""
    if _STRUCTURED in tools:
        return _STRUCTURED
    asked = next((text for role, text in reversed(texts) if role == "user"), "")
    return next((tool for tool in tools if tool.startswith("mcp__") and f"`{tool}`" in asked), None)


def _schema(tools: Mapping[str, Any], texts: Sequence[tuple[str, str]]) -> Mapping[str, Any] | None:
    name = _hand_in_tool(tools, texts)
    return None if name is None else tools[name]


def _tools(declared: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schemas of the tools by name; server tools, which have a type, stand with none."""
    found: dict[str, Any] = {}
    for tool in declared:
        name = tool.get("name", "")
        _require(_TOOL_NAME.match(name) is not None, f"bad tool name {name!r}")
        _require(name not in found, f"tool {name} is declared twice")
        schema = tool.get("input_schema")
        if "type" not in tool or tool["type"] == "custom":
            if not isinstance(schema, dict) or schema.get("type") != "object":
                raise Unexpected(f"{name}: bad input_schema")
            try:
                Draft202012Validator.check_schema(schema)
            except SchemaError as error:
                raise Unexpected(f"{name}: {error.message}") from error
        found[name] = schema or {}
    return found


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    _require(bool(messages) and messages[0]["role"] == "user", "the first message is not the user's")
    for message in messages:
        _require(message["role"] in {"user", "assistant", "system"}, f"bad role {message['role']!r}")
        _require(bool(message["content"]), f"a message of role {message['role']} is empty")
        for block in _blocks(message):
            if block["type"] == "text":
                _require(bool(block["text"]), "a text block is empty")
                yield message["role"], block["text"]


def _calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[Called]:
    """Yield the tool calls; each has its one result in the user's next message, save those of the last message."""
    turns = [message for message in messages if message["role"] != "system"]
    seen: set[str] = set()
    _require(not _results(turns[0]), "the conversation begins with a tool result")
    for message, after in [*pairwise(turns), (turns[-1], None)]:
        uses = [block for block in _blocks(message) if block["type"] == "tool_use"]
        ids = [use["id"] for use in uses]
        _require(len(ids) == len(set(ids)) and seen.isdisjoint(ids), f"tool call ids are used twice: {ids}")
        seen.update(ids)
        _require(not uses or message["role"] == "assistant", "a tool call is not the assistant's")
        results = [] if after is None else _results(after)
        answered = [result["tool_use_id"] for result in results]
        if after is not None:
            _require(sorted(answered) == sorted(ids), f"calls {ids} have the results {answered}")
            _require(not answered or after["role"] == "user", "a tool result is not the user's")
        by_id = {result["tool_use_id"]: result for result in results}
        for use in uses:
            result = by_id.get(use["id"])
            yield Called(
                call_id=use["id"],
                tool=use["name"],
                arguments=use["input"],
                result=None if result is None else _joined(result.get("content") or ""),
                failed=bool(result and result.get("is_error")),
            )


def _results(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [block for block in _blocks(message) if block["type"] == "tool_result"]


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content)


def _block_events(index: int, block: Mapping[str, Any], part: Part) -> Iterator[bytes]:
    deltas: list[dict[str, Any]]
    if block["type"] == "text":
        start: dict[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"], part)]
    elif block["type"] == "thinking":
        start = {**block, "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], part)]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    else:
        start = {**block, "input": {}}
        given = pieces(json.dumps(block["input"]), part)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in given]
    yield _event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unexpected(otherwise)
