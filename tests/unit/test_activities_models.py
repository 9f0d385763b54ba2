"""Whose a model is that somebody named: who may name one, and which transports then get it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from flow_kit import step

from activities.developer import developer_model
from activities.models import Models, models_of
from schemas.flow import FlowSpec
from schemas.run import FlowInput
from schemas.settings import WorkerSettings
from transports.registry import open_transports

ALL: Final = ["stub", "claude-sdk", "claude-cli", "gemini-cli", "codex"]
OFFERED: Final = open_transports(WorkerSettings(transports=ALL))


def models(
    own: dict[str, Any],
    defaults: dict[str, Any],
    given: dict[str, Any],
    persona: str | None = None,
    **settings: Any,
) -> Models:
    """Return the models of the one step of a flow."""
    spec = FlowSpec.model_validate(
        {"id": "small", "version": 1, "title": "T", "steps": [step("one", **own)], "defaults": defaults}
    )
    run = FlowInput(flow="small", task="t", repo="/r", **given)
    return models_of(spec, spec.steps[0], persona, run, WorkerSettings(**settings), OFFERED)


SDK_CODEX: Final = {"transport": ["claude-sdk", "codex"]}
SDK: Final = {"transport": "claude-sdk"}


@pytest.mark.parametrize(
    ("own", "defaults", "given", "persona", "expected"),
    [
        # The first of the list, and who has the same provider.
        ({**SDK_CODEX, "model": "m"}, {}, {}, None, {"claude-sdk": "m", "claude-cli": "m"}),
        ({}, {**SDK_CODEX, "model": "m"}, {}, None, {"claude-sdk": "m", "claude-cli": "m"}),
        ({}, {}, {**SDK_CODEX, "model": "m"}, None, {"claude-sdk": "m", "claude-cli": "m"}),
        (SDK_CODEX, {}, {}, "m", {"claude-sdk": "m", "claude-cli": "m"}),
        # The transport that is named beside it, whatever the run or the step takes instead.
        ({}, {**SDK, "model": "m"}, {"transport": "codex"}, None, {"claude-sdk": "m", "claude-cli": "m"}),
        ({"transport": "codex"}, {**SDK, "model": "m"}, {}, None, {"claude-sdk": "m", "claude-cli": "m"}),
        (
            {**SDK, "model": "m"},
            {},
            {"transport": "codex", "model": "n"},
            None,
            {"claude-sdk": "m", "claude-cli": "m", "codex": "n"},
        ),
        # None is named beside it: the first of what the step takes.
        ({"model": "m"}, {}, {"transport": "codex"}, None, {"codex": "m"}),
        ({"transport": "codex"}, {"model": "m"}, {}, None, {"codex": "m"}),
        (SDK_CODEX, {}, {"model": "m"}, None, {"claude-sdk": "m", "claude-cli": "m"}),
        ({"model": "m"}, {}, {}, None, {"stub": "m"}),
        # Of two that are for one transport, the step's before the run's, the run's before the flow's, its agent's last.
        ({**SDK, "model": "a"}, {"model": "c"}, {"model": "b"}, "d", {"claude-sdk": "a", "claude-cli": "a"}),
        (SDK, {"model": "c"}, {"model": "b"}, "d", {"claude-sdk": "b", "claude-cli": "b"}),
        (SDK, {"model": "c"}, {}, "d", {"claude-sdk": "c", "claude-cli": "c"}),
    ],
)
def test_a_named_model_goes_to_the_provider_it_was_named_for_alone(
    own: dict[str, Any],
    defaults: dict[str, Any],
    given: dict[str, Any],
    persona: str | None,
    expected: dict[str, str],
) -> None:
    found = models(own, defaults, given, persona)

    assert {name: model for name in ALL if (model := found.of(name)) is not None} == expected


def test_what_a_transport_is_not_given_is_said() -> None:
    found = models({**SDK_CODEX, "model": "m"}, {}, {})

    assert found.withheld("codex") == ("m", "claude-sdk")
    assert found.withheld("claude-cli") is None
    assert models(SDK_CODEX, {}, {}).withheld("codex") is None


@pytest.mark.parametrize(
    ("transport", "settings", "expected"),
    [
        ("claude-sdk", {}, "haiku"),
        ("codex", {}, ""),
        ("claude-cli", {"developer_qa_model": "other"}, "other"),
        ("codex", {"developer_qa_model": "other"}, ""),
        ("claude-sdk", {"developer_qa_model": "other", "default_transport": "codex"}, "haiku"),
        ("codex", {"developer_qa_model": "other", "default_transport": "codex"}, "other"),
        ("stub", {"developer_qa_model": "other"}, None),
        ("claude-sdk", {"developer_qa_model": "off"}, None),
    ],
)
def test_the_developers_model_belongs_to_the_workers_provider_or_to_the_steps_first(
    transport: str, settings: dict[str, Any], expected: str | None
) -> None:
    found = models(SDK_CODEX, {}, {}, **settings)

    assert developer_model(OFFERED[transport], WorkerSettings(**settings), found) == expected
