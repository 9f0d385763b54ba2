"""Loads flow files: by name from folders, or from text sent whole. A flow with a finding is not a flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flows.findings import MAX_FINDINGS, Fault, Finding
from flows.lint import Surroundings, lint
from flows.reading import SHIPPED, find_named, names_in, read_found
from flows.rules_chain import NoFlow
from flows.shape import check_shape
from flows.source import read_source
from flows.unseen import MEND, unseen, unseen_faults
from schemas.errors import BadInput
from schemas.flow import FlowSpec

Loaded = tuple[FlowSpec | None, list[Finding]]

_MEND_BAD = "mend that flow, or name another"
_MEND_UNKNOWN = (
    "name a known flow, or the folder of its file in STEPWISE_FLOW_PATHS: beside this one none is looked for"
)


@dataclass(frozen=True)
class FlowFile:
    """A flow file as found: its name, where it is, its whole text, and where its agents are looked for."""

    name: str
    path: Path
    text: str
    folders: tuple[Path, ...]


def known_flows(folders: Iterable[Path] = ()) -> list[str]:
    """Return the names of all flows that can be found, sorted."""
    return names_in([SHIPPED, *folders])


def find_flow(name: str, folders: Sequence[Path] = ()) -> FlowFile:
    """Find a flow, shipped ones first; BadInput ``UnknownFlow`` names the known ones and the nearest."""
    path = find_named("flow", "UnknownFlow", name, [SHIPPED, *folders])
    own = path.parent
    others = [folder for folder in (SHIPPED, *folders) if folder != own]
    return FlowFile(name, path, read_found(path, "flow"), (own, *others))


def load_flow(name: str, folders: Sequence[Path] = ()) -> Loaded:
    """Find, check and lint a flow; its ``id`` must be its name. Raises BadInput if there is none."""
    return load_found(find_flow(name, folders), folders)


def load_found(file: FlowFile, folders: Sequence[Path] = ()) -> Loaded:
    """Check and lint a flow file as it was found: what is checked is the text that is kept."""
    return _load_found(file, folders, chained=True)


def load_text(name: str, text: str, files: Mapping[str, str], *, folders: Sequence[Path] = ()) -> Loaded:
    """Check and lint a flow sent whole with its ``files``; the spec is None if there is any finding."""
    around = Surroundings(files, [SHIPPED, *folders], _Followers(folders).follow)
    return _load(name, text, around, own_name=None)


def _load_found(file: FlowFile, folders: Sequence[Path], *, chained: bool) -> Loaded:
    follow = _Followers(folders).follow if chained else None
    return _load(str(file.path), file.text, Surroundings({}, file.folders, follow), own_name=file.name)


def _load(file: str, text: str, around: Surroundings, *, own_name: str | None) -> Loaded:
    source, findings = read_source(file, text)
    if source is None:
        return None, findings
    hidden = unseen(text)
    if hidden is not None:
        what = f"character {hidden[1]} turns or hides text"
        return None, [Finding(file, hidden[0] + 1, 1, "yaml_syntax", what, MEND)]
    if faults := list(islice(unseen_faults(source.data), MAX_FINDINGS)):
        return None, sorted(source.finding(fault) for fault in faults)
    twice = [source.finding(fault) for fault in islice(_steps_named_twice(source.data), MAX_FINDINGS)]
    spec, shape_findings = check_shape(source, FlowSpec)
    # the contract says this too, but not where
    findings += twice + [found for found in shape_findings if not (twice and found.code == "inconsistent")]
    if spec is not None:
        findings += lint(spec, source, around)
        if own_name is not None and spec.id != own_name:
            what = f"the flow is {spec.id!r}, its file {own_name!r}"
            findings.append(source.finding(Fault(("id",), "wrong_id", what, "use one name for both")))
    return (None, sorted(findings)) if findings else (spec, [])


def _steps_named_twice(data: object) -> Iterator[Fault]:
    steps = data.get("steps") if isinstance(data, dict) else None
    seen: set[str] = set()
    for index, step in enumerate(steps if isinstance(steps, list) else []):
        name = step.get("id") if isinstance(step, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            what = f"two steps are named {name!r}"
            yield Fault(("steps", index, "id"), "duplicate_step", what, "give each step its own id")
        seen.add(name)


class _Followers:
    """Loads the flows that follow, each once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._found: dict[str, FlowSpec | NoFlow] = {}

    def follow(self, name: str) -> FlowSpec | NoFlow:
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    def _load(self, name: str) -> FlowSpec | NoFlow:
        try:
            spec, findings = _load_found(find_flow(name, self._folders), self._folders, chained=False)
        except BadInput as error:
            return NoFlow(str(error), _MEND_UNKNOWN if error.code == "UnknownFlow" else _MEND_BAD)
        return spec or NoFlow(f"{len(findings)} found in it, first {findings[0]}", _MEND_BAD)
