"""``stepwise lint`` and ``stepwise plan``: what can be said of a flow file before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from cli.options import AsJson
from cli.session import complain, say, say_json, settings
from flows.findings import Finding
from flows.lint import MAX_FILES
from flows.loader import load_flow, load_text
from flows.plan import plan_mermaid, plan_text
from flows.reading import is_regular, read_text
from schemas.errors import BadInput
from schemas.flow import FlowSpec
from system.settings import resolved


@dataclass(frozen=True)
class OwnFlow:
    """A flow file with the agents beside it, as it is sent to a worker; ``spec`` is None if there are findings."""

    path: Path
    text: str
    files: dict[str, str]
    spec: FlowSpec | None
    findings: Sequence[Finding]


def lint(
    files: Annotated[list[Path], typer.Argument(help="Flow files.", metavar="FILE...")],
    *,
    as_json: AsJson = False,
) -> None:
    """Check flow files; exit code 1 if there is anything to mend.

    The agents beside them (agents/*.md) are checked too. Each line is FILE:LINE:COLUMN CODE what is wrong -> how to mend it.
    """
    findings = [finding for file in files for finding in read_own_flow(file).findings]
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            say(str(finding))
    if findings:
        raise typer.Exit(1)


def plan(
    flow: Annotated[str, typer.Argument(help="A flow file, or the name of a flow.", metavar="FILE|NAME")],
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid diagram.")] = False,
) -> None:
    """Show a flow's steps, its gates, and every way between them."""
    spec, findings = _named_or_own(flow)
    if spec is None:
        for finding in findings:
            complain(str(finding))
        raise typer.Exit(1)
    say((plan_mermaid(spec) if mermaid else plan_text(spec)).rstrip())


def is_file(flow: str) -> bool:
    """Say whether an argument means a file: a name has neither a slash nor a suffix."""
    return "/" in flow or flow.endswith((".yaml", ".yml")) or is_regular(Path(flow))


def read_own_flow(path: Path) -> OwnFlow:
    """Read and lint a flow file. Raises BadInput when it cannot be read."""
    text = _text(path)
    agents = sorted(path.parent.glob("agents/*.md"))
    if len(agents) > MAX_FILES:
        raise BadInput(
            "E_FILE",
            f"{path.parent}/agents has {len(agents)} agents; at most {MAX_FILES} are read",
            mend="keep those that the flow names beside it",
        )
    files = {f"agents/{each.name}": _text(each) for each in agents}
    spec, findings = load_text(str(path), text, files, folders=resolved(settings().settings).flow_paths)
    placed = [
        replace(finding, file=str(path.parent / finding.file)) if finding.file in files else finding
        for finding in findings
    ]
    return OwnFlow(path, text, files, spec, placed)


def _named_or_own(flow: str) -> tuple[FlowSpec | None, Sequence[Finding]]:
    if is_file(flow):
        own = read_own_flow(Path(flow))
        return own.spec, own.findings
    return load_flow(flow, resolved(settings().settings).flow_paths)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise BadInput(
            "E_FILE", f"{path} cannot be read: {error.strerror}", mend="name an existing file"
        ) from error
