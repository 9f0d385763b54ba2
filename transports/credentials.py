"""What an agent's program needs to reach its model: the only secrets a child ever gets, by closed lists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from schemas.envelopes import ErrorEnvelope
from transports.port import TransportError

Provider = Literal["anthropic", "google", "openai"]

KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "openai": ("OPENAI_API_KEY",),
    }
)
"""Per provider the variables with its keys, of which one must be set, the usual one first."""
_READ_AS: Final[Mapping[str, str]] = MappingProxyType({"GOOGLE_API_KEY": "GEMINI_API_KEY"})
"""Names of keys that a program does not read itself, by the one it reads: Gemini CLI takes the other for Vertex AI."""
ADDRESSES: Final[Mapping[Provider, str]] = MappingProxyType(
    {"anthropic": "ANTHROPIC_BASE_URL", "google": "GOOGLE_GEMINI_BASE_URL", "openai": "OPENAI_BASE_URL"}
)
"""Per provider the variable with the address of its service, if that is not the usual one."""
PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""How the model's address is reached from this machine."""


def provider_names(provider: Provider) -> tuple[str, ...]:
    """Return the names of all variables that a provider's program gets, and the commands under it do not."""
    return (*KEYS[provider], ADDRESSES[provider], *PROXIES)


def provider_environment(provider: Provider, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return those variables of a provider that are set and not empty, from ``environment`` (default: this process's).

    A key has the name that the provider's program reads.
    """
    source = os.environ if environment is None else environment
    found = {name: source[name] for name in provider_names(provider) if source.get(name)}
    for name, read in _READ_AS.items():
        if name in found:
            key = found.pop(name)
            found.setdefault(read, key)
    return found


def require_key(who: str, provider: Provider, environment: Mapping[str, str]) -> None:
    """Raise TransportError, which lets the next transport be tried, where a program's environment has no key."""
    if not any(environment.get(name) for name in KEYS[provider]):
        message = f"{who} has no key: set {' or '.join(KEYS[provider])} for the worker"
        raise TransportError(ErrorEnvelope(code="missing_api_key", message=message))
