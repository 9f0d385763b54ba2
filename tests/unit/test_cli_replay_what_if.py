"""``stepwise replay --what-if``: recorded facts decided again under a changed flow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import run

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "histories" / "data"
HISTORIES = DATA / "histories"
NAMES = sorted(path.stem for path in HISTORIES.iterdir())

Shown = Callable[..., tuple[int, str, str]]


pytestmark = pytest.mark.usefixtures("own_place")


@pytest.fixture
def replayed(capsys: pytest.CaptureFixture[str]) -> Shown:
    def _replayed(*arguments: object) -> tuple[int, str, str]:
        code = run(["replay", *(str(argument) for argument in arguments)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return _replayed


def shipped(name: str) -> str:
    return (ROOT / "flows" / f"{name}.yaml").read_text(encoding="utf-8")


def changed(tmp_path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Write a shipped flow with some of its text replaced."""
    text = shipped(name)
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def golden(name: str) -> Path:
    return HISTORIES / f"{name}.json"


@pytest.mark.parametrize("name", NAMES)
def test_under_the_flow_it_ran_no_decision_of_a_history_differs(name: str, replayed: Shown) -> None:
    flow = ROOT / "flows" / f"{name.rpartition('-')[0]}.yaml"

    code, out, err = replayed(golden(name), "--what-if", flow)

    assert (code, err) == (0, "")
    assert out.endswith("what-if: no decision differs\n")


def test_a_lower_bound_ends_the_loop_and_what_came_later_is_not_compared(
    replayed: Shown, tmp_path: Path
) -> None:
    flow = changed(tmp_path, "fix", ("max_iterations: 5", "max_iterations: 1"))

    code, out, _ = replayed(golden("fix-loop"), "--what-if", flow)

    assert code == 1
    first, _, place, recorded, new, parted, _, end = out.splitlines()
    assert first == f"{golden('fix-loop')}: 4 decisions of flow fix decided again under {flow}"
    assert re.fullmatch(r"implement #1, iteration 1 \(event \d+\)", place)
    assert recorded == "   recorded  loop implement: No exit of the loop holds after iteration 1 of 5."
    assert new == "   new       escalate: Iteration 1 of 1 did not end the loop."
    expected = "   From here on the run would have gone another way; 3 later decisions cannot be compared."
    assert parted == expected
    assert end == "what-if: 1 decision differs"


def test_another_reason_for_the_same_way_is_a_difference_and_the_paths_do_not_part(
    replayed: Shown, tmp_path: Path
) -> None:
    linear = "routing: {kind: linear, next: finish}"
    rules = "{field: status, operator: equals, value: BLOCKED, next: finish}"
    branch = f"routing: {{kind: branch, when: [{rules}], default: finish}}"
    flow = changed(tmp_path, "fix", (linear, branch))

    code, out, _ = replayed(golden("fix-loop"), "--what-if", flow, "--json")

    data = json.loads(out)
    assert code == 1
    assert (data["verdict"], data["parted"], data["compared"], data["not_compared"]) == (
        "changed",
        False,
        4,
        0,
    )
    (only,) = data["differences"]
    assert (only["step"], only["visit"], only["elsewhere"]) == ("review", 1, False)
    assert only["recorded"] == {"to": "advance finish", "why": "Step review is followed by finish."}
    assert only["new"]["to"] == "branch finish"
    assert only["new"]["why"].startswith("No rule matched; the default is taken.")


def test_parameters_the_changed_flow_does_not_take_are_bad_input(replayed: Shown, tmp_path: Path) -> None:
    flow = tmp_path / "fix.yaml"
    flow.write_text(shipped("fix").replace("params.test", "params.check").replace("  test:\n", "  check:\n"))

    code, out, err = replayed(golden("fix-success"), "--what-if", flow)

    assert (code, out) == (2, "")
    assert f"{golden('fix-success')}: flow 'fix' has no parameter 'test'" in err


def test_a_gate_that_was_not_measured_is_not_passed_and_a_note_says_so(
    replayed: Shown, tmp_path: Path
) -> None:
    more = 'argv: ["${params.test}"]\n      - {name: lint, argv: [make, lint]}'
    flow = changed(tmp_path, "fix", ('argv: ["${params.test}"]', more))

    code, out, _ = replayed(golden("fix-success"), "--what-if", flow)

    assert code == 1
    assert "   recorded  advance review: All 1 required gates passed in iteration 1." in out
    assert "   new       loop implement: No exit of the loop holds after iteration 1 of 5." in out
    assert "note: implement: gate lint was not measured in this history, so it is not passed" in out


def test_a_gate_that_is_another_command_now_keeps_its_result_and_a_note_says_so(
    replayed: Shown, tmp_path: Path
) -> None:
    flow = changed(tmp_path, "fix", ('argv: ["${params.test}"]', 'argv: ["${params.test}", -x]'))

    code, out, _ = replayed(golden("fix-success"), "--what-if", flow)

    assert code == 0
    assert "note: implement: gate tests is another command now; its old result is used" in out


def test_skip_leads_to_what_follows_in_the_changed_flow(replayed: Shown, tmp_path: Path) -> None:
    flow = changed(
        tmp_path,
        "fix",
        ("next: review\n      max_iterations: 5", "next: finish\n      max_iterations: 5"),
        ("  - id: implement\n", "  - id: implement\n    inputs: []\n"),
    )
    text = flow.read_text()
    start, end = text.index("  - id: review"), text.index("  - id: finish")
    flow.write_text((text[:start] + text[end:]).replace("[implement, review]", "[implement]"))

    code, out, _ = replayed(golden("fix-failed"), "--what-if", flow)

    assert code == 1
    assert re.search(
        r"^   recorded  skip review: ada ordered skip after step implement\.$", out, re.MULTILINE
    )
    assert re.search(
        r"^   new       skip finish: ada ordered skip after step implement\.$", out, re.MULTILINE
    )
    assert "From here on the run would have gone another way; " in out


def test_a_folder_is_compared_with_a_line_for_each_history(replayed: Shown, tmp_path: Path) -> None:
    flow = changed(tmp_path, "fix", ("max_iterations: 5", "max_iterations: 1"))

    code, out, _ = replayed(HISTORIES, "--what-if", flow)

    assert code == 1
    *lines, _, summary = out.splitlines()
    assert len(lines) == len(NAMES)
    assert f"skipped   {golden('build-loop')} ran build, not fix" in lines
    assert (
        f"changed   {golden('fix-loop')}: 4 decisions; implement #1 iteration 1: loop implement -> escalate; "
        "3 later decisions cannot be compared"
    ) in lines
    assert f"same      {golden('fix-success')}: 3 decisions" in lines
    assert summary == f"what-if: {len(NAMES)} histories: {len(NAMES) - 4} skipped, 2 changed, 2 same"


def test_faults_of_the_flow_file_are_printed_as_by_lint(
    replayed: Shown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = changed(tmp_path, "fix", ("loop_target: implement", "loop_target: implemnt"))

    code, out, err = replayed(golden("fix-loop"), "--what-if", flow)

    assert run(["lint", str(flow)]) == 1
    assert (code, out, err) == (2, capsys.readouterr().out, "")
    assert "missing_target" in out


def test_a_flow_none_of_the_histories_ran_is_bad_input(replayed: Shown, tmp_path: Path) -> None:
    flow = changed(tmp_path, "direct", ("id: direct\n", "id: other\n"))

    one = replayed(golden("direct-success"), "--what-if", flow)
    many = replayed(HISTORIES, "--what-if", flow)

    assert one[0] == many[0] == 2
    assert f"{golden('direct-success')} ran direct, not other" in one[2]
    assert many[1].endswith(f"what-if: {len(NAMES)} histories: {len(NAMES)} skipped\n")


def test_a_history_that_does_not_replay_cannot_be_decided_again(replayed: Shown) -> None:
    code, _, err = replayed(DATA / "broken.json", "--what-if", ROOT / "flows" / "fix.yaml")

    assert code == 2
    assert "does not replay, so what it decided is not known" in err
