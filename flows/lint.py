"""The linter: every rule over one flow, all findings at once, in the order of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flows.findings import Fault, Finding, one_of
from flows.known import NAME_PATTERN
from flows.personas import find_persona, known_personas, parse_persona
from flows.rules_chain import Follow, chain_faults
from flows.rules_graph import graph_faults
from flows.rules_params import param_faults
from flows.rules_steps import step_faults
from flows.source import Source
from schemas.flow import FlowSpec


@dataclass(frozen=True)
class Surroundings:
    """What a flow refers to: files sent along, folders of agents in order, and the flows that may follow."""

    files: Mapping[str, str]
    folders: Sequence[Path]
    follow: Follow | None


def lint(spec: FlowSpec, source: Source, surroundings: Surroundings) -> list[Finding]:
    """Return all findings on a flow whose shape is right, sorted by place."""
    faults = [*graph_faults(spec), *step_faults(spec), *param_faults(spec), *_file_faults(surroundings.files)]
    if surroundings.follow is not None:
        faults += chain_faults(spec, surroundings.follow)
    findings = {source.finding(fault) for fault in faults}
    return sorted(findings | set(_agent_findings(spec, source, surroundings)))


def _agent_findings(spec: FlowSpec, source: Source, around: Surroundings) -> Iterator[Finding]:
    for index, step in enumerate(spec.steps):
        file = find_persona(step.agent, around.files, around.folders)
        if file is None:
            known = known_personas(around.files, around.folders)
            what = f"step {step.id!r}: no agent is named {step.agent!r}"
            mend = one_of(step.agent, known)
            if re.fullmatch(NAME_PATTERN, step.agent):
                mend += f"; or add agents/{step.agent}.md beside the flow"
            yield source.finding(Fault(("steps", index, "agent"), "unknown_agent", what, mend))
        else:
            yield from parse_persona(step.agent, file)[1]


def _file_faults(files: Mapping[str, str]) -> Iterator[Fault]:
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name or "\\" in name:
            what = f"the file {name!r} sent along has no plain relative path"
            yield Fault((), "bad_file", what, "name it as in agents/reviewer.md")
