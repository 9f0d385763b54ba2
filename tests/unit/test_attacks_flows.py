"""Attacks on what reads flows, agents, scenarios and inputs: each ends in one clear finding, soon, and small."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import run
from flows.findings import MAX_FINDINGS, Finding
from flows.lint import MAX_FILES, MAX_STEPS
from flows.loader import find_flow, known_flows, load_flow, load_found, load_text
from flows.params import resolve
from flows.reading import read_text
from flows.scenarios import find_scenario, load_scenario
from flows.source import MAX_FILE_BYTES
from policy.plain import visible
from schemas.errors import BadInput
from schemas.run import MAX_SPEC_BYTES

pytestmark = pytest.mark.timeout(60)

HEAD = "id: x\nversion: 1\ntitle: t\n"
AGENT = "---\nname: a\ndescription: d\n---\nDo it.\n"
FILES = {"agents/a.md": AGENT}
STEP = "- {id: s, agent: a, objective: g, routing: {kind: terminal}}\n"
FLOW = f"{HEAD}steps:\n{STEP}"
NEARLY = MAX_FILE_BYTES - 1_000
HIDDEN = ("\u202e", "\u2066", "\U000e0041")


def findings(text: str, files: dict[str, str] = FILES) -> list[Finding]:
    spec, found = load_text("x.yaml", text, files)
    assert (spec is None) == bool(found)
    assert len(found) <= 2 * MAX_FINDINGS
    for finding in found:
        assert finding.what
        assert finding.line >= 1
        assert len(str(finding)) < 3_000
    return found


def test_the_flow_that_the_attacks_begin_from_is_sound() -> None:
    assert findings(FLOW) == []


BOMBS = {
    "nine to the twelfth": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)),
    "lists in lists": "[" * NEARLY,
    "mappings in mappings": "{a: " * (NEARLY // 4),
    "dashes": "- " * (NEARLY // 2),
    "keys of keys": "? " * (NEARLY // 2),
    "steps in the margin": "\n".join(" " * depth + "a:" for depth in range(400)),
    "a value that holds itself": "a: &a [*a]",
    "very many values": "[" + "1," * 60_000 + "1]",
    "very many keys": "".join(f"k{number}: 1\n" for number in range(12_000)),
    "very many keys in a step": f"{HEAD}steps:\n- id: s\n" + "".join(f"  k{n}: 1\n" for n in range(9_000)),
    "the same key again and again": "a: 1\n" * 20_000,
    "very many steps of one name": f"{HEAD}steps:\n" + STEP * 2_000,
    "documents": "---\n" * (NEARLY // 4),
    "comments": "#\n" * (NEARLY // 2),
    "colons": ":" * NEARLY,
    "exclamation marks": "!" * NEARLY,
    "a long word": "a" * NEARLY,
    "a long key": "k" * 100_000 + ": 1",
    "a long number": "id: " + "9" * 100_000,
    "too large": "#" * (MAX_FILE_BYTES + 1),
    "very many inputs": f"{HEAD}steps:\n- {{id: s, agent: a, objective: g, routing: {{kind: terminal}}, inputs: ["
    + ",".join(f"q{number}" for number in range(12_000))
    + "]}\n",
    "very many parameters": f"{HEAD}params: {{{','.join(f'p{n}: {{}}' for n in range(5_000))}}}\nsteps:\n{STEP}",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_with_its_place(text: str) -> None:
    assert findings(text)


ODD = {
    "nul": ("id: a\0b", "yaml_syntax"),
    "an escaped nul": ('id: "a\\0b"', "yaml_syntax"),
    "half a character": ('id: "\\ud800"', "yaml_syntax"),
    "a control character": ("id: a\x1bb", "yaml_syntax"),
    "a tag": ("id: !!python/object/apply:os.system [ls]", "yaml_syntax"),
    "bytes": ("id: !!binary aGk=", "yaml_syntax"),
    "a key that is a list": ("? [a]\n: 1", "yaml_syntax"),
    "two documents": ("a: 1\n---\nb: 2", "yaml_syntax"),
    "an alias of nothing": ("a: *b", "yaml_syntax"),
    "nothing": ("", "yaml_syntax"),
    "the same key": (f"id: y\n{FLOW}", "duplicate_key"),
    "a merge": (f"{FLOW}<<: {{a: 1}}\n", "unknown_key"),
    "a list": ("- a", "wrong_value"),
    "a date": (FLOW.replace("title: t", "title: {a: b}"), "wrong_value"),
    "true": (FLOW.replace("id: x", "id: true"), "wrong_value"),
    "a float": (FLOW.replace("version: 1", "version: 1.0"), "wrong_value"),
    "text": (FLOW.replace("version: 1", "version: '1'"), "wrong_value"),
    "not a number": (FLOW.replace("version: 1", "version: .nan"), "wrong_value"),
}


@pytest.mark.parametrize(("text", "code"), ODD.values(), ids=ODD)
def test_an_odd_value_is_refused_by_its_kind(text: str, code: str) -> None:
    assert code in {finding.code for finding in findings(text)}


@pytest.mark.parametrize("char", HIDDEN)
def test_what_turns_or_hides_text_is_refused_wherever_it_stands(char: str) -> None:
    escaped = f'"\\U{ord(char):08x}"'
    for text in (f"{FLOW}# {char}\n", FLOW.replace("objective: g", f"objective: {char}"), f"{FLOW}{escaped}: 1\n",
                 FLOW.replace("objective: g", f"objective: {escaped}")):  # fmt: skip
        (found,) = findings(text)
        assert (found.code, found.what) == ("yaml_syntax", f"character U+{ord(char):04X} turns or hides text")
        assert found.mend
    for persona in (f"{AGENT}{char}", AGENT.replace(": d", f": {escaped}")):
        (found,) = findings(FLOW, {"agents/a.md": persona})
        assert found.file == "agents/a.md"
        assert f"U+{ord(char):04X}" in found.what


def test_languages_that_are_read_from_the_right_are_fine() -> None:
    assert findings(FLOW.replace("title: t", "title: שלום مرحبا")) == []


@pytest.mark.parametrize(
    "persona",
    [
        "",
        "no front matter",
        "---\nname: a",
        "---\n- a\n---\nhi",
        "---\nname: a\nname: a\ndescription: d\n---\nhi",
        "---\nname: !!python/name:os.system a\n---\nhi",
        "---\nname: b\ndescription: d\n---\nhi",
        "---\nname: a\ndescription: d\n---\n",
        "---\nname: a\ndescription: d\ntools: {a: b}\n---\nhi",
        "---\nname: a\ndescription: d\nhooks: [rm]\n---\nhi",
        "---\nname: a\ndescription: d\n---\nh\0i",
        "---\nname: a\x0cdescription: d\n---\nhi",
        "---\u2028name: a\u2028description: d\u2028---\u2028hi",
        "---\na: &a [x]\n" + "b: [*a, *a, *a]\n" * 400 + "---\nhi",
        "---\n" + "[" * NEARLY + "\n---\nhi",
        "---\n" * 30_000 + "x",
        AGENT + "x" * MAX_FILE_BYTES,
    ],
    ids=lambda text: repr(text[:30]),
)
def test_a_bad_persona_is_refused_in_its_own_file(persona: str) -> None:
    found = findings(FLOW, {"agents/a.md": persona})
    assert {finding.file for finding in found} == {"agents/a.md"}


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "a\0b", "a\nb", "", ".", " ", "a/", "agents/../a.md", "agents//a.md", "a\\b", "C:\\x",
     "\u202e", "\x1b[2J", "x" * 5_000, "é" * 200, "\ud800"],
)  # fmt: skip
def test_a_file_sent_along_has_a_plain_relative_name(name: str) -> None:
    (found,) = findings(FLOW, {**FILES, name: "x"})
    assert found.code == "bad_file"
    assert found.mend


def test_very_many_files_sent_along_are_one_finding_more() -> None:
    found = findings(FLOW, {**FILES, **{f"agents/n{number}.md": "" for number in range(5_000)}})
    assert [finding.code for finding in found] == ["bad_file"]
    assert f"at most {MAX_FILES}" in found[0].what


def steps(count: int, agent: Callable[[int], str], leads_to: Callable[[int], str]) -> str:
    rows = (
        f"- {{id: s{n}, agent: {agent(n)}, objective: g, routing: {{kind: linear, next: {leads_to(n)}}}}}\n"
        for n in range(count - 1)
    )
    return f"{HEAD}steps:\n{''.join(rows)}- {{id: s{count - 1}, agent: a, objective: g, routing: {{kind: terminal}}}}\n"


def test_a_flow_with_very_many_steps_is_one_finding() -> None:
    (found,) = findings(steps(MAX_STEPS + 1, lambda _: "a", lambda n: f"s{n + 1}"))
    assert (found.code, f"at most {MAX_STEPS}" in found.what) == ("yaml_limit", True)
    assert findings(steps(MAX_STEPS, lambda _: "a", lambda n: f"s{n + 1}")) == []


def test_findings_about_very_many_names_stay_few_and_short() -> None:
    known = {f"agents/known-{number}.md": "" for number in range(MAX_FILES - 1)}
    assert findings(steps(MAX_STEPS, lambda n: f"unknown-{n}", lambda n: f"t{n}"), {**FILES, **known})


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nsteps: {" + ",".join(f"s{n}: {{turns: [{{}}]}}" for n in range(4_000)) + "}",
        "version: 1\nsteps: {a: {turns: [{work: ["
        + ",".join("{do: edit, path: x}" for _ in range(5_000))
        + "]}]}}",
        "version: 1\nsteps: {a: {turns: [{work: [" + ",".join("{edit: x}" for _ in range(8_000)) + "]}]}}",
        "[" * NEARLY,
        "version: 1\nsteps: {a: \0}",
        "#" * (MAX_FILE_BYTES + 1),
    ],
    ids=lambda text: repr(text[:40]),
)
def test_a_scenario_is_held_to_the_same(text: str) -> None:
    scenario, found = load_scenario("x.yaml", text, steps=[f"t{number}" for number in range(MAX_STEPS)])
    assert scenario is None
    assert 1 <= len(found) <= 2 * MAX_FINDINGS


def test_a_flow_that_grows_when_it_is_filled_in_is_refused_before_it_has_grown() -> None:
    objective = "${task}" * 10_000
    spec, found = load_text("x.yaml", FLOW.replace("objective: g", f"objective: '{objective}'"), FILES)
    assert spec is not None, found
    with pytest.raises(BadInput, match=f"more than {MAX_SPEC_BYTES} characters") as refused:
        resolve(spec, {}, "t" * 100_000)
    assert (refused.value.code, refused.value.mend is not None) == ("FlowRefused", True)


PLACED: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "broken link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("place", PLACED.values(), ids=PLACED)
def test_what_is_no_file_is_neither_waited_for_nor_read(
    tmp_path: Path, place: Callable[[Path], None]
) -> None:
    for folder in ("flows", "scenarios", "agents"):
        (tmp_path / folder).mkdir()
    place(tmp_path / "odd.yaml")
    place(tmp_path / "scenarios" / "odd.yaml")
    place(tmp_path / "agents" / "a.md")
    with pytest.raises(OSError, match=r"."):
        read_text(tmp_path / "odd.yaml")
    assert "odd" not in known_flows([tmp_path])
    with pytest.raises(BadInput, match="is no regular file") as refused:
        find_flow("odd", [tmp_path])
    assert (refused.value.code, str(tmp_path) in str(refused.value)) == ("UnknownFlow", True)
    with pytest.raises(BadInput, match="is no regular file"):
        find_scenario("odd", [tmp_path])
    (tmp_path / "x.yaml").write_text(FLOW)
    assert [finding.code for finding in load_flow("x", [tmp_path])[1]] == ["unknown_agent"]


@pytest.mark.parametrize("place", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("where", ["flow", "scenario", "agent"])
def test_a_command_says_what_is_no_file(
    own_place: Path, capsys: pytest.CaptureFixture[str], where: str, place: Callable[[Path], None]
) -> None:
    (own_place / "agents").mkdir()
    paths = {
        "flow": own_place / "x.yaml",
        "scenario": own_place / "s.yaml",
        "agent": own_place / "agents" / "a.md",
    }
    for name, path in paths.items():
        if name == where:
            place(path)
        else:
            path.write_text({"flow": FLOW, "agent": AGENT}.get(name, "version: 1\nsteps: {}\n"))
    command = [
        "start",
        str(paths["flow"]),
        "--task",
        "t",
        "--repo",
        "/r",
        "--scenario",
        str(paths["scenario"]),
    ]
    assert run(command) != 0
    said = capsys.readouterr().err
    assert f"{paths[where]} cannot be read" in said
    assert len(said.splitlines()) <= 3


def test_a_folder_of_flows_may_be_a_link_or_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.yaml").write_text(FLOW)
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    folders = [tmp_path / name for name in ("fifo", "loop", "missing", "link")]
    assert "x" in known_flows(folders)
    assert find_flow("x", folders).path == tmp_path / "link" / "x.yaml"


def test_a_file_with_an_odd_name_is_no_flow(tmp_path: Path) -> None:
    for name in (" x", "x ", "x\ny", "x.y", ".x", "-x", "X", "\u202ex", "x\x1b[2J"):
        (tmp_path / f"{name}.yaml").write_text(FLOW)
    assert set(known_flows([tmp_path])) == set(known_flows())


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "/etc/passwd", "x\0", "x\n", "x" * 100_000, "\u202e", "x.yaml"]
)
def test_a_name_is_a_name_and_never_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.yaml").write_text(FLOW)
    with pytest.raises(BadInput) as refused:
        find_flow(name, [tmp_path / "below", tmp_path])
    assert refused.value.code == "UnknownFlow"
    assert len(str(refused.value)) < 1_000


def test_what_is_checked_is_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.md").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(FLOW)
    found = find_flow("x", [tmp_path])
    (tmp_path / "x.yaml").write_text("changed since")
    spec, faults = load_found(found, [tmp_path])
    assert (spec is not None and spec.id, faults) == ("x", [])


@pytest.mark.parametrize(
    "given",
    [
        "[" * 200_000,
        "{" * 200_000,
        "nul",
        "[]",
        '"x"',
        "1" * 10_000,
        "\0",
        '{"task": 1e999}',
        '{"a":' * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_an_odd_input_is_refused_in_words(
    own_place: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    (own_place / "agents").mkdir()
    (own_place / "agents" / "a.md").write_text(AGENT)
    (own_place / "x.yaml").write_text(FLOW)
    assert run(["start", "x.yaml", "--repo", "/r", "--input", given]) != 0
    said = capsys.readouterr().err
    assert said
    assert "Traceback" not in said
    assert len(said) < 2_000


def test_very_many_agents_beside_a_flow_are_not_all_read(
    own_place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_place / "agents").mkdir()
    for number in range(MAX_FILES + 1):
        (own_place / "agents" / f"n{number}.md").write_text(AGENT)
    (own_place / "x.yaml").write_text(FLOW)
    assert run(["lint", "x.yaml"]) != 0
    assert f"at most {MAX_FILES} are read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x" * 5_000, "x\0y", "\ud800", "x\ny", " "])
def test_a_command_line_with_an_odd_name_ends_in_words(
    own_place: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert own_place.is_dir()
    for command in (["plan", name], ["lint", f"{name}.yaml"], ["lint", f"./{name}"]):
        assert run(command) != 0
        said = capsys.readouterr().err
        assert said
        assert "Traceback" not in said
        assert visible(said) == said
