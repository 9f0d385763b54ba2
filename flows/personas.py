"""Personas: markdown with front matter that says who an agent is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.findings import Finding
from flows.known import NAME_PATTERN
from flows.reading import is_regular, read_found
from flows.shape import check_shape
from flows.source import MAX_FILE_BYTES, read_source
from flows.unseen import MEND, unseen, unseen_faults
from schemas.common import Closed
from schemas.flow import FlowSpec

_FENCE = "---"
_LINE_END = re.compile(r"\r\n|\r|\n")


class PersonaHead(Closed):
    """The front matter of a persona: ``model`` where one is meant; ``tools`` is known and refused."""

    name: str
    description: str
    tools: str | list[str] | None = None
    model: str | None = None


@dataclass(frozen=True)
class Persona:
    """Who an agent is: what people read of it, its model if it names one, and its text."""

    name: str
    description: str
    model: str | None
    text: str


@dataclass(frozen=True)
class PersonaFile:
    """A persona as found: the file as shown to people, and its whole text."""

    file: str
    text: str


def find_persona(key: str, files: Mapping[str, str], folders: Iterable[Path]) -> PersonaFile | None:
    """Return ``agents/<key>.md`` from the files sent along, else from the first folder that has it."""
    if not re.fullmatch(NAME_PATTERN, key):
        return None
    name = f"agents/{key}.md"
    if name in files:
        return PersonaFile(name, files[name])
    for folder in folders:
        path = folder / name
        if is_regular(path):
            return PersonaFile(str(path), read_found(path, "agent"))
    return None


def known_personas(files: Mapping[str, str], folders: Iterable[Path]) -> list[str]:
    """Return the names of all personas that can be found, sorted."""
    names = {Path(file).stem for file in files if re.fullmatch(r"agents/[^/]+\.md", file)}
    for folder in folders:
        names |= {path.stem for path in folder.glob("agents/*.md")}
    return sorted(name for name in names if re.fullmatch(NAME_PATTERN, name))


def personas_of(spec: FlowSpec, files: Mapping[str, str], folders: Iterable[Path]) -> dict[str, str]:
    """Return the whole text of every persona the flow's steps name and that can be found."""
    searched = list(folders)
    found = {step.agent: find_persona(step.agent, files, searched) for step in spec.steps}
    return {key: persona.text for key, persona in sorted(found.items()) if persona is not None}


def parse_persona(key: str, file: PersonaFile) -> tuple[Persona | None, list[Finding]]:
    """Read a persona; its front matter's ``name`` must be its key, and its text must not be empty."""
    size = len(file.text.encode("utf-8", "replace"))
    if size > MAX_FILE_BYTES:
        return None, [_bad(file, 1, f"it has {size} bytes; at most {MAX_FILE_BYTES} are read", "write less")]
    if (bad := re.search("[\0\ud800-\udfff\ufffe]", file.text)) is not None:
        line = 1 + file.text.count("\n", 0, bad.start())
        return None, [_bad(file, line, "a character that is no text", "save the file as UTF-8")]
    if (hidden := unseen(file.text)) is not None:
        return None, [_bad(file, hidden[0] + 1, f"character {hidden[1]} turns or hides text", MEND)]
    lines = _LINE_END.split(file.text.removeprefix("\ufeff"))
    if not lines or lines[0].rstrip() != _FENCE or _FENCE not in (line.rstrip() for line in lines[1:]):
        what = "the front matter is missing"
        return None, [_bad(file, 1, what, "begin with `---`, `name:`, `description:`, `---`")]
    end = next(number for number, line in enumerate(lines) if number and line.rstrip() == _FENCE)
    source, findings = read_source(file.file, "\n".join(lines[1:end]), first_line=2)
    findings += [] if source is None else [source.finding(fault) for fault in unseen_faults(source.data)]
    if source is None or findings:
        return None, findings
    head, findings = check_shape(source, PersonaHead)
    if head is None or findings:
        return None, findings
    text = "\n".join(lines[end + 1 :]).strip()
    if head.name != key:
        line = source.at(("name",)).line
        findings.append(_bad(file, line, f"`name` is {head.name!r}, the file is {key!r}", "use one name"))
    if not text:
        findings.append(_bad(file, end + 1, "no text follows the front matter", "say who the agent is"))
    if head.tools:
        what = "`tools` cannot be held: in this version every agent has the tools of its transport"
        mend = "leave it out; `policy: read-only` in a step is for who may change nothing"
        findings.append(_bad(file, source.at(("tools",)).line, what, mend))
    if findings:
        return None, findings
    return Persona(head.name, head.description, head.model, text + "\n"), []


def _bad(file: PersonaFile, line: int, what: str, mend: str) -> Finding:
    return Finding(file.file, line, 1, "bad_persona", what, mend)
