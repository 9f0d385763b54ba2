from __future__ import annotations

from pathlib import Path

import pytest

from flows.loader import find_flow, known_flows, load_flow, load_text
from flows.personas import personas_of
from flows.reading import SHIPPED
from schemas.errors import BadInput

SHIPPED_FLOWS = ["build", "direct", "fix", "plan-then-implement"]
FLOW = """\
id: {name}
version: 1
title: Own
steps:
  - {{id: only, agent: {agent}, objective: Do it., routing: {{kind: terminal}}}}
"""
PERSONA = "---\nname: {name}\ndescription: Own.\n---\nYou are {name}.\n"


def _folder(path: Path, **agents: str) -> Path:
    (path / "agents").mkdir(parents=True)
    for name, agent in agents.items():
        (path / f"{name}.yaml").write_text(FLOW.format(name=name, agent=agent))
    return path


def test_the_shipped_flows_are_known() -> None:
    assert known_flows() == SHIPPED_FLOWS


def test_flows_of_configured_folders_are_known_too(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "own", mine="implementer")
    (folder / "Not A Name.yaml").write_text("x")
    assert known_flows([folder, tmp_path / "absent"]) == sorted([*SHIPPED_FLOWS, "mine"])
    assert load_flow("mine", [folder])[1] == []


def test_a_shipped_flow_cannot_be_replaced(tmp_path: Path) -> None:
    folder = _folder(tmp_path, fix="implementer")
    assert find_flow("fix", [folder]).path == SHIPPED / "fix.yaml"


def test_an_unknown_flow_is_refused_with_the_nearest_and_all_known_names() -> None:
    with pytest.raises(BadInput) as caught:
        find_flow("fixx")
    assert caught.value.code == "UnknownFlow"
    assert caught.value.details["known"].split() == SHIPPED_FLOWS
    assert "did you mean 'fix'?" in str(caught.value)
    assert "plan-then-implement" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../flows/fix", "/etc/passwd", "fix.yaml", "Fix", "", "fix\n", "scenarios/demo"]
)
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(BadInput):
        find_flow(name)


def test_a_flow_finds_the_agents_beside_it_first(tmp_path: Path) -> None:
    folder = _folder(tmp_path, mine="implementer")
    own = PERSONA.format(name="implementer")
    (folder / "agents" / "implementer.md").write_text(own)
    spec, findings = load_flow("mine", [folder])
    assert findings == []
    assert spec is not None
    assert personas_of(spec, {}, find_flow("mine", [folder]).folders) == {"implementer": own}
    shipped = find_flow("fix", [folder]).folders
    assert personas_of(spec, {}, shipped)["implementer"] != own


def test_files_sent_along_come_before_every_folder() -> None:
    own = PERSONA.format(name="implementer")
    files = {"agents/implementer.md": own}
    spec, findings = load_text("mine", FLOW.format(name="mine", agent="implementer"), files)
    assert findings == []
    assert spec is not None
    assert personas_of(spec, files, [SHIPPED]) == {"implementer": own}


def test_a_fault_in_an_agent_sent_along_is_found_in_its_own_file() -> None:
    files = {"agents/guest.md": "---\nname: guest\ndescripton: Typo.\n---\nText.\n"}
    spec, findings = load_text("mine", FLOW.format(name="mine", agent="guest"), files)
    assert spec is None
    found = [(finding.file, finding.line, finding.code) for finding in findings]
    assert found == [("agents/guest.md", 2, "missing_key"), ("agents/guest.md", 3, "unknown_key")]


@pytest.mark.parametrize("name", ["../agents/x.md", "/agents/x.md", "agents//x.md", "./x.md", "agents\\x.md"])
def test_a_file_sent_along_has_a_plain_relative_path(name: str) -> None:
    _, findings = load_text("mine", FLOW.format(name="mine", agent="implementer"), {name: "x"})
    assert [finding.code for finding in findings] == ["bad_file"]


def test_a_file_that_is_no_utf_8_is_a_finding_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"id: latin\ntitle: \xe9\n")
    spec, findings = load_flow("latin", [tmp_path])
    assert spec is None
    assert [(finding.line, finding.code) for finding in findings] == [(2, "yaml_syntax")]


def test_a_file_over_the_limit_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text("#" * 200_000)
    assert [finding.code for finding in load_flow("large", [tmp_path])[1]] == ["yaml_limit"]


def test_an_agent_that_is_no_utf_8_is_a_finding(tmp_path: Path) -> None:
    folder = _folder(tmp_path, mine="odd")
    (folder / "agents" / "odd.md").write_bytes(b"---\nname: odd\n---\n\xff\n")
    assert [(finding.line, finding.code) for finding in load_flow("mine", [folder])[1]] == [
        (4, "bad_persona")
    ]
