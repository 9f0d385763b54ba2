"""What a program is given to reach its model: each key under a name that it reads, and of no other provider."""

from __future__ import annotations

import pytest

from transports.credentials import KEYS, Provider, provider_environment

READ = {
    "ANTHROPIC_API_KEY": "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN": "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN": "CLAUDE_CODE_OAUTH_TOKEN",
    "GEMINI_API_KEY": "GEMINI_API_KEY",
    "GOOGLE_API_KEY": "GEMINI_API_KEY",
    "OPENAI_API_KEY": "OPENAI_API_KEY",
}
PROVIDERS: tuple[Provider, ...] = ("anthropic", "google", "openai")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_key_reaches_its_program_by_the_name_that_it_reads(provider: Provider) -> None:
    assert set(READ) == {name for names in KEYS.values() for name in names}
    for name in KEYS[provider]:
        assert provider_environment(provider, {name: "k", "OTHER": "o"}) == {READ[name]: "k"}


def test_a_key_by_the_usual_name_goes_before_one_by_another() -> None:
    both = {"GEMINI_API_KEY": "one", "GOOGLE_API_KEY": "two"}
    assert provider_environment("google", both) == {"GEMINI_API_KEY": "one"}
    assert provider_environment("google", {"GEMINI_API_KEY": "", "GOOGLE_API_KEY": "two"}) == {
        "GEMINI_API_KEY": "two"
    }
