"""The Responses API as far as Codex uses it: streamed answers, its own tools, strict about what comes in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from jsonschema import Draft202012Validator, SchemaError

from model_servers.script import (
    Ask,
    Call,
    Called,
    Edit,
    HandIn,
    Mind,
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

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_ROLES: Final = {
    "user": "input_text",
    "developer": "input_text",
    "system": "input_text",
    "assistant": "output_text",
}
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_ARGUMENTS: Final = {
    "function_call": "response.function_call_arguments.delta",
    "custom_tool_call": "response.custom_tool_call_input.delta",
}
_OUTPUTS: Final = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
_NOT_STRICT: Final = frozenset(
    {"default", "allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "dependentRequired"}
)
_REFUSED = re.compile(r"\A(exec_command failed|patch rejected|aborted|unsupported call|.* failed:)")
_ERROR_CODES: Final = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
_ERROR_TYPES: Final = {401: "authentication_error", 429: "rate_limit_error", 400: "invalid_request_error"}
_REASONS = {"no_room": "max_output_tokens", "refused": "content_filter"}


class OpenAIServer(ModelServer):
    """Speaks ``POST /v1/responses``; what the agent says in the role ``developer`` is the system text."""

    keep_alive = event({"type": "keepalive"}, "keepalive")

    def __init__(self, mind: Mind) -> None:
        super().__init__(mind)
        self._ids = count(1)

    def read(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Seen | bytes:
        """Return what is asked; raises Unexpected for what the real API answers with 400, or a request without a key."""
        _require(path.partition("?")[0] == "/v1/responses", f"no such place: {path}")
        lower = {name.lower(): value for name, value in headers.items()}
        _require(lower.get("authorization", "").startswith("Bearer "), "the request has no key")
        _require(body.get("stream") is True, "an answer without a stream was asked for")
        # What is stored at the provider outlives the run.
        _require(body.get("store") is False, "the answer would be stored")
        _require(isinstance(body.get("model"), str), "model is missing")
        items = body.get("input")
        if not isinstance(items, list):
            raise Unexpected("input is no list")
        texts = tuple(_texts(items))
        said = [text for role, text in texts if role == "system"]
        return Seen(
            model=body["model"],
            system="\n\n".join([body.get("instructions") or "", *said]).strip(),
            texts=texts,
            calls=tuple(_calls(items)),
            tools=tuple(_tools(body.get("tools") or [])),
            schema=_schema(body.get("text") or {}),
            raw=body,
            headers=lower,
        )

    def stream(self, turn: Turn, seen: Seen) -> Iterable[bytes]:
        """Return the events of an answer; raises Unexpected for a tool that was not declared."""
        answer = {"id": f"resp_{next(self._ids)}", "object": "response", "status": "in_progress"}
        yield _event("response.created", response=answer)
        for index, part in enumerate(turn.parts):
            yield from self._item(part, seen, index)
        used = turn.tokens
        read = used.input + used.cached
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": used.cached},
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + used.output,
        }
        if turn.end == "done":
            yield _event("response.completed", response={**answer, "status": "completed", "usage": usage})
            return
        why = {"reason": _REASONS[turn.end]}
        cut = {**answer, "status": "incomplete", "incomplete_details": why, "usage": usage}
        yield _event("response.incomplete", response=cut)

    def error(self, status: int, message: str) -> bytes:
        """Return an error body."""
        kind = _ERROR_TYPES.get(status, "server_error")
        return json.dumps(
            {"error": {"message": message, "type": kind, "param": None, "code": _ERROR_CODES.get(status)}}
        ).encode()

    def _item(self, part: Part, seen: Seen, index: int) -> Iterator[bytes]:
        number = f"{id(self):x}_{next(self._ids)}"
        if isinstance(part, Think):
            yield from _thought(part, f"rs_{number}", index)
            return
        found = _tool_call(part)
        if isinstance(found, str):
            item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": []}
            yield _event("response.output_item.added", output_index=index, item=item)
            for piece in pieces(found, part) or [""]:
                yield _event(
                    "response.output_text.delta", item_id=item["id"], output_index=index, delta=piece
                )
            whole = {**item, "content": [{"type": "output_text", "text": found, "annotations": []}]}
            yield _event("response.output_item.done", output_index=index, item=whole)
            return
        name, given = found
        _require(name in seen.tools or isinstance(part, Call), f"no tool {name} was declared: {seen.tools}")
        kind = "custom_tool_call" if isinstance(given, str) else "function_call"
        text = given if isinstance(given, str) else json.dumps(given)
        called = {
            "type": kind,
            "id": f"item_{number}",
            "call_id": f"call_{number}",
            "name": name,
            _CALLS[kind]: text,
        }
        yield _event("response.output_item.added", output_index=index, item={**called, _CALLS[kind]: ""})
        for piece in pieces(text, part):
            yield _event(_ARGUMENTS[kind], item_id=called["id"], output_index=index, delta=piece)
        yield _event("response.output_item.done", output_index=index, item=called)


def _thought(part: Think, item_id: str, index: int) -> Iterator[bytes]:
    """Yield the events of a thought of which a summary is told."""
    item = {"type": "reasoning", "id": item_id, "summary": []}
    at = {"item_id": item_id, "output_index": index, "summary_index": 0}
    yield _event("response.output_item.added", output_index=index, item=item)
    empty, whole = ({"type": "summary_text", "text": text} for text in ("", part.text))
    yield _event("response.reasoning_summary_part.added", **at, part=empty)
    for piece in pieces(part.text, part):
        yield _event("response.reasoning_summary_text.delta", **at, delta=piece)
    yield _event("response.output_item.done", output_index=index, item={**item, "summary": [whole]})


def _tool_call(part: Part) -> str | tuple[str, str | dict[str, Any]]:
    """Return the text a part is, or the tool of Codex it is a call of, with what it is given."""
    match part:
        case Say(text=text) | Think(text=text):
            return text
        case HandIn(value=value):
            return json.dumps(value)
        case Call(tool="apply_patch", arguments=arguments):
            return "apply_patch", str(arguments["input"])
        case Call(tool=tool, arguments=arguments):
            return tool, dict(arguments)
        case Write(path=path, content=content):
            added = "".join(f"+{line}\n" for line in content.splitlines())
            return "apply_patch", f"*** Begin Patch\n*** Add File: {path}\n{added}*** End Patch"
        case Read(path=path):
            return "exec_command", {"cmd": f"cat {path}"}
        case Edit(path=path, old=old, new=new):
            changed = "".join(
                f"{sign}{line}\n" for sign, text in (("-", old), ("+", new)) for line in text.splitlines()
            )
            return "apply_patch", f"*** Begin Patch\n*** Update File: {path}\n@@\n{changed}*** End Patch"
        case Run(command=command):
            return "exec_command", {"cmd": command}
        case Ask(question=question, options=options):
            listed = [{"label": label, "description": label} for label in options or ("Yes", "No")]
            asked = {"id": "choice", "header": "Choice", "question": question, "options": listed}
            return "request_user_input", {"questions": [asked]}


def _texts(items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for item in items:
        if item.get("type", "message") != "message":
            continue
        role = item.get("role", "")
        _require(role in _ROLES, f"bad role {role!r}")
        _require(bool(item.get("content")), f"a message of role {role} is empty")
        for part in item["content"]:
            _require(part["type"] in {_ROLES[role], "input_image"}, f"{part['type']} in the role {role}")
            if part["type"] == _ROLES[role]:
                yield ("system" if role == "developer" else role), part["text"]


def _calls(items: Sequence[Mapping[str, Any]]) -> Iterator[Called]:
    """Yield the tool calls; every one has exactly one output, of its own kind, behind it."""
    calls: dict[str, Mapping[str, Any]] = {}
    outputs: dict[str, str] = {}
    for item in items:
        kind = item.get("type", "message")
        _require(kind in {"message", "reasoning", *_CALLS, *_OUTPUTS}, f"an item of type {kind!r}")
        if kind in _CALLS:
            _require(item["call_id"] not in calls, f"call {item['call_id']} stands twice")
            calls[item["call_id"]] = item
        elif kind in _OUTPUTS:
            made = calls.get(item["call_id"])
            _require(
                made is not None and made["type"] == _OUTPUTS[kind], f"{kind} of no call: {item['call_id']}"
            )
            _require(item["call_id"] not in outputs, f"call {item['call_id']} has two outputs")
            outputs[item["call_id"]] = _output(item["output"])
    missing = calls.keys() - outputs.keys()
    _require(not missing, f"no tool output found for {sorted(missing)}")
    for call_id, item in calls.items():
        custom = item["type"] == "custom_tool_call"
        result = outputs[call_id]
        yield Called(
            call_id=call_id,
            tool=item["name"],
            arguments={"input": item["input"]} if custom else json.loads(item["arguments"] or "{}"),
            result=result,
            failed=_REFUSED.match(result) is not None,
        )


def _output(output: object) -> str:
    if isinstance(output, str):
        return output
    _require(isinstance(output, list), "an output is neither text nor a list")
    return "".join(part.get("text", "") for part in output) if isinstance(output, list) else ""


def _tools(declared: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names: set[str] = set()
    for tool in declared:
        _require(tool["type"] in {"function", "custom"}, f"a tool of type {tool['type']!r} nobody asked for")
        name = tool["name"]
        _require(_NAME.match(name) is not None and name not in names, f"bad or second tool name {name!r}")
        names.add(name)
        if tool["type"] == "function":
            _check_schema(tool["parameters"], name)
        yield name


def _schema(text: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = text.get("format")
    if wanted is None:
        return None
    _require(wanted["type"] == "json_schema" and _NAME.match(wanted["name"]) is not None, f"format {wanted}")
    schema: Mapping[str, Any] = wanted["schema"]
    _check_schema(schema, wanted["name"])
    if wanted.get("strict"):
        check_strict(schema, "$", schema)
    return schema


def _check_schema(schema: Any, name: str) -> None:
    _require(
        isinstance(schema, dict) and schema.get("type") == "object", f"{name}: the schema is no object's"
    )
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise Unexpected(f"{name}: {error.message}") from error


def check_strict(node: Any, where: str, root: Mapping[str, Any]) -> None:
    """Raise Unexpected where a schema breaks the rules of strict mode."""
    if not isinstance(node, dict):
        return
    refused = _NOT_STRICT & node.keys()
    _require(not refused, f"{where}: strict schemas have no {sorted(refused)}")
    if "$ref" in node:
        _require(node.keys() == {"$ref"}, f"{where}: $ref has siblings")
        _require(node["$ref"].removeprefix("#/$defs/") in root.get("$defs", {}), f"{where}: {node['$ref']}")
    if node.get("type") == "object":
        properties = node.get("properties", {})
        _require(node.get("additionalProperties") is False, f"{where}: additionalProperties is not false")
        _require(
            set(node.get("required", [])) == set(properties), f"{where}: not all properties are required"
        )
    for group in ("properties", "$defs"):
        for key, child in node.get(group, {}).items():
            check_strict(child, f"{where}.{key}", root)
    for child in node.get("anyOf", []):
        check_strict(child, f"{where}|", root)
    check_strict(node.get("items"), f"{where}[]", root)


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unexpected(otherwise)
