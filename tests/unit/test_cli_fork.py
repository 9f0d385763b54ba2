"""``stepwise fork`` before it reaches a server: what is refused here, and what is sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.lineage import bundle_key
from activities.workspace import BaseFacts, base_key
from cli import fork as command
from cli.main import run
from flows.bundle import bundle
from flows.loader import load_text
from flows.params import resolve
from schemas.calls import AttemptKey, Lease
from schemas.errors import BadInput, LeaseLost
from schemas.events import RunEvent
from schemas.fork import ForkRef
from schemas.receipt import GENESIS, GitReceipt, StepReceipt
from schemas.run import FlowInput, InlineFile, InlineSpec
from schemas.run_record import RunRecord
from store.blobs import FileBlobs
from store.errors import NotStored
from store.evidence import JSON, Evidence
from store.journal import Journal
from store.keys import input_key
from store.receipts import Receipts
from store.redaction import Redactor
from store.runs import Runs
from system.settings import Loaded

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = "mine-1-0123456789ab"
BASE, FIRST, TREE = "a" * 40, "b" * 40, "c" * 40
AGENT = "---\nname: doer\ndescription: Does it.\n---\nYou do it.\n"
FLOW = """\
id: mine
version: 1
title: Mine
params:
  count: {type: integer, default: 1}
  label: {type: string, default: none}
steps:
  - {id: work, agent: doer, objective: "Do ${task} ${params.count} times.", routing: {kind: linear, next: check}}
  - {id: check, agent: doer, objective: "Check ${params.label}.", routing: {kind: linear, next: end}}
  - {id: end, agent: doer, objective: Close., routing: {kind: terminal}}
"""
SCENARIO = "version: 1\nsteps:\n  work:\n    turns:\n      - work:\n          - {do: say, text: hello}\n"


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    """The store, with a run of the flow that has worked, checked, and worked once more."""
    made = Evidence(FileBlobs(tmp_path / "store", fsync=False), Redactor())
    files = {"agents/doer.md": AGENT}
    given = FlowInput(
        spec=InlineSpec(name="own.yaml", text=FLOW, files=files),
        task="the ${thing}",
        repo="https://example.org/r.git",
        params={"count": 3, "label": "l"},
        scenario=InlineFile(name="s.yaml", text=SCENARIO),
        approval="auto",
    )
    spec, findings = load_text("own.yaml", FLOW, files)
    assert spec is not None, findings
    filled = resolve(spec, given.params, given.task)
    pinned = bundle(spec=filled, source=FLOW, personas={"doer": AGENT}, scenario=SCENARIO)
    ref = made.put_bytes(bundle_key(RUN, "mine"), pinned.canonical(), JSON)
    made.put_model(input_key(RUN), given)
    base = BaseFacts(commit=BASE, tree=TREE, location=given.repo, kind="url")
    made.put_model(base_key(RUN), base)
    record = RunRecord(
        run_id=RUN,
        workflow_id="mine-1",
        execution_run_id="x",
        flow_key="mine",
        repo=given.repo,
        bundle=ref,
        lease=Lease(worker_id="w", epoch=1),
        created_at=NOW,
    )
    Runs(made).take_lease(RUN, "w", lambda current: current or record)
    entered = [("work", 1), ("check", 1), ("work", 2)]
    events = [{"kind": "run_created", "flow": "mine"}]
    events += [{"kind": "step_started", "step": name, "visit": visit} for name, visit in entered]  # type: ignore[dict-item]
    events.append({"kind": "step_started", "step": "_final", "visit": 1})  # type: ignore[dict-item]
    Journal(made).flush(
        RUN,
        [RunEvent.model_validate({"seq": n, "ts": NOW, **one}) for n, one in enumerate(events, 1)],
    )
    for name, visit in entered[:2]:
        _receipt(made, name, visit)
    return made


def _receipt(evidence: Evidence, step: str, visit: int) -> None:
    key = AttemptKey(run_id=RUN, flow_key="mine", step_id=step, visit=visit, attempt=1)
    evidence.put_bytes(f"{key.path}/work.bundle", b"bundle", "application/x-git-bundle")
    Receipts(evidence).write(
        StepReceipt(
            **key.model_dump(),
            iteration=1,
            transport="stub",
            execution_status="succeeded",
            verification_status="UNVERIFIED",
            started_at=NOW,
            completed_at=NOW,
            duration_ms=0,
            git=GitReceipt(branch="b", commit_before=BASE, commit_after=FIRST),
            previous_sha256=GENESIS,
        )
    )


@pytest.fixture(autouse=True)
def _own_store(own_place: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evidence
    monkeypatch.setenv("STEPWISE_STORE", (own_place / "store").as_uri())


class _Handle:
    """What the server answers: the ids of what was started."""

    first_execution_run_id = "01a21f69-ad6f-72ae-93f4-25cdd4ac5bcd"

    def __init__(self, workflow_id: str) -> None:
        self.id = workflow_id


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, FlowInput]]:
    """Hold the calls that would go to a server, where the name ``taken`` and a first made-up one are taken."""
    calls: list[tuple[str, FlowInput]] = []

    async def hold(_loaded: Loaded, checked: FlowInput, workflow_id: str, _flow: str) -> Any:
        if workflow_id in {"taken", "mine-1-fork-1"}:
            raise BadInput("E_RUNNING", f"a run with workflow id {workflow_id} is going on")
        calls.append((workflow_id, checked))
        return _Handle(workflow_id)

    monkeypatch.setattr(command, "send", hold)
    return calls


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["fork", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_a_fork_has_its_parents_flow_and_input_as_they_were_pinned(
    sent: list[tuple[str, FlowInput]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fork", "mine-1", "--from", "check"]) == 0

    ((workflow_id, given),) = sent
    assert workflow_id == "mine-1-fork-2"
    assert given.model_dump(exclude_unset=True) == {
        "fork": {"run_id": RUN, "flow": "mine", "step": "check", "visit": 1},
        "spec": {"name": "mine.yaml", "text": FLOW, "files": {"agents/doer.md": AGENT}},
        "task": "the ${thing}",
        "repo": "https://example.org/r.git",
        "params": {"count": 3, "label": "l"},
        "scenario": {"name": "s.yaml", "text": SCENARIO},
        "approval": "auto",
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "run id       mine-1-fork-2-25cdd4ac5bcd"
    assert lines[3] == f"forked from  {RUN} before check #1, at commit {FIRST[:10]}"


def test_the_newest_visit_is_meant_unless_another_is_named(sent: list[tuple[str, FlowInput]]) -> None:
    run(["fork", RUN, "--from", "work"])
    run(["fork", RUN, "--from", "mine:work", "--visit", "1"])

    assert [given.fork.visit for _, given in sent if given.fork] == [2, 1]


def test_what_is_said_goes_before_what_the_parent_had(sent: list[tuple[str, FlowInput]]) -> None:
    fields = ("model=5", 'budget={"tokens": 9}', "transport=null", "trusted=false", 'base_url="x"')
    options = [word for field in fields[:-1] for word in ("--input", field)]
    run(["fork", RUN, "--from", "work", "--task", "other", "--param", "count=7", *options, "--id", "named"])

    ((workflow_id, given),) = sent
    assert workflow_id == "named"
    assert (given.task, given.params) == ("other", {"count": 7, "label": "l"})
    assert (given.model, given.transport, given.trusted) == ("5", None, False)
    assert given.budget is not None
    assert given.budget.tokens == 9


def test_another_flow_gets_those_parameters_that_it_has(
    sent: list[tuple[str, FlowInput]], tmp_path: Path
) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "doer.md").write_text(AGENT)
    (tmp_path / "other.yaml").write_text(
        FLOW.replace("id: mine", "id: other")
        .replace("  label: {type: string, default: none}\n", "")
        .replace("${params.label}", "it")
    )
    run(["fork", RUN, "--from", "check", "--flow", "other.yaml"])

    ((_, given),) = sent
    assert given.spec is not None
    assert given.spec.name == "other.yaml"
    assert given.params == {"count": 3}


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ('budget={"tokens": "many"}', None),
        ("approval=nobody", None),
        ('budget={"tokns": 9}', "tokens, usd, seconds, cycles"),
        ('scenario={"name": "s.yaml", "text": "version: 1", "txt": ""}', "name, text"),
    ],
)
def test_fields_are_named_where_one_is_unknown_and_those_of_its_object(
    sent: list[tuple[str, FlowInput]], capsys: pytest.CaptureFixture[str], given: str, known: str | None
) -> None:
    line = _refused(capsys, "mine-1", "--from", "check", "--input", given)
    assert line.partition(" -> ")[2] == (f"known fields: {known}" if known else "")
    assert sent == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine-2", "--from", "work"], "there is no run 'mine-2' -> did you mean mine-1"),
        (["mine-1", "--from", "end"], f"run {RUN} never reached step end -> choose one of work #1 #2, check #1"),
        (["mine-1", "--from", "other:work"], f"run {RUN} never reached step other:work -> choose one of"),
        (["mine-1", "--from", "check", "--visit", "2"], f"run {RUN} has no visit 2 of check -> choose one of"),
        (["mine-1", "--from", "check", "--visit", "0"], "--visit"),
        (["mine-1", "--from", "check", "--input", "task"], "--input 'task' sets no field -> write KEY=VALUE"),
        (["mine-1", "--from", "check", "--input", "taks=x"], "--input 'taks=x' sets no field"),
        (["mine-1", "--from", "check", "--input", "repo=x"], "--input cannot set repo -> a fork works on"),
        (["mine-1", "--from", "check", "--input", "flow=fix"], "--input cannot set flow -> use --flow"),
        (["mine-1", "--from", "check", "--input", "task=", "--task", "x"], "task: given by an option and in --input"),
        (["mine-1", "--from", "check", "--input", "task=a", "--input", "task=b"], "--input task is given twice"),
        (["mine-1", "--from", "check", "--input", "budget={"], "--input budget: it is not JSON"),
        (["mine-1", "--from", "check", "--input", "approval=nobody"], "approval: Input should be"),
        (["mine-1", "--from", "check", "--param", "missing=1"], "flow 'mine' has no parameter 'missing'"),
        (["mine-1", "--from", "check", "--flow", "fix"], "flow fix has no step 'check' -> its steps are"),
        (["mine-1", "--from", "check", "--workflow-id", "taken"], "a run with workflow id taken is going on"),
        (["mine-1"], "--from"),
    ],
)  # fmt: skip
def test_what_cannot_be_forked_is_refused_with_what_would_be_right(
    sent: list[tuple[str, FlowInput]], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert words in _refused(capsys, *arguments)
    assert sent == []


def test_a_flow_file_with_a_fault_is_refused_as_lint_shows_it(
    sent: list[tuple[str, FlowInput]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text("id: bad\n")
    assert run(["fork", RUN, "--from", "work", "--flow", "bad.yaml"]) == 1
    assert capsys.readouterr().err.startswith("bad.yaml:")
    assert sent == []


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("base/base.json", "cannot be forked: nothing is stored under"),
        ("base/bundle-mine.json", "cannot be forked: nothing is stored under"),
        ("mine/work/1/1/work.bundle", "cannot be forked: nothing is stored under"),
        ("base/input.json", "the input of run"),
        ("events/000001-000005.jsonl", "has entered no step yet"),
    ],
)
def test_a_parent_without_its_evidence_is_refused(
    evidence: Evidence, capsys: pytest.CaptureFixture[str], gone: str, words: str
) -> None:
    evidence.blobs.remove(f"runs/{RUN}/{gone}")
    assert words in _refused(capsys, "mine-1", "--from", "check")


@pytest.mark.parametrize("damaged", ["base/base.json", "mine/work/1/1/receipt.json", "base/bundle-mine.json"])
def test_a_parent_whose_evidence_is_damaged_is_refused(
    evidence: Evidence, capsys: pytest.CaptureFixture[str], tmp_path: Path, damaged: str
) -> None:
    assert evidence
    (tmp_path / "store" / "runs" / RUN / damaged).write_text("{")
    assert "cannot be forked: its evidence is damaged" in _refused(capsys, "mine-1", "--from", "check")


def test_json_names_where_the_fork_left_its_parent(
    sent: list[tuple[str, FlowInput]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fork", RUN, "--from", "check", "--json"]) == 0
    assert len(sent) == 1
    assert json.loads(capsys.readouterr().out)["forked_from"] == {
        "run_id": RUN, "flow_key": "mine", "step_id": "check", "visit": 1, "commit": FIRST
    }  # fmt: skip


def test_a_link_is_made_once_and_leaves_the_lease_to_who_has_it(evidence: Evidence) -> None:
    runs = Runs(evidence)
    before = runs.get(RUN)
    assert before is not None
    link = ForkRef(run_id="child", flow_key="mine", step_id="check", visit=1, commit=FIRST)
    for _ in range(2):
        runs.link_fork(RUN, link)
    assert runs.get(RUN) == before.model_copy(update={"forks": [link]})

    runs.update(RUN, before.lease, lambda record: record.model_copy(update={"head": FIRST}))
    taken = runs.take_lease(RUN, "another", lambda record: record or before)
    assert (taken.forks, taken.lease.epoch) == ([link], 2)
    runs.link_fork(RUN, link.model_copy(update={"run_id": "second"}))
    assert runs.check(RUN, taken.lease).head == FIRST
    with pytest.raises(LeaseLost):
        runs.check(RUN, before.lease)
    with pytest.raises(NotStored):
        runs.link_fork("nobody", link)
