"""Scenario files, the session file, and the table of transports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.scenario import Scenario
from schemas.settings import WorkerSettings
from transports import registry
from transports.port import TransportError
from transports.stub import StubTransport
from transports.stub_progress import session_id_of
from transports.stub_script import MAX_SCENARIO_BYTES, read_scenario, turn_of

SCRIPT = Scenario.model_validate(
    {
        "version": 1,
        "steps": {
            "build": {
                "turns": [{"work": [{"do": "say", "text": "one"}]}, {"work": [{"do": "say", "text": "two"}]}],
                "resumed": {"work": [{"do": "say", "text": "again"}]},
            },
            "review": {"turns": [{"work": [{"do": "say", "text": "looks good"}]}]},
        },
    }
)


def said(step: str, visit: int, *, resumed: bool = False, attempt: int = 1) -> tuple[str, list[object]]:
    place: dict[str, str | int] = {"step": step, "visit": visit, "attempt": attempt, "iteration": 1}
    key, turn = turn_of(SCRIPT, place, resumed=resumed)
    return key, [action.model_dump()["text"] for action in turn.work]


def test_the_visit_chooses_the_turn_and_the_last_one_repeats() -> None:
    assert [said("build", visit)[1] for visit in (1, 2, 3, 9)] == [["one"], ["two"], ["two"], ["two"]]


def test_a_resumed_attempt_plays_the_resumed_turn_if_there_is_one() -> None:
    assert said("build", 1, resumed=True)[1] == ["again"]
    assert said("review", 1, resumed=True) == said("review", 1)


def test_each_resumed_attempt_has_its_own_progress_and_other_attempts_share_theirs() -> None:
    assert said("build", 1, resumed=True, attempt=2)[0] != said("build", 1, resumed=True, attempt=3)[0]
    assert said("build", 1, attempt=1)[0] == said("build", 1, attempt=2)[0]
    assert said("build", 1)[0] != said("build", 2)[0]


def test_a_step_without_a_script_does_nothing() -> None:
    assert said("deploy", 1)[1] == []


def test_a_scenario_is_read_from_yaml_and_from_json(tmp_path: Path) -> None:
    yaml, text = tmp_path / "one.yaml", tmp_path / "two.json"
    yaml.write_text(
        "version: 1\nsteps:\n  build:\n    turns:\n      - work: [{do: edit, path: a, replace: x, with: y}]\n"
    )
    text.write_text(
        json.dumps(
            {
                "version": 1,
                "steps": {
                    "build": {"turns": [{"work": [{"do": "edit", "path": "a", "replace": "x", "with": "y"}]}]}
                },
            }
        )
    )
    assert read_scenario(str(yaml)) == read_scenario(str(text))
    assert read_scenario(None).steps == {}


def test_a_scenario_that_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("version: 1\ndescription: old\n")
    assert read_scenario(str(file)).description == "old"
    file.write_text("version: 1\ndescription: new!\n")
    assert read_scenario(str(file)).description == "new!"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "scenario_missing"),
        ("version: 1\nversion: 1\n", "scenario_invalid"),
        ("version: 2\n", "scenario_invalid"),
        ("version: 1\nsteps: {build: {turns: [{work: [{do: dance}]}]}}\n", "scenario_invalid"),
        ("version: [", "scenario_invalid"),
        ("!!python/object/apply:os.getpid []\n", "scenario_invalid"),
        ("#" * (MAX_SCENARIO_BYTES + 1), "scenario_invalid"),
    ],
)
def test_a_scenario_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None, code: str) -> None:
    file = tmp_path / "scenario.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TransportError) as raised:
        read_scenario(str(file))
    assert raised.value.error.code == code
    assert not raised.value.resume_refused


def test_a_session_id_is_made_of_run_step_visit_and_attempt() -> None:
    place: dict[str, str | int] = {"step": "build", "visit": 1, "attempt": 1, "iteration": 1}
    first = session_id_of("run-1", place)
    assert first == session_id_of("run-1", place | {"iteration": 2})
    others = [session_id_of("run-2", place)] + [
        session_id_of("run-1", place | change)
        for change in ({"step": "review"}, {"visit": 2}, {"attempt": 2}, {"visit": 11, "attempt": 1})
    ]
    assert len({first, *others}) == 6


def test_the_registry_knows_the_stub() -> None:
    assert isinstance(registry.open("stub"), StubTransport)
    assert registry.open("stub").name == "stub"
    assert registry.available(["stub"])["stub"].ok


@pytest.mark.parametrize("name", ["", "Stub", "os", "transports.stub"])
def test_a_name_that_is_not_in_the_table_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(registry.UnknownTransport) as raised:
        registry.open(name)
    assert raised.value.known == tuple(sorted(registry.TRANSPORTS))
    assert raised.value.code == "unknown_transport"
    assert "stub" in str(raised.value)
    with pytest.raises(registry.UnknownTransport):
        registry.available(["stub", name])


def test_a_worker_gets_the_transports_of_its_settings() -> None:
    assert set(registry.open_transports(WorkerSettings(transports=["stub"]))) == {"stub"}
    assert registry.open_transports(WorkerSettings(transports=[])) == {}
    with pytest.raises(registry.UnknownTransport):
        registry.open_transports(WorkerSettings(transports=["stub", "telepathy"]))


def test_what_the_registry_opens_has_the_name_it_was_opened_by() -> None:
    assert {name: registry.open(name).name for name in registry.TRANSPORTS} == {
        name: name for name in registry.TRANSPORTS
    }
