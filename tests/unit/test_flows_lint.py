"""Every finding of the linter, each from a flow file that has exactly the faults its first lines name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from chance import examples
from hypothesis import given
from hypothesis import strategies as st

from flows.findings import Code, Finding
from flows.loader import load_flow, load_text
from flows.reading import SHIPPED

DATA = Path(__file__).parent / "data" / "flows"
BAD = sorted((DATA / "bad").glob("*.yaml"))
_EXPECTED = re.compile(r"^# expect: (\d+): (\w+)$", re.MULTILINE)
_ELSEWHERE = {"bad_persona", "bad_file", "inconsistent", "unknown_step", "bad_edit"}


def _findings(path: Path) -> list[Finding]:
    return load_flow(path.stem, [DATA / "bad", DATA / "chain"])[1]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_flow_has_exactly_the_findings_it_names(path: Path) -> None:
    expected = [(int(line), code) for line, code in _EXPECTED.findall(path.read_text())]
    findings = _findings(path)
    assert expected
    assert [(finding.line, finding.code) for finding in findings] == expected


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_every_finding_says_where_what_and_how_to_mend_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    for finding in _findings(path):
        assert finding.file == str(path)
        assert 1 <= finding.line <= len(lines) + 1
        assert finding.column >= 1
        assert finding.what
        assert finding.mend
        assert str(finding).startswith(f"{path}:{finding.line}:{finding.column} {finding.code} ")


def test_every_code_of_a_flow_has_a_bad_flow() -> None:
    shown = {code for path in BAD for _, code in _EXPECTED.findall(path.read_text())}
    assert shown | _ELSEWHERE == set(get_args(Code))


def test_the_reference_explains_every_code() -> None:
    reference = (SHIPPED.parent / "docs" / "flows.md").read_text()
    assert [code for code in get_args(Code) if f"`{code}`" not in reference] == []


def test_a_flow_with_a_finding_is_no_flow() -> None:
    for path in BAD:
        spec, _ = load_flow(path.stem, [DATA / "bad", DATA / "chain"])
        assert spec is None


@pytest.mark.parametrize(
    ("name", "column"), [("missing_target", 35), ("unknown_key_inside", 37), ("duplicate_key", 1)]
)
def test_columns_point_at_the_word_that_is_wrong(name: str, column: int) -> None:
    assert _findings(DATA / "bad" / f"{name}.yaml")[0].column == column


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("missing_target", "did you mean 'finish'?"),
        ("unknown_agent", "did you mean 'implementer'?"),
        ("unknown_key", "did you mean 'objective'?"),
        ("unknown_key_in_routing", "did you mean 'next'?"),
        ("wrong_kind", "did you mean 'microloop'?"),
        ("unknown_transport", "did you mean 'claude-sdk'?"),
        ("unknown_policy", "known: full, read-only, test"),
        ("unknown_scorer", "end the loop by a required gate"),
    ],
)
def test_the_mend_names_the_word_that_was_probably_meant(name: str, mend: str) -> None:
    assert mend in _findings(DATA / "bad" / f"{name}.yaml")[0].mend


def test_a_gate_is_told_the_option_for_the_report_that_it_reads() -> None:
    junit, coverage = _findings(DATA / "bad" / "report_missing.yaml")
    assert junit.mend.endswith("`--junitxml={report}`")
    assert coverage.mend.endswith("`--cov-report=xml:{report}`")


def test_who_chains_an_unknown_flow_is_told_where_flows_are_looked_for() -> None:
    unknown, broken = _findings(DATA / "bad" / "chain_unknown.yaml")
    assert "STEPWISE_FLOW_PATHS" in unknown.mend
    assert broken.mend == "mend that flow, or name another"


def test_a_step_may_loop_over_other_steps_on_a_claim_alone() -> None:
    text = """
id: judged
version: 1
title: A critic without a gate
steps:
  - {id: write, agent: implementer, objective: Write., routing: {kind: linear, next: judge}}
  - id: judge
    agent: critic
    objective: Judge.
    routing: {kind: microloop, loop_target: write, next: finish}
  - {id: finish, agent: integrator, objective: Close., routing: {kind: terminal}}
"""
    assert load_text("judged", text, {})[1] == []


def test_a_budget_in_dollars_is_taken_where_cost_is_reported_or_the_transport_is_open() -> None:
    text = """
id: dear
version: 1
title: Dollars
steps:
  - {id: a, agent: implementer, objective: A., transport: [claude-sdk, stub], budget: {usd: 1}, routing: {kind: linear, next: b}}
  - {id: b, agent: implementer, objective: B., budget: {usd: 1}, routing: {kind: terminal}}
"""
    assert load_text("dear", text, {})[1] == []


def test_a_budget_of_cycles_is_taken_where_they_are_counted() -> None:
    text = """
id: counted
version: 1
title: Cycles
steps:
  - {id: a, agent: implementer, objective: A., transport: gemini-api, budget: {cycles: 8}, routing: {kind: terminal}}
"""
    assert load_text("counted", text, {})[1] == []


_WORDS = st.sampled_from(
    ["id", "steps", "routing", "kind", "terminal", "linear", "next", "a", "agent", "implementer", "objective",
     "gates", "argv", "params", "default", "${params.a}", "${", "when", "microloop", "branch", "../x", "\0", ""]
)  # fmt: skip
_JUNK = st.recursive(
    _WORDS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=5),
    max_leaves=25,
)


@given(st.text(max_size=200))
@examples(150)
def test_any_text_gives_findings_and_never_an_exception(text: str) -> None:
    spec, findings = load_text("any", text, {})
    assert spec is None
    assert findings


@given(steps=_JUNK, params=_JUNK, routing=_JUNK)
@examples(150)
def test_any_data_gives_findings_and_never_an_exception(
    steps: object, params: object, routing: object
) -> None:
    import json

    flow = {"id": "any", "version": 1, "title": "t", "params": params, "steps": steps, "setup": routing}
    load_text("any", json.dumps(flow), {})
    step = {"id": "a", "agent": "implementer", "objective": "o", "routing": routing, "gates": steps}
    load_text("any", json.dumps({"id": "any", "version": 1, "title": "t", "steps": [step, steps]}), {})


@pytest.mark.parametrize(
    ("where", "typo", "meant"),
    [
        ("params: {test: {tpye: argv}}", "tpye", "type"),
        ("defaults: {budget: {token: 5}}", "token", "tokens"),
        ("on_complete: {flows: fix}", "flows", "flow"),
    ],
)
def test_an_unknown_key_anywhere_is_held_against_the_keys_known_there(
    where: str, typo: str, meant: str
) -> None:
    found = [finding for finding in load_text("any", where, {})[1] if finding.code == "unknown_key"]
    assert [finding.what for finding in found] == [f"`{typo}` is no key here"]
    assert found[0].mend.startswith(f"did you mean {meant!r}? known: ")
