"""The real agents with scripted models behind them, and the environment of a worker that offers them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from model_servers.anthropic import AnthropicServer
from model_servers.gemini import GeminiServer
from model_servers.openai import OpenAIServer
from model_servers.script import Mind
from model_servers.server import ModelServer

AGENTS: Final = ("claude-sdk", "claude-cli", "codex", "gemini-cli")
"""The transports with a real program."""
_SERVERS: Final[Mapping[str, type[ModelServer]]] = {
    "claude-sdk": AnthropicServer,
    "claude-cli": AnthropicServer,
    "codex": OpenAIServer,
    "gemini-cli": GeminiServer,
}
KEY: Final = "not-a-real-key"
"""The key that each of them is given."""


@contextmanager
def agents(minds: Mapping[str, Mind]) -> Iterator[dict[str, str]]:
    """Yield a worker's environment in which these transports are offered and each has its mind behind it.

    At the end every server fails the test for what its client did wrong.
    """
    with ExitStack() as stack:
        env = {"STEPWISE_TRANSPORTS": ",".join([*minds, "stub"])}
        for name, mind in minds.items():
            url = stack.enter_context(_SERVERS[name](mind)).url
            match name:
                case "claude-sdk" | "claude-cli":
                    env |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY}
                case "codex":
                    env |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY}
                case _:
                    env |= {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": KEY}
        yield env
