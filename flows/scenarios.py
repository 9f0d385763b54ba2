"""Scenarios: scripts that drive the ``stub`` transport, found by name or sent whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flows.findings import MAX_FINDINGS, Fault, Finding, PathInFile, one_of
from flows.reading import SHIPPED, find_named, names_in, read_found
from flows.shape import check_shape
from flows.source import read_source
from schemas.scenario import Action, Edit, Scenario, Turn


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario as found: its name, where it is, its whole text."""

    name: str
    path: Path
    text: str


def known_scenarios(folders: Iterable[Path] = ()) -> list[str]:
    """Return the names of all scenarios that can be found, sorted."""
    return names_in(_inside(folders))


def find_scenario(name: str, folders: Sequence[Path] = ()) -> ScenarioFile:
    """Find a scenario, shipped ones first; BadInput ``UnknownScenario`` names the known ones and the nearest."""
    path = find_named("scenario", "UnknownScenario", name, _inside(folders))
    return ScenarioFile(name, path, read_found(path, "scenario"))


def load_scenario(
    file: str, text: str, *, steps: Collection[str] | None = None
) -> tuple[Scenario | None, list[Finding]]:
    """Check a scenario; with ``steps``, the step ids of the flow, it may name no others. None if it has a fault."""
    source, findings = read_source(file, text)
    if source is None:
        return None, findings
    scenario, shape_findings = check_shape(source, Scenario)
    findings += shape_findings
    if scenario is not None:
        findings += [source.finding(fault) for fault in islice(_faults(scenario, steps), MAX_FINDINGS)]
    return (None, sorted(findings)) if findings else (scenario, [])


def _inside(folders: Iterable[Path]) -> list[Path]:
    return [folder / "scenarios" for folder in (SHIPPED, *folders)]


def _faults(scenario: Scenario, steps: Collection[str] | None) -> Iterator[Fault]:
    for name in scenario.steps:
        if steps is not None and name not in steps:
            what = f"the flow has no step {name!r}"
            yield Fault(("steps", name), "unknown_step", what, one_of(name, steps), on_key=True)
    for path, action in _actions(scenario):
        if isinstance(action, Edit):
            yield from _edit_faults(path, action)


def _turns(scenario: Scenario) -> Iterator[tuple[PathInFile, Turn]]:
    for name, script in scenario.steps.items():
        for index, turn in enumerate(script.turns):
            yield ("steps", name, "turns", index), turn
        if script.resumed is not None:
            yield ("steps", name, "resumed"), script.resumed


def _actions(scenario: Scenario) -> Iterator[tuple[PathInFile, Action]]:
    for place, turn in _turns(scenario):
        lists: list[tuple[PathInFile, list[Action]]] = [
            (("work",), turn.work),
            (("finalize", "actions"), turn.finalize.actions),
            (("route", "actions"), turn.route.actions),
        ]
        for key, actions in lists:
            for index, action in enumerate(actions):
                yield (*place, *key, index), action


def _edit_faults(path: PathInFile, edit: Edit) -> Iterator[Fault]:
    ways = [
        key
        for key, used in (
            ("content", edit.content is not None),
            ("replace", edit.replace is not None),
            ("append", edit.append is not None),
            ("delete", edit.delete),
        )
        if used
    ]
    if len(ways) != 1:
        what = f"an edit does one thing, this one does {' and '.join(ways) or 'nothing'}"
        yield Fault(path, "bad_edit", what, "give one of content, replace + with, append, delete: true")
    if (edit.replace is None) != (edit.with_ is None):
        yield Fault(path, "bad_edit", "`replace` and `with` go together", "give both")
