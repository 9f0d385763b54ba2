"""The Gemini API, as far as its command line program speaks it: ``generateContent`` and its stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from model_servers.script import (
    Ask,
    Call,
    Called,
    Edit,
    HandIn,
    Part,
    Read,
    Refuse,
    Run,
    Say,
    Seen,
    Think,
    Turn,
    Write,
    pieces,
)
from model_servers.server import ModelServer, Unexpected, event

_PATH: Final = re.compile(r"/v1beta/models/(?P<model>[^/:]+):(?P<method>\w+)(?:\?(?P<query>.*))?\Z")
_STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_FINISHES: Final = {"done": "STOP", "no_room": "MAX_TOKENS", "refused": "SAFETY"}


class GeminiServer(ModelServer):
    """Answers ``:generateContent``, ``:streamGenerateContent?alt=sse`` and ``:countTokens`` below ``/v1beta/models``.

    What the real server refuses is a problem here too: contents that do not begin with the user, a call without its
    response in the very next content, a response nobody asked for or that comes twice, tools that are no tools.
    """

    def read(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Seen | bytes:
        """Check a request as strictly as the real server, and return what it asks."""
        found = _PATH.match(path)
        if found is None:
            raise Unexpected("no such method")
        if not next((value for name, value in headers.items() if name.lower() == "x-goog-api-key"), ""):
            raise Unexpected("no API key in x-goog-api-key")
        if found["method"] == "countTokens":
            return json.dumps({"totalTokens": len(json.dumps(body)) // 4}).encode()
        if found["method"] == "streamGenerateContent" and found["query"] != "alt=sse":
            raise Unexpected("a stream is asked for with alt=sse")
        if found["method"] not in {"streamGenerateContent", "generateContent"}:
            raise Unexpected(f"no method {found['method']}")
        seen = Seen(
            model=found["model"],
            system="\n".join(_texts(body.get("systemInstruction") or {})),
            texts=(),
            calls=(),
            tools=tuple(_declared(body)),
            schema=_schema(body),
            raw=body,
            headers=headers,
            streams=found["method"] == "streamGenerateContent",
        )
        texts, calls = _conversation(body.get("contents"))
        return replace(seen, texts=tuple(texts), calls=tuple(calls))

    def stream(self, turn: Turn, seen: Seen) -> Iterable[bytes]:
        """Return the chunks of an answer; the last one has the finish reason and what was used."""
        chunks = [parts for part in turn.parts for parts in _chunks(part, seen)]
        for number, parts in enumerate(chunks):
            last = number == len(chunks) - 1
            yield event(_chunk(parts, seen, turn if last else None))
        if not chunks:
            yield event(_chunk([], seen, turn))

    def whole(self, turn: Turn, seen: Seen) -> bytes:
        """Return the one body of ``:generateContent``: all parts in one candidate."""
        parts = [part for one in turn.parts for chunk in _chunks(one, seen) for part in chunk]
        return json.dumps(_chunk(parts, seen, turn)).encode()

    def error(self, status: int, message: str) -> bytes:
        """Return an error as Google's servers word it."""
        return _error(status, message, [])

    def refusal(self, refuse: Refuse) -> bytes:
        """Return a scripted error; until when to wait stands in its details, where these servers say it."""
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        wait = refuse.retry_after
        details = [] if wait is None else [{"@type": kind, "retryDelay": f"{wait:g}s"}]
        return _error(refuse.status, f"scripted {refuse.status}", details)


def _error(status: int, message: str, details: list[dict[str, str]]) -> bytes:
    said = {"code": status, "message": message, "status": _STATUS.get(status, "UNKNOWN"), "details": details}
    return json.dumps({"error": said}).encode()


def _chunk(parts: list[dict[str, Any]], seen: Seen, last: Turn | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    chunk: dict[str, Any] = {"candidates": [candidate], "modelVersion": seen.model, "responseId": "r1"}
    if last is not None:
        candidate["finishReason"] = _FINISHES[last.end]
        used = last.tokens
        chunk["usageMetadata"] = {
            "promptTokenCount": used.input,
            "cachedContentTokenCount": used.cached,
            "candidatesTokenCount": used.output,
            "totalTokenCount": used.input + used.output,
        }
    return chunk


def _chunks(part: Part, seen: Seen) -> Iterator[list[dict[str, Any]]]:
    """Yield the parts of each chunk that one abstract part becomes."""
    match part:
        case Say(text=text):
            yield from ([{"text": piece}] for piece in pieces(text, part))
        case Think(text=text):
            yield from ([{"text": piece, "thought": True}] for piece in pieces(text, part))
        case HandIn(value=value):
            yield [{"text": json.dumps(value)}]
        case Write(path=path, content=content):
            yield _called(seen, "write_file", {"file_path": path, "content": content})
        case Read(path=path):
            yield _called(seen, "read_file", {"file_path": path})
        case Edit(path=path, old=old, new=new):
            changed = {"instruction": "as told", "old_string": old, "new_string": new}
            yield _called(seen, "replace", {"file_path": path, **changed})
        case Run(command=command):
            yield _called(seen, "run_shell_command", {"command": command, "description": "as told"})
        case Ask(question=question, options=options, multi_select=multi):
            asked = {
                "question": question,
                "header": "Ask",
                "type": "choice" if options else "text",
                "options": [{"label": option, "description": option} for option in options],
                "multiSelect": multi,
            }
            yield _called(seen, "ask_user", {"questions": [asked]})
        case Call(tool=tool, arguments=arguments):
            # Models do call what nobody declared.
            yield [{"functionCall": {"name": tool, "args": dict(arguments)}}]


def _called(seen: Seen, name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    if name not in seen.tools:
        raise Unexpected(f"the script calls {name}, but declared are {seen.tools}")
    return [{"functionCall": {"name": name, "args": arguments}}]


def _texts(content: Mapping[str, Any]) -> list[str]:
    return [part["text"] for part in content.get("parts", []) if "text" in part]


def _declared(body: Mapping[str, Any]) -> Iterator[str]:
    for tool in body.get("tools") or []:
        for declared in tool.get("functionDeclarations", []):
            try:
                Draft202012Validator.check_schema(
                    declared.get("parametersJsonSchema") or declared.get("parameters") or {}
                )
            except SchemaError as error:
                raise Unexpected(f"the schema of tool {declared['name']}: {error.message}") from None
            yield declared["name"]


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config = body.get("generationConfig") or {}
    found: Mapping[str, Any] | None = config.get("responseJsonSchema") or config.get("responseSchema")
    return found


def _conversation(contents: Any) -> tuple[list[tuple[str, str]], list[Called]]:
    """Return texts and calls of the contents; raises Unexpected where the real server would refuse them."""
    if not isinstance(contents, list) or not contents:
        raise Unexpected("contents are empty")
    if contents[0].get("role") != "user":
        raise Unexpected("contents begin with the model")
    texts: list[tuple[str, str]] = []
    calls: list[Called] = []
    open_calls: list[Called] = []
    before = ""
    for content in contents:
        role, parts = content.get("role"), content.get("parts")
        if role not in {"user", "model"} or not parts:
            raise Unexpected(f"a content of role {role} with {len(parts or [])} parts")
        responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
        asked = [part["functionCall"] for part in parts if "functionCall" in part]
        if (asked and role != "model") or (responses and role != "user"):
            raise Unexpected(f"calls or responses in a content of role {role}")
        if asked and before != "user":
            raise Unexpected("a call has to come right after a user's content")
        calls += _answered(open_calls, responses)
        open_calls = [_call(one, len(calls) + number) for number, one in enumerate(asked)]
        said = "assistant" if role == "model" else "user"
        texts += [(said, part["text"]) for part in parts if part.get("text") and not part.get("thought")]
        before = role
    if open_calls:
        raise Unexpected(f"calls without responses: {[call.tool for call in open_calls]}")
    return texts, calls


def _call(asked: Mapping[str, Any], number: int) -> Called:
    return Called(asked.get("id") or f"#{number}", asked["name"], asked.get("args") or {})


def _answered(asked: list[Called], responses: list[Mapping[str, Any]]) -> list[Called]:
    """Return the calls with their results: one for each, and nothing else."""
    names = sorted(call.tool for call in asked)
    answered = sorted(response["name"] for response in responses)
    if names != answered:
        raise Unexpected(f"calls of {names} are answered by responses of {answered}")
    left = list(responses)
    done: list[Called] = []
    for call in asked:
        # By id where the client says one, else by name in their order.
        own = [one for one in left if one.get("id") == call.call_id]
        found = (own or [one for one in left if one["name"] == call.tool])[0]
        left.remove(found)
        result = found.get("response") or {}
        failed = "error" in result
        done.append(replace(call, result=str(result.get("error") or result.get("output")), failed=failed))
    return done
