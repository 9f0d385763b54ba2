"""The linter: every rule over one flow, all findings at once, in the order of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path, PurePosixPath

from flows.findings import MAX_FINDINGS, Fault, Finding, one_of
from flows.known import NAME_PATTERN
from flows.personas import find_persona, known_personas, parse_persona
from flows.rules_chain import Follow, chain_faults
from flows.rules_graph import graph_faults
from flows.rules_params import param_faults
from flows.rules_steps import step_faults
from flows.source import Source
from schemas.flow import FlowSpec

MAX_STEPS = 200
"""How many steps a flow may have."""
MAX_FILES = 200
"""How many files may be sent along with a flow."""
_MAX_NAME_BYTES = 255
_MAX_SHOWN = 100


@dataclass(frozen=True)
class Surroundings:
    """What a flow refers to: files sent along, folders of agents in order, and the flows that may follow."""

    files: Mapping[str, str]
    folders: Sequence[Path]
    follow: Follow | None


def lint(spec: FlowSpec, source: Source, surroundings: Surroundings) -> list[Finding]:
    """Return all findings on a flow whose shape is right, sorted by place."""
    if len(spec.steps) > MAX_STEPS:
        what = f"the flow has {len(spec.steps)} steps; at most {MAX_STEPS} are followed"
        return [
            source.finding(
                Fault(("steps",), "yaml_limit", what, "split it into flows that follow one another")
            )
        ]
    rules = [graph_faults(spec), step_faults(spec), param_faults(spec), _file_faults(surroundings.files)]
    if surroundings.follow is not None:
        rules.append(chain_faults(spec, surroundings.follow))
    findings = {source.finding(fault) for fault in islice(chain.from_iterable(rules), MAX_FINDINGS)}
    return sorted(findings | set(islice(_agent_findings(spec, source, surroundings), MAX_FINDINGS)))


def _agent_findings(spec: FlowSpec, source: Source, around: Surroundings) -> Iterator[Finding]:
    known: list[str] | None = None
    checked = set[str]()
    for index, step in enumerate(spec.steps):
        file = find_persona(step.agent, around.files, around.folders)
        if file is None:
            known = known_personas(around.files, around.folders) if known is None else known
            what = f"step {step.id!r}: no agent is named {step.agent!r}"
            mend = one_of(step.agent, known)
            if re.fullmatch(NAME_PATTERN, step.agent):
                mend += f"; or add agents/{step.agent}.md beside the flow"
            yield source.finding(Fault(("steps", index, "agent"), "unknown_agent", what, mend))
        elif step.agent not in checked:
            checked.add(step.agent)
            yield from parse_persona(step.agent, file)[1]


def _file_faults(files: Mapping[str, str]) -> Iterator[Fault]:
    if len(files) > MAX_FILES:
        what = f"{len(files)} files are sent along; at most {MAX_FILES} are read"
        yield Fault((), "bad_file", what, "send those that the steps name")
    for name in islice(files, MAX_FILES):
        if not _is_plain(name):
            shown = name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}…"
            what = f"the file {shown!r} sent along has no plain relative path"
            yield Fault((), "bad_file", what, "name it as in agents/reviewer.md")


def _is_plain(name: str) -> bool:
    path = PurePosixPath(name)
    odd = path.is_absolute() or not path.parts or ".." in path.parts or str(path) != name or "\\" in name
    return not odd and name.isprintable() and name == name.strip() and len(name.encode()) <= _MAX_NAME_BYTES
