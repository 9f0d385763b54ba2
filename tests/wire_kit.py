"""A bare client of the scripted model servers: it sends what a test says, and shows what came over the wire."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from model_servers.anthropic import AnthropicServer
from model_servers.gemini import GeminiServer
from model_servers.openai import OpenAIServer
from model_servers.script import Mind
from model_servers.server import ModelServer

SCHEMA: Final = {"type": "object", "properties": {"path": {"type": "string"}}}
"""The schema of a tool's arguments."""


@dataclass(frozen=True)
class Provider:
    """One provider's protocol: its server, where a model is asked, with which key, and a request that is well-formed."""

    server: Callable[[Mind], ModelServer]
    path: str
    key: Mapping[str, str]
    body: Mapping[str, Any]

    def request(self) -> dict[str, Any]:
        """Return a request of one's own to change."""
        return copy.deepcopy(dict(self.body))


PROVIDERS: Final[Mapping[str, Provider]] = {
    "anthropic": Provider(
        AnthropicServer,
        "/v1/messages?beta=true",
        {"x-api-key": "k"},
        {
            "model": "claude-x",
            "max_tokens": 100,
            "stream": True,
            "tools": [{"name": "look", "input_schema": SCHEMA}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Go."}]}],
        },
    ),
    "gemini": Provider(
        GeminiServer,
        "/v1beta/models/gemini-x:streamGenerateContent?alt=sse",
        {"x-goog-api-key": "k"},
        {
            "contents": [{"role": "user", "parts": [{"text": "Go."}]}],
            "tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]}],
        },
    ),
    "openai": Provider(
        OpenAIServer,
        "/v1/responses",
        {"Authorization": "Bearer k"},
        {
            "model": "gpt-x",
            "stream": True,
            "store": False,
            "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}
            ],
        },
    ),
}


@dataclass
class Heard:
    """What came back: the status, the headers in lower case, the body; ``whole`` says that it came to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True

    @property
    def data(self) -> list[Any]:
        """The events of the stream."""
        lines = self.body.decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


@contextmanager
def asked(
    server: ModelServer, path: str, body: Any, headers: Mapping[str, str]
) -> Iterator[http.client.HTTPResponse]:
    """Send a request, and yield its answer, which is still to be read."""
    at = urlsplit(server.url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        yield connection.getresponse()
    finally:
        connection.close()


def ask(
    server: ModelServer,
    provider: Provider,
    body: Any = None,
    *,
    path: str | None = None,
    key: Mapping[str, str] | None = None,
) -> Heard:
    """Send a request and read all of its answer."""
    given = provider.request() if body is None else body
    with asked(server, path or provider.path, given, provider.key if key is None else key) as response:
        try:
            read, whole = response.read(), True
        except http.client.IncompleteRead as cut:
            read, whole = cut.partial, False
        lower = {name.lower(): value for name, value in response.getheaders()}
        return Heard(response.status, lower, read, whole)
