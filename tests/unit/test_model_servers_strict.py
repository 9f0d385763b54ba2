"""What the scripted model servers refuse: whatever the real provider would, and each of it fails the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from model_servers.script import Call, Run, Seen, Turn, in_order, turn
from wire_kit import PROVIDERS, SCHEMA, ask

Body = dict[str, Any]
Change = Callable[[Body], object]
BAD_SCHEMA: Final = {"type": "object", "properties": {"path": {"type": "no-type"}}}


def said(role: str, *blocks: Any) -> Body:
    """Return a message of Anthropic's."""
    return {"role": role, "content": list(blocks)}


def used(call_id: str = "1", name: str = "look") -> Body:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"path": "a"}}


def resulted(call_id: str = "1") -> Body:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "seen"}


def messages(*more: Body) -> Change:
    return lambda body: body["messages"].extend(more)


def tools(*declared: Body) -> Change:
    return lambda body: body.update(tools=list(declared))


def sets(**fields: Any) -> Change:
    return lambda body: body.update(fields)


def drops(name: str) -> Change:
    return lambda body: body.pop(name)


WORDS: Final = {"type": "text", "text": "Go."}
ANTHROPIC: Final[Mapping[str, tuple[Change, str]]] = {
    "no max_tokens": (drops("max_tokens"), "max_tokens is missing"),
    "no messages": (drops("messages"), "messages"),
    "no model": (drops("model"), "model"),
    "not one message": (sets(messages=[]), "the first message is not the user's"),
    "the assistant begins": (
        sets(messages=[said("assistant", WORDS)]),
        "the first message is not the user's",
    ),
    "only the system speaks": (sets(messages=[said("system", WORDS)]), "the first message is not the user's"),
    "an unknown role": (messages(said("tool", WORDS)), "bad role 'tool'"),
    "an empty message": (messages(said("assistant")), "of role assistant is empty"),
    "an empty text": (messages(said("assistant", {"type": "text", "text": ""})), "a text block is empty"),
    "a call of the user's": (messages(said("user", used()), said("user", resulted())), "not the assistant's"),
    "a result at the beginning": (sets(messages=[said("user", resulted())]), "begins with a tool result"),
    "no result": (messages(said("assistant", used()), said("user", WORDS)), "have the results"),
    "a result too late": (
        messages(said("assistant", used()), said("user", WORDS), said("user", resulted())),
        "have the results",
    ),
    "a result of no call": (messages(said("assistant", WORDS), said("user", resulted())), "have the results"),
    "a result of another call": (
        messages(said("assistant", used()), said("user", resulted("2"))),
        "have the results",
    ),
    "two results": (
        messages(said("assistant", used()), said("user", resulted(), resulted())),
        "have the results",
    ),
    "one result of two": (
        messages(said("assistant", used(), used("2")), said("user", resulted())),
        "have the results",
    ),
    "a result of the assistant's": (
        messages(said("assistant", used()), said("assistant", resulted())),
        "a tool result is not the user's",
    ),
    "an id used twice": (messages(said("assistant", used(), used())), "used twice"),
    "an id used again": (
        messages(said("assistant", used()), said("user", resulted()), said("assistant", used())),
        "used twice",
    ),
    "a bad tool name": (tools({"name": "l k", "input_schema": SCHEMA}), "bad tool name"),
    "a tool without a name": (tools({"input_schema": SCHEMA}), "bad tool name"),
    "a tool twice": (tools(*[{"name": "look", "input_schema": SCHEMA}] * 2), "declared twice"),
    "no schema": (tools({"name": "look"}), "bad input_schema"),
    "a schema of no object": (
        tools({"name": "look", "input_schema": {"type": "string"}}),
        "bad input_schema",
    ),
    "a schema that is none": (tools({"name": "look", "input_schema": BAD_SCHEMA}), "look"),
}


def contents(*more: Body) -> Change:
    return lambda body: body["contents"].extend(more)


def spoken(role: str, *parts: Any) -> Body:
    """Return a content of Google's."""
    return {"role": role, "parts": list(parts)}


def function_call(name: str = "look") -> Body:
    return {"functionCall": {"name": name, "args": {}}}


def response(name: str = "look") -> Body:
    return {"functionResponse": {"name": name, "response": {"output": "seen"}}}


def functions(*declared: Body) -> Change:
    return lambda body: body.update(tools=[{"functionDeclarations": list(declared)}])


GEMINI: Final[Mapping[str, tuple[Change, str]]] = {
    "no contents": (drops("contents"), "contents are empty"),
    "not one content": (sets(contents=[]), "contents are empty"),
    "the model begins": (sets(contents=[spoken("model", WORDS)]), "begin with the model"),
    "an unknown role": (contents(spoken("assistant", WORDS)), "a content of role assistant"),
    "no parts": (contents(spoken("model")), "with 0 parts"),
    "a call of the user's": (contents(spoken("user", function_call())), "in a content of role user"),
    "a response of the model's": (
        contents(spoken("model", function_call()), spoken("model", response())),
        "in a content of role model",
    ),
    "a call after the model's words": (
        contents(spoken("model", WORDS), spoken("model", function_call()), spoken("user", response())),
        "right after a user's content",
    ),
    "no response": (
        contents(spoken("model", function_call()), spoken("user", WORDS)),
        "calls of ['look'] are answered by responses of []",
    ),
    "a response too late": (
        contents(spoken("model", function_call()), spoken("user", WORDS), spoken("user", response())),
        "calls of ['look'] are answered by responses of []",
    ),
    "a response of no call": (contents(spoken("user", response())), "calls of [] are answered"),
    "a response of another call": (
        contents(spoken("model", function_call()), spoken("user", response("write"))),
        "answered by responses of ['write']",
    ),
    "two responses": (
        contents(spoken("model", function_call()), spoken("user", response(), response())),
        "answered by responses of ['look', 'look']",
    ),
    "one response of two": (
        contents(spoken("model", function_call(), function_call()), spoken("user", response())),
        "calls of ['look', 'look']",
    ),
    "no response at the end": (contents(spoken("model", function_call())), "calls without responses"),
    "a call without a name": (
        contents(spoken("model", {"functionCall": {}}), spoken("user", response())),
        "name",
    ),
    "a tool without a name": (functions({"parametersJsonSchema": SCHEMA}), "name"),
    "a schema that is none": (functions({"name": "look", "parametersJsonSchema": BAD_SCHEMA}), "look"),
}


def items(*more: Body) -> Change:
    return lambda body: body["input"].extend(more)


def message(role: str, kind: str) -> Body:
    """Return a message of OpenAI's."""
    return {"type": "message", "role": role, "content": [{"type": kind, "text": "Go."}]}


def called(call_id: str = "1", kind: str = "function_call", **more: Any) -> Body:
    given = {"arguments": "{}"} if kind == "function_call" else {"input": "x"}
    return {"type": kind, "call_id": call_id, "name": "look", **given, **more}


def output(call_id: str = "1", kind: str = "function_call", what: Any = "seen") -> Body:
    return {"type": f"{kind}_output", "call_id": call_id, "output": what}


def strict(**schema: Any) -> Change:
    given = {"type": "object", "additionalProperties": False, "properties": {}, "required": [], **schema}
    wanted = {"type": "json_schema", "name": "answer", "strict": True, "schema": given}
    return sets(text={"format": wanted})


def function(**fields: Any) -> Body:
    return {"type": "function", "name": "look", "parameters": SCHEMA, **fields}


A_TEXT: Final = {"a": {"type": "string"}}
OPENAI: Final[Mapping[str, tuple[Change, str]]] = {
    "no stream": (sets(stream=False), "without a stream"),
    "stored": (sets(store=True), "would be stored"),
    "stored unless it is said": (drops("store"), "would be stored"),
    "no model": (drops("model"), "model is missing"),
    "no input": (drops("input"), "input is no list"),
    "a text as input": (sets(input="Go."), "input is no list"),
    "an unknown role": (items(message("tool", "input_text")), "bad role 'tool'"),
    "what is read of the assistant": (items(message("assistant", "input_text")), "in the role assistant"),
    "what is said of the user": (items(message("user", "output_text")), "in the role user"),
    "an empty message": (items({"type": "message", "role": "user", "content": []}), "of role user is empty"),
    "an unknown item": (items({"type": "computer_call"}), "an item of type 'computer_call'"),
    "no output": (items(called()), "no tool output found for ['1']"),
    "an output of no call": (items(output()), "of no call: 1"),
    "an output before its call": (items(output(), called()), "of no call: 1"),
    "an output of another kind": (items(called(), output(kind="custom_tool_call")), "of no call: 1"),
    "two outputs": (items(called(), output(), output()), "has two outputs"),
    "a call twice": (items(called(), called(), output()), "stands twice"),
    "a call without an id": (items({"type": "function_call", "name": "look"}), "call_id"),
    "an output that is a number": (items(called(), output(what=7)), "neither text nor a list"),
    "arguments that are no JSON": (items(called(arguments="{"), output()), "JSONDecodeError"),
    "a tool of the provider's": (tools({"type": "web_search"}), "a tool of type 'web_search'"),
    "a bad tool name": (tools(function(name="l k")), "bad or second tool name"),
    "a tool twice": (tools(function(), function()), "bad or second tool name"),
    "no schema": (tools({"type": "function", "name": "look"}), "parameters"),
    "a schema of no object": (tools(function(parameters={"type": "string"})), "no object's"),
    "a schema that is none": (tools(function(parameters=BAD_SCHEMA)), "look"),
    "another format": (sets(text={"format": {"type": "json_object", "name": "a"}}), "format"),
    "more is allowed in strict": (strict(additionalProperties=True), "additionalProperties is not false"),
    "a choice in strict": (strict(properties=A_TEXT), "not all properties are required"),
    "a default in strict": (strict(default={}), "strict schemas have no ['default']"),
    "a rule below in strict": (
        strict(properties={"a": {"type": "array", "items": {"oneOf": [{}]}}}, required=["a"]),
        "strict schemas have no ['oneOf']",
    ),
    "a reference to nothing in strict": (
        strict(properties={"a": {"$ref": "#/$defs/b"}}, required=["a"]),
        "#/$defs/b",
    ),
    "a reference with more in strict": (
        strict(properties={"a": {"$ref": "#/$defs/b", "title": "A"}}, required=["a"], **{"$defs": {"b": {}}}),
        "$ref has siblings",
    ),
}
VIOLATIONS: Final = [
    pytest.param(name, change, why, id=f"{name}: {what}")
    for name, table in (("anthropic", ANTHROPIC), ("gemini", GEMINI), ("openai", OPENAI))
    for what, (change, why) in table.items()
]


def never(seen: Seen) -> Turn:
    """Be a mind that is to hear nothing of a request that is refused."""
    raise AssertionError(seen)


@pytest.mark.parametrize(("name", "change", "why"), VIOLATIONS)
def test_what_the_provider_would_refuse_is_refused_and_fails_the_test(
    name: str, change: Change, why: str
) -> None:
    provider = PROVIDERS[name]
    body = provider.request()
    change(body)
    with pytest.raises(AssertionError) as failed, provider.server(never) as server:
        assert ask(server, provider, body).status == 400
    (problem,) = server.problems
    assert server.seen == []
    assert why in problem
    assert str(failed.value).startswith(str(server.problems))


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_conversation_that_is_in_order_is_read_whole(name: str) -> None:
    provider = PROVIDERS[name]
    body = provider.request()
    match name:
        case "anthropic":
            body["messages"] += [
                said("assistant", used(), used("2")),
                said("user", resulted("2"), resulted()),
            ]
            body["messages"] += [said("system", WORDS), said("assistant", used("3"))]
            body["messages"] += [said("system", WORDS), said("user", resulted("3"))]
        case "gemini":
            body["contents"] += [spoken("model", function_call(), function_call())]
            body["contents"] += [spoken("user", response(), response()), spoken("model", function_call())]
            body["contents"] += [spoken("user", response())]
        case _:
            body["input"] += [called(), called("2"), output("2"), output()]
            body["input"] += [called("3", "custom_tool_call"), output("3", "custom_tool_call")]
    with provider.server(in_order(turn("Well."))) as server:
        assert ask(server, provider, body).status == 200
        (seen,) = server.seen
    assert seen.tools == ("look",)
    assert [(call.tool, call.result, call.failed) for call in seen.calls] == [("look", "seen", False)] * 3


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_request_without_a_key_fails_the_test(name: str) -> None:
    provider = PROVIDERS[name]
    with pytest.raises(AssertionError, match=r"no (API )?key"), provider.server(never) as server:
        assert ask(server, provider, key={}).status == 400


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("anthropic", "/v1/complete"),
        ("gemini", "/v1beta/models"),
        ("gemini", "/v1beta/models/gemini-x:embedContent"),
        ("gemini", "/v1beta/models/gemini-x:streamGenerateContent"),
        ("openai", "/v1/chat/completions"),
    ],
)
def test_a_place_that_is_not_there_fails_the_test(name: str, path: str) -> None:
    provider = PROVIDERS[name]
    with pytest.raises(AssertionError, match=path), provider.server(never) as server:
        assert ask(server, provider, path=path).status == 400


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_script_that_uses_a_tool_nobody_declared_fails_the_test(name: str) -> None:
    # Gemini's and OpenAI's models do call by name what is not there; the agent's own tools are looked up for all.
    part = Call("other") if name == "anthropic" else Run("ls")
    with (
        pytest.raises(AssertionError, match="declared"),
        PROVIDERS[name].server(in_order(turn(part))) as server,
    ):
        assert ask(server, PROVIDERS[name]).status == 400


def test_an_answer_of_anthropics_without_a_stream_fails_the_test() -> None:
    provider = PROVIDERS["anthropic"]
    body = provider.request()
    body["stream"] = False
    with (
        pytest.raises(AssertionError, match="without a stream"),
        provider.server(in_order(turn("Well."))) as server,
    ):
        assert ask(server, provider, body).status == 400


@pytest.mark.parametrize("name", ["anthropic", "gemini"])
def test_tokens_are_counted_without_the_model(name: str) -> None:
    provider = PROVIDERS[name]
    path = "/v1/messages/count_tokens" if name == "anthropic" else "/v1beta/models/gemini-x:countTokens"
    with provider.server(never) as server:
        heard = ask(server, provider, path=path)
    assert heard.status == 200
    assert b"okens" in heard.body
