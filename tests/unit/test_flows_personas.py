from __future__ import annotations

import pytest

from flows.personas import PersonaFile, find_persona, known_personas, parse_persona
from flows.reading import SHIPPED

GOOD = "---\nname: guest\ndescription: A guest.\nmodel: small\n---\n\nYou are a guest.\n---\nStill you.\n"


def test_a_persona_is_front_matter_and_text() -> None:
    persona, findings = parse_persona("guest", PersonaFile("agents/guest.md", GOOD))
    assert findings == []
    assert persona is not None
    assert (persona.name, persona.description, persona.model) == ("guest", "A guest.", "small")
    assert persona.text == "You are a guest.\n---\nStill you.\n"


@pytest.mark.parametrize("tools", ["Read, Edit", "[Read]"])
def test_tools_that_cannot_be_held_are_refused(tools: str) -> None:
    persona, (finding,) = parse_persona(
        "guest", PersonaFile("f", GOOD.replace("model:", f"tools: {tools}\nmodel:"))
    )
    assert persona is None
    assert (finding.line, finding.code) == (4, "bad_persona")
    assert "policy: read-only" in finding.mend


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("You are.\n", 1, "bad_persona"),
        ("---\nname: guest\n", 1, "bad_persona"),
        ("", 1, "bad_persona"),
        (GOOD.replace("name: guest", "name: host"), 2, "bad_persona"),
        ("---\nname: guest\ndescription: d\n---\n \n", 4, "bad_persona"),
        (GOOD.replace("model:", "modell:"), 4, "unknown_key"),
        (GOOD.replace("name: guest", "name: [guest"), 3, "yaml_syntax"),
        (GOOD.replace("model: small", "model: 5"), 4, "wrong_value"),
        (GOOD + "\0", 10, "bad_persona"),
        (GOOD + "x" * 200_000, 1, "bad_persona"),
    ],
)
def test_a_fault_in_a_persona_is_said_with_its_line(text: str, line: int, code: str) -> None:
    persona, findings = parse_persona("guest", PersonaFile("f", text))
    assert persona is None
    assert [(finding.line, finding.code) for finding in findings] == [(line, code)]


@pytest.mark.parametrize("key", ["../agents/critic", "agents/critic", "critic.md", "Critic", ""])
def test_an_agent_is_named_and_never_a_path(key: str) -> None:
    assert find_persona(key, {f"agents/{key}.md": GOOD}, [SHIPPED]) is None


@pytest.mark.parametrize("key", known_personas({}, [SHIPPED]))
def test_every_shipped_persona_can_be_read(key: str) -> None:
    file = find_persona(key, {}, [SHIPPED])
    assert file is not None
    persona, findings = parse_persona(key, file)
    assert findings == []
    assert persona is not None
    assert "claim" in persona.text.lower()
