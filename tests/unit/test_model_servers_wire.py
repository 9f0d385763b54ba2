"""What the scripted model servers send: each answer and each error of a script is what goes over the wire."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest
from model_servers.gemini import GeminiServer
from model_servers.script import Call, Garbage, HandIn, Refuse, Say, Seen, Tokens, Turn, in_order, turn
from model_servers.server import ModelServer
from wire_kit import PROVIDERS, Heard, Provider, ask, asked

WORDS = "Well, let me look."


@pytest.fixture(params=sorted(PROVIDERS))
def provider(request: pytest.FixtureRequest) -> Provider:
    return PROVIDERS[request.param]


@pytest.fixture
def server(provider: Provider) -> Iterator[ModelServer]:
    with provider.server(in_order()) as made:
        yield made


def texts(heard: Heard) -> str:
    """Return the words of an answer, whichever the protocol."""
    found = []
    for one in heard.data:
        match one:
            case {"type": "content_block_delta", "delta": {"text": text}}:
                found.append(text)
            case {"type": "response.output_text.delta", "delta": text}:
                found.append(text)
            case {"candidates": [{"content": {"parts": [{"text": text}]}}]}:
                found.append(text)
    return "".join(found)


def tokens(heard: Heard) -> list[Any]:
    """Return prompt, cached and answered tokens as an answer reports them."""
    read: list[Any] = []
    for one in heard.data:
        match one:
            case {"type": "message_start", "message": {"usage": used}}:
                read[:] = [used["input_tokens"], used["cache_read_input_tokens"]]
            case {"type": "message_delta", "usage": {"output_tokens": answered}}:
                read.append(answered)
            case {"type": "response.completed", "response": {"usage": used}}:
                cached = used["input_tokens_details"]["cached_tokens"]
                read[:] = [used["input_tokens"] - cached, cached, used["output_tokens"]]
            case {"usageMetadata": used}:
                cached = used["cachedContentTokenCount"]
                read[:] = [used["promptTokenCount"], cached, used["candidatesTokenCount"]]
    return read


def test_words_come_in_their_pieces_with_what_they_used(provider: Provider, server: ModelServer) -> None:
    server.mind = in_order(turn(Say(WORDS, pieces=3), tokens=Tokens(70, 20, 5)))
    heard = ask(server, provider)
    assert (heard.status, heard.whole) == (200, True)
    assert heard.headers["content-type"] == "text/event-stream"
    assert texts(heard) == WORDS
    assert tokens(heard) == [70, 20, 5]
    assert sum(piece in heard.body.decode() for piece in ("Well, ", "let me", " look.")) == 3
    assert [seen.asked for seen in server.seen] == ["Go."]


def test_a_declared_tool_is_called_with_its_arguments(provider: Provider, server: ModelServer) -> None:
    server.mind = in_order(turn("Look:", Call("look", {"path": "a.txt"})))
    sent = ask(server, provider).body.decode()
    assert '"look"' in sent
    assert "a.txt" in sent


def test_a_value_is_handed_in_as_the_whole_text(provider: Provider, server: ModelServer) -> None:
    server.mind = in_order(turn(HandIn({"well": True})))
    assert json.loads(texts(ask(server, provider))) == {"well": True}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 503, 529])
def test_an_error_is_sent_in_the_providers_words_and_says_no_time(
    provider: Provider, server: ModelServer, status: int
) -> None:
    server.mind = in_order(Refuse(status))
    heard = ask(server, provider)
    assert (heard.status, "retry-after" in heard.headers) == (status, False)
    error = json.loads(heard.body)["error"]
    assert error["message"] == f"scripted {status}"
    assert "retryDelay" not in heard.body.decode()


def test_the_kind_of_an_error_is_the_providers_own_word() -> None:
    kinds = {}
    for name, one in PROVIDERS.items():
        with one.server(in_order(*map(Refuse, (401, 429, 500)))) as server:
            errors = [json.loads(ask(server, one).body)["error"] for _ in range(3)]
            kinds[name] = [error.get("status") or error["type"] for error in errors]
    assert kinds == {
        "anthropic": ["authentication_error", "rate_limit_error", "api_error"],
        "gemini": ["UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "INTERNAL"],
        "openai": ["authentication_error", "rate_limit_error", "server_error"],
    }


def test_a_rate_limit_says_until_when(provider: Provider, server: ModelServer) -> None:
    server.mind = in_order(Refuse(429, retry_after=7), Refuse(529, retry_after=0.5))
    first, second = ask(server, provider), ask(server, provider)
    assert (first.headers["retry-after"], second.headers["retry-after"]) == ("7", "0.5")
    if provider is PROVIDERS["gemini"]:
        (detail,) = json.loads(first.body)["error"]["details"]
        assert detail == {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}


def test_a_slow_answer_waits_between_its_events(
    provider: Provider, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    server.mind = in_order(turn(Say(WORDS, pieces=3), pace_s=30))
    heard = ask(server, provider)
    assert texts(heard) == WORDS
    # Before each event but the first.
    assert waited == [30] * (len(heard.data) - 1)
    assert len(waited) > 1


def test_a_stream_is_cut_after_so_many_events_without_its_end(
    provider: Provider, server: ModelServer
) -> None:
    server.mind = in_order(turn(Say(WORDS, pieces=3), cut_after=2), turn(Say(WORDS, pieces=3)))
    cut, whole = ask(server, provider), ask(server, provider)
    assert (cut.status, cut.whole, len(cut.data)) == (200, False, 2)
    assert whole.whole
    assert whole.body.startswith(cut.body[:20])
    assert len(whole.data) > 2
    assert server.hung_up == 0


def events_of(response: HTTPResponse, number: int) -> list[str]:
    """Read so many events of a stream that goes on."""
    found: list[str] = []
    while len(found) < number:
        line = response.readline().decode()
        assert line, "the stream ended"
        if line.startswith("data: "):
            found.append(line)
            response.readline()
    return found


def test_a_stream_that_hangs_says_nothing_more_until_the_server_ends(provider: Provider) -> None:
    with provider.server(in_order(turn(Say(WORDS, pieces=3), hang_after=1))) as server:
        with asked(server, provider.path, provider.request(), provider.key) as response:
            events_of(response, 1)
            server.close()
            # Had anything been said meanwhile, it would be read here behind the end of the chunk.
            assert response.fp.read() == b"\r\n"
        assert server.hung_up == 0


def test_a_client_that_leaves_a_stream_that_hangs_is_counted(provider: Provider, server: ModelServer) -> None:
    server.mind = in_order(turn(Say(WORDS, pieces=3), hang_after=1))
    left = threading.Event()

    class Counted(int):
        def __add__(self, other: int) -> int:
            left.set()
            return int(self) + other

    server.hung_up = Counted(0)
    with asked(server, provider.path, provider.request(), provider.key) as response:
        events_of(response, 1)
        assert not left.is_set()
        response.close()
    assert left.wait(60)
    assert server.hung_up == 1


def test_garbage_goes_out_as_it_is(provider: Provider, server: ModelServer) -> None:
    server.mind = in_order(Garbage(b"data: {nothing\n\n<html>"))
    heard = ask(server, provider)
    assert (heard.status, heard.body, heard.whole) == (200, b"data: {nothing\n\n<html>", True)


def test_an_answer_of_megabytes_comes_whole(provider: Provider, server: ModelServer) -> None:
    huge = "x" * 5_000_000
    server.mind = in_order(turn(huge))
    assert texts(ask(server, provider)) == huge


WHOLE = "/v1beta/models/gemini-x:generateContent"


def test_what_gemini_is_not_asked_to_stream_comes_as_one_body() -> None:
    parts = (Say(WORDS, pieces=3), Call("look", {"path": "a.txt"}))
    with GeminiServer(in_order(turn(*parts, tokens=Tokens(70, 20, 5)))) as server:
        heard = ask(server, PROVIDERS["gemini"], path=WHOLE)
    assert heard.headers["content-type"] == "application/json"
    body = json.loads(heard.body)
    said, called = (
        body["candidates"][0]["content"]["parts"][:-1],
        body["candidates"][0]["content"]["parts"][-1],
    )
    assert "".join(part["text"] for part in said) == WORDS
    assert called == {"functionCall": {"name": "look", "args": {"path": "a.txt"}}}
    assert body["candidates"][0]["finishReason"] == "STOP"
    assert body["usageMetadata"]["totalTokenCount"] == 75
    assert [seen.streams for seen in server.seen] == [False]


@pytest.mark.parametrize("stops", ["cut_after", "hang_after"])
def test_a_script_that_stops_an_answer_of_one_body_fails_the_test(stops: str) -> None:
    with (
        pytest.raises(AssertionError, match="none was asked for"),
        GeminiServer(in_order(turn("Well.", **{stops: 0}))) as server,
    ):
        assert ask(server, PROVIDERS["gemini"], path=WHOLE).status == 400


def test_one_request_after_the_other_is_answered_in_the_order_of_the_script(
    provider: Provider, server: ModelServer
) -> None:
    server.mind = in_order(turn("one"), turn("two"))
    assert [texts(ask(server, provider)) for _ in range(3)] == ["one", "two", "Done."]


@pytest.mark.parametrize("stops", ["cut_after", "hang_after"])
def test_a_script_that_stops_behind_its_events_fails_the_test(provider: Provider, stops: str) -> None:
    def late(_: Seen) -> Turn:
        return turn("Short.", **{stops: 50})

    with (
        pytest.raises(AssertionError, match="stops the stream behind"),
        provider.server(late) as server,
    ):
        assert ask(server, provider).status == 400


def test_a_mind_that_knows_no_answer_fails_the_test(provider: Provider) -> None:
    def silent(_: Seen) -> Turn:
        raise IndexError("pop from empty list")

    with (
        pytest.raises(AssertionError, match="pop from empty list"),
        provider.server(silent) as server,
    ):
        assert ask(server, provider).status == 500
